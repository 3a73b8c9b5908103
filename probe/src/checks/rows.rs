//! The table of all checks, in the order of a report: from the environment to a verified completion. A code is a
//! category and three digits, and its meaning never changes.
//!
//! A new check is one row here and one function. A worker runs the rows of its group in the order of this table; the
//! probe asks the same function which rows a worker that crashed did not run ([`plan`]).

mod cuda;
mod dev;
mod env;
mod fab;
mod gda;
mod lib;
mod put;
mod que;
mod vrb;

use super::cuda::Cuda;
use super::library::Libraries;
use super::{fabric, verbs};
use crate::check::Follows::{IfNonePasses, IfSameRole};
use crate::check::Nature::{Gpu as OfGpu, GpuHardware, Hardware};
use crate::check::{Check, Checked, Follows, Load, Nature, Need, Outcome, Outcomes, Subject};
use crate::model::Party::{Account, Caller, Image, Job, Operator, Pod, Program};
use crate::model::{
    Action, BENCH, CLOSES, EXPOSES, Kind, LOOPBACK, MAPS, MOVED, NO_GPU, NOT_LOADED, PEER_MAPPING, PROVIDER,
    Party, SOFTWARE_ADAPTER, StackName,
};
use crate::system::System;
use crate::worker::{Executor, Group, Request};

/// A check and its implementation.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) check: Check,
    pub(crate) run: Run,
}

/// The implementation of a check, by the process that runs it and the state that it works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// In the probe's process, on the machine's files.
    Machine(fn(&mut System) -> Checked),
    /// The same in a worker process, because an open can block in a stuck driver.
    Nodes(fn(&mut System) -> Checked),
    /// In the probe's process, after libraries were loaded.
    Libraries(fn(&mut Libraries) -> Checked),
    /// CUDA, before a GPU is selected.
    Cuda(fn(&mut Cuda) -> Checked),
    /// CUDA, for each GPU.
    Gpu(fn(&mut Cuda) -> Checked),
    /// In the probe's process, for each GPU that has pairs, or has none.
    Near(fn(&System, &crate::model::Gpu, &[crate::model::Pair]) -> Outcome),
    /// libfabric, before an adapter is opened.
    Fabric(fn(&mut fabric::Session) -> Checked),
    /// libfabric, for each adapter.
    Adapter(fn(&mut fabric::Session) -> Checked),
    /// libfabric, for each pair of a GPU and an adapter.
    Pair(fn(&mut fabric::Session) -> Checked),
    /// rdma-core, before an adapter is opened.
    Verbs(fn(&mut verbs::Session) -> Checked),
    /// rdma-core, for each adapter.
    Device(fn(&mut verbs::Session) -> Checked),
    /// The queues of each adapter, from libfabric or from rdma-core.
    Queue(fn(&mut fabric::Session) -> Checked, fn(&mut verbs::Session) -> Checked),
    /// What the device code posts: for each adapter, or for each pair if a GPU runs it.
    Posting(fn(&mut fabric::Session) -> Checked, fn(&mut verbs::Session) -> Checked),
    /// The measurements of a bench, for what posts.
    Bench(fn(&mut fabric::Session) -> Checked),
}

/// A state that checks work on.
pub(crate) trait State {
    /// The implementation, if it works on this state.
    fn function(run: Run) -> Option<fn(&mut Self) -> Checked>;
}

impl State for System {
    fn function(run: Run) -> Option<fn(&mut Self) -> Checked> {
        match run {
            Run::Machine(run) | Run::Nodes(run) => Some(run),
            _ => None,
        }
    }
}

impl State for Libraries {
    fn function(run: Run) -> Option<fn(&mut Self) -> Checked> {
        match run {
            Run::Libraries(run) => Some(run),
            _ => None,
        }
    }
}

impl State for Cuda {
    fn function(run: Run) -> Option<fn(&mut Self) -> Checked> {
        match run {
            Run::Cuda(run) | Run::Gpu(run) => Some(run),
            _ => None,
        }
    }
}

impl Row {
    /// The outcomes on `state`; none if the check works on another state.
    pub(crate) fn outcomes<S: State>(&self, state: &mut S) -> Outcomes {
        let run = S::function(self.run);
        run.map_or_else(Outcomes::none, |run| run(state).unwrap_or_else(|outcomes| outcomes))
    }

