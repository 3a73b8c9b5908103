//! Queue pairs of the type SRD, in two states that are types: what a state does not allow cannot be
//! written.
//!
//! [`Created`] (counters may be attached) → [`Ready`] (the adapter serves it; only now is it
//! exposed). Nobody posts to it through libibverbs, which keeps counters of its own.

use std::marker::PhantomData;

use efa_gda_sys::verbs::{
    self, efadv_qp_init_attr, efadv_wq_attr, ibv_qp_attach_comp_cntr_attr, ibv_qp_attr, ibv_qp_init_attr_ex,
};
use efa_gda_wire::{EntrySize, Peer, QueueKey, QueuePairNumber};

use super::context::{Capability, PORT};
use super::counter::attach_bits;
use super::error::{Error, Result};
use super::object::{InLibrary, Object, check, function, inlen, pointer};
use super::{
    Address, AddressHandle, CompletionCounter, CompletionQueue, Context, Gid, Library, MemoryRegion,
    ProtectionDomain,
};
use crate::exposure::{Exposure, RawWorkQueue};
use crate::memory::{CountedOperations, RetainedRegions};
use crate::polling::Completing;

mod sealed {
    pub trait Sealed {}
}

/// A state of a [`QueuePair`].
pub trait State: sealed::Sealed {}

/// Made; the adapter does not serve it yet.
#[derive(Debug)]
pub enum Created {}
/// Ready to send and to receive.
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

/// What to make a queue pair with.
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
    /// 256 entries in each queue, of 64 bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// At least so many entries in the send queue; rdma-core makes it a power of two.
    pub fn send_entries(mut self, entries: u32) -> Self {
        self.send_entries = entries;
        self
    }

    /// At least so many entries in the receive queue, of one segment each; no fewer than 1.
    pub fn receive_entries(mut self, entries: u32) -> Self {
        self.receive_entries = entries;
        self
    }

    /// Entries of 128 bytes also carry RDMA writes inline. They need rdma-core 63.
    pub fn entry_size(mut self, size: EntrySize) -> Self {
        self.entry_size = size;
        self
    }

    /// RDMA writes with immediate from peers consume no receive.
    pub fn unsolicited_writes(mut self, wanted: bool) -> Self {
        self.unsolicited_writes = wanted;
        self
    }

    /// Refuses what the adapter does not have: EINVAL would not say which.
    fn check(&self, context: &Context) -> Result<()> {
        let has = context.attributes();
        let exceeds = |what, asked, limit| Err(Error::Exceeds { what, asked, limit });
        if self.send_entries > has.max_send_entries {
            return exceeds("send queue entries", self.send_entries.into(), has.max_send_entries.into());
        }
        if self.receive_entries > has.max_receive_entries {
            return exceeds(
                "receive queue entries",
                self.receive_entries.into(),
                has.max_receive_entries.into(),
            );
        }
        if self.entry_size == EntrySize::B128 {
            context.require(Capability::RdmaWrite)?;
            if !has.has_wide_entries() {
                let inline = EntrySize::B128.inline_limit() as u64;
                return exceeds("inline bytes", inline, has.wide_inline_bytes.into());
            }
        }
        if self.unsolicited_writes {
            context.require(Capability::UnsolicitedWriteReceive)?;
        }
        Ok(())
    }
}

/// An SRD queue pair. Destroyed when dropped, before what it refers to.
#[derive(Debug)]
pub struct QueuePair<S: State> {
    object: Object<verbs::ibv_qp, Parents>,
    number: QueuePairNumber,
    queue_key: QueueKey,
    state: PhantomData<fn() -> S>,
}

