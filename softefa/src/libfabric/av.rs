//! Address vectors: a table from `fi_addr_t` to an endpoint's address and the adapter's address handle for
//! its GID. The handles themselves are objects of the device core.

use std::ffi::{c_char, c_int, c_void};
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda_sys::fi;
use efa_gda_wire::{AddressHandle, QueueKey, QueuePairNumber};

use crate::device::Gid;

use super::candidate::ADDRESS_LENGTH;
use super::domain::{Domain, Shared};
use super::ffi::{self, Code, Object, UNUSED};
use super::references::{Reference, ReferenceCount};

/// An open address vector.
#[repr(C)]
pub(crate) struct AddressVector {
    fid: fi::fid_av,
    table: Arc<Table>,
    references: ReferenceCount,
    _reference: Reference,
}

/// The addresses, shared with the endpoints that the vector is bound to.
pub(crate) struct Table {
    pub(crate) domain: Arc<Shared>,
    /// Each entry owns one reference to its address handle.
    entries: Mutex<Vec<Option<Entry>>>,
}

#[derive(Clone, Copy)]
struct Entry {
    address: EndpointAddress,
    handle: AddressHandle,
}

/// An endpoint's address as applications exchange it: 32 bytes (`struct efa_ep_addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointAddress {
    pub(crate) gid: [u8; 16],
    pub(crate) queue_pair: QueuePairNumber,
    pub(crate) queue_key: QueueKey,
}

impl EndpointAddress {
    pub(crate) fn to_bytes(self) -> [u8; ADDRESS_LENGTH] {
        let mut bytes = [0; ADDRESS_LENGTH];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..18].copy_from_slice(&self.queue_pair.get().to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.queue_key.get().to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ADDRESS_LENGTH]) -> Self {
        let (mut gid, mut key) = ([0; 16], [0; 4]);
        gid.copy_from_slice(&bytes[..16]);
        key.copy_from_slice(&bytes[20..24]);
        Self {
            gid,
            queue_pair: QueuePairNumber::new(u16::from_ne_bytes([bytes[16], bytes[17]])),
            queue_key: QueueKey::new(u32::from_ne_bytes(key)),
        }
    }
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::only_close(close);

static OPS: ffi::Table<fi::fi_ops_av> = ffi::Table::new(fi::fi_ops_av {
    size: size_of::<fi::fi_ops_av>(),
    insert: Some(insert),
    insertsvc: UNUSED,
    insertsym: UNUSED,
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: UNUSED,
    insert_auth_key: UNUSED,
    lookup_auth_key: UNUSED,
    set_user_id: UNUSED,
    lookup2: UNUSED,
});

// SAFETY: repr(C), begins with fid_av, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for AddressVector {
    const CLASS: u32 = fi::FI_CLASS_AV;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

impl AddressVector {
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    pub(crate) fn add_reference(&self) -> Reference {
        self.references.add()
    }
}

impl Table {
    /// The address handle and address at `index`.
    pub(crate) fn get(&self, index: fi::fi_addr_t) -> Result<(AddressHandle, EndpointAddress), Code> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(index).map_err(|_| Code::INVALID)?;
        let entry = entries.get(index).copied().flatten().ok_or(Code::INVALID)?;
        Ok((entry.handle, entry.address))
    }

    /// Returns the index of `address`, after inserting it if it is not in the table.
    fn insert(&self, address: EndpointAddress) -> Result<fi::fi_addr_t, Code> {
        if address.gid == [0; 16] {
            return Err(Code::ADDRESS_NOT_AVAILABLE);
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = entries.iter().position(|slot| slot.is_some_and(|entry| entry.address == address));
        if let Some(index) = existing {
            return Ok(index as fi::fi_addr_t);
        }
        let handle = self.domain.adapter.create_address_handle(self.domain.pd, Gid(address.gid))?;
        let entry = Some(Entry { address, handle });
        let index = entries.iter().position(Option::is_none).unwrap_or(entries.len());
        match entries.get_mut(index) {
            Some(slot) => *slot = entry,
            None => entries.push(entry),
        }
        Ok(index as fi::fi_addr_t)
    }

    fn remove(&self, index: fi::fi_addr_t) -> Result<(), Code> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(index).map_err(|_| Code::INVALID)?;
        let entry = entries.get_mut(index).and_then(Option::take).ok_or(Code::INVALID)?;
        Ok(self.domain.adapter.destroy_address_handle(entry.handle)?)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let entries = self.entries.get_mut().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.iter().flatten() {
            if let Err(error) = self.domain.adapter.destroy_address_handle(entry.handle) {
                ffi::log(format_args!(
                    "address vector: destroying address handle {} on close failed: {error}",
                    entry.handle
                ));
            }
        }
    }
}

