//! A rank's queue, opened by the checks that a put depends on, and what another rank needs to reach it.

use std::collections::BTreeSet;

use efa_gda::queue::MappedQueue;

use crate::check::{Check, Outcome, Outcomes, Unit};
use crate::checks::cuda::{self, Cuda};
use crate::checks::fabric::{self, Libfabric};
use crate::checks::session::{Layer, Rig, Session};
use crate::checks::verbs::{self, Verbs};
use crate::model::Kind;
use crate::system::System;
use crate::worker::stream::Progress;

/// The codes whose needs open the queue of a rank: a put needs no more.
const GOALS: [&str; 2] = ["QUE-008", "GDA-006"];

/// The two queues of a rank; without a GPU, they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The queue that posts.
    Sends,
    /// The queue to which others put.
    Receives,
}

/// A layer whose queues reach those of other processes.
pub(super) trait Reach: Layer<Start: Send> + Send {
    /// The checks that find the adapters.
    fn starting() -> &'static [Unit<Session<Self>>];

    /// The checks that open the queue on an adapter.
    fn opening(gpu: bool) -> Vec<&'static Unit<Session<Self>>>;

    /// The start of another session in this process, and the adapter of the rank with this number on its machine.
    fn share(start: &Self::Start, local: u32) -> (Self::Start, Option<Self>);
}

impl Reach for Libfabric {
    fn starting() -> &'static [Unit<Session<Self>>] {
        fabric::start::CHECKS
    }

    fn opening(gpu: bool) -> Vec<&'static Unit<Session<Self>>> {
        match gpu {
            true => fabric::on_gpu::opening().chain(fabric::on_gpu::pair_checks()).collect(),
            false => fabric::adapter_checks().collect(),
        }
    }

    fn share(start: &Self::Start, local: u32) -> (Self::Start, Option<Self>) {
        let info = nth(&start.infos, local).cloned();
        let shared = fabric::Start { library: start.library.clone(), ..fabric::Start::default() };
        (shared, info.map(|info| Self { info: Some(info), ..Self::default() }))
    }
}

impl Reach for Verbs {
    fn starting() -> &'static [Unit<Session<Self>>] {
        verbs::start::CHECKS
    }

    fn opening(_gpu: bool) -> Vec<&'static Unit<Session<Self>>> {
        verbs::adapter_checks().collect()
    }

    fn share(start: &Self::Start, local: u32) -> (Self::Start, Option<Self>) {
        let device = nth(&start.devices, local).cloned();
        let shared = verbs::Start { library: start.library.clone(), ..verbs::Start::default() };
        (shared, device.map(|device| Self { device: Some(device), ..Self::default() }))
    }
}

/// The adapter of the rank with number `local` on its machine: the ranks take turns.
fn nth<T>(all: &[T], local: u32) -> Option<&T> {
    all.get((local as usize).checked_rem(all.len())?)
}

/// The queue of a side, whose address other ranks get, and with which they are introduced.
pub(super) fn queue<L: Layer>(rig: &Rig<L>, side: Side) -> Result<&MappedQueue, String> {
    let queue = if side == Side::Sends { rig.sender() } else { rig.queue.as_ref() };
    queue.ok_or_else(|| "no queue is open".to_owned())
}

/// Runs the units of `units` that [`GOALS`] need, themselves included. Returns the first failure.
pub(super) fn run_needed<L: Reach>(
    session: &mut Session<L>,
    units: &[&'static Unit<Session<L>>],
) -> Result<(), String> {
    let all = L::starting().iter().chain(L::opening(session.gpu.is_some())).map(|unit| &unit.check);
    let needed = needed(&all.collect::<Vec<_>>());
    for unit in units.iter().filter(|unit| needed.contains(unit.check.code)) {
        first_failure(&unit.check, unit.outcomes(session))?;
    }
    Ok(())
}

/// The check of kernels, which memory of a GPU does not need.
const KERNELS: &str = "CUDA-010";

/// Runs the checks of a GPU on which those of a pair depend, or without `kernels` those on which its memory depends.
/// Returns the first failure.
pub(super) fn check_gpu(number: u32, kernels: bool) -> Result<(), String> {
    let mut cuda = Cuda::new(Some(number), &System::default(), Progress::silent());
    for unit in cuda::CHECKS {
        first_failure(&unit.check, unit.outcomes(&mut cuda))?;
    }
    cuda.select(number);
    let needed =
        |unit: &&Unit<Cuda>| unit.check.kind == Kind::Proven && (kernels || unit.check.code != KERNELS);
    for unit in cuda::GPU_CHECKS.iter().filter(needed) {
        first_failure(&unit.check, unit.outcomes(&mut cuda))?;
    }
    Ok(())
}

/// The codes among `checks` that [`GOALS`] need, directly or not.
fn needed(checks: &[&'static Check]) -> BTreeSet<&'static str> {
    let mut needed: BTreeSet<&str> = GOALS.into();
    // Checks come after those that they need.
    for check in checks.iter().rev().filter(|check| !check.needs.is_empty()) {
        if needed.contains(check.code) {
            needed.extend(check.needs);
        }
    }
    needed
}

/// The first failure among the outcomes of a check, as a sentence.
pub(super) fn first_failure(check: &Check, outcomes: Outcomes) -> Result<(), String> {
    for (_, outcome) in outcomes.0 {
        if let Outcome::Fail(problem) = outcome {
            let (title, role) = (check.title, problem.who.role());
            let (observed, fix) = (problem.observed, problem.fix);
            return Err(format!(
                "{}, \"{title}\", does not hold: {observed}; fix ({role}): {fix}",
                check.code
            ));
        }
    }
    Ok(())
}
