//! Completion counters on the software adapter: the operations they count, the memory they count in, and
//! refusals.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda::fabric::{Bindings, CompletionCounter, CountedOperations, CounterMemory, GdaOps, Query};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::Peer;
use efa_gda::{ErrorKind, Result};
use efa_gda_test_support::assert_error;
use support::side::{Side, introduce, with_wrong_key};
use support::with_soft_adapter;

/// Requests counters of the provider, and has the software adapter offer them below API 2.5 as well.
const ON: &[(&str, &str)] = &[("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];

fn ops(side: &Side) -> GdaOps {
    side.domain.gda_ops().unwrap()
}

/// Opens a queue whose `counted` operations `counter` counts.
fn counting(side: &Side, counter: &CompletionCounter, counted: CountedOperations) -> MappedQueue {
    let addresses = side.domain.address_vector(16).unwrap();
    let completions = side.domain.completion_queue(side.info.completions()).unwrap();
    let counters = &[(counter.clone(), counted)];
    let bindings = Bindings { counters, ..Bindings::shared(&addresses, &completions) };
    MappedQueue::new(side.domain.endpoint(&side.info, bindings).unwrap(), &ops(side)).unwrap()
}

/// Posts three writes to `peer` that arrive, and one with an rkey that names no region.
fn three_good_and_one_bad(side: &Side, queue: &mut MappedQueue, peer: Peer) {
    let region = &side.region(&[7; 64]);
    queue.execute(&WorkRequest::write(peer, region, region.remote()).bytes(8).count(3)).unwrap();
    let wrong = with_wrong_key(region.remote());
    let error = queue.execute(&WorkRequest::write(peer, region, wrong).bytes(8)).unwrap_err();
    assert_error!(error, ErrorKind::FailedRequest { .. });
}

fn values(counter: &CompletionCounter) -> (Option<u64>, Option<u64>) {
    (counter.successes().unwrap(), counter.errors().unwrap())
}

#[test]
fn successes_and_errors_are_counted_separately() {
    with_soft_adapter(ON, |_| {
        let side = Side::open(&Query::new());
        let counter = ops(&side).cntr_open().unwrap();
        let mut queue = counting(&side, &counter, CountedOperations::WRITE | CountedOperations::SEND);
        let peer = introduce(&queue, &queue);
        three_good_and_one_bad(&side, &mut queue, peer);
        assert_eq!(values(&counter), (Some(3), Some(1)));
    });
}

#[test]
fn a_target_counts_the_writes_of_its_peers() {
    with_soft_adapter(ON, |_| {
        let side = Side::open(&Query::new());
        let counter = ops(&side).cntr_open().unwrap();
        let (mut from, to) = (side.queue(), counting(&side, &counter, CountedOperations::REMOTE_WRITE));
        let peer = introduce(&from, &to);
        three_good_and_one_bad(&side, &mut from, peer);
        assert_eq!(values(&counter), (Some(3), Some(0)));
    });
}

#[test]
fn a_counter_in_caller_memory_continues_from_the_value_there() {
    with_soft_adapter(ON, |_| {
        let side = Side::open(&Query::new());
        let words = [AtomicU64::new(100), AtomicU64::new(7)];
        let [success, error] = [0, 1]
            .map(|index: usize| Some(CounterMemory::host(NonNull::new(words[index].as_ptr()).unwrap())));
        // SAFETY: the counter is closed before the words are dropped.
        let counter = unsafe { ops(&side).cntr_open_ext(success, error) }.unwrap();
        let mut queue = counting(&side, &counter, CountedOperations::WRITE);
        let peer = introduce(&queue, &queue);
        three_good_and_one_bad(&side, &mut queue, peer);
        assert_eq!([0, 1].map(|index: usize| words[index].load(Ordering::Acquire)), [103, 8]);
        assert_eq!(values(&counter), (Some(103), Some(8)));
        queue.close().unwrap();
        counter.close().unwrap();
    });
}

/// A page of memory that cannot be cut off, as a dmabuf cannot: the broker under rdma-core takes no other file.
fn memory_file() -> File {
    // SAFETY: a new file, which the result owns; sealing it touches no memory.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = File::from_raw_fd(libc::memfd_create(c"counter".as_ptr(), flags));
        file.set_len(4096).unwrap();
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        file
    }
}

#[test]
fn a_counter_in_unmapped_memory_is_not_read() {
    with_soft_adapter(ON, |_| {
        let side = Side::open(&Query::new());
        let file = memory_file();
        let word = CounterMemory::dmabuf(file.as_fd(), 64, null_mut());
        // SAFETY: the provider maps the file, and its mapping keeps the memory alive.
        let counter = unsafe { ops(&side).cntr_open_ext(Some(word), None) }.unwrap();
        let mut queue = counting(&side, &counter, CountedOperations::WRITE);
        let peer = introduce(&queue, &queue);
        three_good_and_one_bad(&side, &mut queue, peer);
        assert_eq!(values(&counter), (None, Some(1)));
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 64).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 3);
    });
}

#[test]
fn closing_a_bound_counter_returns_busy_until_its_endpoint_is_closed() {
    with_soft_adapter(ON, |_| {
        let side = Side::open(&Query::new());
        let counter = ops(&side).cntr_open().unwrap();
        let queue = counting(&side, &counter, CountedOperations::WRITE);
        assert_error!(counter.clone().close().unwrap_err(), ErrorKind::Busy);
        queue.close().unwrap();
        counter.close().unwrap();
    });
}

#[test]
fn an_endpoint_refuses_another_domains_counter_and_a_second_counter_for_a_kind() {
    with_soft_adapter(ON, |_| {
        let (side, other) = (Side::open(&Query::new()), Side::open(&Query::new()));
        let addresses = side.domain.address_vector(16).unwrap();
        let completions = side.domain.completion_queue(64).unwrap();
        let refused = |counters: &[_]| {
            let bindings = Bindings { counters, ..Bindings::shared(&addresses, &completions) };
            side.domain.endpoint(&side.info, bindings).unwrap_err()
        };
        let foreign = (ops(&other).cntr_open().unwrap(), CountedOperations::WRITE);
        assert_error!(refused(&[foreign]), ErrorKind::Argument, "belong to different domains");
        let counter = (ops(&side).cntr_open().unwrap(), CountedOperations::WRITE);
        let error = refused(&[counter.clone(), counter]);
        assert_eq!(error.code(), Some(-libc::EINVAL), "{error}");
    });
}

#[test]
fn counters_that_are_not_enabled_are_refused_with_the_variable_to_set() {
    with_soft_adapter(&[], |_| {
        let refused: Result<CompletionCounter> = ops(&Side::open(&Query::new())).cntr_open();
        let error = refused.unwrap_err();
        assert_error!(error, ErrorKind::Unsupported);
        assert!(error.to_string().contains("FI_EFA_USE_HW_CNTR=1"), "{error}");
    });
}
