//! A queue pair that the adapter does not serve yet has nothing to show.

use efa_gda::verbs::{Created, QueuePair};

fn expose(pair: &QueuePair<Created>) {
    let _ = pair.exposure();
}

fn main() {}
