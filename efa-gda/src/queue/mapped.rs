//! The queue itself: what it owns, in which order that goes, and when it refuses to.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_gda_sys::device::{
    EFA_GDA_INBOX_ENTRY, EFA_GDA_LOCK_STATE_BITS, EFA_GDA_NOT_RUN, EFA_GDA_PROXY_STOPPED,
    EFA_GDA_SQ_INLINE_WRITE, efa_gda_inbox, efa_gda_queue, efa_gda_sq,
};
use efa_gda_wire::{LocalKey, Peer, ProcessingHints, QueuePairNumber};

use super::CloseError;
use super::backing::{Backing, Libfabric};
use super::counters::{Counters, CountersError, device_counters};
use super::geometry::{Geometry, geometry};
use crate::doorbell::{Alarm, Registration};
use crate::executor::{DeviceError, outcome};
use crate::exposure::{Exposure, ExposureError};
use crate::fabric::{self, Buffer, Enabled, Endpoint, FabricAddress, GdaOps, Limits};
use crate::polling::Unclaimable;
use crate::verbs;

/// Why no queue could be made of an endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A call into libfabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// A call into rdma-core failed, or what it exposes breaks a rule.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// What the endpoint exposes breaks a rule.
    #[error(transparent)]
    Exposure(#[from] ExposureError),
    /// Another queue polls the completion queue.
    #[error(
        "the completion queue is polled by another mapped queue; each needs its own: open one more, and bind \
         the endpoint to that"
    )]
    CompletionQueueTaken,
    /// Other endpoints complete on the completion queue.
    #[error(
        "{endpoints} endpoints complete on the completion queue, and a mapped queue would take the completions of all: \
         open one for this endpoint alone"
    )]
    CompletionQueueShared {
        /// Endpoints, or queue pairs, that complete on it.
        endpoints: usize,
    },
    /// The completion queue would overrun: requests in flight may complete before anyone polls.
    #[error(
        "the completion queue holds {completions} completions and the send queue {requests} requests; open a \
         completion queue of at least {requests}"
    )]
    ShallowCompletionQueue {
        /// Completions that it holds.
        completions: u32,
        /// Requests that may be in flight.
        requests: u32,
    },
    /// The queue cannot go by its endpoint's counters.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// No memory for completions of receives.
    #[error("{bytes} bytes for completions of receives cannot be allocated; open a smaller completion queue")]
    NoMemory {
        /// Bytes needed.
        bytes: usize,
    },
}

impl From<Unclaimable> for QueueError {
    fn from(why: Unclaimable) -> Self {
        match why {
            Unclaimable::Taken => Self::CompletionQueueTaken,
            Unclaimable::Shared(endpoints) => Self::CompletionQueueShared { endpoints },
        }
    }
}

/// Stops every wait on a queue, from any thread.
#[derive(Clone, Debug, Default)]
pub struct AbortFlag(Arc<AtomicU32>);

impl AbortFlag {
    /// Ends waits with [`DeviceError::Aborted`], now and until [`Self::lower`], which
    /// poisons the queue: what it waited for may still come.
    pub fn raise(&self) {
        swap_word(&self.0, 0, 1);
    }

    /// Lets waits run again; not those of a queue that nobody rings for.
    pub fn lower(&self) {
        swap_word(&self.0, 1, 0);
    }
}

impl Alarm for AbortFlag {
    fn raise(&self, status: u32) {
        self.0.store(status, Ordering::Release);
    }
}

/// Raises or lowers an abort word, where it does not hold an alarm.
pub(super) fn swap_word(word: &AtomicU32, from: u32, to: u32) {
    // Whatever else it holds stays.
    let _ = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
}

/// A queue that kernels post to: through libfabric, or through rdma-core alone
/// ([`MappedQueue::over_verbs`]). Dropped, it closes its endpoint first and deregisters what was in
/// flight after that.
#[derive(Debug)]
pub struct MappedQueue<B: Backing = Libfabric> {
    /// Before the endpoint: the proxy touches its doorbell and its ring. None: the device rings.
    pub(super) served: Option<Arc<Registration>>,
    /// First of the rest, so that it is the first to go: the queue pair is destroyed before the struct that
    /// describes it, and before memory that the adapter may reach (which it retains).
    pub(super) backing: B,
    /// What it goes by in place of the completion queue.
    pub(super) counters: Option<Counters>,
    exposure: Exposure,
    number: QueuePairNumber,
    /// The address that kernels receive. Only the engine writes it once it is made.
    shared: Box<UnsafeCell<efa_gda_queue>>,
    /// Read by the engine through the struct's pointer, so it goes after the struct.
    abort: AbortFlag,
    /// Where the engine leaves completions of receives; likewise.
    pub(super) inbox: Option<Buffer>,
    /// Completions of receives that were lost and told.
    pub(super) lost: u32,
}

