//! What two ranks tell each other before the first request, as bytes that a program sends by any means.

use efa_gda_wire::{Peer, RemoteKey};

use super::Queue;
use crate::error::{Error, Result};
use crate::memory::{Region, RemoteRegion};

/// The first bytes of a card, with the version of its form.
const MAGIC: [u8; 4] = *b"EFG1";
/// Bytes of a queue's address.
const ADDRESS: usize = 32;
/// Bytes of a region: address and length of 8 bytes, and a key of 4, in little endian.
const REGION: usize = 20;

impl Queue {
    /// Returns a card of this queue and of `regions`, for [`Self::insert_card`] of a peer. It has 36 bytes, and 20 for each
    /// region.
    ///
    /// # Errors
    /// Those of [`Self::address`].
    pub fn card(&self, regions: &[&Region]) -> Result<Vec<u8>> {
        let mut card = [&MAGIC[..], &self.address()?].concat();
        for RemoteRegion { address, length, key } in regions.iter().map(|region| region.remote()) {
            card.extend(address.to_le_bytes());
            card.extend(length.to_le_bytes());
            card.extend(key.get().to_le_bytes());
        }
        Ok(card)
    }

    /// Inserts the peer that [`Self::card`] described, and returns it with its regions, in their order.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for bytes that are no card, or a cut one; those of
    /// [`Self::insert_peer`].
    pub fn insert_card(&self, card: &[u8]) -> Result<(Peer, Vec<RemoteRegion>)> {
        let no_card = || {
            let length = card.len();
            Error::argument(format!("{length} bytes are no card of a queue")).with_hint(
                "pass all bytes that Queue::card of the peer returned, from the same release of this library",
            )
        };
        let rest = card.strip_prefix(&MAGIC).ok_or_else(no_card)?;
        let (address, regions) = rest.split_at_checked(ADDRESS).ok_or_else(no_card)?;
        let (regions, []) = regions.as_chunks::<REGION>() else { return Err(no_card()) };
        let regions = regions.iter().map(|bytes| {
            let [address, length] =
                [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])));
            let key = u32::from_le_bytes(std::array::from_fn(|byte| bytes[16 + byte]));
            RemoteRegion { address, length, key: RemoteKey::new(key) }
        });
        Ok((self.insert_peer(address)?, regions.collect()))
    }
}
