//! Queue pairs of type SRD, with one type for each of two states, so that a call in the wrong state does not
//! compile.
//!
//! [`Created`] (counters may be attached) → [`Ready`] (the adapter serves it, and its rings can be exposed).
//! Requests are never posted through libibverbs, which keeps its own ring indices.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use efa_gda_sys::verbs::{
    self, efadv_qp_init_attr, efadv_wq_attr, ibv_qp_attach_comp_cntr_attr, ibv_qp_attr, ibv_qp_init_attr_ex,
};
use efa_gda_wire::{EntrySize, Peer, QueueKey, QueuePairNumber};

use super::address::AddressHandle;
use super::context::{Capability, PORT};
use super::counter::attach_bits;
use super::error::{Error, Result};
use super::object::{InLibrary, Object, check, function, inlen, pointer};
use super::{Address, CompletionCounter, CompletionQueue, Context, Library, MemoryRegion, ProtectionDomain};
use crate::exposure::{Exposure, RawWorkQueue};
use crate::memory::{CountedOperations, RetainedRegions};
use crate::polling::Completing;

mod sealed {
    pub trait Sealed {}
}

/// A state of a [`QueuePair`].
pub trait State: sealed::Sealed {}

/// The queue pair exists, but the adapter does not serve it yet.
#[derive(Debug)]
pub enum Created {}
/// The queue pair sends and receives.
#[derive(Debug)]
pub enum Ready {}

impl sealed::Sealed for Created {}
impl sealed::Sealed for Ready {}
impl State for Created {}
impl State for Ready {}

/// The queues that a queue pair's requests complete on. Both must be of the queue pair's adapter.
#[derive(Clone, Copy, Debug)]
pub struct CompletionQueues<'a> {
    /// Receives the completions of requests that the queue pair posts to its send queue.
    pub send: &'a CompletionQueue,
    /// Receives the completions of messages and writes that arrive. May be the same queue.
    pub receive: &'a CompletionQueue,
}

impl<'a> CompletionQueues<'a> {
    /// Uses one completion queue for both, which a mapped queue needs for receives.
    pub fn shared(completions: &'a CompletionQueue) -> Self {
        Self { send: completions, receive: completions }
    }
}

/// Options of a new queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    send_entries: u32,
    receive_entries: u32,
    entry_size: EntrySize,
    unsolicited_writes: bool,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self {
            send_entries: 256,
            receive_entries: 256,
            entry_size: EntrySize::B64,
            unsolicited_writes: false,
        }
    }
}

impl QueuePairOptions {
    /// Options for 256 entries in each queue and 64-byte send entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the least number of send queue entries. rdma-core rounds it up to a power of two.
    pub fn send_entries(mut self, entries: u32) -> Self {
        self.send_entries = entries;
        self
    }

    /// Sets the least number of receive queue entries, of one segment each. 0 counts as 1.
    pub fn receive_entries(mut self, entries: u32) -> Self {
        self.receive_entries = entries;
        self
    }

    /// Sets the size of send entries. 128-byte entries also carry RDMA writes inline; they need rdma-core 63.
    pub fn entry_size(mut self, size: EntrySize) -> Self {
        self.entry_size = size;
        self
    }

    /// Sets whether RDMA writes with immediate from peers consume no receive.
    pub fn unsolicited_writes(mut self, wanted: bool) -> Self {
        self.unsolicited_writes = wanted;
        self
    }

    /// Refuses options that the adapter does not support, because EINVAL would not name the option.
    fn check(&self, context: &Context) -> Result<()> {
        let limits = context.attributes();
        let exceeds = |what, asked, limit| Err(Error::Exceeds { what, asked, limit });
        if self.send_entries > limits.max_send_entries {
            return exceeds("send queue entries", self.send_entries.into(), limits.max_send_entries.into());
        }
        if self.receive_entries > limits.max_receive_entries {
            return exceeds(
                "receive queue entries",
                self.receive_entries.into(),
                limits.max_receive_entries.into(),
            );
        }
        if self.entry_size == EntrySize::B128 {
            context.require(Capability::RdmaWrite)?;
            if !limits.has_wide_entries() {
                let inline = EntrySize::B128.inline_limit() as u64;
                return exceeds("inline bytes", inline, limits.wide_inline_bytes.into());
            }
        }
        if self.unsolicited_writes {
            context.require(Capability::UnsolicitedWriteReceive)?;
        }
        Ok(())
    }
}

