//! Completion queues. A GPU or this library polls the entries, and nothing reads them through libfabric, because two
//! readers would each get a part of the completions.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use efa_gda_sys::fi;

use super::Domain;
use super::error::CQ_OPEN_EXT;
use super::object::{Context, Object, Padded, table_op};
#[cfg(doc)]
use crate::ErrorKind;
use crate::memory::{ExternalMemory, Owner};
use crate::polling::{Completing, Polling, Unclaimable};
use crate::{Error, Result};

pub(super) type CqOpenExt = unsafe extern "C" fn(
    *mut fi::fid_domain,
    *mut fi::fi_cq_attr,
    *mut fi::fi_efa_cq_init_attr,
    *mut *mut fi::fid_cq,
    *mut c_void,
) -> c_int;

/// A completion queue. Clones are handles of one queue, which is closed when the last clone and the last
/// endpoint bound to it are dropped.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Object<fi::fid_cq, CqParents>>);

#[derive(Debug)]
struct CqParents {
    /// Counts the endpoints that complete on the queue, and records whether a mapped queue polls it.
    polling: Polling,
    memory: Memory,
    domain: Domain,
}

/// The memory of the entries.
enum Memory {
    /// Memory of the provider or of the caller that the host reads.
    Host,
    /// Memory of a GPU, with the value that keeps it allocated.
    Device { ordinal: i32, _owner: Owner },
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("Host"),
            Self::Device { ordinal, .. } => write!(f, "Gpu({ordinal})"),
        }
    }
}

impl CqParents {
    fn new(domain: &Domain, memory: Memory) -> Self {
        Self { polling: Polling::default(), memory, domain: domain.clone() }
    }
}

/// Attributes of a queue that is polled and never waited on.
fn attributes(entries: usize) -> Padded<fi::fi_cq_attr> {
    Padded::new(fi::fi_cq_attr {
        size: entries,
        format: fi::FI_CQ_FORMAT_DATA,
        wait_obj: fi::FI_WAIT_NONE,
        ..Default::default()
    })
}

impl CompletionQueue {
    /// See [`Domain::completion_queue`].
    pub(super) fn open(domain: &Domain, entries: usize) -> Result<Self> {
        const OPERATION: &str = "fi_cq_open";
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its operation table, or to null.
        let open = unsafe { table_op!((*raw).ops, fi_ops_domain.cq_open, OPERATION) }?;
        let mut attr = attributes(entries);
        let call = |cq: *mut _| {
            // SAFETY: the domain is open; the attributes are complete, with zeroes after them; `cq` can be written.
            unsafe { open(raw, &mut attr.value, cq, std::ptr::null_mut()) }
        };
        let parents = CqParents::new(domain, Memory::Host);
        // SAFETY: no other handle exists to the queue that the call opens.
        Ok(Self(Arc::new(unsafe { Object::open(OPERATION, domain.context(), parents, call) }?)))
    }

    /// Calls `cq_open_ext`, whose presence [`super::GdaOps`] has checked.
    pub(super) fn open_external(
        domain: &Domain,
        open: CqOpenExt,
        memory: &ExternalMemory<'_>,
        entries: usize,
        device: Option<(i32, Owner)>,
    ) -> Result<Self> {
        let mut attr = attributes(entries);
        let mut init = Padded::new(fi::fi_efa_cq_init_attr {
            flags: fi::FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF.into(),
            ..Default::default()
        });
        init.value.ext_mem_dmabuf.buffer = memory.buffer;
        init.value.ext_mem_dmabuf.length = memory.length;
        init.value.ext_mem_dmabuf.offset = memory.offset;
        init.value.ext_mem_dmabuf.fd =
            u32::try_from(memory.dmabuf.as_raw_fd()).expect("a borrowed descriptor is not negative");
        let call = |cq: *mut _| {
            // SAFETY: the domain is open; both attribute structures are complete, with zeroes after them; `cq` can be
            // written.
            unsafe { open(domain.as_ptr(), &mut attr.value, &mut init.value, cq, std::ptr::null_mut()) }
        };
        let memory = match device {
            Some((ordinal, owner)) => Memory::Device { ordinal, _owner: owner },
            None => Memory::Host,
        };
        let parents = CqParents::new(domain, memory);
        let error = |context: &Context, code| context.failure(CQ_OPEN_EXT, code).of_gda();
        // SAFETY: no other handle exists to the queue that the call opens.
        let object = unsafe { Object::open_or(CQ_OPEN_EXT, domain.context(), parents, error, call) };
        Ok(Self(Arc::new(object?)))
    }

    /// The CUDA ordinal of the GPU in whose memory the entries are. None where the host reads them.
    pub fn device(&self) -> Option<i32> {
        match self.0.parents().memory {
            Memory::Device { ordinal, .. } => Some(ordinal),
            Memory::Host => None,
        }
    }

    /// Makes the caller the only reader of the entries, for the only endpoint that completes on the queue.
    pub(crate) fn claim(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().polling.claim()
    }

    /// Registers another endpoint that completes on the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a mapped queue polls it.
    pub(super) fn register_endpoint(&self) -> Result<Completing> {
        self.0.parents().polling.begin().ok_or_else(|| {
            let why = "a mapped queue polls the completion queue, so no other endpoint may complete on it";
            Error::busy(why).with_hint("open another completion queue for this endpoint")
        })
    }

    /// Closes the queue and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an endpoint uses it; [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(crate) fn as_ptr(&self) -> *mut fi::fid_cq {
        self.0.raw()
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}
