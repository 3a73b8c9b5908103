//! The state of a queue in a GPU's memory, and how kernels of this library are launched and stopped.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg};
use efa_gda_sys::device::{
    EFA_GDA_NOT_RUN, EFA_GDA_SQ_STORES_OF_8, efa_gda_put_args, efa_gda_put_result, efa_gda_queue,
    efa_gda_receive_args, efa_gda_receive_result, efa_gda_rq,
};

use super::mapped_parts::MappedParts;
use crate::Result;
use crate::doorbell::Registration;
use crate::executor::host::InboxEntry;
use crate::fabric::Buffer;
use crate::gpu::memory::{InGpu, Plain, SharedWord, SideCopy};
use crate::gpu::{self, Gpu, in_call};
use crate::queue::receive::AT_ONCE;
use crate::queue::{AbortFlag, MappedQueue};

/// Threads of the block that executes a work request.
const PUT_THREADS: u32 = 128;
/// Bound of the wait for kernels whose waits on the queue were ended.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The state of a queue in a GPU's memory.
#[derive(Debug)]
pub(super) struct DeviceState {
    /// Detached before the wait for kernels; its memory outlives them.
    registration: Option<Arc<Registration>>,
    /// Bytes of the widest stores by which kernels write entries.
    pub(super) store_bytes: u32,
    pub(super) stream: Arc<CudaStream>,
    pub(super) queue: InGpu<efa_gda_queue>,
    result: InGpu<efa_gda_put_result>,
    /// None if no receives complete on the queue.
    pub(super) inbox: Option<Inbox>,
    pub(super) side_copy: SideCopy,
    pub(super) abort: AbortFlag,
    /// None if the queue has no request table.
    pub(super) requests: Option<HostCopy>,
}

/// Memory that the device library uses on the host until the queue is mapped into a GPU, and in the GPU's memory from
/// then on.
#[derive(Debug)]
pub(super) struct HostCopy {
    address: u64,
    bytes: CudaSlice<u8>,
}

impl HostCopy {
    fn new(stream: &Arc<CudaStream>, host: &Buffer) -> Result<Self> {
        let mut bytes = vec![0; host.len()];
        host.read(0, &mut bytes).expect("as many bytes as the buffer has");
        let bytes = stream.clone_htod(&bytes).map_err(in_call("cuMemcpyHtoDAsync"))?;
        let address = bytes.device_ptr(stream).0;
        Ok(Self { address, bytes })
    }

    /// Copies the memory back to the host.
    pub(super) fn copy_to_host(&self, stream: &Arc<CudaStream>, host: &Buffer) -> Result<()> {
        let bytes = stream.clone_dtoh(&self.bytes).map_err(in_call("cuMemcpyDtoHAsync"))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        host.write(0, &bytes).expect("as many bytes as the buffer has");
        Ok(())
    }
}

/// The memory in which kernels store completions of receives, and the memory to take them out with.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) entries: HostCopy,
    result: InGpu<efa_gda_receive_result>,
    taken: InGpu<[InboxEntry; AT_ONCE]>,
}

impl Inbox {
    /// Copies the host's inbox, so that completions in it are taken from here.
    fn new(stream: &Arc<CudaStream>, host: &Buffer) -> Result<Self> {
        let result = InGpu::new(stream, &efa_gda_receive_result::default())?;
        let taken = InGpu::new(stream, &[InboxEntry::default(); AT_ONCE])?;
        Ok(Self { entries: HostCopy::new(stream, host)?, result, taken })
    }
}

