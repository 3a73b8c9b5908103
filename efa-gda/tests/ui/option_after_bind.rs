//! The RNR retry count must be set before enable.

use efa_gda::fabric::{Enabled, Endpoint};

fn set(mut endpoint: Endpoint<Enabled>) {
    let _ = endpoint.set_rnr_retry(3);
}

fn main() {}
