//! Regions that must stay registered while an adapter may still reach them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Region;

/// Regions that an endpoint or queue pair owns until it is destroyed, or until their receive completes.
#[derive(Debug, Default)]
pub(crate) struct RetainedRegions {
    retained: Vec<Region>,
    /// Regions of posted receives, by request id.
    receives: HashMap<u16, VecDeque<Region>>,
}

impl RetainedRegions {
    /// Retains `region` until `self` is dropped.
    pub(crate) fn retain(&mut self, region: Region) {
        self.retained.push(region);
    }

    /// Retains the region of a posted receive until [`Self::receive_completed`] names the receive.
    pub(crate) fn receive_posted(&mut self, id: u16, region: Region) {
        self.receives.entry(id).or_default().push_back(region);
    }

    /// Releases the region of a completed receive.
    ///
    /// Ids repeat after 2^16 receives, possibly before the completion of the first one is read. The
    /// region of the oldest receive with this id is released.
    pub(crate) fn receive_completed(&mut self, id: u16) {
        if let Entry::Occupied(mut regions) = self.receives.entry(id) {
            regions.get_mut().pop_front();
            if regions.get().is_empty() {
                regions.remove();
            }
        }
    }
}
