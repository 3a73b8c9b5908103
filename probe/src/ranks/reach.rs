//! A rank's queue, opened by the checks that a put depends on, and what another rank needs to reach it.

use std::collections::BTreeSet;

use efa_gda::queue::MappedQueue;

use crate::check::{Check, Outcome, Outcomes};
use crate::checks::cuda::Cuda;
use crate::checks::fabric::{self, Libfabric};
use crate::checks::rows::{Turn, plan, rows};
use crate::checks::session::{Layer, Rig, Session};
use crate::checks::verbs::{self, Verbs};
use crate::system::System;
use crate::worker::stream::Progress;
use crate::worker::{Executor, Request};

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
    /// The start of another session in this process, and the adapter of the rank with this number on its machine.
    fn share(start: &Self::Start, local: u32) -> (Self::Start, Option<Self>);
}

impl Reach for Libfabric {
    fn share(start: &Self::Start, local: u32) -> (Self::Start, Option<Self>) {
        let info = nth(&start.infos, local).cloned();
        let shared = fabric::Start { library: start.library.clone(), ..fabric::Start::default() };
        (shared, info.map(|info| Self { info: Some(info), ..Self::default() }))
    }
}

impl Reach for Verbs {
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

/// Runs the checks that [`GOALS`] need, themselves included: those that find the adapters, or those that open the queue on
/// one. Returns the first failure.
pub(super) fn run_needed<L: Reach>(session: &mut Session<L>, turns: &[Turn]) -> Result<(), String> {
    let needed = needed(GOALS.into());
    // The GPU of this side, and not of the rank: one side of a queue can be the host's.
    let executor = session.gpu.map_or(Executor::Host, Executor::Gpu);
    let request = Request { executor, ..session.request.clone() };
    for row in
        turns.iter().flat_map(|turn| plan(&request, *turn)).filter(|row| needed.contains(row.check.code))
    {
        first_failure(&row.check, row.outcomes(session))?;
    }
    Ok(())
}

/// The check of memory of a GPU, which needs no kernels.
const GPU_MEMORY: &str = "CUDA-014";

/// Runs the checks of a GPU on which those of a pair depend, or without `kernels` those on which its memory depends.
/// Returns the first failure.
pub(super) fn check_gpu(number: u32, kernels: bool) -> Result<(), String> {
    let mut cuda = Cuda::new(Some(number), &System::default(), Progress::silent());
    let needed = needed(if kernels { GOALS.into() } else { [GPU_MEMORY].into() });
    cuda.select(number);
    for row in rows().filter(|row| needed.contains(row.check.code)) {
        first_failure(&row.check, row.outcomes(&mut cuda))?;
    }
    Ok(())
}

/// The codes that `goals` need, directly or not.
fn needed(mut goals: BTreeSet<&'static str>) -> BTreeSet<&'static str> {
    // Checks come after those that they need.
    for row in rows().rev() {
        if goals.contains(row.check.code) {
            goals.extend(row.check.needs);
        }
    }
    goals
}

/// The first failure among the outcomes of a check, as a sentence.
pub(super) fn first_failure(check: &Check, outcomes: Outcomes) -> Result<(), String> {
    for (_, outcome) in outcomes.0 {
        if let Outcome::Fail(problem) = outcome {
            let (title, role) = (check.title, check.party(&problem).role().role());
            let (observed, fix) = (problem.observed, problem.fix.as_deref().unwrap_or(check.fix));
            return Err(format!(
                "{}, \"{title}\", does not hold: {observed}; fix ({role}): {fix}",
                check.code
            ));
        }
    }
    Ok(())
}
