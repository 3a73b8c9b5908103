//! A client of the device core for benchmarks: two adapters, and one poster that encodes entries with
//! `efa_gda_wire`, writes them into the real ring and polls the real completion queue. Poster and engine each
//! have a core.

// Each benchmark uses only part of it.
#![allow(dead_code, unreachable_pub)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_gda_wire::{
    Completion, CompletionCursor, CompletionStatus, EntrySize, Operation, Peer, ProcessingHints, QueueKey,
    RemoteMemory, Request, RequestId, RequestIdWidth, Ring, Segment,
};
use softefa::device::{
    Access, Adapter, AdapterConfig, CompletionQueue, CompletionQueueAttr, Gid, HostMemory, MemoryKeys,
    MemoryRegionAttr, Network, QueuePair, QueuePairAttr,
};

/// Bound of the wait for completions, so that a failing benchmark ends.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Alignment of both buffers.
const PAGE: usize = 4096;

/// Pins the calling thread, and threads that it starts later, to one core, if the process may use that core.
pub fn pin(core: usize) {
    // SAFETY: a cpu_set_t is plain bits, and all zeroes is a valid value. The calls access only that set and
    // affect only the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Pages that were written once, so that no benchmark pays for page faults.
pub struct Pages {
    bytes: Box<[u8]>,
    length: usize,
}

impl Pages {
    pub fn new(length: usize) -> Self {
        // Not zeroes: untouched zero pages would all map one shared page.
        let bytes = vec![0xa5; length + PAGE].into_boxed_slice();
        Self { bytes, length }
    }

    pub fn start(&self) -> NonNull<u8> {
        let start = self.bytes.as_ptr().cast_mut();
        let ahead = start.align_offset(PAGE);
        NonNull::new(start.wrapping_add(ahead)).expect("an address inside a boxed slice is not null")
    }

    pub fn length(&self) -> usize {
        self.length
    }
}

/// One queue pair of an adapter, its poster, and two registered buffers: one at each adapter.
pub struct Client {
    adapter: Arc<Adapter>,
    _other: Arc<Adapter>,
    cq: CompletionQueue,
    qp: QueuePair,
    ring: Ring,
    cursor: CompletionCursor,
    peer: Peer,
    local: MemoryKeys,
    remote: MemoryKeys,
    pub from: Pages,
    pub to: Pages,
    posted: u32,
}

impl Client {
    /// Creates a client with buffers of `length` bytes. Engine threads are pinned to `engine_core`, the
    /// caller's thread to `poster_core`.
    pub fn new(length: usize, entry_size: EntrySize, poster_core: usize, engine_core: usize) -> Self {
        pin(engine_core);
        let network = Network::new();
        let make = |number| {
            Adapter::new(&network, AdapterConfig::new(Gid::link_local(number)))
                .expect("the default configuration is valid")
        };
        let (adapter, other) = (make(1), make(2));
        pin(poster_core);

        let (from, to) = (Pages::new(length), Pages::new(length));
        let open = |adapter: &Adapter, pages: &Pages| {
            let pd = adapter.allocate_domain().expect("a new adapter has free domains");
            let attr = CompletionQueueAttr { entries: 8192, ..CompletionQueueAttr::default() };
            let cq = adapter.create_completion_queue(attr).expect("a new adapter has free completion queues");
            let mut attr = QueuePairAttr::new(pd, cq.number);
            (attr.sq_depth, attr.entry_size, attr.queue_key) = (2048, entry_size, QueueKey::new(7));
            let qp = adapter.create_queue_pair(attr).expect("the depth is within the limits");
            // SAFETY: the client holds the pages and the adapters, and creates no reference to the pages
            // while requests are in flight.
            let memory = Arc::new(unsafe { HostMemory::new(pages.start(), pages.length()) });
            let (address, length) = (pages.start().as_ptr() as u64, pages.length() as u64);
            let attr = MemoryRegionAttr { pd, address, length, access: Access::ALL, memory };
            (pd, cq, qp, adapter.register_memory(attr).expect("the region is inside the address space"))
        };
        let (pd, cq, qp, local) = open(&adapter, &from);
        let (other_pd, _, other_qp, remote) = open(&other, &to);
        let handle = |of: &Adapter, pd, to: &Adapter| {
            of.create_address_handle(pd, to.gid()).expect("a new adapter has free address handles")
        };
        handle(&other, other_pd, &adapter);
        let peer = Peer {
            address_handle: handle(&adapter, pd, &other),
            queue_pair: other_qp.number,
            queue_key: other_qp.queue_key,
        };
        let ring = Ring::new(qp.sq.num_entries).expect("depths are powers of two");
        let cursor = CompletionCursor::new(Ring::new(cq.num_entries).expect("depths are powers of two"));
        Self { adapter, _other: other, cq, qp, ring, cursor, peer, local, remote, from, to, posted: 0 }
    }

    /// A write of `length` bytes at `offset` of both buffers.
    #[inline]
    pub fn write(&self, offset: usize, length: usize) -> Operation {
        let segment = self.segment(offset, length);
        Operation::Write { remote: self.remote(offset), local: segment }
    }

    #[inline]
    pub fn segment(&self, offset: usize, length: usize) -> Segment {
        let address = self.from.start().as_ptr() as u64 + offset as u64;
        Segment { address, length: length as u32, key: self.local.local }
    }

    #[inline]
    pub fn remote(&self, offset: usize) -> RemoteMemory {
        let address = self.to.start().as_ptr() as u64 + offset as u64;
        RemoteMemory { address, key: self.remote.remote }
    }

    fn in_flight(&self) -> u32 {
        self.posted.wrapping_sub(self.cursor.consumed())
    }

    /// Writes one entry into the next slot, without a doorbell.
    #[inline]
    fn write_entry(&mut self, operation: Operation) {
        let request = Request {
            id: RequestId::new(u64::from(self.posted as u16)),
            peer: self.peer,
            immediate: None,
            hints: ProcessingHints::NONE,
            operation,
        };
        let size = self.qp.sq.entry_size;
        let entry = request
            .encode(size, self.ring.phase(self.posted), RequestIdWidth::Bits16)
            .expect("benchmarks post valid requests");
        self.qp.sq.memory.store(self.ring.slot(self.posted) as usize * size.bytes(), &entry);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Consumes available completions and checks the status of each. Returns their number.
    #[inline]
    fn poll(&mut self) -> u32 {
        let Some(memory) = &self.cq.memory else { return 0 };
        let before = self.cursor.consumed();
        loop {
            let offset = self.cursor.slot() as usize * self.cq.entry_size as usize;
            let word = memory.load_word_acquire(offset);
            if Completion::phase(word[Completion::FLAGS_OFFSET]) != self.cursor.phase() {
                return self.cursor.consumed().wrapping_sub(before);
            }
            let mut bytes = [0; 32];
            memory.load(offset, &mut bytes);
            let completion = Completion::decode(&bytes, RequestIdWidth::Bits16);
            let completed = completion.expect("the adapter writes valid completions");
            assert_eq!(completed.status, CompletionStatus::Ok, "{:?}", self.adapter.violations());
            self.cursor.advance();
        }
    }

    /// Runs `count` operations, `batch` per doorbell and at most `window` in flight, and waits for the last
    /// completion. Returns the elapsed time.
    pub fn run(
        &mut self,
        count: u64,
        batch: u32,
        window: u32,
        operation: impl Fn(&Self, u64) -> Operation,
    ) -> Duration {
        let batch = batch.min(self.qp.sq.max_batch).min(window);
        let window = window.min(self.qp.sq.num_entries);
        let begin = Instant::now();
        let mut next = 0;
        while next < count {
            self.wait_until(begin, |client| client.in_flight() + batch <= window);
            for number in next..count.min(next + u64::from(batch)) {
                let operation = operation(self, number);
                self.write_entry(operation);
            }
            next = count.min(next + u64::from(batch));
            self.qp.sq.doorbell.ring(self.ring.doorbell(self.posted));
        }
        self.wait_until(begin, |client| client.in_flight() == 0);
        begin.elapsed()
    }

    #[inline]
    fn wait_until(&mut self, begin: Instant, done: impl Fn(&Self) -> bool) {
        let mut rounds = 0_u32;
        while !done(self) {
            if self.poll() > 0 {
                rounds = 0;
                continue;
            }
            rounds += 1;
            if rounds.is_multiple_of(4096) {
                assert!(
                    begin.elapsed() < TIMEOUT,
                    "no completion within the bound; violations: {:?}",
                    self.adapter.violations()
                );
                // The engine must run, even if both threads share a core.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// The reference for large writes: `memcpy` of the C library over the same buffers, by the calling
    /// thread.
    pub fn copy(&mut self, count: u64, length: usize) -> Duration {
        let slots = self.from.length() / length;
        let begin = Instant::now();
        for number in 0..count {
            let offset = number as usize % slots * length;
            let (from, to) = (self.from.start().as_ptr(), self.to.start().as_ptr());
            // SAFETY: `offset + length` is inside both buffers, which do not overlap. Nothing is in flight,
            // because `run` waits for its last completion.
            unsafe { libc::memcpy(to.add(offset).cast(), from.add(offset).cast(), length) };
        }
        begin.elapsed()
    }

    /// Violations so far; 0 in a valid benchmark.
    pub fn violations(&self) -> u64 {
        self.adapter.statistics().violations
    }
}
