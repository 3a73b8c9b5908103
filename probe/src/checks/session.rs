//! What the checks of one child process share, whatever layer queues are found through: libfabric
//! ([`super::fabric`]) or rdma-core alone ([`super::verbs`]). Checks of queues and of bytes are
//! written once, over a [`Layer`].

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

/// Memory registered in a layer.
pub(crate) type Region<L> = <<L as Layer>::Backing as Backing>::Region;

/// A layer that exposes queues: what is open in it on one adapter.
pub(crate) trait Layer: fmt::Debug + Default + 'static {
    /// What is found once, before any adapter.
    type Start: fmt::Debug + Default;
    /// What its queues are made of.
    type Backing: Backing;
    /// What [`Self::close`] closes, in words.
    const CLOSES: &'static str;

    /// The adapter's name, as subjects have it.
    fn adapter(&self) -> String;

    /// Makes the queue of what was opened.
    fn map(rig: &mut Rig<Self>) -> Result<MappedQueue<Self::Backing>, Outcomes>;

    /// Registers memory that the region owns.
    fn register(&self, buffer: Buffer, access: Access) -> Result<Region<Self>, Outcomes>;

    /// Whether RDMA writes with immediate use up receives at this queue.
    fn writes_use_receives(queue: &MappedQueue<Self::Backing>) -> bool;

    /// Closes everything but the queue, children first; what did not close, and why.
    fn close(&mut self) -> Vec<String>;
}

/// A queue that a GPU posts to.
pub(crate) trait OnGpu<L: Layer>: fmt::Debug {
    /// Posts from the GPU and waits.
    fn execute(&mut self, put: &WorkRequest<Region<L>>) -> Result<WorkReport, GpuQueueError>;

    /// The queue as the host knows it.
    fn mapped(&self) -> &MappedQueue<L::Backing>;

    /// Takes the queue from the GPU and closes it; why it did not close.
    fn close(self: Box<Self>) -> Option<String>;
}

/// What the checks of one process share.
#[derive(Debug)]
pub(crate) struct Session<L: Layer> {
    /// What the parent asked for.
    pub(crate) request: Request,
    /// Tells the parent that a long check goes on.
    pub(crate) progress: Progress,
    /// What was found before any adapter.
    pub(crate) start: L::Start,
    /// The GPU that runs the device code; the host executor does where there is none.
    pub(crate) gpu: Option<u32>,
    /// What is open on the adapter that is being looked at.
    pub(crate) rig: Rig<L>,
}

/// What is open and known of one adapter.
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
    /// The queue that a GPU posts to.
    pub(crate) on_gpu: Option<Box<dyn OnGpu<L>>>,
    /// The host's queue. It posts, or receives what a GPU posts.
    pub(crate) queue: Option<MappedQueue<L::Backing>>,
    /// Rings for the queue where its device code does not.
    pub(crate) proxy: Option<DoorbellProxy>,
}

impl<L: Layer> Rig<L> {
    /// With these objects, and nothing known.
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

    /// Posts from the GPU where one has a queue, and from the host otherwise.
    pub(crate) fn execute(&mut self, put: &WorkRequest<Region<L>>) -> Result<WorkReport, GpuQueueError> {
        let result = match (&mut self.on_gpu, &mut self.queue) {
            (Some(queue), _) => queue.execute(put),
            (None, Some(queue)) => queue.execute(put).map_err(Into::into),
            (None, None) => {
                Err(WorkError::Unsupported { operation: "a put", why: "no queue is open" }.into())
            }
        };
        if let (Err(GpuQueueError::Work(WorkError::Device { .. })), Some(queue)) = (&result, self.sender()) {
            tracing::error!("where the queue stands:\n{}", queue.snapshot());
        }
        result
    }

    /// The queue that puts are posted to.
    pub(crate) fn sender(&self) -> Option<&MappedQueue<L::Backing>> {
        self.on_gpu.as_ref().map(|queue| queue.mapped()).or(self.queue.as_ref())
    }
}

impl<L: Layer> Session<L> {
    /// With nothing open.
    pub(crate) fn new(stream: &Stream, request: Request) -> Self {
        let progress = stream.progress();
        Self { request, progress, start: L::Start::default(), gpu: None, rig: Rig::new(L::default()) }
    }

    /// Runs `checks` on the adapters called `names`, which `objects` begins with; once and without a
    /// subject where there are none.
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
                self.one(stream, name, checks);
            }
        }
    }

    /// Runs `checks` on what is called `subject`.
    pub(crate) fn one(&mut self, stream: &mut Stream, subject: &str, checks: &[&'static Unit<Self>]) {
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

/// An error's words without the hint at their end.
pub(crate) fn without_hint(error: &impl fmt::Display, hint: &str) -> String {
    let text = error.to_string();
    text.strip_suffix(&format!("; {hint}")).unwrap_or(&text).to_owned()
}

/// A failure that the probe itself explains.
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

/// For a check whose need was not met by this process, which the needs it declares rule out.
pub(crate) fn missing(what: &str) -> Outcomes {
    Outcome::unknown(format!("{what} is not open in this process")).into()
}
