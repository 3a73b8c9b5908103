//! Completion queues and queue pairs of an open device: creation, pages, doorbells and states. The device core runs
//! them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use efa_gda_wire::{
    COMPLETION_BYTES, EntrySize, QueueKey, QueuePairNumber, RX_DESCRIPTOR_BYTES, RequestIdWidth,
};
use softefa::device::{
    CompletionBacking, CompletionQueueAttr, CompletionQueueNumber, QueuePairAttr, QueuePairState, RnrRetry,
    SendEvent, Transport,
};
use softefa_abi::sys::*;
use softefa_abi::{
    CreateCompletionQueue, CreateQueuePair, Errno, ModifyQueuePair, QueuePairCapabilities, Response, encode,
};

use super::channels::QueueEvents;
use super::context::{Context, Object, errno};
use super::responses;
use super::rings::{AllocatedDoorbell, Pages, Rings};

/// The number of retries that means no limit.
const RNR_FOREVER: u8 = 7;

/// A completion queue of an open device.
pub(super) struct CompletionObject {
    pub(super) number: CompletionQueueNumber,
    pub(super) events: Option<Arc<QueueEvents>>,
    maps: Vec<u64>,
    doorbell: Option<AllocatedDoorbell>,
}

/// A queue pair of an open device.
pub(super) struct QueuePairObject {
    pub(super) number: QueuePairNumber,
    capabilities: QueuePairCapabilities,
    /// The state that the program set, `IB_QPS_*`.
    pub(super) state: u8,
    transport: Transport,
    queue_key: u32,
    send_psn: u32,
    rnr_retry: u8,
    maps: Vec<u64>,
    doorbells: Vec<AllocatedDoorbell>,
}

impl CompletionObject {
    pub(super) fn release(self, maps: &mut BTreeMap<u64, Arc<Pages>>, rings: &mut Rings) {
        self.maps.iter().for_each(|key| drop(maps.remove(key)));
        self.doorbell.iter().for_each(|doorbell| rings.release_doorbell(doorbell));
    }
}

impl QueuePairObject {
    pub(super) fn release(self, maps: &mut BTreeMap<u64, Arc<Pages>>, rings: &mut Rings) {
        self.maps.iter().for_each(|key| drop(maps.remove(key)));
        self.doorbells.iter().for_each(|doorbell| rings.release_doorbell(doorbell));
    }
}

