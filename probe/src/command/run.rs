//! The run of a command: the machine, the software adapter and the worker processes.

use std::ffi::OsString;
use std::time::Duration;

use super::CommandError;
use crate::check::{Outcome, Policy, Runner};
use crate::checks;
use crate::checks::rows::{self, Row, Turn, plan, row, rows};
use crate::cli::Common;
use crate::model::{Counter, Document, Doorbell, Finding, GpuChoice, Memory, State, Via};
use crate::soft::{self, ProviderDirectory, Unready, uverbs};
use crate::supervisor::{self, Limits, Results};
use crate::system::System;
use crate::system::counters::Counters;
use crate::verdict::graded;
use crate::worker::{BenchRequest, Executor, Group, PutRequest, Request};

/// Added for the start of a foreign library on a machine with an NVIDIA GPU: libfabric starts CUDA, which
/// takes seconds if there are many GPUs.
const CUDA_START: Duration = Duration::from_secs(8);

/// What a worker does.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The bytes to move.
    pub(crate) put: PutRequest,
    /// Where the device code runs.
    pub(crate) executor: Executor,
    /// The memory of the bytes, of ranks.
    pub(crate) memory: Memory,
    /// The measurements to take.
    pub(crate) bench: Option<BenchRequest>,
    /// Whether the checks end with what rdma-core exposes, so that no bytes are moved.
    pub(crate) exposure_alone: bool,
}

impl From<PutRequest> for Work {
    /// A put of the host executor.
    fn from(put: PutRequest) -> Self {
        Self { put, executor: Executor::Host, memory: Memory::Host, bench: None, exposure_alone: false }
    }
}

/// A run of checks.
#[derive(Debug)]
pub(crate) struct Run {
    /// The machine.
    pub(crate) system: System,
    /// The findings.
    pub(crate) runner: Runner,
    limits: Limits,
    doorbell: Doorbell,
    directory: Option<ProviderDirectory>,
    /// The adapters' counters at the beginning.
    before: Counters,
}

impl Run {
    /// Reads the options and, under `--soft`, prepares the software adapter. A missing provider or provider
    /// directory becomes a finding and is not an error.
    pub(crate) fn new(common: &Common) -> Result<Self, CommandError> {
        if common.soft && common.via == Via::Verbs && !uverbs::is_active() {
            return Err(CommandError::Input(uverbs::restart()));
        }
        let mut system = System {
            root: common.root.clone(),
            soft: common.soft,
            device: common.device.clone(),
            gpu: common.gpu,
            via: common.via,
            of_node: common.npd,
            stack: common.stack,
            ..System::default()
        };
        let mut directory = None;
        if common.soft && common.via == Via::Libfabric {
            let provider = soft::find().and_then(|library| {
                directory = Some(ProviderDirectory::new(&library).map_err(Unready::directory)?);
                Ok(library)
            });
            system.provider = Some(provider);
        }
        let no_gpu = checks::cuda::none_takes_part(&system);
        let policy = Policy { soft: common.soft, no_gpu, ..Policy::default() };
        let start = if system.has_nvidia() { CUDA_START } else { Duration::ZERO };
        let limits = Limits { each: Duration::from_millis(common.each_check()), start };
        Ok(Self {
            before: system.counters(),
            system,
            runner: Runner::new(policy),
            limits,
            doorbell: common.doorbell,
            directory,
        })
    }

    /// The counters of adapters that increased in this run.
    pub(crate) fn counters(&self) -> Option<Vec<Counter>> {
        let changed = self.system.counters().since(&self.before);
        (!changed.is_empty()).then_some(changed)
    }

    /// Runs a check of the machine's files.
    pub(crate) fn machine(&mut self, row: &Row) {
        self.runner.run(&row.check, None, || row.outcomes(&mut self.system));
    }

    /// Runs the checks of the machine that the checks of queues need. A warning there lets bytes through, and is none
    /// here.
    pub(crate) fn prerequisites(&mut self, put: PutRequest) {
        let request = self.request(self.layer().0, put.into());
        let of_queues = [Turn::Once, Turn::Each].into_iter().flat_map(|turn| plan(&request, turn));
        let needed: Vec<&str> = of_queues.flat_map(|row| row.check.needs.iter().copied()).collect();
        rows().filter(|row| needed.contains(&row.check.code)).for_each(|row| {
            if rows::is_of_machine(row) {
                self.machine(row);
            }
        });
        self.runner.findings.retain(|one| one.state != State::Warn);
    }

