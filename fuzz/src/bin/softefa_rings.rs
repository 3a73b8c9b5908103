//! Fuzzes the adapter with a hostile client: invalid entries, descriptors and doorbells, regions that are
//! deregistered while in use, and rings that change while the adapter reads them. The adapter must access
//! only registered memory, must free every object, and must keep working for other clients. The completions
//! of invalid requests are not checked.
#![no_main]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use efa_gda_wire::*;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use softefa::device::*;

/// Registered bytes. They are a separate allocation, so that AddressSanitizer finds an access past the end.
const REGION: usize = 4096;
/// The time that the engine has for posted requests before the next action.
const SETTLE: Duration = Duration::from_micros(30);
/// The bound of a wait, far longer than a working adapter needs.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Arbitrary, Debug, Default)]
struct Scenario {
    wide: bool,
    wide_ids: bool,
    unsolicited: bool,
    /// Depths, as powers of two.
    send_depth: u8,
    receive_depth: u8,
    completions: u8,
    retries: u8,
    first_counter: u16,
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    /// Writes any bytes into the next slot.
    Raw([u8; 64], [u8; 64]),
    /// Writes a plausible request. If the number is 1, one byte of it is changed.
    Request(Request, u8, (u8, u8)),
    /// Writes a plausible receive.
    Receive(Range),
    /// Writes any bytes as a receive descriptor.
    Descriptor([u8; 16]),
    /// Rings for the entries that were written, or past them.
    Ring(u8),
    RingAt(u32),
    ReceiveRing(u8),
    ReceiveRingAt(u32),
    /// Changes a word of the send ring, which the adapter may be reading.
    Overwrite(u8, u8, u64),
    /// Waits, so that the engine can work.
    Settle,
    /// Deregisters the memory and registers it again, under other keys.
    Deregister,
    Fail,
    Consumed(u16),
}

#[derive(Arbitrary, Debug, Default)]
struct Request {
    id: u64,
    kind: u8,
    immediate: Option<u32>,
    hints: u8,
    /// Selects the field that has the value `wrong`; most values select none. Bit 7: the doorbell is not
    /// rung.
    odd: u8,
    wrong: u32,
    local: Range,
    second: Range,
    remote: Range,
    inline: Vec<u8>,
}

/// A range that starts in the region or just past it. For a few values of `odd`, one field has the value
/// `elsewhere`.
#[derive(Arbitrary, Debug, Default)]
struct Range {
    offset: u16,
    length: u16,
    odd: u8,
    elsewhere: u64,
}

struct World {
    adapter: Arc<Adapter>,
    memory: Box<[AtomicU8]>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let adapter = Adapter::new(&Network::new(), AdapterConfig::new(Gid::link_local(1))).expect("an adapter");
    let memory = (0..REGION).map(|_| AtomicU8::new(0)).collect();
    World { adapter, memory }
});

impl World {
    fn region(&self) -> (NonNull<u8>, u64) {
        let start = self.memory.as_ptr().cast_mut().cast::<u8>();
        (NonNull::new(start).expect("a box is not null"), start as u64)
    }

    fn register(&self, pd: ProtectionDomain) -> MemoryKeys {
        let (start, address) = self.region();
        // SAFETY: the world lives as long as the process, and its bytes are only accessed through atomics.
        let memory = Arc::new(unsafe { HostMemory::new(start, REGION) });
        let attr = MemoryRegionAttr { pd, address, length: REGION as u64, access: Access::ALL, memory };
        self.adapter.register_memory(attr).expect("memory registers")
    }
}

struct Client<'a> {
    world: &'a World,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    peer: Peer,
    keys: MemoryKeys,
    ids: RequestIdWidth,
    produced: u32,
    received: u32,
}

