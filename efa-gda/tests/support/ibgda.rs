//! The device state of ranks that use the functions of `ibgda_compat.cuh`, and the load of kernels_own/ibgda.cu.

use std::sync::atomic::AtomicU32;

use efa_gda::fabric::Region;
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};

use super::side::introduce;

/// Requests overtake each other, with so much time between them that a receiver finds what is missing.
pub(crate) const REORDERED: &[(&str, &str)] = &[("SOFTEFA_REORDER", "48"), ("SOFTEFA_INTERVAL_US", "20")];

/// `struct efa_gda_ibgda_peer` (ibgda_state.h).
#[repr(C)]
pub(crate) struct Peer {
    pub(crate) peer: efa_gda_peer,
    pub(crate) rkey: u32,
    pub(crate) reserved: u32,
    pub(crate) heap: u64,
    pub(crate) mapped: u64,
}

/// `struct efa_gda_ibgda_queue`.
#[repr(C)]
pub(crate) struct Queue {
    pub(crate) queue: *mut efa_gda_queue,
    pub(crate) done: AtomicU32,
    pub(crate) lock: AtomicU32,
}

/// `struct efa_gda_ibgda_shared`, and after it `struct efa_gda_ibgda_report`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Words {
    pub(crate) failed: AtomicU32,
    pub(crate) shared_reserved: u32,
    pub(crate) status: AtomicU32,
    pub(crate) pe: AtomicU32,
    pub(crate) qp: AtomicU32,
    pub(crate) reserved: u32,
}

/// `struct efa_gda_ibgda_state`.
#[repr(C)]
pub(crate) struct State {
    pub(crate) num_rc_per_pe: u32,
    pub(crate) num_devices_initialized: i32,
    pub(crate) num_pes: u32,
    pub(crate) lkey: u32,
    pub(crate) queues: *const Queue,
    pub(crate) heap: u64,
    pub(crate) heap_bytes: u64,
    pub(crate) heap_address: u64,
    pub(crate) peers: *const Peer,
    pub(crate) channels: u64,
    pub(crate) channels_address: u64,
    pub(crate) shared: *const AtomicU32,
    pub(crate) report: *const AtomicU32,
    pub(crate) timeout_ns: u64,
    pub(crate) channels_lkey: u32,
    pub(crate) rank: u32,
    pub(crate) num_queues: u32,
    pub(crate) reserved: u32,
}

/// Bytes of `struct efa_gda_ibgda_channel`.
pub(crate) const CHANNEL: usize = 16 + 4 * 16;

/// `struct ibgda_args` (kernels_own/ibgda.cu).
#[repr(C)]
pub(crate) struct Arguments {
    pub(crate) state: *const State,
    pub(crate) rank: u32,
    pub(crate) rounds: u32,
    pub(crate) messages: u32,
    pub(crate) bytes: u32,
    pub(crate) warps: u32,
    pub(crate) reserved: u32,
    pub(crate) warp_stride: u64,
    pub(crate) limit_ns: u64,
    pub(crate) wrong: *const AtomicU32,
    pub(crate) gave_up: *const AtomicU32,
}

// SAFETY: ranks share queues and words as device code does.
unsafe impl Sync for Arguments {}

/// What each warp sends, and the bound of device waits.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) warps: u32,
    pub(crate) rounds: u32,
    pub(crate) messages: u32,
    pub(crate) bytes: u32,
    pub(crate) timeout_ns: u64,
    /// The virtual queue pairs to a PE.
    pub(crate) channels: u32,
    /// The queues of a rank.
    pub(crate) queues: u32,
    pub(crate) seed: u64,
}

impl Load {
    pub(crate) const fn new(warps: u32, rounds: u32, messages: u32, bytes: u32) -> Self {
        Self {
            warps,
            rounds,
            messages,
            bytes,
            timeout_ns: 60_000_000_000,
            channels: 2 * warps,
            queues: 2,
            seed: 0,
        }
    }

    /// Offset of a warp's words in a heap, behind what it sends and receives.
    pub(crate) fn words(&self, warp: u32) -> usize {
        (warp * self.stride() + 2 * self.messages * self.bytes) as usize
    }

    pub(crate) fn stride(&self) -> u32 {
        2 * self.messages * self.bytes + 64
    }

    /// A warp's words in a heap that holds `bytes`: tail, head, count and last.
    pub(crate) fn words_in(&self, bytes: &[u8], warp: u32) -> [u64; 4] {
        let at = self.words(warp);
        std::array::from_fn(|word| u64::from_le_bytes(bytes[at + 8 * word..][..8].try_into().unwrap()))
    }
}

/// The peers of a rank whose queues are `own`, in the order of the device state: all ranks for each queue.
pub(crate) fn peers(own: &[MappedQueue], all: &[Vec<MappedQueue>], heaps: &[Region]) -> Vec<Peer> {
    let peer = |from: &MappedQueue, number: usize, to: usize| Peer {
        peer: device_peer(introduce(from, &all[to][number])),
        rkey: heaps[to].remote_key().get(),
        reserved: 0,
        heap: heaps[to].address(),
        mapped: heaps[to].address(),
    };
    let numbers = own.iter().enumerate();
    numbers.flat_map(|(number, from)| (0..all.len()).map(move |to| peer(from, number, to))).collect()
}

/// A queue as device code sees it. `queue` is its struct for the executor.
pub(crate) fn post(mapped: &MappedQueue, queue: *mut efa_gda_queue) -> Queue {
    Queue { queue, done: AtomicU32::new(mapped.state().tracking.oldest), lock: AtomicU32::new(0) }
}

/// The number of puts of a long test: `EFA_GDA_IBGDA_PUTS`, 20,000 by default.
pub(crate) fn puts() -> u32 {
    std::env::var("EFA_GDA_IBGDA_PUTS").map_or(20_000, |number| number.parse().unwrap())
}
