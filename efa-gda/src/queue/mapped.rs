//! The mapped queue: what it owns, in which order that is released, and when it refuses to be closed.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use efa_gda_sys::device::{
    EFA_GDA_INBOX_ENTRY, EFA_GDA_SQ_INLINE_WRITE, efa_gda_inbox, efa_gda_queue, efa_gda_requests, efa_gda_sq,
};
use efa_gda_wire::{LocalKey, Peer, QueuePairNumber};

use super::backing::Backing;
use super::counters::{Counters, device_counters};
use super::geometry::geometry;
use super::words::{doorbell_index, outstanding, refuse_unfinished};
use super::{AbortFlag, StoreWidth};
use crate::doorbell::{End, Registration};
use crate::error::{Error, Refused, Result};
use crate::exposure::Exposure;
#[cfg(feature = "verbs")]
use crate::fabric::error::address_length;
use crate::fabric::{Buffer, Endpoint, GdaOps, Limits};
use crate::memory::Region;
use crate::status::{DeviceError, outcome};
#[cfg(feature = "verbs")]
use crate::verbs::QueuePair;

/// A queue that kernels post to. It owns an endpoint of libfabric, or with the feature `verbs` a queue pair of
/// rdma-core alone.
///
/// A drop closes the endpoint first. Regions of requests in flight are deregistered after that.
///
/// ```
/// # efa_gda_test_support::soft::example();
/// use efa_gda::fabric::{Access, Bindings, Buffer, Fabric, Library, Query};
/// use efa_gda::queue::{MappedQueue, WorkRequest};
///
/// let library = Library::load()?;
/// let info = Query::new().first(&library)?;
/// let domain = Fabric::open(&library, &info)?.domain(&info)?;
/// let addresses = domain.address_vector(16)?;
/// let completions = domain.completion_queue(info.completions())?;
/// let endpoint = domain.endpoint(&info, Bindings::shared(&addresses, &completions))?;
/// let mut queue = MappedQueue::new(endpoint, &domain.gda_ops()?)?;
/// // The queue is its own peer.
/// let peer = queue.insert_peer(&queue.address()?)?;
///
/// let source = domain.register(Buffer::zeroed(4096).ok_or("no memory")?, Access::WRITE)?;
/// let target = domain.register(Buffer::zeroed(4096).ok_or("no memory")?, Access::REMOTE_WRITE)?;
/// source.buffer().ok_or("no buffer")?.write(0, b"hello")?;
/// queue.execute(&WorkRequest::write(peer, &source, target.remote()))?;
///
/// let mut arrived = [0; 5];
/// target.buffer().ok_or("no buffer")?.read(0, &mut arrived)?;
/// assert_eq!(&arrived, b"hello");
/// queue.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MappedQueue {
    /// Dropped before the endpoint, because the proxy accesses the endpoint's doorbell and ring. None if the device
    /// rings.
    pub(crate) registration: Option<Arc<Registration>>,
    /// Dropped before the fields below: the queue pair must be destroyed before the struct that describes it, and
    /// before memory that the adapter may access (which the backing retains).
    pub(crate) backing: Backing,
    /// The counters that replace the completion queue, if any.
    pub(crate) counters: Option<Counters>,
    exposure: Exposure,
    number: QueuePairNumber,
    store_width: StoreWidth,
    /// Whether the adapter executes RDMA reads.
    reads: bool,
    /// The struct whose address kernels receive. After construction the device library writes it; the host changes it
    /// only through an exclusive borrow.
    shared: Box<UnsafeCell<efa_gda_queue>>,
    /// The device library reads it through a pointer in the struct, so it must outlive the struct.
    abort: AbortFlag,
    /// Memory in which the device library stores completions of receives; must outlive the struct too.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "device code accesses it by its address"))]
    pub(crate) inbox: Option<Buffer>,
    /// The request table, to which the struct points as well.
    pub(crate) request_table: Option<Buffer>,
    /// Lost completions of receives that were reported to the caller, modulo 2^32.
    pub(crate) reported_lost: u32,
}

/// The limits of one request of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// Bytes of a send.
    pub message: u64,
    /// Bytes of one entry of an RDMA read or write; 0 if the adapter has no RDMA. A longer request takes several
    /// entries.
    pub rdma: u64,
    /// Whether the adapter executes RDMA reads.
    pub reads: bool,
    /// Bytes of an inline send.
    pub inline_send: u64,
    /// Bytes of an inline write; 0 if the queue's entries carry none.
    pub inline_write: u64,
    /// Receives that may be posted at once; 0 if the queue takes none.
    pub receives: u32,
    /// Completions of receives that the inbox holds.
    pub inbox: u32,
}

