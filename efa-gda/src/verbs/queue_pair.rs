//! Queue pairs of type SRD. A queue pair is opened ready: the adapter serves it, and its rings can be exposed.
//! Requests are never posted through libibverbs, which keeps its own ring indices.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

use efa_gda_sys::verbs::{
    self, efadv_ah_attr, efadv_qp_init_attr, efadv_wq_attr, ibv_ah_attr, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_attr, ibv_qp_init_attr_ex,
};
use efa_gda_wire::{AddressHandle, EntrySize, Peer, QueueKey, QueuePairNumber};

use super::context::{Capability, PORT};
use super::counter::attach_bits;
use super::error;
use super::object::{Object, check, function, inlen, pointer};
use super::{CompletionCounter, CompletionQueue, Context, Library, ProtectionDomain};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::exposure::{Exposure, RawWorkQueue};
use crate::memory::{CountedOperations, RetainedRegions};
use crate::polling::Completing;

/// What a queue pair is opened with.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// The least number of send queue entries. rdma-core rounds it up to a power of two.
    pub send_entries: u32,
    /// The least number of receive queue entries, of one segment each. 0 counts as 1.
    pub receive_entries: u32,
    /// The size of send entries. 128-byte entries also carry RDMA writes inline; they need rdma-core 63.
    pub entry_size: EntrySize,
    /// Whether RDMA writes with immediate from peers consume no receive.
    pub unsolicited_writes: bool,
    /// The key that requests of peers carry. An adapter drops messages of senders that do not know it.
    pub queue_key: QueueKey,
    /// Counters, each with the operations whose completions it counts for the queue pair. Each operation has at most
    /// one counter. A mapped queue of the queue pair does not use them.
    pub counters: Vec<(CompletionCounter, CountedOperations)>,
}

impl Default for QueuePairOptions {
    /// 256 entries in each queue, 64-byte send entries, and a random key.
    fn default() -> Self {
        // The highest bit is the kernel's.
        let key = RandomState::new().build_hasher().finish() as u32 >> 1;
        Self {
            send_entries: 256,
            receive_entries: 256,
            entry_size: EntrySize::B64,
            unsolicited_writes: false,
            queue_key: QueueKey::new(key),
            counters: Vec::new(),
        }
    }
}

impl QueuePairOptions {
    /// Refuses options that the adapter does not support, because EINVAL would not name the option.
    fn check(&self, context: &Context) -> Result<()> {
        let limits = context.attributes();
        let within = |what, asked: u64, limit: u64| match asked <= limit {
            true => Ok(()),
            false => Err(error::exceeds(what, asked, limit)),
        };
        within("send queue entries", self.send_entries.into(), limits.max_send_entries.into())?;
        within("receive queue entries", self.receive_entries.into(), limits.max_receive_entries.into())?;
        if self.entry_size == EntrySize::B128 {
            context.require(Capability::RdmaWrite)?;
            if !limits.has_wide_entries() {
                let inline = EntrySize::B128.inline_limit() as u64;
                return within("inline bytes", inline, limits.wide_inline_bytes.into());
            }
        }
        if self.unsolicited_writes {
            context.require(Capability::UnsolicitedWriteReceive)?;
        }
        if self.counters.iter().any(|(counter, _)| !context.is_same(counter.context())) {
            return Err(error::other_context("completion counter"));
        }
        Ok(())
    }
}

/// An SRD queue pair. It is destroyed when it is dropped, before the objects that it refers to.
#[derive(Debug)]
pub struct QueuePair {
    object: Object<verbs::ibv_qp, Parents>,
    number: QueuePairNumber,
    queue_key: QueueKey,
    unsolicited_writes: bool,
}

/// Objects that the queue pair refers to. They are dropped after the queue pair is destroyed.
#[derive(Debug)]
struct Parents {
    regions: RetainedRegions,
    /// Handles that requests in flight may name.
    handles: Mutex<Vec<Handle>>,
    _counters: Vec<(CompletionCounter, CountedOperations)>,
    _completing: Completing,
    completions: CompletionQueue,
    domain: ProtectionDomain,
}

/// The adapter's handle for a remote adapter, and its number in entries. It must not be destroyed while requests that
/// name it are in flight.
#[derive(Debug)]
struct Handle {
    gid: [u8; 16],
    number: AddressHandle,
    _object: Object<verbs::ibv_ah, ProtectionDomain>,
}