impl DeviceState {
    /// Allocates the state and copies the queue's struct into it, with the GPU's addresses of `parts`.
    pub(super) fn new(queue: &MappedQueue, parts: &MappedParts, gpu: &Gpu) -> Result<Self> {
        let stream = gpu.context().new_stream().map_err(in_call("cuStreamCreate"))?;
        let abort = AbortFlag::new(SharedWord::new(gpu.context())?);
        let registration = queue.registration.clone();
        let mut state = queue.state();
        state.sq.buffer = parts.sq.device_address() as *mut u8;
        state.sq.doorbell = parts.sq_doorbell.device_address() as *mut u32;
        let store_bytes = queue.store_width().bytes(parts.sq.mapping().kind);
        if store_bytes == 8 {
            state.sq.flags |= EFA_GDA_SQ_STORES_OF_8;
        }
        match &parts.cq {
            Some(cq) => state.cq.buffer = cq.device_address() as *mut u8,
            None if queue.backing.completions_on().is_none() => state.cq.buffer = std::ptr::null_mut(),
            None => {}
        }
        if let Some(doorbell) = &parts.cq_doorbell {
            state.cq.doorbell = doorbell.device_address() as *mut u32;
        }
        if let Some(counters) = &parts.counters {
            // The distance between the words is the same on the GPU.
            let distance = state.counters.error as u64 - state.counters.success as u64;
            let success = counters.device_address();
            state.counters.success = success as *const u64;
            state.counters.error = (success + distance) as *const u64;
        }
        match &parts.receives {
            Some(Ok((ring, doorbell))) => {
                state.rq.buffer = ring.device_address() as *mut u8;
                state.rq.doorbell = doorbell.device_address() as *mut u32;
            }
            // Messages still arrive in receives that the host posted before.
            Some(Err(_)) | None => state.rq = efa_gda_rq::default(),
        }
        let inbox = queue.inbox.as_ref().map(|host| Inbox::new(&stream, host)).transpose()?;
        state.inbox.entries =
            inbox.as_ref().map_or(std::ptr::null_mut(), |inbox| inbox.entries.address as *mut u8);
        let requests = queue.request_table.as_ref().map(|host| HostCopy::new(&stream, host)).transpose()?;
        if let Some(HostCopy { address, .. }) = requests {
            let words = u64::from(state.requests.num_entries) * size_of::<u16>() as u64;
            state.requests.done = address as *mut u16;
            state.requests.posters = (address + words) as *mut u16;
        }
        state.abort = abort.word().as_ptr();
        let queue = InGpu::new(&stream, &state)?;
        let result = InGpu::new(&stream, &efa_gda_put_result::default())?;
        let cq = state.cq.num_entries as usize * state.cq.entry_size as usize;
        let side_copy = SideCopy::new(gpu.context(), cq.max(size_of::<efa_gda_queue>()))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        Ok(Self { registration, store_bytes, stream, queue, result, inbox, side_copy, abort, requests })
    }

    /// Launches the put kernel and waits for its end. The kernel ends, because each of its waits has a bound.
    pub(super) fn run(&mut self, gpu: &Gpu, args: &efa_gda_put_args) -> Result<efa_gda_put_result> {
        let not_run = efa_gda_put_result { status: EFA_GDA_NOT_RUN, ..Default::default() };
        self.result.store(&self.stream, &not_run)?;
        let argument =
            Plain(efa_gda_put_args { queue: self.queue.address(), result: self.result.address(), ..*args });
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (PUT_THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(gpu.put_kernel()?);
        launch.arg(&argument);
        // SAFETY: the kernel takes one `efa_gda_put_args` by value. Its queue is in this GPU's memory and refers to
        // pages that `GpuQueue` keeps registered. This borrow is exclusive, so nothing else posts.
        unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
        self.result.load(&self.stream)
    }

    /// Launches the receive kernel and waits for its end. The kernel takes completions if `takes`, which are returned with
    /// its result, and posts receives otherwise. The queue must have an inbox.
    pub(super) fn receive(
        &mut self,
        gpu: &Gpu,
        args: &efa_gda_receive_args,
        takes: bool,
    ) -> Result<(efa_gda_receive_result, Vec<InboxEntry>)> {
        let inbox = self.inbox.as_mut().expect("callers refuse queues without receives");
        let not_run = efa_gda_receive_result { status: EFA_GDA_NOT_RUN, ..Default::default() };
        inbox.result.store(&self.stream, &not_run)?;
        let argument = Plain(efa_gda_receive_args {
            queue: self.queue.address(),
            result: inbox.result.address(),
            into: if takes { inbox.taken.address().cast() } else { std::ptr::null_mut() },
            ..*args
        });
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(gpu.receive_kernel()?);
        launch.arg(&argument);
        // SAFETY: the kernel takes one `efa_gda_receive_args` by value. Its queue is as in `run`. `taken` has room for
        // `AT_ONCE` completions, and the caller asks for no more. This borrow is exclusive.
        unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
        let result = inbox.result.load(&self.stream)?;
        let mut taken = Vec::new();
        if takes && result.count != 0 {
            taken = inbox.taken.load(&self.stream)?.to_vec();
            taken.truncate(result.count as usize);
        }
        Ok((result, taken))
    }

    /// Ends the waits of kernels. While a proxy rings, a kernel that posts in a loop may never wait, so the queue is
    /// first detached from its proxy. The kernel then waits for free slots, and the proxy's alarm ends that wait. The
    /// abort flag ends waits of kernels that ring themselves.
    pub(super) fn end_waits(&self) {
        if let Some(registration) = &self.registration {
            registration.detach();
        }
        self.abort.raise();
    }

    /// Ends the waits of kernels, and waits for the end of those that this library launched. After an error they may
    /// still run. The caller must wait for its own kernels ([`super::LaunchGuard`]).
    pub(super) fn stop(&self) -> Result<()> {
        self.end_waits();
        self.kernels_end()
    }

    /// Waits for the end of the kernels that this library launched.
    pub(super) fn kernels_end(&self) -> Result<()> {
        gpu::stream_ends(&self.stream, STOP_LIMIT)
    }
}
