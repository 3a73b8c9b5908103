//! Counters are attached before the adapter serves a queue pair.

use efa_gda::verbs::{CompletionCounter, CountedOperations, QueuePair, Ready};

fn attach(pair: &mut QueuePair<Ready>, counter: &CompletionCounter) {
    let _ = pair.attach(counter, CountedOperations::WRITE);
}

fn main() {}