/// How much one request of a queue carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// Bytes of a send.
    pub message: u64,
    /// Bytes of one entry of an RDMA read or write; 0 where the adapter has none. A longer put takes
    /// several.
    pub rdma: u64,
    /// Bytes of an inline send.
    pub inline_send: u64,
    /// Bytes of an inline write; 0 where the queue's entries carry none.
    pub inline_write: u64,
    /// Receives that may be posted at once; 0 where the queue takes none.
    pub receives: u32,
    /// Completions of receives that are kept until they are taken.
    pub inbox: u32,
}

// SAFETY: the struct is plain memory that no thread owns. The engine's code changes it only during
// a call that borrows the queue exclusively.
unsafe impl<B: Backing + Send> Send for MappedQueue<B> {}
// SAFETY: through a shared reference the struct is only read, word by word, as a snapshot.
unsafe impl<B: Backing + Sync> Sync for MappedQueue<B> {}

impl MappedQueue {
    /// Makes a queue of an endpoint for code on this host's CPU. `ops` are those of its domain.
    ///
    /// # Errors
    /// [`QueueError`]; the endpoint is then closed.
    pub fn new(endpoint: Endpoint<Enabled>, ops: &GdaOps) -> Result<Self, QueueError> {
        let queues = ops.query_qp_wqs(&endpoint)?;
        let completions = ops.query_cq(endpoint.send_completions())?;
        let exposure = Exposure::new(queues.send, queues.receive, completions)?;
        // Its own address leads an endpoint to itself; the number is the one peers send to.
        let own = endpoint.address_vector().insert(&endpoint.address()?)?;
        let number = ops.query_addr(&endpoint, own)?.queue_pair;
        endpoint.send_completions().claim()?;
        let limits = endpoint.limits();
        let same = endpoint.send_completions().as_ptr() == endpoint.receive_completions().as_ptr();
        let backing = Libfabric { endpoint, ops: ops.clone() };
        Self::over(backing, exposure, limits, number, same)
    }

    /// The endpoint, for its address and its limits.
    pub fn endpoint(&self) -> &Endpoint<Enabled> {
        &self.backing.endpoint
    }

    /// A peer by the raw address that its endpoint gave, for entries that go to it.
    ///
    /// # Errors
    /// [`fabric::Error::AddressLength`], [`fabric::Error::AddressRefused`], or the errors of [`GdaOps::query_addr`].
    pub fn insert_peer(&self, address: &[u8]) -> fabric::Result<Peer> {
        self.peer(self.endpoint().address_vector().insert(address)?)
    }

    /// A peer that is in the endpoint's address vector.
    ///
    /// # Errors
    /// Those of [`GdaOps::query_addr`].
    pub fn peer(&self, address: FabricAddress) -> fabric::Result<Peer> {
        self.backing.ops.query_addr(&self.backing.endpoint, address)
    }
}

impl<B: Backing> MappedQueue<B> {
    /// Makes a queue of something whose completion queue was claimed for it. `receives`: whether
    /// receives complete there too.
    pub(super) fn over(
        backing: B,
        exposure: Exposure,
        limits: Limits,
        number: QueuePairNumber,
        receives: bool,
    ) -> Result<Self, QueueError> {
        let (completions, requests) = (exposure.cq.num_entries, exposure.sq.num_entries);
        if completions < requests {
            return Err(QueueError::ShallowCompletionQueue { completions, requests });
        }
        if !exposure.completions_cover_rings() {
            tracing::warn!(
                completions = exposure.cq.num_entries,
                send = exposure.sq.num_entries,
                receive = exposure.rq.num_entries,
                "the completion queue is shallower than the rings that complete on it"
            );
        }
        let abort = AbortFlag::default();
        let word = abort.0.as_ptr();
        let hints = ProcessingHints::NONE;
        let mut shared = geometry(&Geometry { exposure, limits, number, hints, receives, abort: word });
        // As many as the completion queue holds: who leaves more untaken loses them there as well.
        let entries = if shared.rq.num_entries == 0 { 0 } else { exposure.cq.num_entries };
        let bytes = entries as usize * EFA_GDA_INBOX_ENTRY as usize;
        let inbox = match entries {
            0 => None,
            _ => Some(Buffer::zeroed(bytes).ok_or(QueueError::NoMemory { bytes })?),
        };
        if let Some(inbox) = &inbox {
            shared.inbox = efa_gda_inbox { entries: inbox.as_ptr(), num_entries: entries, reserved: 0 };
        }
        let shared = Box::new(UnsafeCell::new(shared));
        Ok(Self { served: None, backing, counters: None, exposure, number, shared, abort, inbox, lost: 0 })
    }

