//! Doorbells that the adapter allocates: several on a page, as hardware has them.

use std::sync::Arc;

use super::error::DeviceError;
use super::ring_memory::{Doorbell, PAGE_BYTES, RingMemory};

/// Bytes from one doorbell to the next: a cache line, so that two posters do not slow each other.
const STRIDE: usize = 64;
/// Doorbells on a page; as many as bits in a mask.
const PER_PAGE: usize = PAGE_BYTES / STRIDE;

/// Pages of doorbells, and which are in use.
#[derive(Debug, Default)]
pub(crate) struct Doorbells {
    pages: Vec<(Arc<RingMemory>, u64)>,
}

impl Doorbells {
    pub(crate) fn allocate(&mut self) -> Result<Doorbell, DeviceError> {
        let free = self.pages.iter().position(|(_, used)| *used != u64::MAX);
        let index = match free {
            Some(index) => index,
            None => {
                self.pages.push((RingMemory::allocate(PER_PAGE * STRIDE)?, 0));
                self.pages.len() - 1
            }
        };
        let (page, used) = &mut self.pages[index];
        let slot = used.trailing_ones() as usize;
        let doorbell = Doorbell::new(page.clone(), slot * STRIDE)?;
        *used |= 1 << slot;
        Ok(doorbell)
    }

    /// Takes a doorbell back; one that was given by a client is not ours and stays as it is.
    pub(crate) fn release(&mut self, doorbell: &Doorbell) {
        for (page, used) in &mut self.pages {
            if Arc::ptr_eq(page, doorbell.page()) {
                *used &= !(1 << (doorbell.offset() / STRIDE));
            }
        }
    }
}
