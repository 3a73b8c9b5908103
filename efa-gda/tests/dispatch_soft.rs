//! The example of a low-latency dispatch on the software adapter, which executes requests in random order. The kernels run
//! on the host executor.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use efa_gda::fabric::Query;
use kernels_support::dispatch::{self, Dispatch, RANKS};
use kernels_support::kernels;
use support::side::{Side, bytes_of, introduce};
use support::{assert_no_violations, with_soft_adapter};

#[test]
fn each_token_arrives_at_the_experts_that_it_is_routed_to() {
    with_soft_adapter(&[("SOFTEFA_REORDER", "48")], |adapter| {
        let library = kernels(&["../kernels/examples/low_latency_dispatch.cu"]);
        for wide in [false, true] {
            let side = Side::open(&Query::new().wide_entries(wide));
            let mut queues: Vec<_> = (0..RANKS).map(|_| side.queue().with_request_table().unwrap()).collect();
            let regions: Vec<_> = (0..RANKS).map(|rank| side.region(&dispatch::image(rank))).collect();
            let memory = dispatch::memory(&mut queues, &regions);
            let arguments = |rank: usize| {
                let peers = dispatch::peers(&queues, rank, introduce);
                dispatch::arguments(rank, queues[rank].as_ptr().as_ptr(), &memory, peers)
            };
            let arguments: Vec<_> = (0..RANKS).map(arguments).collect();
            type Run = unsafe extern "C" fn(*const Dispatch) -> bool;
            // SAFETY: the type is the function's in low_latency_dispatch.cu.
            let run = unsafe { library.get::<Run>(b"low_latency_dispatch_on_host") }.unwrap();
            std::thread::scope(|scope| {
                for arguments in &arguments {
                    let run = *run;
                    // SAFETY: the ranks' queues and memory outlive the scope.
                    scope.spawn(move || assert!(unsafe { run(arguments) }));
                }
            });
            for (rank, region) in regions.iter().enumerate() {
                dispatch::check(rank, &bytes_of(region));
            }
            queues.into_iter().for_each(|queue| queue.close().unwrap());
            assert_no_violations(adapter);
        }
    });
}
