//! What runs the device code of a command: `--executor`, and the GPU that is there.

use super::CommandError;
use super::run::Run;
use crate::cli::{Common, ExecutorChoice, Via};
use crate::model::{Gpu, GpuChoice, State};
use crate::worker::{Executor, Group, PutRequest};

/// What runs the device code. Where a GPU was asked for and none can be used, the findings say why; where
/// the best was asked for, they are left out and the host runs it.
pub(crate) fn executor(
    run: &mut Run,
    common: &Common,
    choice: ExecutorChoice,
    request: PutRequest,
) -> Result<Executor, CommandError> {
    let none = run.system.gpu == Some(GpuChoice::None);
    match choice {
        ExecutorChoice::Host => return Ok(Executor::Host),
        ExecutorChoice::Cuda if none => {
            let why = "--executor cuda needs a GPU, and --gpu none leaves them out";
            return Err(CommandError::Input(why.to_owned()));
        }
        ExecutorChoice::Cuda if common.via == Via::Verbs => {
            return Err(CommandError::NotInThisVersion {
                what: "--executor cuda --via verbs",
                missing: "queues of rdma-core's that a GPU drives",
            });
        }
        ExecutorChoice::Auto if common.via == Via::Verbs => return Ok(Executor::Host),
        ExecutorChoice::Auto if none || request.fault.is_some() || !run.system.nvidia_in_sight() => {
            return Ok(Executor::Host);
        }
        ExecutorChoice::Cuda if request.fault.is_some() => {
            let why = "--plant breaks a rule from the host; leave --executor out".to_owned();
            return Err(CommandError::Input(why));
        }
        _ => {}
    }
    // Asked for by name: that there is none is then a failure and no reason to leave checks out.
    run.runner.policy.no_gpu = false;
    let before = run.runner.findings.len();
    let gpus = run.group(Group::Cuda, request)?.gpus;
    let usable = |gpu: &&Gpu| {
        let subject = gpu.number.to_string();
        let passes = |code| {
            run.runner.findings.iter().any(|found| {
                found.code == code
                    && found.subject.as_deref() == Some(&*subject)
                    && found.state == State::Pass
            })
        };
        passes("CUDA-009") && passes("CUDA-010")
    };
    let gpu = match (gpus.iter().find(usable), choice) {
        (Some(gpu), _) => gpu,
        (None, ExecutorChoice::Cuda) => return Ok(Executor::Gpu(gpus.first().map_or(0, |gpu| gpu.number))),
        (None, _) => {
            run.runner.findings.truncate(before);
            return Ok(Executor::Host);
        }
    };
    if run.system.device.is_none() {
        run.system.device = run.system.nearest_adapter(gpu);
    }
    Ok(Executor::Gpu(gpu.number))
}
