//! Bounds of waits on a software adapter that completes one request every 100 ms. They run from the last progress, so a slow
//! adapter ends no wait. Each of these waits lasts longer than its bound of five seconds.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use std::time::Duration;

use efa_gda::fabric::Query;
use efa_gda::queue::{WorkRequest, device_peer};
use kernels_support::SECOND;
use kernels_support::waits::{EACH_CALL, GOOD, NEVER, Waits, calls, run};
use support::side::{Side, introduce};
use support::{assert_no_violations, with_soft_adapter};

/// A ring of 64 entries.
const SLOW: &[(&str, &str)] = &[("SOFTEFA_INTERVAL_US", "100000"), ("SOFTEFA_LLQ_BYTES", "4096")];
const BOUND: Duration = Duration::from_secs(5);

/// Runs warps that share a tracked queue. Then closes it, or drains it first.
fn run_warps(load: Waits, warps: u32, drains: bool) {
    let side = Side::open(&Query::new());
    let (mut queue, other) = (side.queue().with_request_table().unwrap(), side.queue());
    let peer = introduce(&queue, &other);
    let bytes = vec![7; (8 * warps * load.calls * load.per_call) as usize];
    let (source, target) = (side.region(&bytes), side.region(&bytes));
    let lkey = queue.retain(&source).unwrap().get();
    let (from, to) = ((source.address(), lkey), (target.address(), target.remote_key().get()));
    let load = load.between(queue.as_ptr().as_ptr(), device_peer(peer), from, to);
    let load = Waits { timeout_ns: 5 * SECOND, ..load };
    let results = run(load, warps, 32, 0, None);
    assert!(results.iter().all(|result| *result == GOOD), "{results:?}");
    if drains {
        queue.quiet(BOUND).unwrap();
    }
    queue.close().unwrap();
}

/// The put waits for 64 free slots, and then until 64 requests are done.
#[test]
fn a_put_waits_for_free_slots_and_completions() {
    with_soft_adapter(SLOW, |adapter| {
        let side = Side::open(&Query::new());
        let (mut queue, _other, peer) = side.pair();
        let (source, target) = (side.region(&[7; 8]), side.region(&[0; 8]));
        let work = WorkRequest::write(peer, &source, target.remote()).count(128).timeout(BOUND);
        assert_eq!(queue.execute(&work).unwrap().completed, 128);
        queue.close().unwrap();
        assert_no_violations(adapter);
    });
}

/// One warp fills the ring. The next owns the lock while it waits for free slots, and the third waits for the lock.
#[test]
fn warps_wait_for_the_lock_and_for_their_own_requests() {
    with_soft_adapter(SLOW, |adapter| {
        run_warps(calls(32, 1, 64, EACH_CALL), 3, false);
        assert_no_violations(adapter);
    });
}

#[test]
fn a_queue_is_drained() {
    with_soft_adapter(SLOW, |adapter| {
        run_warps(calls(32, 1, 64, NEVER), 1, true);
        assert_no_violations(adapter);
    });
}
