//! What tests and benches run on the host executor beside puts: loads of many groups, timed loads, encoders of single
//! entries, and stores that bypass the rules. Compiled with the feature `test-utils` only; no part of the stable API.

use std::ffi::c_void;
use std::sync::Mutex;

use efa_gda_sys::device::{efa_gda_load_args, efa_gda_peer, efa_gda_put_args, efa_gda_queue};

use super::{KernelOutcome, launched, not_run};
use crate::Result;
use crate::status::{DeviceError, outcome};

/// The queue and the peer of [`test_put`], and its bound. `result` is ignored.
pub use efa_gda_sys::device::efa_gda_test_put as TestPutTarget;

/// Runs `__nvshmem_efa_test_put_kernel(raddr, src, n, lkey, rkey)` as one block of `lanes` lanes. The kernel reads its
/// queue and peer from a variable of its module, so a lock serializes calls.
///
/// # Errors
/// As [`put`](super::put).
///
/// # Safety
/// As [`put`](super::put), for `target.queue`.
pub unsafe fn test_put(
    target: &TestPutTarget,
    raddr: u64,
    src: u64,
    n: usize,
    lkey: u32,
    rkey: u32,
    lanes: u32,
) -> Result<KernelOutcome> {
    static MODULE_VARIABLE: Mutex<()> = Mutex::new(());
    let _exclusive = MODULE_VARIABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut result = not_run();
    let target = TestPutTarget { result: &raw mut result, ..*target };
    // SAFETY: as in `put`. The lock reserves the module's variable for this call. The two addresses are not
    // dereferenced here, only written into an entry.
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

/// Which load kernel [`load`] runs, and when its lanes are switched. By default it is `efa_gda_load_kernel`, whose lanes
/// are switched where they wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Runs `efa_gda_load_mixed_kernel`: block by block, groups are a block, warps, or threads.
    pub mixed: bool,
    /// If not 0, the lanes of each block are also switched wherever they access shared memory, by a pseudo-random
    /// sequence of this seed.
    pub seed: u64,
}

/// Runs `efa_gda_load_kernel` with `blocks` blocks of `lanes` lanes, each block on its own thread. Returns the status
/// of each group. If the load is mixed, there is a status for each thread, and each group uses that of its first
/// thread.
///
/// # Errors
/// [`Error`](crate::Error). Blocks that did start have ended.
///
/// # Safety
/// As [`put`](super::put), for each of `args.queues`; several blocks may share them. `args.status` is ignored.
pub unsafe fn load(
    args: &efa_gda_load_args,
    blocks: u32,
    lanes: u32,
    options: LoadOptions,
) -> Result<Vec<Result<(), DeviceError>>> {
    /// The arguments that all blocks read.
    struct Shared(efa_gda_load_args);
    // SAFETY: the device code accesses what the pointers lead to with atomics, or in the slots of its
    // tickets (turns.h).
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
            // SAFETY: sets a number of this thread, which runs this block and ends.
            unsafe { efa_gda_host_interleave(mixed_seed(options.seed, block)) };
        }
        // SAFETY: the caller vouches for the queues. The scope in `on_blocks` keeps `shared` and the status words alive
        // until every block has ended, and each group writes only its own word.
        let started = unsafe { efa_gda_host_load(&raw const shared.0, options.mixed, block, blocks, lanes) };
        launched(started, lanes)
    };
    on_blocks(blocks, run)?;
    Ok(status.into_iter().map(outcome).collect())
}

/// A seed for a block: those of neighbouring blocks are far apart, and never 0.
fn mixed_seed(seed: u64, block: u32) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(block) << 1 | 1
}