impl QueuePair {
    /// Bytes of an address.
    pub const ADDRESS_BYTES: usize = 32;

    /// Creates a queue pair in `domain` whose requests and receives complete on `completions`, attaches the counters,
    /// and makes the adapter serve it. The adapter retries sends to a receiver without a posted receive as it does by
    /// default.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for objects of another context; [`ErrorKind::Busy`] where a mapped queue polls the completion
    /// queue; [`ErrorKind::Argument`] or [`ErrorKind::Unsupported`] for options that the adapter does not support;
    /// [`ErrorKind::Other`] where a call fails, and for a queue pair number that no entry can carry. The queue pair is then
    /// destroyed.
    pub fn open(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        options: &QueuePairOptions,
    ) -> Result<Self> {
        let context = domain.context();
        if !context.is_same(completions.context()) {
            return Err(error::other_context("completion queue"));
        }
        options.check(context)?;
        let completing = completions.register_queue_pair()?;
        let create = function!(domain.library(), efadv, efadv_create_qp_ex)?;
        let (mut attr, mut efa) = attributes(domain, completions, options);
        let size = inlen(&efa);
        // SAFETY: context, domain and queue are live and of one context; both structures are complete.
        let raw = pointer("efadv_create_qp_ex", unsafe { create(context.raw(), &mut attr, &mut efa, size) })?;
        let parents = Parents {
            regions: RetainedRegions::default(),
            handles: Mutex::default(),
            // The queue pair owns the counters before the adapter refers to them, so it never outlives them.
            _counters: options.counters.clone(),
            _completing: completing,
            completions: completions.clone(),
            domain: domain.clone(),
        };
        // SAFETY: the object was just created, and no other handle to it exists. From here on an error destroys it.
        let object = unsafe { Object::adopt(raw, domain.library().clone(), parents) };
        // SAFETY: libibverbs fills in the number before it returns a queue pair.
        let number = unsafe { (*object.raw()).qp_num };
        let number = u16::try_from(number)
            .map(QueuePairNumber::new)
            .map_err(|_| error::too_wide("queue pair number", number.into(), 16))?;
        let QueuePairOptions { queue_key, unsolicited_writes, .. } = *options;
        let pair = Self { object, number, queue_key, unsolicited_writes };
        for (counter, counted) in &options.counters {
            pair.attach(counter, *counted)?;
        }
        pair.activate()?;
        Ok(pair)
    }

