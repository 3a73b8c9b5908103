//! The errors of a GPU, with what to do about those that have a usual cause.

use std::ops::Range;
use std::time::Duration;

use cudarc::driver::DriverError;

use crate::{Error, ErrorKind};

/// libcuda cannot be loaded.
pub(super) fn no_driver() -> Error {
    Error::new(ErrorKind::Gpu, "libcuda.so.1 cannot be loaded")
        .with_hint("run where the NVIDIA driver is (in a container: with the NVIDIA runtime)")
}

/// libnvrtc cannot be loaded.
pub(super) fn no_compiler() -> Error {
    Error::new(ErrorKind::Gpu, "libnvrtc cannot be loaded, so kernels cannot be compiled").with_hint(
        "install version 12 or newer (package cuda-nvrtc, or pip install nvidia-cuda-nvrtc) and add its directory to \
         LD_LIBRARY_PATH; or, for this library's own kernels, build with EFA_GDA_NVCC",
    )
}

/// NVRTC refused the kernels.
pub(super) fn not_compiled(architecture: &str, log: &str) -> Error {
    let text = format!(
        "the kernels do not compile for {architecture}; use an NVRTC that supports it, or build with EFA_GDA_NVCC; the \
         compiler reports: {log}"
    );
    Error::new(ErrorKind::Gpu, text)
}

/// The GPU is too old for the kernels.
pub(super) fn too_old(ordinal: usize, (major, minor): (i32, i32)) -> Error {
    let text = format!("GPU {ordinal} has compute capability {major}.{minor}, and 8.0 or newer is needed");
    Error::new(ErrorKind::Gpu, text).with_hint("choose another GPU (CUDA_VISIBLE_DEVICES)")
}

/// Returns the error of a call of the driver, with what to do about results that have a usual cause. The driver's own text
/// for a result needs a driver that still responds.
pub fn failed_call(operation: &'static str, result: DriverError) -> Error {
    let kind = if is_lost(&result) { ErrorKind::GpuLost } else { ErrorKind::Gpu };
    Error::new(kind, format!("{operation} failed: {}", words(&result)))
        .with_hint(hint(&result))
        .in_call(operation)
        .with_code(result.0 as i32)
}

/// The call that registers pages of the host.
pub(crate) const REGISTER: &str = "cuMemHostRegister";

/// Pages of the host could not be registered with `flags`, which are in words.
pub(super) fn not_registered(pages: &Range<usize>, flags: &str, result: DriverError) -> Error {
    let kind = if is_lost(&result) { ErrorKind::GpuLost } else { ErrorKind::Gpu };
    let (start, end) = (pages.start, pages.end);
    Error::new(kind, format!("{REGISTER} of {start:#x} to {end:#x} ({flags}) failed: {}", words(&result)))
        .with_hint(registration_hint(flags, &result))
        .in_call(REGISTER)
        .with_code(result.0 as i32)
}

/// The GPU maps parts of a range at addresses that are not contiguous.
pub(super) fn scattered(range: &Range<usize>) -> Error {
    let (start, end) = (range.start, range.end);
    let text = format!(
        "the GPU maps {start:#x} to {end:#x} in pieces; a ring must be one range of the GPU's addresses"
    );
    Error::new(ErrorKind::Gpu, text).with_hint("report it with the driver's version")
}

/// Work on a GPU did not end within its bound.
pub(crate) fn unanswered(operation: &str, ordinal: usize, limit: Duration) -> Error {
    Error::new(ErrorKind::Gpu, format!("{operation} on GPU {ordinal} did not end within {limit:?}"))
        .with_hint("see dmesg (Xid) and nvidia-smi")
}

/// A byte range is outside of the GPU's memory.
pub(crate) fn outside(offset: usize, length: usize, memory: usize) -> Error {
    let text = format!(
        "the range of length {length} at offset {offset} exceeds a GPU memory block of length {memory}"
    );
    Error::argument(text).with_hint("end the range inside the block")
}

/// Returns CUDA's name and number for a result. The driver's own text needs a driver that still responds.
fn words(error: &DriverError) -> String {
    format!("{:?} ({})", error.0, error.0 as u32)
}

/// Returns what to do about a result that has a usual cause.
fn hint(error: &DriverError) -> &'static str {
    use cudarc::driver::sys::CUresult::*;
    match error.0 {
        CUDA_ERROR_NO_DEVICE => "no GPU is visible: check CUDA_VISIBLE_DEVICES and the container's GPUs",
        CUDA_ERROR_INVALID_DEVICE => "no GPU has that number: see nvidia-smi -L",
        CUDA_ERROR_DEVICE_UNAVAILABLE => "another process has the GPU in exclusive compute mode",
        CUDA_ERROR_OUT_OF_MEMORY => "free memory of the GPU, or use another GPU",
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the versions of kernel driver and libcuda differ: reinstall the driver, or restart"
        }
        _ if is_lost(error) => {
            "the context is lost with everything in it: destroy its queues and start again in a new process"
        }
        _ => "cuda.h explains the result; see dmesg for the GPU's driver, and nvidia-smi",
    }
}

/// Whether every later call on the context fails too: cuda.h documents that these results leave the process in an
/// inconsistent state, or that the context no longer exists.
pub(super) fn is_lost(error: &DriverError) -> bool {
    use cudarc::driver::sys::CUresult::*;
    matches!(
        error.0,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_EXTERNAL_DEVICE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEINITIALIZED
    )
}

/// Returns what to do about a refused registration.
fn registration_hint(flags: &str, error: &DriverError) -> &'static str {
    use cudarc::driver::sys::CUresult::*;
    match error.0 {
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
            "other code of this process registered these pages: share its mapping, or leave them to this library"
        }
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_PERMITTED
            if flags.contains("I/O") =>
        {
            "load the NVIDIA kernel module with NVreg_RegistryDwords=\"PeerMappingOverride=1\", or let the host ring"
        }
        _ => "run gda-probe check, which reports what this driver cannot map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys::CUresult::{self, *};

    fn failed(result: CUresult) -> Error {
        failed_call("cuStreamSynchronize", DriverError(result))
    }

    #[test]
    fn the_error_of_a_lost_context_names_its_cause() {
        for (result, name) in [
            (CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"),
            (CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"),
            (CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ] {
            let error = failed(result);
            let words = error.to_string();
            assert!(error.kind() == ErrorKind::GpuLost && words.contains(name), "{words}");
            assert!(words.contains("the context is lost"), "{words}");
        }
    }

    #[test]
    fn an_error_that_leaves_the_context_usable_does_not_report_it_as_lost() {
        assert_eq!(failed(CUDA_ERROR_OUT_OF_MEMORY).kind(), ErrorKind::Gpu);
        assert_eq!(failed(CUDA_ERROR_INVALID_VALUE).kind(), ErrorKind::Gpu);
    }
}
