//! The queues of a proxy, as a round meets them. All of it is behind the proxy's lock.

use std::sync::Arc;

use super::handoff::{Fault, Handoff, Port};
use super::port::{Staging, Words};
use super::registration::{End, Shared};

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Rounds over all queues.
    pub rounds: u64,
    /// Entries rung for.
    pub entries: u64,
}

/// All queues.
#[derive(Default)]
pub(super) struct ProxyQueues {
    pub(super) record: Group<Words>,
    pub(super) staged: Group<Staging>,
    stopped: bool,
    counts: Counts,
}

impl ProxyQueues {
    /// Visits every queue once. Returns how many entries were rung for.
    #[inline]
    pub(super) fn round(&mut self) -> u64 {
        let before = self.counts.entries;
        self.record.visit(&mut self.counts);
        self.staged.visit(&mut self.counts);
        self.counts.rounds += 1;
        self.counts.entries - before
    }

    pub(super) fn len(&self) -> usize {
        self.record.all.len() + self.staged.all.len()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Serves one queue a last time, and lets go of it; one that is not here ended already.
    pub(super) fn release(&mut self, owner: &Arc<Shared>) {
        self.record.release(owner);
        self.staged.release(owner);
    }

    /// Serves every queue a last time, lets go of all, and takes no more.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.record.stop();
        self.staged.stop();
    }

    /// Lets go of all as they are, and takes no more.
    pub(super) fn abandon(&mut self) {
        self.stopped = true;
        self.record.abandon();
        self.staged.abandon();
    }
}

/// Queues on the same rung: what every round touches, and beside it, index by index, whose it is.
/// Queues that are dropped here were not let go of in order: they end as stopped.
pub(super) struct Group<P: Port> {
    all: Vec<Handoff<P>>,
    owners: Vec<Arc<Shared>>,
}

impl<P: Port> Default for Group<P> {
    fn default() -> Self {
        Self { all: Vec::new(), owners: Vec::new() }
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
            tracing::error!(%fault, "a queue is not rung any more");
            let (handoff, owner) = self.take(index);
            owner.end(End::Fault(fault), handoff.rung());
            // Another queue lies there now.
            from = index;
        }
    }

    /// Visits queues from an index on, to the first whose record breaks a rule.
    #[inline]
    fn visit_from(&mut self, from: usize, counts: &mut Counts) -> Option<(usize, Fault)> {
        let (mut entries, mut refused) = (0_u64, None);
        let mut left = self.all[from..].iter_mut();
        for handoff in left.by_ref() {
            match handoff.visit() {
                Ok(count) => entries += u64::from(count),
                Err(fault) => {
                    refused = Some(fault);
                    break;
                }
            }
        }
        let after = left.len();
        counts.entries += entries;
        refused.map(|fault| (self.all.len() - after - 1, fault))
    }

    pub(super) fn add(&mut self, handoff: Handoff<P>, owner: Arc<Shared>) {
        self.all.push(handoff);
        self.owners.push(owner);
    }

    fn take(&mut self, index: usize) -> (Handoff<P>, Arc<Shared>) {
        (self.all.swap_remove(index), self.owners.swap_remove(index))
    }

    /// Serves one queue a last time, and lets go of it, if it is here.
    fn release(&mut self, owner: &Arc<Shared>) {
        if let Some(index) = self.owners.iter().position(|other| Arc::ptr_eq(other, owner)) {
            let (handoff, owner) = self.take(index);
            finish(handoff, &owner, End::Detached);
        }
    }

    /// Serves every queue a last time, and lets go of all.
    fn stop(&mut self) {
        for (handoff, owner) in self.all.drain(..).zip(self.owners.drain(..)) {
            finish(handoff, &owner, End::Stopped);
        }
    }

    /// Lets go of all as they are.
    fn abandon(&mut self) {
        for (handoff, owner) in self.all.drain(..).zip(self.owners.drain(..)) {
            owner.end(End::Stopped, handoff.rung());
        }
    }
}

fn finish<P: Port>(mut handoff: Handoff<P>, owner: &Shared, end: End) {
    let end = handoff.last_visit().map_or_else(End::Fault, |()| end);
    owner.end(end, handoff.rung());
}
