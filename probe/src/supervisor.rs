//! Starts worker processes, enforces their time limits, and turns a worker that crashed or hung into
//! findings.

mod cpu;
mod crash;

use std::ffi::OsStr;
use std::io::{BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

pub(crate) use self::crash::describe;
use self::crash::{Crash, End};
use crate::check::{Check, Outcome, Runner, concerns};
use crate::checks::rows::{Row, Turn, plan, row};
use crate::exchange;
use crate::model::bench::Bench;
use crate::model::{Finding, Gpu, Pair, Put, Queues};
use crate::progress::{Progress, TICK};
use crate::worker::{COMMAND, Event, Executor, Group, Request, events};

/// How long a worker that has reported all results may take to end, before it is killed.
const DONE_WAIT: Duration = Duration::from_millis(500);
/// How long the end of a worker that crashed or was killed is waited for: on a busy machine, its last steps take seconds.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Whether CUDA loads kernels when a module is loaded (`EAGER`) or when they are first used (`LAZY`, its default).
const CUDA_MODULE_LOADING: &str = "CUDA_MODULE_LOADING";

/// The most time that a check can request in addition.
const MORE_TIME: Duration = Duration::from_secs(24 * 3600);
/// The most adapters and GPUs that a worker can report: a library can report any number.
const MAX_ADAPTERS: usize = 1024;
const MAX_GPUS: usize = 64;

/// A worker process could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the worker process of the {group:?} checks cannot be started: {source}{}", exchange::advice(source))]
pub(crate) struct StartError {
    group: Group,
    source: std::io::Error,
}

/// How long checks may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For any check.
    pub(crate) each: Duration,
    /// Added for a check that starts a foreign library.
    pub(crate) start: Duration,
}

/// What workers reported besides findings.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The file of libfabric.
    pub(crate) loaded: Option<String>,
    /// Domain names of the adapters that were checked.
    pub(crate) adapters: Vec<String>,
    /// GPUs that were checked.
    pub(crate) gpus: Vec<Gpu>,
    /// The first adapter's queues.
    pub(crate) queues: Option<Queues>,
    /// The puts on each adapter or pair.
    pub(crate) puts: Vec<Put>,
    /// The measurements of a bench.
    pub(crate) bench: Option<Bench>,
}

/// Runs the checks of `request` in workers and adds their findings to `runner`. When a worker crashes on
/// one adapter, GPU or pair, another worker runs the rest.
pub(crate) fn run(
    runner: &mut Runner,
    mut request: Request,
    limits: Limits,
    provider_path: Option<&OsStr>,
) -> Result<Results, StartError> {
    let mut results = Results::default();
    loop {
        request.findings.clone_from(&runner.findings);
        let ended = run_worker(runner, &request, limits, provider_path, &mut results);
        let Some(crash) = ended.map_err(|source| StartError { group: request.group, source })? else { break };
        let Crash { code, subject, end } = crash;
        let code = code.unwrap_or_else(|| plan(&request, Turn::Once)[0].check.code.to_owned());
        tracing::warn!(code, ?subject, observed = end.observed(), "a worker process ended before its checks");
        if let Some(row) = row(&code) {
            let problem = crash::problem(request.group, &end, results.loaded.as_deref());
            runner.record(&row.check, subject.clone(), Outcome::Fail(problem));
        }
        let subjects = subjects(&request, &results);
        skip_rest(runner, &request, &code, subject.as_deref(), &subjects);
        let lost = lost(&subjects, &request.avoid, subject.as_deref());
        request.avoid.extend(lost.iter().cloned());
        // With nothing new to avoid, the next worker would end as this one did.
        if lost.is_empty() || subjects.iter().all(|name| request.avoid.contains(name)) {
            break;
        }
    }
    Ok(results)
}

