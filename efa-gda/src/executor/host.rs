//! The host executor: the device library and its kernels, compiled as C++17, on the CPU.
//!
//! A block is a host thread; its lanes are fibers of that thread (`kernels/include/efa_gda/host_executor.h`), so that
//! warp- and block-collective code runs line for line. It is for tests, and for machines without a
//! GPU; it makes no promise about speed.
//!
//! The queue's pointers are host pointers here. What a queue struct must hold is stated in
//! `kernels/include/efa_gda/queue.h`; [`zeroed_queue`] gives one to fill in.

use std::ffi::c_void;
use std::sync::Mutex;

use efa_gda_sys::device::{
    efa_gda_load_args, efa_gda_peer, efa_gda_put_args, efa_gda_put_result, efa_gda_queue, efa_gda_test_put,
};
use thiserror::Error;

use super::{DeviceError, outcome};

/// Lanes of a block at most.
pub const MAX_LANES: u32 = 1024;

/// A block that could not be started.
#[derive(Clone, Copy, Debug, Error, Eq, PartialEq)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of lanes is 0 or past [`MAX_LANES`].
    #[error("a block of {0} lanes; 1 to {MAX_LANES} can run")]
    Lanes(u32),
    /// No memory for the lanes' stacks.
    #[error("no memory for the stacks of {0} lanes")]
    Memory(u32),
}

/// What a put did, whether or not it went well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KernelOutcome {
    /// How it ended.
    pub status: Result<(), DeviceError>,
    /// Status byte of the first error completion (`enum efa_io_comp_status`), 0 without one.
    pub completion_status: u32,
    /// Request id of the first error completion.
    pub request_id: u64,
    /// Entries rung.
    pub posted: u64,
    /// Send completions read.
    pub completed: u64,
}

impl From<efa_gda_put_result> for KernelOutcome {
    fn from(result: efa_gda_put_result) -> Self {
        Self {
            status: outcome(result.status),
            completion_status: result.completion_status,
            request_id: result.request_id,
            posted: result.posted,
            completed: result.completed,
        }
    }
}

/// A queue struct with nothing filled in, at its alignment.
pub fn zeroed_queue() -> Box<efa_gda_queue> {
    Box::new(efa_gda_queue::default())
}

/// Runs `efa_gda_put_kernel` as one block of `lanes` lanes and waits for it. `args.result` is
/// ignored: the outcome is returned.
///
/// # Errors
///
/// [`LaunchError`] when the block could not start; then nothing was posted.
///
/// # Safety
///
/// `args.queue` must point to a queue struct that obeys the rules in `queue.h`; its rings,
/// doorbells and counters must stay mapped during the call, and the queue must not be used by
/// anything else. The addresses and keys in `args` are the adapter's to check, except for inline
/// requests, whose bytes this reads.
pub unsafe fn put(args: &efa_gda_put_args, lanes: u32) -> Result<KernelOutcome, LaunchError> {
    let mut result = not_run();
    let args = efa_gda_put_args { result: &raw mut result, ..*args };
    // SAFETY: the caller vouches for the queue and the inline bytes; `result` outlives the call,
    // which returns only when all lanes have ended.
    launched(unsafe { efa_gda_host_put(&raw const args, lanes) }, lanes)?;
    Ok(result.into())
}

/// Where [`test_put`] sends, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct TestPutTarget {
    /// The queue to post to.
    pub queue: *mut efa_gda_queue,
    /// The endpoint to write to.
    pub peer: efa_gda_peer,
    /// Bound of each wait, in nanoseconds.
    pub timeout_ns: u64,
}

/// Runs `__nvshmem_efa_test_put_kernel(raddr, src, n, lkey, rkey)` as one block of `lanes` lanes.
/// The kernel takes its queue and peer from a variable of its module; calls take turns.
///
/// # Errors
///
/// As [`put`].
///
/// # Safety
///
/// As [`put`], for `target.queue`.
pub unsafe fn test_put(
    target: &TestPutTarget,
    raddr: u64,
    src: u64,
    n: usize,
    lkey: u32,
    rkey: u32,
    lanes: u32,
) -> Result<KernelOutcome, LaunchError> {
    static MODULE_VARIABLE: Mutex<()> = Mutex::new(());
    let _turn = MODULE_VARIABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut result = not_run();
    let target = efa_gda_test_put {
        queue: target.queue,
        result: &raw mut result,
        peer: target.peer,
        timeout_ns: target.timeout_ns,
    };
    // SAFETY: as in `put`; the lock keeps the module's variable for this call alone. The two
    // addresses are never dereferenced here, only written into an entry.
    let started = unsafe {
        efa_gda_host_test_put(
            &raw const target,
            raddr as *mut c_void,
            src as *const c_void,
            n,
            lkey,
            rkey,
            lanes,
        )
    };
    launched(started, lanes)?;
    Ok(result.into())
}

