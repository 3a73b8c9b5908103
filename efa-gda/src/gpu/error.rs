//! The errors of a GPU: one type for all of [`crate::gpu`].

use std::ops::Range;

use cudarc::driver::DriverError;

use crate::smaps::MappingError;

/// Result of a call of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call to CUDA or NVRTC failed, or cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libcuda cannot be loaded.
    #[error(
        "libcuda.so.1 cannot be loaded; run where the NVIDIA driver is (in a container: with the NVIDIA runtime)"
    )]
    NoDriver,
    /// libnvrtc cannot be loaded.
    #[error(
        "libnvrtc cannot be loaded, so kernels cannot be compiled; install version 12 or newer (package cuda-nvrtc, or \
         pip install nvidia-cuda-nvrtc) and add its directory to LD_LIBRARY_PATH; or, for this library's own kernels, \
         build with EFA_GDA_NVCC"
    )]
    NoCompiler,
    /// A driver call failed.
    #[error("{operation} failed: {}{}", words(.result), hint(.result))]
    Driver {
        /// The call.
        operation: &'static str,
        /// CUDA's result. It is no source, because its own text needs a driver that still responds.
        result: DriverError,
    },
    /// Pages of the host could not be registered.
    #[error(
        "cuMemHostRegister of {start:#x} to {end:#x} ({flags}) failed: {why}{hint}",
        start = .pages.start, end = .pages.end, why = words(.result), hint = registration_hint(.flags, .result)
    )]
    Register {
        /// The pages.
        pages: Range<usize>,
        /// The flags used, in words.
        flags: String,
        /// CUDA's result.
        result: DriverError,
    },
    /// The kind of memory of the pages cannot be determined.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The GPU maps parts of a range at addresses that are not contiguous.
    #[error(
        "the GPU maps {start:#x} to {end:#x} in pieces; a ring must be one range of the GPU's \
         addresses: report it with the driver's version",
        start = .0.start, end = .0.end
    )]
    Scattered(Range<usize>),
    /// Work on a GPU did not end within its bound.
    #[error("{operation} on GPU {ordinal} did not end within {limit:?}; see dmesg (Xid) and nvidia-smi")]
    Unanswered {
        /// The work.
        operation: &'static str,
        /// The GPU.
        ordinal: usize,
        /// The bound.
        limit: std::time::Duration,
    },
    /// A byte range is outside of the GPU's memory.
    #[error(
        "the range of length {length} at offset {offset} exceeds a GPU memory block of length {memory}; end the range \
         inside the block"
    )]
    OutOfBounds {
        /// Offset of the first byte.
        offset: usize,
        /// Length of the range.
        length: usize,
        /// Length of the memory.
        memory: usize,
    },
    /// The GPU is too old for the kernels.
    #[error(
        "GPU {ordinal} has compute capability {major}.{minor}, and 8.0 or newer is needed: choose another GPU \
         (CUDA_VISIBLE_DEVICES)"
    )]
    TooOld {
        /// The GPU.
        ordinal: usize,
        /// Its major capability.
        major: i32,
        /// Its minor capability.
        minor: i32,
    },
    /// NVRTC refused the kernels.
    #[error(
        "the kernels do not compile for {architecture}; use an NVRTC that supports it, or build with EFA_GDA_NVCC; the \
         compiler reports: {log}"
    )]
    Compile {
        /// The target.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
}

/// Returns CUDA's name and number for a result. The driver's own text needs a driver that still responds.
fn words(error: &DriverError) -> String {
    format!("{:?} ({})", error.0, error.0 as u32)
}

/// Returns what to do about a result that has a usual cause.
fn hint(error: &DriverError) -> &'static str {
    use cudarc::driver::sys::CUresult::*;
    match error.0 {
        CUDA_ERROR_NO_DEVICE => "; no GPU is visible: check CUDA_VISIBLE_DEVICES and the container's GPUs",
        CUDA_ERROR_INVALID_DEVICE => "; no GPU has that number: see nvidia-smi -L",
        CUDA_ERROR_DEVICE_UNAVAILABLE => "; another process has the GPU in exclusive compute mode",
        CUDA_ERROR_OUT_OF_MEMORY => "; free memory of the GPU, or use another GPU",
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "; the versions of kernel driver and libcuda differ: reinstall the driver, or restart"
        }
        _ if is_lost(error) => {
            "; the context is lost with everything in it: destroy its queues and start again in a new process"
        }
        _ => "; cuda.h explains the result; see dmesg for the GPU's driver, and nvidia-smi",
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

impl Error {
    /// Returns CUDA's result (`CUresult` of `cuda.h`), if that is the cause.
    pub fn cuda_result(&self) -> Option<u32> {
        match self {
            Self::Driver { result, .. } | Self::Register { result, .. } => Some(result.0 as u32),
            _ => None,
        }
    }

    /// Whether the GPU's context is lost, with its kernels, memory and queues.
    pub fn context_lost(&self) -> bool {
        match self {
            Self::Driver { result, .. } | Self::Register { result, .. } => is_lost(result),
            _ => false,
        }
    }
}

/// Returns what to do about a refused registration.
fn registration_hint(flags: &str, error: &DriverError) -> &'static str {
    use cudarc::driver::sys::CUresult::*;
    match error.0 {
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
            "; other code of this process registered these pages: share its mapping, or leave them to this library"
        }
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_PERMITTED
            if flags.contains("I/O") =>
        {
            "; load the NVIDIA kernel module with NVreg_RegistryDwords=\"PeerMappingOverride=1\", or let the host ring"
        }
        _ => "; run gda-probe check, which reports what this driver cannot map",
    }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            error if error.context_lost() => crate::ErrorKind::GpuLost,
            Error::OutOfBounds { .. } => crate::ErrorKind::Argument,
            _ => crate::ErrorKind::Gpu,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys::CUresult::{self, *};

    fn failed(result: CUresult) -> Error {
        Error::Driver { operation: "cuStreamSynchronize", result: DriverError(result) }
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
            assert!(error.context_lost() && words.contains(name), "{words}");
            assert!(words.contains("the context is lost"), "{words}");
        }
    }

    #[test]
    fn an_error_that_leaves_the_context_usable_does_not_report_it_as_lost() {
        assert!(!failed(CUDA_ERROR_OUT_OF_MEMORY).context_lost());
        assert!(!failed(CUDA_ERROR_INVALID_VALUE).context_lost());
    }
}
