use efa_gda_wire::{InlineData, Operation, Peer, ProcessingHints, Request, RequestIdWidth, Ring};

use super::*;
use crate::device::attr::{CompletionQueueAttr, ProtectionDomain, QueuePair, QueuePairAttr, QueuePairState};
use crate::device::config::Gid;
use crate::device::create;
use crate::device::tables::Domain;

/// An adapter without threads, and queue pairs that send messages to themselves and have no receives posted.
struct Waiting {
    network: Arc<Network>,
    shared: Arc<Shared>,
    index: u16,
    /// Each with the peer that it is for itself, and its producer index.
    queue_pairs: Vec<(QueuePair, Peer, u32)>,
}

impl Waiting {
    fn new(queue_pairs: usize) -> Self {
        let shared = Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))));
        let network = Network::new();
        let index = network.insert(shared.clone()).unwrap();
        let queue_pairs = {
            let mut ports = network.write();
            let port = ports.port_mut(index).unwrap();
            let pd = ProtectionDomain(port.domains.insert_with(|_, _| Domain::default()).unwrap());
            let (address_handle, _) = port.insert_handle(pd, port.gid, Some(index)).unwrap();
            let attr = CompletionQueueAttr { entries: 1, ..CompletionQueueAttr::default() };
            let cq = create::completion_queue(port, attr, None).unwrap().number;
            let create = |_| {
                let attr = QueuePairAttr { sq_depth: 1024, ..QueuePairAttr::new(pd, cq) };
                let created = create::queue_pair(port, attr).unwrap();
                let (queue_pair, queue_key) = (created.number, created.queue_key);
                (created, Peer { address_handle, queue_pair, queue_key }, 0)
            };
            (0..queue_pairs).map(create).collect()
        };
        Self { network, shared, index, queue_pairs }
    }

    /// Posts `count` messages to the queue pair at `at`.
    fn post(&mut self, at: usize, count: u32) {
        let (created, peer, produced) = &mut self.queue_pairs[at];
        let (sq, ring) = (&created.sq, Ring::new(created.sq.num_entries).unwrap());
        for _ in 0..count {
            let request = Request {
                id: RequestId::new(0),
                peer: *peer,
                immediate: None,
                hints: ProcessingHints::NONE,
                operation: Operation::SendInline(InlineData::new(b"").unwrap()),
            };
            let entry = request.encode(sq.entry_size, ring.phase(*produced), RequestIdWidth::Bits16).unwrap();
            sq.memory.store(ring.slot(*produced) as usize * sq.entry_size.bytes(), &entry);
            *produced += 1;
        }
        sq.doorbell.ring(ring.doorbell(*produced));
    }

    /// Makes one round.
    fn round(&self) -> Round {
        let mut round = Round::default();
        serve(&self.network, self.index, &mut round);
        round
    }

    /// Makes far more rounds than the engine needs to fetch all entries. Returns how many it has not fetched.
    fn unfetched(&self) -> u64 {
        for _ in 0..64 {
            self.round();
        }
        let posted: u32 = self.queue_pairs.iter().map(|(_, _, produced)| *produced).sum();
        u64::from(posted) - self.shared.statistics().entries
    }
}

#[test]
fn messages_that_wait_for_receives_keep_no_entry_from_being_fetched() {
    for messages in [&[600][..], &[300; 2], &[200; 8]] {
        let mut waiting = Waiting::new(messages.len());
        messages.iter().enumerate().for_each(|(at, count)| waiting.post(at, *count));
        assert_eq!(waiting.unfetched(), 0, "{messages:?}");
        (0..messages.len()).for_each(|at| waiting.post(at, 1));
        assert_eq!(waiting.unfetched(), 0, "one more behind {messages:?}");
    }
}

#[test]
fn an_engine_rests_while_many_messages_wait_for_receives() {
    let mut waiting = Waiting::new(4);
    (0..4).for_each(|at| waiting.post(at, 128));
    assert_eq!(waiting.unfetched(), 0);
    assert_eq!(waiting.round(), Round { progress: false, has_pending: true });
}

#[test]
fn a_round_goes_on_with_the_next_queue_pair_after_one_that_spent_all() {
    let waiting = Waiting::new(3);
    {
        let ports = waiting.network.read();
        let port = ports.port(waiting.index).unwrap();
        for (_, queue_pair) in port.queue_pairs.iter() {
            queue_pair.set_state(QueuePairState::Error);
        }
    }
    // Entries that are not written are flushed, too.
    const EACH: u32 = 1024;
    waiting.queue_pairs.iter().for_each(|(created, ..)| created.sq.doorbell.ring(EACH));
    assert!(waiting.round().progress);
    assert_eq!(waiting.shared.statistics().flushed, 3 * u64::from(EACH));
}
