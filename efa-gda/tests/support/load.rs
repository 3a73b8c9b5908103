//! A kernel that posts until it is stopped, on a GPU or on the pretended one.

use std::time::{Duration, Instant};

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::device_peer;
use efa_gda_sys::device::{EFA_GDA_LOAD_OWNED, EFA_GDA_OK, EFA_GDA_PROXY_STOPPED, efa_gda_load_args};

use super::kernel::Kernel;
use super::side::{Side, introduce};

/// `efa_gda_load_kernel`'s argument, by value.
#[repr(transparent)]
struct Load(efa_gda_load_args);

// SAFETY: a plain struct of C, the same for the host's and the device's compiler (`queue.h`).
unsafe impl DeviceRepr for Load {}

/// Waits until entries of a running kernel go through the proxy.
pub(crate) fn until_traffic(proxy: &DoorbellProxy) {
    let (begin, before) = (Instant::now(), proxy.counts().entries);
    while proxy.counts().entries < before + 10_000 {
        assert!(begin.elapsed() < Duration::from_secs(20), "no traffic: {:?}", proxy.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Drops a queue in doorbell mode `rung` while `kernel`, `efa_gda_load_kernel`, posts on it: the kernel ends with the
/// status that names the reason.
pub(crate) fn drop_under_a_load(
    Kernel { function, stream }: &Kernel,
    (gpu, side, proxy): (&Gpu, &Side, &DoorbellProxy),
    rung: DoorbellMode,
) {
    let (first, second) = (side.queue(), side.queue());
    let peer = introduce(&first, &second);
    // Dropped after the queue where something fails: freeing it may wait for the kernel, which the queue ends.
    let status = stream.clone_htod(&[EFA_GDA_OK]).unwrap();
    let (first, _) = GpuQueue::with_doorbell(first, gpu, rung.into(), proxy).unwrap();
    let load = Load(efa_gda_load_args {
        queues: first.device_address(),
        status: status.device_ptr(stream).0 as *mut u32,
        peer: device_peer(peer),
        queue_count: 1,
        sharing: EFA_GDA_LOAD_OWNED,
        group: 32,
        calls: u32::MAX,
        per_call: 32,
        timeout_ns: 60_000_000_000,
        ..Default::default()
    });
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: one struct by value; the queue waits for the kernel before it is destroyed, and the status outlives
    // both.
    unsafe { stream.launch_builder(function).arg(&load).launch(config) }.unwrap();
    until_traffic(proxy);
    drop(first);
    let ended = stream.clone_dtoh(&status).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(ended[0], EFA_GDA_PROXY_STOPPED, "{rung}");
}
