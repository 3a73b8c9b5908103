//! Without address vector and completion queues there is nothing to enable.

use efa_gda::fabric::{Building, Endpoint};

fn enable(endpoint: Endpoint<Building>) {
    let _ = endpoint.enable();
}

fn main() {}
