//! An adapter for tests of the posting engine: a ring in ordinary memory, and a thread that reads the ring as strictly as
//! the hardware may. It records the requests and moves no bytes.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod dispatch;
pub(crate) mod put_signal;
pub(crate) mod waits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;

use efa_gda::executor::host;
use efa_gda::status::DeviceError;
use efa_gda::wire::{DecodedRequest, Operation, Request, RequestIdWidth};
use efa_gda_sys::device::{
    EFA_GDA_LOAD_SHARED, EFA_GDA_TURN_BITS, efa_gda_load_args, efa_gda_peer, efa_gda_queue,
};
use efa_gda_test_support::compile::host_kernels;
use libloading::Library;

pub(crate) const QPN: u32 = 77;
pub(crate) const PEER: efa_gda_peer = efa_gda_peer { ah: 3, qpn: 9, qkey: 0x1234 };
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The shape of the queue under test.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) depth: u32,
    pub(crate) max_batch: u32,
    pub(crate) entry_size: u32,
    pub(crate) wide_ids: bool,
    /// Entries of the request table; 0 for none.
    pub(crate) requests: u32,
    /// The counters' initial value, with which tests reach the wraps.
    pub(crate) start: u32,
    /// Number of a request, counted from `start`, and the status with which it fails.
    pub(crate) fail: Option<(u32, u8)>,
    /// Number of a request, counted from `start`, that never completes.
    pub(crate) withhold: Option<u32>,
    /// The queue pair in completions.
    pub(crate) qpn: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            depth: 64,
            max_batch: 16,
            entry_size: 64,
            wide_ids: false,
            requests: 0,
            start: 0,
            fail: None,
            withhold: None,
            qpn: QPN,
        }
    }
}

/// The memory that poster and adapter share.
struct Memory {
    shape: Shape,
    sq: Vec<AtomicU64>,
    doorbell: AtomicU32,
    cq: Vec<AtomicU64>,
    done: Vec<AtomicU16>,
    posters: Vec<AtomicU16>,
    /// By producer index modulo 65536: the index + 1, stored before the request's completion.
    ended: Vec<AtomicU32>,
    abort: AtomicU32,
    stop: AtomicBool,
}

/// The adapter's record of requests, doorbells and violations.
#[derive(Default)]
pub(crate) struct AdapterRecord {
    /// Requests in ring order.
    pub(crate) requests: Vec<Request>,
    /// Doorbells that advanced the producer index.
    pub(crate) doorbells: u32,
    /// The rules that the poster broke, as text.
    pub(crate) violations: Vec<String>,
}

/// A queue and its adapter.
pub(crate) struct Bench {
    pub(crate) queue: Box<efa_gda_queue>,
    memory: Arc<Memory>,
    adapter: Option<JoinHandle<AdapterRecord>>,
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count.next_multiple_of(2).max(2)).map(|_| AtomicU64::new(0)).collect()
}

/// The words of a request table after `start` requests that all completed.
fn last_lap(shape: Shape) -> Vec<AtomicU16> {
    let word = |slot: u32| {
        let before = shape.start.wrapping_sub(1);
        let index = before.wrapping_sub(before.wrapping_sub(slot) & (shape.requests - 1));
        if index & shape.requests == 0 { 0x8000 } else { 0 }
    };
    (0..shape.requests).map(|slot| AtomicU16::new(word(slot))).collect()
}

/// Compiles files of kernels for the host into one library.
pub(crate) fn kernels(sources: &[&str]) -> Library {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: Vec<PathBuf> = sources.iter().map(|source| root.join(source)).collect();
    // SAFETY: the library has no initialisers.
    unsafe { Library::new(host_kernels(&sources)) }.expect("the library that the compiler wrote loads")
}

