//! Address vectors: translate a peer's raw address to a number that other calls take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::fi;

use super::Domain;
use super::error;
use super::object::{Object, Padded, table_op};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;

/// A peer in an [`AddressVector`] (`fi_addr_t`). Other vectors refuse it, because libfabric releases before 2.5
/// read past their tables for a number that they did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FabricAddress {
    number: fi::fi_addr_t,
    vector: u64,
}

/// An address vector. Clones are handles of one vector, which is closed when the last clone and the last
/// endpoint bound to it are dropped.
#[derive(Clone, Debug)]
pub struct AddressVector(Arc<Object<fi::fid_av, AvParents>>);

#[derive(Debug)]
struct AvParents {
    /// Identifies the vector, also after another one was closed and its memory reused.
    identity: u64,
    domain: Domain,
}

impl AddressVector {
    /// See [`Domain::address_vector`].
    pub(super) fn open(domain: &Domain, count: usize) -> Result<Self> {
        const OPERATION: &str = "fi_av_open";
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its operation table, or to null.
        let open = unsafe { table_op!((*raw).ops, fi_ops_domain.av_open, OPERATION) }?;
        let mut attr = Padded::new(fi::fi_av_attr { type_: fi::FI_AV_TABLE, count, ..Default::default() });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parents = AvParents { identity: NEXT.fetch_add(1, Ordering::Relaxed), domain: domain.clone() };
        let call = |av: *mut _| {
            // SAFETY: the domain is open; the attributes are complete, with zeroes after them; `av` can be written.
            unsafe { open(raw, &mut attr.value, av, std::ptr::null_mut()) }
        };
        // SAFETY: no other handle exists to the vector that the call opens.
        Ok(Self(Arc::new(unsafe { Object::open(OPERATION, domain.context(), parents, call) }?)))
    }

    /// Inserts the raw address that a peer's [`super::Endpoint::address`] returned.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for an address of another length than the efa provider's, or that the provider does not
    /// accept.
    pub fn insert(&self, address: &[u8]) -> Result<FabricAddress> {
        /// Bytes of an address of the format FI_ADDR_EFA. `fi_av_insert` takes no length and reads this many
        /// bytes.
        const LENGTH: usize = 32;
        const OPERATION: &str = "fi_av_insert";
        if address.len() != LENGTH {
            return Err(error::address_length(address.len(), LENGTH));
        }
        let mut whole = [0_u64; LENGTH / 8];
        for (word, chunk) in whole.iter_mut().zip(address.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(bytes);
        }
        let raw = self.0.raw();
        // SAFETY: an open address vector points to its operation table, or to null.
        let insert = unsafe { table_op!((*raw).ops, fi_ops_av.insert, OPERATION) }?;
        let mut inserted = fi::FI_ADDR_NOTAVAIL;
        let serialized = self.0.library().serialize_calls();
        // SAFETY: the vector is open; one address of LENGTH bytes is read, with the alignment that providers'
        // structures need, and one fi_addr_t is written.
        let count = unsafe { insert(raw, whole.as_ptr().cast(), 1, &mut inserted, 0, std::ptr::null_mut()) };
        drop(serialized);
        if count < 0 {
            return Err(self.0.library().failure(OPERATION, count).address_refused());
        }
        if count != 1 || inserted == fi::FI_ADDR_NOTAVAIL {
            return Err(error::address_not_accepted(address.len()));
        }
        Ok(FabricAddress { number: inserted, vector: self.0.parents().identity })
    }

    /// Closes the vector and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an endpoint uses it; [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    /// The `fi_addr_t` of an address that this vector returned. `operation` names the call in errors.
    pub(super) fn number(&self, address: FabricAddress, operation: &'static str) -> Result<fi::fi_addr_t> {
        if address.vector != self.0.parents().identity {
            return Err(error::other_address_vector(operation));
        }
        Ok(address.number)
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}
