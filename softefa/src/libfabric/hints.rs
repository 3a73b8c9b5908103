//! A copy of what an application's `fi_info` says, taken once at the border so that the rest works
//! on values. Serves hints to `fi_getinfo` and the info given to `fi_domain` and `fi_endpoint`.
//!
//! `fi_domain_attr` is as long as the *loaded* libfabric makes it, 192 bytes in 1.17: it is read
//! field by field, never as a whole, and nothing after `tclass` is read.

use efa_gda_sys::fi;

use super::ffi::text;

/// What an info says; attributes that it lacks are `None`.
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
    /// The bus number, where the info names a PCI device.
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

/// `fi_fabric_attr`, without `prov_name`, which libfabric itself matches.
#[derive(Clone, Debug, Default)]
pub(crate) struct FabricHints {
    pub(crate) object: Option<*mut fi::fid_fabric>,
    pub(crate) name: Option<String>,
    pub(crate) prov_version: u32,
}

impl Hints {
    /// Copies `info`; null gives `None`.
    ///
    /// # Safety
    /// An info that is not null was made by the loaded libfabric, or is laid out as it would be.
    pub(crate) unsafe fn read(info: *const fi::fi_info) -> Option<Self> {
        if info.is_null() {
            return None;
        }
        // SAFETY: not null, and fi_info has had these fields since API 1.7 (caller's contract).
        let info = unsafe { &*info };
        // SAFETY: each attribute is null or a struct whose beginning is the one declared; the
        // addresses have the lengths beside them (fi_getinfo's documentation).
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
                ep: copy(info.ep_attr),
                domain: DomainHints::read(info.domain_attr),
                fabric: FabricHints::read(info.fabric_attr),
                pci_bus: pci_bus(info.nic),
            })
        }
    }

    /// The memory registration modes that the application accepts, where it says so.
    pub(crate) fn mr_mode(&self) -> Option<i32> {
        self.domain.as_ref().map(|domain| domain.mr_mode)
    }
}

impl DomainHints {
    /// # Safety
    /// Null, or a `fi_domain_attr` of libfabric 1.17 or newer.
    unsafe fn read(attr: *const fi::fi_domain_attr) -> Option<Self> {
        if attr.is_null() {
            return None;
        }
        // SAFETY: the fields lie in the part that every release has; each is read by itself, so no
        // reference to the declared, longer struct arises. The name is null or a string.
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
    /// Null, or a `fi_fabric_attr`.
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
/// Null, or a readable T.
unsafe fn copy<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: not null here, so readable by the caller's contract.
    (!pointer.is_null()).then(|| unsafe { pointer.read() })
}

/// # Safety
/// Null, or `length` readable bytes.
unsafe fn bytes(pointer: *const u8, length: usize) -> Option<Vec<u8>> {
    // SAFETY: not null here, so as long as `length` says by the caller's contract.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, length) }.to_vec())
}

/// # Safety
/// Null, or a `fid_nic` whose attributes are null or readable.
unsafe fn pci_bus(nic: *const fi::fid_nic) -> Option<u8> {
    // SAFETY: null or readable at each step (caller's contract).
    unsafe {
        let bus = copy(copy(nic)?.bus_attr)?;
        (bus.bus_type == fi::FI_BUS_PCI).then_some(bus.attr.pci.bus_id)
    }
}
