//! A queue that kernels on a GPU post to.
//!
//! The rings and doorbells stay where the adapter exposes them; their pages are registered with
//! CUDA, and the struct that kernels receive lies in the GPU's memory with the GPU's addresses in it.
//! Completions of receives wait in an inbox in that memory, with what waited in the host's before.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use efa_gda_sys::device::{EFA_GDA_OK, efa_gda_put_args, efa_gda_queue};
use efa_gda_wire::LocalKey;

use super::backing::{Backing, Region};
use super::counters::Counters;
use super::gpu_memory::on_same;
use super::mapped::{held, swap_word, unrung};
use super::on_device::{OnDevice, STOP_LIMIT};
use super::parts::{self, Ranges, Registered};
use super::snapshot::{Bytes, Counts, RingBytes};
use super::work_error::report;
use super::work_request::{asked, inline_bytes};
use super::{CloseError, MappedQueue, Refused, WorkError, WorkReport, WorkRequest};
use crate::doorbell::{Alarm, DoorbellChoice, DoorbellMode, DoorbellProxy};
use crate::fabric::{self, MemoryRegion};
use crate::gpu::memory::SharedWord;
use crate::gpu::{self, Gpu};
use crate::leak;

/// A [`MappedQueue`] that one GPU drives. Dropped, it ends the waits of its kernels and waits for them,
/// then unregisters its pages, and only then closes the endpoint. Where kernels may use it after that
/// (they do not end within a minute, the driver does not say that they did, or it is lent), all of it
/// stays as it is for the life of the process.
#[derive(Debug)]
pub struct GpuQueue {
    // Let go, or kept, by `Drop` or by `take_from_gpu`.
    pub(super) device: ManuallyDrop<OnDevice>,
    pub(super) ranges: ManuallyDrop<Ranges>,
    pub(super) mapped: ManuallyDrop<MappedQueue>,
    /// Whether the three were taken.
    taken: bool,
    pub(super) gpu: Gpu,
    /// As many more holders as there are values of [`LaunchGuard`].
    lent: Arc<()>,
}

/// A queue lent to a launch of the caller's own kernels. While it lives, the queue is neither unmapped
/// nor closed, nor does it put: a [`GpuQueue`] that is dropped meanwhile keeps everything.
#[derive(Debug)]
#[must_use = "the queue may be unmapped once this is dropped"]
pub struct LaunchGuard {
    address: *mut efa_gda_queue,
    _lent: Arc<()>,
}

// SAFETY: the address is the GPU's, and never followed here.
unsafe impl Send for LaunchGuard {}
// SAFETY: as above.
unsafe impl Sync for LaunchGuard {}

impl LaunchGuard {
    /// The struct in the GPU's memory, for kernels.
    pub fn device_address(&self) -> *mut efa_gda_queue {
        self.address
    }
}

/// Stops every wait of a queue's kernels, from any thread.
#[derive(Clone, Debug)]
pub struct GpuAbortFlag(Arc<SharedWord>);

impl GpuAbortFlag {
    /// Ends waits with [`crate::executor::DeviceError::Aborted`], now and until [`Self::lower`], which
    /// poisons the queue: what it waited for may still come.
    pub fn raise(&self) {
        swap_word(self.0.get(), 0, 1);
    }

    /// Lets waits run again; not those of a queue that nobody rings for.
    pub fn lower(&self) {
        swap_word(self.0.get(), 1, 0);
    }
}

impl Alarm for GpuAbortFlag {
    fn raise(&self, status: u32) {
        self.0.get().store(status, Ordering::Release);
    }
}

/// A queue that could not be mapped, with what it was made of.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct MapError {
    /// Why.
    #[source]
    pub error: gpu::Error,
    /// The queue, which the host can still drive.
    pub queue: Box<MappedQueue>,
}

