//! The report for people: the verdict and what stops it first, then the checks by category, and a last line
//! that says how the run ended.

use std::fmt::Write as _;

use super::problems::{Problem, problems};
use super::sections::{self, Counts};
use super::style::{Paint, Style};
use super::verdicts;
use crate::model::{
    Counter, Document, Geometry, Graded, Put, Qualification, Queues, Reach, Runs, StackVerdict, State,
};

/// Formats the report.
pub(crate) fn render(document: &Document, style: Style) -> String {
    let mut out = String::new();
    let checks = document.checks.as_deref().unwrap_or_default();
    let problems = problems(checks);
    if let Some(put) = &document.put.as_ref().filter(|_| document.command == "put") {
        render_put(&mut out, put, style, true, false);
        out.push('\n');
    }
    if let Some(ranks) = &document.ranks {
        super::ranks::render(&mut out, ranks, document, style);
    }
    if let Some(bench) = &document.bench {
        super::bench::render(&mut out, bench, document, style);
    }
    if let Some(all) = &document.verdict {
        let stacks = document.stacks.as_deref().unwrap_or_default();
        verdicts::render(&mut out, all, stacks, checks, style);
        verdicts::stacks(&mut out, stacks, style);
        out.push('\n');
    }
    render_problems(&mut out, &problems, checks, style);
    if document.checks.is_some() {
        if style.verbose {
            sections::all(&mut out, checks, style);
        } else if document.command == "check" {
            sections::summary(&mut out, checks, style);
        }
    }
    if let Some(queues) = document.queues.as_ref().filter(|_| style.verbose) {
        render_queues(&mut out, queues, style);
    }
    if let Some(put) = &document.put.as_ref().filter(|_| document.command == "check") {
        render_put(&mut out, put, style, false, verdicts::is_blocked(document));
    }
    render_counters(&mut out, document.counters.as_deref().unwrap_or_default(), style);
    if let Some(decoded) = &document.decode {
        super::decoded::render(&mut out, decoded, style);
    }
    if let Some(conclusion) = conclusion(document, &problems) {
        let (text, paint) = conclusion;
        let wrapped = style.wrapped("", 0, &text);
        let _ = writeln!(out, "{}", style.paint(wrapped.trim_end(), paint));
    }
    out
}

/// A text as the line for a node-problem-detector: at most 80 characters, as the detector keeps no more.
pub(crate) fn npd_text(text: &str) -> String {
    crate::terminal::shortened(text, 80)
}

/// The line for a node-problem-detector.
pub(crate) fn npd_line(document: &Document) -> String {
    let checks = document.checks.as_deref().unwrap_or_default();
    let problems = problems(checks);
    let text = match (&document.ranks, &problems[..]) {
        (Some(ranks), []) => super::ranks::conclusion(ranks, document.soft),
        (_, []) => conclusion(document, &problems).map_or_else(|| "no problem".to_owned(), |(text, _)| text),
        (_, [first, more @ ..]) => {
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let observed = first.first.observed.as_deref().unwrap_or(&first.first.title);
            format!("{}{more}: {observed}", first.short())
        }
    };
    npd_text(&text)
}

