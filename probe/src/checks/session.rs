//! The state that the checks of one worker process share. A [`Layer`] exposes the queues: libfabric
//! ([`super::fabric`]) or rdma-core alone ([`super::verbs`]). The checks of queues and of bytes are
//! generic over it.

use std::fmt;

use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::exposure::{RawCompletionQueue, RawWorkQueue};
use efa_gda::fabric::{Access, Buffer};
use efa_gda::gpu::GpuMemory;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, Region, WorkReport, WorkRequest};
use efa_gda::wire::Peer;
use efa_gda::{Error, ErrorKind, Refused};

use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::measure::Meter;
use crate::checks::rows::{Row, Run, State};
use crate::model::{Op, Party, Queues};
use crate::worker::stream::{Progress, Stream};
use crate::worker::{Event, Request};

/// A layer that exposes queues. A value holds the objects that are open on one adapter.
pub(crate) trait Layer: fmt::Debug + Default + 'static {
    /// The state before any adapter is opened.
    type Start: fmt::Debug + Default;
    /// The objects that [`Self::close`] closes, for the report.
    const CLOSES: &'static str;

    /// The implementation of a check on this layer, if it has one.
    fn function(run: Run) -> Option<fn(&mut Session<Self>) -> Checked>;

    /// The adapter's name, as in subjects.
    fn adapter(&self) -> String;

    /// Maps the queue of the open objects.
    fn map(rig: &mut Rig<Self>) -> Result<MappedQueue, Outcomes>;

    /// Registers `buffer`, which the region then owns.
    fn register(&self, buffer: Buffer, access: Access) -> Result<Region, Outcomes>;

    /// Registers memory of a GPU, which the region then owns.
    fn register_gpu(&self, _: GpuMemory, _: Access) -> Result<Region, Outcomes> {
        Err(Outcome::unknown("this layer registers no memory of a GPU").into())
    }

    /// Opens a queue of another adapter of the node, which the session then holds open, or returns why there is none.
    fn neighbour_queue(session: &mut Session<Self>) -> Result<MappedQueue, String>;

    /// Opens another queue of this adapter, with a separate completion queue that the objects then hold.
    fn another_queue(&mut self, op: Op) -> Result<MappedQueue, String>;

    /// Makes the session's processor drive `queue`, in a doorbell mode that it has used before.
    fn drive(
        session: &mut Session<Self>,
        mut queue: MappedQueue,
        mode: DoorbellMode,
    ) -> Result<Poster, String> {
        if let Some(proxy) = &session.rig.proxy {
            queue.set_doorbell(mode, proxy).map_err(text)?;
        }
        Ok(Poster::Host(Box::new(queue)))
    }

    /// The adapter that requests arrive at, if it is not this one.
    fn neighbour(&self) -> Option<&Self> {
        None
    }

    /// Closes every object but the queue, children first. Returns the failures.
    fn close(&mut self) -> Vec<String>;
}

/// A queue whose requests go to another queue, [`Rig::queue`]: a GPU posts to it, or the other queue is one of another
/// adapter.
#[derive(Debug)]
pub(crate) enum Poster {
    Host(Box<MappedQueue>),
    Gpu(Box<GpuQueue>),
}

impl Poster {
    /// Posts and waits for the completions.
    fn execute(&mut self, request: &WorkRequest) -> Result<WorkReport, Error> {
        match self {
            Self::Host(queue) => queue.execute(request),
            Self::Gpu(queue) => queue.execute(request),
        }
    }

    /// Bytes of the widest stores by which the processor writes entries.
    pub(crate) fn store_bytes(&self) -> u32 {
        match self {
            Self::Host(_) => 8,
            Self::Gpu(queue) => queue.store_bytes(),
        }
    }

    /// The host's view of the queue.
    pub(crate) fn mapped(&self) -> &MappedQueue {
        match self {
            Self::Host(queue) => queue,
            Self::Gpu(queue) => queue.mapped(),
        }
    }

    fn meter(&mut self) -> Meter<'_> {
        match self {
            Self::Host(queue) => Meter::Host(std::slice::from_mut(queue)),
            Self::Gpu(queue) => Meter::Gpu(std::slice::from_mut(queue)),
        }
    }

    /// Unmaps the queue from the GPU, if one posts, and closes it. Returns the failure, if any.
    pub(crate) fn close(self) -> Option<String> {
        match self {
            Self::Host(queue) => close_queue(*queue),
            Self::Gpu(queue) => close_gpu_queue(*queue),
        }
    }
}