impl GpuQueue {
    /// Maps `queue` into `gpu` on the best rung that `choice` allows and the machine has, and says
    /// what kept it from better ones.
    ///
    /// # Errors
    /// [`MapError`], with the queue, of the last rung that was tried; the others' are logged.
    pub fn with_doorbell(
        queue: MappedQueue,
        gpu: &Gpu,
        choice: DoorbellChoice,
        proxy: &DoorbellProxy,
    ) -> Result<(Self, Vec<Refused>), MapError> {
        let mut queue = Box::new(queue);
        let (mut refused, mut last) = (Vec::new(), None);
        for rung in choice.candidates() {
            let error = match queue.set_doorbell(rung, proxy) {
                Err(error) => gpu::Error::Doorbell(Box::new(error)),
                Ok(()) => match Self::new(*queue, gpu) {
                    Ok(mapped) => return Ok((mapped, refused)),
                    Err(MapError { error, queue: back }) => {
                        queue = back;
                        error
                    }
                },
            };
            tracing::info!(%rung, %error, "the queue cannot be rung so");
            refused.push(Refused { rung, why: error.to_string() });
            last = Some(error);
        }
        let error = last.expect("every choice has a candidate");
        Err(MapError { error, queue })
    }

    /// Who writes entries, and who rings.
    pub fn rung(&self) -> DoorbellMode {
        self.mapped.rung()
    }

    /// Maps `queue` into `gpu`, on the rung that it is on.
    ///
    /// # Errors
    /// [`MapError`], with the queue.
    pub fn new(queue: MappedQueue, gpu: &Gpu) -> Result<Self, MapError> {
        let made = Ranges::reach(&queue, gpu).and_then(|ranges| {
            let device = OnDevice::new(&queue, &ranges, gpu)?;
            if let Some(served) = &queue.served {
                served.add_alarm(Arc::new(GpuAbortFlag(device.abort.clone())));
            }
            Ok((ranges, device))
        });
        match made {
            Ok((ranges, device)) => Ok(Self {
                device: ManuallyDrop::new(device),
                ranges: ManuallyDrop::new(ranges),
                mapped: ManuallyDrop::new(queue),
                taken: false,
                gpu: gpu.clone(),
                lent: Arc::default(),
            }),
            Err(error) => Err(MapError { error, queue: Box::new(queue) }),
        }
    }

    /// Lends the queue to a launch of the caller's own kernels. Drop what is returned when they ended.
    pub fn begin_launch(&self) -> LaunchGuard {
        LaunchGuard { address: self.device_address(), _lent: self.lent.clone() }
    }

    fn launches(&self) -> usize {
        Arc::strong_count(&self.lent) - 1
    }

    /// Refuses to post beside those whom the queue is lent to.
    pub(super) fn refuse_in_launch(&self) -> Result<(), WorkError> {
        match self.launches() {
            0 => Ok(()),
            launches => Err(WorkError::LaunchGuard { launches }),
        }
    }

    /// The struct in the GPU's memory, for kernels of the caller's own, which must have ended before this
    /// library posts to the queue again, and before it is closed or unmapped. Valid while the queue lives;
    /// [`Self::lend`] sees to all that.
    pub fn device_address(&self) -> *mut efa_gda_queue {
        self.device.queue.address()
    }

    /// How each part was registered.
    pub fn registered(&self) -> Vec<Registered> {
        self.ranges.registered()
    }

    /// Registers each part of `queue` alone and lets go of it again: what maps, how, and why the rest does
    /// not. A part in the GPU's own memory is not among them.
    pub fn try_parts(queue: &MappedQueue, gpu: &Gpu) -> Vec<(&'static str, gpu::Result<Registered>)> {
        parts::try_each(queue, gpu)
    }