    /// Runs the checks of the machine that can name the cause of a failure, such as that of finding no adapter.
    pub(crate) fn explain_failures(&mut self) {
        let failed = |one: &&Finding| one.state == State::Fail;
        let failures = self.runner.findings.iter().filter(failed).filter_map(|one| row(&one.code));
        let causes = failures.flat_map(|row| row.check.follows.causes()).filter_map(|code| row(code));
        let categories: Vec<&str> = causes.map(|row| row.check.category()).collect();
        if self.system.soft {
            return;
        }
        for row in rows().filter(|row| categories.contains(&row.check.category())) {
            if matches!(row.run, rows::Run::Machine(_)) {
                self.machine(row);
            }
        }
    }

    /// Whether nothing blocks the first check of a group.
    pub(crate) fn can_start(&self, group: Group) -> bool {
        rows::first(group).is_some_and(|row| self.runner.blocked(&row.check, None).is_none())
    }

    /// Whether the first check of a group ran.
    pub(crate) fn is_asked(&self, group: Group) -> bool {
        let ran = |row: &Row| {
            self.runner.findings.iter().any(|one| one.code == row.check.code && one.state != State::Skip)
        };
        rows::first(group).is_some_and(ran)
    }

    /// Skips the checks that something blocks, without a subject, unless they have results.
    pub(crate) fn skip(&mut self, which: impl Fn(&Row) -> bool) {
        for check in rows().filter(|row| which(row)).map(|row| &row.check) {
            let has_result = self.runner.findings.iter().any(|finding| finding.code == check.code);
            if let Some((code, why)) = self.runner.blocked(check, None).filter(|_| !has_result) {
                self.runner.record(check, None, Outcome::Skip(code, why));
            }
        }
    }

    /// The findings, in the order of a report.
    pub(crate) fn findings(&mut self) -> Vec<Finding> {
        let mut findings = std::mem::take(&mut self.runner.findings);
        checks::sort(&mut findings);
        findings
    }

    /// The document of a command with these findings.
    pub(crate) fn document(&self, command: &'static str, findings: Vec<Finding>) -> Document {
        Document {
            checks: Some(graded(findings, self.system.stack)),
            origin: self.system.origin(),
            counters: self.counters(),
            ..Document::new(command, self.system.soft)
        }
    }

    /// Runs the checks that open queues, through the library that `--via` names.
    pub(crate) fn queues(&mut self, work: Work) -> Result<Results, CommandError> {
        self.group(self.layer().0, work)
    }

    /// Runs a group of checks in a worker.
    pub(crate) fn group(&mut self, group: Group, work: Work) -> Result<Results, CommandError> {
        let request = self.request(group, work);
        let path = self.directory.as_ref().map(ProviderDirectory::provider_path);
        Ok(supervisor::run(&mut self.runner, request, self.limits, path.as_deref())?)
    }

    /// The group of the library that `--via` names, and FI_PROVIDER_PATH for its workers.
    pub(crate) fn layer(&self) -> (Group, Option<OsString>) {
        let path = self.directory.as_ref().map(ProviderDirectory::provider_path);
        match self.system.via {
            Via::Libfabric => (Group::Fabric, path),
            Via::Verbs => (Group::Verbs, path),
        }
    }

    /// The limits of calls and waits, for a worker.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The request to a worker.
    pub(crate) fn request(&self, group: Group, work: Work) -> Request {
        let Work { put, executor, memory, bench, exposure_alone } = work;
        let provider = self.system.provider.as_ref().and_then(|provider| provider.as_ref().ok()).cloned();
        let gpu = match self.system.gpu {
            Some(GpuChoice::Number(number)) => Some(number),
            _ => None,
        };
        Request {
            group,
            root: self.system.root.clone(),
            soft: self.system.soft,
            no_gpu: self.runner.policy.no_gpu,
            not_loaded: self.runner.policy.not_loaded.clone(),
            provider,
            device: self.system.device.clone(),
            avoid: Vec::new(),
            gpu,
            executor,
            memory,
            doorbell: self.doorbell,
            put,
            exposure_alone,
            bench,
            // Half of the check's limit, so that the check reports a wait that timed out before the limit ends it.
            wait: u64::try_from(self.limits.each.as_millis() / 2).unwrap_or(u64::MAX),
            findings: Vec::new(),
        }
    }
}