/// The subjects that a crash in `subject` costs, without those that an earlier crash cost. A crash in a
/// check of an adapter costs all pairs with that adapter.
fn lost(subjects: &[String], avoid: &[String], subject: Option<&str>) -> Vec<String> {
    let Some(subject) = subject else { return Vec::new() };
    let new = |name: &&String| concerns(subject, name) && !avoid.contains(name);
    subjects.iter().filter(new).cloned().collect()
}

/// The subjects that a worker checks for `request`, in their order.
fn subjects(request: &Request, results: &Results) -> Vec<String> {
    match (request.group, &request.executor) {
        (Group::Cuda, _) => results.gpus.iter().map(|gpu| gpu.number.to_string()).collect(),
        (_, Executor::Pairs(pairs)) => pairs.iter().map(Pair::subject).collect(),
        (_, Executor::Gpu(gpu)) => {
            let pair = |adapter: &String| Pair { gpu: *gpu, adapter: adapter.clone() };
            results.adapters.iter().map(|adapter| pair(adapter).subject()).collect()
        }
        _ => results.adapters.clone(),
    }
}

/// Skips the checks that a worker did not run because it crashed in `code`.
fn skip_rest(runner: &mut Runner, request: &Request, code: &str, subject: Option<&str>, subjects: &[String]) {
    let mut skip_all = |turn, subject: Option<&str>| {
        plan(request, turn).into_iter().for_each(|row: &Row| skip(runner, &row.check, subject, code));
    };
    skip_all(Turn::Once, None);
    // The checks of a pair's adapter come first, and a crash there costs all pairs of the adapter.
    let is_lost = |name: &&String| subject.is_none_or(|subject| concerns(subject, name));
    let lost: Vec<&String> = subjects.iter().filter(is_lost).collect();
    if lost.is_empty() {
        skip_all(Turn::Opening, subject);
        skip_all(Turn::Each, subject);
    }
    for name in lost {
        let adapter = name.split_once('/').map(|(_, adapter)| adapter);
        skip_all(Turn::Opening, adapter);
        skip_all(Turn::Each, Some(name));
    }
}

fn skip(runner: &mut Runner, check: &Check, subject: Option<&str>, code: &str) {
    let has_result = |finding: &Finding| {
        finding.code == check.code && (subject.is_none() || finding.subject.as_deref() == subject)
    };
    if !runner.findings.iter().any(has_result) {
        let (root, why) = runner
            .blocked(check, subject)
            .unwrap_or_else(|| (code.to_owned(), format!("the worker process ended in {code}")));
        runner.record(check, subject.map(str::to_owned), Outcome::Skip(root, why));
    }
}

/// softefa's variable for completion counters in domains of an API below 2.5.
const COUNTERS_OF_ANY_API: &str = "SOFTEFA_HW_CNTR";

/// The command that starts a worker by its hidden command `name`.
///
/// CUDA loads modules eagerly in it, unless the user decided otherwise: a lazy load waits for running kernels, and the
/// kernel of a put waits for the software adapter, whose copies from GPU memory need the driver.
pub(crate) fn worker_command(name: &str, provider_path: Option<&OsStr>) -> std::io::Result<Command> {
    let mut command = crate::executable::restart_command()?;
    crate::ending::ends_with_this_process(&mut command);
    command.args(verbosity()).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(path) = provider_path {
        command.env("FI_PROVIDER_PATH", path);
        // So that a libfabric before 2.5, which cannot request an API with counters, does not make a check of the
        // software adapter warn.
        if std::env::var_os(COUNTERS_OF_ANY_API).is_none() {
            command.env(COUNTERS_OF_ANY_API, "1");
        }
    }
    if std::env::var_os(CUDA_MODULE_LOADING).is_none() {
        command.env(CUDA_MODULE_LOADING, "EAGER");
    }
    Ok(command)
}

