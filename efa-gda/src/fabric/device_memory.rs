//! Registration of GPU memory with libfabric: as a dmabuf where possible, else by address.

use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

use efa_gda_sys::fi;

use super::error;
use super::object::{Padded, table_op};
use super::{Domain, Version};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::memory::{Access, DeviceMemory, Region};

const REGISTER: &str = "fi_mr_regattr";
/// The first API with FI_MR_DMABUF.
const FIRST_WITH_DMABUF: Version = Version::new(1, 20);

impl Domain {
    /// Registers GPU memory, which the region keeps allocated: as a dmabuf (FI_MR_DMABUF), which the GPU's driver exports,
    /// where the memory has one and the domain accepts it, else by address (FI_HMEM_CUDA). A dmabuf needs no second
    /// kernel module of the GPU vendor (nvidia-peermem); for an address, the provider chooses how the adapter reaches the
    /// memory. Returns why it is no dmabuf; None if it is one.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with the reason why each way failed; [`ErrorKind::Other`] for a key that no entry can
    /// carry.
    pub fn register_device(&self, memory: DeviceMemory, access: Access) -> Result<(Region, Option<String>)> {
        let why = match as_dmabuf(self, &memory, access) {
            Ok(raw) => {
                // SAFETY: the region was just opened on `memory`, and no other handle to it exists.
                let region = unsafe { self.adopt_device(raw, memory, access) }?;
                return Ok((region, None));
            }
            Err(why) => why,
        };
        if self.info().is_some_and(|info| info.caps() & fi::FI_HMEM == 0) {
            let address = "the domain was opened without FI_HMEM; ask the query for GPU memory";
            return Err(error::device_memory(&why, address));
        }
        let part = fi::iovec { iov_base: memory.address.as_ptr().cast(), iov_len: memory.length };
        let mut attr = attributes(&memory, access);
        attr.value.__bindgen_anon_1.mr_iov = &part;
        // SAFETY: the attributes hold one part, in memory of the device that they name.
        match unsafe { register(self, &attr, access.registration_flags()) }? {
            Ok(raw) => {
                // SAFETY: as above.
                let region = unsafe { self.adopt_device(raw, memory, access) }?;
                Ok((region, Some(why)))
            }
            Err(address) => Err(error::device_memory(&why, &address)),
        }
    }
}

/// Registers the memory's dmabuf. The error is the reason why that is not possible.
fn as_dmabuf(
    domain: &Domain,
    memory: &DeviceMemory,
    access: Access,
) -> std::result::Result<NonNull<fi::fid_mr>, String> {
    let dmabuf = memory.dmabuf.as_ref().map_err(String::clone)?;
    if let Some(version) = domain.info().map(|info| info.api_version()).filter(|v| *v < FIRST_WITH_DMABUF) {
        return Err(format!(
            "the domain was opened at API {version}; FI_MR_DMABUF needs {FIRST_WITH_DMABUF}"
        ));
    }
    // The provider computes the address of the range as base plus offset.
    let base_addr = memory.address.as_ptr().wrapping_sub(dmabuf.offset as usize).cast();
    let fd = dmabuf.file.as_raw_fd();
    let part = fi::fi_mr_dmabuf { fd, offset: dmabuf.offset, len: memory.length, base_addr };
    let mut attr = attributes(memory, access);
    attr.value.__bindgen_anon_1.dmabuf = &part;
    let flags = fi::FI_MR_DMABUF | access.registration_flags();
    // SAFETY: the attributes hold a dmabuf, as the flag requires.
    unsafe { register(domain, &attr, flags) }.map_err(|error| error.to_string())?
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

/// Calls `fi_mr_regattr`. Returns the region, or the provider's error as text.
///
/// # Safety
/// The attributes must hold what `flags` states.
unsafe fn register(
    domain: &Domain,
    attr: &Padded<fi::fi_mr_attr>,
    flags: u64,
) -> Result<std::result::Result<NonNull<fi::fid_mr>, String>> {
    let raw = domain.as_ptr();
    // SAFETY: an open domain points to its operation table, or to null.
    let register = unsafe { table_op!((*raw).mr, fi_ops_mr.regattr, REGISTER) }?;
    let context = domain.context();
    let mut region = null_mut();
    let serialized = context.serialize_calls();
    // SAFETY: the domain is open; the attributes are complete, with zeroes after them; `region` can be
    // written.
    let code = unsafe { register(raw.cast(), &attr.value, flags, &mut region) };
    drop(serialized);
    Ok(match code {
        0 => Ok(NonNull::new(region).ok_or(error::no_object(REGISTER))?),
        code => Err(context.failure(REGISTER, code).to_string()),
    })
}
