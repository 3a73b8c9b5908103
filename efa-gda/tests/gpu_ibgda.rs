//! The functions of `ibgda_compat.cuh` on a GPU, in the shapes of DeepEP's kernels, on software adapters that execute
//! requests in random order. `EFA_GDA_IBGDA_PUTS` is the number of puts, 20,000 by default, and `EFA_GDA_TEST_SECONDS`
//! the time limit.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::fabric::{Library, Query, Region};
use efa_gda::gpu::{Gpu, HostRange};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda_sys::device::EFA_GDA_OK;
use support::ibgda::{self, Arguments, CHANNEL, Load, Peer, Queue, REORDERED, State, peers};
use support::kernel::Kernel;
use support::side::{Side, bytes_of, gpu_bytes, gpu_region};
use support::{assert_no_violations, with_gpu};

const RANKS: usize = 2;
/// Blocks of a rank, each of 32 warps.
const BLOCKS: u32 = 2;
const THREADS: u32 = 1024;
const SECOND: u64 = 1_000_000_000;

/// A plain C struct for the device.
#[repr(transparent)]
struct Plain<T>(T);

// SAFETY: used with plain C structs, which have the same layout for the device's compiler.
unsafe impl<T> DeviceRepr for Plain<T> {}

/// Where the heaps of the ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heap {
    Host,
    Gpu,
}

/// What a rank's device state leads to.
struct Rank {
    queues: Vec<GpuQueue>,
    /// The GPU's access to a heap in host memory, which must outlive it.
    pages: Option<HostRange>,
    heap: Region,
    channels: Region,
    lkeys: [u32; 2],
    posts: CudaSlice<Plain<Queue>>,
    peers: CudaSlice<Plain<Peer>>,
    /// `struct efa_gda_ibgda_shared`, and after it `struct efa_gda_ibgda_report`.
    words: CudaSlice<u32>,
}

