//! What libfabric says about an adapter: [`Info`], and the version numbers in it.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;

use super::Library;

/// A version as libfabric packs it: major in the high half, minor in the low one. Used for
/// libfabric, for its API, and for providers, whose major number is a hundred times the release's
/// plus its minor (the efa provider of libfabric 2.6 says 206.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// A version from its parts.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self(fi::fi_version(major as u32, minor as u32))
    }

    /// A version as libfabric packs it.
    pub const fn from_packed(packed: u32) -> Self {
        Self(packed)
    }

    /// As libfabric packs it.
    pub const fn packed(self) -> u32 {
        self.0
    }

    /// The part before the point.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The part behind the point.
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// One `fi_info`: an adapter as one provider and fabric offer it. Cheap to clone.
#[derive(Clone)]
pub struct Info {
    raw: NonNull<fi::fi_info>,
    /// Keeps the list alive that `raw` is an element of; None for a borrowed one.
    list: Option<Arc<InfoList>>,
}

// SAFETY: the structure is read only once getinfo has returned, and freed by its last owner.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

/// The list that one `fi_getinfo` returned.
struct InfoList {
    head: NonNull<fi::fi_info>,
    library: Library,
}

// SAFETY: see `Info`; fi_freeinfo may be called on any thread.
unsafe impl Send for InfoList {}
// SAFETY: as above.
unsafe impl Sync for InfoList {}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: the list came from this library, and no Info refers to it any more.
        unsafe { self.library.raw().freeinfo(self.head.as_ptr()) }
    }
}

/// What an adapter says about its place in the machine (`fid_nic`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// The device's name, as under `/sys/class/infiniband`.
    pub name: Option<String>,
    /// The PCI device id.
    pub device_id: Option<String>,
    /// The PCI vendor id.
    pub vendor_id: Option<String>,
    /// The hardware's version.
    pub device_version: Option<String>,
    /// The kernel driver.
    pub driver: Option<String>,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// Where it sits on the PCI bus.
    pub pci: Option<PciAddress>,
    /// The link's address, as text.
    pub link_address: Option<String>,
    /// The link's maximum transfer unit, in bytes.
    pub mtu: Option<usize>,
    /// The link's speed, in bits a second.
    pub speed: Option<usize>,
    /// Whether the link is up; None where that is not known.
    pub link_up: Option<bool>,
}

