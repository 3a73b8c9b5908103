//! A queue and the processor that drives it: the host's or, with the feature `cuda`, a GPU.

use std::fmt::Debug;
use std::time::Duration;

#[cfg(feature = "cuda")]
use efa_gda::doorbell::DoorbellProxy;
use efa_gda::doorbell::{DoorbellChoice, DoorbellMode};
use efa_gda::fabric::{CompletionCounter, GdaOps};
#[cfg(feature = "cuda")]
use efa_gda::gpu::Gpu;
#[cfg(feature = "cuda")]
use efa_gda::gpu_queue::{GpuCloseError, GpuQueue};
use efa_gda::queue::{CloseError, MappedQueue, PostedReceives, Received, Receives, Snapshot, WorkRequest};
use efa_gda::wire::Peer;
use efa_gda_sys::device::efa_gda_queue;

use crate::error::{Code, Fault};
use crate::layer::{Layer, of_layer};
use crate::queue::MappedInfo;
use crate::receive::ReceivesOf;
use crate::region::Region;
use crate::work::WorkOf;

/// The value of `gpu` for an object that the host's processor uses.
pub(crate) const HOST: i32 = -1;

/// The processor that will drive a queue.
pub(crate) enum Processor {
    Host,
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

/// Ends the waits of a queue (true), or lets waits run again. It is called while another thread holds the queue's lock.
pub(crate) type Abort = Box<dyn Fn(bool) + Send + Sync>;

/// A launch that uses a queue: the guard that keeps a GPU's queue mapped. The host's memory needs none.
pub(crate) type Launch = Option<Box<dyn Send>>;

/// A queue that was not closed: the fault, and the queue unless it is destroyed.
pub(crate) type NotClosed = (Fault, Option<Box<dyn Driven>>);

/// A mapped queue of either layer, driven by either processor.
pub(crate) trait Driven: Debug + Send {
    /// The queue's geometry and limits, with `size` 0.
    fn describe(&self) -> MappedInfo;
    fn address(&self) -> Result<Vec<u8>, Fault>;
    fn insert_peer(&mut self, address: &[u8]) -> Result<Peer, Fault>;
    fn abort(&self) -> Abort;
    /// The struct's address for the processor that drives the queue.
    fn device_address(&self) -> *mut efa_gda_queue;
    fn begin_launch(&self) -> Launch;
    fn retain(&mut self, region: &Region) -> Result<(), Fault>;
    fn execute(&mut self, work: &WorkOf<'_>) -> Result<(), Fault>;
    fn quiet(&mut self, timeout: Duration) -> Result<(), Fault>;
    fn post_receives(&mut self, receives: &ReceivesOf<'_>) -> Result<PostedReceives, Fault>;
    fn receive(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>, Fault>;
    fn state(&self) -> Result<efa_gda_queue, Fault>;
    fn snapshot(&self) -> Result<Snapshot, Fault>;
    fn close(self: Box<Self>) -> Result<(), NotClosed>;
    fn destroy(self: Box<Self>) -> Result<(), NotClosed>;
}

impl Processor {
    /// Opens the GPU that CUDA counts as `gpu`, or returns the host's processor for -1.
    pub(crate) fn open(gpu: i32) -> Result<Self, Fault> {
        if gpu == HOST {
            return Ok(Self::Host);
        }
        let ordinal = usize::try_from(gpu).map_err(|_| {
            Fault::argument(format_args!("gpu = {gpu}: expected 0 or more, or -1 for the host's processor"))
        })?;
        Self::open_gpu(ordinal)
    }

    /// Refuses doorbell modes with a proxy for the host's processor.
    pub(crate) fn refuse_mode(&self, choice: DoorbellChoice) -> Result<(), Fault> {
        match (self, choice) {
            (Self::Host, choice)
                if choice != DoorbellChoice::Auto && choice != DoorbellMode::Direct.into() =>
            {
                Err(Fault::argument(
                    "gpu = -1: the host's processor rings by itself; doorbell must be EFA_GDA_DOORBELL_AUTO or \
                     EFA_GDA_DOORBELL_DIRECT",
                ))
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "cuda")]
    fn open_gpu(ordinal: usize) -> Result<Self, Fault> {
        let opened = Gpu::open(ordinal).map_err(Fault::from);
        Ok(Self::Gpu(opened.map_err(|fault| fault.with_hint("gpu = -1 is for the host's processor"))?))
    }

    #[cfg(not(feature = "cuda"))]
    fn open_gpu(ordinal: usize) -> Result<Self, Fault> {
        Err(Fault::new(
            Code::Unsupported,
            format_args!(
                "gpu = {ordinal}: this libefa_gda was built without CUDA; build the crate efa-gda-capi with its \
                 feature cuda, or pass -1 for the host's processor"
            ),
        ))
    }

    /// Opens a counter of libfabric in the processor's memory.
    pub(crate) fn counter(&self, ops: &GdaOps) -> Result<CompletionCounter, Fault> {
        match self {
            Self::Host => Ok(ops.cntr_open_host()?),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => Ok(gpu.completion_counter(ops)?.0),
        }
    }

    /// Maps the queue for the processor.
    #[cfg_attr(
        not(feature = "cuda"),
        allow(unused_variables, reason = "the host's processor rings by itself")
    )]
    pub(crate) fn drive<B: Layer>(
        self,
        queue: MappedQueue<B>,
        choice: DoorbellChoice,
    ) -> Result<Box<dyn Driven>, Fault> {
        match self {
            Self::Host => Ok(Box::new(queue)),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => {
                // A queue for which the proxy rings or relays completions keeps it alive. Otherwise it ends here.
                let proxy = DoorbellProxy::start().map_err(|error| Fault::error(Code::Internal, error))?;
                let (queue, _) = GpuQueue::with_doorbell(queue, &gpu, choice, &proxy)?;
                Ok(Box::new(queue))
            }
        }
    }
}

/// Returns the work request for a queue of this layer.
fn request<B: Layer>(work: &WorkOf<'_>) -> Result<WorkRequest<B::Region>, Fault> {
    Ok(work.request(of_layer::<B::Region>(work.local)?))
}

/// Returns the receives for a queue of this layer.
fn receives<B: Layer>(receives: &ReceivesOf<'_>) -> Result<Receives<B::Region>, Fault> {
    Ok(receives.receives(of_layer::<B::Region>(receives.region)?))
}

/// Returns the geometry and limits of a queue.
fn describe<B: Layer>(queue: &MappedQueue<B>, store_bytes: u32) -> MappedInfo {
    let (exposure, limits) = (queue.exposure(), queue.limits());
    MappedInfo {
        size: 0,
        entry_size: exposure.sq.entry_size.bytes() as u32,
        num_entries: exposure.sq.num_entries,
        max_batch: exposure.sq.max_batch,
        completion_size: exposure.cq.entry_size,
        completions: exposure.cq.num_entries,
        receives: limits.receives,
        qpn: queue.number().get().into(),
        doorbell: crate::queue::doorbell_number(queue.doorbell_mode()),
        completions_in_gpu: B::completions_in_gpu(queue).into(),
        max_inline: limits.inline_send as u32,
        max_rdma_size: limits.rdma,
        max_msg_size: limits.message,
        store_bytes,
        flags: crate::queue::flags_of(&queue.state()),
    }
}

/// The calls that both queues have under the same names, with errors of their own.
macro_rules! same_calls {
    ($queue:ident) => {
        fn retain(&mut self, region: &Region) -> Result<(), Fault> {
            $queue::retain(self, of_layer(region)?)?;
            Ok(())
        }

        fn execute(&mut self, work: &WorkOf<'_>) -> Result<(), Fault> {
            $queue::execute(self, &request::<B>(work)?)?;
            Ok(())
        }

        fn quiet(&mut self, timeout: Duration) -> Result<(), Fault> {
            $queue::quiet(self, timeout)?;
            Ok(())
        }

        fn post_receives(&mut self, posted: &ReceivesOf<'_>) -> Result<PostedReceives, Fault> {
            Ok($queue::post_receives(self, &receives::<B>(posted)?)?)
        }

        fn receive(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>, Fault> {
            Ok(self.receive_many(most, timeout)?)
        }
    };
}

impl<B: Layer> Driven for MappedQueue<B> {
    fn describe(&self) -> MappedInfo {
        // The host's processor stores 8 bytes at a time.
        describe(self, 8)
    }

    fn address(&self) -> Result<Vec<u8>, Fault> {
        B::address(self)
    }

    fn insert_peer(&mut self, address: &[u8]) -> Result<Peer, Fault> {
        B::insert_peer(self, address)
    }

    fn abort(&self) -> Abort {
        let flag = self.abort_flag();
        Box::new(move |raise| if raise { flag.raise() } else { flag.lower() })
    }

    fn device_address(&self) -> *mut efa_gda_queue {
        self.as_ptr().as_ptr()
    }

    fn begin_launch(&self) -> Launch {
        None
    }

    same_calls!(MappedQueue);

    fn state(&self) -> Result<efa_gda_queue, Fault> {
        Ok(MappedQueue::state(self))
    }

    fn snapshot(&self) -> Result<Snapshot, Fault> {
        Ok(MappedQueue::snapshot(self))
    }

    fn close(self: Box<Self>) -> Result<(), NotClosed> {
        MappedQueue::close(*self).map_err(not_closed)
    }

    fn destroy(self: Box<Self>) -> Result<(), NotClosed> {
        MappedQueue::destroy(*self).map_err(|error| (error.into(), None))
    }
}

#[cfg(feature = "cuda")]
impl<B: Layer> Driven for GpuQueue<B> {
    fn describe(&self) -> MappedInfo {
        let info = describe(self.mapped(), self.store_bytes());
        let relayed = if self.relayed().is_some() { crate::queue::RELAYED } else { 0 };
        MappedInfo { flags: info.flags | relayed, ..info }
    }

    fn address(&self) -> Result<Vec<u8>, Fault> {
        B::address(self.mapped())
    }

    fn insert_peer(&mut self, address: &[u8]) -> Result<Peer, Fault> {
        B::insert_peer_of_gpu(self, address)
    }

    fn abort(&self) -> Abort {
        let flag = self.abort_flag();
        Box::new(move |raise| if raise { flag.raise() } else { flag.lower() })
    }

    fn device_address(&self) -> *mut efa_gda_queue {
        GpuQueue::device_address(self)
    }

    fn begin_launch(&self) -> Launch {
        Some(Box::new(GpuQueue::begin_launch(self)))
    }

    same_calls!(GpuQueue);

    fn state(&self) -> Result<efa_gda_queue, Fault> {
        Ok(GpuQueue::state(self)?)
    }

    fn snapshot(&self) -> Result<Snapshot, Fault> {
        Ok(GpuQueue::snapshot(self)?)
    }

    fn close(self: Box<Self>) -> Result<(), NotClosed> {
        let seen = match GpuQueue::snapshot(&self) {
            Ok(seen) => seen,
            Err(error) => return Err((error.into(), Some(self))),
        };
        let poisoned = self.mapped().poison().is_some() || seen.poison().is_some();
        // A queue that cannot be closed is refused here, while it is still mapped: a call that fails changes nothing.
        if seen.in_flight() != 0 {
            return Err((Fault::in_flight(seen.in_flight(), poisoned), Some(self)));
        }
        if seen.is_locked() && !poisoned {
            return Err((Fault::abandoned(), Some(self)));
        }
        GpuQueue::close(*self).map_err(gpu_not_closed)
    }

    fn destroy(self: Box<Self>) -> Result<(), NotClosed> {
        GpuQueue::destroy(*self).map_err(gpu_not_closed)
    }
}

/// Restates the error with the names of C functions, and takes the queue out of it.
fn not_closed<B: Layer>(error: CloseError<B>) -> NotClosed {
    match error {
        CloseError::Busy { queue, in_flight } => {
            (Fault::in_flight(in_flight, queue.poison().is_some()), Some(queue))
        }
        CloseError::Abandoned { queue } => (Fault::abandoned(), Some(queue)),
        CloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(queue)),
        CloseError::Destroy(error) => (error.into(), None),
        error => (Fault::error(Code::Internal, error), None),
    }
}

/// As [`not_closed`], for a queue that a GPU drives.
#[cfg(feature = "cuda")]
fn gpu_not_closed<B: Layer>(error: GpuCloseError<B>) -> NotClosed {
    let text = efa_gda::error_chain(&error).to_string();
    match error {
        GpuCloseError::Unmapped(error) => not_closed(error),
        GpuCloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(queue)),
        GpuCloseError::InLaunch { queue, .. } | GpuCloseError::Running { queue, .. } => {
            (Fault::new(Code::Busy, text), Some(queue))
        }
        error => (Fault::error(Code::Internal, error), None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

    use super::*;

    #[test]
    fn the_host_takes_no_doorbell_proxy() {
        for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
            let refused = Processor::Host.refuse_mode(mode.into());
            let text = format!("{:?}", refused.unwrap_err());
            assert!(text.contains("Argument") && text.contains("EFA_GDA_DOORBELL_DIRECT"), "{text}");
        }
        Processor::Host.refuse_mode(DoorbellMode::Direct.into()).unwrap();
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_is_refused_by_a_library_without_cuda() {
        let Err(fault) = Processor::open(0) else { panic!("GPU 0 was not refused") };
        let text = format!("{fault:?}");
        assert!(text.contains("Unsupported") && text.contains("built without CUDA"), "{text}");
    }
}