fn render_problems(out: &mut String, problems: &[Problem<'_>], checks: &[Graded], style: Style) {
    if problems.len() > 1 {
        let counts = Counts::of(checks);
        let of = |state: State| {
            let all: Vec<String> =
                problems.iter().filter(|one| one.first.state == state).map(Problem::short).collect();
            (all.len(), all.join(", "))
        };
        for (word, (count, all), findings) in
            [("failure", of(State::Fail), counts.failed), ("warning", of(State::Warn), counts.warned)]
        {
            let plural = if count == 1 { "" } else { "s" };
            // The last line and the categories count each subject of a check.
            let each = if findings == count { String::new() } else { format!(" in {findings} checks") };
            if count > 0 {
                out.push_str(&style.wrapped("", 0, &format!("{count} {word}{plural}{each}: {all}")));
            }
        }
        out.push('\n');
    }
    for (index, problem) in problems.iter().enumerate() {
        // Later ones may be consequences; all of them are shown whole with -v.
        problem.render(out, checks, style, index == 0 || style.verbose);
        out.push('\n');
    }
}

fn render_queues(out: &mut String, queues: &Queues, style: Style) {
    let _ = writeln!(out, "{}", style.paint("Queue geometry", Paint::Bold));
    for (name, queue) in [("send", &queues.sq), ("receive", &queues.rq), ("completion", &queues.cq)] {
        if let Some(queue) = queue {
            out.push_str(&style.wrapped(&format!("  {name:<12}"), 14, &geometry(queue)));
        }
    }
    out.push('\n');
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

/// Appends the result of a put; its speed only if it is that of the command `put`, which may be long enough.
fn render_put(out: &mut String, put: &Put, style: Style, of_command: bool, is_blocked: bool) {
    let verified = match put.verified {
        true => style.paint("verified", Paint::Good),
        false => style.paint("NOT verified", Paint::Bad),
    };
    let done = if put.completed == put.count {
        put.count.to_string()
    } else {
        format!("{} of {}", put.completed, put.count)
    };
    let only = if put.verified && is_blocked { ", in this small test only" } else { "" };
    let target = put.target.as_ref().map(|target| format!(" to {target}")).unwrap_or_default();
    let text = format!(
        "{done} × {} bytes ({}) on {}{target}, executor {}, doorbell {}: {verified}{only}",
        put.bytes, put.op, put.adapter, put.executor, put.doorbell
    );
    out.push_str(&style.wrapped("Put: ", 5, &text));
    if let Some(text) = speed(put).filter(|_| of_command) {
        out.push_str(&style.wrapped("     ", 5, &text));
    }
    if let Some(lost) = put.lost.as_ref().filter(|_| put.verified) {
        out.push_str(&style.wrapped("     ", 5, &format!("cost compared with --doorbell direct: {lost}")));
    }
    if let Some(Qualification { laps, passed, next }) = &put.qualification {
        let passed = if *passed { "qualified" } else { "NOT qualified" };
        let text = format!("stores of 16 bytes, {laps} laps of the send queue: {passed}; {next}");
        out.push_str(&style.wrapped("     ", 5, &text));
    }
    for violation in &put.violations {
        out.push_str(&style.wrapped("     broken rule: ", 18, violation));
    }
}

/// The time of a put and its rates.
fn speed(put: &Put) -> Option<String> {
    let microseconds = put.microseconds?;
    let time = match microseconds {
        0 => "less than 1 µs".to_owned(),
        1..10_000 => format!("{microseconds} µs"),
        10_000..10_000_000 => format!("{:.1} ms", microseconds as f64 / 1e3),
        _ => format!("{:.1} s", microseconds as f64 / 1e6),
    };
    if microseconds == 0 {
        return Some(format!("posted and completed in {time}"));
    }
    let each = put.completed as f64 / microseconds as f64;
    let rate = if each >= 1.0 { format!("{each:.2} million") } else { format!("{:.0}", each * 1e6) };
    let bandwidth = each * put.bytes as f64;
    let bandwidth = match bandwidth {
        1000.0.. => format!("{:.2} GB/s", bandwidth / 1e3),
        _ => format!("{bandwidth:.1} MB/s"),
    };
    Some(format!("posted and completed in {time}: {rate} a second, {bandwidth}"))
}

fn render_counters(out: &mut String, counters: &[Counter], style: Style) {
    for counter in counters {
        let Some(meaning) = counter.meaning else { continue };
        let grown = counter.after.saturating_sub(counter.before);
        let text = format!("{} +{grown} on {} during this run: {meaning}", counter.name, counter.adapter);
        out.push_str(&style.wrapped("Counter: ", 9, &text));
    }
}

/// The stacks that warnings stop, and the codes of these, as an addition to "nothing failed".
fn stopped_stacks(stacks: &[StackVerdict]) -> String {
    let stopped: Vec<&StackVerdict> = stacks.iter().filter(|one| one.runs == Runs::No).collect();
    let mut codes: Vec<&str> = stopped.iter().filter_map(|one| one.stopped_by.as_deref()).collect();
    codes.sort_unstable();
    codes.dedup();
    let titles: Vec<&str> = stopped.iter().map(|one| one.stack.title()).collect();
    match (titles.len(), codes.join(", ")) {
        (0, _) => String::new(),
        (count, codes) if count == stacks.len() => format!(", but no stack can run here ({codes})"),
        (_, codes) => format!(", but {} cannot run ({codes})", titles.join(" and ")),
    }
}

/// How the run ended, in one sentence.
fn conclusion(document: &Document, problems: &[Problem<'_>]) -> Option<(String, Paint)> {
    let counts = Counts::of(document.checks.as_deref()?);
    let on = if document.soft { "software adapter: " } else { "" };
    if let Some(first) = problems.iter().find(|one| one.first.state == State::Fail) {
        // The list above has one entry for alike failures of several subjects.
        let (words, kinds) =
            (counts.words(), problems.iter().filter(|one| one.first.state == State::Fail).count());
        let words = match kinds == counts.failed {
            true => words,
            false => words.replacen(
                " failed",
                &format!(" failed (of {kinds} kind{})", if kinds == 1 { "" } else { "s" }),
                1,
            ),
        };
        return Some((format!("{on}{words}; begin with {}", first.short()), Paint::Bad));
    }
    if document.command == "put" && document.put.as_ref().is_none_or(|put| !put.verified) {
        return Some((format!("{on}no put was verified; {}", counts.words()), Paint::Bad));
    }
    let stopped = |one: &&StackVerdict| one.runs == Runs::No;
    let stacks = document.stacks.as_deref().filter(|stacks| stacks.len() == 1).unwrap_or_default();
    if let Some(stopped) = stacks.iter().find(stopped) {
        return Some((format!("{on}{} cannot run: {}", stopped.stack.title(), stopped.next), Paint::Bad));
    }
    if !problems.is_empty() {
        let stopped = stopped_stacks(document.stacks.as_deref().unwrap_or_default());
        return Some((format!("{on}nothing failed{stopped}; {}", counts.words()), Paint::Costly));
    }
    let passed = counts.passed;
    let text = match (document.soft, document.verdict.as_deref()) {
        (true, _) => {
            format!("software adapter: all passed ({passed} checks). This says nothing of EFA hardware.")
        }
        (false, Some(verdicts)) if verdicts.iter().all(|one| one.result == Reach::Gda) => {
            format!("all passed ({passed} checks): each GPU drives its adapters")
        }
        (false, Some(_)) => {
            format!("nothing failed ({passed} checks passed); the verdict above says what works")
        }
        (false, None) => format!("all passed ({passed} checks)"),
    };
    Some((text, Paint::Good))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, Finding, Kind, StackName, Step, Stops, Verdict, Who};

    fn problem(code: &str, subject: Option<&str>, state: State) -> Graded {
        let finding = Finding {
            subject: subject.map(str::to_owned),
            who: Some(Who::Host),
            ..Finding::new(code, "a title", state, Kind::Declared)
        };
        Graded::new(finding, Action::FixHost, Stops { stacks: Vec::new(), all: false }, None)
    }

    /// The report of a check whose only pair works.
    fn report(checks: Vec<Graded>, stacks: Vec<(StackName, Option<&str>)>) -> String {
        let mut document = Document::new("check", false);
        document.verdict = Some(vec![Verdict::new("0", "a-rdm", Reach::Gda, Step::Drives)]);
        let stack = |(stack, stopped_by): (StackName, Option<&str>)| StackVerdict {
            stack,
            runs: if stopped_by.is_some() { Runs::No } else { Runs::Yes },
            stopped_by: stopped_by.map(str::to_owned),
            next: "do it".to_owned(),
        };
        document.stacks = Some(stacks.into_iter().map(stack).collect());
        document.checks = Some(checks);
        let mut style = Style::of_file();
        // No line is wrapped.
        (style.verbose, style.width) = (false, 400);
        render(&document, style)
    }

    #[test]
    fn a_good_verdict_names_what_failed_for_the_machine() {
        let verdict = |checks| report(checks, vec![]).lines().next().unwrap_or_default().to_owned();
        let of_machine = || problem("DEV-008", None, State::Fail);
        let good = "Verdict: gda  GPU 0 with a-rdm: the GPU drives the adapter";
        assert_eq!(verdict(vec![of_machine()]), format!("{good}, but DEV-008 failed for this machine"));
        let two = vec![of_machine(), problem("LIB-004", None, State::Fail)];
        assert_eq!(verdict(two), format!("{good}, but DEV-008 and LIB-004 failed for this machine"));
        // Another adapter's failure is in that adapter's verdict, and a warning costs something only.
        let other = vec![problem("DEV-005", Some("b"), State::Fail), problem("LIB-004", None, State::Warn)];
        assert_eq!(verdict(other), good);
    }

    #[test]
    fn stacks_that_run_come_first_and_a_report_begins_with_what_stops_all() {
        let lines = |stacks| {
            let text = report(vec![problem("ENV-003", None, State::Fail)], stacks);
            text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let (gda, proxy) = ((StackName::Gda, Some("CUDA-002")), (StackName::Nvshmem, None));
        assert_eq!(
            lines(vec![gda, proxy])[1],
            "Stacks:  can run: NVSHMEM proxy; cannot run (CUDA-002): raw GDA"
        );
        let stopped = [StackName::Gda, StackName::Nccl].map(|stack| (stack, Some("ENV-003")));
        assert_eq!(
            lines(stopped.to_vec()),
            [
                "Verdict: blocked  GPU 0 with a-rdm: ENV-003 stops jobs; only a small test works",
                "Stacks:  none of 2 can run: ENV-003 stops them"
            ]
        );
    }

    #[test]
    fn a_consequence_names_its_cause_and_no_party_or_fix_of_its_own() {
        let mut follows = problem("DEV-007", None, State::Warn);
        follows.follows_from = Some("DEV-005");
        follows.finding.fix = Some("a fix".to_owned());
        let text = report(vec![problem("DEV-005", Some("a"), State::Fail), follows], vec![]);
        let block = text.split("WARN  DEV-007").nth(1).and_then(|rest| rest.split("\n\n").next());
        let block = block.expect("the consequence");
        assert!(
            block.contains("follows   from DEV-005") && !block.contains("who") && !block.contains("fix  ")
        );
        assert!(text.contains("1 warning: DEV-007 (follows from DEV-005)"), "{text}");
    }

    #[test]
    fn failures_are_counted_as_in_the_last_line() {
        let of = |subject| problem("DEV-005", Some(subject), State::Fail);
        let text = report(vec![of("a"), of("b"), problem("LIB-004", None, State::Warn)], vec![]);
        assert!(
            text.contains("1 failure in 2 checks: DEV-005 (host)\n1 warning: LIB-004 (host)\n"),
            "{text}"
        );
        assert!(text.ends_with("2 failed (of 1 kind), 1 warning; begin with DEV-005 (host)\n"), "{text}");
    }

    #[test]
    fn stacks_that_a_warning_stops_are_named_although_nothing_failed() {
        let last = |stacks| {
            let text = report(vec![problem("LIB-008", None, State::Warn)], stacks);
            text.lines().last().unwrap_or_default().to_owned()
        };
        let (gda, nccl) = ((StackName::Gda, None), (StackName::Nccl, Some("LIB-008")));
        assert_eq!(last(vec![gda]), "nothing failed; 1 warning");
        assert_eq!(last(vec![gda, nccl]), "nothing failed, but NCCL EFA-GDA cannot run (LIB-008); 1 warning");
        assert_eq!(
            last(vec![nccl, (StackName::Deepep, Some("LIB-008"))]),
            "nothing failed, but no stack can run here (LIB-008); 1 warning"
        );
    }
}