impl Bench {
    /// A queue without an adapter, which ignores doorbells and completes nothing.
    pub(crate) fn silent(shape: Shape) -> Self {
        let memory = Arc::new(Memory {
            shape,
            sq: words((shape.depth * shape.entry_size / 8) as usize),
            doorbell: AtomicU32::new(shape.start & 0xffff),
            cq: words((shape.depth * 4) as usize),
            done: last_lap(shape),
            posters: last_lap(shape),
            ended: (0..1 << 16).map(|_| AtomicU32::new(shape.start)).collect(),
            abort: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        let mut queue = host::zeroed_queue();
        queue.sq.buffer = memory.sq.as_ptr() as *mut u8;
        queue.sq.doorbell = memory.doorbell.as_ptr();
        queue.sq.entry_size = shape.entry_size;
        queue.sq.num_entries = shape.depth;
        queue.sq.max_batch = shape.max_batch;
        queue.sq.flags = (u32::from(shape.wide_ids) * efa_gda_sys::device::EFA_GDA_SQ_REQ_ID_64)
            | (u32::from(shape.entry_size == 128) * efa_gda_sys::device::EFA_GDA_SQ_INLINE_WRITE);
        queue.cq.buffer = memory.cq.as_ptr() as *mut u8;
        queue.cq.entry_size = 32;
        queue.cq.num_entries = shape.depth;
        queue.requests.done = memory.done.as_ptr() as *mut u16;
        queue.requests.posters = memory.posters.as_ptr() as *mut u16;
        queue.requests.num_entries = shape.requests;
        queue.tracking.oldest = shape.start;
        queue.abort = memory.abort.as_ptr();
        queue.max_rdma_size = 1 << 30;
        queue.max_msg_size = 8192;
        queue.max_inline = if shape.entry_size == 128 { 80 } else { 32 };
        queue.qpn = QPN;
        // The state after `start` requests that all completed.
        queue.reserve.word = u64::from(shape.start);
        queue.turn.word = u64::from(shape.start) << EFA_GDA_TURN_BITS;
        queue.completion.completed = shape.start;
        Self { queue, memory, adapter: None }
    }

    /// A queue with a working adapter.
    pub(crate) fn new(shape: Shape) -> Self {
        let mut bench = Self::silent(shape);
        let adapter = bench.stepped();
        bench.adapter = Some(std::thread::spawn(move || adapter.run()));
        bench
    }

    /// The adapter of a silent bench, for a test that advances it.
    pub(crate) fn stepped(&self) -> Adapter {
        Adapter::new(Arc::clone(&self.memory))
    }

    pub(crate) fn ended(&self) -> *const u32 {
        self.memory.ended.as_ptr().cast()
    }

    pub(crate) fn doorbell(&self) -> u32 {
        self.memory.doorbell.load(Ordering::Acquire)
    }

    /// The producer index of the last doorbell that the queue's words show.
    pub(crate) fn doorbell_index(&self) -> u32 {
        let turn = self.queue.turn.word;
        ((turn >> EFA_GDA_TURN_BITS) as u32).wrapping_sub(turn as u32 % (1 << EFA_GDA_TURN_BITS))
    }

    /// Raises the queue's abort flag.
    pub(crate) fn abort(&self, value: u32) {
        self.memory.abort.store(value, Ordering::Relaxed);
    }

    /// Stops the adapter and returns its record.
    pub(crate) fn finish(mut self) -> AdapterRecord {
        self.memory.stop.store(true, Ordering::Release);
        self.adapter.take().expect("a bench with an adapter").join().expect("the adapter's thread ends")
    }
}

/// A load of groups that share a queue.
pub(crate) fn shared(group: u32, calls: u32, per_call: u32) -> efa_gda_load_args {
    efa_gda_load_args {
        peer: PEER,
        queue_count: 1,
        sharing: EFA_GDA_LOAD_SHARED,
        group,
        calls,
        per_call,
        lkey: 5,
        rkey: 6,
        timeout_ns: 60 * SECOND,
        ..Default::default()
    }
}

/// Runs a load on the bench's queue.
pub(crate) fn load(
    bench: &mut Bench,
    args: efa_gda_load_args,
    blocks: u32,
    lanes: u32,
) -> Vec<Result<(), DeviceError>> {
    let args = efa_gda_load_args { queues: &mut *bench.queue, ..args };
    // SAFETY: the bench keeps the queue's memory alive, and the blocks share the queue as its protocol allows.
    unsafe { host::load(&args, blocks, lanes, host::LoadOptions::default()) }.expect("the blocks start")
}

/// The remote addresses of the writes, in ring order.
pub(crate) fn remotes(record: &AdapterRecord) -> Vec<u64> {
    let remote = |operation: &Operation| match operation {
        Operation::Write { remote, .. } => remote.address,
        other => panic!("not a write: {other:?}"),
    };
    record.requests.iter().map(|request| remote(&request.operation)).collect()
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.memory.stop.store(true, Ordering::Release);
        if let Some(adapter) = self.adapter.take() {
            let _ = adapter.join();
        }
    }
}

/// The adapter of a [`Bench`].
pub(crate) struct Adapter {
    memory: Arc<Memory>,
    record: AdapterRecord,
    doorbell_index: u32,
    /// Producer indices of the requests that have not completed.
    taken: Vec<u32>,
    completions: u32,
    random: u64,
}

impl Adapter {
    fn new(memory: Arc<Memory>) -> Self {
        let doorbell_index = memory.shape.start;
        let (record, taken) = (AdapterRecord::default(), Vec::new());
        Self { memory, record, doorbell_index, taken, completions: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Reads the doorbell, takes the requests that it covers, and completes some of those taken. Returns whether there
    /// was anything to do.
    pub(crate) fn step(&mut self) -> bool {
        let memory = Arc::clone(&self.memory);
        let now = advance(&memory, self.doorbell_index, &mut self.record);
        check_batch(&memory, now, &mut self.record);
        self.record.doorbells += u32::from(now != self.doorbell_index);
        while self.doorbell_index != now {
            let slot = self.doorbell_index;
            take(&memory, slot, &mut self.record);
            if memory.shape.withhold != Some(slot.wrapping_sub(memory.shape.start)) {
                self.taken.push(slot);
            }
            self.doorbell_index = slot.wrapping_add(1);
        }
        if self.taken.is_empty() {
            return false;
        }
        // Completions arrive in any order, as with SRD.
        let some = 1 + self.random_below(self.taken.len());
        for _ in 0..some {
            let chosen = self.random_below(self.taken.len());
            let slot = self.taken.swap_remove(chosen);
            memory.ended[(slot & 0xffff) as usize].store(slot.wrapping_add(1), Ordering::Release);
            complete(&memory, self.completions, slot);
            self.completions = self.completions.wrapping_add(1);
        }
        true
    }

    fn random_below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % end
    }

    /// Executes what is left and returns the record.
    pub(crate) fn finish(mut self) -> AdapterRecord {
        while self.step() {}
        self.record
    }

    /// Works until the bench stops.
    fn run(mut self) -> AdapterRecord {
        loop {
            let stopping = self.memory.stop.load(Ordering::Acquire);
            if self.step() {
                continue;
            }
            if stopping {
                return self.record;
            }
            efa_gda_test_support::rest();
        }
    }
}

/// Returns the doorbell as a 32-bit producer index. Records a violation if the doorbell is wider than 16 bits, moved
/// backwards or passed the ring.
fn advance(memory: &Memory, doorbell_index: u32, record: &mut AdapterRecord) -> u32 {
    let value = memory.doorbell.load(Ordering::Acquire);
    if value > 0xffff {
        record.violations.push(format!("doorbell {value:#x} is wider than 16 bits"));
    }
    let step = value.wrapping_sub(doorbell_index) & 0xffff;
    let most = memory.shape.max_batch.min(memory.shape.depth);
    // A doorbell that is read late may combine several, each within the batch, but entries in flight never exceed the
    // ring.
    if step > memory.shape.depth {
        record
            .violations
            .push(format!("doorbell from {doorbell_index} by {step}, past the ring (batch {most})"));
    }
    doorbell_index.wrapping_add(step)
}

/// Records a violation if an entry further past the last doorbell than the batch is already written.
fn check_batch(memory: &Memory, doorbell_index: u32, record: &mut AdapterRecord) {
    let shape = memory.shape;
    if shape.max_batch >= shape.depth {
        return;
    }
    let mut far = None;
    for ahead in shape.max_batch..shape.depth {
        let slot = doorbell_index.wrapping_add(ahead);
        if slot.wrapping_sub(shape.start) >= shape.depth && is_written(memory, slot) {
            far = Some(slot);
        }
    }
    fence(Ordering::SeqCst);
    let again = memory.doorbell.load(Ordering::SeqCst);
    let now = doorbell_index.wrapping_add(again.wrapping_sub(doorbell_index) & 0xffff);
    if let Some(far) = far.filter(|far| far.wrapping_sub(now) as i32 >= shape.max_batch as i32) {
        record.violations.push(format!("slot {far} written with the doorbell at {now}"));
    }
}

/// Whether `slot` contains the entry of this lap, judged by its request id.
fn is_written(memory: &Memory, slot: u32) -> bool {
    let index = (slot & (memory.shape.depth - 1)) * memory.shape.entry_size / 8;
    memory.sq[index as usize].load(Ordering::Acquire) & 0xffff == u64::from(slot & 0xffff)
}

fn take(memory: &Memory, slot: u32, record: &mut AdapterRecord) {
    let shape = memory.shape;
    let size = (shape.entry_size / 8) as usize;
    let from = (slot & (shape.depth - 1)) as usize * size;
    let bytes: Vec<u8> =
        memory.sq[from..from + size].iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
    let ids = if shape.wide_ids { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let decoded = DecodedRequest::decode(&bytes, ids).expect("an entry of a known size");
    let phase = bytes[3] & 1 == 1;
    if phase != (slot & shape.depth != 0) {
        record.violations.push(format!("slot {slot}: wrong phase"));
    }
    match decoded.request {
        Some(request) if decoded.broken.is_empty() => {
            let id = if shape.wide_ids { u64::from(slot) } else { u64::from(slot & 0xffff) };
            if request.id.get() != id {
                record.violations.push(format!("slot {slot}: request id {}", request.id));
            }
            record.requests.push(request);
        }
        _ => record.violations.push(format!("slot {slot}: {:?}", decoded.broken)),
    }
}

fn complete(memory: &Memory, index: u32, slot: u32) {
    let shape = memory.shape;
    let at = ((index & (shape.depth - 1)) * 4) as usize;
    let phase = u64::from(index & shape.depth == 0);
    let status = match shape.fail {
        Some((number, status)) if shape.start.wrapping_add(number) == slot => u64::from(status),
        _ => 0,
    };
    // A send completion of an RDMA write.
    let flags = phase | 1 << 1 | 2 << 4;
    let word = u64::from(slot & 0xffff) | status << 16 | flags << 24 | u64::from(shape.qpn) << 32;
    let high = if shape.wide_ids { u64::from(slot >> 16) << 48 } else { 0 };
    memory.cq[at + 1].store(0, Ordering::Relaxed);
    memory.cq[at].store(word | high, Ordering::Release);
}
