//! Deferred work: in each round, after the shares, an engine writes backlogs (`completion.rs`), then lands late writes
//! (`relaxed.rs`). It writes backlogs to memory that may block, and lands late writes, without the network's lock, as
//! work for the client whose memory it is (`turns.rs`). It writes other backlogs under the lock, until their cost is
//! `COST_PER_LOCK`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::engine::{COMPLETION_COST, COST_PER_LOCK, NetworkView};
use super::turns::Rotation;

/// Calls `serve` for each object, client by client, but passes over an object if the engine must not work for its
/// client ([`NetworkView::begin_work_for`]). Begins after `rotation.last`, the client that was served last, so that
/// clients whose memory blocks do not keep others from being served. In each round it begins with another object of
/// each client, because the client's time may be over after one object whose memory is slow. A replaced engine serves
/// no client, and does not change `rotation.last`. Returns whether it passed over an object.
fn for_each_client<T: Ord>(
    network: &mut NetworkView<'_>,
    rotation: &Rotation,
    mut objects: Vec<(u64, T)>,
    mut serve: impl FnMut(&mut NetworkView<'_>, u64, T),
) -> bool {
    let (last, round) = (&rotation.last, rotation.rounds.fetch_add(1, Ordering::Relaxed));
    objects.sort_unstable();
    for own in objects.chunk_by_mut(|(client, _), (next, _)| client == next) {
        own.rotate_left(round % own.len());
    }
    let first = objects.partition_point(|(client, _)| *client <= last.load(Ordering::Relaxed));
    objects.rotate_left(first);
    network.end_share();
    let mut passed_over = false;
    for (client, object) in objects {
        if network.begin_work_for(client) {
            last.store(client, Ordering::Relaxed);
            serve(network, client, object);
        } else {
            passed_over = true;
        }
    }
    passed_over
}

/// Lands the late writes to the adapter's regions with relaxed ordering that are due. Returns whether any late writes
/// may remain: in a region that it served, or because it passed over a region.
pub(super) fn land_late_writes(network: &mut NetworkView<'_>) -> bool {
    let regions = &network.local().relaxed;
    if regions.is_empty() {
        return false;
    }
    let regions = regions.iter().map(|(number, region)| (region.memory.client(), *number)).collect();
    let rotation = &network.shared().turns.late_writes;
    let mut remain = false;
    let passed_over = for_each_client(network, rotation, regions, |network, client, number| {
        // `regions` has numbers, because a call that deregisters a region waits for an engine that holds its memory.
        // While another region was served, the number may have become that of another client's region.
        let mut regions = network.local().relaxed.iter();
        let Some((_, region)) = regions.find(|(other, _)| *other == number).cloned() else { return };
        if let Some(memory) = region.relaxed.as_ref().filter(|_| region.memory.client() == client) {
            // A frontend's `Memory` may panic. The late write during which it panicked is lost; the others still land.
            remain |= network.unlocked(|| {
                loop {
                    if let Ok(remain) = catch_unwind(AssertUnwindSafe(|| memory.land_due())) {
                        break remain;
                    }
                }
            });
        }
    });
    remain || passed_over
}

/// Writes completions of backlogs that fit now. Returns the cost of those that it wrote under the lock.
pub(super) fn retry_backlogs(network: &mut NetworkView<'_>) -> u64 {
    let queues = network.local().completions.iter().map(|(number, queue)| (queue.client(), number)).collect();
    let rotation = &network.shared().turns.backlogs;
    let mut cost = 0;
    for_each_client(network, rotation, queues, |network, client, number| {
        // Found by its number, as a region above: destroying the queue waits for an engine that holds it.
        let Some(queue) = network.local().completions.get(number) else { return };
        if !queue.may_block() {
            // A queue that is skipped here is the first of its client in a later round.
            if cost < COST_PER_LOCK {
                cost += queue.retry_backlog() * COMPLETION_COST;
            }
        } else if queue.client() == client {
            let queue = queue.clone();
            network.unlocked(|| queue.retry_backlog());
        }
    });
    cost
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use efa_gda_wire::{
        Completion, CompletionKind, CompletionStatus, QueuePairNumber, RequestId, RequestIdWidth,
    };

    use super::super::attr::{
        Access, CompletionBacking, CompletionQueueAttr, MemoryRegionAttr, ProtectionDomain,
    };
    use super::super::completion::CompletionRecord;
    use super::super::config::{AdapterConfig, Gid};
    use super::super::create;
    use super::super::engine::TIME_PER_CLIENT;
    use super::super::memory::{Memory, MemoryFault};
    use super::super::network::Network;
    use super::super::shared::{Shared, lock};
    use super::super::tables::Port;
    use super::super::turns::LONGEST_ACCESS;
    use super::*;

    /// An adapter without threads, which has at most two regions and two completion queues, and its index.
    fn adapter() -> (Arc<Network>, Arc<Shared>, u16) {
        let mut config = AdapterConfig::new(Gid::link_local(1));
        (config.limits.max_mr, config.limits.max_cq) = (2, 2);
        config.latest_write = std::time::Duration::from_nanos(1);
        let (network, shared) = (Network::new(), Arc::new(Shared::new(config)));
        let index = network.join(shared.clone()).unwrap();
        (network, shared, index)
    }

    #[test]
    fn each_engine_begins_behind_the_client_for_which_the_last_one_was_replaced() {
        let (network, shared, index) = adapter();
        let (rotation, mut served) = (Rotation::default(), Vec::new());
        for turn in 0..8 {
            let mut view = NetworkView::new(&network, &shared, index, turn);
            for_each_client(&mut view, &rotation, vec![(7, ()), (8, ()), (100, ())], |_, client, ()| {
                served.push(client);
                shared.turns.begin_access(turn, client);
                thread::sleep(LONGEST_ACCESS);
                shared.turns.replace_if_blocked(|_| Ok(()));
            });
            assert!(shared.turns.end(turn), "the engine was replaced, and its access has returned");
        }
        assert_eq!(served, [7, 8, 100, 7, 8, 100, 7, 8]);
    }

    #[test]
    fn no_object_of_a_client_waits_for_another_whose_memory_is_slow() {
        let (network, shared, index) = adapter();
        let (rotation, mut served) = (Rotation::default(), Vec::new());
        let objects = [(7, 0), (7, 1), (7, 2), (100, 0)];
        for _ in 0..3 {
            let mut view = NetworkView::new(&network, &shared, index, 0);
            for_each_client(&mut view, &rotation, objects.to_vec(), |view, client, object| {
                served.push((client, object));
                view.unlocked(|| thread::sleep(TIME_PER_CLIENT));
            });
        }
        served.sort_unstable();
        assert_eq!(served, [(7, 0), (7, 1), (7, 2), (100, 0), (100, 0), (100, 0)]);
    }

    type Call = Box<dyn FnOnce() + Send>;

    /// Memory of a client that counts writes, and makes a call during the next one.
    struct Noted {
        client: u64,
        writes: AtomicU64,
        call: Mutex<Option<Call>>,
    }

    impl Noted {
        fn of(client: u64) -> Arc<Self> {
            Arc::new(Self { client, writes: AtomicU64::new(0), call: Mutex::default() })
        }

        fn writes(&self) -> u64 {
            self.writes.load(Ordering::Relaxed)
        }
    }

    impl Memory for Noted {
        fn client(&self) -> u64 {
            self.client
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            let call = lock(&self.call).take();
            call.into_iter().for_each(|call| call());
            Ok(())
        }
    }

    /// Adds an object with deferred work to an adapter. Returns its number.
    type Add = fn(&mut Port, Arc<Noted>) -> u16;

    /// A region with late writes.
    fn add_region(port: &mut Port, memory: Arc<Noted>) -> u16 {
        let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let attr = MemoryRegionAttr { pd: ProtectionDomain(0), address: 0, length: 8, access, memory };
        let number = port.insert_region(attr, None).unwrap().local.get() as u16;
        let (_, region) = port.relaxed.iter().find(|(other, _)| *other == number).unwrap();
        (0..16).for_each(|_| region.memory.write(0, &[1]).unwrap());
        number
    }

    /// A completion queue with a backlog that fits.
    fn add_queue(port: &mut Port, memory: Arc<Noted>) -> u16 {
        add_queue_in(port, 1, CompletionBacking::Indirect { memory, address: 0 })
    }

    /// A completion queue with a backlog of as many completions as it has entries, which fit.
    fn add_queue_in(port: &mut Port, entries: u32, backing: CompletionBacking) -> u16 {
        let attr = CompletionQueueAttr { entries, backing, doorbell: true, ..CompletionQueueAttr::default() };
        let created = create::completion_queue(port, attr, None).unwrap();
        let queue = port.completions.get(created.number.0).unwrap();
        let completion = Completion {
            id: RequestId::new(0),
            status: CompletionStatus::Ok,
            operation_code: 0,
            queue_pair: QueuePairNumber::new(0),
            kind: CompletionKind::Send,
        };
        let record = CompletionRecord { completion, ids: RequestIdWidth::Bits16, source: None };
        queue.set_consumer_index(0);
        queue.push(iter::repeat_n(record, 2 * entries as usize));
        created.doorbell.unwrap().ring(entries);
        created.number.0
    }

    #[test]
    fn a_panic_while_a_late_write_lands_delays_no_other_that_is_due() {
        let (network, shared, index) = adapter();
        let memory = Noted::of(7);
        add_region(network.write().port_mut(index).unwrap(), memory.clone());
        assert!(memory.writes() < 15, "several writes are late");
        *lock(&memory.call) = Some(Box::new(|| panic!("an injected panic")));
        let remain = land_late_writes(&mut NetworkView::new(&network, &shared, index, 0));
        assert_eq!((memory.writes(), remain), (16, false));
    }

    #[test]
    fn late_writes_remain_while_a_region_is_passed_over() {
        let (network, shared, index) = adapter();
        let [slow, other] = [7, 7].map(Noted::of);
        {
            let mut ports = network.write();
            let port = ports.port_mut(index).unwrap();
            add_region(port, slow.clone());
            add_region(port, other.clone());
        }
        *lock(&slow.call) = Some(Box::new(|| thread::sleep(TIME_PER_CLIENT)));
        let land = || land_late_writes(&mut NetworkView::new(&network, &shared, index, 0));
        assert!(land() && other.writes() < 16, "the client's time was over");
        assert_eq!((land(), other.writes()), (false, 16));
    }

    /// During the work for client 7, the object of client 9 is removed, and its number becomes that of client 100.
    /// Checks that no work for client 100 is done in the name of client 9.
    fn assert_served_in_its_own_name(add: Add, remove: fn(&mut Port, u16), serve: fn(&mut NetworkView<'_>)) {
        let (network, shared, index) = adapter();
        let [first, second, third] = [7, 9, 100].map(Noted::of);
        let number = {
            let mut ports = network.write();
            let port = ports.port_mut(index).unwrap();
            add(port, first.clone());
            add(port, second)
        };
        let (own, newcomer) = (network.clone(), third.clone());
        let before = Arc::new(AtomicU64::new(u64::MAX));
        let noted = before.clone();
        *lock(&first.call) = Some(Box::new(move || {
            let mut ports = own.write();
            let port = ports.port_mut(index).unwrap();
            remove(port, number);
            assert_eq!(add(port, newcomer.clone()), number);
            noted.store(newcomer.writes(), Ordering::Relaxed);
        }));
        let mut view = NetworkView::new(&network, &shared, index, 0);
        serve(&mut view);
        assert_eq!(third.writes(), before.load(Ordering::Relaxed), "it was served as another client");
        serve(&mut view);
        assert!(third.writes() > before.load(Ordering::Relaxed), "it has work to be done");
    }

    #[test]
    fn a_round_writes_the_backlogs_that_its_cost_allows_and_the_next_round_others() {
        let (network, shared, index) = adapter();
        let entries = (COST_PER_LOCK / COMPLETION_COST) as u32;
        for _ in 0..2 {
            let mut ports = network.write();
            add_queue_in(ports.port_mut(index).unwrap(), entries, CompletionBacking::Allocate);
        }
        let backlogged = [(); 2].map(|()| {
            retry_backlogs(&mut NetworkView::new(&network, &shared, index, 0));
            shared.backlogged.load(Ordering::Relaxed)
        });
        assert_eq!(backlogged, [1, 0]);
    }

    #[test]
    fn no_late_write_lands_in_the_name_of_a_client_that_had_the_regions_number_before() {
        let remove = |port: &mut Port, number| {
            port.relaxed.retain(|(other, _)| *other != number);
            port.regions.remove(number);
        };
        assert_served_in_its_own_name(add_region, remove, |view| {
            land_late_writes(view);
        });
    }

    #[test]
    fn no_backlog_is_written_in_the_name_of_a_client_that_had_the_queues_number_before() {
        let remove = |port: &mut Port, number| {
            port.completions.remove(number).unwrap();
        };
        assert_served_in_its_own_name(add_queue, remove, |view| {
            retry_backlogs(view);
        });
    }
}
