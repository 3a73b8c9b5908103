//! Chooses where the device code of a command runs, by `--executor` and the GPUs of the machine.

use super::CommandError;
use super::run::Run;
use crate::checks::rows::{self, rows};
use crate::cli::{Common, ExecutorChoice};
use crate::model::{Gpu, GpuChoice, State, Via};
use crate::worker::{Executor, Group, PutRequest};

/// Chooses where the device code runs. With `--executor cuda` and no usable GPU, the findings show why none
/// is usable. With `--executor auto`, those findings are dropped and the host runs the device code.
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
            let why = "--executor cuda needs a GPU, but --gpu none leaves GPUs out; omit one of the options";
            return Err(CommandError::Input(why.to_owned()));
        }
        ExecutorChoice::Cuda if common.via == Via::Verbs => {
            return Err(CommandError::NotInThisVersion {
                what: "--executor cuda --via verbs",
                missing: "GPUs that drive queues opened by rdma-core",
                instead: "use --executor host, or --via libfabric",
            });
        }
        ExecutorChoice::Auto if common.via == Via::Verbs => return Ok(Executor::Host),
        ExecutorChoice::Auto if none || request.fault.is_some() || !run.system.has_nvidia() => {
            return Ok(Executor::Host);
        }
        ExecutorChoice::Cuda if request.fault.is_some() => {
            let why = "--plant breaks a rule from the host; omit --executor".to_owned();
            return Err(CommandError::Input(why));
        }
        _ => {}
    }
    // A GPU was requested, so its absence is a failure and not a reason to skip checks.
    run.runner.policy.no_gpu = false;
    let before = run.runner.findings.len();
    let gpus = run.group(Group::Cuda, request.into())?.gpus;
    let of_gpu =
        |code: &&str| rows().any(|row| row.check.code == *code && matches!(row.run, rows::Run::Gpu(_)));
    let of_pairs = rows().filter(|row| matches!(row.run, rows::Run::Pair(_) | rows::Run::Posting(..)));
    let needed: Vec<&str> = of_pairs.flat_map(|row| row.check.needs.iter().copied()).filter(of_gpu).collect();
    let usable = |gpu: &&Gpu| {
        let subject = gpu.number.to_string();
        let passes = |code: &&str| {
            run.runner.findings.iter().any(|finding| {
                finding.code == **code
                    && finding.subject.as_deref() == Some(&*subject)
                    && finding.state == State::Pass
            })
        };
        needed.iter().all(passes)
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
