//! A hostile client of the adapter: entries, descriptors and doorbells that nobody would write, memory that goes
//! away, rings that change while the adapter reads them. The adapter must not touch memory that it was not given,
//! must let go of everything, and must go on working for others.
#![no_main]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use efa_gda_wire::*;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use softefa::device::*;

/// Registered bytes: an allocation of its own, so that AddressSanitizer sees a byte too many.
const REGION: usize = 4096;
/// How long the engine gets for what was rung, before the next action.
const SETTLE: Duration = Duration::from_micros(30);
/// Far more than an adapter that works takes.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Arbitrary, Debug)]
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
    /// Bytes as they come, in the next slot.
    Raw([u8; 64], [u8; 64]),
    /// A request that could be one; with a byte changed where the number is 1.
    Request(Request, u8, (u8, u8)),
    /// A receive that could be one.
    Receive(Place),
    /// A receive descriptor as it comes.
    Descriptor([u8; 16]),
    /// Rings the send queue up to what was written, or past it.
    Ring(u8),
    RingAt(u32),
    ReceiveRing(u8),
    ReceiveRingAt(u32),
    /// Changes a word of the send ring, which the adapter may be reading.
    Overwrite(u8, u8, u64),
    /// Lets the engine work.
    Settle,
    /// Takes the memory away, and gives it back under other keys.
    Deregister,
    Fail,
    Consumed(u16),
}

#[derive(Arbitrary, Debug)]
struct Request {
    id: u64,
    kind: u8,
    immediate: Option<u32>,
    hints: u8,
    /// What is wrong with it, in few of its values; bit 7: it is not rung.
    odd: u8,
    wrong: u32,
    local: Place,
    second: Place,
    remote: Place,
    inline: Vec<u8>,
}

/// Somewhere in the region, and a little past it; elsewhere for few values of `odd`.
#[derive(Arbitrary, Debug)]
struct Place {
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
        // SAFETY: the world lives as long as the process, and its bytes are reached through atomics alone.
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
                self.place(&bytes[..self.qp.sq.entry_size.bytes()]);
            }
            Action::Request(request, odd, spoil) => self.request(request, (*odd == 1).then_some(*spoil)),
            Action::Receive(place) => {
                let Segment { address, length, key } = self.segment(place);
                let receive = Receive { id: length as u16, address, length: length as u16, key };
                self.place_descriptor(&receive.encode());
            }
            Action::Descriptor(bytes) => self.place_descriptor(bytes),
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

    fn segment(&self, place: &Place) -> Segment {
        let offset = u64::from(place.offset) % (REGION as u64 + 16);
        let address = self.world.region().1 + offset;
        let inside = Segment { address, length: u32::from(place.length) % 4200, key: self.keys.local };
        match place.odd {
            1 => Segment { address: place.elsewhere, ..inside },
            2 => Segment { length: place.elsewhere as u32, ..inside },
            3 => Segment {
                key: LocalKey::new(place.elsewhere as u32 & 0xff_ffff).unwrap_or(inside.key),
                ..inside
            },
            _ => inside,
        }
    }

    fn request(&mut self, request: &Request, spoil: Option<(u8, u8)>) {
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
        let (rung, request) = (
            request.odd & 0x80 == 0,
            efa_gda_wire::Request {
                id: RequestId::new(if self.ids == RequestIdWidth::Bits16 {
                    request.id & 0xffff
                } else {
                    request.id
                }),
                peer: Peer {
                    address_handle: if odd == 2 {
                        AddressHandle::new(wrong as u16)
                    } else {
                        self.peer.address_handle
                    },
                    queue_pair: if odd == 3 {
                        QueuePairNumber::new(wrong as u16)
                    } else {
                        self.peer.queue_pair
                    },
                    queue_key: if odd == 4 { QueueKey::new(wrong) } else { self.peer.queue_key },
                },
                immediate: request.immediate,
                hints: ProcessingHints::from_bits(request.hints),
                operation,
            },
        );
        let ring = Ring::new(self.qp.sq.num_entries).expect("a depth that the adapter gave");
        let entry = request.encode(self.qp.sq.entry_size, ring.phase(self.produced), self.ids);
        let Ok(mut entry) = entry else { return };
        if let Some((at, value)) = spoil {
            let at = usize::from(at) % entry.len();
            entry[at] = value;
        }
        self.place(&entry);
        if rung {
            self.act(&Action::Ring(0));
        }
    }

    fn place(&mut self, entry: &[u8]) {
        let slot = self.produced % self.qp.sq.num_entries;
        self.qp.sq.memory.store(slot as usize * entry.len(), entry);
        self.produced = self.produced.wrapping_add(1);
    }

    fn place_descriptor(&mut self, bytes: &[u8]) {
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

    /// Everything is given back: nothing that was posted keeps hold of it.
    fn close(self) {
        let adapter = &self.world.adapter;
        adapter.destroy_queue_pair(self.qp.number).expect("a queue pair goes whatever was posted");
        adapter.destroy_completion_queue(self.cq.number).expect("nobody uses the completion queue");
        adapter.destroy_address_handle(self.peer.address_handle).expect("nobody uses the address handle");
        adapter.deregister_memory(self.keys.local).expect("nobody uses the region");
        adapter.free_domain(self.pd).expect("nobody uses the domain");
    }
}

fn settle() {
    let end = Instant::now() + SETTLE;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The adapter completes a good write as if nothing had been.
fn works(world: &World) {
    let scenario = Scenario {
        wide: false,
        wide_ids: false,
        unsolicited: false,
        send_depth: 2,
        receive_depth: 0,
        completions: 7,
        retries: 0,
        first_counter: 0,
        actions: Vec::new(),
    };
    let mut client = Client::new(world, &scenario);
    let inside = || Place { offset: 0, length: 64, odd: 0, elsewhere: 0 };
    let write = Request {
        id: 7,
        kind: 2,
        immediate: None,
        hints: 0,
        odd: 0,
        wrong: 0,
        local: inside(),
        second: inside(),
        remote: Place { offset: 1024, ..inside() },
        inline: Vec::new(),
    };
    client.request(&write, None);
    let memory = client.cq.memory.clone().expect("it lies in memory");
    let end = Instant::now() + LIMIT;
    while !Completion::phase(memory.load_word_acquire(0)[Completion::FLAGS_OFFSET]) {
        assert!(Instant::now() < end, "a good write does not complete");
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
    // One in some: it costs as much as a scenario.
    if scenario.first_counter.is_multiple_of(16) {
        works(world);
    }
});
