//! A queue and the processor that drives it: the host's or, with the feature `cuda`, a GPU.

use std::time::Duration;

#[cfg(feature = "cuda")]
use efa_gda::doorbell::DoorbellProxy;
use efa_gda::doorbell::{DoorbellChoice, DoorbellMode};
use efa_gda::fabric::{CompletionCounter, GdaOps};
#[cfg(feature = "cuda")]
use efa_gda::gpu::Gpu;
#[cfg(feature = "cuda")]
use efa_gda::gpu_queue::{GpuCloseError, GpuQueue};
use efa_gda::queue::{
    CloseError, MappedQueue, PostedReceives, Received, Receives, Region, Snapshot, WorkRequest,
};
use efa_gda::wire::Peer;
use efa_gda_sys::device::efa_gda_queue;

use crate::error::{Code, Fault};
use crate::queue::MappedInfo;
#[cfg(feature = "cuda")]
use crate::queue::RELAYED;

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
pub(crate) type NotClosed = (Fault, Option<Driven>);

/// A mapped queue and the processor that drives it.
#[derive(Debug)]
pub(crate) enum Driven {
    Host(Box<MappedQueue>),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuQueue>),
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
    pub(crate) fn drive(self, queue: MappedQueue, choice: DoorbellChoice) -> Result<Driven, Fault> {
        match self {
            Self::Host => Ok(Driven::Host(Box::new(queue))),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => {
                // A queue for which the proxy rings or relays completions keeps it alive. Otherwise it ends here.
                let proxy = DoorbellProxy::start().map_err(|error| Fault::error(Code::Internal, error))?;
                let (queue, _) = GpuQueue::with_doorbell(queue, &gpu, choice, &proxy)?;
                Ok(Driven::Gpu(Box::new(queue)))
            }
        }
    }
}

/// Makes a call that the queues of both processors have, and converts its error.
macro_rules! either {
    ($driven:expr, $queue:ident => $call:expr) => {
        match $driven {
            Driven::Host($queue) => Ok($call?),
            #[cfg(feature = "cuda")]
            Driven::Gpu($queue) => Ok($call?),
        }
    };
}

impl Driven {
    /// Returns the queue on the host.
    fn mapped(&self) -> &MappedQueue {
        match self {
            Self::Host(queue) => queue,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.mapped(),
        }
    }

    /// Returns the queue's geometry and limits, with `size` 0.
    pub(crate) fn describe(&self) -> MappedInfo {
        let queue = self.mapped();
        let (exposure, limits) = (queue.exposure(), queue.limits());
        let (store_bytes, relayed) = match self {
            // The host's processor stores 8 bytes at a time.
            Self::Host(_) => (8, 0),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => (queue.store_bytes(), queue.relayed().map_or(0, |_| RELAYED)),
        };
        let completions = queue.endpoint().and_then(|endpoint| endpoint.send_completions().device());
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
            completions_in_gpu: completions.is_some().into(),
            max_inline: limits.inline_send as u32,
            max_rdma_size: limits.rdma,
            max_msg_size: limits.message,
            store_bytes,
            flags: crate::queue::flags_of(&queue.state()) | relayed,
        }
    }

    pub(crate) fn address(&self) -> Result<Vec<u8>, Fault> {
        Ok(self.mapped().address()?)
    }

    pub(crate) fn insert_peer(&self, address: &[u8]) -> Result<Peer, Fault> {
        Ok(self.mapped().insert_peer(address)?)
    }

    pub(crate) fn abort(&self) -> Abort {
        match self {
            Self::Host(queue) => {
                let flag = queue.abort_flag();
                Box::new(move |raise| if raise { flag.raise() } else { flag.lower() })
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => {
                let flag = queue.abort_flag();
                Box::new(move |raise| if raise { flag.raise() } else { flag.lower() })
            }
        }
    }

    /// Returns the struct's address for the processor that drives the queue.
    pub(crate) fn device_address(&self) -> *mut efa_gda_queue {
        match self {
            Self::Host(queue) => queue.as_ptr().as_ptr(),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.device_address(),
        }
    }

    pub(crate) fn begin_launch(&self) -> Launch {
        match self {
            Self::Host(_) => None,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => Some(Box::new(queue.begin_launch())),
        }
    }

    pub(crate) fn retain(&mut self, region: &Region) -> Result<(), Fault> {
        either!(self, queue => queue.retain(region).map(drop))
    }

    pub(crate) fn execute(&mut self, work: &WorkRequest) -> Result<(), Fault> {
        either!(self, queue => queue.execute(work).map(drop))
    }

    pub(crate) fn quiet(&mut self, timeout: Duration) -> Result<(), Fault> {
        either!(self, queue => queue.quiet(timeout).map(drop))
    }

    pub(crate) fn post_receives(&mut self, receives: &Receives) -> Result<PostedReceives, Fault> {
        either!(self, queue => queue.post_receives(receives))
    }

    pub(crate) fn receive(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>, Fault> {
        either!(self, queue => queue.receive_many(most, timeout))
    }

    pub(crate) fn state(&self) -> Result<efa_gda_queue, Fault> {
        match self {
            Self::Host(queue) => Ok(queue.state()),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => Ok(queue.state()?),
        }
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot, Fault> {
        match self {
            Self::Host(queue) => Ok(queue.snapshot()),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => Ok(queue.snapshot()?),
        }
    }

    pub(crate) fn close(self) -> Result<(), NotClosed> {
        match self {
            Self::Host(queue) => queue.close().map_err(not_closed),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => {
                let seen = match queue.snapshot() {
                    Ok(seen) => seen,
                    Err(error) => return Err((error.into(), Some(Self::Gpu(queue)))),
                };
                let poisoned = queue.mapped().poison().is_some() || seen.poison().is_some();
                // A queue that cannot be closed is refused here, while it is still mapped: a call that fails changes
                // nothing.
                if seen.in_flight() != 0 {
                    return Err((Fault::in_flight(seen.in_flight(), poisoned), Some(Self::Gpu(queue))));
                }
                if seen.is_locked() && !poisoned {
                    return Err((Fault::abandoned(), Some(Self::Gpu(queue))));
                }
                queue.close().map_err(gpu_not_closed)
            }
        }
    }

    pub(crate) fn destroy(self) -> Result<(), NotClosed> {
        match self {
            Self::Host(queue) => queue.destroy().map_err(|error| (error.into(), None)),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.destroy().map_err(gpu_not_closed),
        }
    }
}

/// Restates the error with the names of C functions, and takes the queue out of it.
fn not_closed(error: CloseError) -> NotClosed {
    match error {
        CloseError::Busy { queue, in_flight } => {
            (Fault::in_flight(in_flight, queue.poison().is_some()), Some(Driven::Host(queue)))
        }
        CloseError::Abandoned { queue } => (Fault::abandoned(), Some(Driven::Host(queue))),
        CloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(Driven::Host(queue))),
        CloseError::Destroy(error) => (error.into(), None),
        error => (Fault::error(Code::Internal, error), None),
    }
}

/// As [`not_closed`], for a queue that a GPU drives.
#[cfg(feature = "cuda")]
fn gpu_not_closed(error: GpuCloseError) -> NotClosed {
    let text = efa_gda::error_chain(&error).to_string();
    match error {
        GpuCloseError::Unmapped(error) => not_closed(error),
        GpuCloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(Driven::Gpu(queue))),
        GpuCloseError::InLaunch { queue, .. } | GpuCloseError::Running { queue, .. } => {
            (Fault::new(Code::Busy, text), Some(Driven::Gpu(queue)))
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
