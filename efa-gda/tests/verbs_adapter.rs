//! The verbs layer over real libibverbs and libefa and an adapter: hardware, or the software adapter for a
//! process under `softefa run`.
//!
//! `EFA_GDA_VERBS_ADAPTER` names the adapter, or is `any`; without it the tests are skipped. With it, an
//! adapter that cannot be opened is a failure. Traffic goes from the adapter to itself.

#![allow(clippy::unwrap_used, missing_docs)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use efa_gda::queue::{MappedQueue, Receives, WorkRequest};
use efa_gda::verbs::*;
use efa_gda::wire::{CompletionStatus, EntrySize, Peer};
use efa_gda_test_support::{Need, missing, pattern, skip};

const LIMIT: Duration = Duration::from_secs(20);

/// A protection domain of the adapter. None, with the skip recorded, where no adapter is named.
fn domain() -> Option<ProtectionDomain> {
    let Ok(name) = std::env::var("EFA_GDA_VERBS_ADAPTER") else {
        missing(Need::Adapter, "EFA_GDA_VERBS_ADAPTER names no adapter");
        return None;
    };
    let name = (name != "any").then_some(name);
    let context = Library::load().and_then(|library| library.adapter(name.as_deref()));
    Some(ProtectionDomain::allocate(&context.unwrap_or_else(|e| panic!("{e}"))).unwrap())
}

/// The domain, if its adapter has this capability. None otherwise, with the skip recorded.
fn domain_with(capability: Capability) -> Option<ProtectionDomain> {
    let domain = domain()?;
    if !domain.context().attributes().has(capability) {
        skip(format!("{} lacks {capability:?}", domain.context().name()));
        return None;
    }
    Some(domain)
}

/// Creates a queue, with a completion queue that no other queue uses.
fn queue(domain: &ProtectionDomain, options: &QueuePairOptions) -> MappedQueue {
    queue_on(domain, &CompletionQueue::create(domain.context(), 1024).unwrap(), options)
}

fn depths(send_entries: u32, receive_entries: u32) -> QueuePairOptions {
    QueuePairOptions { send_entries, receive_entries, ..Default::default() }
}

fn queue_on(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    options: &QueuePairOptions,
) -> MappedQueue {
    MappedQueue::over_verbs(QueuePair::open(domain, completions, options).unwrap()).unwrap()
}

/// Returns the queue as its peer.
fn itself(queue: &mut MappedQueue) -> Peer {
    let address = queue.address().unwrap();
    queue.insert_peer(&address).unwrap()
}

fn region(domain: &ProtectionDomain, bytes: &[u8]) -> Region {
    let buffer = Buffer::zeroed(bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    domain.register(buffer, Access::ALL).unwrap()
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.buffer().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn exposed_depths_are_the_requested_depths_rounded_up() {
    let Some(domain) = domain() else { return };
    let options = depths(100, 60);
    let exposure = *queue(&domain, &options).exposure();
    assert_eq!((exposure.sq.num_entries, exposure.rq.num_entries), (128, 64));
    assert_eq!((exposure.sq.entry_size, exposure.cq.num_entries), (EntrySize::B64, 1024));
}

/// Under the software adapter with `SOFTEFA_LATE_WRITE_US`, some of the writes are late until the read.
#[test]
fn a_read_of_a_region_with_relaxed_ordering_returns_every_write_before_it() {
    let Some(domain) = domain() else { return };
    let mut queue = queue(&domain, &QueuePairOptions::default());
    let peer = itself(&mut queue);
    let access = Access::ALL | Access::RELAXED_ORDERING;
    let relaxed = domain.register(Buffer::zeroed(64).unwrap(), access).unwrap();
    assert_eq!(relaxed.ordering(), RegionOrdering::Relaxed);
    let (source, sink) = (region(&domain, &[0xff; 64]), region(&domain, &[0; 64]));
    let strict = region(&domain, &[0; 64]);
    for target in [&strict, &relaxed] {
        let each = WorkRequest::write(peer, &source, target.remote()).bytes(1).stride(1).count(64);
        queue.execute(&each.timeout(LIMIT)).unwrap();
    }
    assert_eq!(content(&strict), [0xff; 64]);
    if std::env::var_os("SOFTEFA_LATE_WRITE_US").is_some() {
        let landed = content(&relaxed).iter().filter(|byte| **byte == 0xff).count();
        assert!((1..64).contains(&landed), "{landed} of 64 writes landed");
    }
    queue.execute(&WorkRequest::read(peer, &sink, relaxed.remote()).bytes(64).timeout(LIMIT)).unwrap();
    assert_eq!((content(&sink), content(&relaxed)), (vec![0xff; 64], vec![0xff; 64]));
}

/// Maps memory that has a descriptor, in place of a dmabuf's. A kernel accepts only real dmabufs.
fn shareable(length: usize) -> (OwnedFd, NonNull<u8>) {
    // SAFETY: a C string, and no flags.
    let fd = unsafe { libc::memfd_create(c"completions".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), length as i64) }, 0);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), 0) };
    assert_ne!(address, libc::MAP_FAILED);
    (fd, NonNull::new(address.cast()).unwrap())
}

