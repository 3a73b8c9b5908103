//! Waits for a group's own requests on the software adapter, which executes requests in random order. The kernels compare
//! the bytes at the target as soon as a wait returns.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use efa_gda::ErrorKind;
use efa_gda::fabric::{CountedOperations, Query};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{WorkRequest, device_peer};
use efa_gda_test_support::assert_error;
use kernels_support::waits::{
    DEFER, EACH_CALL, Ended, GOOD, MIXED, OWN_EVERY_THIRD, TEST_EACH, Waits, calls, run,
};
use support::side::{Side, bytes_of, introduce};
use support::{SoftAdapter, assert_no_violations, with_pretended_gpu, with_soft_adapter};

/// Requests overtake each other, and take different times.
const UNORDERED: &[(&str, &str)] = &[("SOFTEFA_REORDER", "48")];

/// Runs a load on a queue with a request table. Returns how each group ended, and the groups with words that did not
/// arrive.
fn run_on_soft(
    adapter: &SoftAdapter,
    query: &Query,
    load: Waits,
    blocks: u32,
    lanes: u32,
) -> (Vec<Ended>, Vec<u64>) {
    let side = Side::open(query);
    let (mut queue, other) = (side.queue().with_request_table().unwrap(), side.queue());
    let peer = introduce(&queue, &other);
    let words_of_group = u64::from(load.calls * load.per_call);
    let groups = load.groups(blocks, lanes);
    let bytes = load.bytes(groups);
    let (source, target) = (side.region(&bytes), side.region(&vec![0; bytes.len()]));
    let lkey = queue.retain(&source).unwrap().get();
    let (from, to) = ((source.address(), lkey), (target.address(), target.remote_key().get()));
    let load = load.between(queue.as_ptr().as_ptr(), device_peer(peer), from, to);
    let results = run(load, blocks, lanes, 0, None);
    queue.quiet(std::time::Duration::from_secs(30)).unwrap();
    queue.close().unwrap();
    assert_no_violations(adapter);
    let (sent, arrived) = (bytes, bytes_of(&target));
    let words = sent.chunks(8).zip(arrived.chunks(8)).enumerate();
    let missing = words.filter(|(_, (from, to))| from != to).map(|(word, _)| word as u64 / words_of_group);
    (results, missing.collect())
}

#[test]
fn a_wait_returns_when_the_bytes_are_there() {
    with_soft_adapter(UNORDERED, |adapter| {
        for mode in [EACH_CALL, OWN_EVERY_THIRD, TEST_EACH, DEFER, MIXED] {
            for (group, lanes) in [(1, 4), (32, 64), (0, 96)] {
                let load = calls(group, 30, 9, mode);
                let (results, missing) = run_on_soft(adapter, &Query::new(), load, 2, lanes);
                assert!(results.iter().all(|result| *result == GOOD), "mode {mode}, {group}: {results:?}");
                assert_eq!(missing, []);
            }
        }
        let wide = Query::new().wide_entries(true);
        let (results, _) = run_on_soft(adapter, &wide, calls(32, 30, 32, EACH_CALL), 2, 64);
        assert!(results.iter().all(|result| *result == GOOD), "{results:?}");
    });
}

/// The posted entries and the adapter's word name the same request.
#[test]
fn the_failed_request_is_named_by_its_index() {
    with_soft_adapter(&[("SOFTEFA_INJECT", "100:13")], |adapter| {
        let (results, missing) = run_on_soft(adapter, &Query::new(), calls(32, 12, 13, EACH_CALL), 1, 32);
        // One warp posts in order, and the adapter fetches in order: the hundredth request has the index 99.
        let named = Ended { errors: 1, failed_index: 99, failed_status: 13, ..GOOD };
        assert_eq!((results, missing), (vec![named], vec![0]));
    });
}

/// The pretended GPU's kernels run on the host executor. Requests that the GPU posted are then before those of the host:
/// a table that had stayed behind would show them in flight, and the host's posts would wait for them.
#[test]
fn the_request_table_moves_to_a_gpu_and_back() {
    with_pretended_gpu(UNORDERED, |adapter, gpu| {
        let side = Side::open(&Query::new());
        let (queue, other) = (side.queue().with_request_table().unwrap(), side.queue());
        let peer = introduce(&queue, &other);
        let (source, target) = (side.region(&[7; 8]), side.region(&[0; 8]));
        let some = WorkRequest::write(peer, &source, target.remote()).count(3000);
        let many = WorkRequest::write(peer, &source, target.remote()).count(20_000);
        let mut queue = GpuQueue::new(queue, gpu).unwrap();
        queue.execute(&some).unwrap();
        let mut queue = queue.unmap().unwrap();
        queue.execute(&many).unwrap();
        let mut queue = GpuQueue::new(queue, gpu).unwrap();
        queue.execute(&many).unwrap();
        let state = queue.state().unwrap();
        let rest = state.tracking.oldest.wrapping_sub(state.completion.completed) as i32;
        assert!(rest <= 0 && state.tracking.oldest > 3000, "oldest {}", state.tracking.oldest);
        queue.close().unwrap();
        assert_no_violations(adapter);
    });
}

#[test]
fn a_request_table_is_refused_after_the_first_request_and_beside_counters() {
    let counters = [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];
    with_soft_adapter(&counters, |_| {
        let side = Side::open(&Query::new());
        let (mut queue, region) = (side.queue(), side.region(&[7; 64]));
        let peer = introduce(&queue, &queue);
        queue.execute(&WorkRequest::write(peer, &region, region.remote())).unwrap();
        let refused = queue.with_request_table().unwrap_err();
        assert_error!(refused, ErrorKind::Unsupported, "has already posted requests");

        let counted = || {
            let counter = side.domain.gda_ops().unwrap().cntr_open_host().unwrap();
            side.counted_queue(&counter, CountedOperations::TRANSMIT)
        };
        let refused = counted().with_counters().unwrap().with_request_table().unwrap_err();
        assert_error!(refused, ErrorKind::Unsupported, "uses completion counters");
        let refused = counted().with_request_table().unwrap().with_counters().unwrap_err();
        assert_error!(refused, ErrorKind::Unsupported, "has a request table");
    });
}
