//! Host threads post to a queue one at a time.

use efa_gda::queue::{MappedQueue, WorkRequest};

fn post(queue: &MappedQueue, put: &WorkRequest) {
    let _ = queue.execute(put);
}

fn main() {}
