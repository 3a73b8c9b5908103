//! The checks of each worker process. The worker runs them; the probe lists them to report those that a
//! crashed worker did not run.

use super::cuda::{self, Cuda};
use super::{dev, fabric, verbs};
use crate::check::{Check, Unit};
use crate::system::System;
use crate::worker::stream::{Stream, WorkerError};
use crate::worker::{Event, Executor, Group, Request};

/// Runs the checks that the request on stdin names. Returns on failure only.
pub(crate) fn run() -> Result<std::convert::Infallible, WorkerError> {
    let (mut stream, request) = Stream::open()?;
    match request.group {
        Group::Fabric => fabric::run(&mut stream, request),
        Group::Verbs => verbs::run(&mut stream, request),
        Group::Cuda => run_cuda(&mut stream, &request),
        Group::Nodes => {
            let mut system = System { root: request.root, device: request.device, ..System::default() };
            dev::opening().for_each(|unit| stream.run(unit, None, &mut system));
        }
    }
    stream.finish()
}

fn run_cuda(stream: &mut Stream, request: &Request) {
    let system = System { root: request.root.clone(), ..System::default() };
    let mut cuda = Cuda::new(request.gpu, &system, stream.progress());
    for unit in cuda::CHECKS {
        stream.run(unit, None, &mut cuda);
    }
    let gpus = cuda.gpus.clone();
    stream.send(&Event::Gpus(gpus.clone()));
    for gpu in &gpus {
        let subject = gpu.number.to_string();
        if request.avoid.contains(&subject) {
            continue;
        }
        cuda.select(gpu.number);
        for unit in cuda::GPU_CHECKS {
            stream.run(unit, Some(&subject), &mut cuda);
        }
    }
}

/// The checks of a group.
#[derive(Default)]
pub(crate) struct Plan {
    /// Checks without a subject.
    pub(crate) once: Vec<&'static Check>,
    /// Checks of a pair's adapter, which run before the checks of the pair.
    pub(crate) opening: Vec<&'static Check>,
    /// Checks of each subject.
    pub(crate) each: Vec<&'static Check>,
}

/// The checks that [`run`] runs for `request`.
pub(crate) fn plan(request: &Request) -> Plan {
    match request.group {
        Group::Fabric => {
            let (opening, each) = match request.executor {
                Executor::Host => (Vec::new(), fabric::adapter_checks().collect()),
                Executor::Gpu(_) => (of(fabric::on_gpu::opening()), fabric::on_gpu::pair_checks().collect()),
                Executor::Pairs(_) => (Vec::new(), fabric::on_gpu::pair_checks().collect()),
            };
            let each = of(fabric::with_bench(each, request));
            Plan { once: of(fabric::start::CHECKS), opening, each }
        }
        Group::Verbs => {
            let each = match request.exposure_alone {
                true => of(verbs::objects::CHECKS),
                false => of(verbs::adapter_checks()),
            };
            Plan { once: of(verbs::start::CHECKS), each, ..Plan::default() }
        }
        Group::Cuda => Plan { once: of(cuda::CHECKS), each: of(cuda::GPU_CHECKS), ..Plan::default() },
        Group::Nodes => Plan { once: of(dev::opening()), ..Plan::default() },
    }
}

fn of<S: 'static>(units: impl IntoIterator<Item = &'static Unit<S>>) -> Vec<&'static Check> {
    units.into_iter().map(|unit| &unit.check).collect()
}