// SAFETY: the struct is plain memory that is tied to no thread. The device library changes it only during a call that
// borrows the queue exclusively.
unsafe impl Send for MappedQueue {}
// SAFETY: through a shared reference the struct is only read, word by word, as a snapshot.
unsafe impl Sync for MappedQueue {}

/// The other fields may be sent and shared by themselves.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<(Backing, Option<Counters>, Option<Arc<Registration>>, Option<Buffer>, Exposure, AbortFlag)>(
    );
};

impl MappedQueue {
    /// Maps an endpoint for code on this host's CPU. `ops` must be those of the endpoint's domain.
    ///
    /// # Errors
    /// [`Error`]; the endpoint is then closed.
    pub fn new(endpoint: Endpoint, ops: &GdaOps) -> Result<Self> {
        let queues = ops.query_qp_wqs(&endpoint)?;
        let completions = ops.query_cq(endpoint.send_completions())?;
        let exposure = Exposure::new(queues.send, queues.receive, completions)?;
        // The endpoint's own address resolves to the queue pair number that peers send to.
        let own_address = endpoint.address_vector().insert(&endpoint.address()?)?;
        let number = ops.query_addr(&endpoint, own_address)?.queue_pair;
        endpoint.send_completions().claim()?;
        let limits = endpoint.limits();
        let receives = endpoint.send_completions().as_ptr() == endpoint.receive_completions().as_ptr();
        let backing = Backing::Libfabric { endpoint, ops: ops.clone() };
        Self::from_parts(backing, exposure, limits, number, receives)
    }

    /// Maps a queue pair of rdma-core for code on this host's CPU. It cannot use completion counters
    /// ([`Self::with_counters`]).
    ///
    /// # Errors
    /// [`Error`]; the queue pair is then destroyed.
    #[cfg(feature = "verbs")]
    pub fn over_verbs(pair: QueuePair) -> Result<Self> {
        let exposure = pair.exposure()?;
        let limits = pair.domain().context().limits()?;
        pair.completions().claim()?;
        let number = pair.number();
        Self::from_parts(Backing::RdmaCore(pair), exposure, limits, number, true)
    }

