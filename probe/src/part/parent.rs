//! The parent's side: starts a child, watches the clock, and turns its end into findings.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::{COMMAND, Driver, Event, Gpu, Pair, Part, Request};
use crate::check::{Check, Outcome, Runner, Trouble, concerns};
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
/// not survive one adapter is followed by another for the rest.
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
        let Some(lost) = subject.filter(|name| subjects.contains(name)) else { break };
        request.avoid.push(lost);
        if request.put.one_adapter || request.avoid.len() >= subjects.len() {
            break;
        }
    }
    Ok(gathered)
}

/// What a child of this request goes through, one after the other.
fn subjects(request: &Request, gathered: &Gathered) -> Vec<String> {
    match (request.part, &request.driver) {
        (Part::Cuda, _) => gathered.gpus.iter().map(|gpu| gpu.number.to_string()).collect(),
        (_, Driver::Pairs(pairs)) => pairs.iter().map(Pair::subject).collect(),
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

/// The checks of a part: those without a subject, and those with one.
fn plan(request: &Request) -> (Vec<&'static Check>, Vec<&'static Check>) {
    match request.part {
        Part::Fabric => (
            checks::fabric::start::CHECKS.iter().map(|unit| &unit.check).collect(),
            match request.driver {
                Driver::Pairs(_) => checks::fabric::on_gpu::pair_checks().map(|unit| &unit.check).collect(),
                _ => checks::fabric::adapter_checks().map(|unit| &unit.check).collect(),
            },
        ),
        Part::Verbs => (
            checks::verbs::start::CHECKS.iter().map(|unit| &unit.check).collect(),
            match request.exposure_alone {
                true => checks::verbs::objects::CHECKS.iter().map(|unit| &unit.check).collect(),
                false => checks::verbs::adapter_checks().map(|unit| &unit.check).collect(),
            },
        ),
        Part::Cuda => (
            checks::cuda::CHECKS.iter().map(|unit| &unit.check).collect(),
            checks::cuda::GPU_CHECKS.iter().map(|unit| &unit.check).collect(),
        ),
        Part::Nodes => (checks::dev::opening().map(|unit| &unit.check).collect(), Vec::new()),
    }
}

/// Skips what a child that ended in `code` did not come to.
fn skip_rest(runner: &mut Runner, request: &Request, code: &str, subject: Option<&str>, gathered: &Gathered) {
    let (once, each) = plan(request);
    for check in once {
        skip(runner, check, None, code);
    }
    // Of a pair, the adapter's checks are run again: all of its pairs are lost with one of those.
    let known = subjects(request, gathered);
    let concerned = |name: &&String| subject.is_none_or(|subject| concerns(subject, name));
    let lost: Vec<&str> = known.iter().filter(concerned).map(String::as_str).collect();
    if lost.is_empty() {
        each.iter().for_each(|check| skip(runner, check, subject, code));
    }
    for name in lost {
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
