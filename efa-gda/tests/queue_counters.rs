//! Queues that use completion counters in place of the completion queue: free slots and quiet on a ring with fewer
//! entries than the work requests, errors with their status, and counters that a queue cannot use. The tests run on
//! the software adapter with the host executor and with the pretended GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use efa_gda::fabric::{
    Bindings, CompletionCounter, CompletionQueue, CountedOperations, Endpoint, GdaOps, Query,
};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, Receives, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::CompletionStatus;
use efa_gda::{Error, ErrorKind, Progress};
use efa_gda_sys::device::efa_gda_counters;
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::Driver;
use efa_gda_test_support::until;
use support::side::{Blocks, Pair, Side, introduce, with_wrong_key};
use support::{SoftAdapter, assert_no_violations, with_pretended_gpu, with_soft_adapter};

/// Enables completion counters in libfabric and in the software adapter.
const ON: [(&str, &str); 2] = [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];
const COUNT: u64 = 20_000;

fn with_counters(more: &[(&str, &str)], body: impl FnOnce(&SoftAdapter)) {
    with_soft_adapter(&[&ON, more].concat(), body);
}

fn ops(side: &Side) -> GdaOps {
    side.domain.gda_ops().unwrap()
}

/// An endpoint with these counters bound, and with a separate completion queue for requests and for receives.
fn endpoint(side: &Side, requests: usize, counts: &[(&CompletionCounter, CountedOperations)]) -> Endpoint {
    let [requests, receives] = [requests, 64].map(|entries| side.domain.completion_queue(entries).unwrap());
    bound(side, &requests, &receives, counts)
}

fn bound(
    side: &Side,
    requests: &CompletionQueue,
    receives: &CompletionQueue,
    counts: &[(&CompletionCounter, CountedOperations)],
) -> Endpoint {
    let addresses = side.domain.address_vector(16).unwrap();
    let counters: Vec<_> = counts.iter().map(|(counter, counted)| ((*counter).clone(), *counted)).collect();
    let bindings = Bindings {
        address_vector: &addresses,
        send_completions: requests,
        receive_completions: receives,
        counters: &counters,
    };
    side.domain.endpoint(&side.info, bindings).unwrap()
}

/// A queue that uses a counter in host memory.
fn counting(side: &Side) -> (MappedQueue, CompletionCounter) {
    let counter = ops(side).cntr_open_host().unwrap();
    (side.counted_queue(&counter, CountedOperations::TRANSMIT).with_counters().unwrap(), counter)
}

/// Runs `body` with two queues, of which the first uses a counter in host memory.
fn with_counting(more: &[(&str, &str)], body: impl FnOnce(Pair, CompletionCounter, &SoftAdapter)) {
    with_counters(more, |adapter| {
        let side = Side::open(&Query::new());
        let ((first, counter), second) = (counting(&side), side.queue());
        let peer = introduce(&first, &second);
        body(Pair { first, second, peer, side }, counter, adapter);
        assert_no_violations(adapter);
    });
}

fn refused(side: &Side, endpoint: Endpoint) -> Error {
    MappedQueue::new(endpoint, &ops(side)).unwrap().with_counters().unwrap_err()
}

fn consumed(queue: &MappedQueue) -> u32 {
    queue.snapshot().state.completion.consumed
}

#[test]
fn a_queue_with_counters_completes_requests_without_reading_completions() {
    with_counting(&[], |mut pair, counter, _| {
        let blocks = pair.blocks(COUNT);
        let entries = u64::from(pair.first.exposure().sq.num_entries);
        assert!(entries < COUNT, "the ring must have fewer entries than the work request");
        let report = pair.first.execute(&blocks.put).unwrap();
        assert_eq!((report.posted, report.completed), (COUNT, COUNT));
        blocks.assert_arrived();
        assert_eq!((pair.first.in_flight(), consumed(&pair.first)), (0, 0));
        assert_eq!((counter.successes().unwrap(), counter.errors().unwrap()), (Some(COUNT), Some(0)));
        let snapshot = pair.first.snapshot();
        assert_eq!(snapshot.counters, Some(Ok([COUNT, 0])));
        assert!(snapshot.to_string().contains("counters: successes 20000, errors 0"), "{snapshot}");
        pair.first.close().unwrap();
        counter.close().unwrap();
    });
}

