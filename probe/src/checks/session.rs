//! The state that the checks of one worker process share. A [`Layer`] exposes the queues: libfabric
//! ([`super::fabric`]) or rdma-core alone ([`super::verbs`]). The checks of queues and of bytes are
//! generic over it.

use std::fmt;

use efa_gda::doorbell::DoorbellProxy;
use efa_gda::exposure::{RawCompletionQueue, RawWorkQueue};
use efa_gda::fabric::{Access, Buffer};
use efa_gda::gpu_queue::GpuQueueError;
use efa_gda::queue::{Backing, MappedQueue, WorkError, WorkReport, WorkRequest};
use efa_gda::wire::Peer;

use crate::check::{Outcome, Outcomes, Problem, Unit};
use crate::model::{Put, Queues, Who};
use crate::worker::stream::{Progress, Stream};
use crate::worker::{Event, Request};

/// Memory registered through a layer.
pub(crate) type Region<L> = <<L as Layer>::Backing as Backing>::Region;

/// A layer that exposes queues. A value holds the objects that are open on one adapter.
pub(crate) trait Layer: fmt::Debug + Default + 'static {
    /// The state before any adapter is opened.
    type Start: fmt::Debug + Default;
    /// The owner of a queue's memory.
    type Backing: Backing;
    /// The objects that [`Self::close`] closes, for the report.
    const CLOSES: &'static str;

    /// The adapter's name, as in subjects.
    fn adapter(&self) -> String;

    /// Maps the queue of the open objects.
    fn map(rig: &mut Rig<Self>) -> Result<MappedQueue<Self::Backing>, Outcomes>;

    /// Registers `buffer`, which the region then owns.
    fn register(&self, buffer: Buffer, access: Access) -> Result<Region<Self>, Outcomes>;

    /// Whether RDMA writes with immediate consume receives of this queue.
    fn writes_use_receives(queue: &MappedQueue<Self::Backing>) -> bool;

    /// Closes every object but the queue, children first. Returns the failures.
    fn close(&mut self) -> Vec<String>;
}

/// A queue to which a GPU posts.
pub(crate) trait OnGpu<L: Layer>: fmt::Debug {
    /// Posts from the GPU and waits for the completions.
    fn execute(&mut self, request: &WorkRequest<Region<L>>) -> Result<WorkReport, GpuQueueError>;

    /// The host's view of the queue.
    fn mapped(&self) -> &MappedQueue<L::Backing>;

    /// Unmaps the queue from the GPU and closes it. Returns the failure, if any.
    fn close(self: Box<Self>) -> Option<String>;
}

/// The state that the checks of one worker process share.
#[derive(Debug)]
pub(crate) struct Session<L: Layer> {
    /// The probe's request.
    pub(crate) request: Request,
    /// Reports to the probe that a long check continues.
    pub(crate) progress: Progress,
    /// The state before any adapter was opened.
    pub(crate) start: L::Start,
    /// The GPU that runs the device code; None for the host executor.
    pub(crate) gpu: Option<u32>,
    /// The objects of the current adapter.
    pub(crate) rig: Rig<L>,
}

/// The open objects of one adapter and what they exposed.
#[derive(Debug)]
pub(crate) struct Rig<L: Layer> {
    /// The layer's objects.
    pub(crate) objects: L,
    pub(crate) send: Option<RawWorkQueue>,
    pub(crate) receive: Option<RawWorkQueue>,
    pub(crate) completion: Option<RawCompletionQueue>,
    pub(crate) peer: Option<Peer>,
    pub(crate) queues: Queues,
    pub(crate) put: Option<Put>,
    /// The queue to which the GPU posts.
    pub(crate) on_gpu: Option<Box<dyn OnGpu<L>>>,
    /// The host's queue. It posts; with a GPU, it is the target of the GPU's posts.
    pub(crate) queue: Option<MappedQueue<L::Backing>>,
    /// Rings for the queue in the doorbell modes `record` and `staged`.
    pub(crate) proxy: Option<DoorbellProxy>,
}

impl<L: Layer> Rig<L> {
    /// A rig with these objects and nothing exposed.
    pub(crate) fn new(objects: L) -> Self {
        Self {
            objects,
            send: None,
            receive: None,
            completion: None,
            peer: None,
            queues: Queues::default(),
            put: None,
            on_gpu: None,
            queue: None,
            proxy: None,
        }
    }

    /// Posts from the GPU if it has a queue, otherwise from the host.
    pub(crate) fn execute(&mut self, request: &WorkRequest<Region<L>>) -> Result<WorkReport, GpuQueueError> {
        let result = match (&mut self.on_gpu, &mut self.queue) {
            (Some(queue), _) => queue.execute(request),
            (None, Some(queue)) => queue.execute(request).map_err(Into::into),
            (None, None) => {
                Err(WorkError::Unsupported { operation: "posting", why: "no queue is open" }.into())
            }
        };
        if let (Err(GpuQueueError::Work(WorkError::Device { .. })), Some(queue)) = (&result, self.sender()) {
            tracing::error!("state of the queue:\n{}", queue.snapshot());
        }
        result
    }

    /// The queue to which work requests are posted.
    pub(crate) fn sender(&self) -> Option<&MappedQueue<L::Backing>> {
        self.on_gpu.as_ref().map(|queue| queue.mapped()).or(self.queue.as_ref())
    }
}

impl<L: Layer> Session<L> {
    /// A session with no open object.
    pub(crate) fn new(stream: &Stream, request: Request) -> Self {
        let progress = stream.progress();
        Self { request, progress, start: L::Start::default(), gpu: None, rig: Rig::new(L::default()) }
    }

    /// Runs `checks` on each adapter in `names`, starting from the result of `objects`. Without adapters,
    /// runs them once without a subject.
    pub(crate) fn adapters(
        &mut self,
        stream: &mut Stream,
        names: &[String],
        objects: impl Fn(&Self, usize) -> L,
        checks: &[&'static Unit<Self>],
    ) {
        stream.send(&Event::Adapters { names: names.to_vec() });
        if names.is_empty() {
            checks.iter().for_each(|unit| stream.run(unit, None, self));
        }
        for (index, name) in names.iter().enumerate() {
            if !self.request.avoid.contains(name) {
                self.rig = Rig::new(objects(self, index));
                self.run_for(stream, name, checks);
            }
        }
    }

    /// Runs `checks` for `subject`.
    pub(crate) fn run_for(&mut self, stream: &mut Stream, subject: &str, checks: &[&'static Unit<Self>]) {
        for unit in checks {
            stream.run(unit, Some(subject), self);
            if unit.check.code == super::queues::LAST_GEOMETRY && !self.rig.queues.is_empty() {
                stream.send(&Event::Queues { queues: self.rig.queues.clone() });
            }
            if let Some(put) = self.rig.put.take() {
                stream.send(&Event::Put { put });
            }
        }
    }
}

/// An error's text without the hint at its end.
pub(crate) fn without_hint(error: &impl fmt::Display, hint: &str) -> String {
    let text = error.to_string();
    text.strip_suffix(&format!("; {hint}")).unwrap_or(&text).to_owned()
}

/// A failure with these texts.
pub(crate) fn failed(observed: String, required: &str, why: &str, fix: &str, who: Who) -> Outcomes {
    Outcome::Fail(Problem {
        observed,
        required: required.to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        who,
    })
    .into()
}

/// The outcome of a check whose prerequisite is not open. The needs that checks declare rule this out.
pub(crate) fn missing(what: &str) -> Outcomes {
    Outcome::unknown(format!("{what} is not open in this process")).into()
}