/// Creates a queue whose completions arrive in shareable memory, and returns it with that memory. None, with
/// the skip recorded, where the kernel does not support it.
fn external(domain: &ProtectionDomain) -> Option<(MappedQueue, NonNull<u8>)> {
    let (dmabuf, buffer) = shareable(1 << 16);
    let memory =
        ExternalMemory { dmabuf: dmabuf.as_fd(), offset: 0, length: 1 << 16, buffer: buffer.as_ptr() };
    // SAFETY: the mapping is never removed.
    match unsafe { CompletionQueue::create_external(domain.context(), &memory, 256) } {
        Ok(completions) => Some((queue_on(domain, &completions, &depths(64, 64)), buffer)),
        Err(error) if error.code() == Some(libc::EINVAL) => {
            skip(format!("this kernel accepts only real dmabufs: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_completion_queue_in_external_memory_is_exposed_at_that_memory() {
    let Some(domain) = domain_with(Capability::ExternalCompletionQueue) else { return };
    let Some((queue, buffer)) = external(&domain) else { return };
    let ring = queue.exposure().cq;
    assert_eq!((ring.buffer, ring.num_entries), (buffer, 256));
}

#[test]
fn completions_arrive_in_external_memory() {
    let Some(domain) = domain_with(Capability::ExternalCompletionQueue) else { return };
    let Some((mut queue, _)) = external(&domain) else { return };
    writes(&mut queue, &domain, 64, 1000);
}

/// Writes `bytes` bytes from a queue to itself `count` times, and compares all of them.
fn writes(queue: &mut MappedQueue, domain: &ProtectionDomain, bytes: usize, count: usize) {
    let sent = pattern(bytes * count);
    let (source, target) = (region(domain, &sent), region(domain, &vec![0; bytes * count]));
    let peer = itself(queue);
    let put = WorkRequest::write(peer, &source, target.remote());
    let put = put.bytes(bytes as u64).count(count as u64).stride(bytes as u64);
    let report = queue.execute(&put.timeout(LIMIT)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.completed, report.posted);
    assert_eq!(content(&target), sent);
}

#[test]
fn written_bytes_arrive_across_every_wrap_of_the_rings() {
    let Some(domain) = domain() else { return };
    let mut queue = queue(&domain, &depths(128, 128));
    writes(&mut queue, &domain, 64, 5000);
}

#[test]
fn eight_mebibytes_arrive_in_one_write() {
    let Some(domain) = domain() else { return };
    writes(&mut queue(&domain, &QueuePairOptions::default()), &domain, 8 << 20, 1);
}

#[test]
fn inline_writes_arrive_from_128_byte_entries() {
    let Some(domain) = domain() else { return };
    if !domain.context().attributes().has_wide_entries() {
        return skip(format!("{} has no 128-byte entries", domain.context().name()));
    }
    let mut queue = queue(&domain, &QueuePairOptions { entry_size: EntrySize::B128, ..Default::default() });
    assert_eq!(queue.exposure().sq.entry_size, EntrySize::B128);
    let sent = pattern(80 * 50);
    let (source, target) = (region(&domain, &sent), region(&domain, &vec![0; sent.len()]));
    let peer = itself(&mut queue);
    let put = WorkRequest::inline_write(peer, &source, target.remote()).bytes(80).count(50).stride(80);
    queue.execute(&put).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(content(&target), sent);
}

#[test]
fn a_write_to_a_deregistered_region_completes_with_remote_bad_address() {
    let Some(domain) = domain() else { return };
    let mut queue = queue(&domain, &QueuePairOptions::default());
    let memory = region(&domain, &[1; 64]);
    let gone = region(&domain, &[0; 64]);
    let remote = gone.remote();
    gone.close().unwrap();
    let peer = itself(&mut queue);
    let error = queue.execute(&WorkRequest::write(peer, &memory, remote)).unwrap_err();
    let efa_gda::ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn a_message_arrives_in_a_posted_receive_with_its_immediate() {
    let Some(domain) = domain() else { return };
    let mut queue = queue(&domain, &QueuePairOptions::default());
    let sent = pattern(1000);
    let (source, target) = (region(&domain, &sent), region(&domain, &vec![0; sent.len()]));
    let posted = queue.post_receives(&Receives::new(&target)).unwrap();
    let peer = itself(&mut queue);
    queue
        .execute(&WorkRequest::send(peer, &source).immediate(0xfeed))
        .unwrap_or_else(|error| panic!("{error}"));
    let received = queue.receive_many(1, LIMIT).unwrap_or_else(|error| panic!("{error}"))[0];
    assert_eq!(
        (received.receive, received.status, received.length, received.immediate),
        (Some(posted.first), CompletionStatus::Ok, 1000, Some(0xfeed))
    );
    assert_eq!(content(&target), sent);
}

#[test]
fn a_read_returns_the_remote_bytes() {
    let Some(domain) = domain_with(Capability::RdmaRead) else { return };
    let mut queue = queue(&domain, &QueuePairOptions::default());
    let sent = pattern(4096);
    let (source, target) = (region(&domain, &sent), region(&domain, &vec![0; sent.len()]));
    let peer = itself(&mut queue);
    queue.execute(&WorkRequest::read(peer, &target, source.remote())).unwrap();
    assert_eq!(content(&target), sent);
}

#[test]
fn a_read_on_an_adapter_without_rdma_read_is_refused() {
    let Some(domain) = domain() else { return };
    if domain.context().attributes().has(Capability::RdmaRead) {
        return skip(format!("{} has RDMA read", domain.context().name()));
    }
    let mut queue = queue(&domain, &QueuePairOptions::default());
    let register = |access| domain.register(Buffer::zeroed(64).unwrap(), access).unwrap();
    let (target, source) = (register(Access::READ), register(Access::REMOTE_WRITE));
    let peer = itself(&mut queue);
    let error = queue.execute(&WorkRequest::read(peer, &target, source.remote())).unwrap_err();
    efa_gda_test_support::assert_error!(error, efa_gda::ErrorKind::Unsupported, "an RDMA read");
}

/// Creates a queue with counters attached.
fn counted(domain: &ProtectionDomain, counters: &[(&CompletionCounter, CountedOperations)]) -> MappedQueue {
    let counters = counters.iter().map(|(counter, counted)| ((*counter).clone(), *counted)).collect();
    queue(domain, &QueuePairOptions { counters, ..Default::default() })
}

#[test]
fn counters_count_writes_arrivals_and_errors_separately() {
    let Some(domain) = domain_with(Capability::CompletionCounters) else { return };
    let make = || CompletionCounter::create(domain.context()).unwrap();
    let (out, arrived) = (make(), make());
    let mut queue =
        counted(&domain, &[(&out, CountedOperations::WRITE), (&arrived, CountedOperations::REMOTE_WRITE)]);
    writes(&mut queue, &domain, 64, 100);
    let read = |counter: &CompletionCounter| counter.read().unwrap();
    assert_eq!((read(&out), read(&arrived)), ((100, 0), (100, 0)));
    let (memory, gone) = (region(&domain, &[1; 64]), region(&domain, &[0; 64]));
    let remote = gone.remote();
    gone.close().unwrap();
    let peer = itself(&mut queue);
    queue.execute(&WorkRequest::write(peer, &memory, remote)).unwrap_err();
    assert_eq!((read(&out), read(&arrived)), ((100, 1), (100, 0)));
}

#[test]
fn a_counter_in_caller_memory_counts_in_that_memory() {
    let Some(domain) = domain_with(Capability::CompletionCounters) else { return };
    let words = [const { std::sync::atomic::AtomicU64::new(0) }; 2];
    let word = |index: usize| CounterMemory::host(NonNull::new(words[index].as_ptr()).unwrap());
    // SAFETY: the words outlive the counter, which is closed below.
    let counter = unsafe { CompletionCounter::create_external(domain.context(), word(0), word(1)) }.unwrap();
    let mut queue = counted(&domain, &[(&counter, CountedOperations::WRITE)]);
    writes(&mut queue, &domain, 64, 300);
    queue.close().unwrap();
    counter.close().unwrap();
    let values = words.map(|word| word.into_inner());
    assert_eq!(values, [300, 0]);
}

#[test]
fn a_counter_in_a_descriptors_memory_counts_in_that_memory() {
    let Some(domain) = domain_with(Capability::CompletionCounters) else { return };
    let (dmabuf, start) = shareable(4096);
    let word = |offset: u64| CounterMemory::dmabuf(dmabuf.as_fd(), offset, std::ptr::null_mut());
    // SAFETY: the mapping is never removed, and it keeps the descriptor's memory alive.
    let counter = match unsafe { CompletionCounter::create_external(domain.context(), word(64), word(128)) } {
        Ok(counter) => counter,
        Err(error) if error.code() == Some(libc::EINVAL) => {
            skip(format!("this kernel accepts only real dmabufs: {error}"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut queue = counted(&domain, &[(&counter, CountedOperations::WRITE)]);
    writes(&mut queue, &domain, 64, 10);
    // SAFETY: inside the mapping and aligned. All writes completed, so the adapter no longer changes it.
    let value = unsafe { start.add(64).cast::<u64>().read_volatile() };
    assert_eq!(value, 10);
}