/// Runs one worker to its end. Returns how it crashed, if it did.
fn run_worker(
    runner: &mut Runner,
    request: &Request,
    limits: Limits,
    provider_path: Option<&OsStr>,
    results: &mut Results,
) -> std::io::Result<Option<Crash>> {
    let mut worker = worker_command(COMMAND, provider_path)?.spawn()?;
    if let Some(mut stdin) = worker.stdin.take() {
        // A write error means that the worker has ended; its exit status is reported below.
        let _ = stdin.write_all(&serde_json::to_vec(request).map_err(std::io::Error::from)?);
    }
    let (sender, received) = channel();
    if let Some(stdout) = worker.stdout.take() {
        let read = move || events::read(BufReader::new(stdout), &sender);
        if let Err(error) = std::thread::Builder::new().spawn(read) {
            reap(&mut worker, Duration::ZERO);
            return Err(error);
        }
    }
    let mut dispatch = Dispatch::new(runner, results, limits, worker.id());
    let end = dispatch.run(&received);
    let running = dispatch.running.take();
    let end = match end {
        StreamEnd::Done => {
            reap(&mut worker, DONE_WAIT);
            return Ok(None);
        }
        StreamEnd::TimedOut(end) => {
            reap(&mut worker, Duration::ZERO);
            end
        }
        StreamEnd::Closed => End::of(reap(&mut worker, KILL_WAIT)),
    };
    let (code, subject) = running.unzip();
    Ok(Some(Crash { code, subject: subject.flatten(), end }))
}

/// The option that gives the worker this process's verbosity.
fn verbosity() -> Option<&'static str> {
    if tracing::enabled!(tracing::Level::DEBUG) {
        return Some("-vv");
    }
    tracing::enabled!(tracing::Level::INFO).then_some("-v")
}

/// Why no more events come.
pub(crate) enum StreamEnd {
    /// The worker reported that all checks have ended.
    Done,
    /// The worker's output ended before that.
    Closed,
    /// No event came within a time limit.
    TimedOut(End),
}

/// Handles a worker's events.
pub(crate) struct Dispatch<'a> {
    runner: &'a mut Runner,
    results: &'a mut Results,
    limits: Limits,
    /// The code and subject of the running check.
    running: Option<(String, Option<String>)>,
    /// Time that the running check requested.
    additional_time: Duration,
    /// Whether the worker has reported how long libfabric took to start.
    has_started: bool,
    progress: Progress,
    /// The worker's process number.
    process: u32,
}

impl<'a> Dispatch<'a> {
    pub(crate) fn new(
        runner: &'a mut Runner,
        results: &'a mut Results,
        limits: Limits,
        process: u32,
    ) -> Self {
        let (additional_time, has_started, progress) = (Duration::ZERO, false, Progress::new());
        Self { runner, results, limits, running: None, additional_time, has_started, progress, process }
    }

    /// Handles events until no more come.
    pub(crate) fn run(&mut self, events: &Receiver<Event>) -> StreamEnd {
        loop {
            // Libraries start in checks without a subject.
            let starting = self.running.as_ref().is_none_or(|(_, subject)| subject.is_none());
            let start = if starting { self.limits.start } else { Duration::ZERO };
            let limit = (self.limits.each + start).saturating_add(std::mem::take(&mut self.additional_time));
            match self.next(events, limit) {
                Ok(Event::Done) => return StreamEnd::Done,
                Ok(event) => self.handle(event),
                Err(end) => return end,
            }
        }
    }

