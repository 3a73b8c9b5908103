//! A queue pair is activated once.

use efa_gda::verbs::{Created, QueuePair};
use efa_gda::wire::QueueKey;

fn activate(pair: QueuePair<Created>) {
    let _ready = pair.activate(QueueKey::new(1));
    let _again = pair.activate(QueueKey::new(2));
}

fn main() {}
