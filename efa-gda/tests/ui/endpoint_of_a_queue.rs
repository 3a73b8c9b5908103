//! A mapped queue owns its endpoint: nobody else closes it, or posts to it.

use efa_gda::fabric::{Enabled, Endpoint, GdaOps};
use efa_gda::queue::MappedQueue;

fn close(ops: &GdaOps, endpoint: Endpoint<Enabled>) {
    let _queue = MappedQueue::new(endpoint, ops);
    let _ = endpoint.close();
}

fn main() {}
