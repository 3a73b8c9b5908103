//! Counters must be attached before the queue pair is activated.

use efa_gda::verbs::{CompletionCounter, CountedOperations, QueuePair, Ready};

fn attach(pair: &mut QueuePair<Ready>, counter: &CompletionCounter) {
    let _ = pair.attach(counter, CountedOperations::WRITE);
}

fn main() {}