    /// Codes that must not have failed or been skipped.
    const fn needs(mut self, codes: &'static [&'static str]) -> Self {
        self.check.needs = codes;
        self
    }

    /// What the check examines.
    const fn of(mut self, nature: Nature) -> Self {
        self.check.nature = nature;
        self
    }

    /// What the check has a result for, if the run does not say it.
    const fn each(mut self, subject: Subject) -> Self {
        self.check.subject = subject;
        self
    }

    /// The library that the check loads first.
    const fn loads(mut self, library: Load) -> Self {
        self.check.loads = Some(library);
        self
    }

    /// The stacks that depend on the check.
    const fn stops(mut self, stacks: &'static [Need]) -> Self {
        self.check.stacks = stacks;
        self
    }

    /// The checks whose consequence a problem can be.
    const fn follows(mut self, causes: Follows) -> Self {
        self.check.follows = causes;
        self
    }

    /// The parties that can solve a problem, the most likely first.
    const fn who(mut self, parties: &'static [Party]) -> Self {
        self.check.who = parties;
        self
    }

    /// What is done with the node if its operator solves the problem.
    const fn action(mut self, of_host: Action) -> Self {
        self.check.of_host = of_host;
        self
    }

    /// The requirement, and why it matters.
    const fn expects(mut self, required: &'static str, why: &'static str) -> Self {
        (self.check.required, self.check.why) = (required, why);
        self
    }

    /// The usual fix.
    const fn fix(mut self, text: &'static str) -> Self {
        self.check.fix = text;
        self
    }

    /// The page, in Markdown.
    const fn page(mut self, text: &'static str) -> Self {
        self.check.page = text;
        self
    }
}

/// A check whose result a version, a parameter or a file states.
const fn declared(code: &'static str, title: &'static str, run: Run) -> Row {
    let subject = match run {
        Run::Machine(_) | Run::Nodes(_) | Run::Libraries(_) | Run::Cuda(_) => Subject::Machine,
        Run::Fabric(_) | Run::Verbs(_) => Subject::Machine,
        Run::Gpu(_) | Run::Near(_) => Subject::Gpu,
        Run::Adapter(_) | Run::Device(_) | Run::Queue(..) => Subject::Adapter,
        Run::Pair(_) | Run::Posting(..) | Run::Bench(_) => Subject::Pair,
    };
    Row { check: Check { subject, ..Check::new(code, title, Kind::Declared) }, run }
}

/// A check that does what its title states.
const fn proven(code: &'static str, title: &'static str, run: Run) -> Row {
    let mut row = declared(code, title, run);
    row.check.kind = Kind::Proven;
    row
}

/// The need of a stack that a failure stops.
const fn need(stack: StackName) -> Need {
    Need { stack, pass: false, subjects: "" }
}

/// The need of a stack that a warning stops, and that no result leaves unknown.
const fn passes(stack: StackName) -> Need {
    Need { pass: true, ..need(stack) }
}

/// The need of a stack whose variables have this prefix.
const fn variables_of(stack: StackName, subjects: &'static str) -> Need {
    Need { subjects, ..passes(stack) }
}

use StackName::{Deepep, FiXpu, Gda, Nccl, Nvshmem};

/// What every stack needs: an adapter, its node, libfabric on its fabric efa-direct, and a GPU.
const EVERY: &[Need] = &[need(Gda), need(Nccl), need(FiXpu), need(Nvshmem), need(Deepep)];
const EVERY_PASSES: &[Need] = &[passes(Gda), passes(Nccl), passes(FiXpu), passes(Nvshmem), passes(Deepep)];
/// An adapter. The software adapter says nothing of the stacks of others.
const HARDWARE: &[Need] = &[need(Gda), passes(Nccl), passes(FiXpu), passes(Nvshmem), passes(Deepep)];
/// What a GPU needs to post. PUT-001 warns if only the write of an adapter to itself is lost, and fails if no adapter of
/// the node answers.
const POSTING: &[Need] = &[need(Gda), need(Nccl), need(FiXpu), need(Deepep)];
const POSTING_PASSES: &[Need] = &[passes(Gda), passes(Nccl), passes(FiXpu), passes(Deepep)];
/// Bytes that moved, posted by this project's kernels.
const GDA_PASSES: &[Need] = &[passes(Gda)];
/// What NCCL's EFA-GDA needs beside that.
const NCCL: &[Need] = &[need(Nccl), need(Deepep)];
const NCCL_PASSES: &[Need] = &[passes(Nccl), passes(Deepep)];
const XPU_PASSES: &[Need] = &[passes(FiXpu)];
const VARIABLES: &[Need] =
    &[variables_of(Nccl, "NCCL_"), variables_of(Deepep, "NCCL_"), variables_of(Nvshmem, "NVSHMEM_")];

/// Why a library finds no adapter: it looks for RDMA devices and their nodes.
const NO_ADAPTER: &[&str] = &["DEV-001", "DEV-003", "DEV-005", "DEV-006"];

/// Why a query of a queue must succeed.
const REPORTS: &str = "it reports the addresses and the geometry of the queue";

