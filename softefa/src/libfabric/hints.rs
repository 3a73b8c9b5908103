//! A copy of an application's `fi_info`, made once at the boundary to C so that the other modules work on
//! values. It reads hints of `fi_getinfo` and the infos passed to `fi_domain` and `fi_endpoint`, and checks
//! none of the values.
//!
//! The lengths of `fi_domain_attr` (192 bytes in 1.17) and `fi_ep_attr` (96 bytes before 2.7) depend on the *loaded*
//! libfabric. Therefore no field after `tclass` and `auth_key` is read, and neither is read as a whole.

use std::mem::offset_of;

use efa_gda_sys::fi;

use super::ffi::text;

/// The values of an info. An attribute struct that the info lacks is `None`.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) source: Option<Vec<u8>>,
    pub(crate) destination: Option<Vec<u8>>,
    pub(crate) handle: fi::fid_t,
    pub(crate) tx: Option<fi::fi_tx_attr>,
    pub(crate) rx: Option<fi::fi_rx_attr>,
    pub(crate) ep: Option<fi::fi_ep_attr>,
    pub(crate) domain: Option<DomainHints>,
    pub(crate) fabric: Option<FabricHints>,
    /// The bus number, if the info names a PCI device.
    pub(crate) pci_bus: Option<u8>,
}

/// The part of `fi_domain_attr` that every supported libfabric has.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainHints {
    pub(crate) object: Option<*mut fi::fid_domain>,
    pub(crate) name: Option<String>,
    pub(crate) threading: fi::fi_threading,
    pub(crate) progress: fi::fi_progress,
    pub(crate) resource_mgmt: fi::fi_resource_mgmt,
    pub(crate) av_type: fi::fi_av_type,
    pub(crate) mr_mode: i32,
    pub(crate) cq_data_size: usize,
    pub(crate) cntr_cnt: usize,
    pub(crate) mr_iov_limit: usize,
    pub(crate) caps: u64,
    pub(crate) auth_key_size: usize,
    pub(crate) max_err_data: usize,
    pub(crate) mr_cnt: usize,
}

/// `fi_fabric_attr` without `prov_name`, which libfabric's core compares.
#[derive(Clone, Debug, Default)]
pub(crate) struct FabricHints {
    pub(crate) object: Option<*mut fi::fid_fabric>,
    pub(crate) name: Option<String>,
    pub(crate) prov_version: u32,
}

impl Hints {
    /// Copies `info`; `None` for null.
    ///
    /// # Safety
    /// `info` must be null, or allocated by the loaded libfabric or laid out in the same way.
    pub(crate) unsafe fn read(info: *const fi::fi_info) -> Option<Self> {
        if info.is_null() {
            return None;
        }
        // SAFETY: not null, and fi_info has had these fields since API 1.7 (caller's contract).
        let info = unsafe { &*info };
        // SAFETY: each attribute is null or a struct that begins with the declared fields. Each address has
        // the length in the field after it (fi_getinfo's documentation).
        unsafe {
            Some(Self {
                caps: info.caps,
                mode: info.mode,
                addr_format: info.addr_format,
                source: bytes(info.src_addr.cast(), info.src_addrlen),
                destination: bytes(info.dest_addr.cast(), info.dest_addrlen),
                handle: info.handle,
                tx: copy(info.tx_attr),
                rx: copy(info.rx_attr),
                ep: copy_prefix(info.ep_attr, offset_of!(fi::fi_ep_attr, xpu_ctx)),
                domain: DomainHints::read(info.domain_attr),
                fabric: FabricHints::read(info.fabric_attr),
                pci_bus: pci_bus(info.nic),
            })
        }
    }

    /// The memory registration modes that the application accepts, if the hints have domain attributes.
    pub(crate) fn mr_mode(&self) -> Option<i32> {
        self.domain.as_ref().map(|domain| domain.mr_mode)
    }
}