/// Runs one block of `efa_gda_load_kernel` on the calling thread, with its lanes switched as by [`LoadOptions::seed`].
/// Where the block would wait for other threads, and at some of its accesses, `step` runs: it is the adapter. A seed
/// gives the same run every time. Returns the status of each group.
///
/// # Errors
/// [`Error`](crate::Error).
///
/// # Safety
/// As [`load`].
pub unsafe fn load_beside<F: FnMut()>(
    args: &efa_gda_load_args,
    lanes: u32,
    seed: u64,
    mut step: F,
) -> Result<Vec<Result<(), DeviceError>>> {
    unsafe extern "C" fn call<F: FnMut()>(step: *mut c_void) {
        // SAFETY: `load_beside` passes its `step`, which nothing else uses until the block has ended.
        unsafe { (*step.cast::<F>())() }
    }
    let groups = if args.group == 0 { 1 } else { lanes.div_ceil(args.group) };
    let mut status = vec![efa_gda_sys::device::EFA_GDA_NOT_RUN; groups as usize];
    let args = efa_gda_load_args { status: status.as_mut_ptr(), ..*args };
    // SAFETY: the caller vouches for the queues, as in `load`; the status words and `step` outlive the block. The
    // interleaver's seed and step are this thread's, and end with the block.
    let started = unsafe {
        efa_gda_host_interleave(mixed_seed(seed, 0));
        efa_gda_host_run_beside(Some(call::<F>), (&raw mut step).cast());
        let started = efa_gda_host_load(&raw const args, false, 0, 1, lanes);
        efa_gda_host_run_beside(None, std::ptr::null_mut());
        efa_gda_host_interleave(0);
        started
    };
    launched(started, lanes)?;
    Ok(status.into_iter().map(outcome).collect())
}

/// Runs every block to its end, each on its own thread.
fn on_blocks(blocks: u32, run: impl Fn(u32) -> Result<()> + Sync) -> Result<()> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..blocks).map(|block| scope.spawn(move || run(block))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(started) => started,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Arguments of the kernels in `kernels/bench.cu`, which documents each field.
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

const _: () = assert!(size_of::<BenchArgs>() == 56, "BenchArgs has the layout of struct efa_gda_bench_args");

/// Runs a kernel of `kernels/bench.cu` with `blocks` blocks of `lanes` lanes, each block on its own thread.
///
/// # Errors
/// [`Error`](crate::Error). Blocks that did start have ended.
///
/// # Safety
/// As [`put`](super::put), for each of `args.puts`, whose memory the adapter may write and read. The other pointers
/// must lead to as many words as `bench.cu` requires.
pub(crate) unsafe fn bench(args: &BenchArgs, latency: bool, blocks: u32, lanes: u32) -> Result<()> {
    /// The arguments that all blocks read.
    struct Shared(BenchArgs);
    // SAFETY: each group writes only its own words. The device library's rules cover the sharing of queues.
    unsafe impl Sync for Shared {}

    let shared = Shared(*args);
    let run = |block| {
        let shared = &shared;
        // SAFETY: the caller vouches for what the arguments lead to; it outlives the scope in `on_blocks`.
        launched(unsafe { efa_gda_host_bench(&raw const shared.0, latency, block, blocks, lanes) }, lanes)
    };
    on_blocks(blocks, run)
}

/// One entry for the device code to format, for comparison with other encoders. Fields that the operation does not use
/// are ignored.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct EntrySpec {
    /// Destination.
    pub peer: efa_gda_peer,
    /// Address of the first local piece, or of the inline bytes.
    pub local_address: u64,
    /// Address of the second local piece of a SEND.
    pub second_address: u64,
    /// Remote address of an RDMA request.
    pub remote_address: u64,
    /// Request id; its low 16 bits without `wide_id`.
    pub request_id: u64,
    /// `enum efa_gda_op`.
    pub op: u32,
    /// Key of the first piece.
    pub lkey: u32,
    /// Bytes of the first piece, or inline bytes.
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
    /// Local pieces of a SEND: 2, or 1 otherwise.
    pub pieces: u32,
    /// Whether the entry carries the immediate data.
    pub has_immediate: bool,
    /// Phase bit.
    pub phase: bool,
    /// Whether the request id has 64 bits.
    pub wide_id: bool,
    /// Unused.
    pub reserved: u8,
}

