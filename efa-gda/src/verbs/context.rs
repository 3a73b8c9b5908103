//! An open adapter, what rdma-core reports about it, and its protection domains.

use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs::{self, efadv_device_attr, ibv_device_attr, ibv_port_attr};

use super::Library;
use super::error;
use super::object::{Object, check, function, inlen, pointer};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::memory::Limits;
use crate::object::{Destroy as _, into_sole_owner};

/// The number of an adapter's only port.
pub(super) const PORT: u8 = 1;

/// An open adapter. Clones are handles of one context, which is closed when the last clone and the last object
/// created on it are dropped.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    object: Object<verbs::ibv_context, ()>,
    name: String,
    attributes: Attributes,
}

/// A feature that some adapters, drivers or releases of rdma-core lack (`EFADV_DEVICE_ATTR_CAPS_*` of efadv.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// RDMA read.
    RdmaRead,
    /// RDMA write.
    RdmaWrite,
    /// RDMA writes with immediate that consume no receive at the target.
    UnsolicitedWriteReceive,
    /// Completion queues in memory that is passed as a dmabuf.
    ExternalCompletionQueue,
    /// Completion counters.
    CompletionCounters,
}

impl Capability {
    /// The capability's bit in `efadv_device_attr::device_caps`.
    const fn bit(self) -> u32 {
        match self {
            Self::RdmaRead => verbs::EFADV_DEVICE_ATTR_CAPS_RDMA_READ,
            Self::RdmaWrite => verbs::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
            Self::UnsolicitedWriteReceive => verbs::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
            Self::ExternalCompletionQueue => verbs::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF,
            Self::CompletionCounters => verbs::EFADV_DEVICE_ATTR_CAPS_COMP_CNTR,
        }
    }

    /// What to do where it is missing.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::RdmaRead | Self::RdmaWrite => "use an instance type whose adapter has it",
            Self::UnsolicitedWriteReceive => "post receives for RDMA writes with immediate",
            Self::ExternalCompletionQueue => {
                "use host memory, or rdma-core 59 and kernel driver 2.17 or newer"
            }
            Self::CompletionCounters => {
                "poll completions, or use rdma-core 65 (or the EFA installer's 64.0amzn0) and kernel driver 3.3.0 or \
                 newer"
            }
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RdmaRead => "RDMA read",
            Self::RdmaWrite => "RDMA write",
            Self::UnsolicitedWriteReceive => "unsolicited write receive",
            Self::ExternalCompletionQueue => "completion queues in external memory",
            Self::CompletionCounters => "completion counters",
        })
    }
}

/// Limits and capabilities of an adapter (`efadv_device_attr`, `ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// The PCI vendor id and device id.
    pub pci: (u32, u32),
    /// Most entries of a send queue with 64-byte entries.
    pub max_send_entries: u32,
    /// Most entries of a receive queue.
    pub max_receive_entries: u32,
    /// Most segments of a SEND.
    pub max_send_segments: u16,
    /// Most inline bytes of a 64-byte entry.
    pub inline_bytes: u16,
    /// Most inline bytes of a 128-byte entry. Not more than `inline_bytes` where the adapter, or an rdma-core
    /// before 63, has no such entries.
    pub wide_inline_bytes: u16,
    /// Most bytes that one RDMA operation moves.
    pub max_rdma_bytes: u32,
    /// Most entries of a completion queue.
    pub max_completions: u32,
    capabilities: u32,
}

impl Attributes {
    /// Whether the adapter has `capability`, as far as the loaded rdma-core reports it.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities & capability.bit() != 0
    }

    /// Whether send queues may have 128-byte entries.
    pub fn has_wide_entries(&self) -> bool {
        self.wide_inline_bytes > self.inline_bytes
    }

    fn new(efa: &efadv_device_attr, plain: &ibv_device_attr) -> Self {
        Self {
            pci: (plain.vendor_id, plain.vendor_part_id),
            max_send_entries: efa.max_sq_wr,
            max_receive_entries: efa.max_rq_wr,
            max_send_segments: efa.max_sq_sge,
            inline_bytes: efa.inline_buf_size,
            wide_inline_bytes: efa.inline_buf_size_ex.max(efa.inline_buf_size),
            max_rdma_bytes: efa.max_rdma_size,
            max_completions: u32::try_from(plain.max_cqe).unwrap_or(0),
            capabilities: efa.device_caps,
        }
    }
}

/// The port of an adapter (`ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Whether the link is up (`IBV_PORT_ACTIVE`).
    pub active: bool,
    /// Most bytes that one SEND moves.
    pub max_message: u32,
}

