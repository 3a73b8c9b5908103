//! Starts the processes with the ranks of this machine, serves the exchange if rank 0 is here, and bounds the time of
//! both.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use serde_json::Value;

use super::{COMMAND, Job};
use crate::exchange::Deadline;
use crate::exchange::hub::Hub;
use crate::exchange::member::NOT_JOINED;
use crate::model::Memory;
use crate::model::ranks::Pe;
use crate::model::text::{make_visible, visible};
use crate::supervisor::{describe, reap, worker_command};

/// With this variable, softefa offers memory of GPUs.
const SOFTEFA_HMEM: &str = "SOFTEFA_HMEM";
/// The most bytes of a result.
const MOST_BYTES: u64 = 1 << 16;
/// How long a process may take to end after its last result, on a busy machine too.
const ENDING: Duration = Duration::from_secs(5);

/// What the ranks reported.
#[derive(Debug)]
pub(crate) struct Reported {
    /// The results, by rank: those of this machine, and those of other ranks as far as they are known.
    pub(crate) pes: Vec<Pe>,
    /// Why the exchange failed, if rank 0 is here.
    pub(crate) exchange: Option<String>,
}

/// Runs each job in a process of its own. A process that has not ended after `limit` is killed.
pub(crate) fn run(
    jobs: &[Job],
    hub: Option<Hub>,
    provider_path: Option<&OsStr>,
    limit: Duration,
) -> io::Result<Reported> {
    let serving = hub.map(Hub::serve).transpose()?;
    let (results, received) = mpsc::channel();
    let deadline = Deadline::after(limit);
    let mut processes = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        match start(job, index, provider_path, &results) {
            Ok(process) => processes.push(process),
            Err(error) => {
                for process in &mut processes {
                    reap(process, Duration::ZERO);
                }
                return Err(error);
            }
        }
    }
    drop(results);
    let mut pes = collect(&received, deadline, |index, own| {
        // Without effect if its ranks had arrived, as all others then have.
        if let Some((serving, here)) = serving.as_ref().zip(jobs[index].here.first()) {
            let why = own.iter().find(|pe| pe.rank == here.rank).and_then(|pe| pe.error.as_deref());
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let rank = here.rank;
            serving
                .stop_waiting(format!("the process of rank {rank} ended before all ranks had arrived{why}"));
        }
    });
    let late = deadline.left().is_none();
    for (job, process) in jobs.iter().zip(&mut processes) {
        let ended = reap(process, if late { Duration::ZERO } else { ENDING });
        for here in &job.here {
            if pes.iter().any(|pe| pe.rank == here.rank) {
                continue;
            }
            let why = match ended {
                _ if late => format!("no result within {} ms; its process was killed", limit.as_millis()),
                Some(status) => describe(status),
                None => "its process closed its output and did not end".to_owned(),
            };
            pes.push(Pe { rank: here.rank, error: Some(why), ..Pe::default() });
        }
    }
    pes.sort_by_key(|pe| pe.rank);
    let exchange = serving.and_then(|serving| serving.join().err()).map(|why| visible(&why));
    name_cause(&mut pes, exchange.as_deref());
    Ok(Reported { pes, exchange })
}

/// Reports why the exchange ended as the result of rank 0 if its process started too late to join: "start rank 0" would
/// be wrong, because the exchange is in this process.
fn name_cause(pes: &mut [Pe], exchange: Option<&str>) {
    let has_missed =
        |pe: &&mut Pe| pe.rank == 0 && pe.error.as_deref().is_some_and(|error| error.contains(NOT_JOINED));
    if let Some((why, pe)) = exchange.zip(pes.iter_mut().find(has_missed)) {
        pe.error = Some(why.to_owned());
    }
}

/// What a process reported.
enum Report {
    /// The result of a rank, and whether it is the process's own.
    Result(bool, Box<Pe>),
    /// Nothing more: the end of the process with this number.
    End(usize),
}

fn start(
    job: &Job,
    index: usize,
    provider_path: Option<&OsStr>,
    results: &Sender<Report>,
) -> io::Result<Child> {
    let mut command = worker_command(COMMAND, provider_path)?;
    if job.request.soft && job.request.memory == Memory::Gpu {
        command.env(SOFTEFA_HMEM, "1");
    }
    let mut process = command.spawn()?;
    if let Some(mut stdin) = process.stdin.take() {
        // A write error means that the process has ended; its exit status is reported.
        let _ = stdin.write_all(&serde_json::to_vec(job)?);
    }
    if let Some(stdout) = process.stdout.take() {
        let (results, job) = (results.clone(), job.clone());
        let started = std::thread::Builder::new().spawn(move || {
            read(stdout, &job, &results);
            // The collector has ended if nobody receives it.
            let _ = results.send(Report::End(index));
        });
        if let Err(error) = started {
            reap(&mut process, Duration::ZERO);
            return Err(error);
        }
    }
    Ok(process)
}

/// Reads the results that a process reports, until it ends or exceeds a bound. Libraries run in it and may write
/// anything.
fn read(stdout: ChildStdout, job: &Job, results: &Sender<Report>) {
    let mut stdout = BufReader::new(stdout);
    for _ in 0..job.here.len().saturating_mul(job.of as usize) {
        let mut line = Vec::new();
        match (&mut stdout).take(MOST_BYTES).read_until(b'\n', &mut line) {
            Ok(length) if length > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let parsed = serde_json::from_slice(&line).and_then(|mut value: Value| {
            make_visible(&mut value);
            serde_json::from_value::<Pe>(value)
        });
        match parsed {
            Ok(pe) if pe.rank < job.of => {
                let own = job.here.iter().any(|here| here.rank == pe.rank);
                if results.send(Report::Result(own, Box::new(pe))).is_err() {
                    return;
                }
            }
            _ => tracing::warn!("a process with ranks wrote a line that is no result"),
        }
    }
}

/// Collects results until all processes have ended. A rank's own result is preferred to what others know of it. Calls
/// `ended` with the number of each process that ends, and the results of ranks on themselves.
fn collect(received: &Receiver<Report>, deadline: Deadline, ended: impl Fn(usize, &[Pe])) -> Vec<Pe> {
    let (mut own, mut others) = (Vec::<Pe>::new(), Vec::<Pe>::new());
    while let Ok(report) = received.recv_timeout(deadline.left().unwrap_or_default()) {
        match report {
            Report::Result(is_own, pe) => {
                let known = if is_own { &mut own } else { &mut others };
                if known.iter().all(|one| one.rank != pe.rank) {
                    known.push(*pe);
                }
            }
            Report::End(index) => ended(index, &own),
        }
    }
    others.retain(|other| own.iter().all(|one| one.rank != other.rank));
    own.extend(others);
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_that_missed_its_own_exchange_has_the_result_of_the_exchange() {
        let missed = |rank| {
            let error = format!("rank {rank} of 2 {NOT_JOINED} at 127.0.0.1:1");
            Pe { rank, error: Some(error), ..Pe::default() }
        };
        let mut pes = [missed(0), missed(1)];
        name_cause(&mut pes, Some("rank 1 did not arrive"));
        assert_eq!(pes[0].error.as_deref(), Some("rank 1 did not arrive"));
        assert!(pes[1].error.as_deref().is_some_and(|error| error.contains(NOT_JOINED)));
    }
}
