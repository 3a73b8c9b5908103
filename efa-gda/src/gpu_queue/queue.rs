//! The queue that one GPU drives.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use efa_gda_sys::device::{EFA_GDA_OK, efa_gda_put_args, efa_gda_queue};
use efa_gda_wire::LocalKey;

use super::LaunchGuard;
use super::device_state::DeviceState;
use super::mapped_parts::{self, MappedPart, MappedParts};
use super::memory::require_same_gpu;
use crate::doorbell::{DoorbellMode, DoorbellProxy};
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::gpu::Gpu;
use crate::gpu::relaxed::Relaxed;
use crate::leak;
use crate::queue::inline::inline_bytes;
use crate::queue::quiet::no_requests;
use crate::queue::words::{is_in_use, refuse_unfinished, unrung_entries};
use crate::queue::work_error::report;
use crate::queue::work_request::requested;
use crate::queue::{AbortFlag, MappedQueue, Region, WorkReport, WorkRequest};

/// A [`MappedQueue`] that one GPU drives.
///
/// A drop ends the waits of its kernels and waits for the kernels that this library launched. Then it unregisters the
/// pages and closes the endpoint. A drop leaks the queue instead, until the process ends, if kernels may still use it:
/// the library's kernels did not end within a minute, or the driver did not report their end, or a [`LaunchGuard`]
/// exists. A drop never waits for the caller's kernels; the guard stands for them.
///
/// ```
/// # efa_gda_test_support::soft::example();
/// # use efa_gda::fabric::{Access, Bindings, Buffer, Fabric, Library, Query};
/// use efa_gda::gpu::Gpu;
/// use efa_gda::gpu_queue::GpuQueue;
/// use efa_gda::queue::{MappedQueue, WorkRequest};
///
/// # let library = Library::load()?;
/// # let info = Query::new().first(&library)?;
/// # let domain = Fabric::open(&library, &info)?.domain(&info)?;
/// # let addresses = domain.address_vector(16)?;
/// # let completions = domain.completion_queue(info.completions())?;
/// # let endpoint = domain.endpoint(&info, Bindings::shared(&addresses, &completions))?;
/// # let source = domain.register(Buffer::zeroed(4096).ok_or("no memory")?, Access::WRITE)?;
/// # let target = domain.register(Buffer::zeroed(4096).ok_or("no memory")?, Access::REMOTE_WRITE)?;
/// # source.buffer().ok_or("no buffer")?.write(0, b"hello")?;
/// // The endpoint and the regions are made as in the example of MappedQueue.
/// let queue = MappedQueue::new(endpoint, &domain.gda_ops()?)?;
/// let peer = queue.insert_peer(&queue.address()?)?;
/// let gpu = Gpu::open(0)?;
/// let mut queue = GpuQueue::new(queue, &gpu)?;
/// // A kernel of this library posts the write, and waits for its completion.
/// queue.execute(&WorkRequest::write(peer, &source, target.remote()))?;
///
/// // A kernel of the caller receives the address of the queue in the GPU's memory.
/// let launch = queue.begin_launch();
/// let _argument = launch.device_address();
/// // … launch the kernel, and wait until it has ended …
/// drop(launch);
/// queue.close()?;
/// # let mut arrived = [0; 5];
/// # target.buffer().ok_or("no buffer")?.read(0, &mut arrived)?;
/// # assert_eq!(&arrived, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GpuQueue {
    // `Drop` and `take_from_gpu` drop or leak these three.
    pub(super) device: ManuallyDrop<DeviceState>,
    pub(super) parts: ManuallyDrop<MappedParts>,
    pub(super) mapped: ManuallyDrop<MappedQueue>,
    /// Whether the three were taken out.
    taken: bool,
    pub(super) gpu: Gpu,
    /// Each [`LaunchGuard`] holds one reference.
    launch_count: Arc<()>,
}

/// A doorbell mode that a queue could not use, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedMode {
    /// The doorbell mode.
    pub mode: DoorbellMode,
    /// Why the queue could not use it.
    pub reason: String,
}