/// An SRD queue pair. It is destroyed when it is dropped, before the objects that it refers to.
#[derive(Debug)]
pub struct QueuePair<S: State> {
    object: Object<verbs::ibv_qp, Parents>,
    number: QueuePairNumber,
    queue_key: QueueKey,
    unsolicited_writes: bool,
    state: PhantomData<fn() -> S>,
}

/// Objects that the queue pair refers to. They are dropped after the queue pair is destroyed.
#[derive(Debug)]
struct Parents {
    regions: RetainedRegions<MemoryRegion>,
    /// Handles that requests in flight may name.
    handles: Mutex<Vec<AddressHandle>>,
    counters: Vec<CompletionCounter>,
    _completing: Vec<Completing>,
    send: CompletionQueue,
    receive: CompletionQueue,
    domain: ProtectionDomain,
}

impl InLibrary for Parents {
    fn library(&self) -> &Library {
        self.domain.library()
    }
}

impl QueuePair<Created> {
    /// Creates a queue pair in `domain`.
    ///
    /// # Errors
    /// [`Error::OtherContext`]; [`Error::CompletionQueuePolled`]; [`Error::Exceeds`] or [`Error::AdapterLacks`]
    /// for options that the adapter does not support; [`Error::Call`] where `efadv_create_qp_ex` fails;
    /// [`Error::TooWide`] for a queue pair number that no entry can carry.
    pub fn create(
        domain: &ProtectionDomain,
        completion_queues: CompletionQueues<'_>,
        options: &QueuePairOptions,
    ) -> Result<Self> {
        let CompletionQueues { send, receive } = completion_queues;
        let context = domain.context();
        if !context.is_same(send.context()) || !context.is_same(receive.context()) {
            return Err(Error::OtherContext { what: "completion queue" });
        }
        options.check(context)?;
        let queues = std::iter::once(send).chain((!send.is_same(receive)).then_some(receive));
        let completing = queues.map(CompletionQueue::register_queue_pair).collect::<Result<_>>()?;
        let create = function!(domain.library(), efadv, efadv_create_qp_ex)?;
        let (mut attr, mut efa) = attributes(domain, completion_queues, options);
        let size = inlen(&efa);
        // SAFETY: context, domain and queues are live and of one context; both structures are complete.
        let raw = pointer("efadv_create_qp_ex", unsafe { create(context.raw(), &mut attr, &mut efa, size) })?;
        let parents = Parents {
            regions: RetainedRegions::default(),
            handles: Mutex::default(),
            counters: Vec::new(),
            _completing: completing,
            send: send.clone(),
            receive: receive.clone(),
            domain: domain.clone(),
        };
        // SAFETY: the object was just created, and no other handle to it exists. From here on an error destroys it.
        let object = unsafe { Object::adopt(raw, parents) };
        // SAFETY: libibverbs fills in the number before it returns a queue pair.
        let number = unsafe { (*object.raw()).qp_num };
        let number = u16::try_from(number).map(QueuePairNumber::new).map_err(|_| Error::TooWide {
            what: "queue pair number",
            number: number.into(),
            bits: 16,
        })?;
        let unsolicited_writes = options.unsolicited_writes;
        Ok(Self { object, number, queue_key: QueueKey::new(0), unsolicited_writes, state: PhantomData })
    }

