//! Completion queues. A queue whose entries a GPU or this library polls is never read through libfabric,
//! because two readers would each get a part of the completions: [`CompletionQueue::read`] claims the queue as a mapped
//! queue does.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda_sys::fi;
use efa_gda_wire::CompletionStatus;

use super::Domain;
use super::domain::close_shared;
use super::error::{Error, Result};
use super::gda::{CQ_OPEN_EXT, CqOpenExt, cq_error};
use super::object::{Context, InContext, Object, Padded, table_op};
use crate::memory::{ExternalMemory, Owner};
use crate::polling::{Completing, Polling, Unclaimable};

/// A completion queue. Clones are handles of one queue, which is closed when the last clone and the last
/// endpoint bound to it are dropped.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Object<fi::fid_cq, CqParents>>);

#[derive(Debug)]
struct CqParents {
    /// Counts the endpoints that complete on the queue, and records whether a mapped queue polls it.
    polling: Polling,
    /// Whether an endpoint that completes here was opened with FI_CONTEXT2.
    contexts: AtomicBool,
    /// Whether the first [`CompletionQueue::read`] has claimed the queue.
    reading: Mutex<bool>,
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
        Self {
            polling: Polling::default(),
            contexts: AtomicBool::new(false),
            reading: Mutex::new(false),
            memory,
            domain: domain.clone(),
        }
    }
}

impl InContext for CqParents {
    fn context(&self) -> &Context {
        self.domain.context()
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

/// A completion that the host read through libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCompletion {
    /// The adapter's status.
    pub status: CompletionStatus,
    /// libfabric's flags of the operation: FI_RMA or FI_MSG, with FI_WRITE, FI_READ, FI_SEND, FI_RECV or
    /// FI_REMOTE_WRITE.
    pub flags: u64,
    /// Bytes that were received; 0 for requests of this side.
    pub bytes: usize,
    /// The immediate, where the completion has one (FI_REMOTE_CQ_DATA).
    pub immediate: Option<u32>,
}

impl HostCompletion {
    fn of(entry: &fi::fi_cq_data_entry) -> Self {
        let has_data = entry.flags & fi::FI_REMOTE_CQ_DATA != 0;
        Self {
            status: CompletionStatus::Ok,
            flags: entry.flags,
            bytes: entry.len,
            immediate: has_data.then_some(entry.data as u32),
        }
    }

    /// `prov_errno` is the status of the adapter's completion; other numbers are the provider's own. 0 would be the
    /// status of a success, which the provider does not report as an error.
    fn failed(entry: &fi::fi_cq_err_entry) -> Self {
        let code = u8::try_from(entry.prov_errno).ok().filter(|code| *code != 0);
        let status = CompletionStatus::from_code(code.unwrap_or(u8::MAX));
        Self { status, flags: entry.flags, bytes: 0, immediate: None }
    }
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
        Ok(Self(Arc::new(unsafe { Object::open(OPERATION, parents, call) }?)))
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
        // SAFETY: no other handle exists to the queue that the call opens.
        Ok(Self(Arc::new(unsafe { Object::open_or(CQ_OPEN_EXT, parents, cq_error, call) }?)))
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

    /// Registers another endpoint that completes on the queue. `contexts`: it was opened with FI_CONTEXT2.
    ///
    /// # Errors
    /// [`Error::CompletionQueuePolled`] where a mapped queue, or this library, polls it.
    pub(super) fn register_endpoint(&self, contexts: bool) -> Result<Completing> {
        let parents = self.0.parents();
        let completing = parents.polling.begin().ok_or(Error::CompletionQueuePolled)?;
        // Relaxed: the caller orders the bind and later reads.
        parents.contexts.fetch_or(contexts, Ordering::Relaxed);
        Ok(completing)
    }

    /// Reads the next completion through libfabric (`fi_cq_read`), also of a request that a device posted. The endpoint
    /// must be opened with an info of a query with [`host_completions`](super::Query::host_completions). The first call
    /// claims the queue: no mapped queue can poll it then, and no further endpoint can complete on it.
    ///
    /// # Errors
    /// [`Error::ContextsNeeded`] for an endpoint with FI_CONTEXT2; [`Error::CompletionQueuePolled`] where a mapped
    /// queue polls the queue, or more than one endpoint completes on it; [`Error::Call`] where `fi_cq_read` fails.
    pub fn read(&self) -> Result<Option<HostCompletion>> {
        const READ: &str = "fi_cq_read";
        const READ_ERROR: &str = "fi_cq_readerr";
        let parents = self.0.parents();
        if parents.contexts.load(Ordering::Relaxed) {
            return Err(Error::ContextsNeeded);
        }
        let mut reading = parents.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reading {
            parents.polling.claim_cleared().map_err(|_| Error::CompletionQueuePolled)?;
            *reading = true;
        }
        let (raw, context) = (self.0.raw(), self.0.context());
        let mut entry = fi::fi_cq_data_entry::default();
        // SAFETY: an open queue points to its operation table, or to null.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cq.read, READ) }?;
        let _serialized = context.serialize_calls();
        // SAFETY: the queue is open; its format is FI_CQ_FORMAT_DATA, of which `entry` is one entry.
        let count = unsafe { read(raw, (&raw mut entry).cast(), 1) } as i32;
        match count {
            1 => return Ok(Some(HostCompletion::of(&entry))),
            0 => return Ok(None),
            code if code == -libc::EAGAIN => return Ok(None),
            code if code == -(fi::FI_EAVAIL as i32) => {}
            code => return Err(Error::Call(context.failure(READ, code))),
        }
        let mut failed = Padded::new(fi::fi_cq_err_entry::default());
        // SAFETY: an open queue points to its operation table, or to null.
        let read_error = unsafe { table_op!((*raw).ops, fi_ops_cq.readerr, READ_ERROR) }?;
        // SAFETY: the queue is open; the entry is at least as long as that of the requested API, with zeroes after it.
        match unsafe { read_error(raw, &mut failed.value, 0) } as i32 {
            1 => Ok(Some(HostCompletion::failed(&failed.value))),
            code if code == -libc::EAGAIN => Ok(None),
            code => Err(Error::Call(context.failure(READ_ERROR, code))),
        }
    }

    /// Closes the queue and reports the result.
    ///
    /// # Errors
    /// [`Error::Busy`] while a clone or an endpoint uses it; [`Error::Call`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        close_shared(self.0, "completion queue")
    }

    /// The raw queue, for calls that this library does not wrap.
    pub fn as_ptr(&self) -> *mut fi::fid_cq {
        self.0.raw()
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_entry_is_never_a_success() {
        let status = |prov_errno| {
            HostCompletion::failed(&fi::fi_cq_err_entry { prov_errno, ..Default::default() }).status
        };
        let bad_address = CompletionStatus::RemoteBadAddress;
        assert_eq!(status(bad_address.code().into()), bad_address);
        for other in [0, -1, 4096] {
            assert_eq!(status(other), CompletionStatus::Unknown(u8::MAX), "{other}");
        }
    }
}
