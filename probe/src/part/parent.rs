//! The parent's side: starts a child, watches the clock, and turns its end into findings.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::{COMMAND, Driver, Event, Gpu, Pair, Part, Request};
use crate::check::{Check, Outcome, Runner, Trouble, Unit, concerns};
use crate::checks;
use crate::cli::TIME_LIMIT;
use crate::report::bench::Bench;
use crate::report::{Put, Queues, Who};

/// How long a killed child may take to go.
const BURIAL: Duration = Duration::from_millis(500);

/// Why a child could not be used at all.
#[derive(Debug, thiserror::Error)]
#[error("the child process for {part:?} checks cannot be started: {source}")]
pub(crate) struct StartError {
    part: Part,
    source: std::io::Error,
}

/// How long checks may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Any check.
    pub(crate) each: Duration,
    /// Added for a check that starts a foreign library.
    pub(crate) start: Duration,
}

/// What a child said besides findings.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The file of libfabric.
    pub(crate) loaded: Option<String>,
    /// Domain names of the adapters looked at.
    pub(crate) adapters: Vec<String>,
    /// GPUs looked at.
    pub(crate) gpus: Vec<Gpu>,
    /// The first adapter's queues.
    pub(crate) queues: Option<Queues>,
    /// What was put, on each adapter or pair.
    pub(crate) puts: Vec<Put>,
    /// What a bench measured.
    pub(crate) bench: Option<Bench>,
}

/// How a child ended.
enum End {
    Well,
    /// In this check, for this reason.
    Badly {
        code: Option<String>,
        subject: Option<String>,
        observed: String,
        /// Whether it ran out of time.
        late: bool,
    },
}

/// Runs the checks of `request` in children, and adds what they find to `runner`. A child that does
/// not survive one adapter, GPU or pair is followed by another for the rest.
pub(crate) fn run(
    runner: &mut Runner,
    mut request: Request,
    limits: Limits,
    provider_path: Option<&OsStr>,
) -> Result<Gathered, StartError> {
    let mut gathered = Gathered::default();
    loop {
        request.findings.clone_from(&runner.findings);
        let ended = one_child(runner, &request, limits, provider_path, &mut gathered)
            .map_err(|source| StartError { part: request.part, source })?;
        let End::Badly { code, subject, observed, late } = ended else { break };
        let code = code.unwrap_or_else(|| first_code(request.part).to_owned());
        tracing::warn!(code, ?subject, observed, "a child process did not end well");
        if let Some(check) = checks::registry().into_iter().find(|check| check.code == code) {
            runner.record(
                check,
                subject.clone(),
                Outcome::Fail(did_not_survive(request.part, observed, late.then_some(limits))),
            );
        }
        skip_rest(runner, &request, &code, subject.as_deref(), &gathered);
        let subjects = subjects(&request, &gathered);
        let lost = lost(&subjects, &request.avoid, subject.as_deref());
        request.avoid.extend(lost.iter().cloned());
        // Where nothing new is avoided, the next child would end as this one did.
        if lost.is_empty() || subjects.iter().all(|name| request.avoid.contains(name)) {
            break;
        }
    }
    Ok(gathered)
}

/// Those of `subjects` that are lost with a child that ended in `subject`, and were not lost before: of
/// pairs, all of an adapter's where the checks that open its queue end the child.
fn lost(subjects: &[String], avoid: &[String], subject: Option<&str>) -> Vec<String> {
    let Some(subject) = subject else { return Vec::new() };
    let new = |name: &&String| concerns(subject, name) && !avoid.contains(name);
    subjects.iter().filter(new).cloned().collect()
}

/// What a child of this request goes through, one after the other.
fn subjects(request: &Request, gathered: &Gathered) -> Vec<String> {
    match (request.part, &request.driver) {
        (Part::Cuda, _) => gathered.gpus.iter().map(|gpu| gpu.number.to_string()).collect(),
        (_, Driver::Pairs(pairs)) => pairs.iter().map(Pair::subject).collect(),
        (_, Driver::Gpu(gpu)) => {
            let pair = |adapter: &String| Pair { gpu: *gpu, adapter: adapter.clone() };
            gathered.adapters.iter().map(|adapter| pair(adapter).subject()).collect()
        }
        _ => gathered.adapters.clone(),
    }
}