/// `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_av_attr,
    av: *mut *mut fi::fid_av,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
        if attr.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null; every release's struct has these fields. Names, and the flags for events and
        // symmetric tables, are not provided, as in the real provider.
        unsafe {
            if !(*attr).name.is_null() || (*attr).flags != 0 {
                return Err(Code::NOT_PROVIDED);
            }
            (*attr).type_ = fi::FI_AV_TABLE;
        }
        let object = AddressVector {
            fid: fi::fid_av { fid: ffi::header::<AddressVector>(context), ops: OPS.as_ptr() },
            table: Arc::new(Table { domain: domain.shared(), entries: Mutex::default() }),
            references: ReferenceCount::default(),
            _reference: domain.add_reference(),
        };
        // SAFETY: libfabric's contract: `av` is null or can be written.
        unsafe { ffi::expose_to(av, Box::new(object)) }
    })
}

unsafe extern "C" fn insert(
    av: *mut fi::fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    _context: *mut c_void,
) -> c_int {
    ffi::count_entry(|| {
        // SAFETY: libfabric's contract: an open address vector.
        let av = unsafe { ffi::object::<AddressVector>(av.cast()) }?;
        if flags & !fi::FI_MORE != 0 {
            return Err(Code::NOT_PROVIDED);
        }
        if addr.is_null() && count != 0 {
            return Err(Code::INVALID);
        }
        let mut inserted = 0;
        let mut failed = false;
        for index in 0..count {
            // SAFETY: libfabric's contract: `addr` has `count` addresses of 32 bytes each, of any alignment.
            let bytes = unsafe { addr.cast::<[u8; ADDRESS_LENGTH]>().add(index).read_unaligned() };
            // After the first failure, the remaining addresses are not inserted and get FI_ADDR_NOTAVAIL.
            let result = if failed {
                Err(Code::ADDRESS_NOT_AVAILABLE)
            } else {
                av.table.insert(EndpointAddress::from_bytes(&bytes))
            };
            failed = result.is_err();
            inserted += usize::from(!failed);
            if !fi_addr.is_null() {
                // SAFETY: not null, so it has space for `count` results (libfabric's contract).
                unsafe { fi_addr.add(index).write(result.unwrap_or(fi::FI_ADDR_NOTAVAIL)) };
            }
        }
        Ok(inserted)
    }) as c_int
}

unsafe extern "C" fn remove(
    av: *mut fi::fid_av,
    fi_addr: *mut fi::fi_addr_t,
    count: usize,
    _flags: u64,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open address vector.
        let av = unsafe { ffi::object::<AddressVector>(av.cast()) }?;
        if fi_addr.is_null() {
            return Err(Code::INVALID);
        }
        for index in 0..count {
            // SAFETY: libfabric's contract: `fi_addr` has `count` indices.
            av.table.remove(unsafe { fi_addr.add(index).read() })?;
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(
    av: *mut fi::fid_av,
    fi_addr: fi::fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open address vector.
        let av = unsafe { ffi::object::<AddressVector>(av.cast()) }?;
        let (_, address) = av.table.get(fi_addr)?;
        // SAFETY: libfabric's contract: `addr` has `addrlen` bytes.
        unsafe { copy_out(&address.to_bytes(), addr, addrlen) }
    })
}

/// Copies as much of `bytes` as fits to `out`, and sets `length` to the number of bytes copied.
///
/// # Safety
/// `length` is null or points to the size of `out`, which is null or can be written.
unsafe fn copy_out(bytes: &[u8], out: *mut c_void, length: *mut usize) -> Result<(), Code> {
    if length.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null.
    let copied = unsafe { *length }.min(bytes.len());
    if out.is_null() && copied != 0 {
        return Err(Code::INVALID);
    }
    // SAFETY: `out` has at least `copied` bytes, and `length` can be written (caller's contract).
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), copied);
        *length = copied;
    }
    Ok(())
}

/// `fi_av_straddr`: writes the text that libfabric prints: `fi_addr_efa://[gid]:qpn:qkey`.
unsafe extern "C" fn straddr(
    _av: *mut fi::fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    let written = ffi::entry(|| {
        if addr.is_null() || buf.is_null() || len.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: an address of 32 bytes, of any alignment.
        let address =
            EndpointAddress::from_bytes(&unsafe { addr.cast::<[u8; ADDRESS_LENGTH]>().read_unaligned() });
        let text = format!(
            "fi_addr_efa://[{}]:{}:{}\0",
            Ipv6Addr::from(address.gid),
            address.queue_pair.get(),
            address.queue_key.get()
        );
        // SAFETY: `buf` has `len` bytes. A truncated text is terminated, and `len` becomes the length of the
        // whole text (fi_av_straddr's documentation).
        unsafe {
            let copied = (*len).min(text.len());
            buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), copied);
            if copied != 0 {
                buf.add(copied - 1).write(0);
            }
            *len = text.len();
        }
        Ok(())
    });
    if written == 0 { buf } else { std::ptr::null() }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<AddressVector>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no endpoint is bound.
        unsafe { ffi::reclaim::<AddressVector>(fid) }.map(drop)
    })
}