    /// Attaches `counter`, which then counts the completions of `counted` for this queue pair. Each operation
    /// has at most one counter. A mapped queue of this queue pair does not use it.
    ///
    /// # Errors
    /// [`Error::OtherContext`]; [`Error::Call`] where `ibv_qp_attach_comp_cntr` fails.
    pub fn attach(&mut self, counter: &CompletionCounter, counted: CountedOperations) -> Result<()> {
        if !self.context().is_same(counter.context()) {
            return Err(Error::OtherContext { what: "completion counter" });
        }
        let attach = function!(self.library(), ibv, ibv_qp_attach_comp_cntr)?;
        let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: attach_bits(counted) };
        // The queue pair owns the counter before the adapter refers to it, so it never outlives the counter.
        self.object.parents_mut().counters.push(counter.clone());
        // SAFETY: both are live and of one context; the structure is complete.
        let code = unsafe { attach(self.object.raw(), counter.raw(), &mut attr) };
        check("ibv_qp_attach_comp_cntr", code)
    }

    /// Makes the adapter serve the queue pair, which peers then reach with `queue_key`. The adapter retries
    /// sends to a receiver without a posted receive as it does by default.
    ///
    /// # Errors
    /// [`Error::Call`] where `ibv_modify_qp` fails. The queue pair is then destroyed.
    pub fn activate(self, queue_key: QueueKey) -> Result<QueuePair<Ready>> {
        // SAFETY: a plain C structure for which all zeroes is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = verbs::IBV_QPS_INIT;
        attr.port_num = PORT;
        attr.qkey = queue_key.get();
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | verbs::IBV_QP_QKEY;
        self.modify("ibv_modify_qp(INIT)", attr, mask)?;
        attr.qp_state = verbs::IBV_QPS_RTR;
        self.modify("ibv_modify_qp(RTR)", attr, verbs::IBV_QP_STATE)?;
        attr.qp_state = verbs::IBV_QPS_RTS;
        self.modify("ibv_modify_qp(RTS)", attr, verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN)?;
        let Self { object, number, unsolicited_writes, .. } = self;
        Ok(QueuePair { object, number, queue_key, unsolicited_writes, state: PhantomData })
    }

    fn modify(&self, operation: &'static str, mut attr: ibv_qp_attr, mask: u32) -> Result<()> {
        let modify = function!(self.library(), ibv, ibv_modify_qp)?;
        // SAFETY: the queue pair is live; the structure is complete, and only read.
        check(operation, unsafe { modify(self.object.raw(), &mut attr, mask as i32) })
    }
}

/// The attributes of a new queue pair.
fn attributes(
    domain: &ProtectionDomain,
    completion_queues: CompletionQueues<'_>,
    options: &QueuePairOptions,
) -> (ibv_qp_init_attr_ex, efadv_qp_init_attr) {
    let limits = domain.context().attributes();
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: completion_queues.send.raw(),
        recv_cq: completion_queues.receive.raw(),
        qp_type: verbs::IBV_QPT_DRIVER,
        // Every entry requests a completion; the adapter supports nothing else.
        sq_sig_all: 1,
        comp_mask: verbs::IBV_QP_INIT_ATTR_PD,
        pd: domain.raw(),
        ..Default::default()
    };
    attr.cap.max_send_wr = options.send_entries.max(1);
    attr.cap.max_recv_wr = options.receive_entries.max(1);
    attr.cap.max_send_sge = limits.max_send_segments.min(2).into();
    // 1, so that each receive takes one entry of the receive queue. rdma-core 65 divides by this number, so it
    // is never 0.
    attr.cap.max_recv_sge = 1;
    let mut efa =
        efadv_qp_init_attr { driver_qp_type: verbs::EFADV_QP_DRIVER_TYPE_SRD, ..Default::default() };
    let mut flags = 0;
    match options.entry_size {
        EntrySize::B64 => attr.cap.max_inline_data = limits.inline_bytes.into(),
        EntrySize::B128 => {
            attr.cap.max_inline_data = limits.wide_inline_bytes.into();
            flags |= verbs::EFADV_QP_FLAGS_INLINE_WRITE;
        }
    }
    if options.unsolicited_writes {
        flags |= verbs::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
    }
    // The flags are an enumeration of two bits; the field has 16.
    efa.flags = flags as u16;
    (attr, efa)
}

impl QueuePair<Ready> {
    /// Returns what a peer needs to send to the queue pair.
    ///
    /// # Errors
    /// Those of [`Context::gid`].
    pub fn address(&self) -> Result<Address> {
        Ok(Address { gid: self.context().gid()?, queue_pair: self.number, queue_key: self.queue_key })
    }

    /// Returns the checked rings and doorbells, with the completion ring of the send side. The addresses are
    /// valid while the queue pair lives.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`] before rdma-core 59; [`Error::Call`] where `efadv_query_qp_wqs` or
    /// `efadv_query_cq` fails; [`Error::Exposure`] where the rings break a rule.
    pub fn exposure(&self) -> Result<Exposure> {
        let (send, receive) = self.query()?;
        Ok(Exposure::new(send, receive, self.send_completions().query()?)?)
    }