impl DomainHints {
    /// # Safety
    /// `attr` must be null or a `fi_domain_attr` of libfabric 1.17 or newer.
    unsafe fn read(attr: *const fi::fi_domain_attr) -> Option<Self> {
        if attr.is_null() {
            return None;
        }
        // SAFETY: every release has these fields. Each is read separately, so that no reference to the
        // declared struct exists, which may be longer than the actual one. The name is null or a string.
        unsafe {
            Some(Self {
                object: non_null((*attr).domain),
                name: text((*attr).name).map(str::to_owned),
                threading: (*attr).threading,
                progress: (*attr).__bindgen_anon_1.progress,
                resource_mgmt: (*attr).resource_mgmt,
                av_type: (*attr).av_type,
                mr_mode: (*attr).mr_mode,
                cq_data_size: (*attr).cq_data_size,
                cntr_cnt: (*attr).cntr_cnt,
                mr_iov_limit: (*attr).mr_iov_limit,
                caps: (*attr).caps,
                auth_key_size: (*attr).auth_key_size,
                max_err_data: (*attr).max_err_data,
                mr_cnt: (*attr).mr_cnt,
            })
        }
    }
}

impl FabricHints {
    /// # Safety
    /// `attr` must be null or a `fi_fabric_attr`.
    pub(crate) unsafe fn read(attr: *const fi::fi_fabric_attr) -> Option<Self> {
        // SAFETY: null or readable (caller's contract).
        let attr = unsafe { copy(attr)? };
        // SAFETY: the name is null or a string.
        let name = unsafe { text(attr.name) }.map(str::to_owned);
        Some(Self { object: non_null(attr.fabric), name, prov_version: attr.prov_version })
    }
}

fn non_null<T>(pointer: *mut T) -> Option<*mut T> {
    (!pointer.is_null()).then_some(pointer)
}

/// # Safety
/// `pointer` must be null or a readable T.
unsafe fn copy<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: not null here, so readable by the caller's contract.
    (!pointer.is_null()).then(|| unsafe { pointer.read() })
}

/// The first `length` bytes of a T, followed by its defaults: a structure that a newer release extended.
///
/// # Safety
/// `pointer` must be null or have `length` readable bytes, which must be a prefix of a T.
unsafe fn copy_prefix<T: Copy + Default>(pointer: *const T, length: usize) -> Option<T> {
    if pointer.is_null() {
        return None;
    }
    let mut value = T::default();
    // SAFETY: `length` bytes are readable by the caller's contract; they fit `value`, because the length is capped.
    unsafe {
        let to = (&raw mut value).cast::<u8>();
        to.copy_from_nonoverlapping(pointer.cast(), length.min(size_of::<T>()));
    }
    Some(value)
}

/// # Safety
/// `pointer` must be null or have `length` readable bytes.
unsafe fn bytes(pointer: *const u8, length: usize) -> Option<Vec<u8>> {
    // SAFETY: not null here, so `length` bytes are readable by the caller's contract.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, length) }.to_vec())
}

/// # Safety
/// `nic` must be null or a `fid_nic` whose attributes are null or readable.
unsafe fn pci_bus(nic: *const fi::fid_nic) -> Option<u8> {
    // SAFETY: null or readable at each step (caller's contract).
    unsafe {
        let bus = copy(copy(nic)?.bus_attr)?;
        (bus.bus_type == fi::FI_BUS_PCI).then_some(bus.attr.pci.bus_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_attributes_of_releases_before_2_7_are_not_read_past_their_end() {
        const PAGE: usize = 4096;
        const BYTES: usize = 96;
        // SAFETY: a new mapping of two pages, the second of which is then not accessible.
        let attr = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            pages.byte_add(PAGE - BYTES).cast::<fi::fi_ep_attr>()
        };
        // SAFETY: the first and the last field of the old structure, within the first page.
        unsafe {
            (&raw mut (*attr).type_).write(fi::FI_EP_RDM);
            (&raw mut (*attr).auth_key_size).write(7);
        }
        let info = fi::fi_info { ep_attr: attr, ..Default::default() };
        // SAFETY: an info without other attributes.
        let hints = unsafe { Hints::read(&info) }.expect("not null");
        let ep = hints.ep.expect("the info has endpoint attributes");
        assert_eq!((ep.type_, ep.auth_key_size, ep.xpu_ctx.is_null()), (fi::FI_EP_RDM, 7, true));
    }
}