impl GpuQueue {
    /// Maps `queue` into `gpu` in the doorbell mode `only`, or in the first that works, and returns why it could not use
    /// the modes before it. If CUDA refuses the completion queue, and the queue uses no completion counters, `proxy` relays
    /// the completions in every mode ([`Self::relayed`]).
    ///
    /// # Errors
    /// That of the last mode that was tried, with the queue, which stays in the last mode that
    /// [`MappedQueue::set_doorbell`] could set. The errors of the other modes are logged.
    pub fn with_doorbell(
        queue: MappedQueue,
        gpu: &Gpu,
        only: Option<DoorbellMode>,
        proxy: &DoorbellProxy,
    ) -> Result<(Self, Vec<RefusedMode>), Refused<MappedQueue>> {
        let mut queue = Box::new(queue);
        let (mut refused, mut last) = (Vec::new(), None);
        for mode in DoorbellMode::candidates(only) {
            let error = match queue.set_doorbell(mode, proxy) {
                Err(error) => error,
                Ok(()) => match Self::map(*queue, gpu, Some(proxy)) {
                    Ok(mapped) => return Ok((mapped, refused)),
                    Err((error, handed_back)) => {
                        queue = handed_back;
                        error
                    }
                },
            };
            let reason = error.to_string();
            tracing::info!(%mode, %reason, "the queue cannot use this doorbell mode");
            refused.push(RefusedMode { mode, reason });
            last = Some(error);
        }
        let error = last.expect("every choice has a candidate");
        Err(Refused::new(cannot_map(error), queue))
    }

    /// Maps `queue` into `gpu`, in the doorbell mode that it has. No completions are relayed.
    ///
    /// # Errors
    /// Those of the GPU, with the queue.
    pub fn new(queue: MappedQueue, gpu: &Gpu) -> Result<Self, Refused<MappedQueue>> {
        Self::map(queue, gpu, None).map_err(|(error, queue)| Refused::new(cannot_map(error), queue))
    }

    fn map(
        queue: MappedQueue,
        gpu: &Gpu,
        proxy: Option<&DoorbellProxy>,
    ) -> Result<Self, (Error, Box<MappedQueue>)> {
        let _relaxed = Relaxed::enter();
        let made = MappedParts::map(&queue, gpu, proxy).and_then(|parts| {
            let device = DeviceState::new(&queue, &parts, gpu)?;
            let relay = parts.relay.as_ref().map(|relayed| &relayed.relay);
            for registration in queue.registration.as_deref().into_iter().chain(relay) {
                let flag = device.abort.clone();
                registration.add_alarm(move |end| flag.end_waits(end));
            }
            Ok((parts, device))
        });
        match made {
            Ok((parts, device)) => Ok(Self {
                device: ManuallyDrop::new(device),
                parts: ManuallyDrop::new(parts),
                mapped: ManuallyDrop::new(queue),
                taken: false,
                gpu: gpu.clone(),
                launch_count: Arc::default(),
            }),
            Err(error) => Err((error, Box::new(queue))),
        }
    }