    /// Queries the send and receive queue (`efadv_query_qp_wqs`). The values are not checked.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`], [`Error::Call`].
    pub fn query(&self) -> Result<(RawWorkQueue, RawWorkQueue)> {
        let query = function!(self.library(), efadv, efadv_query_qp_wqs)?;
        // Zeroed: a release that knows fewer fields leaves the rest unchanged.
        let (mut send, mut receive) = (efadv_wq_attr::default(), efadv_wq_attr::default());
        let size = inlen(&send);
        // SAFETY: the queue pair is live; `size` bytes of both structures can be written.
        let code = unsafe { query(self.object.raw(), &mut send, &mut receive, size) };
        check("efadv_query_qp_wqs", code)?;
        Ok((raw(&send), raw(&receive)))
    }

    /// Returns a peer, for entries that are sent to it. Creates one address handle for each adapter, and keeps
    /// it until this queue pair is destroyed.
    ///
    /// # Errors
    /// [`Error::Call`] where `ibv_create_ah` or `efadv_query_ah` fails.
    pub fn peer(&self, address: &Address) -> Result<Peer> {
        let mut handles = self.object.parents().handles.lock().unwrap_or_else(PoisonError::into_inner);
        let known = handles.iter().position(|handle| handle.gid() == address.gid);
        let index = match known {
            Some(index) => index,
            None => {
                handles.push(AddressHandle::create(self.domain(), address.gid)?);
                handles.len() - 1
            }
        };
        Ok(handles[index].peer(address.queue_pair, address.queue_key))
    }

    /// Whether RDMA writes with immediate data consume receives of this queue pair.
    pub(crate) fn writes_use_receives(&self) -> bool {
        !self.unsolicited_writes
    }

    /// Retains `region` until the queue pair is destroyed, for memory that the adapter may still reach when the
    /// caller does not know which requests are in flight.
    pub fn retain(&mut self, region: MemoryRegion) {
        self.object.parents_mut().regions.retain(region);
    }

    /// Retains the region of a posted receive until the receive completes or the queue pair is destroyed.
    pub(crate) fn receive_posted(&mut self, id: u16, region: MemoryRegion) {
        self.object.parents_mut().regions.receive_posted(id, region);
    }

    /// Releases the region of a completed receive.
    pub(crate) fn receive_completed(&mut self, id: u16) {
        self.object.parents_mut().regions.receive_completed(id);
    }
}

impl<S: State> QueuePair<S> {
    /// The queue pair number.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// The completion queue of requests that the queue pair posts to its send queue.
    pub(crate) fn send_completions(&self) -> &CompletionQueue {
        &self.object.parents().send
    }

    /// The completion queue of messages and writes that arrive.
    pub(crate) fn receive_completions(&self) -> &CompletionQueue {
        &self.object.parents().receive
    }

    /// The protection domain of the queue pair.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.object.parents().domain
    }

    /// The adapter of the queue pair.
    pub fn context(&self) -> &Context {
        self.domain().context()
    }

    /// Destroys the queue pair and reports the result. Where it fails, everything that it refers to stays
    /// allocated until the process ends.
    ///
    /// # Errors
    /// [`Error::Call`] where `ibv_destroy_qp` fails.
    pub fn close(self) -> Result<()> {
        self.object.close()
    }

    fn library(&self) -> &Library {
        self.object.parents().library()
    }
}

/// `efadv_wq_caps` and `fi_efa_wq_caps` have the same bits.
const _: () = assert!(verbs::EFADV_WQ_CAPS_64_BIT_REQ_ID == efa_gda_sys::fi::FI_EFA_WQ_CAPS_64_BIT_REQ_ID);

fn raw(attr: &efadv_wq_attr) -> RawWorkQueue {
    RawWorkQueue {
        buffer: attr.buffer,
        entry_size: attr.entry_size,
        num_entries: attr.num_entries,
        doorbell: attr.doorbell,
        max_batch: attr.max_batch,
        caps: attr.caps,
    }
}
