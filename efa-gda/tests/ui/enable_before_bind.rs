//! An endpoint must be bound to an address vector and completion queues before it is enabled.

use efa_gda::fabric::{Building, Endpoint};

fn enable(endpoint: Endpoint<Building>) {
    let _ = endpoint.enable();
}

fn main() {}