    /// Waits for an event, and shows the elapsed time meanwhile.
    fn next(&mut self, events: &Receiver<Event>, limit: Duration) -> Result<Event, StreamEnd> {
        let process = self.process;
        let mut wait = cpu::Limit::new(limit, || cpu::waits(process));
        while let Some(left) = wait.left() {
            let left = if self.progress.is_live() { left.min(TICK) } else { left };
            match events.recv_timeout(left) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Disconnected) => return Err(StreamEnd::Closed),
                Err(RecvTimeoutError::Timeout) => self.progress.tick(),
            }
        }
        let (without_cpu, starved) = (wait.without_cpu, wait.starved());
        Err(StreamEnd::TimedOut(End::TimedOut { limit, without_cpu, starved }))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(code, subject) => {
                self.progress.check(&code, subject.as_deref());
                self.running = Some((code, subject));
            }
            Event::Finding(finding) => {
                self.running = None;
                self.runner.findings.push(finding);
            }
            Event::Loaded(path) => self.results.loaded = Some(path),
            // A machine on which libfabric starts slowly is slow in later checks as well. A second report would raise the
            // limit that the first one raised.
            Event::Started(_) if self.has_started => {}
            Event::Started(milliseconds) => {
                self.has_started = true;
                self.limits.each +=
                    Duration::from_millis(milliseconds).min(self.limits.each + self.limits.start)
            }
            Event::Adapters(mut names) => {
                names.truncate(MAX_ADAPTERS);
                self.results.adapters = names;
            }
            Event::Gpus(mut gpus) => {
                gpus.truncate(MAX_GPUS);
                self.results.gpus = gpus;
            }
            Event::Queues(queues) => {
                self.results.queues.get_or_insert(queues);
            }
            Event::Put(put) => self.results.puts.push(put),
            Event::Figure(figure) => self.results.bench.get_or_insert_default().add(*figure),
            Event::Step(done, total, now) => self.progress.step(done, total, &now),
            Event::Repeated => self.running = None,
            Event::MoreTime(milliseconds) => {
                self.additional_time = Duration::from_millis(milliseconds).min(MORE_TIME);
            }
            Event::Done => {}
        }
    }
}