    /// The queue, with hints for every entry from now on.
    #[must_use]
    pub fn with_hints(mut self, hints: ProcessingHints) -> Self {
        self.shared.get_mut().hints = hints.bits().into();
        self
    }

    /// How much one request carries, by the struct that kernels receive.
    pub fn limits(&self) -> QueueLimits {
        let queue = self.shared.get();
        // SAFETY: the struct lives as long as the queue, and its geometry is constant.
        let (sq, rq, inbox) = unsafe { ((*queue).sq, (*queue).rq, (*queue).inbox) };
        // SAFETY: as above.
        let (message, rdma, inline) =
            unsafe { ((*queue).max_msg_size, (*queue).max_rdma_size, (*queue).max_inline) };
        let wide = sq.flags & EFA_GDA_SQ_INLINE_WRITE != 0;
        QueueLimits {
            message: message.into(),
            rdma,
            inline_send: inline.into(),
            inline_write: if wide { inline.into() } else { 0 },
            receives: rq.num_entries,
            inbox: inbox.num_entries,
        }
    }

    /// The struct that a kernel receives. Its geometry is constant; the rest is the engine's.
    /// Valid while the queue lives.
    pub fn as_ptr(&self) -> NonNull<efa_gda_queue> {
        NonNull::new(self.shared.get()).expect("a box is not null")
    }

    /// What the endpoint exposes.
    pub fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    /// The endpoint's own queue pair.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// Stops this queue's waits.
    pub fn abort_flag(&self) -> AbortFlag {
        self.abort.clone()
    }

    /// The key of a region, for entries of this queue.
    ///
    /// # Errors
    /// Those of [`GdaOps::get_mr_lkey`].
    pub fn local_key(&self, region: &B::Region) -> fabric::Result<LocalKey> {
        self.backing.local_key(region)
    }

    /// Keeps a region until the endpoint is closed, for a kernel that posts entries of its own with
    /// the key returned.
    ///
    /// # Errors
    /// Those of [`GdaOps::get_mr_lkey`].
    pub fn keep(&mut self, region: &B::Region) -> fabric::Result<LocalKey> {
        let key = self.local_key(region)?;
        self.backing.retain(region.clone());
        Ok(key)
    }

    /// Requests that were rung and have not completed; none where more completed than were rung,
    /// which only a device that completes what nobody asked for brings about. A snapshot.
    pub fn in_flight(&self) -> u32 {
        let queue = self.shared.get();
        // SAFETY: the struct lives as long as the queue; words are read one by one, volatile,
        // because device code may be changing them. Completed first: what is rung and completed
        // between the two reads then counts as in flight, not as completed before it was rung.
        let (completed, rung) = unsafe {
            let completed = (&raw const (*queue).completion.completed).read_volatile();
            (completed, (&raw const (*queue).lock.doorbell_index).read_volatile())
        };
        outstanding(rung, completed)
    }

    /// What poisoned the queue, if anything did.
    pub fn poison(&self) -> Option<DeviceError> {
        // SAFETY: as in `in_flight`.
        let status = unsafe { (&raw const (*self.shared.get()).error.poison).read_volatile() };
        outcome(status).err().or_else(|| Some(self.served.as_ref()?.ended()?.error()))
    }

    /// Closes the queue in order: nothing may be in flight, or posted and not rung for.
    ///
    /// # Errors
    /// [`CloseError::Busy`] and [`CloseError::Unrung`], with the queue, while something is;
    /// [`CloseError::Abandoned`] where that is not known; [`CloseError::Destroy`] where the endpoint could not
    /// be closed.
    pub fn close(self) -> Result<(), CloseError<B>> {
        if held(&self.state()) && self.poison().is_none() {
            return Err(CloseError::Abandoned { queue: Box::new(self) });
        }
        let in_flight = self.in_flight();
        if in_flight != 0 {
            return Err(CloseError::Busy { queue: Box::new(self), in_flight });
        }
        let entries = unrung(&self.state());
        if entries != 0 && self.poison().is_none() {
            return Err(CloseError::Unrung { queue: Box::new(self), entries });
        }
        self.destroy().map_err(CloseError::Destroy)
    }