impl Context {
    /// Takes ownership of an open device.
    ///
    /// # Safety
    /// `raw` must be an open context of `library` that no other code closes.
    pub(super) unsafe fn adopt(
        library: &Library,
        raw: NonNull<verbs::ibv_context>,
        name: String,
    ) -> Result<Self> {
        const QUERY: &str = "efadv_query_device";
        // SAFETY: the caller guarantees it, as this function requires. From here on an error closes it.
        let object = unsafe { Object::adopt(raw, library.clone(), ()) };
        let query = function!(library, efadv, efadv_query_device)?;
        let mut efa = efadv_device_attr::default();
        let size = inlen(&efa);
        // SAFETY: the context is open; `size` bytes can be written.
        let code = unsafe { query(object.raw(), &mut efa, size) };
        match check(QUERY, code) {
            Err(failure) if failure.code() == Some(libc::EOPNOTSUPP) => {
                return Err(error::not_efa(&name, &failure));
            }
            queried => queried?,
        }
        let query = function!(library, ibv, ibv_query_device)?;
        let mut plain = ibv_device_attr::default();
        // SAFETY: the context is open; the structure can be written.
        check("ibv_query_device", unsafe { query(object.raw(), &mut plain) })?;
        let attributes = Attributes::new(&efa, &plain);
        Ok(Self(Arc::new(Inner { object, name, attributes })))
    }

    /// The device's name under `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The adapter's limits and capabilities.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The rdma-core that the adapter was opened with.
    pub(crate) fn library(&self) -> &Library {
        self.0.object.library()
    }

    /// Queries the state of the port.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_query_port` fails.
    pub fn port(&self) -> Result<Port> {
        let query = function!(self.library(), ibv, ibv_query_port)?;
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open. The exported function fills in the beginning of the structure, and only
        // that is read.
        check("ibv_query_port", unsafe { query(self.raw(), PORT, (&raw mut attr).cast()) })?;
        Ok(Port { active: attr.state == verbs::IBV_PORT_ACTIVE, max_message: attr.max_msg_sz })
    }

    /// Returns how many bytes one request moves.
    ///
    /// # Errors
    /// Those of [`Self::port`].
    pub fn limits(&self) -> Result<Limits> {
        let attributes = self.attributes();
        let rdma = attributes.has(Capability::RdmaRead) || attributes.has(Capability::RdmaWrite);
        Ok(Limits {
            message: self.port()?.max_message as usize,
            rdma: if rdma { attributes.max_rdma_bytes as usize } else { 0 },
            reads: attributes.has(Capability::RdmaRead),
        })
    }

    /// Returns the adapter's address, which is its first GID, in the form of rdma-core's tools.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_query_gid` fails, with ENODATA for an address of zeroes, which is
    /// libibverbs's form of an empty entry.
    pub fn gid(&self) -> Result<Ipv6Addr> {
        const OPERATION: &str = "ibv_query_gid";
        let query = function!(self.library(), ibv, ibv_query_gid)?;
        let mut gid = verbs::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the structure can be written.
        check(OPERATION, unsafe { query(self.raw(), PORT, 0, &mut gid) })?;
        // SAFETY: every bit pattern is a GID, and all 16 bytes were written above.
        let bytes = unsafe { gid.raw };
        if bytes == [0; 16] {
            return Err(error::failed(OPERATION, libc::ENODATA));
        }
        Ok(bytes.into())
    }

    /// Refuses a capability that the adapter lacks, before a call that needs it.
    pub(super) fn require(&self, capability: Capability) -> Result<()> {
        if self.attributes().has(capability) {
            return Ok(());
        }
        Err(error::lacks(capability, self.name()))
    }

    /// Closes the adapter and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an object on it uses it; [`ErrorKind::Other`] where `ibv_close_device` fails.
    pub fn close(self) -> Result<()> {
        into_sole_owner(self.0).map_err(verbs::ibv_context::busy)?.object.close()
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_context {
        self.0.object.raw()
    }

    /// Whether both are handles of one opening of one device.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A protection domain. Clones are handles of one object, which is freed when the last clone and the last
/// object in it are dropped.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Object<verbs::ibv_pd, Context>>);

impl ProtectionDomain {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_alloc_pd` fails.
    pub fn allocate(context: &Context) -> Result<Self> {
        let allocate = function!(context.library(), ibv, ibv_alloc_pd)?;
        // SAFETY: the context is open.
        let raw = pointer("ibv_alloc_pd", unsafe { allocate(context.raw()) })?;
        // SAFETY: the object was just created, and no other handle to it exists.
        Ok(Self(Arc::new(unsafe { Object::adopt(raw, context.library().clone(), context.clone()) })))
    }

    /// The adapter of the domain.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Frees the domain and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an object in it uses it; [`ErrorKind::Other`] where `ibv_dealloc_pd`
    /// fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(super) fn library(&self) -> &Library {
        self.0.library()
    }

    /// Whether both are handles of the same domain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_pd {
        self.0.raw()
    }
}
