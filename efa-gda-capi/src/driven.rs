//! The processor that drives a queue: the host's or, with the feature `cuda`, a GPU.

use std::time::Duration;

use efa_gda::doorbell::{DoorbellChoice, DoorbellMode};
#[cfg(feature = "cuda")]
use efa_gda::doorbell::{DoorbellProxy, ProxyOptions};
use efa_gda::fabric::{CompletionQueue, MemoryRegion};
#[cfg(feature = "cuda")]
use efa_gda::gpu::Gpu;
#[cfg(feature = "cuda")]
use efa_gda::gpu_queue::{GpuAbortFlag, GpuCloseError, GpuQueue, LaunchGuard};
use efa_gda::queue::{AbortFlag, CloseError, MappedQueue, Snapshot, WorkRequest};
use efa_gda_sys::device::efa_gda_queue;

use crate::domain::Parts;
use crate::error::{Code, Fault};

/// The value of `gpu` for a queue that the host's processor drives.
const HOST: i32 = -1;

/// The processor that will drive a queue.
pub(crate) enum Processor {
    Host,
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

/// A mapped queue and the processor that drives it.
#[derive(Debug)]
pub(crate) enum Driven {
    Host(Box<MappedQueue>),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuQueue>),
}

/// The flag that ends the waits of a queue. It is used while another thread holds the queue's lock.
pub(crate) enum Abort {
    Host(AbortFlag),
    #[cfg(feature = "cuda")]
    Gpu(GpuAbortFlag),
}

/// A launch that uses a queue. The queue stays mapped while the value lives.
pub(crate) enum Launch {
    /// The host's memory needs no guard.
    Host,
    #[cfg(feature = "cuda")]
    Gpu { _guard: LaunchGuard },
}

/// A queue that was not closed: the fault, and the queue unless it is destroyed.
pub(crate) type NotClosed = (Fault, Option<Driven>);

impl Processor {
    /// Opens the GPU that CUDA counts as `gpu`, or returns the host's processor for -1.
    pub(crate) fn open(gpu: i32, choice: DoorbellChoice) -> Result<Self, Fault> {
        if gpu == HOST {
            return match choice {
                DoorbellChoice::Auto => Ok(Self::Host),
                choice if choice == DoorbellMode::Direct.into() => Ok(Self::Host),
                _ => Err(Fault::argument(
                    "gpu = -1: the host's processor rings by itself; doorbell must be EFA_GDA_DOORBELL_AUTO or \
                     EFA_GDA_DOORBELL_DIRECT",
                )),
            };
        }
        let ordinal = usize::try_from(gpu).map_err(|_| {
            Fault::argument(format_args!("gpu = {gpu}: expected 0 or more, or -1 for the host's processor"))
        })?;
        Self::open_gpu(ordinal)
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

    /// Opens a completion queue, in the GPU's memory where that is possible.
    pub(crate) fn completion_queue(&self, parts: &Parts, entries: usize) -> Result<CompletionQueue, Fault> {
        match self {
            Self::Host => Ok(parts.domain.completion_queue(entries)?),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => Ok(gpu.completion_queue(&parts.ops, entries)?.0),
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
                // A queue in a mode that needs the proxy keeps it alive. Otherwise it ends here.
                let proxy = DoorbellProxy::start(&ProxyOptions::new())
                    .map_err(|error| Fault::error(Code::Internal, error))?;
                let (queue, _) = GpuQueue::with_doorbell(queue, &gpu, choice, &proxy)?;
                Ok(Driven::Gpu(Box::new(queue)))
            }
        }
    }
}

impl Driven {
    pub(crate) fn mapped(&self) -> &MappedQueue {
        match self {
            Self::Host(queue) => queue,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.mapped(),
        }
    }

    pub(crate) fn abort(&self) -> Abort {
        match self {
            Self::Host(queue) => Abort::Host(queue.abort_flag()),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => Abort::Gpu(queue.abort_flag()),
        }
    }

    /// The struct's address for the processor that drives the queue.
    pub(crate) fn device_address(&self) -> *mut efa_gda_queue {
        match self {
            Self::Host(queue) => queue.as_ptr().as_ptr(),
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.device_address(),
        }
    }

    pub(crate) fn begin_launch(&self) -> Launch {
        match self {
            Self::Host(_) => Launch::Host,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => Launch::Gpu { _guard: queue.begin_launch() },
        }
    }

    pub(crate) fn retain(&mut self, region: &MemoryRegion) -> Result<(), Fault> {
        match self {
            Self::Host(queue) => queue.retain(region)?,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.retain(region)?,
        };
        Ok(())
    }

    pub(crate) fn execute(&mut self, request: &WorkRequest) -> Result<(), Fault> {
        match self {
            Self::Host(queue) => queue.execute(request)?,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.execute(request)?,
        };
        Ok(())
    }

    pub(crate) fn quiet(&mut self, timeout: Duration) -> Result<(), Fault> {
        match self {
            Self::Host(queue) => queue.quiet(timeout)?,
            #[cfg(feature = "cuda")]
            Self::Gpu(queue) => queue.quiet(timeout)?,
        };
        Ok(())
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
            Self::Gpu(queue) => match queue.snapshot() {
                Ok(seen) if seen.in_flight() == 0 => queue.close().map_err(gpu_not_closed),
                // A queue with requests in flight is refused here, while it is still mapped.
                Ok(seen) => {
                    let poisoned = queue.mapped().poison().is_some() || seen.poison().is_some();
                    Err((Fault::in_flight(seen.in_flight(), poisoned), Some(Self::Gpu(queue))))
                }
                Err(error) => Err((error.into(), Some(Self::Gpu(queue)))),
            },
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

impl Abort {
    /// Ends the waits of the queue, or lets waits run again.
    pub(crate) fn set(&self, raise: bool) {
        match (self, raise) {
            (Self::Host(flag), true) => flag.raise(),
            (Self::Host(flag), false) => flag.lower(),
            #[cfg(feature = "cuda")]
            (Self::Gpu(flag), true) => flag.raise(),
            #[cfg(feature = "cuda")]
            (Self::Gpu(flag), false) => flag.lower(),
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

    fn refusal(gpu: i32, choice: DoorbellChoice) -> String {
        match Processor::open(gpu, choice) {
            Ok(_) => panic!("gpu {gpu} was not refused"),
            Err(fault) => format!("{fault:?}"),
        }
    }

    #[test]
    fn the_host_takes_no_doorbell_proxy() {
        for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
            let text = refusal(HOST, mode.into());
            assert!(text.contains("Argument") && text.contains("EFA_GDA_DOORBELL_DIRECT"), "{text}");
        }
        Processor::open(HOST, DoorbellMode::Direct.into()).unwrap_or_else(|fault| panic!("{fault:?}"));
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_is_refused_by_a_library_without_cuda() {
        let text = refusal(0, DoorbellChoice::Auto);
        assert!(text.contains("Unsupported") && text.contains("built without CUDA"), "{text}");
    }
}
