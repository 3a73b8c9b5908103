//! The child's side: runs a part's checks and streams what they find.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::{Event, Part, Request};
use crate::check::{Policy, Runner, Unit};
use crate::checks::cuda::{self, Cuda};
use crate::checks::{dev, fabric, verbs};
use crate::report::bench::Figure;
use crate::report::{Finding, State};
use crate::system::System;

/// Why a child could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChildError {
    /// The streams to the parent are not what they should be.
    #[error("the streams to the parent cannot be used: {0}")]
    Streams(#[from] std::io::Error),
    /// The request is not one.
    #[error("the parent's request cannot be read: {0}; start gda-probe without __part")]
    Request(#[from] serde_json::Error),
}

/// Runs the checks of a part and tells the parent of each.
#[derive(Debug)]
pub(crate) struct Stream {
    runner: Runner,
    /// Findings that the parent had before; not reported again.
    known: usize,
    out: File,
}

/// Tells the parent that a long check goes on.
#[derive(Debug)]
pub(crate) struct Progress(Option<File>);

impl Progress {
    /// The next step may take `time` more than a check usually may.
    pub(crate) fn needs(&mut self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.tell(&Event::Progress { milliseconds });
    }

    /// A bench measured this.
    pub(crate) fn figure(&mut self, figure: Figure) {
        self.tell(&Event::Figure { figure: Box::new(figure) });
    }

    /// A bench comes to this.
    pub(crate) fn step(&mut self, done: usize, total: usize, now: String) {
        self.tell(&Event::Step { done, total, now });
    }

    fn tell(&mut self, event: &Event) {
        if let Some(out) = &mut self.0 {
            // A parent that does not hear it ends this process sooner; it cannot be told in another way.
            let _ = write_event(out, event);
        }
    }
}

fn write_event(out: &mut File, event: &Event) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    out.write_all(&line)
}

impl Stream {
    /// Whether a check failed for `subject`, in this child or one before it.
    pub(crate) fn failed(&self, subject: &str) -> bool {
        let of = |finding: &Finding| finding.subject.as_deref() == Some(subject);
        self.runner.findings.iter().any(|finding| of(finding) && finding.state == State::Fail)
    }

    /// For checks that take long.
    pub(crate) fn progress(&self) -> Progress {
        Progress(self.out.try_clone().ok())
    }

    /// Sends an event. A parent that is gone ends this process: there is nobody left to work for.
    pub(crate) fn send(&mut self, event: &Event) {
        if write_event(&mut self.out, event).is_err() {
            std::process::exit(1);
        }
    }

    /// Runs a check and reports what it found.
    pub(crate) fn run<S>(&mut self, unit: &Unit<S>, subject: Option<&str>, state: &mut S) {
        let code = unit.check.code;
        let known = self.runner.findings[..self.known]
            .iter()
            .any(|finding| finding.code == code && finding.subject.as_deref() == subject);
        if known {
            // A child before this one reported it; what it opens is needed again, and may go wrong now.
            if self.runner.blocked(&unit.check, subject).is_none() {
                self.send(&Event::Begin { code: code.to_owned(), subject: subject.map(str::to_owned) });
                (unit.run)(state);
                self.send(&Event::Again);
            }
            return;
        }
        self.send(&Event::Begin { code: code.to_owned(), subject: subject.map(str::to_owned) });
        let before = self.runner.findings.len();
        self.runner.run(unit, subject, state);
        let new: Vec<_> = self.runner.findings[before..].to_vec();
        for finding in new {
            self.send(&Event::Found { finding });
        }
    }
}

/// Runs the part that stdin asks for. Does not return where all went well: exit handlers of foreign
/// libraries are left out.
pub(crate) fn run() -> Result<(), ChildError> {
    // The parent may hold signals back for its own cleaning up; here they act as usual.
    SigSet::all().thread_unblock().map_err(std::io::Error::from)?;
    // A parent that is killed takes its child with it.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)?;
    let out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdout(std::io::stderr()).map_err(std::io::Error::from)?;
    let request: Request = serde_json::from_reader(std::io::stdin().lock())?;
    let mut runner = Runner::new(Policy { soft: request.soft, no_gpu: request.no_gpu });
    runner.findings.clone_from(&request.findings);
    let mut stream = Stream { known: runner.findings.len(), runner, out };
    match request.part {
        Part::Fabric => fabric::run(&mut stream, request),
        Part::Verbs => verbs::run(&mut stream, request),
        Part::Cuda => run_cuda(&mut stream, &request),
        Part::Nodes => {
            let mut system = System::of(request.root, request.device);
            dev::opening().for_each(|unit| stream.run(unit, None, &mut system));
        }
    }
    stream.send(&Event::End);
    // SAFETY: ends the process at once; no state of it is needed any more.
    unsafe { libc::_exit(0) }
}

fn run_cuda(stream: &mut Stream, request: &Request) {
    let mut cuda = Cuda::of(request.gpu, stream.progress());
    for unit in cuda::CHECKS {
        stream.run(unit, None, &mut cuda);
    }
    let gpus = cuda.gpus.clone();
    stream.send(&Event::Gpus { gpus: gpus.clone() });
    for gpu in &gpus {
        let subject = gpu.number.to_string();
        // What a child did not survive, this one would not either.
        if request.avoid.contains(&subject) {
            continue;
        }
        cuda.look_at(gpu.number);
        for unit in cuda::GPU_CHECKS {
            stream.run(unit, Some(&subject), &mut cuda);
        }
    }
}