#[test]
fn a_full_ring_and_quiet_wait_for_the_counters() {
    with_counting(&[], |mut pair, _, adapter| {
        let [source, target] = pair.regions(64);
        let depth = pair.first.exposure().sq.num_entries;
        adapter.hold(true);
        let put = WorkRequest::write(pair.peer, &source, target.remote()).count(u64::from(depth) + 1);
        let error = pair.first.execute(&put.timeout(Duration::from_millis(50))).unwrap_err();
        assert_error!(error, ErrorKind::Device(_));
        let Progress { in_flight, completed, .. } = error.progress().unwrap();
        assert!(in_flight > 0 && in_flight <= depth && completed == 0, "{error:?}");
        adapter.hold(false);
        pair.first.destroy().unwrap();
        let (mut first, _) = counting(&pair.side);
        let put = WorkRequest::write(introduce(&first, &pair.second), &source, target.remote());
        first.execute(&put).unwrap();
        let quiet = first.quiet(Duration::from_secs(30)).unwrap();
        assert_eq!((quiet.posted, quiet.completed, first.in_flight()), (0, 0, 0));
    });
}

#[test]
fn the_poster_gets_the_status_of_an_error_even_after_completions_were_overwritten() {
    with_counting(&[], |mut pair, counter, _| {
        let [source, target] = pair.regions(64 * COUNT as usize);
        let good = |count| WorkRequest::write(pair.peer, &source, target.remote()).bytes(64).count(count);
        let bad = WorkRequest::write(pair.peer, &source, with_wrong_key(target.remote())).bytes(64);
        let mut posted = 0;
        // The completion queue advances by less than a lap, by one and a half laps, by two, and by many.
        for (errors, count) in [10, 12_288, 4_086, COUNT, 3 * COUNT].into_iter().enumerate() {
            assert_eq!(pair.first.execute(&good(count)).unwrap().completed, count);
            posted += count;
            let error = pair.first.execute(&bad).unwrap_err();
            let ErrorKind::FailedRequest { status, request } = error.kind() else { panic!("{error:?}") };
            let Progress { completed, .. } = error.progress().unwrap();
            assert_eq!((status, completed), (CompletionStatus::RemoteBadAddress, 1), "after {posted}");
            assert_eq!(request.get() & 0xffff, posted & 0xffff);
            posted += 1;
            let counts = (counter.successes().unwrap(), counter.errors().unwrap());
            assert_eq!(counts, (Some(posted - 1 - errors as u64), Some(errors as u64 + 1)));
            assert_eq!(pair.first.snapshot().state.error.count, errors as u32 + 1);
            assert_eq!(pair.first.in_flight(), 0);
        }
    });
}

#[test]
fn every_error_among_many_successes_is_counted() {
    let inject: String = (0..200).map(|i| format!("{}:7,", 50 * i + 1)).collect();
    let inject = [("SOFTEFA_INJECT", inject.trim_end_matches(','))];
    with_counting(&inject, |mut pair, counter, _| {
        let [source, target] = pair.regions(64);
        let mut reported = 0;
        // A work request ends early when it finds an error.
        for _ in 0..100 {
            match pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).count(100)) {
                Ok(_) => {}
                Err(error) => {
                    assert_error!(
                        error,
                        ErrorKind::FailedRequest { status: CompletionStatus::RemoteBadAddress, .. }
                    );
                    reported += 1;
                }
            }
        }
        let errors = counter.errors().unwrap().unwrap();
        assert!(reported > 0 && errors >= reported, "{reported} of {errors} errors reported");
        assert_eq!(u64::from(pair.first.snapshot().state.error.count), errors);
        assert_eq!(pair.first.in_flight(), 0);
    });
}