/// A place on the PCI bus.
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
    /// The elements of a list, which frees itself with the last of them.
    ///
    /// # Safety
    /// `head` came from `fi_getinfo` of `library` and is not used elsewhere.
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

    /// An `fi_info` that somebody else owns, such as the transport that lends its domain.
    ///
    /// # Safety
    /// `raw` is a valid `fi_info` of libfabric 1.17 or newer that is neither changed nor freed
    /// before the last clone of the result, and everything opened with one, is gone.
    pub unsafe fn borrow(raw: NonNull<fi::fi_info>) -> Self {
        Self { raw, list: None }
    }

    /// The structure itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut fi::fi_info {
        self.raw.as_ptr()
    }

    /// The library that it came from; None for a borrowed one.
    pub fn library(&self) -> Option<&Library> {
        self.list.as_ref().map(|list| &list.library)
    }

    /// Whether it came from `library`. A borrowed one is whoever lent it's to answer for.
    pub(super) fn came_from(&self, library: &Library) -> bool {
        self.library().is_none_or(|mine| mine.path() == library.path())
    }

    fn get(&self) -> &fi::fi_info {
        // SAFETY: valid and unchanged while this value lives: by the list that it keeps, or by the
        // promise of whoever lent it.
        unsafe { self.raw.as_ref() }
    }

    fn fabric(&self) -> Option<&fi::fi_fabric_attr> {
        // SAFETY: null, or an attribute structure that lives as long as the info.
        unsafe { self.get().fabric_attr.as_ref() }
    }

    fn domain(&self) -> Option<&DomainNames> {
        // SAFETY: null, or an attribute structure at least as long as the prefix read here.
        unsafe { self.get().domain_attr.cast::<DomainNames>().as_ref() }
    }

    /// The fabric: `efa-direct`, where an endpoint is one queue pair.
    pub fn fabric_name(&self) -> Cow<'_, str> {
        self.fabric().map_or(Cow::Borrowed(""), |attr| text(attr.name).unwrap_or_default())
    }

    /// The domain, named after the adapter with a suffix: `efa_0-rdm`. The fabrics `efa` and
    /// `efa-direct` give their domains the same names.
    pub fn domain_name(&self) -> Cow<'_, str> {
        self.domain().map_or(Cow::Borrowed(""), |attr| text(attr.name).unwrap_or_default())
    }

    /// The provider: `efa`.
    pub fn provider_name(&self) -> Cow<'_, str> {
        self.fabric().map_or(Cow::Borrowed(""), |attr| text(attr.prov_name).unwrap_or_default())
    }

    /// The provider's release.
    pub fn provider_version(&self) -> Version {
        Version(self.fabric().map_or(0, |attr| attr.prov_version))
    }

    /// The API version that the info was made for.
    pub fn api_version(&self) -> Version {
        Version(self.fabric().map_or(0, |attr| attr.api_version))
    }

    /// Bytes that one SEND or one RDMA operation carries at most, whichever is larger.
    pub fn max_msg_size(&self) -> usize {
        // SAFETY: null, or an attribute structure that lives as long as the info.
        unsafe { self.get().ep_attr.as_ref() }.map_or(0, |attr| attr.max_msg_size)
    }

    /// Bytes that an entry carries inline.
    pub fn inject_size(&self) -> usize {
        // SAFETY: null, or an attribute structure that lives as long as the info.
        unsafe { self.get().tx_attr.as_ref() }.map_or(0, |attr| attr.inject_size)
    }

    /// The largest values of the adapter's completion counters, of successes and of errors. None where the
    /// info's API is older than 2.5, which does not say.
    pub fn max_counter_values(&self) -> Option<[u64; 2]> {
        const FIRST_WITH_COUNTER_VALUES: Version = Version::new(2, 5);
        let attr = self.get().domain_attr.cast_const();
        if attr.is_null() || self.api_version() < FIRST_WITH_COUNTER_VALUES {
            return None;
        }
        // SAFETY: not null, and lives as long as the info; a library that answers for this API has both
        // fields, which are read one by one, for it may have less behind them than the bindings.
        unsafe {
            Some([(&raw const (*attr).max_cntr_value).read(), (&raw const (*attr).max_err_cntr_value).read()])
        }
    }

    /// Capabilities (`fi_info::caps`).
    pub fn caps(&self) -> u64 {
        self.get().caps
    }

    /// Modes that the caller must keep to (`fi_info::mode`).
    pub fn mode(&self) -> u64 {
        self.get().mode
    }

    /// The local address, as the provider writes it. Empty where it comes with the endpoint.
    pub fn source_address(&self) -> &[u8] {
        // SAFETY: src_addr is null or has src_addrlen bytes, for as long as the info lives.
        unsafe { bytes(self.get().src_addr.cast(), self.get().src_addrlen) }
    }

    /// The remote address that was asked for. Usually empty.
    pub fn destination_address(&self) -> &[u8] {
        // SAFETY: dest_addr is null or has dest_addrlen bytes, for as long as the info lives.
        unsafe { bytes(self.get().dest_addr.cast(), self.get().dest_addrlen) }
    }

    /// What is known about the adapter; None where the provider says nothing.
    pub fn nic(&self) -> Option<Nic> {
        // SAFETY: null, or a fid_nic that lives as long as the info.
        let nic = unsafe { self.get().nic.as_ref() }?;
        let mut found = Nic::default();
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(device) = unsafe { nic.device_attr.as_ref() } {
            found.name = owned(device.name);
            found.device_id = owned(device.device_id);
            found.vendor_id = owned(device.vendor_id);
            found.device_version = owned(device.device_version);
            found.driver = owned(device.driver);
            found.firmware = owned(device.firmware);
        }
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(bus) = unsafe { nic.bus_attr.as_ref() }
            && bus.bus_type == fi::FI_BUS_PCI
        {
            // SAFETY: the bus type says that the union holds a PCI address.
            let pci = unsafe { bus.attr.pci };
            found.pci = Some(PciAddress {
                domain: pci.domain_id,
                bus: pci.bus_id,
                device: pci.device_id,
                function: pci.function_id,
            });
        }
        // SAFETY: null, or an attribute structure of the nic.
        if let Some(link) = unsafe { nic.link_attr.as_ref() } {
            found.link_address = owned(link.address);
            found.mtu = Some(link.mtu).filter(|mtu| *mtu != 0);
            found.speed = Some(link.speed).filter(|speed| *speed != 0);
            found.link_up = match link.state {
                fi::FI_LINK_UP => Some(true),
                fi::FI_LINK_DOWN => Some(false),
                _ => None,
            };
        }
        Some(found)
    }

    /// Whether `name` means this adapter: its domain, its device, or its domain without the
    /// endpoint suffix.
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

/// The beginning of `fi_domain_attr`: libraries append to that structure, and a reference to all
/// of it might reach past an older library's copy.
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
    // SAFETY: only strings of an info come here: null, or ended by a zero byte, and alive while the
    // info is; callers bind the result to a borrow of it.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy())
}

fn owned(string: *const c_char) -> Option<String> {
    text(string).map(Cow::into_owned)
}

/// # Safety
/// `start` is null or has `length` bytes that live for `'a`.
unsafe fn bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: passed on to the caller.
    unsafe { std::slice::from_raw_parts(start, length) }
}
