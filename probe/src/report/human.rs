//! The report for people: one line a check under its category, details of warnings and failures, and the
//! verdict last. Output is coloured on a terminal unless NO_COLOR is set.

use std::fmt::Write as _;
use std::io::IsTerminal;

use crate::model::{CATEGORIES, Document, Finding, Geometry, Kind, Put, Reach, State, Verdict, Who};

/// Colour and level of detail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colour: bool,
    verbose: bool,
}

impl Style {
    /// The style for stdout: coloured if it is a terminal and NO_COLOR is not set.
    pub(crate) fn of_stdout(verbose: bool) -> Self {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: std::io::stdout().is_terminal() && !forbidden, verbose }
    }

    fn paint(self, text: &str, code: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn mark(self, state: State) -> String {
        let (text, code) = match state {
            State::Pass => ("pass", "32"),
            State::Warn => ("WARN", "33"),
            State::Fail => ("FAIL", "31;1"),
            State::Skip => ("skip", "2"),
            State::Unknown => ("  ? ", "36"),
        };
        self.paint(text, code)
    }
}

/// Formats the report.
pub(crate) fn render(document: &Document, style: Style) -> String {
    let mut out = String::new();
    if let Some(checks) = &document.checks {
        render_checks(&mut out, checks, style);
    }
    if let Some(queues) = &document.queues {
        let _ = writeln!(out, "{}", style.paint("Queue geometry", "1"));
        for (name, queue) in [("send", &queues.sq), ("receive", &queues.rq), ("completion", &queues.cq)] {
            if let Some(queue) = queue {
                let _ = writeln!(out, "  {name:<12}{}", geometry(queue));
            }
        }
        out.push('\n');
    }
    if let Some(put) = &document.put {
        render_put(&mut out, put, style);
    }
    if let Some(bench) = &document.bench {
        super::bench::render(&mut out, bench);
    }
    if let Some(verdicts) = &document.verdict {
        let _ = writeln!(out, "{}", style.paint("Verdict", "1"));
        for verdict in verdicts {
            render_verdict(&mut out, verdict, style);
        }
    }
    if let Some(decoded) = &document.decode {
        let _ = write!(out, "{decoded}");
    }
    out
}

fn render_checks(out: &mut String, checks: &[Finding], style: Style) {
    for (prefix, title) in CATEGORIES {
        let of_category: Vec<&Finding> =
            checks.iter().filter(|check| check.code.split('-').next() == Some(prefix)).collect();
        if of_category.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{}", style.paint(title, "1"));
        for check in of_category {
            render_check(out, check, style);
        }
        out.push('\n');
    }
}

fn render_check(out: &mut String, check: &Finding, style: Style) {
    let subject = check.subject.as_deref().map(|subject| format!(" [{subject}]")).unwrap_or_default();
    let _ = write!(out, "  {}  {:<8} {}{subject}", style.mark(check.state), check.code, check.title);
    match check.state {
        State::Pass => {
            let observed = check.observed.as_deref().unwrap_or_default();
            let _ = writeln!(out, ": {observed}");
        }
        State::Skip => {
            let blocked = check.blocked_by.as_deref().unwrap_or("?");
            let why = check.why.as_deref().filter(|why| !why.starts_with(blocked));
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(out, " (blocked by {blocked}{why})");
        }
        State::Unknown => {
            let observed = check.observed.as_deref().map(|text| format!("{text}; ")).unwrap_or_default();
            let _ = writeln!(out, ": {observed}{}", check.why.as_deref().unwrap_or_default());
        }
        State::Warn | State::Fail => {
            out.push('\n');
            render_problem(out, check);
        }
    }
    if style.verbose {
        let kind = if check.kind == Kind::Proven { "proven" } else { "declared" };
        let _ = writeln!(out, "                 ({kind})");
    }
}

fn render_problem(out: &mut String, check: &Finding) {
    let parts = [
        ("observed", &check.observed),
        ("required", &check.required),
        ("why", &check.why),
        ("fix", &check.fix),
    ];
    for (name, text) in parts {
        if let Some(text) = text {
            let _ = writeln!(out, "          {name:<9} {text}");
        }
    }
    let who = match check.who {
        Some(Who::Host) => "host: the operator of the machine",
        Some(Who::Image) => "image: the author of the container image",
        Some(Who::Pod) => "pod: the author of the pod or job",
        Some(Who::Code) => "code: the author of the program or the command line",
        None => return,
    };
    let _ = writeln!(out, "          {:<9} {who}; more: gda-probe explain {}", "who", check.code);
}

fn geometry(queue: &Geometry) -> String {
    let mut text = format!("{} entries of {} bytes", queue.num_entries, queue.entry_size);
    if let Some(batch) = queue.max_batch {
        let _ = write!(text, ", max_batch {batch}");
    }
    if let Some(phase) = queue.phase {
        let _ = write!(text, ", phase starts at {phase}");
    }
    text
}

fn render_put(out: &mut String, put: &Put, style: Style) {
    let verified =
        if put.verified { style.paint("verified", "32") } else { style.paint("NOT verified", "31;1") };
    let _ = writeln!(
        out,
        "Put: {} of {} × {} bytes ({}) on {}, executor {}, doorbell {}: {verified}",
        put.completed, put.count, put.bytes, put.op, put.adapter, put.executor, put.doorbell
    );
    if let Some(lost) = &put.lost {
        let _ = writeln!(out, "     cost compared with --doorbell direct: {lost}");
    }
    if let Some(microseconds) = put.microseconds {
        let _ = writeln!(out, "     posted and completed in {microseconds} µs");
    }
    for violation in &put.violations {
        let _ = writeln!(out, "     broken rule: {violation}");
    }
    out.push('\n');
}

fn render_verdict(out: &mut String, verdict: &Verdict, style: Style) {
    let (word, code) = match verdict.result {
        Reach::Gda => ("gda", "32;1"),
        Reach::HostRung => ("host-rung", "33;1"),
        Reach::None => ("none", "31;1"),
    };
    let _ = writeln!(
        out,
        "  GPU {} with adapter {}: {}\n    next: {}",
        verdict.gpu,
        verdict.adapter,
        style.paint(word, code),
        verdict.next
    );
}
