//! Releases up to 2.6 crash on a query before enable.

use efa_gda::fabric::{Bound, Endpoint, GdaOps};

fn query(ops: &GdaOps, endpoint: &Endpoint<Bound>) {
    let _ = ops.query_qp_wqs(endpoint);
}

fn main() {}
