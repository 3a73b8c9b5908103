//! The queues of one proxy. Every access is under the proxy's lock.

use std::sync::Arc;

use super::handoff::{Handoff, Port, RecordFault};
use super::port::{Staging, Words};
use super::registration::{End, Shared};
use super::relay::{CompletionWords, Relay};
use super::store::order_stores;

/// What a round visits: a send queue that the proxy rings for, or a completion queue that it relays.
pub(super) trait Visited {
    /// Does a bounded part of the work. Returns how many entries were rung for, or relayed.
    fn visit(&mut self) -> Result<u32, RecordFault>;

    /// Does all work that was there when the call began, in a bounded number of visits.
    fn last_visit(&mut self) -> Result<(), RecordFault>;

    /// The doorbell producer index, or the number of the next completion.
    fn index(&self) -> u32;
}

impl<P: Port> Visited for Handoff<P> {
    #[inline]
    fn visit(&mut self) -> Result<u32, RecordFault> {
        self.visit()
    }

    fn last_visit(&mut self) -> Result<(), RecordFault> {
        self.last_visit()
    }

    fn index(&self) -> u32 {
        self.doorbell_index()
    }
}

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Rounds over all queues.
    pub rounds: u64,
    /// Entries that doorbells covered, without those of a detach or a stop.
    pub entries: u64,
    /// Completions that were relayed, without those of a detach or a stop.
    pub completions: u64,
}

/// All queues of a proxy, by mode.
#[derive(Default)]
pub(super) struct ProxyQueues {
    pub(super) record: Group<Handoff<Words>>,
    pub(super) staged: Group<Handoff<Staging>>,
    pub(super) relayed: Group<Relay<CompletionWords>>,
    stopped: bool,
    counts: Counts,
}

impl ProxyQueues {
    /// Visits every queue once. Returns the number of entries that doorbells covered, and of completions relayed.
    #[inline]
    pub(super) fn round(&mut self) -> u64 {
        let Counts { rounds, entries, completions } = &mut self.counts;
        let before = *entries + *completions;
        self.record.visit(entries);
        self.staged.visit(entries);
        self.relayed.visit(completions);
        *rounds += 1;
        *entries + *completions - before
    }

    pub(super) fn len(&self) -> usize {
        self.record.visited.len() + self.staged.visited.len() + self.relayed.visited.len()
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
        self.relayed.detach(owner);
    }

    /// Visits every queue a last time, removes all, and refuses new ones.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.record.stop();
        self.staged.stop();
        self.relayed.stop();
    }

    /// Removes all queues without a last visit, and refuses new ones.
    pub(super) fn abandon(&mut self) {
        self.stopped = true;
        self.record.abandon();
        self.staged.abandon();
        self.relayed.abandon();
    }
}

/// The queues of one kind. `owners[i]` belongs to `visited[i]`; it is apart because a round reads only `visited`.
/// Queues that are dropped with the group were not detached; they end as [`End::Stopped`].
pub(super) struct Group<V: Visited> {
    visited: Vec<V>,
    owners: Vec<Arc<Shared>>,
}

impl<V: Visited> Default for Group<V> {
    fn default() -> Self {
        Self { visited: Vec::new(), owners: Vec::new() }
    }
}

impl<V: Visited> Drop for Group<V> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<V: Visited> Group<V> {
    #[inline]
    fn visit(&mut self, done: &mut u64) {
        let mut from = 0;
        while let Some((index, fault)) = self.visit_from(from, done) {
            let (one, owner) = self.take(index);
            owner.end(End::Fault(fault), one.index());
            // `take` moved another queue to this index.
            from = index;
        }
    }

    /// Visits queues from an index on, up to the first whose record is bad.
    #[inline]
    fn visit_from(&mut self, from: usize, done: &mut u64) -> Option<(usize, RecordFault)> {
        let (mut entries, mut bad) = (0_u64, None);
        let mut rest = self.visited[from..].iter_mut();
        for one in rest.by_ref() {
            match one.visit() {
                Ok(count) => entries += u64::from(count),
                Err(fault) => {
                    bad = Some(fault);
                    break;
                }
            }
        }
        let after = rest.len();
        *done += entries;
        bad.map(|fault| (self.visited.len() - after - 1, fault))
    }

    pub(super) fn add(&mut self, one: V, owner: Arc<Shared>) {
        self.visited.push(one);
        self.owners.push(owner);
    }

    fn take(&mut self, index: usize) -> (V, Arc<Shared>) {
        (self.visited.swap_remove(index), self.owners.swap_remove(index))
    }

    /// Visits one queue a last time and removes it, if it is in this group.
    fn detach(&mut self, owner: &Arc<Shared>) {
        if let Some(index) = self.owners.iter().position(|other| Arc::ptr_eq(other, owner)) {
            let (one, owner) = self.take(index);
            finish(one, &owner, End::Detached);
        }
    }

    /// Visits every queue a last time and removes all.
    fn stop(&mut self) {
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            finish(one, &owner, End::Stopped);
        }
    }

    /// Removes all queues without a last visit.
    fn abandon(&mut self) {
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            owner.end(End::Stopped, one.index());
        }
    }
}

fn finish<V: Visited>(mut one: V, owner: &Shared, end: End) {
    let end = one.last_visit().map_or_else(End::Fault, |()| end);
    // The host executor may post to this queue next, in mode `direct`: up to `max_batch` entries past the last
    // doorbell, which must reach the adapter after it.
    order_stores();
    owner.end(end, one.index());
}
