//! What libfabric reports about an adapter: [`Info`], [`Nic`] and [`Version`].

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;

use super::Library;

/// A version as libfabric packs it: major in the upper 16 bits, minor in the lower 16. libfabric, its API and
/// its providers have such versions. A provider's major number is a hundred times libfabric's major number plus
/// its minor number: the efa provider of libfabric 2.6 reports 206.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// Makes a version from its parts.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self(fi::fi_version(major as u32, minor as u32))
    }

    /// Makes a version from libfabric's packed form.
    pub(crate) const fn from_packed(packed: u32) -> Self {
        Self(packed)
    }

    /// The part before the dot.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The part after the dot.
    pub(crate) const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// An `fi_info`: an adapter as one provider and fabric offer it. Clones share the structure.
#[derive(Clone)]
pub struct Info {
    raw: NonNull<fi::fi_info>,
    /// Keeps the list alive that `raw` is an element of. None for a borrowed info.
    list: Option<Arc<InfoList>>,
}

// SAFETY: the structure is only read after getinfo returned it, and its last owner frees it.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

/// The list that one `fi_getinfo` returned.
struct InfoList {
    head: NonNull<fi::fi_info>,
    library: Library,
}

// SAFETY: as for `Info`; fi_freeinfo may be called on any thread.
unsafe impl Send for InfoList {}
// SAFETY: as above.
unsafe impl Sync for InfoList {}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: the list came from this library, and no Info refers to it.
        unsafe { self.library.raw().freeinfo(self.head.as_ptr()) }
    }
}

/// What the provider reports about the adapter's hardware (`fid_nic`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// The device's name under `/sys/class/infiniband`.
    pub name: Option<String>,
    /// The PCI device id.
    pub device_id: Option<String>,
    /// The PCI vendor id.
    pub vendor_id: Option<String>,
    /// The hardware version.
    pub device_version: Option<String>,
    /// The kernel driver.
    pub driver: Option<String>,
    /// The firmware version.
    pub firmware: Option<String>,
    /// The PCI address.
    pub pci: Option<PciAddress>,
    /// The maximum transfer unit of the link, in bytes.
    pub mtu: Option<usize>,
    /// The speed of the link, in bits per second.
    pub speed: Option<usize>,
}

