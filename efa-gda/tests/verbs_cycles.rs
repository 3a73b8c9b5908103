//! Creates and closes ten thousand of every object of the verbs layer, over real libibverbs and libefa. The
//! test is alone in its binary because it counts descriptors and mappings of the process.
//!
//! Runs where `EFA_GDA_VERBS_ADAPTER` names an adapter or is `any`, as `verbs_adapter.rs` does.

#![allow(clippy::unwrap_used, missing_docs)]

use efa_gda::queue::MappedQueue;
use efa_gda::verbs::*;
use efa_gda_test_support::{Need, missing};

const CYCLES: usize = 10_000;

/// Creates one of every object that the adapter supports, and closes it or its owner.
fn cycle(context: &Context) {
    let domain = ProtectionDomain::allocate(context).unwrap();
    let completions = CompletionQueue::create(context, 64).unwrap();
    let mut counters = Vec::new();
    if context.attributes().has(Capability::CompletionCounters) {
        counters.push((CompletionCounter::create(context).unwrap(), CountedOperations::WRITE));
    }
    let options = QueuePairOptions { send_entries: 16, receive_entries: 16, counters, ..Default::default() };
    let pair = QueuePair::open(&domain, &completions, &options).unwrap();
    drop(options);
    let mut queue = MappedQueue::over_verbs(pair).unwrap();
    queue.insert_peer(&queue.address().unwrap()).unwrap();
    let buffer = Buffer::zeroed(4096).unwrap();
    queue.retain(domain.register(buffer, Access::ALL).unwrap()).unwrap();
    queue.close().unwrap();
    completions.close().unwrap();
    domain.close().unwrap();
}

/// The numbers of descriptors and mappings of this process.
fn open_resources() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

#[test]
fn ten_thousand_cycles_leak_no_descriptors_or_mappings() {
    let Ok(name) = std::env::var("EFA_GDA_VERBS_ADAPTER") else {
        return missing(Need::Adapter, "EFA_GDA_VERBS_ADAPTER names no adapter");
    };
    let name = (name != "any").then_some(name);
    let opened = Library::load().and_then(|library| library.adapter(name.as_deref()));
    let context = opened.unwrap_or_else(|error| panic!("{error}"));
    // The first cycles allocate memory that later cycles reuse.
    (0..10).for_each(|_| cycle(&context));
    let (descriptors, mappings) = open_resources();
    (0..CYCLES).for_each(|_| cycle(&context));
    let (descriptors_after, mappings_after) = open_resources();
    assert_eq!(descriptors_after, descriptors);
    // The heap may add or remove a mapping; a leak would add thousands.
    assert!(mappings_after < mappings + CYCLES / 100, "{mappings} mappings before, {mappings_after} after");
    context.close().unwrap();
}
