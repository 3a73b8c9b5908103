//! What each worker process does: the rows of its group, on the state that they share.

use super::cuda::Cuda;
use super::rows::{Turn, plan};
use super::{fabric, verbs};
use crate::system::System;
use crate::worker::stream::{Stream, WorkerError};
use crate::worker::{Event, Group, Request};

/// Runs the checks that the request on stdin names. Returns on failure only.
pub(crate) fn run() -> Result<std::convert::Infallible, WorkerError> {
    let (mut stream, request) = Stream::open()?;
    match request.group {
        Group::Fabric => fabric::run(&mut stream, request),
        Group::Verbs => verbs::run(&mut stream, request),
        Group::Cuda => run_cuda(&mut stream, &request),
        Group::Nodes => {
            let rows = plan(&request, Turn::Once);
            let mut system = System { root: request.root, device: request.device, ..System::default() };
            rows.iter().for_each(|row| stream.run(&row.check, None, || row.outcomes(&mut system)));
        }
    }
    stream.finish()
}

fn run_cuda(stream: &mut Stream, request: &Request) {
    let system = System { root: request.root.clone(), ..System::default() };
    let mut cuda = Cuda::new(request.gpu, &system, stream.progress());
    for row in plan(request, Turn::Once) {
        stream.run(&row.check, None, || row.outcomes(&mut cuda));
    }
    let gpus = cuda.gpus.clone();
    stream.send(&Event::Gpus(gpus.clone()));
    for gpu in &gpus {
        let subject = gpu.number.to_string();
        if request.avoid.contains(&subject) {
            continue;
        }
        cuda.select(gpu.number);
        for row in plan(request, Turn::Each) {
            stream.run(&row.check, Some(&subject), || row.outcomes(&mut cuda));
        }
    }
}