    /// Returns the GPU that drives the queue.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the doorbell mode.
    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.mapped.doorbell_mode()
    }

    /// Returns the bytes of the widest stores by which kernels may write entries, 8 or 16
    /// ([`MappedQueue::with_store_width`]). A `Sender` obeys it.
    pub fn store_bytes(&self) -> u32 {
        self.device.store_bytes
    }

    /// Compiles and loads the put kernel now, instead of at the first launch.
    ///
    /// # Errors
    /// As [`Gpu::prepare`].
    pub fn prepare(&self) -> Result<()> {
        self.gpu.put_kernel().map(|_| ())
    }

    /// Keeps the queue mapped for a launch of the caller's kernels. The caller must drop the guard only after the
    /// kernels have ended.
    pub fn begin_launch(&self) -> LaunchGuard {
        LaunchGuard { address: self.device_address(), _launch: self.launch_count.clone() }
    }

    fn launches(&self) -> usize {
        Arc::strong_count(&self.launch_count) - 1
    }

    /// Refuses to post while the caller's kernels may post.
    pub(super) fn refuse_in_launch(&self) -> Result<()> {
        match self.launches() {
            0 => Ok(()),
            launches => Err(in_launch(launches)),
        }
    }

    /// Returns the address of the struct in the GPU's memory, for the caller's kernels. It is valid while the queue
    /// lives. The kernels must have ended before this library posts to the queue again, and before the queue is closed,
    /// unmapped or dropped. No call waits for the kernels. While a guard of [`Self::begin_launch`] exists, these calls
    /// are refused, and a drop leaks the queue.
    pub fn device_address(&self) -> *mut efa_gda_queue {
        self.device.queue.address()
    }

    /// Returns how each part was registered.
    pub fn registered(&self) -> Vec<MappedPart> {
        self.parts.registered()
    }

    /// Returns why a doorbell proxy relays the completions to the GPU: CUDA's refusal to register the completion queue.
    /// None if the GPU reads the completion queue, or uses completion counters alone.
    ///
    /// A host thread then copies each completion to memory that the GPU reads. Its latency delays each completion, and
    /// after a pause its sleep period delays the first one.
    pub fn relayed(&self) -> Option<&str> {
        self.parts.relay.as_ref().map(|relayed| relayed.why.as_str())
    }

    /// Registers each part of `queue` alone and unregisters it again. Returns which parts can be mapped, how, and why
    /// the others cannot. Parts in a GPU's memory are not included.
    pub fn try_parts(queue: &MappedQueue, gpu: &Gpu) -> Vec<(&'static str, Result<MappedPart>)> {
        mapped_parts::try_each(queue, gpu)
    }

    /// Returns the queue on the host: its endpoint, its peers, and its state after the last call of this library.
    pub fn mapped(&self) -> &MappedQueue {
        &self.mapped
    }

    /// Returns the flag that ends the waits of this queue's kernels.
    pub fn abort_flag(&self) -> AbortFlag {
        self.device.abort.clone()
    }

    /// Executes a work request on the GPU and waits for all of its completions.
    ///
    /// # Errors
    /// [`Error`]. If a wait timed out, the queue is poisoned and retains the local regions.
    pub fn execute(&mut self, work: &WorkRequest) -> Result<WorkReport> {
        self.refuse_in_launch()?;
        let mut args = work.arguments(&self.mapped)?;
        // The kernel, not the adapter, reads inline bytes.
        let inline_region = work.inline_region();
        require_same_gpu(&self.gpu, "the local memory", inline_region.and_then(Region::device))?;
        let on_host = inline_region.is_some_and(Region::on_host);
        let inline = inline_bytes(&args)
            .filter(|_| on_host)
            .map(|range| {
                // SAFETY: the bytes are in a region that `work` owns, as `arguments` checked.
                unsafe { self.gpu.reach(range) }
            })
            .transpose()?;
        if let Some(inline) = &inline {
            args.local_address = inline.device_address();
        }
        self.run_put(&args, |mapped, ended| {
            mapped.retain_region_in_use(work);
            if !ended {
                leak::leak((inline, work.clone()));
            }
        })
    }

    /// As [`MappedQueue::quiet`], with a kernel that waits. No other kernel may use the queue meanwhile.
    ///
    /// # Errors
    /// Those of [`MappedQueue::quiet`] and of the GPU, and [`ErrorKind::Busy`] during a launch of the caller's.
    pub fn quiet(&mut self, timeout: Duration) -> Result<WorkReport> {
        self.refuse_in_launch()?;
        self.run_put(&no_requests(timeout), |_, _| ())
    }

    /// Runs the put kernel. Then copies the queue's state to the host, and calls `settle` with whether the kernel has
    /// ended.
    fn run_put(
        &mut self,
        args: &efa_gda_put_args,
        settle: impl FnOnce(&mut MappedQueue, bool),
    ) -> Result<WorkReport> {
        let ran = self.device.run(&self.gpu, args);
        let state = self.load_state();
        // Each of the two calls waits for all work that was launched on the stream before, if it succeeds.
        let ended = ran.is_ok() || state.is_ok() || self.kernels_ended();
        settle(&mut self.mapped, ended);
        state?;
        let requested = requested(args.op, args.bytes, args.count, self.mapped.limits().rdma);
        report(ran?.into(), self.mapped.in_flight(), requested)
    }

    /// Returns whether all kernels of this library have ended, after an error that leaves that open.
    pub(super) fn kernels_ended(&self) -> bool {
        let ended = self.device.kernels_end();
        if let Err(error) = &ended {
            tracing::warn!(%error, "a kernel may still run; the memory that it uses stays allocated");
        }
        ended.is_ok()
    }

    /// Retains a region until the endpoint is destroyed, for kernels that post their own entries with the returned key.
    ///
    /// # Errors
    /// Those of [`MappedQueue::retain`].
    pub fn retain(&mut self, region: impl Into<Region>) -> Result<LocalKey> {
        self.mapped.retain(region)
    }

    /// Copies the queue's state from the GPU. Callers do so also after an error, because the host must know what is in
    /// flight before it releases memory. If the copy fails, the queue is poisoned.
    pub(super) fn load_state(&mut self) -> Result<()> {
        match self.device.queue.load(&self.device.stream) {
            Ok(state) => {
                self.mapped.copy_engine_state(&state);
                Ok(())
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the queue's state is lost with its context; its regions stay registered"
                );
                self.mapped.poison_lost();
                Err(error)
            }
        }
    }

    /// Unmaps and closes the queue, if no request is in flight and the doorbell was rung for every entry.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], with the queue, as from [`MappedQueue::close`] and [`Self::unmap`]. Other errors if the endpoint
    /// could not be closed.
    pub fn close(self) -> Result<(), Refused<Self>> {
        let state = match self.state_of_ended_kernels() {
            Ok(state) => state,
            // Nothing can ring for entries, and `take_from_gpu` poisons the queue.
            Err(error) if error.kind() == ErrorKind::GpuLost => self.mapped.state(),
            Err(error) => return Err(Refused::new(may_run(&error), self)),
        };
        let poisoned = self.mapped.poison().is_some() || state.error.poison != EFA_GDA_OK;
        match self.refuse_in_launch().and_then(|()| refuse_unfinished(&state, poisoned)) {
            Ok(()) => self.take_from_gpu()?.destroy().map_err(Refused::gone),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// The queue's state. One failed copy can end all later snapshots (`SideCopy`). The stream of this library's kernels
    /// can then still copy the state, after the kernels have ended.
    fn state_of_ended_kernels(&self) -> Result<efa_gda_queue> {
        self.state().or_else(|_| {
            self.device.kernels_end()?;
            self.device.queue.load(&self.device.stream)
        })
    }

    /// Ends the waits of kernels, and destroys the endpoint even if requests are in flight.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], with the queue, during a launch of the caller's, or if kernels of this library may still use
    /// it. Its waits then stay aborted, so that the caller's kernels end; once their guards are dropped, the queue can be
    /// destroyed. Other errors as from [`MappedQueue::destroy`].
    pub fn destroy(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.refuse_in_launch() {
            self.device.end_waits();
            return Err(Refused::new(error, self));
        }
        self.take_from_gpu()?.destroy().map_err(Refused::gone)
    }

    /// Takes the queue from the GPU and unregisters its pages. It is detached from its doorbell proxy, and its mode is
    /// then [`DoorbellMode::Direct`], unless it is out of service.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], with the queue: while a [`LaunchGuard`] exists; if kernels of this library may still use it
    /// (its waits may stay aborted then); if a staging ring, which would be freed, holds entries that await a doorbell, or
    /// that cannot be determined, unless the GPU's context is lost.
    pub fn unmap(self) -> Result<MappedQueue, Refused<Self>> {
        match self.refuse_in_launch().and_then(|()| self.refuse_unrung()) {
            Ok(()) => self.take_from_gpu(),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// Refuses to free a staging ring with entries that await a doorbell that can still be rung.
    fn refuse_unrung(&self) -> Result<()> {
        if self.doorbell_mode() != DoorbellMode::Staged {
            return Ok(());
        }
        let state = match self.state_of_ended_kernels() {
            Ok(state) => state,
            // Nothing can ring for the entries, and `take_from_gpu` poisons the queue.
            Err(error) if error.kind() == ErrorKind::GpuLost => return Ok(()),
            Err(error) => return Err(may_run(&error)),
        };
        let poisoned = self.mapped.poison().is_some() || state.error.poison != EFA_GDA_OK;
        match unrung_entries(&state) {
            entries @ 1.. if !poisoned && !is_in_use(&state) => Err(Error::busy(format!(
                "the queue was not unmapped, because it has entries that were posted and never rung for ({entries})"
            ))
            .with_hint("quiet (in C: efa_gda_queue_wait) rings for them and waits; destroying the queue drops them")),
            _ => Ok(()),
        }
    }

    fn take_from_gpu(mut self) -> Result<MappedQueue, Refused<Self>> {
        // Read before `stop`: `stop` detaches the queue, and from then on `poison` returns the end of the registration.
        let mut in_order = self.mapped.poison().is_none();
        if let Err(error) = self.device.stop() {
            return Err(Refused::new(may_run(&error), self));
        }
        in_order &= self.load_state().is_ok() && self.mapped.state().error.poison == EFA_GDA_OK;
        if let (Some(inbox), Some(host)) = (&self.device.inbox, &self.mapped.inbox)
            && let Err(error) = inbox.entries.copy_to_host(&self.device.stream, host)
        {
            tracing::warn!(%error, "completions of receives in the GPU's inbox are lost");
            self.mapped.lose_inbox();
        }
        if let (Some(requests), Some(host)) = (&self.device.requests, &self.mapped.request_table)
            && let Err(error) = requests.copy_to_host(&self.device.stream, host)
        {
            tracing::warn!(%error, "the request table in the GPU's memory is lost: waits for own requests are refused");
            self.mapped.lose_request_table();
        }
        let (device, parts, mut mapped) = self.take();
        drop(device);
        drop(parts);
        if !in_order || mapped.ring_directly().is_err() {
            mapped.end_waits_of_proxy();
        }
        Ok(mapped)
    }

    /// Takes the three owned values out, in the order in which they must be dropped: the struct, then the pages to
    /// which it points, then their owner. The caller must not use the queue after that.
    fn take(&mut self) -> (DeviceState, MappedParts, MappedQueue) {
        self.taken = true;
        // SAFETY: called once: by `take_from_gpu`, which then drops the queue, whose `Drop` sees `taken`; or by `Drop`
        // itself.
        unsafe {
            (
                ManuallyDrop::take(&mut self.device),
                ManuallyDrop::take(&mut self.parts),
                ManuallyDrop::take(&mut self.mapped),
            )
        }
    }
}

/// The queue could not be mapped.
fn cannot_map(error: Error) -> Error {
    error.within("the queue cannot be mapped into the GPU")
}

/// The caller's kernels use the queue. Nothing was posted, taken or closed.
fn in_launch(launches: usize) -> Error {
    Error::busy(format!("{launches} launch(es) use the queue, so nothing was done"))
        .with_hint("when their kernels have ended, drop their launch guards (in C: efa_gda_queue_end_launch)")
}

/// A kernel that this library launched may still run and post: it did not end within the bound, or the driver did not
/// report that it ended. Or the driver did not copy the queue's state, so entries may await a doorbell.
fn may_run(error: &Error) -> Error {
    Error::busy(format!(
        "a kernel of this library may still use the queue, or entries may await a doorbell; the queue stays mapped: close \
         it again later, or destroy it: {error}"
    ))
}

impl Drop for GpuQueue {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let stopped = self.device.stop();
        let (launches, parts) = (self.launches(), self.take());
        match stopped {
            // The fields of a tuple are dropped in order.
            Ok(()) if launches == 0 => return drop(parts),
            Ok(()) => {
                tracing::warn!(launches, "a queue was dropped while launches use it; it stays allocated")
            }
            Err(error) => {
                tracing::warn!(%error, "a kernel may still use a queue that was dropped; it stays allocated");
            }
        }
        leak::leak(parts);
    }
}