impl Context {
    pub(super) fn create_completion_queue(
        &mut self,
        request: &CreateCompletionQueue,
        channel: Option<OwnedFd>,
        response: &mut Response<'_>,
    ) -> Result<(), Errno> {
        let limits = self.adapter.config().limits;
        if request.entry_size != COMPLETION_BYTES as u32 || request.sub_queues != 1 {
            return Err(Errno::EINVAL);
        }
        if request.entries == 0 || request.entries > limits.max_cq_depth {
            return Err(Errno::EINVAL);
        }
        if request.vector >= responses::completion_vectors(self) {
            return Err(Errno::EINVAL);
        }
        let notifies = u32::from(request.flags) & EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL != 0;
        if (request.channel || notifies) && !self.shared.completion_doorbells {
            return Err(Errno::EOPNOTSUPP);
        }
        let events = match request.channel && notifies {
            true => Some(Arc::new(self.channels.events(channel, request.user_handle)?)),
            false => None,
        };
        let entries = request.entries.next_power_of_two();
        let bytes = u64::from(entries) * COMPLETION_BYTES as u64;
        let (backing, pages) = match request.memory {
            None => {
                let pages = self.rings.allocate(bytes as usize, false)?;
                (CompletionBacking::External(pages.ring(bytes as usize)?), Some(pages))
            }
            Some((_, length)) if length < bytes => return Err(Errno::EINVAL),
            Some((memory, length)) => {
                let memory = self.memory(memory, (0, length), true)?;
                (CompletionBacking::Indirect { memory, address: 0 }, None)
            }
        };
        let doorbell =
            if self.shared.completion_doorbells { Some(self.rings.allocate_doorbell()?) } else { None };
        let attr = CompletionQueueAttr {
            entries,
            backing,
            doorbell: false,
            doorbell_at: doorbell.as_ref().map(|allocated| allocated.doorbell.clone()),
            events: events.clone().map(|events| Arc::new(move || events.send()) as SendEvent),
        };
        let created = match self.adapter.create_completion_queue(attr) {
            Ok(created) => created,
            Err(error) => {
                doorbell.iter().for_each(|doorbell| self.rings.release_doorbell(doorbell));
                return Err(errno(error));
            }
        };
        let mut maps = Vec::new();
        let mut driver = efa_ibv_create_cq_resp { cq_idx: created.number.get(), ..Default::default() };
        if let Some(pages) = &pages {
            driver.q_mmap_size = pages.len() as u64;
            driver.q_mmap_key = self.insert_map(pages);
            maps.push(driver.q_mmap_key);
        }
        if let Some(allocated) = &doorbell {
            driver.comp_mask |= EFA_CREATE_CQ_RESP_DB_OFF;
            driver.db_off = allocated.doorbell.offset() as u32;
            driver.db_mmap_key = self.insert_map(&allocated.pages);
            maps.push(driver.db_mmap_key);
        }
        let object = CompletionObject { number: created.number, events, maps, doorbell };
        let handle = self.insert(Object::Completion(object))?;
        response.put_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, handle);
        response.put(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &created.num_entries.to_ne_bytes());
        let driver = encode!(efa_ibv_create_cq_resp {
            comp_mask: driver.comp_mask,
            q_mmap_key: driver.q_mmap_key,
            q_mmap_size: driver.q_mmap_size,
            cq_idx: driver.cq_idx,
            db_off: driver.db_off,
            db_mmap_key: driver.db_mmap_key,
        });
        response.put(UVERBS_ATTR_UHW_OUT, &driver);
        Ok(())
    }

    pub(super) fn completion(&self, handle: u32) -> Result<&CompletionObject, Errno> {
        match self.object(handle)? {
            Object::Completion(queue) => Ok(queue),
            _ => Err(Errno::ENOENT),
        }
    }

    pub(super) fn create_queue_pair(
        &mut self,
        request: &CreateQueuePair,
        response: &mut Response<'_>,
    ) -> Result<(), Errno> {
        let pd = self.domain(request.domain)?;
        let send_cq = self.completion(request.send_cq)?.number;
        let receive_cq = self.completion(request.receive_cq)?.number;
        let shape = Shape::new(request)?;
        let mut sq = None;
        let mut doorbells = vec![self.rings.allocate_doorbell()?];
        let created = self.ring_pages(&shape, &mut doorbells).and_then(|(pages, rq_pages)| {
            let attr = QueuePairAttr {
                transport: shape.transport,
                send_cq,
                receive_cq,
                sq_depth: shape.sq_depth,
                entry_size: shape.entry_size,
                rq_depth: shape.rq_depth,
                request_ids: shape.request_ids,
                rnr_retry: RnrRetry::Forever,
                unsolicited_write_receive: shape.unsolicited,
                state: QueuePairState::Idle,
                first_counter: self.shared.first_counter,
                sq_memory: Some(pages.ring(shape.sq_bytes())?),
                rq_memory: rq_pages.as_ref().map(|pages| pages.ring(shape.rq_bytes())).transpose()?,
                sq_doorbell: Some(doorbells[0].doorbell.clone()),
                rq_doorbell: doorbells.get(1).map(|allocated| allocated.doorbell.clone()),
                ..QueuePairAttr::new(pd, send_cq)
            };
            let created = self.adapter.create_queue_pair(attr).map_err(errno)?;
            sq = Some((pages, rq_pages));
            Ok(created)
        });
        let (created, (pages, rq_pages)) = match (created, sq) {
            (Ok(created), Some(pages)) => (created, pages),
            (created, _) => {
                doorbells.iter().for_each(|doorbell| self.rings.release_doorbell(doorbell));
                return Err(created.err().unwrap_or(Errno::ENOMEM));
            }
        };
        let llq = self.insert_map(&pages);
        let sq_doorbell = self.insert_map(&doorbells[0].pages);
        let mut maps = vec![llq, sq_doorbell];
        let mut rq = (0, 0, 0, 0);
        if let (Some(pages), Some(allocated)) = (&rq_pages, doorbells.get(1)) {
            let ring = self.insert_map(pages);
            let doorbell = self.insert_map(&allocated.pages);
            rq = (ring, pages.len() as u64, doorbell, allocated.doorbell.offset() as u32);
            maps.extend([ring, doorbell]);
        }
        let driver = encode!(efa_ibv_create_qp_resp {
            rq_db_offset: rq.3,
            sq_db_offset: doorbells[0].doorbell.offset() as u32,
            rq_mmap_key: rq.0,
            rq_mmap_size: rq.1,
            rq_db_mmap_key: rq.2,
            sq_db_mmap_key: sq_doorbell,
            llq_desc_mmap_key: llq,
        });
        let handle = self.insert(Object::QueuePair(QueuePairObject {
            number: created.number,
            capabilities: request.capabilities,
            state: IB_QPS_RESET as u8,
            transport: shape.transport,
            queue_key: 0,
            send_psn: 0,
            rnr_retry: 0,
            maps,
            doorbells,
        }))?;
        response.put_handle(UVERBS_ATTR_CREATE_QP_HANDLE, handle);
        response.put(UVERBS_ATTR_CREATE_QP_RESP_CAP, &capabilities(&request.capabilities));
        response.put(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &u32::from(created.number.get()).to_ne_bytes());
        response.put(UVERBS_ATTR_UHW_OUT, &driver);
        Ok(())
    }

    /// Allocates the pages of the send and receive rings. If there is a receive ring, adds its doorbell to `doorbells`.
    fn ring_pages(
        &mut self,
        shape: &Shape,
        doorbells: &mut Vec<AllocatedDoorbell>,
    ) -> Result<(Arc<Pages>, Option<Arc<Pages>>), Errno> {
        let limits = self.adapter.config().limits;
        if shape.sq_bytes() > limits.llq_bytes as usize || shape.rq_depth > limits.max_rq_depth {
            return Err(Errno::EINVAL);
        }
        let pages = self.rings.allocate(shape.sq_bytes(), true)?;
        let mut rq_pages = None;
        if shape.rq_depth > 0 {
            rq_pages = Some(self.rings.allocate(shape.rq_bytes(), true)?);
            doorbells.push(self.rings.allocate_doorbell()?);
        }
        Ok((pages, rq_pages))
    }

    pub(super) fn modify_queue_pair(&mut self, request: &ModifyQueuePair) -> Result<(), Errno> {
        let Some((Object::QueuePair(queue_pair), ..)) = self.objects.get_mut(&request.handle) else {
            return Err(Errno::ENOENT);
        };
        let number = queue_pair.number;
        let present = request.current_state.unwrap_or(queue_pair.state);
        let next = request.state.unwrap_or(present);
        let (from, to) = (u32::from(present), u32::from(next));
        check_transition(from, to, queue_pair.transport, request.mask)?;
        if let Some(key) = request.queue_key {
            self.adapter.set_queue_key(number, QueueKey::new(key)).map_err(errno)?;
            queue_pair.queue_key = key;
        }
        if let Some(times) = request.rnr_retry {
            let retry = match times {
                RNR_FOREVER => RnrRetry::Forever,
                0..RNR_FOREVER => RnrRetry::Times(times),
                _ => return Err(Errno::EINVAL),
            };
            self.adapter.set_rnr_retry(number, retry).map_err(errno)?;
            queue_pair.rnr_retry = times;
        }
        if let Some(number) = request.send_psn {
            queue_pair.send_psn = number;
        }
        let state = match to {
            IB_QPS_RTR | IB_QPS_RTS => Some(QueuePairState::Ready),
            IB_QPS_ERR => Some(QueuePairState::Error),
            IB_QPS_RESET => Some(QueuePairState::Idle),
            _ => None,
        };
        if let Some(state) = state {
            self.adapter.set_queue_pair_state(number, state).map_err(errno)?;
        }
        queue_pair.state = next;
        Ok(())
    }

    pub(super) fn query_queue_pair(&self, handle: u32, response: &mut Response<'_>) -> Result<(), Errno> {
        let Object::QueuePair(queue_pair) = self.object(handle)? else { return Err(Errno::ENOENT) };
        let failed = self.adapter.queue_pair_state(queue_pair.number) == Ok(QueuePairState::Error);
        let state = if failed { IB_QPS_ERR as u8 } else { queue_pair.state };
        let caps = &queue_pair.capabilities;
        let bytes = encode!(ib_uverbs_query_qp_resp {
            max_send_wr: caps.max_send_wr,
            max_recv_wr: caps.max_recv_wr,
            max_send_sge: caps.max_send_sge,
            max_recv_sge: caps.max_recv_sge,
            max_inline_data: caps.max_inline_data,
            qkey: queue_pair.queue_key,
            sq_psn: queue_pair.send_psn,
            qp_state: state,
            cur_qp_state: state,
            port_num: 1,
            rnr_retry: queue_pair.rnr_retry,
        });
        response.put(UVERBS_ATTR_CORE_OUT, &bytes);
        Ok(())
    }
}