/// Formats an entry without inline data. A 64-byte entry is the first half; the second half is zero then.
pub fn encode_entry(spec: &EntrySpec) -> [u8; 128] {
    use efa_gda_sys::device::{EFA_GDA_OP_INLINE_SEND, EFA_GDA_OP_INLINE_WRITE};
    let mut spec = spec.clone();
    if matches!(spec.op, EFA_GDA_OP_INLINE_SEND | EFA_GDA_OP_INLINE_WRITE) {
        // With a length of 0 nothing is read at `local_address`.
        spec.length = 0;
    }
    // SAFETY: no inline bytes are read, see above.
    unsafe { encode(&spec) }
}

/// Formats an entry that carries the first 80 of `bytes` at most.
pub fn encode_inline_entry(spec: &EntrySpec, bytes: &[u8]) -> [u8; 128] {
    let length = bytes.len().min(80);
    // `length` is at most 80, so it fits 32 bits.
    let spec = EntrySpec { local_address: bytes.as_ptr() as u64, length: length as u32, ..spec.clone() };
    // SAFETY: address and length are those of `bytes`, which outlives the call.
    unsafe { encode(&spec) }
}

/// # Safety
/// For inline operations, `length` bytes at `local_address` must be readable.
unsafe fn encode(spec: &EntrySpec) -> [u8; 128] {
    let mut out = [0; 128];
    // SAFETY: `out` has the 128 bytes that are written; the caller vouches for inline bytes.
    unsafe { efa_gda_host_encode(spec, out.as_mut_ptr()) };
    out
}

/// Formats a receive descriptor: one piece of a receive of up to 65535 bytes.
pub fn encode_receive(address: u64, lkey: u32, length: u32, id: u16, first: bool, last: bool) -> [u8; 16] {
    let mut out = [0; 16];
    // SAFETY: `out` has the 16 bytes that are written.
    unsafe { efa_gda_host_encode_receive(address, lkey, length, id, first, last, out.as_mut_ptr()) };
    out
}

/// Stores an entry into a slot without any of the device library's rules, to inject faults that an adapter's checker
/// must find. `bytes` holds one entry of 64 or 128 bytes.
///
/// # Panics
/// When `bytes` is shorter than the queue's entry size.
///
/// # Safety
/// As [`put`](super::put), for `queue`.
pub unsafe fn write_raw(queue: *const efa_gda_queue, slot: u32, bytes: &[u8]) {
    // SAFETY: the caller vouches for the queue struct.
    let entry_size = unsafe { (*queue).sq.entry_size };
    assert!(bytes.len() >= entry_size as usize, "an entry of this queue has {entry_size} bytes");
    // SAFETY: the caller vouches for the ring; `bytes` holds a whole entry, as the assertion checked.
    unsafe { efa_gda_host_write_raw(queue, slot, bytes.as_ptr()) };
}

/// Executes a fence, then stores `value` unchanged into the send queue's doorbell.
///
/// # Safety
/// As [`put`](super::put), for `queue`.
pub unsafe fn ring_raw(queue: *const efa_gda_queue, value: u32) {
    // SAFETY: the caller vouches for the queue.
    unsafe { efa_gda_host_ring_raw(queue, value) };
}

// kernels/host/executor.cpp
unsafe extern "C" {
    fn efa_gda_host_test_put(
        target: *const TestPutTarget,
        raddr: *mut c_void,
        src: *const c_void,
        n: usize,
        lkey: u32,
        rkey: u32,
        lanes: u32,
    ) -> bool;
    fn efa_gda_host_interleave(seed: u64);
    fn efa_gda_host_run_beside(step: Option<unsafe extern "C" fn(*mut c_void)>, context: *mut c_void);
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
}
