//! The worker's end: receives the request, runs checks and reports each of them to the probe.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::{Event, Request};
use crate::check::{Check, Outcomes, Policy, Runner};
use crate::model::bench::Figure;
use crate::model::{Finding, State};

/// Why a worker process cannot do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WorkerError {
    /// The streams to the probe cannot be set up.
    #[error("the streams to the probe cannot be used: {0}")]
    Streams(#[from] std::io::Error),
    /// stdin holds no request.
    #[error(
        "the request on stdin cannot be parsed: {0}; the command __worker is internal: run gda-probe check"
    )]
    Request(#[from] serde_json::Error),
}

/// Runs checks and reports each of them to the probe.
#[derive(Debug)]
pub(crate) struct Stream {
    runner: Runner,
    /// Findings of earlier workers, at the front of the runner's; they are not reported again.
    known: usize,
    out: File,
}

/// Reports the progress of a long check.
#[derive(Debug)]
pub(crate) struct Progress(Option<File>);

impl Progress {
    /// Progress that nobody reads.
    pub(crate) fn silent() -> Self {
        Self(None)
    }

    /// Asks for `time` in addition to the time limit of a check.
    pub(crate) fn request_time(&mut self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.report(&Event::MoreTime(milliseconds));
    }

    /// Reports a measurement of a bench.
    pub(crate) fn figure(&mut self, figure: Figure) {
        self.report(&Event::Figure(Box::new(figure)));
    }

    /// Reports the next measurement of a bench.
    pub(crate) fn step(&mut self, done: usize, total: usize, now: String) {
        self.report(&Event::Step(done, total, now));
    }

    fn report(&mut self, event: &Event) {
        if let Some(out) = &mut self.0 {
            // A lost event ends this process at an earlier time limit; there is no other way to report it.
            let _ = write_event(out, event);
        }
    }
}

fn write_event(out: &mut File, event: &Event) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Binds this process to the probe that started it: it ends by signals and with the probe, and what libraries write to
/// stdout goes to stderr. Returns the stream to the probe.
pub(crate) fn detach() -> std::io::Result<File> {
    // The probe may block signals for its cleanup; a worker must end by them.
    SigSet::all().thread_unblock()?;
    // The worker ends with the probe, also when the probe is killed.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    let out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdout(std::io::stderr())?;
    Ok(out)
}

/// Ends this process without the exit handlers of foreign libraries.
pub(crate) fn end() -> ! {
    // SAFETY: _exit has no preconditions, and no state of this process is used afterwards.
    unsafe { libc::_exit(0) }
}

impl Stream {
    /// Takes over stdin and stdout and reads the request.
    pub(crate) fn open() -> Result<(Self, Request), WorkerError> {
        let out = detach()?;
        let request: Request = serde_json::from_reader(std::io::stdin().lock())?;
        let mut runner = Runner::new(Policy {
            soft: request.soft,
            no_gpu: request.no_gpu,
            not_loaded: request.not_loaded.clone(),
        });
        runner.findings.clone_from(&request.findings);
        Ok((Self { known: runner.findings.len(), runner, out }, request))
    }

    /// Whether a check failed for `subject`, in this worker or an earlier one.
    pub(crate) fn failed(&self, subject: &str) -> bool {
        let of = |finding: &Finding| finding.subject.as_deref() == Some(subject);
        self.runner.findings.iter().any(|finding| of(finding) && finding.state == State::Fail)
    }

    /// A handle with which long checks report progress.
    pub(crate) fn progress(&self) -> Progress {
        Progress(self.out.try_clone().ok())
    }

    /// Sends an event. Ends this process if the probe has closed the stream.
    pub(crate) fn send(&mut self, event: &Event) {
        if write_event(&mut self.out, event).is_err() {
            std::process::exit(1);
        }
    }

    /// Runs a check and reports its findings.
    pub(crate) fn run(&mut self, check: &Check, subject: Option<&str>, run: impl FnOnce() -> Outcomes) {
        let code = check.code;
        let known = self.runner.findings[..self.known]
            .iter()
            .any(|finding| finding.code == code && finding.subject.as_deref() == subject);
        if known && self.runner.blocked(check, subject).is_some() {
            return;
        }
        self.send(&Event::Begin(code.to_owned(), subject.map(str::to_owned)));
        if known {
            // An earlier worker reported it. Later checks need what it opens, and it may crash now.
            run();
            self.send(&Event::Repeated);
            return;
        }
        let before = self.runner.findings.len();
        self.runner.run(check, subject, run);
        let new: Vec<_> = self.runner.findings[before..].to_vec();
        for finding in new {
            self.send(&Event::Finding(finding));
        }
    }

    /// Reports that all checks have ended, and ends this process without the exit handlers of foreign
    /// libraries.
    pub(crate) fn finish(mut self) -> ! {
        self.send(&Event::Done);
        end()
    }
}