/// `late` holds the limits where time ran out.
fn did_not_survive(part: Part, observed: String, late: Option<Limits>) -> Trouble {
    if part == Part::Nodes {
        return Trouble {
            observed,
            required: "a node that opens, or says why not".to_owned(),
            why: "whatever opens this device hangs with it, libfabric too".to_owned(),
            fix: "look for efa in dmesg on the host; load the driver again, or start the host again"
                .to_owned(),
            who: Who::Host,
        };
    }
    let fix = "set FI_LOG_LEVEL=warn and run again with -v to see its last words; compare its version with \
               the adapter's driver, and report it to whoever made it; a slow machine may want --time-limit";
    let short = late.and_then(|limits| short_limit(limits.each));
    // No library sends it: the kernel does, where memory or CPU time has run out, or somebody else.
    let killed = observed.contains("(SIGKILL)").then_some(
        "look for the limit that was reached (memory of the container, ulimit -t) in dmesg on the host; otherwise ",
    );
    Trouble {
        observed,
        required: "an answer, from a process that goes on".to_owned(),
        why: "the library or its provider crashed or hung in this step; it would take a program with it"
            .to_owned(),
        fix: format!("{}{}{fix}", short.unwrap_or_default(), killed.unwrap_or_default()),
        who: Who::Image,
    }
}

/// How a fix begins where time ran out and the limit is shorter than usual.
pub(crate) fn short_limit(each: Duration) -> Option<String> {
    let short = each < Duration::from_millis(TIME_LIMIT);
    short.then(|| format!("raise --time-limit ({TIME_LIMIT} where nothing is said); otherwise "))
}

fn first_code(part: Part) -> &'static str {
    match part {
        Part::Fabric => checks::fabric::start::CHECKS[0].check.code,
        Part::Verbs => checks::verbs::start::CHECKS[0].check.code,
        Part::Cuda => checks::cuda::CHECKS[0].check.code,
        Part::Nodes => checks::dev::OPENS,
    }
}

/// The checks of a part.
#[derive(Default)]
struct Plan {
    /// Those without a subject.
    once: Vec<&'static Check>,
    /// Those of a pair's adapter, where they were not run before the pairs.
    opening: Vec<&'static Check>,
    /// Those of each subject.
    each: Vec<&'static Check>,
}

fn plan(request: &Request) -> Plan {
    match request.part {
        Part::Fabric => {
            let (opening, each) = match request.driver {
                Driver::Host => (Vec::new(), checks::fabric::adapter_checks().collect()),
                Driver::Gpu(_) => {
                    (of(checks::fabric::on_gpu::opening()), checks::fabric::on_gpu::pair_checks().collect())
                }
                Driver::Pairs(_) => (Vec::new(), checks::fabric::on_gpu::pair_checks().collect()),
            };
            let each = of(checks::fabric::with_bench(each, request));
            Plan { once: of(checks::fabric::start::CHECKS), opening, each }
        }
        Part::Verbs => {
            let each = match request.exposure_alone {
                true => of(checks::verbs::objects::CHECKS),
                false => of(checks::verbs::adapter_checks()),
            };
            Plan { once: of(checks::verbs::start::CHECKS), each, ..Plan::default() }
        }
        Part::Cuda => {
            Plan { once: of(checks::cuda::CHECKS), each: of(checks::cuda::GPU_CHECKS), ..Plan::default() }
        }
        Part::Nodes => Plan { once: of(checks::dev::opening()), ..Plan::default() },
    }
}

/// What these are, without what does them.
fn of<S: 'static>(units: impl IntoIterator<Item = &'static Unit<S>>) -> Vec<&'static Check> {
    units.into_iter().map(|unit| &unit.check).collect()
}

/// Skips what a child that ended in `code` did not come to.
fn skip_rest(runner: &mut Runner, request: &Request, code: &str, subject: Option<&str>, gathered: &Gathered) {
    let Plan { once, opening, each } = plan(request);
    for check in once {
        skip(runner, check, None, code);
    }
    // Of a pair, the adapter's checks come first: all of its pairs are lost with one of those.
    let known = subjects(request, gathered);
    let concerned = |name: &&String| subject.is_none_or(|subject| concerns(subject, name));
    let lost: Vec<&str> = known.iter().filter(concerned).map(String::as_str).collect();
    if lost.is_empty() {
        opening.iter().chain(&each).for_each(|check| skip(runner, check, subject, code));
    }
    for name in lost {
        let adapter = name.split_once('/').map(|(_, adapter)| adapter);
        opening.iter().for_each(|check| skip(runner, check, adapter, code));
        each.iter().for_each(|check| skip(runner, check, Some(name), code));
    }
}

fn skip(runner: &mut Runner, check: &Check, subject: Option<&str>, code: &str) {
    let answered = |finding: &crate::report::Finding| {
        finding.code == check.code && (subject.is_none() || finding.subject.as_deref() == subject)
    };
    if !runner.findings.iter().any(answered) {
        let (root, why) = runner
            .blocked(check, subject)
            .unwrap_or_else(|| (code.to_owned(), format!("the process ended in {code}")));
        runner.record(check, subject.map(str::to_owned), Outcome::Skip(root, why));
    }
}