/// The counter words are taken modulo a wrap, as on an adapter with narrower counters.
#[test]
fn a_queue_follows_counters_that_wrap() {
    with_counting(&[("SOFTEFA_INJECT", "150000:7")], |mut pair, counter, _| {
        let [source, target] = pair.regions(64);
        let wrap = 4 * u64::from(pair.first.exposure().sq.num_entries);
        let narrow = [AtomicU64::new(0), AtomicU64::new(0)];
        // SAFETY: no call runs on the queue, and the words outlive every work request on it.
        unsafe {
            let counters = &raw mut (*pair.first.as_ptr().as_ptr()).counters;
            *counters = efa_gda_counters { success: narrow[0].as_ptr(), error: narrow[1].as_ptr(), wrap };
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let both = [counter.successes(), counter.errors()].map(|count| count.unwrap().unwrap());
                    std::iter::zip(&narrow, both)
                        .for_each(|(word, count)| word.store(count % wrap, Ordering::Release));
                    efa_gda_test_support::rest();
                }
            });
            let put = WorkRequest::write(pair.peer, &source, target.remote());
            let whole = pair.first.execute(&put.clone().count(149_999));
            let error = pair.first.execute(&put).unwrap_err();
            let after = pair.first.execute(&put.count(50_000));
            done.store(true, Ordering::Release);
            assert_eq!(whole.unwrap().completed, 149_999);
            let ErrorKind::FailedRequest { request, .. } = error.kind() else { panic!("{error:?}") };
            assert_eq!(request.get() & 0xffff, 149_999 & 0xffff);
            assert_eq!(after.unwrap().completed, 50_000);
        });
        assert!(narrow[0].load(Ordering::Relaxed) < wrap && pair.first.in_flight() == 0);
        pair.first.destroy().unwrap();
    });
}

#[test]
fn counters_that_a_queue_cannot_use_are_refused_with_the_reason() {
    with_counters(&[], |_| {
        let side = Side::open(&Query::new());
        let open = || ops(&side).cntr_open_host().unwrap();
        let counter = open();
        let none = refused(&side, endpoint(&side, 8192, &[]));
        assert_error!(none, ErrorKind::Unsupported, "no counter that counts exactly");
        let partly = refused(
            &side,
            endpoint(&side, 8192, &[(&counter, CountedOperations::WRITE | CountedOperations::READ)]),
        );
        assert_error!(partly, ErrorKind::Unsupported, "no counter that counts exactly");
        let receives = (&counter, CountedOperations::TRANSMIT | CountedOperations::RECEIVE);
        assert_error!(
            refused(&side, endpoint(&side, 8192, &[receives])),
            ErrorKind::Unsupported,
            "no counter that counts exactly"
        );
        let unplaced = ops(&side).cntr_open().unwrap();
        let foreign = refused(&side, endpoint(&side, 8192, &[(&unplaced, CountedOperations::TRANSMIT)]));
        assert_error!(foreign, ErrorKind::Unsupported, "does not own its words");
        let other = endpoint(&side, 8192, &[(&counter, CountedOperations::SEND)]);
        let shared = refused(&side, endpoint(&side, 8192, &[(&counter, CountedOperations::TRANSMIT)]));
        assert_error!(shared, ErrorKind::Unsupported, "endpoints: open one for this endpoint alone", "2");
        drop(other);
        let shallow = refused(&side, endpoint(&side, 4096, &[(&counter, CountedOperations::TRANSMIT)]));
        assert_error!(
            shallow,
            ErrorKind::Argument,
            "the completion queue has 4096 entries",
            "with counters it needs twice as many"
        );
        let one = side.domain.completion_queue(8192).unwrap();
        let same = refused(&side, bound(&side, &one, &one, &[(&counter, CountedOperations::TRANSMIT)]));
        assert_error!(
            same,
            ErrorKind::Unsupported,
            "receives complete on the completion queue of the requests"
        );
        let region = side.region(&[7; 64]);
        for (remote, values) in [(region.remote(), [1, 0]), (with_wrong_key(region.remote()), [0, 1])] {
            let used = open();
            let mut queue = side.counted_queue(&used, CountedOperations::TRANSMIT);
            let _ = queue.execute(&WorkRequest::write(introduce(&queue, &queue), &region, remote));
            drop(queue);
            let based = refused(&side, endpoint(&side, 8192, &[(&used, CountedOperations::TRANSMIT)]));
            let [successes, errors] = values;
            let text = format!("the counter's successes are at {successes} and its errors at {errors}");
            assert_error!(based, ErrorKind::Unsupported, &text);
        }
        // A counter that is bound once for each kind of operation counts them all.
        let kinds = [
            (&counter, CountedOperations::SEND),
            (&counter, CountedOperations::READ | CountedOperations::WRITE),
        ];
        let queue = MappedQueue::new(endpoint(&side, 8192, &kinds), &ops(&side)).unwrap();
        let queue = queue.with_counters().unwrap();
        let (av, cq) = (side.domain.address_vector(16).unwrap(), side.domain.completion_queue(64).unwrap());
        let counters = [(counter.clone(), CountedOperations::RECEIVE)];
        let bindings = Bindings { counters: &counters, ..Bindings::shared(&av, &cq) };
        assert_error!(
            side.domain.endpoint(&side.info, bindings).unwrap_err(),
            ErrorKind::Busy,
            "a mapped queue relies on the completion counter"
        );
        drop(counters);
        assert_error!(counter.clone().close().unwrap_err(), ErrorKind::Busy);
        drop(queue);
        counter.close().unwrap();
    });
}

