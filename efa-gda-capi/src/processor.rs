//! The processor of a queue or counter: `gpu` of the interface, which is the host's for -1.

use efa_gda::Options;
use efa_gda::doorbell::DoorbellMode;
use efa_gda::fabric::{CompletionCounter, GdaOps};

use crate::error::{Code, Fault};

/// The value of `gpu` for an object that the host's processor uses.
pub(crate) const HOST: i32 = -1;

/// Returns the options of a queue that this processor drives.
pub(crate) fn options(gpu: i32, doorbell: Option<DoorbellMode>) -> Result<Options, Fault> {
    let options = doorbell.map_or(Options::new(), |mode| Options::new().doorbell(mode));
    match (ordinal(gpu)?, doorbell) {
        (None, Some(DoorbellMode::Record | DoorbellMode::Staged)) => Err(Fault::argument(
            "gpu = -1: the host's processor rings by itself; doorbell must be EFA_GDA_DOORBELL_AUTO or \
             EFA_GDA_DOORBELL_DIRECT",
        )),
        (None, _) => Ok(options),
        #[cfg(feature = "cuda")]
        (Some(ordinal), _) => Ok(options.gpu(ordinal)),
        #[cfg(not(feature = "cuda"))]
        (Some(ordinal), _) => Err(without_cuda(ordinal)),
    }
}

/// Returns the GPU's number as CUDA counts; None for the host's processor.
pub(crate) fn ordinal(gpu: i32) -> Result<Option<usize>, Fault> {
    if gpu == HOST {
        return Ok(None);
    }
    let ordinal = usize::try_from(gpu).map_err(|_| {
        Fault::argument(format_args!("gpu = {gpu}: expected 0 or more, or -1 for the host's processor"))
    });
    ordinal.map(Some)
}

#[cfg(not(feature = "cuda"))]
fn without_cuda(ordinal: usize) -> Fault {
    Fault::new(
        Code::Unsupported,
        format_args!(
            "gpu = {ordinal}: this libefa_gda was built without CUDA; build the crate efa-gda-capi with its feature \
             cuda, or pass -1 for the host's processor"
        ),
    )
}

/// Opens a counter of libfabric in the processor's memory.
pub(crate) fn counter(ops: &GdaOps, gpu: i32) -> Result<CompletionCounter, Fault> {
    match ordinal(gpu)? {
        None => Ok(ops.cntr_open_host()?),
        #[cfg(feature = "cuda")]
        Some(ordinal) => {
            let gpu = efa_gda::gpu::Gpu::open(ordinal);
            Ok(gpu.map_err(with_hint)?.completion_counter(ops)?.0)
        }
        #[cfg(not(feature = "cuda"))]
        Some(ordinal) => Err(without_cuda(ordinal)),
    }
}

/// Returns the fault of an error at open, which says how to do without a GPU if the GPU is the cause.
pub(crate) fn with_hint(error: efa_gda::Error) -> Fault {
    let fault = Fault::from(error);
    #[cfg(feature = "cuda")]
    if fault.code() == Code::Gpu {
        return fault.with_hint("gpu = -1 is for the host's processor");
    }
    fault
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

    use super::*;

    #[test]
    fn the_host_takes_no_doorbell_proxy() {
        for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
            let text = format!("{:?}", options(HOST, Some(mode)).unwrap_err());
            assert!(text.contains("Argument") && text.contains("EFA_GDA_DOORBELL_DIRECT"), "{text}");
        }
        assert!(options(HOST, Some(DoorbellMode::Direct)).is_ok());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_is_refused_by_a_library_without_cuda() {
        let Err(fault) = options(0, None) else { panic!("GPU 0 was not refused") };
        let text = format!("{fault:?}");
        assert!(text.contains("Unsupported") && text.contains("built without CUDA"), "{text}");
    }
}
