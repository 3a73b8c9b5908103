//! A small client of the device core: it encodes entries with `efa_gda_wire`, rings doorbells and polls.

// Each test program uses only part of it.
#![allow(dead_code, unreachable_pub)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_gda_wire::*;
use softefa::device::*;

/// Bound of every wait, far longer than any takes, so that a failing test ends.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `probe` returns a value.
#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    efa_gda_test_support::until(TIMEOUT, what, probe)
}

/// Registered memory.
pub struct Buffer {
    bytes: Box<[AtomicU8]>,
    pub keys: MemoryKeys,
}

impl Buffer {
    pub fn new(side: &Side, length: usize, access: Access) -> Self {
        Self::in_domain(&side.adapter, side.pd, length, access)
    }

    pub fn in_domain(adapter: &Adapter, pd: ProtectionDomain, length: usize, access: Access) -> Self {
        let bytes: Box<[AtomicU8]> = (0..length).map(|_| AtomicU8::new(0)).collect();
        let start = NonNull::new(bytes.as_ptr().cast_mut().cast::<u8>()).expect("a boxed slice is not null");
        let address = start.as_ptr() as u64;
        // SAFETY: tests drop a buffer only after its adapter was dropped or has nothing in flight, and access
        // its bytes only through atomics.
        let memory = Arc::new(unsafe { HostMemory::new(start, length) });
        let attr = MemoryRegionAttr { pd, address, length: length as u64, access, memory };
        Self { keys: adapter.register_memory(attr).unwrap(), bytes }
    }

    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub fn fill(&self, pattern: impl Fn(usize) -> u8) {
        self.bytes.iter().enumerate().for_each(|(at, byte)| byte.store(pattern(at), Ordering::Relaxed));
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    pub fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment { address: self.address() + offset, length, key: self.keys.local }
    }

    pub fn remote(&self, offset: u64) -> RemoteMemory {
        RemoteMemory { address: self.address() + offset, key: self.keys.remote }
    }
}

/// One queue pair with its completion queue, and the indexes of its client.
pub struct Side {
    pub adapter: Arc<Adapter>,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
    pub produced: u32,
    pub received: u32,
    pub cursor: CompletionCursor,
    ids: RequestIdWidth,
}

pub fn adapter(network: &Arc<Network>, number: u64) -> Arc<Adapter> {
    Adapter::new(network, AdapterConfig::new(Gid::link_local(number))).unwrap()
}

/// Two sides on two adapters of a new network. Each has a handle for the other.
pub fn pair() -> (Side, Side, Peer, Peer) {
    pair_with(|_| {}, |_| {})
}

pub fn pair_with(
    config: impl Fn(&mut AdapterConfig),
    change: impl Fn(&mut QueuePairAttr),
) -> (Side, Side, Peer, Peer) {
    let network = Network::new();
    let make = |number| {
        let mut adapter_config = AdapterConfig::new(Gid::link_local(number));
        config(&mut adapter_config);
        Side::with(&Adapter::new(&network, adapter_config).unwrap(), &change)
    };
    let (a, b) = (make(1), make(2));
    let (to_b, to_a) = (a.handle(&b), b.handle(&a));
    (a, b, to_b, to_a)
}

impl Side {
    pub fn new(adapter: &Arc<Adapter>) -> Self {
        Self::with(adapter, |_| {})
    }

    pub fn with(adapter: &Arc<Adapter>, change: impl Fn(&mut QueuePairAttr)) -> Self {
        let pd = adapter.allocate_domain().unwrap();
        let attr = CompletionQueueAttr { entries: 1024, ..CompletionQueueAttr::default() };
        let cq = adapter.create_completion_queue(attr).unwrap();
        Self::on(adapter, pd, cq, change)
    }

    pub fn on(
        adapter: &Arc<Adapter>,
        pd: ProtectionDomain,
        cq: CompletionQueue,
        change: impl Fn(&mut QueuePairAttr),
    ) -> Self {
        let mut attr = QueuePairAttr::new(pd, cq.number);
        attr.queue_key = QueueKey::new(0x1111_0000 + cq.number.get() as u32);
        change(&mut attr);
        let (ids, first) = (attr.request_ids, attr.first_counter as u32);
        let qp = adapter.create_queue_pair(attr).unwrap();
        let cursor = CompletionCursor::new(Ring::new(cq.num_entries).unwrap());
        Self { adapter: adapter.clone(), pd, cq, qp, produced: first, received: first, cursor, ids }
    }

    /// Creates a handle for `other`. Returns the address of its queue pair.
    pub fn handle(&self, other: &Self) -> Peer {
        let address_handle = self.adapter.create_address_handle(self.pd, other.adapter.gid()).unwrap();
        Peer { address_handle, queue_pair: other.qp.number, queue_key: other.qp.queue_key }
    }

    pub fn ring(&self) -> Ring {
        Ring::new(self.qp.sq.num_entries).unwrap()
    }

    /// Encodes the next request, for tests that change the entry.
    pub fn encode(&self, request: &Request) -> Entry {
        request.encode(self.qp.sq.entry_size, self.ring().phase(self.produced), self.ids).unwrap()
    }

    /// Writes an entry into the next slot, without a doorbell.
    pub fn place(&mut self, entry: &[u8]) {
        let slot = self.ring().slot(self.produced) as usize;
        self.qp.sq.memory.store(slot * self.qp.sq.entry_size.bytes(), entry);
        self.produced = self.produced.wrapping_add(1);
    }