/// Checks a change of state and the attributes that the program changes with it (`srd_qp_state_table` and
/// `efa_modify_qp_validate` of the kernel's `efa_verbs.c`; that of UD differs in the retries only).
///
/// # Errors
/// [`Errno::EOPNOTSUPP`] for an attribute that the adapter does not have; [`Errno::EINVAL`] for a change that is not
/// allowed, lacks an attribute, or has one that does not belong to it.
fn check_transition(from: u32, to: u32, transport: Transport, mask: u32) -> Result<(), Errno> {
    const ADDRESS: u32 = IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY;
    const KNOWN: u32 =
        IB_QP_STATE | IB_QP_CUR_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY | ADDRESS | IB_QP_SQ_PSN | IB_QP_RNR_RETRY;
    if mask & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let retry = if transport == Transport::Srd { IB_QP_RNR_RETRY } else { 0 };
    let (required, optional) = match (from, to) {
        (IB_QPS_RESET, IB_QPS_RESET) => (0, 0),
        (IB_QPS_INIT..=IB_QPS_ERR, IB_QPS_RESET | IB_QPS_ERR) => (0, 0),
        (IB_QPS_RESET, IB_QPS_INIT) => (ADDRESS, 0),
        (IB_QPS_INIT, IB_QPS_INIT) => (0, ADDRESS),
        (IB_QPS_INIT, IB_QPS_RTR) | (IB_QPS_SQD, IB_QPS_SQD) => (0, IB_QP_PKEY_INDEX | IB_QP_QKEY),
        (IB_QPS_RTR, IB_QPS_RTS) => (IB_QP_SQ_PSN, IB_QP_CUR_STATE | IB_QP_QKEY | retry),
        (IB_QPS_RTS | IB_QPS_SQD | IB_QPS_SQE, IB_QPS_RTS) => (0, IB_QP_CUR_STATE | IB_QP_QKEY),
        (IB_QPS_RTS, IB_QPS_SQD) => (0, IB_QP_EN_SQD_ASYNC_NOTIFY),
        _ => return Err(Errno::EINVAL),
    };
    let known_state = matches!(from, IB_QPS_RTR | IB_QPS_RTS | IB_QPS_SQD | IB_QPS_SQE);
    if mask & required != required
        || mask & !(required | optional | IB_QP_STATE) != 0
        || mask & IB_QP_CUR_STATE != 0 && !known_state
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn capabilities(caps: &QueuePairCapabilities) -> Vec<u8> {
    encode!(ib_uverbs_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    })
}