/// Dropped after the queue pair is destroyed.
#[derive(Debug)]
struct Parents {
    regions: RetainedRegions<MemoryRegion>,
    /// Handles in the entries of requests that may be under way.
    handles: Vec<AddressHandle>,
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
    /// Makes a queue pair in `domain`. Sends complete on `send` and receives on `receive`, which may
    /// be the same.
    ///
    /// # Errors
    /// [`Error::OtherContext`], [`Error::CompletionQueuePolled`], [`Error::Exceeds`], [`Error::AdapterLacks`], or
    /// [`Error::Call`] with the answer of `efadv_create_qp_ex`; [`Error::TooWide`] for a number that no entry can carry.
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
        // SAFETY: context, domain and queues are live and of one context; both structures are whole.
        let raw = pointer("efadv_create_qp_ex", unsafe { create(context.raw(), &mut attr, &mut efa, size) })?;
        let parents = Parents {
            regions: RetainedRegions::default(),
            handles: Vec::new(),
            counters: Vec::new(),
            _completing: completing,
            send: send.clone(),
            receive: receive.clone(),
            domain: domain.clone(),
        };
        // SAFETY: just made, and known to nobody else. From here on an error destroys it.
        let object = unsafe { Object::adopt(raw, parents) };
        // SAFETY: libibverbs fills in the number before it gives a queue pair out.
        let number = unsafe { (*object.raw()).qp_num };
        let number = u16::try_from(number).map(QueuePairNumber::new).map_err(|_| Error::TooWide {
            what: "queue pair number",
            number: number.into(),
            bits: 16,
        })?;
        Ok(Self { object, number, queue_key: QueueKey::new(0), state: PhantomData })
    }

    /// Has `counter` count what `counted` says of this queue pair. Each kind of completion goes to
    /// one counter at most.
    ///
    /// # Errors
    /// [`Error::OtherContext`], or [`Error::Call`] with the answer of `ibv_qp_attach_comp_cntr`.
    pub fn attach(&mut self, counter: &CompletionCounter, counted: CountedOperations) -> Result<()> {
        if !self.context().is_same(counter.context()) {
            return Err(Error::OtherContext { what: "completion counter" });
        }
        let attach = function!(self.library(), ibv, ibv_qp_attach_comp_cntr)?;
        let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: attach_bits(counted) };
        // Owned before the adapter knows it, so that the queue pair never outlives it.
        self.object.parents_mut().counters.push(counter.clone());
        // SAFETY: both are live and of one context; the structure is whole.
        let code = unsafe { attach(self.object.raw(), counter.raw(), &mut attr) };
        check("ibv_qp_attach_comp_cntr", code)
    }

    /// Has the adapter serve it: peers then reach it with `queue_key`. Where the adapter's receivers
    /// have no receive posted, it retries as it does by default.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `ibv_modify_qp`; the queue pair is then destroyed.
    pub fn activate(self, queue_key: QueueKey) -> Result<QueuePair<Ready>> {
        self.into_ready(queue_key, None)
    }

    /// As [`Self::activate`], with a bound for retries towards a receiver that has posted no
    /// receive: 0 to 6 times, or 7 for ever.
    ///
    /// # Errors
    /// As [`Self::activate`], and [`Error::AdapterLacks`] or [`Error::Exceeds`].
    pub fn activate_with_rnr_retry(self, queue_key: QueueKey, retries: u8) -> Result<QueuePair<Ready>> {
        const FOR_EVER: u8 = 7;
        self.context().require(Capability::RnrRetry)?;
        if retries > FOR_EVER {
            let (asked, limit) = (retries.into(), FOR_EVER.into());
            return Err(Error::Exceeds { what: "RNR retries", asked, limit });
        }
        self.into_ready(queue_key, Some(retries))
    }

    fn into_ready(self, queue_key: QueueKey, rnr_retry: Option<u8>) -> Result<QueuePair<Ready>> {
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
        attr.rnr_retry = rnr_retry.unwrap_or(0);
        let retry = if rnr_retry.is_some() { verbs::IBV_QP_RNR_RETRY } else { 0 };
        self.modify("ibv_modify_qp(RTS)", attr, verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN | retry)?;
        Ok(QueuePair { object: self.object, number: self.number, queue_key, state: PhantomData })
    }

    fn modify(&self, operation: &'static str, mut attr: ibv_qp_attr, mask: u32) -> Result<()> {
        let modify = function!(self.library(), ibv, ibv_modify_qp)?;
        // SAFETY: the queue pair is live; the structure is whole, and only read.
        check(operation, unsafe { modify(self.object.raw(), &mut attr, mask as i32) })
    }
}

/// What rdma-core is asked for.
fn attributes(
    domain: &ProtectionDomain,
    completion_queues: CompletionQueues<'_>,
    options: &QueuePairOptions,
) -> (ibv_qp_init_attr_ex, efadv_qp_init_attr) {
    let has = domain.context().attributes();
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: completion_queues.send.raw(),
        recv_cq: completion_queues.receive.raw(),
        qp_type: verbs::IBV_QPT_DRIVER,
        // Every entry asks for a completion; the adapter knows nothing else.
        sq_sig_all: 1,
        comp_mask: verbs::IBV_QP_INIT_ATTR_PD,
        pd: domain.raw(),
        ..Default::default()
    };
    attr.cap.max_send_wr = options.send_entries.max(1);
    attr.cap.max_recv_wr = options.receive_entries.max(1);
    attr.cap.max_send_sge = has.max_send_segments.min(2).into();
    // One, so that entries of the receive queue and receives are the same number. Never 0, by which
    // rdma-core 65 divides.
    attr.cap.max_recv_sge = 1;
    let mut efa =
        efadv_qp_init_attr { driver_qp_type: verbs::EFADV_QP_DRIVER_TYPE_SRD, ..Default::default() };
    let mut flags = 0;
    match options.entry_size {
        EntrySize::B64 => attr.cap.max_inline_data = has.inline_bytes.into(),
        EntrySize::B128 => {
            attr.cap.max_inline_data = has.wide_inline_bytes.into();
            flags |= verbs::EFADV_QP_FLAGS_INLINE_WRITE;
        }
    }
    if options.unsolicited_writes {
        flags |= verbs::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
    }
    // The flags are an enumeration of two bits, the field has 16.
    efa.flags = flags as u16;
    (attr, efa)
}