/// Fixes of several checks.
const NEW_LIBFABRIC: &str = "install the EFA installer's libfabric in the image, and remove older copies";
const ADAPTER_REFUSED: &str = "search dmesg on the host for efa; restart the host if its driver is stuck";
const GEOMETRY: &str = "install the current EFA installer's libfabric and rdma-core; if they are current, \
             report it (gda-probe report)";
const REPORT: &str = "report it with the versions of the provider and of gda-probe (gda-probe report)";

/// Every check, in the order of a report.
pub(crate) fn rows() -> impl DoubleEndedIterator<Item = &'static Row> {
    let all: [&[Row]; 9] =
        [env::ROWS, dev::ROWS, lib::ROWS, cuda::ROWS, fab::ROWS, gda::ROWS, vrb::ROWS, que::ROWS, put::ROWS];
    all.into_iter().flatten()
}

/// The row of a code; None for a code that no check has.
pub(crate) fn row(code: &str) -> Option<&'static Row> {
    rows().find(|row| row.check.code == code)
}

/// When a worker runs a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Once, without a subject.
    Once,
    /// For the adapter of each pair, before the rows of the pair.
    Opening,
    /// For each subject.
    Each,
}

/// The group of workers that runs the row before it selects a subject.
fn starts(row: &Row) -> Option<Group> {
    match row.run {
        Run::Nodes(_) => Some(Group::Nodes),
        Run::Cuda(_) => Some(Group::Cuda),
        Run::Fabric(_) => Some(Group::Fabric),
        Run::Verbs(_) => Some(Group::Verbs),
        _ => None,
    }
}

/// The first row that a group runs.
pub(crate) fn first(group: Group) -> Option<&'static Row> {
    rows().find(|row| starts(row) == Some(group))
}

/// When a worker runs `row` for `request`; None if it does not.
fn turn(row: &Row, request: &Request) -> Option<Turn> {
    let on_gpu = !matches!(request.executor, Executor::Host);
    match (row.run, request.group) {
        (_, group) if starts(row) == Some(group) => Some(Turn::Once),
        (Run::Adapter(_) | Run::Queue(..), Group::Fabric) if on_gpu => Some(Turn::Opening),
        (Run::Adapter(_) | Run::Queue(..) | Run::Posting(..), Group::Fabric) => Some(Turn::Each),
        (Run::Pair(_), Group::Fabric) if on_gpu => Some(Turn::Each),
        (Run::Bench(_), Group::Fabric) if request.bench.is_some() => Some(Turn::Each),
        (Run::Queue(..) | Run::Posting(..), Group::Verbs) if !request.exposure_alone => Some(Turn::Each),
        (Run::Device(_), Group::Verbs) | (Run::Gpu(_), Group::Cuda) => Some(Turn::Each),
        _ => None,
    }
}

/// The rows that a worker runs for `request` in this turn, in their order.
pub(crate) fn plan(request: &Request, when: Turn) -> Vec<&'static Row> {
    rows().filter(|row| turn(row, request) == Some(when)).collect()
}

/// Whether the probe's process runs the row on the machine's files, or a worker does for it.
pub(crate) fn is_of_machine(row: &Row) -> bool {
    matches!(row.run, Run::Machine(_) | Run::Nodes(_))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_a_check_comes_after_those_that_it_needs() {
        let mut seen = BTreeSet::new();
        // A pair's own checks come first in a report, and those of its adapter's queue first in a run.
        let of_pair = |row: &&Row| matches!(row.run, Run::Pair(_));
        for row in rows() {
            assert!(seen.insert(row.check.code), "{} twice", row.check.code);
            let known = |code: &&str| {
                seen.contains(*code) || rows().filter(of_pair).any(|r| r.check.needs.contains(code))
            };
            assert!(
                row.check.needs.iter().all(|code| self::row(code).is_some() && known(code)),
                "{}",
                row.check.code
            );
        }
    }

    #[test]
    fn a_row_states_who_mends_its_problem_and_how() {
        for Row { check, .. } in rows() {
            assert!(
                !check.who.is_empty() && !check.fix.is_empty() && !check.page.is_empty(),
                "{}",
                check.code
            );
        }
    }

    #[test]
    fn an_old_rdma_core_blocks_the_checks_that_it_would_fail_for_another_reason() {
        for code in ["VRB-008", "VRB-009", "VRB-011", "VRB-012", "VRB-015"] {
            assert_eq!(row(code).and_then(|row| row.check.needs.first()), Some(&"VRB-002"), "{code}");
        }
    }

    #[test]
    fn causes_are_checks() {
        for Row { check, .. } in rows() {
            let (IfNonePasses(causes) | IfSameRole(causes)) = check.follows;
            assert!(causes.iter().all(|code| row(code).is_some()), "{}", check.code);
        }
    }
}
