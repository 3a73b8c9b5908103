//! Memory that the host's processor does not reach: what libfabric must be told to register it, and
//! what keeps it allocated. Whose memory it is, and how it is read, is not known here.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_gda_sys::fi;

use super::error::{Error, Result};
use super::memory::{Access, MemoryRegion};
use super::object::{Padded, table_op};
use super::{Domain, Version};

const REGISTER: &str = "fi_mr_regattr";
/// The first API with FI_MR_DMABUF.
const FIRST_WITH_DMABUF: Version = Version::new(1, 20);

/// A range of a GPU's memory, as CUDA addresses it, and what keeps it allocated.
pub struct DeviceMemory {
    pub(super) address: NonNull<u8>,
    pub(super) length: usize,
    pub(super) ordinal: i32,
    pub(super) dmabuf: std::result::Result<Dmabuf, String>,
    pub(super) owner: Owner,
    pub(super) reader: Option<Reader>,
}

/// Keeps memory allocated while it lives.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// Copies the bytes at an address of device memory into the slice, or returns why that is not possible.
pub type Reader = Box<dyn Fn(u64, &mut [u8]) -> std::result::Result<(), String> + Send + Sync>;

/// A file that stands for device memory, and where in it a range begins.
#[derive(Debug)]
pub struct Dmabuf {
    /// The file.
    pub file: OwnedFd,
    /// First byte of the range in it.
    pub offset: u64,
}

// SAFETY: the address is handed to the adapter and never dereferenced.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

/// How device memory was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registration {
    /// As a dmabuf (FI_MR_DMABUF), which needs no module of the GPU maker's in the kernel.
    Dmabuf,
    /// By its address (FI_HMEM_CUDA): how it is reached is then the provider's choice.
    Address {
        /// Why not as a dmabuf.
        why: String,
    },
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dmabuf => f.write_str("dmabuf"),
            Self::Address { why } => write!(f, "by address, not as a dmabuf: {why}"),
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, length, ordinal, dmabuf, .. } = self;
        write!(f, "DeviceMemory({length} bytes at {address:p} of GPU {ordinal}, {dmabuf:?})")
    }
}

impl DeviceMemory {
    /// `length` bytes at `address` of the GPU that CUDA counts as `ordinal`; `dmabuf`, or why there is
    /// none. None where the address is 0.
    ///
    /// # Safety
    /// The range is the GPU's memory, and stays so until `owner` is dropped; a dmabuf is of that range.
    pub unsafe fn new(
        address: u64,
        length: usize,
        ordinal: i32,
        dmabuf: std::result::Result<Dmabuf, String>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Option<Self> {
        let address = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Self { address, length, ordinal, dmabuf, owner, reader: None })
    }

    /// Sets how the host reads the memory, which it must do for words of a completion counter. `reader` may rely on
    /// the owner, which lives as long as the memory is used.
    #[must_use]
    pub fn with_reader(mut self, reader: Reader) -> Self {
        self.reader = Some(reader);
        self
    }

    /// Its first byte, as the GPU and the adapter address it.
    pub fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The GPU, as CUDA counts.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }
}

impl MemoryRegion {
    /// Registers memory of a GPU, which the region then keeps allocated: as a dmabuf where there is one
    /// and the domain takes it, by its address otherwise. Says which, and why.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] with the answer to each way, [`Error::NoSuchCall`],
    /// [`Error::KeyNotAvailable`] or [`Error::KeyTooWide`].
    pub fn register_device(
        domain: &Domain,
        memory: DeviceMemory,
        access: Access,
    ) -> Result<(Self, Registration)> {
        let why = match as_dmabuf(domain, &memory, access) {
            Ok(raw) => {
                // SAFETY: just opened, known to nobody else; `memory` is its memory.
                let region = unsafe { Self::adopt_device(domain, raw, memory, access) }?;
                return Ok((region, Registration::Dmabuf));
            }
            Err(why) => why,
        };
        if domain.info().is_some_and(|info| info.caps() & fi::FI_HMEM == 0) {
            let address = "the domain was opened without FI_HMEM; ask the query for GPU memory".into();
            return Err(Error::DeviceMemory { dmabuf: why, address });
        }
        let part = fi::iovec { iov_base: memory.address.as_ptr().cast(), iov_len: memory.length };
        let mut attr = attributes(&memory, access);
        attr.value.__bindgen_anon_1.mr_iov = &part;
        // SAFETY: the attributes hold one part, of the device that they name.
        match unsafe { register(domain, &attr, 0) }? {
            Ok(raw) => {
                // SAFETY: as above.
                let region = unsafe { Self::adopt_device(domain, raw, memory, access) }?;
                Ok((region, Registration::Address { why }))
            }
            Err(address) => Err(Error::DeviceMemory { dmabuf: why, address }),
        }
    }
}

/// A region over the memory's dmabuf, or why not.
fn as_dmabuf(
    domain: &Domain,
    memory: &DeviceMemory,
    access: Access,
) -> std::result::Result<*mut fi::fid_mr, String> {
    let dmabuf = memory.dmabuf.as_ref().map_err(String::clone)?;
    if let Some(version) = domain.info().map(|info| info.api_version()).filter(|v| *v < FIRST_WITH_DMABUF) {
        return Err(format!(
            "the domain was opened at API {version}; FI_MR_DMABUF needs {FIRST_WITH_DMABUF}"
        ));
    }
    // The provider names the range by base and offset together.
    let base_addr = memory.address.as_ptr().wrapping_sub(dmabuf.offset as usize).cast();
    let fd = dmabuf.file.as_raw_fd();
    let part = fi::fi_mr_dmabuf { fd, offset: dmabuf.offset, len: memory.length, base_addr };
    let mut attr = attributes(memory, access);
    attr.value.__bindgen_anon_1.dmabuf = &part;
    // SAFETY: the attributes hold a dmabuf, as the flag says.
    unsafe { register(domain, &attr, fi::FI_MR_DMABUF) }.map_err(|error| error.to_string())?
}

fn attributes(memory: &DeviceMemory, access: Access) -> Padded<fi::fi_mr_attr> {
    Padded::new(fi::fi_mr_attr {
        iov_count: 1,
        access: access.bits(),
        iface: fi::FI_HMEM_CUDA,
        device: fi::fi_mr_attr__bindgen_ty_2 { cuda: memory.ordinal },
        ..Default::default()
    })
}

/// `fi_mr_regattr`: the region, or the answer in words.
///
/// # Safety
/// The attributes hold what `flags` says.
unsafe fn register(
    domain: &Domain,
    attr: &Padded<fi::fi_mr_attr>,
    flags: u64,
) -> Result<std::result::Result<*mut fi::fid_mr, String>> {
    let raw = domain.as_ptr();
    // SAFETY: an open domain points to its table, or to none.
    let register = unsafe { table_op!((*raw).mr, fi_ops_mr.regattr, REGISTER) }?;
    let context = super::object::InContext::context(domain);
    let mut region = null_mut();
    let turn = context.turn();
    // SAFETY: the domain is open; the attributes are whole, with zeroes behind them; `region` can be
    // written.
    let code = unsafe { register(raw.cast(), &attr.value, flags, &mut region) };
    drop(turn);
    Ok(match code {
        0 => Ok(region),
        code => Err(context.failure(REGISTER, code).to_string()),
    })
}