/// Their completions are on a queue of their own, which the library does not poll.
#[test]
fn a_queue_with_counters_refuses_receives() {
    with_counters(&[], |_| {
        let side = Side::open(&Query::new());
        let error = counting(&side).0.post_receives(&Receives::new(side.region(&[0; 64]))).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "the queue takes no receives");
    });
}

fn pretending(variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter, &Gpu)) {
    with_pretended_gpu(&[&ON, variables].concat(), body);
}

#[test]
fn a_gpu_without_a_mapped_completion_queue_uses_counters_and_an_error_ends_its_wait() {
    // The third mapped range is the completion queue.
    pretending(&[("PRETEND_GPU_REFUSES", "3")], |adapter, gpu| {
        let side = Side::open(&Query::new());
        let ((first, _), second) = (counting(&side), side.queue());
        let peer = introduce(&first, &second);
        let mut first = GpuQueue::new(first, gpu).unwrap();
        assert!(first.registered().iter().all(|part| part.part != "completion queue"));
        let blocks = Blocks::new(&side, peer, COUNT);
        assert_eq!(first.execute(&blocks.put).unwrap().completed, COUNT);
        blocks.assert_arrived();
        let bad = WorkRequest::write(peer, &blocks.source, with_wrong_key(blocks.target.remote())).bytes(64);
        let error = first.execute(&bad.timeout(Duration::from_millis(100))).unwrap_err();
        assert_error!(error, ErrorKind::Device(_), "requests in flight: 1");
        let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
        assert_eq!(error, DeviceError::TimeoutCompletion);
        // On a busy machine the adapter executes the request after the wait.
        let counters = || first.snapshot().unwrap().counters;
        let now = until(Duration::from_secs(60), "the error in the counter", || {
            Some(counters()).filter(|now| *now != Some(Ok([COUNT, 0])))
        });
        assert_eq!(now, Some(Ok([COUNT, 1])));
        assert_no_violations(adapter);
        first.destroy().unwrap();
    });
}

#[test]
fn the_pretended_gpu_uses_counters_in_host_memory() {
    pretending(&[], |adapter, gpu| {
        let side = Side::open(&Query::new());
        let (counter, why) = gpu.completion_counter(&ops(&side)).unwrap();
        let why = why.expect("the pretended GPU exports no memory");
        assert!(why.contains("dmabuf"), "{why}");
        let first = side.counted_queue(&counter, CountedOperations::TRANSMIT).with_counters().unwrap();
        let second = side.queue();
        let peer = introduce(&first, &second);
        let mut first = GpuQueue::new(first, gpu).unwrap();
        assert!(first.registered().iter().any(|part| part.part == "completion counter"));
        let blocks = Blocks::new(&side, peer, COUNT);
        assert_eq!(first.execute(&blocks.put).unwrap().completed, COUNT);
        blocks.assert_arrived();
        assert_eq!(first.snapshot().unwrap().counters, Some(Ok([COUNT, 0])));
        let error = first
            .execute(
                &WorkRequest::write(peer, &blocks.source, with_wrong_key(blocks.target.remote())).bytes(64),
            )
            .unwrap_err();
        let ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
        assert_no_violations(adapter);
        first.close().unwrap();
        assert_eq!(Driver::loaded().registered(), 0);
    });
}

#[test]
fn a_queue_that_has_posted_refuses_counters() {
    with_counters(&[], |_| {
        let side = Side::open(&Query::new());
        let counter = ops(&side).cntr_open_host().unwrap();
        let mut first = side.counted_queue(&counter, CountedOperations::TRANSMIT);
        let second = side.queue();
        let peer = introduce(&first, &second);
        let region = side.region(&[7; 64]);
        first.execute(&WorkRequest::write(peer, &region, region.remote()).count(10)).unwrap();
        let refused = first.with_counters();
        assert_error!(refused.unwrap_err(), ErrorKind::Unsupported, "has already posted requests");
    });
}
