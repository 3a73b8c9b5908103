//! Addresses of an adapter ([`Gid`]) and of a queue pair ([`Address`]), and the adapter's handle for another
//! adapter ([`AddressHandle`]).

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use efa_gda_sys::verbs::{self, efadv_ah_attr, ibv_ah_attr};
use efa_gda_wire as wire;
use efa_gda_wire::{Peer, QueueKey, QueuePairNumber};

use super::context::PORT;
use super::object::{InLibrary, Object, check, function, inlen, pointer};
use super::{Library, ProtectionDomain, Result};

/// The address of an adapter: 16 bytes in network byte order (`union ibv_gid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid([u8; 16]);

impl Gid {
    /// Makes an address from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Formats the address as an IPv6 address, as rdma-core's tools do.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

/// What a peer needs to send to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The adapter.
    pub gid: Gid,
    /// The queue pair.
    pub queue_pair: QueuePairNumber,
    /// The queue key that the queue pair expects.
    pub queue_key: QueueKey,
}

/// Bytes whose length is not that of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the address has length {found}; that of a queue pair has length {}: pass the one that the peer reports",
    Address::BYTES
)]
#[non_exhaustive]
pub struct AddressMalformed {
    /// The number of bytes.
    pub found: usize,
}

impl Address {
    /// Length of the raw form.
    pub const BYTES: usize = 32;

    /// Encodes the address in this host's byte order, in the form that libfabric's efa provider returns and
    /// takes (`struct efa_ep_addr` of `prov/efa`), so that endpoints and queue pairs reach each other. The GID
    /// is at offset 0, the queue pair number at 16, the queue key at 20; other bytes are 0.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..18].copy_from_slice(&self.queue_pair.get().to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.queue_key.get().to_ne_bytes());
        bytes
    }

    /// Decodes an address.
    ///
    /// # Errors
    /// [`AddressMalformed`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, AddressMalformed> {
        let whole: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| AddressMalformed { found: bytes.len() })?;
        let (mut gid, mut number, mut key) = ([0; 16], [0; 2], [0; 4]);
        gid.copy_from_slice(&whole[..16]);
        number.copy_from_slice(&whole[16..18]);
        key.copy_from_slice(&whole[20..24]);
        Ok(Self {
            gid: Gid(gid),
            queue_pair: QueuePairNumber::new(u16::from_ne_bytes(number)),
            queue_key: QueueKey::new(u32::from_ne_bytes(key)),
        })
    }
}

/// An adapter's handle for a remote adapter. Clones are handles of one object, which is destroyed when the last
/// clone is dropped. It must not be destroyed while requests that name it are in flight;
/// [`super::QueuePair::peer`] keeps the handles that it creates.
#[derive(Clone, Debug)]
pub(super) struct AddressHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    object: Object<verbs::ibv_ah, ProtectionDomain>,
    gid: Gid,
    number: wire::AddressHandle,
}

impl InLibrary for AddressHandle {
    fn library(&self) -> &Library {
        self.0.object.parents().library()
    }
}

impl AddressHandle {
    /// Creates a handle for the adapter with `gid`, for queue pairs of `domain`.
    ///
    /// # Errors
    /// [`super::Error::Call`] where `ibv_create_ah` or `efadv_query_ah` fails.
    pub(super) fn create(domain: &ProtectionDomain, gid: Gid) -> Result<Self> {
        let library = domain.library();
        let create = function!(library, ibv, ibv_create_ah)?;
        let query = function!(library, efadv, efadv_query_ah)?;
        // SAFETY: a plain C structure for which all zeroes is a value.
        let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.port_num = PORT;
        attr.is_global = 1;
        attr.grh.dgid.raw = gid.0;
        // SAFETY: the domain is live; the attributes are complete.
        let raw = pointer("ibv_create_ah", unsafe { create(domain.raw(), &mut attr) })?;
        // SAFETY: the object was just created, and no other handle to it exists.
        let object = unsafe { Object::adopt(raw, domain.clone()) };
        let mut efa = efadv_ah_attr::default();
        let size = inlen(&efa);
        // SAFETY: the handle is live; `size` bytes can be written.
        check("efadv_query_ah", unsafe { query(object.raw(), &mut efa, size) })?;
        let number = wire::AddressHandle::new(efa.ahn);
        Ok(Self(Arc::new(Inner { object, gid, number })))
    }

    /// The address of the remote adapter.
    pub(super) fn gid(&self) -> Gid {
        self.0.gid
    }

    /// The number of the handle in entries (`efadv_ah_attr::ahn`).
    pub(super) fn number(&self) -> wire::AddressHandle {
        self.0.number
    }

    /// Describes a queue pair of that adapter, for entries that are sent to it.
    pub(super) fn peer(&self, queue_pair: QueuePairNumber, queue_key: QueueKey) -> Peer {
        Peer { address_handle: self.number(), queue_pair, queue_key }
    }
}