/// How `load` runs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// `efa_gda_load_mixed_kernel`: the blocks post in turn as a block, by warps and by threads.
    pub mixed: bool,
    /// Where not 0, the lanes of each block are switched, by numbers that follow from it, wherever they
    /// access what threads share. A block alone runs the same for the same seed.
    pub seed: u64,
}

impl LoadOptions {
    /// `efa_gda_load_kernel`, its lanes switched where they wait.
    pub const fn new() -> Self {
        Self { mixed: false, seed: 0 }
    }

    /// See [`Self::mixed`].
    #[must_use]
    pub const fn mixed(mut self) -> Self {
        self.mixed = true;
        self
    }

    /// See [`Self::seed`].
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Runs `efa_gda_load_kernel` with `blocks` blocks, a thread each, of `lanes` lanes. Returns the
/// status of each group; where they are mixed, of each thread, of which groups use their first's.
///
/// # Errors
///
/// [`LaunchError`]; blocks that did start have ended.
///
/// # Safety
///
/// As [`put`], for each of `args.queues`; several blocks may share them. `args.status` is ignored.
pub unsafe fn load(
    args: &efa_gda_load_args,
    blocks: u32,
    lanes: u32,
    options: LoadOptions,
) -> Result<Vec<Result<(), DeviceError>>, LaunchError> {
    /// Blocks read their arguments and share what these point to.
    struct Shared(efa_gda_load_args);
    // SAFETY: the device code reaches the pointers only with atomics, or under the queue's turn.
    unsafe impl Sync for Shared {}

    let groups = match args.group {
        _ if options.mixed => lanes,
        0 => 1,
        group => lanes.div_ceil(group),
    };
    let mut status = vec![efa_gda_sys::device::EFA_GDA_NOT_RUN; (groups * blocks) as usize];
    let shared = Shared(efa_gda_load_args { status: status.as_mut_ptr(), ..*args });
    let run = |block: u32| {
        let shared = &shared;
        if options.seed != 0 {
            // Far apart, and never 0.
            let seed = options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(block) << 1 | 1;
            // SAFETY: it is a number of this thread's, which runs this block and ends.
            unsafe { efa_gda_host_interleave(seed) };
        }
        // SAFETY: the caller vouches for the queues; the scope below keeps `shared` and the
        // status words alive until every block has ended, and each group writes its own word.
        let started = unsafe { efa_gda_host_load(&raw const shared.0, options.mixed, block, blocks, lanes) };
        launched(started, lanes)
    };
    on_blocks(blocks, run)?;
    Ok(status.into_iter().map(outcome).collect())
}

/// Runs every block on a thread of its own, to its end.
fn on_blocks(blocks: u32, run: impl Fn(u32) -> Result<(), LaunchError> + Sync) -> Result<(), LaunchError> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..blocks).map(|block| scope.spawn(move || run(block))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(started) => started,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Arguments of the kernels in `kernels/bench.cu`, which says what each is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BenchArgs {
    pub(crate) puts: *const efa_gda_put_args,
    pub(crate) spans: *mut u64,
    pub(crate) samples: *mut u64,
    pub(crate) status: *mut u32,
    pub(crate) queue_count: u32,
    pub(crate) sharing: u32,
    pub(crate) group: u32,
    pub(crate) calls: u32,
    pub(crate) per_call: u32,
    pub(crate) reserved: u32,
}

const _: () = assert!(size_of::<BenchArgs>() == 56, "as kernels/bench.cu has it");

/// Runs a kernel of `kernels/bench.cu` with `blocks` blocks, a thread each, of `lanes` lanes.
///
/// # Errors
///
/// [`LaunchError`]; blocks that did start have ended.
///
/// # Safety
///
/// As [`put`], for each of `args.puts`, whose memory may be written to and read by the adapter;
/// the other pointers lead to as many words as `bench.cu` says.
pub(crate) unsafe fn bench(
    args: &BenchArgs,
    latency: bool,
    blocks: u32,
    lanes: u32,
) -> Result<(), LaunchError> {
    /// Blocks read their arguments, and write words of their own.
    struct Shared(BenchArgs);
    // SAFETY: each group writes its own words; queues are shared under the engine's own rules.
    unsafe impl Sync for Shared {}

    let shared = Shared(*args);
    let run = |block| {
        let shared = &shared;
        // SAFETY: the caller vouches for what the arguments lead to, which outlives the scope below.
        launched(unsafe { efa_gda_host_bench(&raw const shared.0, latency, block, blocks, lanes) }, lanes)
    };
    on_blocks(blocks, run)
}

/// One entry to format with the device code, for comparison with other encoders. Fields that the
/// operation does not use are ignored.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct EntrySpec {
    /// Destination.
    pub peer: efa_gda_peer,
    /// First local piece, or where the inline bytes lie.
    pub local_address: u64,
    /// Second local piece of a SEND.
    pub second_address: u64,
    /// Remote address of an RDMA request.
    pub remote_address: u64,
    /// Request id; 16 bits of it without `wide_id`.
    pub request_id: u64,
    /// `enum efa_gda_op`.
    pub op: u32,
    /// Key of the first piece.
    pub lkey: u32,
    /// Bytes of the first piece, or inline.
    pub length: u32,
    /// Key of the second piece.
    pub second_lkey: u32,
    /// Bytes of the second piece.
    pub second_length: u32,
    /// Key of the remote memory.
    pub rkey: u32,
    /// Immediate data.
    pub immediate: u32,
    /// Processing hints.
    pub hints: u32,
    /// Local pieces of a SEND: 1 or 2.
    pub pieces: u32,
    /// Whether the entry carries the immediate.
    pub has_immediate: bool,
    /// Phase bit.
    pub phase: bool,
    /// Whether the request id has 64 bits.
    pub wide_id: bool,
    /// Unused.
    pub reserved: u8,
}