impl QueuePair<Ready> {
    /// What a peer must know to send to it.
    ///
    /// # Errors
    /// Those of [`Context::gid`].
    pub fn address(&self) -> Result<Address> {
        Ok(Address { gid: self.context().gid()?, queue_pair: self.number, queue_key: self.queue_key })
    }

    /// The key that it expects.
    pub fn queue_key(&self) -> QueueKey {
        self.queue_key
    }

    /// Its rings and doorbells, with the ring that its sends complete on, checked. The addresses are
    /// valid while it lives.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`] before rdma-core 59; [`Error::Call`] with the answer of
    /// `efadv_query_qp_wqs` or `efadv_query_cq`; [`Error::Exposure`] where they break a rule.
    pub fn exposure(&self) -> Result<Exposure> {
        let (send, receive) = self.query()?;
        Ok(Exposure::new(send, receive, self.send_completions().query()?)?)
    }

    /// `efadv_query_qp_wqs`: send and receive queue, unchecked.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`], [`Error::Call`].
    pub fn query(&self) -> Result<(RawWorkQueue, RawWorkQueue)> {
        let query = function!(self.library(), efadv, efadv_query_qp_wqs)?;
        // Zeroed: a release that knows fewer fields leaves the rest alone.
        let (mut send, mut receive) = (efadv_wq_attr::default(), efadv_wq_attr::default());
        let size = inlen(&send);
        // SAFETY: the queue pair is live; `size` bytes of both structures can be written.
        let code = unsafe { query(self.object.raw(), &mut send, &mut receive, size) };
        check("efadv_query_qp_wqs", code)?;
        Ok((raw(&send), raw(&receive)))
    }

    /// A peer, for entries that go to it. Its address handle is made once for each adapter, and kept
    /// until this queue pair is destroyed.
    ///
    /// # Errors
    /// Those of [`AddressHandle::create`].
    pub fn peer(&mut self, address: &Address) -> Result<Peer> {
        let known = |handle: &&AddressHandle| handle.gid() == address.gid;
        let handle = match self.object.parents().handles.iter().find(known) {
            Some(handle) => handle.clone(),
            None => self.handle_for(address.gid)?,
        };
        Ok(handle.peer(address.queue_pair, address.queue_key))
    }

    fn handle_for(&mut self, gid: Gid) -> Result<AddressHandle> {
        let handle = AddressHandle::create(self.domain(), gid)?;
        self.object.parents_mut().handles.push(handle.clone());
        Ok(handle)
    }

    /// Keeps `region`, with its memory, until the queue pair is destroyed. For memory that the
    /// adapter may still reach when the caller no longer knows what is in flight.
    pub fn retain(&mut self, region: MemoryRegion) {
        self.object.parents_mut().regions.retain(region);
    }

    /// Keeps the memory of a posted receive until it completed, or the queue pair is destroyed.
    pub(crate) fn receive_posted(&mut self, id: u16, region: MemoryRegion) {
        self.object.parents_mut().regions.receive_posted(id, region);
    }

    /// Lets the memory of a receive go, for it completed.
    pub(crate) fn receive_completed(&mut self, id: u16) {
        self.object.parents_mut().regions.receive_completed(id);
    }
}

impl<S: State> QueuePair<S> {
    /// Its number.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// The queue that its sends complete on.
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.object.parents().send
    }

    /// The queue that its receives complete on.
    pub fn receive_completions(&self) -> &CompletionQueue {
        &self.object.parents().receive
    }

    /// The domain that it is in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.object.parents().domain
    }

    /// The adapter that it is of.
    pub fn context(&self) -> &Context {
        self.domain().context()
    }

    /// Destroys it and says how that went. Where it fails, whatever it refers to stays allocated for
    /// the life of the process.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `ibv_destroy_qp`.
    pub fn close(self) -> Result<()> {
        self.object.close()
    }

    /// The queue pair itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut verbs::ibv_qp {
        self.object.raw()
    }

    fn library(&self) -> &Library {
        self.object.parents().library()
    }
}

/// The bits of both interfaces are the same.
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