/// Waits for the worker's end for `patience`, then kills it and waits for [`KILL_WAIT`]. Returns None if the
/// worker has not ended by then, because it is stuck in the kernel; the probe goes on without it.
pub(crate) fn reap(worker: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let mut deadline = Instant::now() + patience;
    let mut killed = false;
    loop {
        match worker.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) if !killed => {
                // An error means that the worker has ended, which the next try_wait returns.
                let _ = worker.kill();
                killed = true;
                deadline = Instant::now() + KILL_WAIT;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::check::Policy;
    use crate::model::{Doorbell, Memory, Op, State};
    use crate::worker::{BenchRequest, PutRequest};

    #[test]
    fn cuda_loads_modules_eagerly_in_a_worker() {
        let command = worker_command(COMMAND, None).unwrap();
        let set = command.get_envs().find(|(name, _)| *name == CUDA_MODULE_LOADING);
        let inherited = std::env::var_os(CUDA_MODULE_LOADING);
        assert!(
            inherited.is_some() || set == Some((OsStr::new(CUDA_MODULE_LOADING), Some(OsStr::new("EAGER"))))
        );
    }

    /// What workers reported, and the time of a check, after a worker sent `events`.
    fn after(events: impl IntoIterator<Item = Event>) -> (Results, Duration) {
        let (mut runner, mut results) = (Runner::new(Policy::default()), Results::default());
        let limits = Limits { each: Duration::from_secs(10), start: Duration::from_secs(20) };
        let mut dispatch = Dispatch::new(&mut runner, &mut results, limits, std::process::id());
        events.into_iter().for_each(|event| dispatch.handle(event));
        let each = dispatch.limits.each;
        (results, each)
    }

    #[test]
    fn a_worker_that_reports_its_start_again_and_again_gets_the_time_of_one_report() {
        let started = |times| std::iter::repeat_with(|| Event::Started(u64::MAX)).take(times);
        assert_eq!(after(started(1000)).1, after(started(1)).1);
    }

    #[test]
    fn a_worker_that_reports_any_number_of_adapters_is_believed_up_to_a_bound() {
        let names = (0..100_000).map(|number| number.to_string()).collect();
        assert_eq!(after([Event::Adapters(names)]).0.adapters.len(), MAX_ADAPTERS);
    }

    fn request(executor: Executor) -> Request {
        let put = PutRequest {
            op: Op::Write,
            bytes: 64,
            count: 1,
            max_seconds: 1,
            one_adapter: true,
            fault: None,
            qualify_laps: None,
        };
        Request {
            group: Group::Fabric,
            root: PathBuf::new(),
            soft: false,
            no_gpu: false,
            not_loaded: Vec::new(),
            provider: None,
            device: None,
            avoid: Vec::new(),
            gpu: None,
            executor,
            doorbell: Doorbell::Auto,
            put,
            bench: Some(BenchRequest { queues: 1, time_limit: 1 }),
            memory: Memory::Host,
            exposure_alone: false,
            wait: 1,
            findings: Vec::new(),
        }
    }

    /// The findings after a worker of GPU 0 and adapter `a` passed all checks before `code` of `subject` and
    /// crashed in it.
    fn crashed_in(code: &str, subject: &str) -> Vec<Finding> {
        let mut runner = Runner::new(Policy::default());
        let request = request(Executor::Gpu(0));
        let turns = [(Turn::Once, None), (Turn::Opening, Some("a")), (Turn::Each, Some("0/a"))];
        let all = turns
            .into_iter()
            .flat_map(|(turn, of)| plan(&request, turn).into_iter().map(move |row| (row, of)));
        for (Row { check, .. }, of) in all {
            if (check.code, of) == (code, Some(subject)) {
                break;
            }
            runner.record(check, of.map(str::to_owned), Outcome::pass(""));
        }
        let check = &row(code).unwrap().check;
        let problem = crash::problem(Group::Fabric, &End::Ended(String::new()), None);
        runner.record(check, Some(subject.to_owned()), Outcome::Fail(problem));
        skip_rest(&mut runner, &request, code, Some(subject), &["0/a".to_owned()]);
        runner.findings
    }

    fn skipped<'a>(findings: &'a [Finding], subject: &str) -> Vec<&'a str> {
        let of = |one: &&Finding| one.state == State::Skip && one.subject.as_deref() == Some(subject);
        findings.iter().filter(of).map(|one| one.code.as_str()).collect()
    }

    #[test]
    fn a_crash_in_a_pairs_check_skips_the_pairs_later_checks_and_none_of_its_adapter() {
        let findings = crashed_in("CUDA-008", "0/a");
        assert_eq!(
            skipped(&findings, "0/a"),
            [
                "CUDA-012", "CUDA-013", "CUDA-014", "QUE-008", "PUT-001", "PUT-002", "PUT-003", "PUT-004",
                "PUT-006", "PUT-005"
            ]
        );
        assert!(skipped(&findings, "a").is_empty(), "{findings:?}");
    }

    #[test]
    fn a_crash_in_a_check_of_a_pairs_adapter_skips_later_checks_of_both() {
        let findings = crashed_in("QUE-005", "a");
        assert_eq!(skipped(&findings, "a"), ["QUE-006", "QUE-007"]);
        assert_eq!(skipped(&findings, "0/a").len(), plan(&request(Executor::Gpu(0)), Turn::Each).len());
    }

    #[test]
    fn a_crash_in_a_check_of_an_adapter_costs_all_of_its_pairs_and_no_others() {
        let subjects = ["0/a", "0/b", "1/a"].map(str::to_owned);
        assert_eq!(lost(&subjects, &[], Some("a")), ["0/a", "1/a"]);
        assert_eq!(lost(&subjects, &[], Some("0/b")), ["0/b"]);
        assert!(lost(&subjects, &[], None).is_empty());
    }

    #[test]
    fn subjects_that_an_earlier_crash_cost_are_not_lost_again() {
        let subjects = ["0", "1"].map(str::to_owned);
        assert!(lost(&subjects, &subjects[..1], Some("0")).is_empty());
    }
}