    /// The queue as the host knows it: its endpoint, its peers, its state after the last put.
    pub fn mapped(&self) -> &MappedQueue {
        &self.mapped
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Stops the waits of this queue's kernels.
    pub fn abort_flag(&self) -> GpuAbortFlag {
        GpuAbortFlag(self.device.abort.clone())
    }

    /// The struct as the GPU has it, copied beside its kernels.
    pub(crate) fn state(&self) -> gpu::Result<efa_gda_queue> {
        let place = self.device.queue.address() as u64;
        // SAFETY: the struct lies in this GPU's memory; it is plain C, valid for any bytes.
        unsafe {
            let bytes = self.device.watch.look(place, size_of::<efa_gda_queue>())?;
            Ok(bytes.as_ptr().cast::<efa_gda_queue>().read_unaligned())
        }
    }

    /// [`Self::state`], and the completions and counters where they lie in the GPU's memory.
    pub(super) fn watch(&self) -> gpu::Result<(efa_gda_queue, Option<Bytes>, Option<Counts>)> {
        let (device, cq) = (&self.device, &self.mapped.exposure().cq);
        let state = self.state()?;
        let bytes = cq.num_entries as usize * cq.entry_size as usize;
        let completions = self.mapped.backing.completions_on().map(|_| {
            // SAFETY: completions lie in this GPU's memory (`on_same`), which their queue keeps.
            let copy = unsafe { device.watch.look(cq.buffer.as_ptr() as u64, bytes) };
            copy.map(RingBytes::Copied).map_err(|error| error.to_string())
        });
        let counters = self.mapped.counters.as_ref().filter(|counters| counters.words.device.is_some());
        let counters = counters.map(|Counters { words, .. }| {
            let look = |word| -> Result<u64, String> {
                // SAFETY: the words lie in this GPU's memory (`on_same`), which their counter keeps.
                let copy = unsafe { device.watch.look(word, size_of::<u64>()) }
                    .map_err(|error| error.to_string())?;
                Ok(u64::from_ne_bytes(copy.try_into().expect("as many bytes as were asked for")))
            };
            Ok([look(words.success)?, look(words.error)?])
        });
        Ok((state, completions, counters))
    }

    /// Posts a put from the GPU and waits for all of its completions.
    ///
    /// # Errors
    /// [`WorkError`]. Where a wait ran out, the queue is poisoned and keeps the local regions.
    pub fn execute(&mut self, put: &WorkRequest) -> Result<WorkReport, WorkError> {
        self.refuse_in_launch()?;
        let mut args = put.arguments(&self.mapped)?;
        // Inline bytes are read by the kernel itself, not by the adapter.
        on_same(&self.gpu, "the local memory", put.inline_region().and_then(MemoryRegion::device))?;
        let on_host = put.inline_region().is_some_and(Region::on_host);
        let inline = inline_bytes(&args)
            .filter(|_| on_host)
            .map(|range| {
                // SAFETY: the bytes lie in a region that `put` owns, as `arguments` checked.
                unsafe { self.gpu.reach(range) }
            })
            .transpose()?;
        if let Some(inline) = &inline {
            args.local_address = inline.device_address();
        }
        self.launch_put(&args, |mapped, ended| {
            mapped.settle_put(put);
            if !ended {
                leak::leak((inline, put.clone()));
            }
        })
    }

    /// Runs the put kernel; `settle` follows when the host knows what is in flight, and whether the kernel
    /// ended.
    pub(super) fn launch_put(
        &mut self,
        args: &efa_gda_put_args,
        settle: impl FnOnce(&mut MappedQueue, bool),
    ) -> Result<WorkReport, WorkError> {
        let ran = self.device.run(&self.gpu, args);
        let state = self.look();
        // Both answer after all that was launched on the stream.
        let ended = ran.is_ok() || state.is_ok() || self.ends();
        settle(&mut self.mapped, ended);
        state?;
        let asked = asked(args.op, args.bytes, args.count, self.mapped.limits().rdma);
        report(ran?.into(), self.mapped.in_flight(), asked)
    }

    /// Whether no kernel of this library's runs on the GPU, after an error that does not say.
    pub(super) fn ends(&self) -> bool {
        let ended = gpu::kernels_end(self.device.stream.context(), STOP_LIMIT);
        if let Err(error) = &ended {
            tracing::warn!(%error, "a kernel may still run; what it uses stays allocated");
        }
        ended.is_ok()
    }

    /// Keeps a region until the endpoint is closed, for a kernel that posts entries of its own with
    /// the key returned.
    ///
    /// # Errors
    /// Those of [`fabric::GdaOps::get_mr_lkey`].
    pub fn keep(&mut self, region: &MemoryRegion) -> fabric::Result<LocalKey> {
        self.mapped.keep(region)
    }

    /// Takes the queue's state from the GPU, whatever happened there: the host must know what is in flight
    /// before it lets go of memory.
    pub(super) fn look(&mut self) -> gpu::Result<()> {
        match self.device.queue.load(&self.device.stream) {
            Ok(state) => {
                self.mapped.adopt(&state);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the queue's state is lost with its context; its memory stays owned");
                self.mapped.poison_lost();
                Err(error)
            }
        }
    }

    /// Closes the queue in order: nothing may be in flight, or posted and not rung for.
    ///
    /// # Errors
    /// [`CloseError`]. The queue is then no longer mapped into the GPU, unless a [`GpuQueue`] is handed back.
    pub fn close(self) -> Result<(), CloseError> {
        // Before it is unmapped: the entries may lie in a staging ring, which goes then.
        self.ring_for_rest()?.unmap()?.close()
    }

    /// The queue, where nothing was posted and not rung for, or nobody will.
    fn ring_for_rest(self) -> Result<Self, CloseError> {
        if let Ok(state) = self.state()
            && self.launches() == 0
            && self.mapped.poison().is_none()
            && state.error.poison == EFA_GDA_OK
            && !held(&state)
            && let entries @ 1.. = unrung(&state)
        {
            return Err(CloseError::UnrungOnGpu { queue: Box::new(self), entries });
        }
        Ok(self)
    }

    /// Stops the waits of kernels that the queue is lent to, waits for those, and destroys the endpoint
    /// whatever is in flight.
    ///
    /// # Errors
    /// [`CloseError::LaunchGuard`] and [`CloseError::Running`], with the queue, whose waits are stopped then;
    /// [`CloseError::Destroy`] as [`MappedQueue::destroy`].
    pub fn destroy(self) -> Result<(), CloseError> {
        let launches = self.launches();
        if launches != 0 {
            return Err(match self.device.stop() {
                Ok(()) => CloseError::LaunchGuard { queue: Box::new(self), launches },
                Err(error) => CloseError::Running { queue: Box::new(self), error },
            });
        }
        self.take_from_gpu()?.destroy().map_err(CloseError::Destroy)
    }

    /// Takes the queue from the GPU and unregisters its pages. A proxy lets go of it; [`DoorbellMode::Direct`]
    /// is its rung then, unless it is out of service.
    ///
    /// # Errors
    /// With the queue: [`CloseError::LaunchGuard`] while it is lent to a launch, [`CloseError::Running`] where
    /// kernels may still use it, whose waits are stopped then, [`CloseError::UnrungOnGpu`] where entries that
    /// nobody rang for lie in a staging ring, which goes.
    pub fn unmap(self) -> Result<MappedQueue, CloseError> {
        match self.launches() {
            0 if self.rung() == DoorbellMode::Staged => self.ring_for_rest()?.take_from_gpu(),
            0 => self.take_from_gpu(),
            launches => Err(CloseError::LaunchGuard { queue: Box::new(self), launches }),
        }
    }

    fn take_from_gpu(mut self) -> Result<MappedQueue, CloseError> {
        // Asked before the proxy lets go, which counts as an end.
        let mut in_order = self.mapped.poison().is_none();
        let raised = self.mapped.raised();
        if let Err(error) = self.device.stop() {
            return Err(CloseError::Running { queue: Box::new(self), error });
        }
        in_order &= self.look().is_ok() && self.mapped.state().error.poison == EFA_GDA_OK;
        if let (Some(inbox), Some(host)) = (&self.device.inbox, &self.mapped.inbox)
            && let Err(error) = inbox.give_back(&self.device.stream, host)
        {
            tracing::warn!(%error, "completions of receives that nobody took are lost");
            self.mapped.lose_inbox();
        }
        let (device, ranges, mut mapped) = self.take();
        drop(device);
        drop(ranges);
        if in_order {
            mapped.ring_directly();
            mapped.lower_alarm(raised);
        }
        Ok(mapped)
    }

    /// The parts, in the order in which they must go. The queue is for nothing but its drop then.
    fn take(&mut self) -> (OnDevice, Ranges, MappedQueue) {
        self.taken = true;
        // SAFETY: taken once: callers are `take_from_gpu`, which drops the queue right after, and `Drop`,
        // which takes nothing after that.
        unsafe {
            (
                ManuallyDrop::take(&mut self.device),
                ManuallyDrop::take(&mut self.ranges),
                ManuallyDrop::take(&mut self.mapped),
            )
        }
    }
}

impl Drop for GpuQueue {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let stopped = self.device.stop();
        let (launches, parts) = (self.launches(), self.take());
        match stopped {
            // A tuple's fields go in their order.
            Ok(()) if launches == 0 => return drop(parts),
            Ok(()) => tracing::warn!(launches, "a queue was dropped that is lent; it stays allocated"),
            Err(error) => tracing::warn!(%error, "kernels may still use a queue; it stays allocated"),
        }
        leak::leak(parts);
    }
}
