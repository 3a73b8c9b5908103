//! What of a queue that a GPU drives lies in the GPU's memory, and how its kernels start and end.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda_sys::device::{
    EFA_GDA_NOT_RUN, efa_gda_publication, efa_gda_put_args, efa_gda_put_result, efa_gda_queue,
    efa_gda_receive_args, efa_gda_receive_result, efa_gda_rq,
};

use super::MappedQueue;
use super::backing::Backing;
use super::mapped::swap_word;
use super::parts::Ranges;
use super::receive::AT_ONCE;
use crate::doorbell::Registration;
use crate::executor::host::InboxEntry;
use crate::executor::{DeviceError, outcome};
use crate::fabric::Buffer;
use crate::gpu::memory::{InGpu, SharedWord, Watch};
use crate::gpu::{self, Gpu, in_call};

/// Warps of the block that a put runs as.
const PUT_THREADS: u32 = 128;
/// How long kernels are waited for whose waits on the queue were ended.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(60);

/// What of the queue lies in the GPU's memory.
#[derive(Debug)]
pub(super) struct OnDevice {
    /// Lets go before kernels are waited for; its memory outlives them.
    served: Option<Arc<Registration>>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) queue: InGpu<efa_gda_queue>,
    result: InGpu<efa_gda_put_result>,
    /// None where no receives complete on the queue.
    pub(super) inbox: Option<Inbox>,
    pub(super) watch: Watch,
    pub(super) abort: Arc<SharedWord>,
    /// Referred to by the struct.
    _publication: (CudaSlice<u8>, CudaSlice<u64>),
}

/// Where kernels leave completions of receives, and how they are had from there.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) address: *mut u8,
    kept: CudaSlice<u8>,
    result: InGpu<efa_gda_receive_result>,
    taken: InGpu<[InboxEntry; AT_ONCE]>,
}

// SAFETY: the address is the GPU's, and never followed here.
unsafe impl Send for Inbox {}
// SAFETY: as above.
unsafe impl Sync for Inbox {}

impl Inbox {
    /// With what the host's has: what was left there is taken from here.
    fn new(stream: &Arc<CudaStream>, host: &Buffer) -> gpu::Result<Self> {
        let mut bytes = vec![0; host.len()];
        host.read(0, &mut bytes).expect("as many bytes as the buffer has");
        let kept = stream.clone_htod(&bytes).map_err(in_call("cuMemcpyHtoDAsync"))?;
        let address = kept.device_ptr(stream).0 as *mut u8;
        let result = InGpu::new(stream, &efa_gda_receive_result::default())?;
        let taken = InGpu::new(stream, &[InboxEntry::default(); AT_ONCE])?;
        Ok(Self { address, kept, result, taken })
    }

    /// Gives the host's what it has.
    pub(super) fn give_back(&self, stream: &Arc<CudaStream>, host: &Buffer) -> gpu::Result<()> {
        let bytes = stream.clone_dtoh(&self.kept).map_err(in_call("cuMemcpyDtoHAsync"))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        host.write(0, &bytes).expect("as many bytes as the buffer has");
        Ok(())
    }
}

/// What the receive kernel did, with the completions that it took.
pub(super) struct DidReceive {
    pub(super) status: Result<(), DeviceError>,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) taken: Vec<InboxEntry>,
}

/// The receive kernel's argument, passed by value.
#[repr(transparent)]
struct ReceiveArgument(efa_gda_receive_args);

// SAFETY: as for `Argument`.
unsafe impl DeviceRepr for ReceiveArgument {}

/// The put kernel's argument, passed by value.
#[repr(transparent)]
struct Argument(efa_gda_put_args);

// SAFETY: a plain struct of C, the same for the host's and the device's compiler (`queue.h`).
unsafe impl DeviceRepr for Argument {}