/// Starts a child, hands it the request, and listens to its end.
fn one_child(
    runner: &mut Runner,
    request: &Request,
    limits: Limits,
    provider_path: Option<&OsStr>,
    gathered: &mut Gathered,
) -> std::io::Result<End> {
    let mut command = crate::own::again()?;
    command.args(verbosity()).arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(path) = provider_path {
        command.env("FI_PROVIDER_PATH", path);
    }
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that died before it read shows in how it ended.
        let _ = stdin.write_all(&serde_json::to_vec(request).map_err(std::io::Error::from)?);
    }
    let (sender, events) = channel();
    if let Some(stdout) = child.stdout.take() {
        let read = move || read_events(BufReader::new(stdout), &sender);
        if let Err(error) = std::thread::Builder::new().spawn(read) {
            bury(&mut child, Duration::ZERO);
            return Err(error);
        }
    }
    let mut listening = Listening { runner, gathered, limits, running: None, granted: Duration::ZERO };
    let heard = listening.listen(&events);
    let running = listening.running.take();
    let late = matches!(heard, Heard::Silence(_));
    let observed = match heard {
        Heard::End => {
            bury(&mut child, BURIAL);
            return Ok(End::Well);
        }
        Heard::Silence(limit) => {
            bury(&mut child, Duration::ZERO);
            format!("no answer within {} ms; the process was ended", limit.as_millis())
        }
        Heard::Closed => match bury(&mut child, BURIAL) {
            Some(status) => ended(status),
            None => "the process closed its output and did not end".to_owned(),
        },
    };
    let (code, subject) = running.unzip();
    Ok(End::Badly { code, subject: subject.flatten(), observed, late })
}

/// Passes the child's verbosity on.
fn verbosity() -> Option<&'static str> {
    if tracing::enabled!(tracing::Level::DEBUG) {
        return Some("-vv");
    }
    tracing::enabled!(tracing::Level::INFO).then_some("-v")
}

fn read_events(lines: impl BufRead, sender: &Sender<Event>) {
    for line in lines.lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(event) => {
                if sender.send(event).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!(line, %error, "a line of the child's is no event"),
        }
    }
}

/// Why listening ended.
enum Heard {
    /// The child said that all is done.
    End,
    /// The child's output ended before that.
    Closed,
    /// Nothing came within the limit.
    Silence(Duration),
}

struct Listening<'a> {
    runner: &'a mut Runner,
    gathered: &'a mut Gathered,
    limits: Limits,
    running: Option<(String, Option<String>)>,
    /// Time that the running check asked for.
    granted: Duration,
}

impl Listening<'_> {
    fn listen(&mut self, events: &Receiver<Event>) -> Heard {
        loop {
            // The library's start falls into the checks without a subject.
            let starting = self.running.as_ref().is_none_or(|(_, subject)| subject.is_none());
            let start = if starting { self.limits.start } else { Duration::ZERO };
            let limit = (self.limits.each + start).saturating_add(std::mem::take(&mut self.granted));
            match events.recv_timeout(limit) {
                Ok(Event::End) => return Heard::End,
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => return Heard::Silence(limit),
                Err(RecvTimeoutError::Disconnected) => return Heard::Closed,
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Begin { code, subject } => self.running = Some((code, subject)),
            Event::Found { finding } => {
                self.running = None;
                self.runner.findings.push(finding);
            }
            Event::Loaded { path } => self.gathered.loaded = Some(path),
            // A machine on which libfabric starts slowly is slow in the rest as well.
            Event::Started { milliseconds } => self.limits.each += Duration::from_millis(milliseconds),
            Event::Adapters { names } => self.gathered.adapters = names,
            Event::Gpus { gpus } => self.gathered.gpus = gpus,
            Event::Queues { queues } => {
                self.gathered.queues.get_or_insert(queues);
            }
            Event::Moved { put } => self.gathered.puts.push(put),
            Event::Figure { figure } => self.gathered.bench.get_or_insert_default().take(*figure),
            Event::Step { done, total, now } => show_step(done, total, &now),
            Event::Again => self.running = None,
            Event::Progress { milliseconds } => self.granted = Duration::from_millis(milliseconds),
            Event::End => {}
        }
    }
}

/// One line of progress, on a terminal alone; the next one takes its place.
fn show_step(done: usize, total: usize, now: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let line = if now.is_empty() { String::new() } else { format!("[{done}/{total}] {now}") };
        // Nothing is left to do where it cannot be shown.
        let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
    }
}

