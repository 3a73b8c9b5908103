//! A kernel that posts until it is stopped, on a real or a pretended GPU.

use std::time::{Duration, Instant};

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::{Region, RemoteRegion};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{WorkRequest, device_peer};
use efa_gda::wire::Peer;
use efa_gda_sys::device::{EFA_GDA_LOAD_OWNED, EFA_GDA_OK, EFA_GDA_PROXY_STOPPED, efa_gda_load_args};

use super::kernel::Kernel;
use super::side::Side;

/// The argument of `efa_gda_load_kernel`, passed by value.
#[repr(transparent)]
pub(crate) struct Load(pub(crate) efa_gda_load_args);

// SAFETY: a plain C struct with the same layout for the compilers of host and device (`queue.h`).
unsafe impl DeviceRepr for Load {}

/// Waits until the proxy has mode for another 10,000 entries of a running kernel.
fn until_traffic(proxy: &DoorbellProxy) {
    let (begin, before) = (Instant::now(), proxy.rung());
    while proxy.rung() < before + 10_000 {
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "the proxy rang for fewer than 10,000 entries in 120 s: {:?}",
            proxy.rung()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A write of more entries than a proxy can ring for before it is stopped.
pub(crate) fn endless(peer: Peer, source: &Region, target: RemoteRegion) -> WorkRequest {
    let put = WorkRequest::write(peer, source, target).bytes(64).count(u64::from(u32::MAX));
    put.timeout(Duration::from_secs(60))
}

/// Calls `execute`, and stops the proxy when it has rung for 10,000 of its entries.
pub(crate) fn stopped_during_traffic<T>(proxy: &DoorbellProxy, execute: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_traffic(proxy);
            proxy.stop().unwrap();
        });
        execute()
    })
}

/// Drops a queue in doorbell mode `mode` while `kernel`, which must be `efa_gda_load_kernel`, posts on it in a launch. The
/// kernel must end with the status `EFA_GDA_PROXY_STOPPED`.
pub(crate) fn drop_under_a_load(
    Kernel { function, stream }: &Kernel,
    (gpu, side, proxy): (&Gpu, &Side, &DoorbellProxy),
    mode: DoorbellMode,
) {
    let (first, _second, peer) = side.pair();
    // Declared before the GPU queue, so dropped after it if an assertion fails: freeing the status may wait for the
    // kernel, which ends when the queue is dropped.
    let status = stream.clone_htod(&[EFA_GDA_OK]).unwrap();
    let (first, _) = GpuQueue::with_doorbell(first, gpu, mode.into(), proxy).unwrap();
    let launch = first.begin_launch();
    let load = Load(efa_gda_load_args {
        queues: launch.device_address(),
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
    // SAFETY: the kernel takes one struct by value. The launch guard lives until the kernel has ended, and the status
    // outlives both.
    unsafe { stream.launch_builder(function).arg(&load).launch(config) }.unwrap();
    until_traffic(proxy);
    drop(first);
    let ended = stream.clone_dtoh(&status).unwrap();
    stream.synchronize().unwrap();
    drop(launch);
    assert_eq!(ended[0], EFA_GDA_PROXY_STOPPED, "{mode}");
}
