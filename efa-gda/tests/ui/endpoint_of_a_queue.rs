//! A mapped queue owns its endpoint: the caller can neither close it nor post to it.

use efa_gda::fabric::{Endpoint, GdaOps};
use efa_gda::queue::MappedQueue;

fn close(ops: &GdaOps, endpoint: Endpoint) {
    let _queue = MappedQueue::new(endpoint, ops);
    let _ = endpoint.close();
}

fn main() {}