impl Default for EntrySpec {
    fn default() -> Self {
        Self {
            peer: efa_gda_peer::default(),
            local_address: 0,
            second_address: 0,
            remote_address: 0,
            request_id: 0,
            op: efa_gda_sys::device::EFA_GDA_OP_WRITE,
            lkey: 0,
            length: 0,
            second_lkey: 0,
            second_length: 0,
            rkey: 0,
            immediate: 0,
            hints: 0,
            pieces: 1,
            has_immediate: false,
            phase: false,
            wide_id: false,
            reserved: 0,
        }
    }
}

/// Formats an entry whose data lies elsewhere. A 64-byte entry is the first half; the second is
/// zero.
pub fn encode_entry(spec: &EntrySpec) -> [u8; 128] {
    use efa_gda_sys::device::{EFA_GDA_OP_INLINE_SEND, EFA_GDA_OP_INLINE_WRITE};
    let mut spec = spec.clone();
    if matches!(spec.op, EFA_GDA_OP_INLINE_SEND | EFA_GDA_OP_INLINE_WRITE) {
        // Without bytes there is nothing to read at `local_address`.
        spec.length = 0;
    }
    // SAFETY: no inline bytes are read, see above.
    unsafe { encode(&spec) }
}

/// Formats an entry that carries `bytes`, at most 80; more are cut off.
pub fn encode_inline_entry(spec: &EntrySpec, bytes: &[u8]) -> [u8; 128] {
    let length = bytes.len().min(80);
    // `length` fits 32 bits, being at most 80.
    let spec = EntrySpec { local_address: bytes.as_ptr() as u64, length: length as u32, ..spec.clone() };
    // SAFETY: the address and length are those of `bytes`, which lives until the call returns.
    unsafe { encode(&spec) }
}

/// # Safety
///
/// For inline operations, `length` bytes at `local_address` must be readable.
unsafe fn encode(spec: &EntrySpec) -> [u8; 128] {
    let mut out = [0; 128];
    // SAFETY: `out` holds the 128 bytes that are written; the caller vouches for inline bytes.
    unsafe { efa_gda_host_encode(spec, out.as_mut_ptr()) };
    out
}

/// Formats a receive descriptor: one piece of a receive of up to 65535 bytes.
pub fn encode_receive(address: u64, lkey: u32, length: u32, id: u16, first: bool, last: bool) -> [u8; 16] {
    let mut out = [0; 16];
    // SAFETY: `out` holds the 16 bytes that are written.
    unsafe { efa_gda_host_encode_receive(address, lkey, length, id, first, last, out.as_mut_ptr()) };
    out
}

/// Receives to post: `count` of `length` bytes, the i-th at `address + i * stride`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Receives {
    /// First byte of the first.
    pub address: u64,
    /// From one to the next, in bytes.
    pub stride: u64,
    /// Bound of the wait for room, in nanoseconds.
    pub timeout_ns: u64,
    /// Key of the memory.
    pub lkey: u32,
    /// Bytes of each; at most 65535.
    pub length: u32,
    /// How many.
    pub count: u32,
    /// Unused.
    pub reserved: u32,
}

/// What was posted of [`Receives`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostedReceives {
    /// How the post ended.
    pub status: Result<(), DeviceError>,
    /// Request id of the first; completions carry the low 16 bits, and the others follow.
    pub first: u32,
    /// How many were rung.
    pub count: u32,
}

