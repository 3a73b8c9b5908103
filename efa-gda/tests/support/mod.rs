//! Shared by the library's tests: sides of a transfer on the software adapter, and queues of a real or pretended GPU.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

pub(crate) mod ibgda;
pub(crate) mod kernel;
pub(crate) mod load;
pub(crate) mod side;

use std::sync::{Mutex, PoisonError};

use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda_test_support::cuda;
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use efa_gda_test_support::soft::{SoftAdapter, assert_no_violations, with_soft_adapter};
use side::Pair;

/// Runs `body` with two queues on a software adapter that has these variables. The adapter must find no broken rule.
pub(crate) fn with_pair(variables: &[(&str, &str)], body: impl FnOnce(Pair, &SoftAdapter)) {
    with_pair_of(&Query::new(), variables, body);
}

/// [`with_pair`] on the adapter that `query` finds.
pub(crate) fn with_pair_of(query: &Query, variables: &[(&str, &str)], body: impl FnOnce(Pair, &SoftAdapter)) {
    with_soft_adapter(variables, |adapter| {
        body(Pair::open(query), adapter);
        assert_no_violations(adapter);
    });
}

/// [`with_pair_of`], where the GPU drives the first queue.
pub(crate) fn with_gpu_pair(
    query: &Query,
    variables: &[(&str, &str)],
    body: impl FnOnce(Pair<GpuQueue>, &SoftAdapter, &Gpu),
) {
    with_gpu(variables, |adapter, gpu| {
        body(Pair::open(query).on(gpu), adapter, gpu);
        assert_no_violations(adapter);
    });
}

/// Runs `body` with the first GPU, in a process whose software adapter has these variables. Records a skip if there is no
/// GPU, and fails if there is one that does not open.
///
/// One test of a program has the GPU at a time: the GPU runs processes in slices of time, so that a kernel that waits for
/// its adapter's copies waits for the other processes' slices too.
pub(crate) fn with_gpu(variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter, &Gpu)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if efa_gda_test_support::gpu::present() {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        with_soft_adapter(variables, |adapter| body(adapter, &Gpu::open(0).unwrap()));
    }
}

/// Runs `body` with the pretended GPU, in a process whose software adapter and CUDA driver have these variables.
pub(crate) fn with_pretended_gpu(variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter, &Gpu)) {
    with_soft_adapter(&[&cuda::VARIABLES, variables].concat(), |adapter| {
        let gpu = Gpu::open(0).unwrap();
        assert_eq!(gpu.name().unwrap(), "pretended GPU");
        body(adapter, &gpu);
    });
}
