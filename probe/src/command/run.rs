//! The run of a command: the machine, the software adapter and the worker processes.

use std::ffi::OsString;
use std::time::Duration;

use super::CommandError;
use crate::check::{Policy, Runner};
use crate::checks;
use crate::cli::{Common, Via};
use crate::model::{Counter, Doorbell, GpuChoice, Memory};
use crate::soft::{self, ProviderDirectory, Unready, uverbs};
use crate::supervisor::{self, Limits, Results};
use crate::system::System;
use crate::system::counters::Counters;
use crate::worker::{BenchRequest, Executor, Group, PutRequest, Request};

/// Added for the start of a foreign library on a machine with an NVIDIA GPU: libfabric starts CUDA, which
/// takes seconds if there are many GPUs.
const CUDA_START: Duration = Duration::from_secs(8);

/// A run of checks.
#[derive(Debug)]
pub(crate) struct Run {
    /// The machine.
    pub(crate) system: System,
    /// The findings.
    pub(crate) runner: Runner,
    limits: Limits,
    doorbell: Doorbell,
    via: Via,
    exposure_alone: bool,
    /// The measurements of the worker that opens queues.
    pub(crate) bench: Option<BenchRequest>,
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
            via: common.via,
            exposure_alone: false,
            bench: None,
            directory,
        })
    }

    /// The counters of adapters that increased in this run.
    pub(crate) fn counters(&self) -> Option<Vec<Counter>> {
        let changed = self.system.counters().since(&self.before);
        (!changed.is_empty()).then_some(changed)
    }

    /// Runs the checks that open queues, through the library that `--via` names.
    pub(crate) fn queues(&mut self, put: PutRequest, executor: Executor) -> Result<Results, CommandError> {
        self.run(self.layer().0, put, executor)
    }

    /// Checks what rdma-core exposes; for adapters of which libfabric exposes no queue. Moves no bytes.
    pub(crate) fn exposure(&mut self, put: PutRequest) -> Result<Results, CommandError> {
        self.exposure_alone = true;
        let results = self.group(Group::Verbs, put);
        self.exposure_alone = false;
        results
    }

    /// Runs a group of checks in a worker, with the host executor.
    pub(crate) fn group(&mut self, group: Group, put: PutRequest) -> Result<Results, CommandError> {
        self.run(group, put, Executor::Host)
    }

    /// Runs a group of checks in a worker.
    fn run(&mut self, group: Group, put: PutRequest, executor: Executor) -> Result<Results, CommandError> {
        let request = self.request(group, put, executor);
        let path = self.directory.as_ref().map(ProviderDirectory::provider_path);
        Ok(supervisor::run(&mut self.runner, request, self.limits, path.as_deref())?)
    }

    /// The group of the library that `--via` names, and FI_PROVIDER_PATH for its workers.
    pub(crate) fn layer(&self) -> (Group, Option<OsString>) {
        let path = self.directory.as_ref().map(ProviderDirectory::provider_path);
        match self.via {
            Via::Libfabric => (Group::Fabric, path),
            Via::Verbs => (Group::Verbs, path),
        }
    }

    /// Whether libfabric opens the queues.
    pub(crate) fn opens_by_libfabric(&self) -> bool {
        self.via == Via::Libfabric
    }

    /// The limits of calls and waits, for a worker.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The request to a worker.
    pub(crate) fn request(&self, group: Group, put: PutRequest, executor: Executor) -> Request {
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
            memory: Memory::Host,
            doorbell: self.doorbell,
            put,
            exposure_alone: self.exposure_alone,
            bench: self.bench,
            // Half of the check's limit, so that the check reports a wait that timed out before the limit ends it.
            wait: u64::try_from(self.limits.each.as_millis() / 2).unwrap_or(u64::MAX),
            findings: Vec::new(),
        }
    }
}