impl OnDevice {
    pub(super) fn new(queue: &MappedQueue, ranges: &Ranges, gpu: &Gpu) -> gpu::Result<Self> {
        let stream = gpu.context().new_stream().map_err(in_call("cuStreamCreate"))?;
        let abort = SharedWord::new(gpu.context())?;
        let served = queue.served.clone();
        let mut state = queue.state();
        state.sq.buffer = ranges.sq.device_address() as *mut u8;
        state.sq.doorbell = ranges.sq_doorbell.device_address() as *mut u32;
        match &ranges.cq {
            Some(cq) => state.cq.buffer = cq.device_address() as *mut u8,
            None if queue.backing.completions_on().is_none() => state.cq.buffer = std::ptr::null_mut(),
            None => {}
        }
        if let Some(doorbell) = &ranges.cq_doorbell {
            state.cq.doorbell = doorbell.device_address() as *mut u32;
        }
        if let Some(counters) = &ranges.counters {
            // The words keep their distance.
            let apart = state.counters.error as u64 - state.counters.success as u64;
            let success = counters.device_address();
            state.counters.success = success as *const u64;
            state.counters.error = (success + apart) as *const u64;
        }
        match &ranges.receives {
            Some(Ok((ring, doorbell))) => {
                state.rq.buffer = ring.device_address() as *mut u8;
                state.rq.doorbell = doorbell.device_address() as *mut u32;
            }
            // What was posted before still arrives.
            Some(Err(_)) | None => state.rq = efa_gda_rq::default(),
        }
        let inbox = queue.inbox.as_ref().map(|host| Inbox::new(&stream, host)).transpose()?;
        state.inbox.entries = inbox.as_ref().map_or(std::ptr::null_mut(), |inbox| inbox.address);
        state.abort = abort.get().as_ptr();
        let slots = state.sq.num_entries.max(64);
        let failed = in_call("cuMemAllocAsync");
        let bytes = slots as usize * state.sq.entry_size as usize;
        let entries = stream.alloc_zeros::<u8>(bytes).map_err(&failed)?;
        let flags = stream.alloc_zeros::<u64>(slots as usize).map_err(&failed)?;
        state.publication = efa_gda_publication {
            entries: entries.device_ptr(&stream).0 as *mut u8,
            flags: flags.device_ptr(&stream).0 as *mut u64,
            num_entries: slots,
            reserved: 0,
        };
        let queue = InGpu::new(&stream, &state)?;
        let result = InGpu::new(&stream, &efa_gda_put_result::default())?;
        let cq = state.cq.num_entries as usize * state.cq.entry_size as usize;
        let watch = Watch::new(gpu.context(), cq.max(size_of::<efa_gda_queue>()))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        Ok(Self { served, stream, queue, result, inbox, watch, abort, _publication: (entries, flags) })
    }

    /// Launches the put kernel and waits for its end, which its bounds bring.
    pub(super) fn run(&mut self, gpu: &Gpu, args: &efa_gda_put_args) -> gpu::Result<efa_gda_put_result> {
        let not_run = efa_gda_put_result { status: EFA_GDA_NOT_RUN, ..Default::default() };
        self.result.store(&self.stream, &not_run)?;
        let argument = Argument(efa_gda_put_args {
            queue: self.queue.address(),
            result: self.result.address(),
            ..*args
        });
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (PUT_THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(gpu.put_kernel()?);
        launch.arg(&argument);
        // SAFETY: the kernel takes one `efa_gda_put_args` by value. Its queue lies in this GPU's
        // memory and refers to pages that `GpuQueue` keeps registered; this borrow is exclusive, so
        // nobody else posts.
        unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
        self.result.load(&self.stream)
    }

    /// Launches the receive kernel and waits for its end: it takes completions where `takes`, and posts
    /// receives otherwise. The queue must have an inbox.
    pub(super) fn receive(
        &mut self,
        gpu: &Gpu,
        args: &efa_gda_receive_args,
        takes: bool,
    ) -> gpu::Result<DidReceive> {
        let inbox = self.inbox.as_mut().expect("refused before where the queue takes no receives");
        let not_run = efa_gda_receive_result { status: EFA_GDA_NOT_RUN, ..Default::default() };
        inbox.result.store(&self.stream, &not_run)?;
        let argument = ReceiveArgument(efa_gda_receive_args {
            queue: self.queue.address(),
            result: inbox.result.address(),
            into: if takes { inbox.taken.address().cast() } else { std::ptr::null_mut() },
            ..*args
        });
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(gpu.receive_kernel()?);
        launch.arg(&argument);
        // SAFETY: the kernel takes one `efa_gda_receive_args` by value. Its queue is as in `run`; `taken`
        // has room for `AT_ONCE` completions, and the caller asks for no more; this borrow is exclusive.
        unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
        let result = inbox.result.load(&self.stream)?;
        let all =
            if takes && result.count != 0 { inbox.taken.load(&self.stream)?.to_vec() } else { Vec::new() };
        let taken = all.into_iter().take(result.count as usize).collect();
        Ok(DidReceive { status: outcome(result.status), first: result.first, count: result.count, taken })
    }

    /// Waits for kernels of the caller's, which may still run, and post as long as somebody rings. Without
    /// a proxy they come to a wait, which its alarm ends; the abort flag ends those that wait already.
    /// After an error they may still run.
    pub(super) fn stop(&self) -> gpu::Result<()> {
        if let Some(served) = &self.served {
            served.detach();
        }
        swap_word(self.abort.get(), 0, 1);
        gpu::kernels_end(self.stream.context(), STOP_LIMIT)
    }
}