    pub fn ring_doorbell(&self) {
        self.qp.sq.doorbell.ring(self.ring().doorbell(self.produced));
    }

    pub fn post(&mut self, request: &Request) {
        let entry = self.encode(request);
        self.place(&entry);
        self.ring_doorbell();
    }

    pub fn post_bytes(&mut self, entry: &[u8]) {
        self.place(entry);
        self.ring_doorbell();
    }

    pub fn place_descriptor(&mut self, descriptor: &[u8]) {
        let rq = self.qp.rq.as_ref().expect("the queue pair has a receive queue");
        let slot = Ring::new(rq.num_entries).unwrap().slot(self.received) as usize;
        rq.memory.store(slot * RX_DESCRIPTOR_BYTES, descriptor);
        self.received = self.received.wrapping_add(1);
    }

    pub fn ring_receive_doorbell(&self) {
        let rq = self.qp.rq.as_ref().expect("the queue pair has a receive queue");
        rq.doorbell.ring(self.received & 0xffff);
    }

    pub fn post_receive(&mut self, id: u16, segment: Segment) {
        let Segment { address, length, key } = segment;
        let receive = Receive { id, address, length: length as u16, key };
        self.place_descriptor(&receive.encode());
        self.ring_receive_doorbell();
    }

    pub fn poll(&mut self) -> Option<Completion> {
        let memory = self.cq.memory.clone().expect("the completion queues of tests are in memory");
        let offset = self.cursor.slot() as usize * self.cq.entry_size as usize;
        let word = memory.load_word_acquire(offset);
        if Completion::phase(word[Completion::FLAGS_OFFSET]) != self.cursor.phase() {
            return None;
        }
        let mut bytes = [0; 32];
        memory.load(offset, &mut bytes);
        self.cursor.advance();
        Some(Completion::decode(&bytes, self.ids).unwrap())
    }

    /// The bytes of the next completion, without consuming it.
    pub fn peek(&self) -> [u8; 32] {
        let memory = self.cq.memory.clone().expect("the completion queues of tests are in memory");
        let mut bytes = [0; 32];
        memory.load(self.cursor.slot() as usize * 32, &mut bytes);
        bytes
    }

    #[track_caller]
    pub fn completion(&mut self) -> Completion {
        until("a completion", || self.poll())
    }

    /// Posts a request and waits for its completion.
    #[track_caller]
    pub fn run(&mut self, request: &Request) -> CompletionStatus {
        self.post(request);
        let completion = self.completion();
        assert_eq!(completion.id, request.id);
        completion.status
    }

    #[track_caller]
    pub fn run_bytes(&mut self, entry: &[u8]) -> CompletionStatus {
        self.post_bytes(entry);
        self.completion().status
    }

    /// The rules broken so far.
    pub fn rules(&self) -> Vec<StrictRule> {
        self.adapter.violations().into_iter().map(|violation| violation.rule).collect()
    }

    #[track_caller]
    pub fn violation(&self) -> Violation {
        until("a violation", || self.adapter.violations().into_iter().next())
    }

    /// Waits until the adapter has fetched `entries`.
    #[track_caller]
    pub fn await_fetched(&self, entries: u64) {
        until("entries to be fetched", || (self.adapter.statistics().entries >= entries).then_some(()));
    }
}

/// Memory of a client whose accesses do not return until it is released.
#[derive(Default)]
pub struct BlockedMemory {
    pub accesses: AtomicU64,
    pub is_free: AtomicBool,
}

impl BlockedMemory {
    fn access(&self) -> Result<(), MemoryFault> {
        self.accesses.fetch_add(1, Ordering::AcqRel);
        let limit = Instant::now() + TIMEOUT / 2;
        while !self.is_free.load(Ordering::Acquire) {
            assert!(Instant::now() < limit, "the memory is not released");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Memory for BlockedMemory {
    fn read(&self, _address: u64, _into: &mut [u8]) -> Result<(), MemoryFault> {
        self.access()
    }

    fn write(&self, _address: u64, _from: &[u8]) -> Result<(), MemoryFault> {
        self.access()
    }
}

pub fn request(id: u64, peer: Peer, operation: Operation) -> Request {
    Request { id: RequestId::new(id), peer, immediate: None, hints: ProcessingHints::NONE, operation }
}

pub fn write(id: u64, peer: Peer, remote: RemoteMemory, local: Segment) -> Request {
    request(id, peer, Operation::Write { remote, local })
}

pub fn read(id: u64, peer: Peer, remote: RemoteMemory, local: Segment) -> Request {
    request(id, peer, Operation::Read { remote, local })
}

pub fn send(id: u64, peer: Peer, segments: &[Segment]) -> Request {
    request(id, peer, Operation::Send(Segments::new(segments).unwrap()))
}

pub fn send_inline(id: u64, peer: Peer, bytes: &[u8]) -> Request {
    request(id, peer, Operation::SendInline(InlineData::new(bytes).unwrap()))
}

/// The receive fields of a receive completion.
pub fn received(completion: &Completion) -> ReceiveInfo {
    match completion.kind {
        CompletionKind::Receive(info) => info,
        CompletionKind::Send => panic!("{completion:?} is not a receive completion"),
    }
}
