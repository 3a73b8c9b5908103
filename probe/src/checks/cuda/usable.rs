//! Whether this process can use a GPU: a context opens on it, which depends on its compute mode, MPS and
//! MIG, and kernels compile for it.

use std::ffi::c_int;
use std::time::Duration;

use efa_gda::gpu::Gpu;

use super::Cuda;
use crate::check::{Checked, Outcome, Problem};
use crate::model::Party;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` of `cuda.h`.
const ATTRIBUTE_COMPUTE_MODE: c_int = 20;
/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED` of `cuda.h`; CUDA 12.3 and newer.
const ATTRIBUTE_MPS: c_int = 133;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` of `cuda.h`.
const DEVICE_UNAVAILABLE: i32 = 46;
/// Additional time for opening a context, which takes seconds on a machine with many GPUs.
const CONTEXT: Duration = Duration::from_secs(8);
/// Additional time for NVRTC, which takes about a second, and longer on a busy machine.
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

/// How processes share the GPU.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    mode: ComputeMode,
    /// None if the driver does not report it.
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

pub(crate) fn opens(cuda: &mut Cuda) -> Checked {
    cuda.request_time(CONTEXT);
    let name = cuda.name(cuda.current).unwrap_or_default();
    let sharing = Sharing {
        mode: ComputeMode::of(cuda.attribute(ATTRIBUTE_COMPUTE_MODE).unwrap_or(0)),
        mps: cuda.attribute(ATTRIBUTE_MPS).ok().map(|value| value != 0),
        // CUDA names MIG devices like this: NVIDIA H200 MIG 1g.18gb.
        mig: name.split_whitespace().any(|word| word == "MIG"),
    };
    match Gpu::open(cuda.current as usize) {
        Ok(gpu) => {
            cuda.opened = Some(gpu);
            Outcome::pass(sharing.describe()).into()
        }
        Err(error) => {
            let text = format!("{}; {}", error, sharing.describe());
            Outcome::Fail(context_refused(text, sharing, error.code())).into()
        }
    }
}

/// The problem of a context that does not open, by how processes share the GPU.
fn context_refused(observed: String, sharing: Sharing, result: Option<i32>) -> Problem {
    let (why, fix, who) = match (sharing.mode, result) {
        (ComputeMode::Prohibited, _) => (
            "the GPU's compute mode allows no process to use it",
            "on the host: nvidia-smi -i N -c DEFAULT; or use another GPU (--gpu N)",
            Party::Operator,
        ),
        (ComputeMode::ExclusiveProcess, Some(DEVICE_UNAVAILABLE)) => (
            "the GPU's compute mode is exclusive process, and another process uses it",
            "end that process (nvidia-smi lists it) or share the GPU through MPS; or on the host: \
             nvidia-smi -i N -c DEFAULT",
            Party::Pod,
        ),
        (_, Some(DEVICE_UNAVAILABLE)) => (
            "another process uses the GPU, or the GPU is being reset",
            "on the host: check the GPU's processes and state with nvidia-smi",
            Party::Operator,
        ),
        _ if sharing.mps == Some(true) => (
            "the MPS server decides which processes may use the GPU, and refused this one",
            "read the MPS control daemon's log in CUDA_MPS_LOG_DIRECTORY; run as the user that the server serves, \
             because it serves one user at a time",
            Party::Pod,
        ),
        _ => (
            "queues cannot be mapped into a GPU on which this process has no context",
            "on the host: run nvidia-smi, and search dmesg for Xid",
            Party::Operator,
        ),
    };
    Problem::new(observed).expects("a CUDA context on the GPU", why).fix(fix, who)
}

pub(crate) fn compiles(cuda: &mut Cuda) -> Checked {
    cuda.request_time(COMPILING);
    let Some(gpu) = &cuda.opened else {
        return Outcome::unknown("the GPU is not open in this process").into();
    };
    match gpu.prepare() {
        Ok(()) => {
            let (architecture, origin) = gpu.kernels().expect("prepare loaded the kernels");
            Outcome::pass(format!("{architecture}, {origin}")).into()
        }
        Err(error) => Outcome::fail(error.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a context does not open.
    fn why(mode: ComputeMode, mps: bool, result: i32) -> String {
        let sharing = Sharing { mode, mps: Some(mps), mig: false };
        context_refused(String::new(), sharing, Some(result)).why.unwrap_or_default()
    }

    #[test]
    fn exclusive_process_mode_is_named_when_another_process_uses_the_gpu() {
        let why = why(ComputeMode::ExclusiveProcess, false, DEVICE_UNAVAILABLE);
        assert!(why.contains("exclusive process") && why.contains("another process"));
    }

    #[test]
    fn prohibited_mode_is_named_for_any_cuda_result() {
        assert!(why(ComputeMode::Prohibited, false, 999).contains("no process"));
    }

    #[test]
    fn mps_is_named_when_the_compute_mode_does_not_explain_the_failure() {
        assert!(why(ComputeMode::Default, true, 999).contains("MPS"));
    }

    #[test]
    fn the_description_names_compute_mode_mps_and_mig() {
        let sharing = Sharing { mode: ComputeMode::of(3), mps: Some(true), mig: true };
        assert_eq!(sharing.describe(), "compute mode exclusive process, under MPS, a MIG device");
    }
}