    fn attach(&self, counter: &CompletionCounter, counted: CountedOperations) -> Result<()> {
        let attach = function!(self.library(), ibv, ibv_qp_attach_comp_cntr)?;
        let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: attach_bits(counted) };
        // SAFETY: both are live and of one context; the structure is complete.
        let code = unsafe { attach(self.object.raw(), counter.raw(), &mut attr) };
        check("ibv_qp_attach_comp_cntr", code)
    }

    fn activate(&self) -> Result<()> {
        // SAFETY: a plain C structure for which all zeroes is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = verbs::IBV_QPS_INIT;
        attr.port_num = PORT;
        attr.qkey = self.queue_key.get();
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | verbs::IBV_QP_QKEY;
        self.modify("ibv_modify_qp(INIT)", attr, mask)?;
        attr.qp_state = verbs::IBV_QPS_RTR;
        self.modify("ibv_modify_qp(RTR)", attr, verbs::IBV_QP_STATE)?;
        attr.qp_state = verbs::IBV_QPS_RTS;
        self.modify("ibv_modify_qp(RTS)", attr, verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN)
    }

    fn modify(&self, operation: &'static str, mut attr: ibv_qp_attr, mask: u32) -> Result<()> {
        let modify = function!(self.library(), ibv, ibv_modify_qp)?;
        // SAFETY: the queue pair is live; the structure is complete, and only read.
        check(operation, unsafe { modify(self.object.raw(), &mut attr, mask as i32) })
    }

    /// Returns what a peer needs to send to the queue pair ([`Self::peer`]), in this host's byte order and in the form
    /// that libfabric's efa provider returns and takes (`struct efa_ep_addr` of `prov/efa`), so that endpoints and queue
    /// pairs reach each other: the GID at offset 0, the queue pair number at 16, the queue key at 20, and zeroes.
    ///
    /// # Errors
    /// Those of [`Context::gid`].
    pub fn address(&self) -> Result<[u8; Self::ADDRESS_BYTES]> {
        let mut bytes = [0; Self::ADDRESS_BYTES];
        bytes[..16].copy_from_slice(&self.domain().context().gid()?.octets());
        bytes[16..18].copy_from_slice(&self.number.get().to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.queue_key.get().to_ne_bytes());
        Ok(bytes)
    }

    /// Returns the peer with this address, for entries that are sent to it. Creates one address handle for each adapter,
    /// and keeps it until this queue pair is destroyed.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_create_ah` or `efadv_query_ah` fails.
    pub fn peer(&self, address: &[u8; Self::ADDRESS_BYTES]) -> Result<Peer> {
        let (mut gid, mut number, mut key) = ([0; 16], [0; 2], [0; 4]);
        gid.copy_from_slice(&address[..16]);
        number.copy_from_slice(&address[16..18]);
        key.copy_from_slice(&address[20..24]);
        let mut handles = self.object.parents().handles.lock().unwrap_or_else(PoisonError::into_inner);
        let address_handle = match handles.iter().find(|handle| handle.gid == gid) {
            Some(handle) => handle.number,
            None => {
                let handle = Handle::create(self.domain(), gid)?;
                let number = handle.number;
                handles.push(handle);
                number
            }
        };
        Ok(Peer {
            address_handle,
            queue_pair: QueuePairNumber::new(u16::from_ne_bytes(number)),
            queue_key: QueueKey::new(u32::from_ne_bytes(key)),
        })
    }

    /// Returns the checked rings and doorbells, with the completion ring. The addresses are valid while the queue pair
    /// lives.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] before rdma-core 59; [`ErrorKind::Other`] where `efadv_query_qp_wqs` or
    /// `efadv_query_cq` fails; [`ErrorKind::Exposure`] where the rings break a rule.
    pub fn exposure(&self) -> Result<Exposure> {
        let (send, receive) = self.query()?;
        Exposure::new(send, receive, self.completions().query()?)
    }

    /// Queries the send and receive queue (`efadv_query_qp_wqs`). The values are not checked.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Other`].
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

    /// Whether RDMA writes with immediate data consume receives of this queue pair.
    pub(crate) fn writes_use_receives(&self) -> bool {
        !self.unsolicited_writes
    }

    /// The regions that the queue pair retains until it is destroyed.
    pub(crate) fn regions(&mut self) -> &mut RetainedRegions {
        &mut self.object.parents_mut().regions
    }

    /// The queue pair number.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// The completion queue of requests and of receives.
    pub(crate) fn completions(&self) -> &CompletionQueue {
        &self.object.parents().completions
    }

    /// The protection domain of the queue pair.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.object.parents().domain
    }

    /// Destroys the queue pair and reports the result. Where it fails, everything that it refers to stays
    /// allocated until the process ends.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_destroy_qp` fails.
    pub fn close(self) -> Result<()> {
        self.object.close()
    }

    fn library(&self) -> &Library {
        self.object.library()
    }
}

impl Handle {
    /// Creates a handle for the adapter with `gid`, for queue pairs of `domain`.
    fn create(domain: &ProtectionDomain, gid: [u8; 16]) -> Result<Self> {
        let library = domain.library();
        let create = function!(library, ibv, ibv_create_ah)?;
        let query = function!(library, efadv, efadv_query_ah)?;
        // SAFETY: a plain C structure for which all zeroes is a value.
        let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.port_num = PORT;
        attr.is_global = 1;
        attr.grh.dgid.raw = gid;
        // SAFETY: the domain is live; the attributes are complete.
        let raw = pointer("ibv_create_ah", unsafe { create(domain.raw(), &mut attr) })?;
        // SAFETY: the object was just created, and no other handle to it exists.
        let object = unsafe { Object::adopt(raw, library.clone(), domain.clone()) };
        let mut efa = efadv_ah_attr::default();
        let size = inlen(&efa);
        // SAFETY: the handle is live; `size` bytes can be written.
        check("efadv_query_ah", unsafe { query(object.raw(), &mut efa, size) })?;
        Ok(Self { gid, number: AddressHandle::new(efa.ahn), _object: object })
    }
}

/// The attributes of a new queue pair.
fn attributes(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    options: &QueuePairOptions,
) -> (ibv_qp_init_attr_ex, efadv_qp_init_attr) {
    let limits = domain.context().attributes();
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: completions.raw(),
        recv_cq: completions.raw(),
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
