//! One thread at a time posts to a queue from the host.

use efa_gda::queue::{MappedQueue, WorkRequest};

fn post(queue: &MappedQueue, put: &WorkRequest) {
    let _ = queue.execute(put);
}

fn main() {}
