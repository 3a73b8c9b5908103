//! What the library reads of libfabric 2.7, through this machine's libfabric and the software adapter: regions with
//! relaxed ordering, completions that the host reads while a device posts, and fields of infos.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use efa_gda::exposure::RawWorkQueue;
use efa_gda::fabric::{
    Access, Bindings, Buffer, CompletionQueue, Enabled, Endpoint, Error, HostCompletion, Info, Library,
    MemoryRegion, Query, QueryOption, RegionOrdering,
};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::{
    CompletionStatus, EntrySize, Operation, Peer, ProcessingHints, RemoteKey, RemoteMemory, Request,
    RequestId, RequestIdWidth, Segment,
};
use efa_gda_sys::fi;
use support::side::{Side, bytes_of, pattern};
use support::{assert_no_violations, with_pair, with_soft_adapter};

fn relaxed(side: &Side) -> Result<MemoryRegion, Error> {
    side.domain.register(Buffer::zeroed(4096).unwrap(), Access::ALL | Access::RELAXED_ORDERING)
}

#[test]
fn a_region_reports_the_order_of_its_writes() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        assert_eq!(side.region(&[0; 64]).ordering(), RegionOrdering::Strict);
        let region = relaxed(&side).unwrap();
        assert_eq!(region.ordering(), RegionOrdering::Relaxed);
        assert!(region.access().contains(Access::ALL));
    });
}

/// Late writes land only when something lands them.
const LATE: (&str, &str) = ("SOFTEFA_LATE_WRITE_US", "3600000000");

#[test]
fn writes_to_a_region_with_relaxed_ordering_are_late_until_it_is_read() {
    with_pair(&[LATE], |mut pair, _| {
        let (source, sink) = (pair.side.region(&[0xff; 64]), pair.zeroes(64));
        let (strict, relaxed) = (pair.zeroes(64), relaxed(&pair.side).unwrap());
        for target in [&strict, &relaxed] {
            let each = WorkRequest::write(pair.peer, &source, target.remote()).bytes(1).stride(1).count(64);
            pair.first.execute(&each).unwrap();
        }
        assert_eq!(bytes_of(&strict), [0xff; 64]);
        let landed = bytes_of(&relaxed)[..64].iter().filter(|byte| **byte == 0xff).count();
        assert!((1..64).contains(&landed), "{landed} of 64 writes landed");
        pair.first.execute(&WorkRequest::read(pair.peer, &sink, relaxed.remote()).bytes(64)).unwrap();
        assert_eq!((&bytes_of(&relaxed)[..64], bytes_of(&sink)), (&[0xff; 64][..], vec![0xff; 64]));
    });
}

#[test]
fn a_libfabric_before_2_7_refuses_relaxed_ordering_and_the_error_says_so() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        let error = relaxed(&Side::open(&Query::new())).unwrap_err();
        assert_eq!((error.operation(), error.code()), (Some("fi_mr_reg"), Some(-(fi::FI_EBADFLAGS as i32))));
        assert!(error.hint().contains("libfabric 2.7"), "{error}");
    });
}

#[test]
fn the_number_of_device_contexts_is_read_from_api_2_7_on() {
    for (minor, expected) in [(7, Some(3)), (6, None)] {
        let mut domain = fi::fi_domain_attr { max_xpu_ctx_cnt: 3, ..Default::default() };
        let api_version = fi::fi_version(2, minor);
        let mut fabric = fi::fi_fabric_attr { api_version, ..Default::default() };
        let mut info =
            fi::fi_info { domain_attr: &mut domain, fabric_attr: &mut fabric, ..Default::default() };
        // SAFETY: a complete info, which outlives the borrow.
        let info = unsafe { Info::borrow(NonNull::from(&mut info)) };
        assert_eq!(info.max_xpu_contexts(), expected, "API 2.{minor}");
    }
}

/// An endpoint whose completions the host reads, and its peer address: itself.
fn host_read(side: &Side) -> (Endpoint<Enabled>, CompletionQueue, Peer) {
    let addresses = side.domain.address_vector(16).unwrap();
    let completions = side.domain.completion_queue(8192).unwrap();
    let endpoint = side.domain.endpoint(&side.info).unwrap();
    let endpoint = endpoint.bind(Bindings::shared(&addresses, &completions)).unwrap().enable().unwrap();
    let itself = addresses.insert(&endpoint.address().unwrap()).unwrap();
    let peer = side.domain.gda_ops().unwrap().query_addr(&endpoint, itself).unwrap();
    (endpoint, completions, peer)
}