impl Rank {
    fn state(&self, load: Load, rank: usize, stream: &CudaStream) -> State {
        let words = self.words.device_ptr(stream).0;
        State {
            num_rc_per_pe: load.channels,
            num_devices_initialized: 1,
            num_pes: RANKS as u32,
            lkey: self.lkeys[0],
            queues: self.posts.device_ptr(stream).0 as *const Queue,
            heap: self.pages.as_ref().map_or(self.heap.address(), HostRange::device_address),
            heap_bytes: self.heap.len() as u64,
            heap_address: self.heap.address(),
            peers: self.peers.device_ptr(stream).0 as *const Peer,
            channels: self.channels.address(),
            channels_address: self.channels.address(),
            shared: words as *const _,
            report: (words + 8) as *const _,
            timeout_ns: load.timeout_ns,
            channels_lkey: self.lkeys[1],
            rank: rank as u32,
            num_queues: load.queues,
            reserved: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        if self.pages.is_some() { bytes_of(&self.heap) } else { gpu_bytes(&self.heap) }
    }
}

/// Ranks on an adapter each.
fn open(gpu: &Gpu, stream: &Arc<CudaStream>, load: Load, at: Heap) -> Vec<Rank> {
    let library = Library::load().unwrap();
    let infos = Query::new().gpu_memory(true).find(&library).unwrap();
    let sides: Vec<_> = infos.into_iter().take(RANKS).map(|info| Side::on(&library, info)).collect();
    assert_eq!(sides.len(), RANKS);
    let tracked = |side: &Side| side.queue().with_request_table().unwrap();
    let mut queues: Vec<Vec<_>> =
        sides.iter().map(|side| (0..load.queues).map(|_| tracked(side)).collect()).collect();
    let zeroes = vec![0; (load.warps * load.stride()) as usize];
    let heap = |side: &Side| match at {
        Heap::Host => side.region(&zeroes),
        Heap::Gpu => gpu_region(side, gpu, &zeroes).0,
    };
    let heaps: Vec<_> = sides.iter().map(heap).collect();
    let peers: Vec<_> = queues.iter().map(|own| peers(own, &queues, &heaps)).collect();
    let mut ranks = Vec::new();
    for (((side, heap), peers), queues) in sides.iter().zip(heaps).zip(peers).zip(&mut queues) {
        let zeroes = vec![0; RANKS * load.channels as usize * CHANNEL];
        let (channels, _) = gpu_region(side, gpu, &zeroes);
        let mut lkeys = [0; 2];
        for queue in queues.iter_mut() {
            lkeys = [&heap, &channels].map(|region| queue.retain(region).unwrap().get());
        }
        let posts: Vec<_> = queues.iter().map(|queue| ibgda::post(queue, std::ptr::null_mut())).collect();
        let queues: Vec<_> = queues.drain(..).map(|queue| GpuQueue::new(queue, gpu).unwrap()).collect();
        let on_gpu =
            |(post, queue): (Queue, &GpuQueue)| Plain(Queue { queue: queue.device_address(), ..post });
        let posts: Vec<_> = posts.into_iter().zip(&queues).map(on_gpu).collect();
        let peers: Vec<_> = peers.into_iter().map(Plain).collect();
        let pages = (at == Heap::Host).then(|| {
            let start = heap.address() as usize;
            // SAFETY: the region keeps its memory mapped, and `Rank` drops it after this.
            unsafe { gpu.reach(start..start + heap.len()) }.unwrap()
        });
        ranks.push(Rank {
            queues,
            heap,
            pages,
            channels,
            lkeys,
            posts: stream.clone_htod(&posts).unwrap(),
            peers: stream.clone_htod(&peers).unwrap(),
            words: stream.alloc_zeros(6).unwrap(),
        });
    }
    ranks
}

/// Two ranks of 64 warps, which put to each other and wait for each other's flags.
fn stream_is_exact(at: Heap) {
    let source = include_str!("kernels_own/ibgda.cu").replace(
        "#include \"efa_gda/ibgda_compat.cuh\"",
        include_str!("../../kernels/include/efa_gda/ibgda_compat.cuh"),
    );
    let variables =
        [REORDERED, &[("SOFTEFA_ADAPTERS", "2"), ("SOFTEFA_HMEM", "1"), ("SOFTEFA_MR_DMABUF", "1")]].concat();
    with_gpu(&variables, |adapter, gpu| {
        let Kernel { function, stream } = Kernel::compile(&source, "ibgda_stream");
        let warps = BLOCKS * THREADS / 32;
        let rounds = ibgda::puts().div_ceil(RANKS as u32 * warps * 8);
        let load = Load { queues: 4, ..Load::new(warps, rounds, 8, 64) };
        let ranks = open(gpu, &stream, load, at);
        let state = |(rank, own): (usize, &Rank)| Plain(own.state(load, rank, &stream));
        let states = stream.clone_htod(&ranks.iter().enumerate().map(state).collect::<Vec<_>>()).unwrap();
        let counts = stream.alloc_zeros::<u32>(2).unwrap();
        let (states_at, counts_at) = (states.device_ptr(&stream).0, counts.device_ptr(&stream).0);
        let arguments: [Arguments; RANKS] = std::array::from_fn(|rank| Arguments {
            state: (states_at as *const State).wrapping_add(rank),
            rank: rank as u32,
            rounds,
            messages: load.messages,
            bytes: load.bytes,
            warps,
            reserved: 0,
            warp_stride: load.stride().into(),
            limit_ns: 120 * SECOND,
            wrong: counts_at as *const _,
            gave_up: (counts_at + 4) as *const _,
        });
        let grid = LaunchConfig {
            grid_dim: (RANKS as u32 * BLOCKS, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let (arguments, begin) = (Plain(arguments), Instant::now());
        // SAFETY: the kernel takes `struct ibgda_ranks` by value. What it leads to outlives the kernel.
        unsafe { stream.launch_builder(&function).arg(&arguments).launch(grid) }.unwrap();
        stream.synchronize().unwrap();
        let puts = u64::from(rounds) * u64::from(load.messages) * u64::from(warps) * RANKS as u64;
        println!("{puts} puts, heaps in {at:?} memory, {warps} warps a rank: {:?}", begin.elapsed());
        for rank in &ranks {
            let words = stream.clone_dtoh(&rank.words).unwrap();
            assert_eq!(words[2], EFA_GDA_OK, "status, PE and virtual queue pair: {:?}", &words[2..5]);
        }
        let counts = stream.clone_dtoh(&counts).unwrap();
        assert_eq!(counts, [0, 0], "bytes missing behind their flag, and warps that waited in vain");
        let sum = u64::from(rounds) * u64::from(load.messages);
        for (number, rank) in ranks.iter().enumerate() {
            let bytes = rank.bytes();
            for warp in 0..warps {
                let words = load.words_in(&bytes, warp);
                assert_eq!(words[..2], [sum, sum], "rank {number}, warp {warp}");
            }
        }
        assert_no_violations(adapter);
        ranks.into_iter().flat_map(|rank| rank.queues).for_each(|queue| queue.destroy().unwrap());
    });
}

#[test]
fn a_receiver_on_a_gpu_that_sees_the_flag_sees_all_the_data_in_its_memory() {
    stream_is_exact(Heap::Gpu);
}

#[test]
fn a_receiver_on_a_gpu_that_sees_the_flag_sees_all_the_data_in_host_memory() {
    stream_is_exact(Heap::Host);
}
