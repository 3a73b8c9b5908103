//! Runs the kernel of kernels_own/waits.cu, whose groups wait for their own requests.

use std::ffi::c_void;
use std::sync::OnceLock;

use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OK, efa_gda_peer, efa_gda_queue};
use libloading::Library;

use super::{Adapter, PEER, SECOND, kernels};

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| kernels(&["tests/kernels_own/waits.cu"]))
}

/// `struct waits_result` (kernels_own/waits.cu).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: u32,
    pub(crate) errors: u32,
    pub(crate) failed_index: u32,
    pub(crate) failed_status: u32,
}

pub(crate) const GOOD: Ended = Ended { status: EFA_GDA_OK, errors: 0, failed_index: 0, failed_status: 0 };

/// `struct waits_args`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Waits {
    pub(crate) queue: *mut efa_gda_queue,
    pub(crate) results: *mut Ended,
    pub(crate) ended: *const u32,
    pub(crate) source: *const u64,
    pub(crate) target: *const u64,
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) peer: efa_gda_peer,
    pub(crate) group: u32,
    pub(crate) owned: u32,
    pub(crate) calls: u32,
    pub(crate) per_call: u32,
    pub(crate) mode: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) reserved: u32,
    pub(crate) timeout_ns: u64,
}

impl Waits {
    /// The same load on `queue`, from the source with its lkey to the target with its rkey.
    pub(crate) fn between(
        self,
        queue: *mut efa_gda_queue,
        peer: efa_gda_peer,
        (source, lkey): (u64, u32),
        (target, rkey): (u64, u32),
    ) -> Self {
        let (local, remote) = (source, target);
        Self { queue, peer, source: source as _, target: target as _, local, remote, lkey, rkey, ..self }
    }

    /// Groups of `blocks` blocks with so many threads.
    pub(crate) fn groups(&self, blocks: u32, threads: u32) -> u32 {
        (blocks * threads).checked_div(self.group).unwrap_or(blocks)
    }

    /// What `groups` groups send: words that all differ.
    pub(crate) fn bytes(&self, groups: u32) -> Vec<u8> {
        let words = u64::from(self.calls * self.per_call) * u64::from(groups);
        (1..=words).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
    }
}

// SAFETY: blocks share the queue as device code does, and each writes its own results.
unsafe impl Sync for Waits {}

pub(crate) const EACH_CALL: u32 = 0;
pub(crate) const OWN_EVERY_THIRD: u32 = 1;
pub(crate) const TEST_EACH: u32 = 2;
pub(crate) const DEFER: u32 = 3;
pub(crate) const LATE: u32 = 4;
pub(crate) const NEVER: u32 = 5;
pub(crate) const WHILE_OTHERS_POST: u32 = 6;
pub(crate) const FOR_NONE: u32 = 7;
pub(crate) const MIXED: u32 = 8;
pub(crate) const POLL_OWN: u32 = 9;
pub(crate) const TEST_ALL: u32 = 10;

pub(crate) fn calls(group: u32, calls: u32, per_call: u32, mode: u32) -> Waits {
    Waits {
        queue: std::ptr::null_mut(),
        results: std::ptr::null_mut(),
        ended: std::ptr::null(),
        source: std::ptr::null(),
        target: std::ptr::null(),
        local: 0,
        remote: 0,
        peer: PEER,
        group,
        owned: 0,
        calls,
        per_call,
        mode,
        lkey: 5,
        rkey: 6,
        reserved: 0,
        timeout_ns: 20 * SECOND,
    }
}

/// Runs `blocks` blocks of `lanes` lanes, with the steps of `adapter` beside the only block if there is one; `seed` and
/// steps have the meaning of host_executor.h. Returns how each group ended.
pub(crate) fn run(
    waits: Waits,
    blocks: u32,
    lanes: u32,
    seed: u64,
    adapter: Option<&mut Adapter>,
) -> Vec<Ended> {
    type Step = unsafe extern "C" fn(*mut c_void);
    type Run = unsafe extern "C" fn(
        *const Waits,
        u32,
        u32,
        u32,
        u64,
        step: Option<Step>,
        context: *mut c_void,
    ) -> bool;
    unsafe extern "C" fn step(adapter: *mut c_void) {
        // SAFETY: `run` passes its adapter, which nothing else uses until the block has ended.
        unsafe { (*adapter.cast::<Adapter>()).step() };
    }
    let groups = lanes.checked_div(waits.group).unwrap_or(1);
    let mut results = vec![Ended { status: EFA_GDA_NOT_RUN, ..GOOD }; (groups * blocks) as usize];
    let args = Waits { results: results.as_mut_ptr(), ..waits };
    // SAFETY: the type is the function's in waits.cu.
    let run = unsafe { library().get::<Run>(b"waits_on_host") }.expect("waits.cu exports the function");
    if let Some(adapter) = adapter {
        assert_eq!(blocks, 1, "an adapter steps beside one block");
        // SAFETY: the callers keep queue and memory alive, and results and adapter outlive the call.
        let ran = unsafe { run(&args, 0, 1, lanes, seed, Some(step), (&raw mut *adapter).cast()) };
        assert!(ran);
        return results;
    }
    std::thread::scope(|scope| {
        for block in 0..blocks {
            let (run, args) = (*run, &args);
            scope.spawn(move || {
                // SAFETY: the callers keep queue and memory alive, and the results outlive the scope.
                assert!(unsafe { run(args, block, blocks, lanes, seed, None, std::ptr::null_mut()) });
            });
        }
    });
    results
}