/// An address on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// The PCI domain.
    pub domain: u16,
    /// The bus.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The function of the device.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl Info {
    /// The elements of a list. The list is freed with the last of them.
    ///
    /// # Safety
    /// `head` must come from `fi_getinfo` of `library`, and no other code may use it.
    pub(super) unsafe fn from_list(library: &Library, head: NonNull<fi::fi_info>) -> Vec<Self> {
        let list = Arc::new(InfoList { head, library: library.clone() });
        let mut infos = Vec::new();
        let mut next = Some(head);
        while let Some(raw) = next {
            infos.push(Self { raw, list: Some(Arc::clone(&list)) });
            // SAFETY: each element of the list is a valid fi_info until the list is freed.
            next = NonNull::new(unsafe { (*raw.as_ptr()).next });
        }
        infos
    }

    /// Borrows an `fi_info` that other code owns, such as the transport that lends its domain.
    ///
    /// # Safety
    /// `raw` must be a valid `fi_info` of libfabric 1.17 or newer. It must not be changed or freed before the
    /// last clone of the result, and every object opened with a clone, is dropped.
    pub unsafe fn borrow(raw: NonNull<fi::fi_info>) -> Self {
        Self { raw, list: None }
    }

    /// Lowers the receive queue entries of endpoints to `most`. A queue has an entry for each segment of each receive:
    /// the provider asks rdma-core for `rx_attr->size` receives of as many segments as the adapter takes, which
    /// `rx_attr->iov_limit` reports (efa_base_ep_construct_ibv_qp_init_attr_ex, efa_prov_info.c).
    ///
    /// # Safety
    /// No other code may use the info meanwhile, and no object may have been opened with it.
    pub(super) unsafe fn limit_receives(&self, most: usize) {
        // SAFETY: null, or an attribute structure of this info, which the caller lends exclusively.
        if let Some(attr) = unsafe { self.raw().rx_attr.as_mut() } {
            attr.size = attr.size.min((most / attr.iov_limit.max(1)).max(1));
        }
    }

    /// The entries that a completion queue needs for all requests and receives of an endpoint that is opened with this
    /// info: those of its send queue and its receive queue together.
    pub fn completions(&self) -> usize {
        // SAFETY: each is null, or an attribute structure that lives as long as the info.
        let (send, receive) = unsafe { (self.raw().tx_attr.as_ref(), self.raw().rx_attr.as_ref()) };
        let rounded = |size: usize| size.checked_next_power_of_two().unwrap_or(size);
        let receives = receive.map_or(0, |attr| attr.size.saturating_mul(attr.iov_limit.max(1)));
        rounded(send.map_or(0, |attr| attr.size)).saturating_add(rounded(receives))
    }

    /// The raw structure, for calls that this library does not wrap.
    pub fn as_ptr(&self) -> *mut fi::fi_info {
        self.raw.as_ptr()
    }

    /// The library that returned the info. None for a borrowed info.
    pub(crate) fn library(&self) -> Option<&Library> {
        self.list.as_ref().map(|list| &list.library)
    }

    /// Whether the info came from `library`. True for a borrowed info, whose lender guarantees that it matches.
    pub(super) fn came_from(&self, library: &Library) -> bool {
        self.library().is_none_or(|origin| origin.path() == library.path())
    }

    fn raw(&self) -> &fi::fi_info {
        // SAFETY: the structure is valid and unchanged while this value lives: this value keeps its list, or
        // the caller of `borrow` guarantees it.
        unsafe { self.raw.as_ref() }
    }

    fn fabric(&self) -> Option<&fi::fi_fabric_attr> {
        // SAFETY: null, or an attribute structure that lives as long as the info.
        unsafe { self.raw().fabric_attr.as_ref() }
    }

    fn domain(&self) -> Option<&DomainNames> {
        // SAFETY: null, or an attribute structure at least as long as the prefix read here.
        unsafe { self.raw().domain_attr.cast::<DomainNames>().as_ref() }
    }

    /// The name of the fabric. On `efa-direct`, an endpoint is one queue pair.
    pub fn fabric_name(&self) -> Cow<'_, str> {
        self.fabric().map_or(Cow::Borrowed(""), |attr| text(attr.name).unwrap_or_default())
    }

    /// The name of the domain: the adapter's name with a suffix, such as `efa_0-rdm`. The fabrics `efa` and
    /// `efa-direct` give their domains the same names.
    pub fn domain_name(&self) -> Cow<'_, str> {
        self.domain().map_or(Cow::Borrowed(""), |attr| text(attr.name).unwrap_or_default())
    }

    /// The name of the provider: `efa`.
    pub fn provider_name(&self) -> Cow<'_, str> {
        self.fabric().map_or(Cow::Borrowed(""), |attr| text(attr.prov_name).unwrap_or_default())
    }

    /// The version of the provider.
    pub fn provider_version(&self) -> Version {
        Version(self.fabric().map_or(0, |attr| attr.prov_version))
    }

    /// The API version that the info was requested for.
    pub(crate) fn api_version(&self) -> Version {
        Version(self.fabric().map_or(0, |attr| attr.api_version))
    }

    /// The most bytes that one request moves: of a SEND or of an RDMA operation, whichever is larger.
    pub(crate) fn max_msg_size(&self) -> usize {
        let attr = self.raw().ep_attr.cast_const();
        if attr.is_null() {
            return 0;
        }
        // SAFETY: not null, and lives as long as the info. Every release has the field; the structure of releases
        // before 2.7 is shorter than the bindings', so no reference to it is made.
        unsafe { (&raw const (*attr).max_msg_size).read() }
    }

    /// The largest values of the adapter's completion counters: of successes, then of errors. None where the
    /// info's API is older than 2.5, which does not have these fields.
    pub(crate) fn max_counter_values(&self) -> Option<[u64; 2]> {
        const FIRST_WITH_COUNTER_VALUES: Version = Version::new(2, 5);
        let attr = self.raw().domain_attr.cast_const();
        if attr.is_null() || self.api_version() < FIRST_WITH_COUNTER_VALUES {
            return None;
        }
        // SAFETY: the structure is not null and lives as long as the info. A library that implements this API
        // has both fields. They are read one by one, because the library's structure may end sooner than the
        // bindings'.
        unsafe {
            Some([(&raw const (*attr).max_cntr_value).read(), (&raw const (*attr).max_err_cntr_value).read()])
        }
    }

    /// How many contexts for a device (`fi_xpu_ctx`) the domain has room for; 0 means that it has no FI_XPU. None where
    /// the info's API is older than 2.7, which does not have this field.
    pub fn max_xpu_contexts(&self) -> Option<usize> {
        const FIRST_WITH_XPU: Version = Version::new(2, 7);
        let attr = self.raw().domain_attr.cast_const();
        if attr.is_null() || self.api_version() < FIRST_WITH_XPU {
            return None;
        }
        // SAFETY: not null, and lives as long as the info. A library that implements this API has the field.
        Some(unsafe { (&raw const (*attr).max_xpu_ctx_cnt).read() })
    }

    /// Capabilities (`fi_info::caps`).
    pub fn caps(&self) -> u64 {
        self.raw().caps
    }

    /// Modes that the caller must follow (`fi_info::mode`).
    pub(crate) fn mode(&self) -> u64 {
        self.raw().mode
    }

    /// The local address in the provider's format. Empty where the provider assigns it when an endpoint is
    /// opened.
    pub fn source_address(&self) -> &[u8] {
        // SAFETY: src_addr is null or has src_addrlen bytes, for as long as the info lives.
        unsafe { bytes(self.raw().src_addr.cast(), self.raw().src_addrlen) }
    }

    /// What the provider reports about the adapter's hardware. None where it reports nothing.
    pub fn nic(&self) -> Option<Nic> {
        // SAFETY: null, or a fid_nic that lives as long as the info.
        let nic = unsafe { self.raw().nic.as_ref() }?;
        let mut hardware = Nic::default();
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(device) = unsafe { nic.device_attr.as_ref() } {
            hardware.name = text_owned(device.name);
            hardware.device_id = text_owned(device.device_id);
            hardware.vendor_id = text_owned(device.vendor_id);
            hardware.device_version = text_owned(device.device_version);
            hardware.driver = text_owned(device.driver);
            hardware.firmware = text_owned(device.firmware);
        }
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(bus) = unsafe { nic.bus_attr.as_ref() }
            && bus.bus_type == fi::FI_BUS_PCI
        {
            // SAFETY: the bus type states that the union holds a PCI address.
            let pci = unsafe { bus.attr.pci };
            hardware.pci = Some(PciAddress {
                domain: pci.domain_id,
                bus: pci.bus_id,
                device: pci.device_id,
                function: pci.function_id,
            });
        }
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(link) = unsafe { nic.link_attr.as_ref() } {
            hardware.mtu = Some(link.mtu).filter(|mtu| *mtu != 0);
            hardware.speed = Some(link.speed).filter(|speed| *speed != 0);
        }
        Some(hardware)
    }

    /// Whether `name` names this adapter: its domain, its device, or its domain without the endpoint suffix.
    pub fn matches_name(&self, name: &str) -> bool {
        let domain = self.domain_name();
        domain == name
            || domain.rsplit_once('-').is_some_and(|(device, _)| device == name)
            || self.nic().and_then(|nic| nic.name).is_some_and(|device| device == name)
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("provider", &self.provider_name())
            .field("provider_version", &self.provider_version())
            .field("fabric", &self.fabric_name())
            .field("domain", &self.domain_name())
            .finish_non_exhaustive()
    }
}

/// The beginning of `fi_domain_attr`. Libraries append to that structure, so a reference to the whole of it
/// might reach past the end of an older library's structure.
#[repr(C)]
struct DomainNames {
    domain: *mut fi::fid_domain,
    name: *mut c_char,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(DomainNames, name) == offset_of!(fi::fi_domain_attr, name));
};

fn text<'a>(string: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: callers pass strings of an info: null, or ended by a zero byte and alive while the info is.
    // Callers bind the result to a borrow of the info.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy())
}

fn text_owned(string: *const c_char) -> Option<String> {
    text(string).map(Cow::into_owned)
}

/// # Safety
/// `start` must be null or have `length` bytes that live for `'a`.
unsafe fn bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it, as this function requires.
    unsafe { std::slice::from_raw_parts(start, length) }
}
