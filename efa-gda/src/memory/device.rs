//! GPU memory, and memory of the caller for a completion queue.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Keeps memory allocated while it lives.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Copies the bytes at an address of GPU memory into the slice, or returns the reason why it cannot.
pub(crate) type Reader = Box<dyn Fn(u64, &mut [u8]) -> Result<(), String> + Send + Sync>;

/// A range of GPU memory, as CUDA addresses it, with the value that keeps it allocated.
pub struct DeviceMemory {
    pub(crate) address: NonNull<u8>,
    pub(crate) length: usize,
    pub(crate) ordinal: i32,
    pub(crate) dmabuf: Result<Dmabuf, String>,
    pub(crate) owner: Owner,
    pub(crate) reader: Option<Reader>,
}

/// A file that represents GPU memory in the kernel, and where a range begins in it.
#[derive(Debug)]
pub struct Dmabuf {
    /// The file.
    pub file: OwnedFd,
    /// Offset of the range in the file, in bytes.
    pub offset: u64,
}

// SAFETY: this library passes the address on and never dereferences it.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, length, ordinal, dmabuf, .. } = self;
        write!(f, "DeviceMemory({length} bytes at {address:p} of GPU {ordinal}, {dmabuf:?})")
    }
}

impl DeviceMemory {
    /// Describes `length` bytes at `address` of the GPU with CUDA ordinal `ordinal`. `dmabuf` is the
    /// range's dmabuf, or the reason why there is none. None where the address is 0.
    ///
    /// # Safety
    /// The range must be memory of that GPU until `owner` is dropped. A dmabuf must represent that range.
    pub unsafe fn new(
        address: u64,
        length: usize,
        ordinal: i32,
        dmabuf: Result<Dmabuf, String>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Option<Self> {
        let address = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Self { address, length, ordinal, dmabuf, owner, reader: None })
    }

    /// Sets how the host reads the memory, which words of a completion counter need. The owner lives as long as the
    /// memory is used, so `reader` may rely on it.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_reader(mut self, reader: Reader) -> Self {
        self.reader = Some(reader);
        self
    }
}

/// Memory of the caller for the entries of a completion queue, as a dmabuf
/// (`ext_mem_dmabuf` of `fi_efa_cq_init_attr` and of `efadv_cq_init_attr`).
///
/// The caller must zero the memory first, because the phase bit of the first lap is 1.
#[derive(Debug)]
pub struct ExternalMemory<'a> {
    /// The dmabuf. The provider takes a reference to it.
    pub dmabuf: BorrowedFd<'a>,
    /// Offset of the first entry in the dmabuf, in bytes.
    pub offset: u64,
    /// Bytes for the entries.
    pub length: u64,
    /// Address at which the host reads the first entry. A query of the queue returns this address, and a
    /// mapped queue that the host drives polls there.
    pub buffer: *mut u8,
}