impl<'a> Client<'a> {
    fn new(world: &'a World, scenario: &Scenario) -> Self {
        let adapter = &world.adapter;
        let pd = adapter.allocate_domain().expect("a domain");
        let entries = 1 << (scenario.completions % 8);
        let cq = adapter
            .create_completion_queue(CompletionQueueAttr { entries, ..CompletionQueueAttr::default() })
            .expect("a completion queue");
        let mut attr = QueuePairAttr::new(pd, cq.number);
        attr.sq_depth = 1 << (scenario.send_depth % 6);
        attr.rq_depth = if scenario.receive_depth == 0 { 0 } else { 1 << (scenario.receive_depth % 6) };
        attr.entry_size = if scenario.wide { EntrySize::B128 } else { EntrySize::B64 };
        attr.request_ids = if scenario.wide_ids { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
        attr.unsolicited_write_receive = scenario.unsolicited;
        attr.first_counter = scenario.first_counter.into();
        attr.rnr_retry = match scenario.retries {
            0..128 => RnrRetry::Times(scenario.retries % 3),
            _ => RnrRetry::Forever,
        };
        let (ids, produced) = (attr.request_ids, u32::from(scenario.first_counter));
        let qp = adapter.create_queue_pair(attr).expect("a queue pair");
        let address_handle = adapter.create_address_handle(pd, adapter.gid()).expect("an address handle");
        let peer = Peer { address_handle, queue_pair: qp.number, queue_key: qp.queue_key };
        let keys = world.register(pd);
        Self { world, pd, cq, qp, peer, keys, ids, produced, received: produced }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Raw(first, second) => {
                let mut bytes = [0; 128];
                bytes[..64].copy_from_slice(first);
                bytes[64..].copy_from_slice(second);
                self.write_entry(&bytes[..self.qp.sq.entry_size.bytes()]);
            }
            Action::Request(request, odd, changed_byte) => {
                self.request(request, (*odd == 1).then_some(*changed_byte))
            }
            Action::Receive(range) => {
                let Segment { address, length, key } = self.segment(range);
                let receive = Receive { id: length as u16, address, length: length as u16, key };
                self.write_descriptor(&receive.encode());
            }
            Action::Descriptor(bytes) => self.write_descriptor(bytes),
            Action::Ring(past) => self.qp.sq.doorbell.ring((self.produced + u32::from(*past & 3)) & 0xffff),
            Action::RingAt(value) => self.qp.sq.doorbell.ring(*value),
            Action::ReceiveRing(past) => self.ring_receives((self.received + u32::from(*past & 3)) & 0xffff),
            Action::ReceiveRingAt(value) => self.ring_receives(*value),
            Action::Overwrite(slot, word, value) => {
                let size = self.qp.sq.entry_size.bytes();
                let slot = usize::from(*slot) % self.qp.sq.num_entries as usize;
                let offset = slot * size + usize::from(*word) % (size / 8) * 8;
                self.qp.sq.memory.store(offset, &value.to_ne_bytes());
            }
            Action::Settle => settle(),
            Action::Deregister => {
                let _ = self.world.adapter.deregister_memory(self.keys.local);
                self.keys = self.world.register(self.pd);
            }
            Action::Fail => {
                let _ = self.world.adapter.set_queue_pair_state(self.qp.number, QueuePairState::Error);
            }
            Action::Consumed(count) => {
                let _ = self.world.adapter.set_consumer_index(self.cq.number, u64::from(*count));
            }
        }
    }

    fn segment(&self, range: &Range) -> Segment {
        let offset = u64::from(range.offset) % (REGION as u64 + 16);
        let address = self.world.region().1 + offset;
        let inside = Segment { address, length: u32::from(range.length) % 4200, key: self.keys.local };
        match range.odd {
            1 => Segment { address: range.elsewhere, ..inside },
            2 => Segment { length: range.elsewhere as u32, ..inside },
            3 => Segment {
                key: LocalKey::new(range.elsewhere as u32 & 0xff_ffff).unwrap_or(inside.key),
                ..inside
            },
            _ => inside,
        }
    }