/// Waits for the child's end for `patience`, then kills it. None where it cannot even be killed in
/// time (a process stuck in the kernel); it is left behind.
fn bury(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let mut deadline = Instant::now() + patience;
    let mut killed = false;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) if !killed => {
                // Fails only for a child that is gone, which the next round sees.
                let _ = child.kill();
                killed = true;
                deadline = Instant::now() + BURIAL;
            }
            _ => return None,
        }
    }
}

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = nix::sys::signal::Signal::try_from(number).map_or("unknown", |signal| signal.as_str());
            format!("the process was ended by signal {number} ({name})")
        }
        (None, Some(code)) => format!("the process exited with status {code} before it was done"),
        (None, None) => "the process ended before it was done".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::check::Policy;
    use crate::cli::{Doorbell, Op};
    use crate::part::{BenchRequest, PutRequest};
    use crate::report::{Finding, State};

    fn request(driver: Driver) -> Request {
        let put =
            PutRequest { op: Op::Write, bytes: 64, count: 1, max_seconds: 1, one_adapter: true, plant: None };
        Request {
            part: Part::Fabric,
            root: PathBuf::new(),
            soft: false,
            no_gpu: false,
            provider: None,
            device: None,
            avoid: Vec::new(),
            gpu: None,
            driver,
            doorbell: Doorbell::Auto,
            put,
            bench: Some(BenchRequest { queues: 1, time_limit: 1 }),
            exposure_alone: false,
            wait: 1,
            findings: Vec::new(),
        }
    }

    /// What is found where a child of GPU 0 at adapter `a` passes everything before `code` of `subject`, and
    /// ends there.
    fn ended_in(code: &str, subject: &str) -> Vec<Finding> {
        let (request, gathered) =
            (request(Driver::Gpu(0)), Gathered { adapters: vec!["a".to_owned()], ..Gathered::default() });
        let mut runner = Runner::new(Policy::default());
        let Plan { once, opening, each } = plan(&request);
        let all = once.iter().map(|check| (check, None));
        let all = all.chain(opening.iter().map(|check| (check, Some("a"))));
        for (check, of) in all.chain(each.iter().map(|check| (check, Some("0/a")))) {
            if (check.code, of) == (code, Some(subject)) {
                break;
            }
            runner.record(check, of.map(str::to_owned), Outcome::pass(""));
        }
        let check = checks::registry().into_iter().find(|check| check.code == code).unwrap();
        let trouble = did_not_survive(Part::Fabric, String::new(), None);
        runner.record(check, Some(subject.to_owned()), Outcome::Fail(trouble));
        skip_rest(&mut runner, &request, code, Some(subject), &gathered);
        runner.findings
    }

    fn skipped<'a>(findings: &'a [Finding], subject: &str) -> Vec<&'a str> {
        let of = |one: &&Finding| one.state == State::Skip && one.subject.as_deref() == Some(subject);
        findings.iter().filter(of).map(|one| one.code.as_str()).collect()
    }

    #[test]
    fn a_child_that_ends_in_a_pairs_check_loses_the_rest_of_the_pairs_and_nothing_of_its_adapters() {
        let findings = ended_in("CUDA-008", "0/a");
        assert_eq!(
            skipped(&findings, "0/a"),
            [
                "CUDA-012", "CUDA-013", "QUE-008", "PUT-001", "PUT-002", "PUT-003", "PUT-004", "PUT-006",
                "PUT-005"
            ]
        );
        assert!(skipped(&findings, "a").is_empty(), "{findings:?}");
    }

    #[test]
    fn a_child_that_ends_at_a_pairs_adapter_loses_the_rest_of_both() {
        let findings = ended_in("QUE-005", "a");
        assert_eq!(skipped(&findings, "a"), ["QUE-006", "QUE-007"]);
        assert_eq!(skipped(&findings, "0/a").len(), plan(&request(Driver::Gpu(0))).each.len());
    }

    #[test]
    fn with_an_adapter_all_of_its_pairs_are_lost_and_no_others() {
        let subjects = ["0/a", "0/b", "1/a"].map(str::to_owned);
        assert_eq!(lost(&subjects, &[], Some("a")), ["0/a", "1/a"]);
        assert_eq!(lost(&subjects, &[], Some("0/b")), ["0/b"]);
        assert!(lost(&subjects, &[], None).is_empty());
    }

    #[test]
    fn what_was_lost_before_is_not_lost_again() {
        let subjects = ["0", "1"].map(str::to_owned);
        assert!(lost(&subjects, &subjects[..1], Some("0")).is_empty());
    }
}