    /// Destroys the endpoint whatever is in flight, and deregisters what the queue kept after that.
    /// The way out for a poisoned queue.
    ///
    /// # Errors
    /// The answer of the layer below where the endpoint could not be closed; what it refers to then
    /// stays allocated for the life of the process.
    pub fn destroy(mut self) -> Result<(), B::Error> {
        // Rings what was posted, and lets go of the endpoint's memory.
        self.let_go();
        self.backing.close()
    }

    /// A copy of the struct: its geometry, and the engine's words one by one as they are.
    pub(crate) fn state(&self) -> efa_gda_queue {
        // SAFETY: as in `in_flight`; the copy may mix moments while device code runs.
        unsafe { self.shared.get().read_volatile() }
    }

    /// Takes over the engine's words from a copy of the struct that a GPU worked on.
    pub(super) fn adopt(&mut self, state: &efa_gda_queue) {
        let mine = self.shared.get_mut();
        mine.reserve = state.reserve;
        mine.lock = state.lock;
        mine.completion = state.completion;
        mine.error = state.error;
        mine.receive = state.receive;
    }

    /// Counts what waits in the inbox as lost.
    pub(super) fn lose_inbox(&mut self) {
        let mine = self.shared.get_mut();
        let waiting = mine.completion.inboxed.wrapping_sub(mine.receive.taken);
        mine.receive.taken = mine.completion.inboxed;
        mine.completion.lost = mine.completion.lost.wrapping_add(waiting);
    }

    /// Lets go of a proxy in order, so that the queue can be rung otherwise.
    pub(super) fn let_go(&mut self) {
        if let Some(served) = self.served.take() {
            let raised = self.raised();
            served.detach();
            self.lower_alarm(raised);
        }
    }

    /// What the abort word holds.
    pub(super) fn raised(&self) -> u32 {
        self.abort.0.load(Ordering::Acquire)
    }

    /// Has it hold again what it held before a proxy let go in order, which is no alarm where somebody
    /// else rings.
    pub(super) fn lower_alarm(&self, before: u32) {
        swap_word(&self.abort.0, EFA_GDA_PROXY_STOPPED, before);
    }

    /// Changes where device code writes entries and rings.
    pub(super) fn set_send_queue(&mut self, sq: efa_gda_sq) {
        self.shared.get_mut().sq = sq;
    }

    /// Lets device code go by counters.
    pub(super) fn set_counters(&mut self, counters: Counters, wrap: u64) {
        self.shared.get_mut().counters = device_counters(counters.words, wrap);
        self.counters = Some(counters);
    }

    /// Takes the queue out of service where the engine's words are lost.
    pub(super) fn poison_lost(&mut self) {
        self.shared.get_mut().error.poison = EFA_GDA_NOT_RUN;
    }

    /// Keeps `region` for as long as the adapter may reach it, where that is longer than a call.
    pub(super) fn settle(&mut self, region: &B::Region) {
        if self.in_flight() != 0 || self.poison().is_some() {
            self.backing.retain(region.clone());
        }
    }
}

/// How far `rung` is ahead of `completed`, counters modulo 2^32; 0 where it is behind.
pub(crate) fn outstanding(rung: u32, completed: u32) -> u32 {
    match rung.wrapping_sub(completed) {
        ahead if ahead < 1 << 31 => ahead,
        _ => 0,
    }
}

/// Whether somebody has the turn. Where no kernel runs and nothing is poisoned, that is one that owned the
/// queue and did not give it back.
pub(super) fn held(state: &efa_gda_queue) -> bool {
    state.reserve.word << EFA_GDA_LOCK_STATE_BITS != state.lock.serving
}

/// Entries that have slots and that nobody rang for.
pub(super) fn unrung(state: &efa_gda_queue) -> u32 {
    outstanding(state.reserve.word as u32, state.lock.doorbell_index)
}

#[cfg(test)]
mod tests {
    use super::outstanding;

    #[test]
    fn what_is_in_flight_is_counted_across_the_wrap() {
        assert_eq!((outstanding(3, u32::MAX), outstanding(7, 7), outstanding(9, 7)), (4, 0, 2));
    }

    #[test]
    fn nothing_is_in_flight_where_more_completed_than_was_rung() {
        assert_eq!((outstanding(7, 8), outstanding(u32::MAX, 2)), (0, 0));
    }
}
