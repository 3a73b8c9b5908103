//! `fi_info` for C, made from an offer.
//!
//! libfabric frees an info and its attributes with `free`, and copies each attribute by the size
//! that *it* gives the struct: `fi_domain_attr` has 192 bytes in 1.17 and 232 in 2.6, and others
//! grew after 2.6. So every struct is allocated with room beyond any release and zeroed: the
//! beginning is common to all releases, and a newer libfabric finds zeroes, its "unspecified",
//! where this provider knows no field. The alternative, `fi_dupinfo(NULL)` of the libfabric that
//! loaded this provider, would have to be found: it may be loaded with RTLD_LOCAL, and several may
//! share the process, so a look-up by name can find the wrong one.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use efa_gda_sys::fi;

use super::candidate::{ADDRESS_LENGTH, Candidate};
use super::ffi::Code;
use super::nic;

/// Bytes given to each struct; the longest known, `fi_domain_attr` of 2.6, has 232.
const STRUCT_BYTES: usize = 1024;

/// A list of infos under construction; freed unless handed over.
pub(crate) struct InfoList {
    head: *mut fi::fi_info,
    tail: *mut fi::fi_info,
}

impl InfoList {
    pub(crate) fn new() -> Self {
        Self { head: ptr::null_mut(), tail: ptr::null_mut() }
    }

    /// Appends the info for `offer`, at API version `version`.
    ///
    /// # Errors
    /// [`Code::NO_MEMORY`]; the list is as before.
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

    /// Hands the list to libfabric, which frees it; null when it is empty.
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
            // SAFETY: made by `allocate`, owned by this list, visited once.
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
    // SAFETY: zeroed and large enough, and every pointer in it is null or set below to memory that
    // `free` releases; nothing else sees it yet.
    let result = unsafe { fill(&mut *info, candidate, version, destination) };
    if let Err(code) = result {
        // SAFETY: made above, handed to nobody.
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
    // SAFETY: allocated on the line above; the field lies in the declared beginning.
    unsafe { (*info.domain_attr).name = string(&candidate.adapter.domain_name())? };
    info.fabric_attr = allocate_copy(fi::fi_fabric_attr {
        fabric: candidate.fabric_object,
        // prov_name and prov_version are set by libfabric's core; a name given here would be
        // taken for a layer below and doubled.
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

/// Zeroed memory from the C allocator, of at least [`ROOM`] bytes.
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

/// A C string from the C allocator.
pub(crate) fn string(text: &str) -> Result<*mut c_char, Code> {
    let text = CString::new(text).map_err(|_| Code::INVALID)?;
    // SAFETY: a string that ends in a zero byte.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Code::NO_MEMORY) } else { Ok(copy) }
}

/// What `fi_freeinfo` does for one info.
///
/// # Safety
/// `info` was made by `allocate` and is not used again.
unsafe fn free(info: *mut fi::fi_info) {
    // SAFETY: every pointer is null or from the C allocator, owned by this info; the nic is null or
    // a fid of this provider.
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