    /// Returns the endpoint, if the queue is one of libfabric.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match &self.backing {
            Backing::Libfabric { endpoint, .. } => Some(endpoint),
            #[cfg(feature = "verbs")]
            Backing::RdmaCore(_) => None,
        }
    }

    /// Whether RDMA writes with immediate data consume receives of this queue.
    pub fn writes_use_receives(&self) -> bool {
        match &self.backing {
            Backing::Libfabric { endpoint, .. } => endpoint.writes_use_receives(),
            #[cfg(feature = "verbs")]
            Backing::RdmaCore(pair) => pair.writes_use_receives(),
        }
    }

    /// Returns the raw address of the queue, which a peer inserts ([`Self::insert_peer`]): 32 bytes in the form of
    /// libfabric's efa provider, also for a queue of rdma-core.
    ///
    /// # Errors
    /// Those of [`Endpoint::address`], or of `QueuePair::address`.
    pub fn address(&self) -> Result<Vec<u8>> {
        match &self.backing {
            Backing::Libfabric { endpoint, .. } => Ok(endpoint.address()?),
            #[cfg(feature = "verbs")]
            Backing::RdmaCore(pair) => Ok(pair.address()?.to_vec()),
        }
    }

    /// Inserts the raw address of a peer and returns the peer, for entries that name it. The peer is valid while the
    /// queue lives.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for an address of another length, or that the library does not
    /// accept; other errors of the library.
    pub fn insert_peer(&self, address: &[u8]) -> Result<Peer> {
        match &self.backing {
            Backing::Libfabric { endpoint, ops } => {
                let address = endpoint.address_vector().insert(address)?;
                Ok(ops.query_addr(endpoint, address)?)
            }
            #[cfg(feature = "verbs")]
            Backing::RdmaCore(pair) => {
                let (length, expected) = (address.len(), QueuePair::ADDRESS_BYTES);
                let address = address.try_into();
                Ok(pair.peer(address.map_err(|_| address_length(length, expected))?)?)
            }
        }
    }

    /// Maps a backing whose completion queue was claimed for this queue. `receives` says whether receives complete on
    /// that completion queue too.
    pub(super) fn from_parts(
        backing: Backing,
        exposure: Exposure,
        limits: Limits,
        number: QueuePairNumber,
        receives: bool,
    ) -> Result<Self> {
        let (completions, requests) = (exposure.cq.num_entries, exposure.sq.num_entries);
        let receives_there = if receives { exposure.rq.num_entries } else { 0 };
        // Both rings have at most 32768 entries.
        if completions < requests + receives_there {
            return Err(Error::argument(format!(
                "the completion queue has {completions} entries, and up to {} may be written before one is read \
                 ({requests} of the send queue, {receives_there} of the receive queue)",
                requests + receives_there
            ))
            .with_hint(
                "open a completion queue of at least as many entries, or give receives another completion queue",
            ));
        }
        let abort = AbortFlag::new(Box::new(AtomicU32::new(0)));
        let word = abort.word().as_ptr();
        let mut shared = geometry(exposure, limits, number, receives, word);
        // As many entries as the completion queue: more unread completions would overrun the completion queue anyway.
        let entries = if shared.rq.num_entries == 0 { 0 } else { exposure.cq.num_entries };
        let bytes = entries as usize * EFA_GDA_INBOX_ENTRY as usize;
        let inbox = match entries {
            0 => None,
            _ => Some(Buffer::zeroed(bytes).ok_or_else(|| {
                Error::out_of_memory(bytes).within("the inbox for completions of receives")
            })?),
        };
        if let Some(inbox) = &inbox {
            shared.inbox = efa_gda_inbox { entries: inbox.as_ptr(), num_entries: entries, reserved: 0 };
        }
        let shared = Box::new(UnsafeCell::new(shared));
        Ok(Self {
            registration: None,
            backing,
            counters: None,
            exposure,
            number,
            store_width: StoreWidth::Auto,
            reads: limits.reads,
            shared,
            abort,
            inbox,
            request_table: None,
            reported_lost: 0,
        })
    }

    /// Sets the width of the stores that write entries, for the GPU that the queue is mapped into after this call, and
    /// for a doorbell proxy that it is registered with after this call. The host executor stores 8 bytes at a time.
    #[must_use]
    pub fn with_store_width(mut self, width: StoreWidth) -> Self {
        self.store_width = width;
        self
    }

    /// Returns the width of the stores that write entries ([`Self::with_store_width`]).
    pub fn store_width(&self) -> StoreWidth {
        self.store_width
    }

    /// Returns the limits of one request, from the struct that kernels receive.
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
            reads: self.reads,
            inline_send: inline.into(),
            inline_write: if wide { inline.into() } else { 0 },
            receives: rq.num_entries,
            inbox: inbox.num_entries,
        }
    }

    /// Returns the address of the struct that a kernel receives, which never changes and is valid while the queue
    /// lives. The struct's geometry is constant while device code can use the queue: it changes only with a call on the
    /// host, such as [`Self::set_doorbell`]. Only the device library may write the other fields.
    pub fn as_ptr(&self) -> NonNull<efa_gda_queue> {
        NonNull::new(self.shared.get()).expect("a box is not null")
    }

    /// Returns the rings and doorbells that the endpoint exposes.
    pub fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    /// Returns the number of the endpoint's queue pair.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// Returns the flag that ends this queue's waits.
    pub fn abort_flag(&self) -> AbortFlag {
        self.abort.clone()
    }

    /// Returns the key of a region, for entries of this queue.
    ///
    /// # Errors
    /// Those of [`GdaOps::get_mr_lkey`].
    pub fn local_key(&self, region: impl Into<Region>) -> Result<LocalKey> {
        self.backing.local_key(&region.into())
    }

    /// Retains a region until the endpoint is destroyed, for kernels that post their own entries with the returned key.
    ///
    /// # Errors
    /// Those of [`GdaOps::get_mr_lkey`].
    pub fn retain(&mut self, region: impl Into<Region>) -> Result<LocalKey> {
        let region = region.into();
        let key = self.backing.local_key(&region)?;
        self.backing.regions().retain(region);
        Ok(key)
    }

    /// Returns the number of requests whose doorbell was rung and that have not completed, as a snapshot. A group stores
    /// its doorbell producer index when its turn ends, and an owner when it closes its `Sender`. So the number is too low
    /// while such a group has rung, and after a kernel that failed or did not close its `Sender`; it is 0 if more
    /// completed than the index shows as rung.
    pub fn in_flight(&self) -> u32 {
        let queue = self.shared.get();
        // SAFETY: the struct lives as long as the queue. Device code may be changing the words, so each is read
        // volatile on its own. `completed` is read first: a request that completes between the two reads then counts as
        // in flight.
        let (completed, doorbell_index) = unsafe {
            let completed = (&raw const (*queue).completion.completed).read_volatile();
            (completed, doorbell_index((&raw const (*queue).turn.word).read_volatile()))
        };
        outstanding(doorbell_index, completed)
    }

    /// Returns the error that poisoned the queue, if it is poisoned.
    pub fn poison(&self) -> Option<DeviceError> {
        // SAFETY: as in `in_flight`.
        let status = unsafe { (&raw const (*self.shared.get()).error.poison).read_volatile() };
        outcome(status).err().or_else(|| Some(self.registration.as_ref()?.ended()?.error()))
    }

    /// Closes the queue, if no request is in flight and the doorbell was rung for every entry. On a poisoned queue,
    /// entries that were not rung for do not prevent the close.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy), with the queue: requests are in flight, entries await a doorbell, or a
    /// group has a ticket, so that neither is known. Other errors if the endpoint could not be closed.
    pub fn close(self) -> Result<(), Refused<Self>> {
        match refuse_unfinished(&self.state(), self.poison().is_some()) {
            Ok(()) => self.destroy().map_err(Refused::gone),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// Destroys the endpoint even if requests are in flight, and deregisters the retained regions after that. A
    /// poisoned queue with requests in flight can only be released this way.
    ///
    /// # Errors
    /// The error of the layer below if the endpoint could not be closed. What the endpoint refers to then stays
    /// allocated until the process ends.
    pub fn destroy(mut self) -> Result<()> {
        // The proxy rings for what was posted before, and stops accessing the endpoint's memory. A bad record is
        // logged.
        let _ = self.detach_proxy();
        match self.backing {
            Backing::Libfabric { endpoint, .. } => Ok(endpoint.close()?),
            #[cfg(feature = "verbs")]
            Backing::RdmaCore(pair) => Ok(pair.close()?),
        }
    }

    /// Returns a copy of the struct that kernels work on. While device code runs, the words that it writes may be of
    /// different moments.
    pub fn state(&self) -> efa_gda_queue {
        // SAFETY: as in `in_flight`.
        unsafe { self.shared.get().read_volatile() }
    }

    /// Detaches the queue from its doorbell proxy. A registration that ended otherwise (the record was bad, or the
    /// proxy was stopped) stays, so that [`Self::poison`] returns its error.
    pub(crate) fn detach_proxy(&mut self) -> Result<(), DeviceError> {
        match self.registration.as_ref().map(|registration| registration.detach()) {
            Some(end @ (End::Stopped | End::Fault(_))) => Err(end.error()),
            Some(End::Detached) | None => {
                self.registration = None;
                Ok(())
            }
        }
    }

    /// Changes where device code writes entries and rings.
    pub(super) fn set_send_queue(&mut self, sq: efa_gda_sq) {
        self.shared.get_mut().sq = sq;
    }

    /// Makes device code use a request table.
    pub(super) fn set_request_table(&mut self, table: Buffer, requests: efa_gda_requests) {
        self.shared.get_mut().requests = requests;
        self.request_table = Some(table);
    }

    /// Makes device code use completion counters.
    pub(super) fn set_counters(&mut self, counters: Counters, wrap: u64) {
        self.shared.get_mut().counters = device_counters(counters.words, wrap);
        self.counters = Some(counters);
    }

    /// Retains `region` until the endpoint is destroyed, if the adapter may still access it.
    pub(super) fn retain_if_in_use(&mut self, region: &Region) {
        if self.in_flight() != 0 || self.poison().is_some() {
            self.backing.regions().retain(region.clone());
        }
    }
}

/// What [`crate::gpu_queue`] changes after a GPU drove the queue.
#[cfg(feature = "cuda")]
impl MappedQueue {
    /// Copies the words of the device library from the struct that a GPU worked on.
    pub(crate) fn copy_engine_state(&mut self, state: &efa_gda_queue) {
        let shared = self.shared.get_mut();
        shared.reserve = state.reserve;
        shared.turn = state.turn;
        shared.completion = state.completion;
        shared.error = state.error;
        shared.receive = state.receive;
        shared.tracking = state.tracking;
    }

    /// Ends waits on the host with the proxy's status, if the proxy no longer rings for the queue. A queue that left a
    /// GPU out of service keeps its ended registration, and [`AbortFlag`] ignored the alarm of that detach.
    pub(crate) fn end_waits_of_proxy(&self) {
        if let Some(end) = self.registration.as_ref().and_then(|registration| registration.ended()) {
            self.abort.end_waits(end);
        }
    }

    /// Takes the request table away, because its contents are lost.
    pub(crate) fn lose_request_table(&mut self) {
        self.shared.get_mut().requests = efa_gda_requests::default();
        self.request_table = None;
    }

    /// Counts all completions in the inbox as lost.
    pub(crate) fn lose_inbox(&mut self) {
        let shared = self.shared.get_mut();
        let waiting = shared.completion.inboxed.wrapping_sub(shared.receive.taken);
        shared.receive.taken = shared.completion.inboxed;
        shared.completion.lost = shared.completion.lost.wrapping_add(waiting);
    }

    /// Poisons the queue because the words of the device library are lost, or a kernel may still change them. An earlier
    /// poison stays.
    pub(crate) fn poison_lost(&mut self) {
        use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OK};
        let poison = &mut self.shared.get_mut().error.poison;
        if *poison == EFA_GDA_OK {
            *poison = EFA_GDA_NOT_RUN;
        }
    }
}
