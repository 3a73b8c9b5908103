//! One thread at a time posts to a queue from the host.

use efa_gda::queue::{MappedQueue, Put};

fn post(queue: &MappedQueue, put: &Put) {
    let _ = queue.put(put);
}

fn main() {}