/// Gives both queues the address of the other. Returns the peer that the sender posts to.
pub(crate) fn introduce(sender: &MappedQueue, receiver: &MappedQueue) -> Result<Peer, Error> {
    receiver.insert_peer(&sender.address()?)?;
    sender.insert_peer(&receiver.address()?)
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
    /// What the running check reports besides its outcomes.
    pub(crate) reports: Vec<Event>,
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
    /// The queue that posts, if it is not `queue`.
    pub(crate) poster: Option<Poster>,
    /// The host's queue. It posts to itself; with a poster, it is the target of its posts.
    pub(crate) queue: Option<MappedQueue>,
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
            poster: None,
            queue: None,
            proxy: None,
        }
    }

    /// Posts from the poster if there is one, otherwise from the host's queue. One of them must be open.
    pub(crate) fn execute(&mut self, request: &WorkRequest) -> Result<WorkReport, Error> {
        let result = match (&mut self.poster, &mut self.queue) {
            (Some(queue), _) => queue.execute(request),
            (None, Some(queue)) => queue.execute(request),
            (None, None) => unreachable!("checks that post need a queue"),
        };
        if result.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Device(_)))
            && let Some(queue) = self.sender()
        {
            for line in queue.snapshot().to_string().lines() {
                tracing::info!("state of the queue: {line}");
            }
        }
        result
    }

    /// The queue that posts, to be measured.
    pub(crate) fn meter(&mut self) -> Option<Meter<'_>> {
        match (&mut self.poster, &mut self.queue) {
            (Some(poster), _) => Some(poster.meter()),
            (None, queue) => queue.as_mut().map(|queue| Meter::Host(std::slice::from_mut(queue))),
        }
    }

    /// The queue to which work requests are posted.
    pub(crate) fn sender(&self) -> Option<&MappedQueue> {
        self.poster.as_ref().map(|queue| queue.mapped()).or(self.queue.as_ref())
    }
}

/// Why no other adapter of the node can be a target. `chosen`: --device names an adapter.
pub(crate) fn no_neighbour(chosen: bool) -> String {
    match chosen {
        true => "--device leaves the node's other adapters out".to_owned(),
        false => "this node shows no other adapter".to_owned(),
    }
}

/// Closes a queue, or destroys it with the requests that are in flight. Returns the failure, if any.
pub(crate) fn close_queue(queue: MappedQueue) -> Option<String> {
    closed(queue.close(), MappedQueue::destroy)
}

/// As [`close_queue`], for a queue that a GPU drives.
fn close_gpu_queue(queue: GpuQueue) -> Option<String> {
    closed(queue.close(), |queue| queue.destroy().map_err(Error::from))
}

/// Destroys a queue that was not closed, which flushes the requests in flight.
fn closed<Q>(closed: Result<(), Refused<Q>>, destroy: impl FnOnce(Q) -> Result<(), Error>) -> Option<String> {
    let destroyed = closed.or_else(|Refused { error, queue, .. }| match queue {
        Some(queue) => destroy(*queue),
        None => Err(error),
    });
    destroyed.err().map(text)
}

impl<L: Layer> State for Session<L> {
    fn function(run: Run) -> Option<fn(&mut Self) -> Checked> {
        L::function(run)
    }
}

impl<L: Layer> Session<L> {
    /// A session with no open object.
    pub(crate) fn new(stream: &Stream, request: Request) -> Self {
        Self { progress: stream.progress(), ..Self::silent(request) }
    }

    /// A session with no open object whose progress is not reported.
    pub(crate) fn silent(request: Request) -> Self {
        let progress = Progress::silent();
        let (start, rig) = (L::Start::default(), Rig::new(L::default()));
        Self { request, progress, start, gpu: None, rig, reports: Vec::new() }
    }

    /// Runs `rows` on each adapter in `names`, starting from the result of `objects`. Without adapters, runs them once
    /// without a subject.
    pub(crate) fn adapters(
        &mut self,
        stream: &mut Stream,
        names: &[String],
        objects: impl Fn(&Self, usize) -> L,
        rows: &[&'static Row],
    ) {
        stream.send(&Event::Adapters(names.to_vec()));
        if names.is_empty() {
            self.run(stream, None, rows);
        }
        for (index, name) in names.iter().enumerate() {
            if !self.request.avoid.contains(name) {
                self.rig = Rig::new(objects(self, index));
                self.run(stream, Some(name), rows);
                // Without a valid completion queue they were not reported so far.
                if !self.rig.queues.is_empty() {
                    stream.send(&Event::Queues(self.rig.queues.clone()));
                }
            }
        }
    }

    /// Runs `rows`, for `subject` if there is one.
    pub(crate) fn run(&mut self, stream: &mut Stream, subject: Option<&str>, rows: &[&'static Row]) {
        for row in rows {
            stream.run(&row.check, subject, || row.outcomes(self));
            self.reports.drain(..).for_each(|report| stream.send(&report));
        }
    }
}

/// The outcome of a check whose prerequisite is not open. The needs that checks declare rule this out.
pub(crate) fn missing(what: &str) -> Outcomes {
    Outcome::unknown(format!("{what} is not open in this process")).into()
}

/// The outcome if no adapter has the name that `--device` gives. `names` says what it must be.
pub(crate) fn not_named(wanted: &str, found: &[String], names: &str) -> Outcome {
    Outcome::fail(format!("no adapter is named {wanted}; found: {}", found.join(", ")))
        .expects(format!("an adapter named {wanted}"), format!("--device must name {names}"))
        .fix(
            format!(
                "name an adapter that was found (such as --device {}), or omit --device to use all",
                found.first().map(String::as_str).unwrap_or_default()
            ),
            Party::Caller,
        )
}

/// The object in `object`, or [`missing`].
pub(crate) fn open<'a, T>(object: &'a Option<T>, what: &str) -> Result<&'a T, Outcomes> {
    object.as_ref().ok_or_else(|| missing(what))
}

/// The numbers by which a work-queue entry names its target.
pub(crate) fn describe_peer(peer: &Peer) -> String {
    let (handle, pair, key) = (peer.address_handle.get(), peer.queue_pair.get(), peer.queue_key.get());
    format!("address handle {handle}, queue pair {pair}, queue key {key:#x}")
}

/// An error's text, for `map_err`.
pub(crate) fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
