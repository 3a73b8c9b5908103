use super::*;
use crate::device::attr::{CompletionQueueAttr, ProtectionDomain, QueuePairAttr, QueuePairState};
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