    fn request(&mut self, request: &Request, changed_byte: Option<(u8, u8)>) {
        let (local, second) = (self.segment(&request.local), self.segment(&request.second));
        let remote = self.segment(&request.remote);
        let (odd, wrong) = (request.odd & 0x7f, request.wrong);
        let key = if odd == 1 { RemoteKey::new(wrong) } else { self.keys.remote };
        let remote = RemoteMemory { address: remote.address, key };
        let limit = self.qp.sq.entry_size.inline_limit().min(request.inline.len());
        let Ok(data) = InlineData::new(&request.inline[..limit]) else { return };
        let segments = Segments::new(&[local, second][..usize::from(request.kind >> 4) % 3]);
        let operation = match request.kind % 5 {
            0 => Operation::Send(segments.expect("at most two")),
            1 => Operation::SendInline(data),
            2 => Operation::Write { remote, local },
            3 => Operation::WriteInline { remote, data },
            _ => Operation::Read { remote, local },
        };
        let own = self.peer;
        let peer = Peer {
            address_handle: if odd == 2 { AddressHandle::new(wrong as u16) } else { own.address_handle },
            queue_pair: if odd == 3 { QueuePairNumber::new(wrong as u16) } else { own.queue_pair },
            queue_key: if odd == 4 { QueueKey::new(wrong) } else { own.queue_key },
        };
        let id = RequestId::new(request.id & self.ids.largest().get());
        let hints = ProcessingHints::from_bits(request.hints);
        let rung = request.odd & 0x80 == 0;
        let request = efa_gda_wire::Request { id, peer, immediate: request.immediate, hints, operation };
        let ring = Ring::new(self.qp.sq.num_entries).expect("the adapter's depth is a power of two");
        let entry = request.encode(self.qp.sq.entry_size, ring.phase(self.produced), self.ids);
        let Ok(mut entry) = entry else { return };
        if let Some((at, value)) = changed_byte {
            let at = usize::from(at) % entry.len();
            entry[at] = value;
        }
        self.write_entry(&entry);
        if rung {
            self.act(&Action::Ring(0));
        }
    }

    fn write_entry(&mut self, entry: &[u8]) {
        let slot = self.produced % self.qp.sq.num_entries;
        self.qp.sq.memory.store(slot as usize * entry.len(), entry);
        self.produced = self.produced.wrapping_add(1);
    }

    fn write_descriptor(&mut self, bytes: &[u8]) {
        let Some(rq) = &self.qp.rq else { return };
        let slot = self.received % rq.num_entries;
        rq.memory.store(slot as usize * RX_DESCRIPTOR_BYTES, bytes);
        self.received = self.received.wrapping_add(1);
    }

    fn ring_receives(&self, value: u32) {
        if let Some(rq) = &self.qp.rq {
            rq.doorbell.ring(value);
        }
    }

    /// Destroys every object. No posted request may keep one in use.
    fn close(self) {
        let adapter = &self.world.adapter;
        adapter.destroy_queue_pair(self.qp.number).expect("posted requests do not keep a queue pair");
        adapter.destroy_completion_queue(self.cq.number).expect("the completion queue is unused");
        adapter.destroy_address_handle(self.peer.address_handle).expect("the address handle is unused");
        adapter.deregister_memory(self.keys.local).expect("the region is unused");
        adapter.free_domain(self.pd).expect("the domain is unused");
    }
}

fn settle() {
    let end = Instant::now() + SETTLE;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Checks that the adapter still completes a valid write.
fn check_valid_write(world: &World) {
    let scenario = Scenario { send_depth: 2, completions: 7, ..Scenario::default() };
    let mut client = Client::new(world, &scenario);
    let inside = |offset| Range { offset, length: 64, ..Range::default() };
    let write = Request { id: 7, kind: 2, local: inside(0), remote: inside(1024), ..Request::default() };
    client.request(&write, None);
    let memory = client.cq.memory.clone().expect("the adapter allocated the queue");
    let end = Instant::now() + LIMIT;
    while !Completion::phase(memory.load_word_acquire(0)[Completion::FLAGS_OFFSET]) {
        assert!(Instant::now() < end, "a valid write did not complete within {LIMIT:?}");
        std::thread::yield_now();
    }
    let mut bytes = [0; 32];
    memory.load(0, &mut bytes);
    let completion = Completion::decode(&bytes, RequestIdWidth::Bits16).expect("a completion");
    assert_eq!((completion.id.get(), completion.status), (7, CompletionStatus::Ok));
    client.close();
}

fuzz_target!(|scenario: Scenario| {
    let world = &*WORLD;
    let mut client = Client::new(world, &scenario);
    scenario.actions.iter().take(64).for_each(|action| client.act(action));
    settle();
    client.close();
    // One scenario in 16, because the check costs as much as a scenario.
    if scenario.first_counter.is_multiple_of(16) {
        check_valid_write(world);
    }
});