/// The shape of a queue pair's rings. A program states depths and bytes, which must agree.
struct Shape {
    transport: Transport,
    sq_depth: u32,
    entry_size: EntrySize,
    rq_depth: u32,
    request_ids: RequestIdWidth,
    unsolicited: bool,
}

impl Shape {
    fn new(request: &CreateQueuePair) -> Result<Self, Errno> {
        let (kind, is_srd) = (request.kind, request.driver_kind == EFA_QP_DRIVER_TYPE_SRD);
        let transport = match kind.try_into() {
            Ok(IB_UVERBS_QPT_DRIVER) if is_srd => Transport::Srd,
            Ok(IB_UVERBS_QPT_UD) => Transport::Ud,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let flags = u32::from(request.flags);
        let known = EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV | EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID;
        if flags & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let sq_depth = request.capabilities.max_send_wr;
        if sq_depth == 0 || !sq_depth.is_power_of_two() || !request.sq_bytes.is_multiple_of(sq_depth) {
            return Err(Errno::EINVAL);
        }
        let entry_size = EntrySize::try_from(request.sq_bytes / sq_depth).map_err(|_| Errno::EINVAL)?;
        let descriptor = RX_DESCRIPTOR_BYTES as u32;
        let rq_depth = request.rq_bytes / descriptor;
        if !request.rq_bytes.is_multiple_of(descriptor) || !(rq_depth == 0 || rq_depth.is_power_of_two()) {
            return Err(Errno::EINVAL);
        }
        let wide = flags & EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID != 0;
        Ok(Self {
            transport,
            sq_depth,
            entry_size,
            rq_depth,
            request_ids: if wide { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 },
            unsolicited: flags & EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV != 0,
        })
    }

    fn sq_bytes(&self) -> usize {
        self.sq_depth as usize * self.entry_size.bytes()
    }

    fn rq_bytes(&self) -> usize {
        self.rq_depth as usize * RX_DESCRIPTOR_BYTES
    }
}
