//! Doorbells that the adapter allocates: several on a page, as on hardware.

use std::sync::Arc;

use super::error::DeviceError;
use super::ring_memory::{CACHE_LINE, Doorbell, PAGE_BYTES, RingMemory};

/// Bytes from one doorbell to the next: a cache line, so that posters do not contend.
const STRIDE: usize = CACHE_LINE;
/// Doorbells on a page: as many as a mask has bits.
pub(super) const PER_PAGE: usize = PAGE_BYTES / STRIDE;

/// Pages of doorbells. The mask of a page has a bit set for each doorbell in use.
#[derive(Debug, Default)]
pub(crate) struct Doorbells {
    pages: Vec<(Arc<RingMemory>, u64)>,
    /// Whether allocating a page fails, for tests.
    #[cfg(test)]
    out_of_pages: bool,
}

impl Doorbells {
    pub(crate) fn allocate(&mut self) -> Result<Doorbell, DeviceError> {
        let free = self.pages.iter().position(|(_, used)| *used != u64::MAX);
        let index = match free {
            Some(index) => index,
            None => {
                self.pages.push((self.allocate_page()?, 0));
                self.pages.len() - 1
            }
        };
        let (page, used) = &mut self.pages[index];
        let slot = used.trailing_ones() as usize;
        let doorbell = Doorbell::new(page.clone(), slot * STRIDE)?;
        *used |= 1 << slot;
        Ok(doorbell)
    }

    fn allocate_page(&self) -> Result<Arc<RingMemory>, DeviceError> {
        #[cfg(test)]
        if self.out_of_pages {
            return Err(DeviceError::OutOfMemory(PER_PAGE * STRIDE));
        }
        RingMemory::allocate(PER_PAGE * STRIDE)
    }

    /// Makes every later allocation of a page fail, as without memory.
    #[cfg(test)]
    pub(super) fn fail_new_pages(&mut self) {
        self.out_of_pages = true;
    }

    /// Frees a doorbell. Does nothing for a doorbell in memory of the client.
    pub(crate) fn release(&mut self, doorbell: &Doorbell) {
        for (page, used) in &mut self.pages {
            if Arc::ptr_eq(page, doorbell.page()) {
                *used &= !(1 << (doorbell.offset() / STRIDE));
            }
        }
    }
}
