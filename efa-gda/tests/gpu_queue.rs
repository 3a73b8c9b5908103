//! A queue that kernels of the caller use: its snapshot while they run, the calls that it refuses meanwhile, and its state
//! after the context is lost. Without a GPU, each test is skipped with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use efa_gda::ErrorKind;
use efa_gda::fabric::{Buffer, Query, Region};
use efa_gda::gpu::{Gpu, HostRange};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{Contents, MappedQueue, WorkRequest, device_peer};
use efa_gda::wire::Peer;
use efa_gda_sys::device::efa_gda_peer;
use efa_gda_test_support::assert_error;
use support::kernel::Kernel;
use support::side::{Side, bytes_of, pattern};
use support::{assert_no_violations, with_gpu};

/// `HangArgs` of hang.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    queue: u64,
    peer: efa_gda_peer,
    lkey: u32,
    rkey: u32,
    local: u64,
    remote: u64,
    word: u64,
    status: u64,
}

// SAFETY: a plain C struct with the same layout for the device's compiler.
unsafe impl DeviceRepr for Args {}

/// A queue mapped into a GPU, two regions, and the arguments of a launch.
struct Scene {
    queue: GpuQueue,
    _second: MappedQueue,
    peer: Peer,
    source: Region,
    target: Region,
    stream: Arc<CudaStream>,
    mapped_word: HostRange,
    // Dropped after its range.
    word: Buffer,
    status: CudaSlice<u32>,
    lkey: u32,
    _side: Side,
}

impl Scene {
    fn new(gpu: &Gpu) -> Self {
        let side = Side::open(&Query::new());
        let (mut first, second, peer) = side.pair();
        let (source, target) = (side.region(&pattern(40)), side.region(&[0; 40]));
        let lkey = first.retain(&source).unwrap().get();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let word = Buffer::zeroed(4).unwrap();
        let start = word.as_ptr() as usize;
        // SAFETY: the scene drops the buffer after its range.
        let mapped_word = unsafe { gpu.reach(start..start + 4) }.unwrap();
        let status = stream.clone_htod(&[99_u32]).unwrap();
        let queue = GpuQueue::new(first, gpu).unwrap();
        Self {
            queue,
            _second: second,
            peer,
            source,
            target,
            stream,
            word,
            mapped_word,
            status,
            lkey,
            _side: side,
        }
    }

    fn kernel(name: &str) -> Kernel {
        Kernel::compile(include_str!("gpu_queue/hang.cu"), name)
    }

    fn launch(&self, kernel: &CudaFunction, queue: u64) {
        let args = Args {
            queue,
            peer: device_peer(self.peer),
            lkey: self.lkey,
            rkey: self.target.remote_key().get(),
            local: self.source.address(),
            remote: self.target.address(),
            word: self.mapped_word.device_address(),
            status: self.status.device_ptr(&self.stream).0,
        };
        let mut launch = self.stream.launch_builder(kernel);
        launch.arg(&args);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes one `Args` by value, and everything that it points to outlives the kernel.
        unsafe { launch.launch(one) }.unwrap();
    }

    /// Waits until a kernel that was launched says that it runs.
    fn await_start(&self) {
        let begun = Instant::now();
        while self.word().load(Ordering::Acquire) != 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the kernel did not start");
        }
    }

    /// The word that kernel and host share.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the word is in the scene's buffer and is accessed only as an atomic.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast()) }
    }
}

#[test]
fn a_snapshot_during_a_kernel_shows_unrung_entries() {
    with_gpu(&[], |adapter, gpu| {
        let scene = Scene::new(gpu);
        let kernel = Scene::kernel("hang_kernel");
        let launch = scene.queue.begin_launch();
        scene.launch(&kernel.function, launch.device_address() as u64);
        scene.await_start();
        let snapshot = scene.queue.snapshot().unwrap();
        println!("{snapshot}");
        assert_eq!((snapshot.reserved(), snapshot.doorbell_index(), snapshot.in_flight()), (5, 0, 0));
        let Contents::Entries(pending) = &snapshot.pending else { panic!("{snapshot}") };
        let ids: Vec<u64> = pending.iter().map(|one| one.entry.unwrap().id.get()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        // The launch is outstanding, so the queue stays mapped.
        let Scene { queue, .. } = scene;
        let refused = queue.unmap().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "1 launch(es)");
        let queue = refused.queue.unwrap();
        let refused = queue.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "launch(es)");
        let queue = refused.queue.unwrap();
        let scene = Scene { queue: *queue, ..scene };
        scene.word().store(2, Ordering::Release);
        assert_eq!(scene.stream.clone_dtoh(&scene.status).unwrap(), [0]);
        drop(launch);
        assert!(bytes_of(&scene.target) == pattern(40));
        assert_eq!(scene.queue.snapshot().unwrap().completed(), 5);
        assert_no_violations(adapter);
        scene.queue.unmap().unwrap().destroy().unwrap();
    });
}

#[test]
fn a_kernel_wait_for_an_adapter_that_died_times_out() {
    with_gpu(&[], |adapter, gpu| {
        let mut scene = Scene::new(gpu);
        adapter.stop();
        let put = WorkRequest::write(scene.peer, &scene.source, scene.target.remote());
        let error = scene.queue.execute(&put.timeout(Duration::from_millis(50))).unwrap_err();
        assert_error!(error, ErrorKind::Device(_), "requests in flight: 1");
        assert_eq!(scene.queue.snapshot().unwrap().in_flight(), 1);
        scene.queue.destroy().unwrap();
    });
}

#[test]
fn a_lost_context_is_an_error_that_names_it() {
    with_gpu(&[], |_, gpu| {
        let mut scene = Scene::new(gpu);
        let kernel = Scene::kernel("trap_kernel");
        scene.launch(&kernel.function, 0);
        let put = WorkRequest::write(scene.peer, &scene.source, scene.target.remote());
        let error = scene.queue.execute(&put).unwrap_err();
        let words = error.to_string();
        assert!((error.kind() == ErrorKind::GpuLost) && words.contains("the context is lost"), "{words}");
        println!("{words}");
        assert!(scene.queue.snapshot().unwrap_err().kind() == ErrorKind::GpuLost);
        // The calls above neither hang nor crash, and the adapter's objects can still be destroyed.
        scene.queue.destroy().unwrap();
    });
}
