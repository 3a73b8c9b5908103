//! A queue pair must be activated before its queues are exposed.

use efa_gda::verbs::{Created, QueuePair};

fn expose(pair: &QueuePair<Created>) {
    let _ = pair.exposure();
}

fn main() {}
