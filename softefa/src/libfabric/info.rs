//! `fi_info` for C, allocated from a candidate. The values are chosen in `candidate` and `negotiation`.
//!
//! libfabric frees an info and its attributes with `free`, and copies each attribute with the size that the
//! struct has in *that* libfabric: `fi_domain_attr` has 192 bytes in 1.17 and 240 in 2.7, `fi_ep_attr` 96 before
//! 2.7 and 104 since. Therefore every struct is allocated larger than in any release, and zeroed. All releases
//! share the beginning of a struct, and a newer libfabric reads zero ("unspecified") in fields that this
//! provider does not know.
//!
//! The alternative is `fi_dupinfo(NULL)` of the libfabric that loaded this provider. It cannot be found
//! reliably: that libfabric may be loaded with RTLD_LOCAL, and several libfabrics may share the process, so a
//! lookup by name can return the wrong one.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use efa_gda_sys::fi;

use super::candidate::{ADDRESS_LENGTH, Candidate};
use super::ffi::Code;
use super::nic;

/// The bytes allocated for each struct. The longest known struct, `fi_domain_attr` of 2.7, has 240.
const STRUCT_BYTES: usize = 1024;

/// A list of infos under construction. It is freed on drop unless [`InfoList::into_raw`] transfers it to C.
pub(crate) struct InfoList {
    head: *mut fi::fi_info,
    tail: *mut fi::fi_info,
}

impl InfoList {
    pub(crate) fn new() -> Self {
        Self { head: ptr::null_mut(), tail: ptr::null_mut() }
    }

    /// Appends the info for `candidate`, at API version `version`.
    ///
    /// # Errors
    /// [`Code::NO_MEMORY`]; the list is unchanged.
    pub(crate) fn push(
        &mut self,
        candidate: &Candidate<'_>,
        version: u32,
        destination: Option<[u8; ADDRESS_LENGTH]>,
    ) -> Result<(), Code> {
        let info = allocate(candidate, version, destination)?;
        if self.tail.is_null() {
            self.head = info;
        } else {
            // SAFETY: `tail` is the last info of this list, which only this value owns.
            unsafe { (*self.tail).next = info };
        }
        self.tail = info;
        Ok(())
    }

    /// Transfers the list to libfabric, which frees it. Null for an empty list.
    pub(crate) fn into_raw(self) -> *mut fi::fi_info {
        let head = self.head;
        std::mem::forget(self);
        head
    }
}

impl Drop for InfoList {
    fn drop(&mut self) {
        let mut info = self.head;
        while !info.is_null() {
            // SAFETY: allocated by `allocate`, owned by this list, and freed once.
            unsafe {
                let next = (*info).next;
                free(info);
                info = next;
            }
        }
    }
}

fn allocate(
    candidate: &Candidate<'_>,
    version: u32,
    destination: Option<[u8; ADDRESS_LENGTH]>,
) -> Result<*mut fi::fi_info, Code> {
    let info = zeroed::<fi::fi_info>()?;
    // SAFETY: zeroed and large enough. Every pointer in it is null, or set by `fill` to memory that `free`
    // releases. No other code has the address yet.
    let result = unsafe { fill(&mut *info, candidate, version, destination) };
    if let Err(code) = result {
        // SAFETY: allocated above, and no other code has the address.
        unsafe { free(info) };
        return Err(code);
    }
    Ok(info)
}

fn fill(
    info: &mut fi::fi_info,
    candidate: &Candidate<'_>,
    version: u32,
    destination: Option<[u8; ADDRESS_LENGTH]>,
) -> Result<(), Code> {
    info.caps = candidate.caps;
    info.mode = candidate.mode;
    info.addr_format = fi::FI_ADDR_EFA;
    info.handle = candidate.handle;
    info.src_addr = allocate_copy(candidate.adapter.address())?.cast();
    info.src_addrlen = ADDRESS_LENGTH;
    if let Some(address) = destination {
        info.dest_addr = allocate_copy(address)?.cast();
        info.dest_addrlen = ADDRESS_LENGTH;
    }
    info.tx_attr = allocate_copy(candidate.tx)?;
    info.rx_attr = allocate_copy(candidate.rx)?;
    info.ep_attr = allocate_copy(candidate.ep)?;
    info.domain_attr = allocate_copy(candidate.domain)?;
    // SAFETY: allocated on the line above; the field is in the declared part.
    unsafe { (*info.domain_attr).name = string(&candidate.adapter.domain_name())? };
    info.fabric_attr = allocate_copy(fi::fi_fabric_attr {
        fabric: candidate.fabric_object,
        // libfabric's core sets prov_name and prov_version. It would treat a name that is set here as a
        // layered provider's and append its own.
        ..Default::default()
    })?;
    // SAFETY: allocated just above.
    unsafe {
        (*info.fabric_attr).name = string(candidate.fabric.name())?;
        (*info.fabric_attr).api_version = version;
    }
    info.nic = nic::expose(candidate.adapter)?;
    Ok(())
}

/// Zeroed memory from the C allocator, of [`STRUCT_BYTES`] bytes.
fn zeroed<T>() -> Result<*mut T, Code> {
    const { assert!(size_of::<T>() <= STRUCT_BYTES && align_of::<T>() <= 16) };
    // SAFETY: calloc takes any sizes.
    let memory = unsafe { libc::calloc(1, STRUCT_BYTES) };
    if memory.is_null() { Err(Code::NO_MEMORY) } else { Ok(memory.cast()) }
}

fn allocate_copy<T>(value: T) -> Result<*mut T, Code> {
    let memory = zeroed::<T>()?;
    // SAFETY: fresh memory, large and aligned enough (asserted in `zeroed`).
    unsafe { memory.write(value) };
    Ok(memory)
}

/// Copies `text` into a C string from the C allocator.
pub(crate) fn string(text: &str) -> Result<*mut c_char, Code> {
    let text = CString::new(text).map_err(|_| Code::INVALID)?;
    // SAFETY: a string that ends in a zero byte.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Code::NO_MEMORY) } else { Ok(copy) }
}

/// Frees one info, as `fi_freeinfo` does.
///
/// # Safety
/// `info` must come from `allocate` and must not be used again.
unsafe fn free(info: *mut fi::fi_info) {
    // SAFETY: every pointer is null or from the C allocator, and owned by this info. The nic is null or a fid
    // of this provider.
    unsafe {
        let owned: [*mut c_void; 5] = [
            (*info).src_addr,
            (*info).dest_addr,
            (*info).tx_attr.cast(),
            (*info).rx_attr.cast(),
            (*info).ep_attr.cast(),
        ];
        owned.into_iter().for_each(|pointer| libc::free(pointer));
        if !(*info).domain_attr.is_null() {
            libc::free((*(*info).domain_attr).name.cast());
            libc::free((*info).domain_attr.cast());
        }
        if !(*info).fabric_attr.is_null() {
            libc::free((*(*info).fabric_attr).name.cast());
            libc::free((*info).fabric_attr.cast());
        }
        if !(*info).nic.is_null() {
            nic::close((*info).nic.cast());
        }
        libc::free(info.cast());
    }
}
