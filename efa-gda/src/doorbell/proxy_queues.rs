//! The queues of one proxy. Every access is under the proxy's lock.

use std::sync::Arc;

use super::handoff::Handoff;
use super::port::Words;
use super::registration::{End, Shared};
use super::store::order_stores;

/// All queues of a proxy. Those that are dropped with it were not detached; they end as [`End::Stopped`].
#[derive(Default)]
pub(super) struct ProxyQueues {
    visited: Vec<Handoff<Words>>,
    /// `owners[i]` belongs to `visited[i]`; it is apart because a round reads only `visited`.
    owners: Vec<Arc<Shared>>,
    stopped: bool,
    /// Entries that doorbells covered, without those of a detach or a stop.
    pub(super) rung: u64,
    /// Completions that were copied, without those of a detach or a stop.
    pub(super) relayed: u64,
}

impl Drop for ProxyQueues {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl ProxyQueues {
    /// Visits every queue once. Returns the number of entries that doorbells covered, and of completions copied.
    #[inline]
    pub(super) fn round(&mut self) -> u64 {
        let before = self.rung + self.relayed;
        let mut at = 0;
        while let Some(one) = self.visited.get_mut(at) {
            match one.visit() {
                Ok(0) => at += 1,
                Ok(count) => {
                    let done = if one.is_relay() { &mut self.relayed } else { &mut self.rung };
                    *done += u64::from(count);
                    at += 1;
                }
                // `take` moves another queue to this index.
                Err(fault) => {
                    let (one, owner) = self.take(at);
                    owner.end(End::Fault(fault), one.index());
                }
            }
        }
        self.rung + self.relayed - before
    }

    pub(super) fn len(&self) -> usize {
        self.visited.len()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn add(&mut self, one: Handoff<Words>, owner: Arc<Shared>) {
        self.visited.push(one);
        self.owners.push(owner);
    }

    fn take(&mut self, index: usize) -> (Handoff<Words>, Arc<Shared>) {
        (self.visited.swap_remove(index), self.owners.swap_remove(index))
    }

    /// Visits one queue a last time and removes it. Does nothing for a queue that was removed before.
    pub(super) fn detach(&mut self, owner: &Arc<Shared>) {
        if let Some(index) = self.owners.iter().position(|other| Arc::ptr_eq(other, owner)) {
            let (one, owner) = self.take(index);
            finish(one, &owner, End::Detached);
        }
    }

    /// Visits every queue a last time, removes all, and refuses new ones.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            finish(one, &owner, End::Stopped);
        }
    }

    /// Removes all queues without a last visit, and refuses new ones.
    pub(super) fn abandon(&mut self) {
        self.stopped = true;
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            owner.end(End::Stopped, one.index());
        }
    }
}

fn finish(mut one: Handoff<Words>, owner: &Shared, end: End) {
    let end = one.last_visit().map_or_else(End::Fault, |()| end);
    // The host executor may post to this queue next, in mode `direct`: up to `max_batch` entries past the last
    // doorbell, which must reach the adapter after it.
    order_stores();
    owner.end(end, one.index());
}
