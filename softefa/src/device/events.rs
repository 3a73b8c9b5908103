//! Events of a completion queue: one for a program that armed the queue and sleeps until a completion is written.
//!
//! # Protocol
//! The program arms the queue through the queue's doorbell, a word of which libefa and libfabric write all at once
//! (`efa_update_cq_doorbell`, rdma-core's `providers/efa/verbs.c`):
//!
//! | bits | content |
//! |---|---|
//! | 15 to 0 | the consumer index |
//! | 30, 29 | the sequence number: how many events the program has read, modulo 4 |
//! | 31 | set by a store that arms, not set by a store after a poll |
//!
//! A poll after the arming store overwrites bit 31, often before the adapter has read it, so the adapter cannot rely on
//! that bit. It takes a queue for armed once its doorbell was written with a sequence number for which it has sent no
//! event. So there is at most one unread event of a queue, and no event that a program waits for is missing. Some
//! programs get an event more than from hardware, which reads every store: one that polls before it arms, or never arms.
//!
//! An armed queue gets its event when a completion is written, or when there are completions past the consumer index.
//! The second case covers completions that were written before the program armed the queue.
//!
//! Example: the program has read its first event, stores index 7, number 1 and bit 31, polls one completion, and stores
//! index 8 and number 1. The adapter reads only the second store. It sends an event when completion 8 is written.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | the holder of the completion queue's lock | the same | its mutex, under which only the frontend's [`SendEvent`] runs |

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::ring_memory::Doorbell;
use super::shared::{Shared, lock};

/// Bits of the sequence number in a completion queue's doorbell (`EFA_IO_REGS_CQ_DB_CMD_SN_MASK`,
/// `efa_io_regs_defs.h`).
const SEQUENCE: u32 = 0x6000_0000;

/// Sends an event of a completion queue. Returns false if there was no room; then it is called again in the adapter's
/// next round. It must neither block nor call the adapter, because its caller holds locks of the adapter.
pub type SendEvent = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a completion queue needs to send events. [`Shared::notifying`] counts these values.
pub(crate) struct Events {
    send: SendEvent,
    doorbell: Doorbell,
    state: Mutex<State>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct State {
    /// The sequence number of the last event that was sent.
    sent: Option<u32>,
    /// The sequence number of an event for which there was no room.
    unsent: Option<u32>,
}

/// A sequence number for which the queue is armed.
#[derive(Clone, Copy)]
pub(crate) struct Armed(u32);

impl Events {
    pub(crate) fn new(send: SendEvent, doorbell: Doorbell, shared: Arc<Shared>) -> Self {
        shared.notifying.fetch_add(1, Ordering::Relaxed);
        Self { send, doorbell, state: Mutex::default(), shared }
    }

    /// Whether the queue is armed. The caller must ask before it writes completions: a program may poll them at once,
    /// and then its consumer index is no reason for an event any more.
    pub(crate) fn armed(&self) -> Option<Armed> {
        self.armed_by(self.doorbell.value())
    }

    fn armed_by(&self, doorbell: u32) -> Option<Armed> {
        let sequence = doorbell & SEQUENCE;
        let sent = lock(&self.state).sent;
        // Until the program writes it, the doorbell is 0.
        let is_written = doorbell != 0 || sent.is_some();
        (is_written && sent != Some(sequence)).then_some(Armed(sequence))
    }

    /// Sends an event if one is due: the queue was armed before completions were written (`before`), is armed and has
    /// completions past its consumer index, or there was no room earlier. `produced` is the index of the next completion.
    pub(crate) fn notify(&self, before: Option<Armed>, produced: u64) {
        let doorbell = self.doorbell.value();
        let unread = doorbell as u16 != produced as u16;
        let due = before.or_else(|| self.armed_by(doorbell).filter(|_| unread)).map(|armed| armed.0);
        let mut state = lock(&self.state);
        if let Some(sequence) = due.or(state.unsent) {
            *state = match (self.send)() {
                true => State { sent: Some(sequence), unsent: None },
                false => State { unsent: Some(sequence), ..*state },
            };
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.notifying.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::super::config::{AdapterConfig, Gid};
    use super::super::ring_memory::RingMemory;
    use super::*;

    #[test]
    fn an_event_is_sent_also_if_the_program_polls_before_it() {
        let doorbell = Doorbell::new(RingMemory::allocate(8).unwrap(), 0).unwrap();
        let shared = Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))));
        let sent = Arc::new(AtomicU32::new(0));
        let count = sent.clone();
        let send: SendEvent = Arc::new(move || count.fetch_add(1, Ordering::Relaxed) < u32::MAX);
        let events = Events::new(send, doorbell.clone(), shared);
        doorbell.ring(1 << 31);
        let before = events.armed();
        // The queue has written completion 0, and the program has consumed it.
        doorbell.ring(1);
        events.notify(before, 1);
        assert_eq!(sent.load(Ordering::Relaxed), 1);
    }
}
