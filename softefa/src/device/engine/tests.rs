use efa_gda_wire::{InlineData, Operation, Peer, ProcessingHints, Request, RequestIdWidth, Ring};

use super::*;
use crate::device::attr::{CompletionQueueAttr, ProtectionDomain, QueuePair, QueuePairAttr, QueuePairState};
use crate::device::config::Gid;
use crate::device::create;
use crate::device::tables::Domain;

/// Two queue pairs in the error state, whose doorbells state so many entries, none of them written. Returns how many
/// entries the engine was charged for in each of two rounds, and the flushed completions after each.
fn flush_two(requests: u32, receives: u32) -> [(u64, u64); 2] {
    let shared = Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))));
    let network = Network::new();
    let index = network.join(shared.clone()).unwrap();
    {
        let mut ports = network.write();
        let port = ports.port_mut(index).unwrap();
        let pd = ProtectionDomain(port.domains.insert_with(|_, _| Domain::default()).unwrap());
        let attr = CompletionQueueAttr { entries: 1, ..CompletionQueueAttr::default() };
        let cq = create::completion_queue(port, attr, None).unwrap().number;
        for _ in 0..2 {
            let (sq_depth, rq_depth) = (requests.max(1), receives);
            let attr = QueuePairAttr {
                sq_depth,
                rq_depth,
                state: QueuePairState::Error,
                ..QueuePairAttr::new(pd, cq)
            };
            let pair = create::queue_pair(port, attr).unwrap();
            pair.sq.doorbell.ring(requests);
            pair.rq.iter().for_each(|rq| rq.doorbell.ring(receives));
        }
    }
    let mut engine = Engine::new(&shared.config);
    [(); 2].map(|()| {
        engine.spent = 0;
        engine.round(&mut NetworkView::new(&network, &shared, index, 0));
        (engine.spent / COMPLETION_COST, shared.statistics().flushed)
    })
}

#[test]
fn a_share_ends_after_the_flush_of_many_requests() {
    const REQUESTS: u32 = (COST_PER_LOCK / COMPLETION_COST) as u32;
    let all = u64::from(REQUESTS);
    assert_eq!(flush_two(REQUESTS, 0), [(all, all), (all, 2 * all)]);
}

#[test]
fn a_share_ends_after_the_flush_of_many_receives_that_were_not_written() {
    const RECEIVES: u32 = (COST_PER_LOCK / COMPLETION_COST) as u32;
    assert_eq!(flush_two(0, RECEIVES), [(RECEIVES.into(), 0); 2]);
}

/// An adapter without threads, and queue pairs that send messages to themselves and have no receives posted.
struct Waiting {
    network: Arc<Network>,
    shared: Arc<Shared>,
    index: u16,
    engine: Engine,
    /// Each with the peer that it is for itself, and its producer index.
    queue_pairs: Vec<(QueuePair, Peer, u32)>,
}

impl Waiting {
    /// One queue pair for each of `clients`.
    fn new(clients: impl Iterator<Item = u64>) -> Self {
        let shared = Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))));
        let network = Network::new();
        let index = network.join(shared.clone()).unwrap();
        let queue_pairs = {
            let mut ports = network.write();
            let port = ports.port_mut(index).unwrap();
            let pd = ProtectionDomain(port.domains.insert_with(|_, _| Domain::default()).unwrap());
            let (address_handle, _) = port.insert_handle(pd, port.gid, Some(index)).unwrap();
            let attr = CompletionQueueAttr { entries: 1, ..CompletionQueueAttr::default() };
            let cq = create::completion_queue(port, attr, None).unwrap().number;
            let create = |client| {
                let attr = QueuePairAttr { sq_depth: 1024, client, ..QueuePairAttr::new(pd, cq) };
                let created = create::queue_pair(port, attr).unwrap();
                let (queue_pair, queue_key) = (created.number, created.queue_key);
                (created, Peer { address_handle, queue_pair, queue_key }, 0)
            };
            clients.map(create).collect()
        };
        let engine = Engine::new(&shared.config);
        Self { network, shared, index, engine, queue_pairs }
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

    /// Lets the engine work once. Returns whether it made progress.
    fn work(&mut self) -> bool {
        self.engine.work(&mut NetworkView::new(&self.network, &self.shared, self.index, 0))
    }

    /// Lets the engine work far more often than it must to fetch all entries. Returns how many it has not fetched.
    fn work_often(&mut self) -> u64 {
        (0..64).for_each(|_| {
            self.work();
        });
        let posted: u32 = self.queue_pairs.iter().map(|(_, _, produced)| *produced).sum();
        u64::from(posted) - self.shared.statistics().entries
    }
}

/// Posts so many messages to the queue pairs of these clients, then one more to each. Returns how many entries the
/// engine does not fetch of the first messages, and of all.
fn unfetched_behind_messages_that_wait(messages: &[(u64, u32)]) -> [u64; 2] {
    let mut waiting = Waiting::new(messages.iter().map(|(client, _)| *client));
    messages.iter().enumerate().for_each(|(at, (_, count))| waiting.post(at, *count));
    let first = waiting.work_often();
    (0..messages.len()).for_each(|at| waiting.post(at, 1));
    [first, waiting.work_often()]
}

#[test]
fn messages_that_wait_for_receives_keep_no_entry_of_their_queue_pair_from_being_fetched() {
    assert_eq!(unfetched_behind_messages_that_wait(&[(7, 600)]), [0, 0]);
}

#[test]
fn messages_that_wait_for_receives_keep_no_entry_of_another_queue_pair_from_being_fetched() {
    assert_eq!(unfetched_behind_messages_that_wait(&[(7, 300); 2]), [0, 0]);
    // Each share ends in every fourth queue pair.
    assert_eq!(unfetched_behind_messages_that_wait(&[(7, 200); 8]), [0, 0]);
}

#[test]
fn messages_that_wait_for_receives_keep_no_entry_of_another_client_from_being_fetched() {
    assert_eq!(unfetched_behind_messages_that_wait(&[(7, 255), (8, 300)]), [0, 0]);
}

#[test]
fn an_engine_rests_while_many_messages_wait_for_receives() {
    let mut waiting = Waiting::new([7; 4].into_iter());
    (0..4).for_each(|at| waiting.post(at, 128));
    assert_eq!(waiting.work_often(), 0);
    assert!(!waiting.work(), "no message has a receive");
    assert!(waiting.engine.spent >= COST_PER_LOCK / 2 && waiting.engine.has_pending);
}
