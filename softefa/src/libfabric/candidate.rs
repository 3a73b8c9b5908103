//! Candidates: the infos that `fi_getinfo` can return, one for each adapter and fabric, before hints are
//! applied. Numbers come from the adapter, the other values from the real provider (libfabric `prov/efa`,
//! `efa_prov_info.c`). Hints are applied in `negotiation`; memory for C is allocated in `info`.

use efa_gda_sys::fi;

use super::config::Config;

/// Bits that libfabric's core defines for providers (`include/ofi.h`), under API 1.0's names.
pub(crate) const OLD_MR_BASIC: i32 = 1 << 0;
pub(crate) const OLD_MR_SCALABLE: i32 = 1 << 1;
pub(crate) const OLD_LOCAL_MR: u64 = 1 << 55;

const TX_CAPS: u64 = fi::FI_MSG | fi::FI_SEND | fi::FI_RMA | fi::FI_READ | fi::FI_WRITE;
const RX_CAPS: u64 =
    fi::FI_MSG | fi::FI_RECV | fi::FI_RMA | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE | fi::FI_SOURCE;
const DOMAIN_CAPS: u64 = fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM;

/// Completion data is the 32 bits of immediate.
const CQ_DATA_SIZE: usize = 4;

/// An endpoint's address: GID, queue pair number, padding, queue key, eight zero bytes.
pub(crate) const ADDRESS_LENGTH: usize = 32;

/// One info that `fi_getinfo` can return. The attribute structs contain no pointers: names and addresses are
/// separate.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) adapter: &'a AdapterDescription,
    pub(crate) fabric: Fabric,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) tx: fi::fi_tx_attr,
    pub(crate) rx: fi::fi_rx_attr,
    pub(crate) ep: fi::fi_ep_attr,
    pub(crate) domain: fi::fi_domain_attr,
    pub(crate) fabric_object: *mut fi::fid_fabric,
    pub(crate) handle: fi::fid_t,
}

/// The two fabrics of an EFA adapter, which share their domain names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    /// The adapter's queues, exposed. Only this fabric has GDA operations.
    Direct,
    /// libfabric's protocol on top of those queues.
    Plain,
}

impl Fabric {
    /// The fabric's name in `fi_fabric_attr`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "efa-direct",
            Self::Plain => "efa",
        }
    }

    /// The fabric of that name; names are compared exactly.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Direct, Self::Plain].into_iter().find(|fabric| fabric.name() == name)
    }
}

/// An adapter as infos describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdapterDescription {
    /// The device's name: `softefa0`.
    pub(crate) device: String,
    /// Its GID.
    pub(crate) gid: [u8; 16],
    /// Its limits.
    pub(crate) limits: Limits,
}

/// An adapter's limits, as infos report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Entries of 64 bytes in a send queue.
    pub(crate) send_depth: usize,
    /// Receives in a receive queue, of `receive_segments` segments each.
    pub(crate) receive_depth: usize,
    /// Segments of a receive, each of which takes an entry of the receive queue.
    pub(crate) receive_segments: usize,
    /// Segments of a send.
    pub(crate) send_segments: usize,
    /// Inline bytes in a 64-byte entry.
    pub(crate) inline: usize,
    /// Inline bytes in a 128-byte entry.
    pub(crate) inline_wide: usize,
    /// Bytes of one send.
    pub(crate) message: usize,
    /// Bytes of one RDMA operation.
    pub(crate) rdma: usize,
    /// Completion queues of the adapter.
    pub(crate) completion_queues: usize,
    /// Queue pairs of the adapter.
    pub(crate) queue_pairs: usize,
    /// Memory regions of the adapter.
    pub(crate) regions: usize,
    /// Whether RDMA writes with immediate consume no posted receive.
    pub(crate) unsolicited_writes: bool,
    /// Whether send queues have 64-bit request ids.
    pub(crate) wide_ids: bool,
}

impl AdapterDescription {
    /// The domain's name: the device's name with the real provider's suffix for RDM endpoints.
    pub(crate) fn domain_name(&self) -> String {
        format!("{}-rdm", self.device)
    }

    /// The source address in infos: the GID, without a queue pair.
    pub(crate) fn address(&self) -> [u8; ADDRESS_LENGTH] {
        let mut address = [0; ADDRESS_LENGTH];
        address[..16].copy_from_slice(&self.gid);
        address
    }
}

/// Every candidate: the plain fabric first, as in the real provider, and within a fabric in the order of
/// adapters.
pub(crate) fn candidates<'a>(adapters: &'a [AdapterDescription], config: &Config) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for fabric in [Fabric::Plain, Fabric::Direct] {
        let enabled = match fabric {
            Fabric::Plain => config.plain,
            Fabric::Direct => config.direct,
        };
        if enabled {
            candidates.extend(adapters.iter().map(|adapter| Candidate::new(adapter, fabric, config)));
        }
    }
    candidates
}