/// Places one entry in the first slot of `queue` and rings its doorbell, as a kernel does.
fn post(queue: &RawWorkQueue, request: &Request) {
    let wide = u32::from(queue.caps) & fi::FI_EFA_WQ_CAPS_64_BIT_REQ_ID != 0;
    let ids = if wide { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let entry = request.encode(EntrySize::try_from(queue.entry_size).unwrap(), false, ids).unwrap();
    for (index, word) in entry.chunks_exact(8).enumerate() {
        // SAFETY: in the first entry of the queue that the provider exposed, aligned to 8.
        let place = unsafe { AtomicU64::from_ptr(queue.buffer.add(8 * index).cast()) };
        place.store(u64::from_ne_bytes(word.try_into().unwrap()), Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    // SAFETY: the doorbell that the provider exposed.
    unsafe { AtomicU32::from_ptr(queue.doorbell) }.store(1, Ordering::Release);
}

fn next(completions: &CompletionQueue) -> HostCompletion {
    efa_gda_test_support::until(Duration::from_secs(30), "a completion", || completions.read().unwrap())
}

/// A write of `source` to `target`, to the key `key`.
fn write(side: &Side, peer: Peer, source: &MemoryRegion, target: &MemoryRegion, key: RemoteKey) -> Request {
    let local = side.domain.gda_ops().unwrap().get_mr_lkey(source).unwrap();
    let operation = Operation::Write {
        remote: RemoteMemory { address: target.address(), key },
        local: Segment { address: source.address(), length: source.len() as u32, key: local },
    };
    Request { id: RequestId::new(3), peer, immediate: None, hints: ProcessingHints::NONE, operation }
}

/// Posts a write as a kernel does. Returns its completion, which the host reads, and whether the bytes arrived.
fn read_after_a_write(key: impl FnOnce(&MemoryRegion) -> RemoteKey) -> (HostCompletion, bool) {
    let side = Side::open(&Query::new().host_completions(true));
    let (endpoint, completions, peer) = host_read(&side);
    let (source, target) = (side.region(&pattern(4096)), side.region(&[0; 4096]));
    assert_eq!(completions.read().unwrap(), None);
    let queues = side.domain.gda_ops().unwrap().query_qp_wqs(&endpoint).unwrap();
    post(&queues.send, &write(&side, peer, &source, &target, key(&target)));
    (next(&completions), bytes_of(&target) == bytes_of(&source))
}

#[test]
fn the_host_reads_completions_of_requests_that_a_device_posted() {
    with_soft_adapter(&[], |adapter| {
        let (completion, arrived) = read_after_a_write(MemoryRegion::remote_key);
        assert_eq!((completion.status, completion.flags), (CompletionStatus::Ok, fi::FI_RMA | fi::FI_WRITE));
        assert!(arrived);
        assert_no_violations(adapter);
    });
}

#[test]
fn the_host_reads_the_status_of_a_request_that_failed() {
    with_soft_adapter(&[], |_| {
        let (completion, arrived) = read_after_a_write(|_| RemoteKey::new(!0));
        assert_eq!((completion.status, arrived), (CompletionStatus::RemoteBadAddress, false));
    });
}

#[test]
fn host_completions_need_libfabric_2_7() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        let error = Query::new().host_completions(true).find(&Library::load().unwrap()).unwrap_err();
        assert!(
            matches!(error, Error::OptionNotAvailable { option: QueryOption::HostCompletions, .. }),
            "{error}"
        );
    });
}

#[test]
fn a_queue_with_contexts_or_with_another_poller_is_not_read() {
    with_soft_adapter(&[], |_| {
        let (_endpoint, completions, _) = host_read(&Side::open(&Query::new()));
        assert!(matches!(completions.read(), Err(Error::ContextsNeeded)));

        let side = Side::open(&Query::new().host_completions(true));
        let (endpoint, completions, _) = host_read(&side);
        let _mapped = MappedQueue::new(endpoint, &side.domain.gda_ops().unwrap()).unwrap();
        assert!(matches!(completions.read(), Err(Error::CompletionQueuePolled)));

        let (endpoint, completions, _) = host_read(&side);
        assert_eq!(completions.read().unwrap(), None);
        assert!(MappedQueue::new(endpoint, &side.domain.gda_ops().unwrap()).is_err());
    });
}