/// Posts receives, as device code does.
///
/// # Safety
///
/// As [`put`], for `queue`.
pub unsafe fn post_receives(queue: *mut efa_gda_queue, receives: &Receives) -> PostedReceives {
    let (mut first, mut count) = (0, 0);
    // SAFETY: the caller vouches for the queue; the three places outlive the call.
    let status = unsafe { efa_gda_host_post_receives(queue, receives, &raw mut first, &raw mut count) };
    PostedReceives { status: outcome(status), first, count }
}

/// Takes completions of receives from the queue's inbox, polling for them: at most as many as `into`
/// holds. Waits for the first, up to the bound. Returns how many there were, and how it ended.
///
/// # Safety
///
/// As [`put`], for `queue`.
pub unsafe fn take_received(
    queue: *mut efa_gda_queue,
    into: &mut [InboxEntry],
    timeout_ns: u64,
) -> (usize, Result<(), DeviceError>) {
    let most = into.len().try_into().unwrap_or(u32::MAX);
    let mut taken = 0;
    // SAFETY: the caller vouches for the queue; `into` has room for `most` entries, each aligned for
    // the device code's words of eight.
    let status = unsafe {
        efa_gda_host_take_received(queue, into.as_mut_ptr().cast(), most, &raw mut taken, timeout_ns)
    };
    (taken as usize, outcome(status))
}

/// A completion in a queue's inbox, as the adapter wrote it (`EFA_GDA_INBOX_ENTRY`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct InboxEntry(pub [u8; efa_gda_sys::device::EFA_GDA_INBOX_ENTRY as usize]);

/// Stores an entry into a slot as it is, past all rules: for planting mistakes that an adapter's
/// checker must find. `bytes` holds one entry, 64 or 128 bytes.
///
/// # Panics
///
/// When `bytes` is shorter than the queue's entry size.
///
/// # Safety
///
/// As [`put`], for `queue`.
pub unsafe fn write_raw(queue: *const efa_gda_queue, slot: u32, bytes: &[u8]) {
    // SAFETY: the caller vouches for the queue struct.
    let entry_size = unsafe { (*queue).sq.entry_size };
    assert!(bytes.len() >= entry_size as usize, "an entry of this queue has {entry_size} bytes");
    // SAFETY: the caller vouches for the ring; the bytes were counted above.
    unsafe { efa_gda_host_write_raw(queue, slot, bytes.as_ptr()) };
}

/// Fences, then stores `value` into the send queue's doorbell as it is.
///
/// # Safety
///
/// As [`put`], for `queue`.
pub unsafe fn ring_raw(queue: *const efa_gda_queue, value: u32) {
    // SAFETY: the caller vouches for the queue.
    unsafe { efa_gda_host_ring_raw(queue, value) };
}

fn not_run() -> efa_gda_put_result {
    efa_gda_put_result { status: efa_gda_sys::device::EFA_GDA_NOT_RUN, ..Default::default() }
}

fn launched(started: bool, lanes: u32) -> Result<(), LaunchError> {
    match started {
        true => Ok(()),
        false if lanes == 0 || lanes > MAX_LANES => Err(LaunchError::Lanes(lanes)),
        false => Err(LaunchError::Memory(lanes)),
    }
}

// kernels/host/executor.cpp, kernels/test/load_host.cpp
unsafe extern "C" {
    fn efa_gda_host_put(args: *const efa_gda_put_args, lanes: u32) -> bool;
    fn efa_gda_host_test_put(
        target: *const efa_gda_test_put,
        raddr: *mut c_void,
        src: *const c_void,
        n: usize,
        lkey: u32,
        rkey: u32,
        lanes: u32,
    ) -> bool;
    fn efa_gda_host_interleave(seed: u64);
    fn efa_gda_host_load(
        args: *const efa_gda_load_args,
        mixed: bool,
        block: u32,
        blocks: u32,
        lanes: u32,
    ) -> bool;
    fn efa_gda_host_bench(args: *const BenchArgs, latency: bool, block: u32, blocks: u32, lanes: u32)
    -> bool;
    fn efa_gda_host_encode(spec: *const EntrySpec, out: *mut u8);
    fn efa_gda_host_encode_receive(
        address: u64,
        lkey: u32,
        length: u32,
        id: u16,
        first: bool,
        last: bool,
        out: *mut u8,
    );
    fn efa_gda_host_write_raw(queue: *const efa_gda_queue, slot: u32, bytes: *const u8);
    fn efa_gda_host_ring_raw(queue: *const efa_gda_queue, value: u32);
    fn efa_gda_host_post_receives(
        queue: *mut efa_gda_queue,
        receives: *const Receives,
        first: *mut u32,
        posted: *mut u32,
    ) -> u32;
    fn efa_gda_host_take_received(
        queue: *mut efa_gda_queue,
        out: *mut u8,
        most: u32,
        taken: *mut u32,
        timeout_ns: u64,
    ) -> u32;
}