impl<'a> Candidate<'a> {
    /// The candidate for `adapter` on `fabric`, with all that the provider supports there.
    pub(crate) fn new(adapter: &'a AdapterDescription, fabric: Fabric, config: &Config) -> Self {
        let limits = &adapter.limits;
        let mut candidate = Self {
            adapter,
            fabric,
            caps: TX_CAPS | RX_CAPS | DOMAIN_CAPS,
            mode: fi::FI_CONTEXT2,
            tx: tx_attr(limits),
            rx: rx_attr(limits),
            ep: ep_attr(limits),
            domain: domain_attr(limits),
            fabric_object: std::ptr::null_mut(),
            handle: std::ptr::null_mut(),
        };
        if fabric == Fabric::Plain {
            candidate.apply_plain();
        }
        if config.counters {
            // One for each queue pair. The adapter has no limit on counters.
            candidate.domain.cntr_cnt = limits.queue_pairs;
        }
        if config.hmem {
            candidate.caps |= fi::FI_HMEM;
            candidate.tx.caps |= fi::FI_HMEM;
            candidate.rx.caps |= fi::FI_HMEM;
            candidate.domain.mr_mode |= fi::FI_MR_HMEM;
        }
        candidate
    }

    /// Applies the differences of the plain fabric: what libfabric's protocol adds and what it does not need.
    fn apply_plain(&mut self) {
        let both = fi::FI_TAGGED | fi::FI_ATOMIC;
        let receive = fi::FI_MULTI_RECV | fi::FI_DIRECTED_RECV;
        self.caps |= both | receive;
        self.tx.caps |= both;
        self.rx.caps |= both | receive;
        self.mode = 0;
        self.tx.mode = 0;
        self.rx.mode = 0;
        self.domain.mr_mode &= !fi::FI_MR_LOCAL;
        self.ep.max_msg_size = usize::MAX;
        self.domain.control_progress = fi::FI_PROGRESS_MANUAL;
        self.domain.__bindgen_anon_1.progress = fi::FI_PROGRESS_MANUAL;
    }
}

fn tx_attr(limits: &Limits) -> fi::fi_tx_attr {
    fi::fi_tx_attr {
        caps: TX_CAPS,
        mode: fi::FI_CONTEXT2,
        op_flags: fi::FI_INJECT | fi::FI_COMPLETION | fi::FI_TRANSMIT_COMPLETE | fi::FI_DELIVERY_COMPLETE,
        inject_size: limits.inline_wide,
        size: limits.send_depth,
        iov_limit: limits.send_segments,
        rma_iov_limit: 1,
        ..Default::default()
    }
}

fn rx_attr(limits: &Limits) -> fi::fi_rx_attr {
    fi::fi_rx_attr {
        caps: RX_CAPS,
        mode: fi::FI_CONTEXT2,
        op_flags: fi::FI_COMPLETION,
        size: limits.receive_depth,
        iov_limit: limits.receive_segments,
        ..Default::default()
    }
}

fn ep_attr(limits: &Limits) -> fi::fi_ep_attr {
    fi::fi_ep_attr {
        type_: fi::FI_EP_RDM,
        protocol: fi::FI_PROTO_EFA,
        protocol_version: 1,
        max_msg_size: limits.message.max(limits.rdma),
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        ..Default::default()
    }
}

fn domain_attr(limits: &Limits) -> fi::fi_domain_attr {
    fi::fi_domain_attr {
        threading: fi::FI_THREAD_SAFE,
        control_progress: fi::FI_PROGRESS_AUTO,
        __bindgen_anon_1: fi::fi_domain_attr__bindgen_ty_1 { progress: fi::FI_PROGRESS_AUTO },
        resource_mgmt: fi::FI_RM_ENABLED,
        av_type: fi::FI_AV_UNSPEC,
        mr_mode: OLD_MR_BASIC
            | fi::FI_MR_LOCAL
            | fi::FI_MR_ALLOCATED
            | fi::FI_MR_PROV_KEY
            | fi::FI_MR_VIRT_ADDR,
        mr_key_size: size_of::<u32>(),
        cq_data_size: CQ_DATA_SIZE,
        cq_cnt: limits.completion_queues,
        ep_cnt: limits.queue_pairs,
        tx_ctx_cnt: limits.queue_pairs.min(1024),
        rx_ctx_cnt: limits.queue_pairs.min(1024),
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        mr_iov_limit: 1,
        caps: DOMAIN_CAPS,
        mr_cnt: limits.regions,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..Default::default()
    }
}
