//! Whether this process can use a GPU: a context opens on it, whatever its compute mode, MPS and MIG
//! make of that, and kernels compile for it.

use std::ffi::c_int;
use std::time::Duration;

use efa_gda::gpu::Gpu;

use super::Cuda;
use crate::check::{Outcome, Outcomes, Problem};
use crate::model::Who;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` of `cuda.h`.
const ATTRIBUTE_COMPUTE_MODE: c_int = 20;
/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED` of `cuda.h`; CUDA 12.3 and newer.
const ATTRIBUTE_MPS: c_int = 133;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` of `cuda.h`.
const DEVICE_UNAVAILABLE: u32 = 46;
/// A context takes seconds on a machine with many GPUs.
const CONTEXT: Duration = Duration::from_secs(8);
/// NVRTC takes about a second; a busy machine more.
const COMPILING: Duration = Duration::from_secs(20);

/// `CUcomputemode` of `cuda.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComputeMode {
    Default,
    Prohibited,
    ExclusiveProcess,
    Other(c_int),
}

impl ComputeMode {
    fn of(value: c_int) -> Self {
        match value {
            0 => Self::Default,
            2 => Self::Prohibited,
            3 => Self::ExclusiveProcess,
            other => Self::Other(other),
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Default => "compute mode default".to_owned(),
            Self::Prohibited => "compute mode prohibited".to_owned(),
            Self::ExclusiveProcess => "compute mode exclusive process".to_owned(),
            Self::Other(value) => format!("compute mode {value}"),
        }
    }
}

/// How the GPU is shared.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    mode: ComputeMode,
    /// None where the driver does not say.
    mps: Option<bool>,
    mig: bool,
}

impl Sharing {
    fn describe(self) -> String {
        let mut text = self.mode.describe();
        match self.mps {
            Some(true) => text.push_str(", under MPS"),
            Some(false) => text.push_str(", without MPS"),
            None => {}
        }
        if self.mig {
            text.push_str(", a MIG device");
        }
        text
    }
}

pub(super) fn opens(cuda: &mut Cuda) -> Outcomes {
    cuda.request_time(CONTEXT);
    let name = cuda.name(cuda.current).unwrap_or_default();
    let sharing = Sharing {
        mode: ComputeMode::of(cuda.attribute(ATTRIBUTE_COMPUTE_MODE).unwrap_or(0)),
        mps: cuda.attribute(ATTRIBUTE_MPS).ok().map(|value| value != 0),
        // So CUDA names a MIG device: NVIDIA H200 MIG 1g.18gb.
        mig: name.split_whitespace().any(|word| word == "MIG"),
    };
    match Gpu::open(cuda.current as usize) {
        Ok(gpu) => {
            cuda.opened = Some(gpu);
            Outcome::pass(sharing.describe()).into()
        }
        Err(error) => {
            let text = format!("{error}; {}", sharing.describe());
            Outcome::Fail(kept_out(text, sharing, error.cuda_result())).into()
        }
    }
}

/// Why a context does not open, by how the GPU is shared.
fn kept_out(observed: String, sharing: Sharing, result: Option<u32>) -> Problem {
    let (why, fix, who) = match (sharing.mode, result) {
        (ComputeMode::Prohibited, _) => (
            "its compute mode lets no process use it",
            "on the host: nvidia-smi -i N -c DEFAULT, or leave this GPU out with --gpu",
            Who::Host,
        ),
        (ComputeMode::ExclusiveProcess, Some(DEVICE_UNAVAILABLE)) => (
            "its compute mode is exclusive process, and another process has it",
            "end that process (nvidia-smi lists it), share the GPU through MPS, or on the host: \
             nvidia-smi -i N -c DEFAULT",
            Who::Pod,
        ),
        (_, Some(DEVICE_UNAVAILABLE)) => (
            "another process has it, or it is being reset",
            "look at nvidia-smi on the host for its processes and its state",
            Who::Host,
        ),
        _ if sharing.mps == Some(true) => (
            "the MPS server lets this process in or not, and did not",
            "look at the MPS control daemon's log (CUDA_MPS_LOG_DIRECTORY); it serves one user at a time",
            Who::Pod,
        ),
        _ => (
            "nothing can be mapped into a GPU that this process cannot open",
            "look at nvidia-smi and at dmesg (Xid) on the host",
            Who::Host,
        ),
    };
    Problem {
        observed,
        required: "a context of this process on the GPU".to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        who,
    }
}

pub(super) fn compiles(cuda: &mut Cuda) -> Outcomes {
    cuda.request_time(COMPILING);
    let Some(gpu) = &cuda.opened else {
        return Outcome::unknown("the GPU is not open in this process").into();
    };
    match gpu.prepare() {
        Ok(()) => {
            let (architecture, origin) = gpu.kernels().expect("they were loaded");
            Outcome::pass(format!("{architecture}, {origin}")).into()
        }
        Err(error) => Outcome::Fail(Problem {
            observed: error.to_string(),
            required: "libnvrtc 12 or newer, and a GPU of compute capability 7.0 or newer".to_owned(),
            why: "kernels are compiled for the GPU that is there".to_owned(),
            fix: "put libnvrtc into the image (package cuda-nvrtc, or pip install nvidia-cuda-nvrtc) and on \
                  LD_LIBRARY_PATH; or use a gda-probe that was built with EFA_GDA_NVCC"
                .to_owned(),
            who: Who::Image,
        })
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(mode: ComputeMode, mps: bool, result: u32) -> Problem {
        kept_out(String::new(), Sharing { mode, mps: Some(mps), mig: false }, Some(result))
    }

    #[test]
    fn a_gpu_that_another_process_has_for_itself_is_named_so() {
        let trouble = trouble(ComputeMode::ExclusiveProcess, false, DEVICE_UNAVAILABLE);
        assert!(trouble.why.contains("exclusive process") && trouble.why.contains("another process"));
    }

    #[test]
    fn a_prohibited_gpu_is_named_so_whatever_cuda_answers() {
        assert!(trouble(ComputeMode::Prohibited, false, 999).why.contains("no process"));
    }

    #[test]
    fn mps_is_named_where_nothing_better_explains_it() {
        assert!(trouble(ComputeMode::Default, true, 999).why.contains("MPS"));
    }

    #[test]
    fn how_a_gpu_is_shared_is_said_by_name() {
        let sharing = Sharing { mode: ComputeMode::of(3), mps: Some(true), mig: true };
        assert_eq!(sharing.describe(), "compute mode exclusive process, under MPS, a MIG device");
    }
}
