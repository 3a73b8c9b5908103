//! A queue under kernels of the caller's own: what it shows while they run, what it refuses
//! meanwhile, and what a lost context leaves. Skipped, with the reason, where there is no GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use efa_gda::fabric::{Buffer, MemoryRegion, Query};
use efa_gda::gpu::{Gpu, HostRange};
use efa_gda::gpu_queue::{GpuCloseError, GpuQueue, GpuQueueError};
use efa_gda::queue::{Contents, MappedQueue, WorkError, WorkRequest, device_peer};
use efa_gda::wire::Peer;
use efa_gda_sys::device::efa_gda_peer;
use support::kernel::Kernel;
use support::side::{Side, bytes_of, introduce, pattern};
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

// SAFETY: a plain C struct, the same for the device's compiler.
unsafe impl DeviceRepr for Args {}

/// A queue in a GPU, two regions, and what a launch on it needs.
struct Scene {
    queue: GpuQueue,
    _second: MappedQueue,
    peer: Peer,
    source: MemoryRegion,
    target: MemoryRegion,
    stream: Arc<CudaStream>,
    word: Buffer,
    seen_word: HostRange,
    status: CudaSlice<u32>,
    lkey: u32,
    _side: Side,
}

impl Scene {
    fn new(gpu: &Gpu) -> Self {
        let side = Side::open(&Query::new());
        let (mut first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let (source, target) = (side.region(&pattern(40)), side.region(&[0; 40]));
        let lkey = first.retain(&source).unwrap().get();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let word = Buffer::zeroed(4).unwrap();
        let start = word.as_ptr() as usize;
        // SAFETY: the buffer goes after its range.
        let seen_word = unsafe { gpu.reach(start..start + 4) }.unwrap();
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
            seen_word,
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
            word: self.seen_word.device_address(),
            status: self.status.device_ptr(&self.stream).0,
        };
        let mut launch = self.stream.launch_builder(kernel);
        launch.arg(&args);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes one `Args` by value; everything in it outlives the kernel.
        unsafe { launch.launch(one) }.unwrap();
    }

    /// The word that kernel and host share.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page of the scene's buffer, reached atomically alone.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast()) }
    }
}

#[test]
fn a_snapshot_of_a_queue_whose_kernel_runs_shows_what_is_not_rung() {
    with_gpu(&[], |adapter, gpu| {
        let scene = Scene::new(gpu);
        let kernel = Scene::kernel("hang_kernel");
        let lent = scene.queue.begin_launch();
        scene.launch(&kernel.function, lent.device_address() as u64);
        let begun = Instant::now();
        while scene.word().load(Ordering::Acquire) != 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the kernel did not start");
        }
        let seen = scene.queue.snapshot().unwrap();
        println!("{seen}");
        assert_eq!((seen.reserved(), seen.doorbell_index(), seen.in_flight()), (5, 0, 0));
        let Contents::Entries(pending) = &seen.pending else { panic!("{seen}") };
        let ids: Vec<u64> = pending.iter().map(|one| one.entry.unwrap().id.get()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        // The launch is outstanding, so nothing is taken from under it.
        let Scene { queue, .. } = scene;
        let GpuCloseError::InLaunch { queue, launches: 1 } = queue.unmap().unwrap_err() else {
            panic!("not refused")
        };
        let GpuCloseError::InLaunch { queue, .. } = queue.close().unwrap_err() else { panic!("not refused") };
        let scene = Scene { queue: *queue, ..scene };
        scene.word().store(2, Ordering::Release);
        assert_eq!(scene.stream.clone_dtoh(&scene.status).unwrap(), [0]);
        drop(lent);
        assert!(bytes_of(&scene.target) == pattern(40));
        assert_eq!(scene.queue.snapshot().unwrap().completed(), 5);
        assert_no_violations(adapter);
        scene.queue.unmap().unwrap().destroy().unwrap();
    });
}

#[test]
fn an_adapter_that_died_ends_a_kernels_wait() {
    with_gpu(&[], |adapter, gpu| {
        let mut scene = Scene::new(gpu);
        adapter.stop();
        let put = WorkRequest::write(scene.peer, &scene.source, scene.target.remote());
        let error = scene.queue.execute(&put.timeout(Duration::from_millis(50))).unwrap_err();
        let GpuQueueError::Work(WorkError::Device { in_flight: 1, .. }) = error else { panic!("{error:?}") };
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
        let GpuQueueError::Gpu(error) = &error else { panic!("{error:?}") };
        let words = error.to_string();
        assert!(error.context_lost() && words.contains("the context is lost"), "{words}");
        println!("{words}");
        assert!(scene.queue.snapshot().unwrap_err().context_lost());
        // Nothing of it hangs or crashes, and the adapter's side is still destroyed in order.
        scene.queue.destroy().unwrap();
    });
}
