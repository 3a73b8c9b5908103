//! The queues of one proxy. Every access is under the proxy's lock.

use std::sync::Arc;

use super::handoff::{Handoff, Port, RecordFault};
use super::port::{Staging, Words};
use super::registration::{End, Shared};

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Rounds over all queues.
    pub rounds: u64,
    /// Entries that doorbells covered, without those of a detach or a stop.
    pub entries: u64,
}

/// All queues of a proxy, by mode.
#[derive(Default)]
pub(super) struct ProxyQueues {
    pub(super) record: Group<Words>,
    pub(super) staged: Group<Staging>,
    stopped: bool,
    counts: Counts,
}

impl ProxyQueues {
    /// Visits every queue once. Returns the number of entries that doorbells covered.
    #[inline]
    pub(super) fn round(&mut self) -> u64 {
        let before = self.counts.entries;
        self.record.visit(&mut self.counts);
        self.staged.visit(&mut self.counts);
        self.counts.rounds += 1;
        self.counts.entries - before
    }

    pub(super) fn len(&self) -> usize {
        self.record.handoffs.len() + self.staged.handoffs.len()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Visits one queue a last time and removes it. Does nothing for a queue that was removed before.
    pub(super) fn detach(&mut self, owner: &Arc<Shared>) {
        self.record.detach(owner);
        self.staged.detach(owner);
    }

    /// Visits every queue a last time, removes all, and refuses new ones.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.record.stop();
        self.staged.stop();
    }

    /// Removes all queues without a last visit, and refuses new ones.
    pub(super) fn abandon(&mut self) {
        self.stopped = true;
        self.record.abandon();
        self.staged.abandon();
    }
}

/// The queues of one mode. `handoffs` is what every round touches; `owners[i]` belongs to `handoffs[i]`.
/// Queues that are dropped with the group were not detached; they end as [`End::Stopped`].
pub(super) struct Group<P: Port> {
    handoffs: Vec<Handoff<P>>,
    owners: Vec<Arc<Shared>>,
}

impl<P: Port> Default for Group<P> {
    fn default() -> Self {
        Self { handoffs: Vec::new(), owners: Vec::new() }
    }
}

impl<P: Port> Drop for Group<P> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<P: Port> Group<P> {
    #[inline]
    fn visit(&mut self, counts: &mut Counts) {
        let mut from = 0;
        while let Some((index, fault)) = self.visit_from(from, counts) {
            let (handoff, owner) = self.take(index);
            tracing::error!(
                %fault,
                doorbell_index = handoff.doorbell_index(),
                "doorbell proxy: a queue was removed because of its doorbell record; its waits end with \
                 EFA_GDA_BAD_RECORD; destroy the queue"
            );
            owner.end(End::Fault(fault), handoff.doorbell_index());
            // `take` moved another queue to this index.
            from = index;
        }
    }

    /// Visits queues from an index on, up to the first whose record is bad.
    #[inline]
    fn visit_from(&mut self, from: usize, counts: &mut Counts) -> Option<(usize, RecordFault)> {
        let (mut entries, mut bad) = (0_u64, None);
        let mut rest = self.handoffs[from..].iter_mut();
        for handoff in rest.by_ref() {
            match handoff.visit() {
                Ok(count) => entries += u64::from(count),
                Err(fault) => {
                    bad = Some(fault);
                    break;
                }
            }
        }
        let after = rest.len();
        counts.entries += entries;
        bad.map(|fault| (self.handoffs.len() - after - 1, fault))
    }

    pub(super) fn add(&mut self, handoff: Handoff<P>, owner: Arc<Shared>) {
        self.handoffs.push(handoff);
        self.owners.push(owner);
    }

    fn take(&mut self, index: usize) -> (Handoff<P>, Arc<Shared>) {
        (self.handoffs.swap_remove(index), self.owners.swap_remove(index))
    }

    /// Visits one queue a last time and removes it, if it is in this group.
    fn detach(&mut self, owner: &Arc<Shared>) {
        if let Some(index) = self.owners.iter().position(|other| Arc::ptr_eq(other, owner)) {
            let (handoff, owner) = self.take(index);
            finish(handoff, &owner, End::Detached);
        }
    }

    /// Visits every queue a last time and removes all.
    fn stop(&mut self) {
        for (handoff, owner) in self.handoffs.drain(..).zip(self.owners.drain(..)) {
            finish(handoff, &owner, End::Stopped);
        }
    }

    /// Removes all queues without a last visit.
    fn abandon(&mut self) {
        for (handoff, owner) in self.handoffs.drain(..).zip(self.owners.drain(..)) {
            owner.end(End::Stopped, handoff.doorbell_index());
        }
    }
}

fn finish<P: Port>(mut handoff: Handoff<P>, owner: &Shared, end: End) {
    let end = handoff.last_visit().map_or_else(End::Fault, |()| end);
    owner.end(end, handoff.doorbell_index());
}
