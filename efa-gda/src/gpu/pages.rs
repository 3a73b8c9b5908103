//! The pages of this process that are registered with CUDA, and their users.
//!
//! Doorbells of several queues are on one page. A page can be registered once in a process, for whichever GPUs: CUDA
//! refuses a second registration as "already registered", and the first serves all contexts. The registry counts the
//! users of each block of pages, registers pages that are new, and unregisters a block when its last user is dropped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Registers and unregisters whole pages: a CUDA context, except in tests.
pub(crate) trait Pin: Clone + Send + Sync + 'static {
    /// Why pages cannot be registered.
    type Error;

    /// Registers `pages`, so that GPUs can access them.
    fn pin(&self, pages: Range<usize>) -> Result<(), Self::Error>;

    /// Unregisters exactly the pages of one call of [`Pin::pin`].
    fn unpin(&self, pages: Range<usize>);
}

/// The registered blocks of pages, by the address of their first byte.
#[derive(Debug)]
pub(crate) struct PageRegistry<P: Pin> {
    page: usize,
    blocks: Mutex<BTreeMap<usize, Block<P>>>,
}

#[derive(Debug)]
struct Block<P> {
    end: usize,
    users: usize,
    /// The context that registered it. It must live as long as the block has users.
    pin: P,
}

/// Keeps the pages of a range registered until it is dropped.
#[derive(Debug)]
pub(crate) struct Pinned<P: Pin> {
    registry: Arc<PageRegistry<P>>,
    /// Addresses of the blocks that cover the range.
    blocks: Vec<usize>,
}

impl<P: Pin> PageRegistry<P> {
    pub(crate) fn new(page: usize) -> Arc<Self> {
        debug_assert!(page.is_power_of_two());
        Arc::new(Self { page, blocks: Mutex::default() })
    }

    /// Registers, by `pin`, the pages of `range` that are not registered yet, and counts one more user of the others.
    pub(crate) fn acquire(self: &Arc<Self>, pin: &P, range: Range<usize>) -> Result<Pinned<P>, P::Error> {
        let wanted = range.start & !(self.page - 1)..range.end.next_multiple_of(self.page);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        // If `pin` refuses a later part, dropping this releases the parts before it.
        let mut held = Pinned { registry: self.clone(), blocks: Vec::new() };
        let mut at = wanted.start;
        while at < wanted.end {
            let before = blocks.range_mut(..=at).next_back().filter(|(_, block)| at < block.end);
            if let Some((start, block)) = before {
                block.users += 1;
                held.blocks.push(*start);
                at = block.end;
                continue;
            }
            let next = blocks.range(at..).next().map_or(wanted.end, |(start, _)| *start);
            let end = next.min(wanted.end);
            if let Err(error) = pin.pin(at..end) {
                // The drop of `held` takes the lock.
                drop(blocks);
                return Err(error);
            }
            blocks.insert(at, Block { end, users: 1, pin: pin.clone() });
            held.blocks.push(at);
            at = end;
        }
        Ok(held)
    }
}

impl<P: Pin> Drop for Pinned<P> {
    fn drop(&mut self) {
        // A removed block may hold the last handle of its context. Destroying that takes long, so it happens after the
        // lock is released.
        let mut removed = Vec::new();
        let mut blocks = self.registry.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for start in &self.blocks {
            let Some(block) = blocks.get_mut(start) else { continue };
            block.users -= 1;
            if block.users == 0 {
                block.pin.unpin(*start..block.end);
                removed.extend(blocks.remove(start));
            }
        }
        drop(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses what CUDA refuses: pages that are already registered, and one address that the test chooses. Clones
    /// stand for contexts of one process.
    #[derive(Clone, Debug, Default)]
    struct Strict {
        pinned: Arc<Mutex<Vec<Range<usize>>>>,
        refuses: Option<usize>,
    }

    impl Pin for Strict {
        type Error = String;

        fn pin(&self, pages: Range<usize>) -> Result<(), String> {
            let mut pinned = self.pinned.lock().unwrap();
            if pinned.iter().any(|other| other.start < pages.end && pages.start < other.end) {
                return Err(format!("{pages:x?} is already registered"));
            }
            if self.refuses.is_some_and(|address| pages.contains(&address)) {
                return Err("refused".into());
            }
            pinned.push(pages);
            Ok(())
        }

        fn unpin(&self, pages: Range<usize>) {
            let mut pinned = self.pinned.lock().unwrap();
            let index = pinned.iter().position(|other| *other == pages).expect("registered as a whole");
            pinned.remove(index);
        }
    }

    /// Returns a process, and its first context.
    fn process(refuses: Option<usize>) -> (Arc<PageRegistry<Strict>>, Strict) {
        (PageRegistry::new(0x1000), Strict { refuses, ..Strict::default() })
    }

    fn pinned(context: &Strict) -> Vec<(usize, usize)> {
        context.pinned.lock().unwrap().iter().map(|pages| (pages.start, pages.end)).collect()
    }

    #[test]
    fn doorbells_for_two_gpus_on_one_page_register_it_once_and_the_last_drop_unregisters_it() {
        let (registry, one) = process(None);
        let two = one.clone();
        let first = registry.acquire(&one, 0x5010..0x5014).unwrap();
        let second = registry.acquire(&two, 0x5020..0x5024).unwrap();
        assert_eq!(pinned(&one), [(0x5000, 0x6000)]);
        drop(first);
        assert_eq!(pinned(&two), [(0x5000, 0x6000)], "the second GPU still rings on this page");
        drop(second);
        assert!(pinned(&two).is_empty());
    }

    #[test]
    fn a_range_around_registered_pages_registers_only_the_other_pages() {
        let (registry, context) = process(None);
        let middle = registry.acquire(&context, 0x3000..0x4000).unwrap();
        let around = registry.acquire(&context, 0x2800..0x5800).unwrap();
        assert_eq!(pinned(&context), [(0x3000, 0x4000), (0x2000, 0x3000), (0x4000, 0x6000)]);
        drop(middle);
        assert_eq!(pinned(&context).len(), 3, "the wider range still uses the middle");
        drop(around);
        assert!(pinned(&context).is_empty());
    }

    #[test]
    fn a_range_inside_registered_pages_registers_nothing() {
        let (registry, context) = process(None);
        let wide = registry.acquire(&context, 0x1000..0x9000).unwrap();
        let inside = registry.acquire(&context, 0x4004..0x4008).unwrap();
        drop(wide);
        assert_eq!(pinned(&context), [(0x1000, 0x9000)]);
        drop(inside);
        assert!(pinned(&context).is_empty());
    }

    #[test]
    fn a_refused_part_releases_the_parts_before_it() {
        let (registry, context) = process(Some(0x7000));
        let middle = registry.acquire(&context, 0x3000..0x4000).unwrap();
        assert_eq!(registry.acquire(&context, 0x2000..0x8000).err().as_deref(), Some("refused"));
        assert_eq!(pinned(&context), [(0x3000, 0x4000)]);
        drop(middle);
        assert!(pinned(&context).is_empty());
    }
}
