//! Opens the endpoint or queue pair of a mapped queue, and maps it.

use std::hash::{BuildHasher, Hasher, RandomState};

use efa_gda::doorbell::DoorbellChoice;
use efa_gda::fabric::{Bindings, CompletionQueue, CountedOperations, Domain, GdaOps, Info};
use efa_gda::queue::{MappedQueue, StoreWidth};
use efa_gda::verbs::{self, Capability, ProtectionDomain, QueuePair, QueuePairOptions};
use efa_gda::wire::{EntrySize, QueueKey};

use crate::counter::{Counter, CounterOfQueue};
use crate::domain::{Opened, Parts};
use crate::driven::{Driven, Processor};
use crate::error::{Code, Fault};
use crate::queue::{COUNTERS, MappedAttr, REQUEST_TABLE};

const DEFAULT_PEERS: u32 = 64;
/// Entries of each ring of a queue pair, unless the caller chooses.
const DEFAULT_ENTRIES: u32 = 256;
/// Entries of a completion queue on which nothing completes.
const UNUSED: usize = 64;

/// Opens and maps a queue.
pub(crate) fn open(
    parts: &Parts,
    processor: Processor,
    attr: &MappedAttr,
    (doorbell, width): (DoorbellChoice, StoreWidth),
    counter: Option<&CounterOfQueue>,
) -> Result<Driven, Fault> {
    let queue = match &parts.layer {
        Opened::Fabric { domain, info, ops } => over_fabric((domain, info, ops), &processor, attr, counter)?,
        Opened::Verbs { domain, wide_entries } => over_verbs(domain, *wide_entries, attr, counter)?,
    };
    let queue = queue.with_store_width(width);
    let queue = if attr.has(REQUEST_TABLE) { queue.with_request_table()? } else { queue };
    processor.drive(queue, doorbell)
}

fn over_fabric(
    (domain, info, ops): (&Domain, &Info, &GdaOps),
    processor: &Processor,
    attr: &MappedAttr,
    counter: Option<&CounterOfQueue>,
) -> Result<MappedQueue, Fault> {
    if attr.requests != 0 || attr.receives != 0 {
        return Err(Fault::argument(
            "requests and receives must be 0 on a domain of libfabric, whose fi_info sets the depth of the rings",
        ));
    }
    let peers = if attr.peers == 0 { DEFAULT_PEERS } else { attr.peers };
    let addresses = domain.address_vector(peers as usize)?;
    let least = info.completions() * if attr.has(COUNTERS) { 2 } else { 1 };
    let entries = if attr.completions == 0 { least } else { attr.completions as usize };
    let completions = completion_queue(processor, domain, ops, entries)?;
    // With counters, nothing reads the completion queue, so receives cannot complete there.
    let receives = if attr.has(COUNTERS) { domain.completion_queue(UNUSED)? } else { completions.clone() };
    let bindings = Bindings {
        address_vector: &addresses,
        send_completions: &completions,
        receive_completions: &receives,
    };
    let mut endpoint = domain.endpoint(info)?.bind(bindings)?;
    match counter {
        Some(CounterOfQueue { counter: Counter::Fabric(counter), counted, .. }) => {
            endpoint.bind_counter(counter, *counted)?;
        }
        Some(_) => return Err(other_domain()),
        None => {}
    }
    if attr.has(COUNTERS) {
        endpoint.bind_counter(&processor.counter(ops)?, CountedOperations::TRANSMIT)?;
    }
    let queue = MappedQueue::new(endpoint.enable()?, ops)?;
    Ok(if attr.has(COUNTERS) { queue.with_counters()? } else { queue })
}

/// Opens a completion queue, in the GPU's memory where that is possible.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables, reason = "only a GPU's needs the operations"))]
fn completion_queue(
    processor: &Processor,
    domain: &Domain,
    ops: &GdaOps,
    entries: usize,
) -> Result<CompletionQueue, Fault> {
    match processor {
        Processor::Host => Ok(domain.completion_queue(entries)?),
        #[cfg(feature = "cuda")]
        Processor::Gpu(gpu) => Ok(gpu.completion_queue(ops, entries)?.0),
    }
}

fn over_verbs(
    domain: &ProtectionDomain,
    wide_entries: bool,
    attr: &MappedAttr,
    counter: Option<&CounterOfQueue>,
) -> Result<MappedQueue, Fault> {
    if attr.has(COUNTERS) {
        return Err(Fault::new(
            Code::Unsupported,
            "a queue of rdma-core cannot use completion counters in place of its completion queue; open it without \
             EFA_GDA_MAPPED_COUNTERS, or on a domain of libfabric",
        ));
    }
    let context = domain.context();
    let depth = |entries: u32| if entries == 0 { DEFAULT_ENTRIES } else { entries };
    let (requests, receives) = (depth(attr.requests), depth(attr.receives));
    let rounded = |entries: u32| entries.checked_next_power_of_two().unwrap_or(entries);
    let completions = match attr.completions {
        0 => rounded(requests).saturating_add(rounded(receives)),
        entries => entries,
    };
    let completions = verbs::CompletionQueue::create(context, completions)?;
    let options = QueuePairOptions::new()
        .send_entries(requests)
        .receive_entries(receives)
        .entry_size(if wide_entries { EntrySize::B128 } else { EntrySize::B64 })
        .unsolicited_writes(context.attributes().has(Capability::UnsolicitedWriteReceive));
    let mut pair = QueuePair::create(domain, verbs::CompletionQueues::shared(&completions), &options)?;
    match counter {
        Some(CounterOfQueue { counter: Counter::Verbs { counter, .. }, counted, .. }) => {
            pair.attach(counter, *counted)?;
        }
        Some(_) => return Err(other_domain()),
        None => {}
    }
    // An adapter drops messages of senders that do not know the key. The highest bit is the kernel's.
    let key = RandomState::new().build_hasher().finish() as u32 >> 1;
    Ok(MappedQueue::over_verbs(pair.activate(QueueKey::new(key))?)?)
}

fn other_domain() -> Fault {
    Fault::argument(
        "the counter and the queue are of different domains; open the counter on the queue's domain",
    )
}
