//! The verdicts on pairs of GPU and adapter and on stacks, with which a report begins.

use std::fmt::Write as _;

use super::problems;
use super::style::{Paint, Style};
use crate::model::{Document, Graded, Reach, Runs, StackName, StackVerdict, State, Step, Verdict};

/// Groups of verdicts that are shown without `-v`.
const VERDICTS: usize = 4;

/// Verdicts that differ in their pairs only.
struct Alike<'a> {
    first: &'a Verdict,
    pairs: Vec<String>,
}

/// Appends the verdicts on pairs, alike ones together.
pub(super) fn render(
    out: &mut String,
    verdicts: &[Verdict],
    stacks: &[StackVerdict],
    checks: &[Graded],
    style: Style,
) {
    let mut groups: Vec<Alike<'_>> = Vec::new();
    // The fix of a check may name the adapter.
    let key = |verdict: &Verdict| {
        (verdict.result, verdict.stopped_by.clone().unwrap_or_else(|| verdict.next.clone()))
    };
    for verdict in verdicts {
        let pair = match (verdict.gpu.as_str(), verdict.adapter.as_str()) {
            ("none", "none") => "no adapter".to_owned(),
            ("none", adapter) => adapter.to_owned(),
            (gpu, "none") => format!("GPU {gpu} without adapter"),
            (gpu, adapter) => format!("GPU {gpu} with {adapter}"),
        };
        match groups.iter_mut().find(|group| key(group.first) == key(verdict)) {
            Some(group) => group.pairs.push(pair),
            None => groups.push(Alike { first: verdict, pairs: vec![pair] }),
        }
    }
    let shown = if style.verbose { groups.len() } else { VERDICTS };
    for group in groups.iter().take(shown) {
        let every = group.pairs.len() == verdicts.len();
        render_verdict(out, group, every, stacks, checks, style);
    }
    if groups.len() > shown {
        let _ = writeln!(out, "and {} more verdicts (-v shows them)", groups.len() - shown);
    }
}

/// Appends whether each stack can run: in groups, or with `-v` and for a single one with its next step.
pub(super) fn stacks(out: &mut String, stacks: &[StackVerdict], style: Style) {
    let word = |runs| match runs {
        Runs::Yes => "can run",
        Runs::No => "cannot run",
        Runs::Unknown => "unknown",
    };
    if style.verbose || stacks.len() == 1 {
        for one in stacks {
            let code = one.stopped_by.as_deref().map(|code| format!("{code}: ")).unwrap_or_default();
            let text = format!("{} {}; {code}{}", one.stack.title(), word(one.runs), one.next);
            out.push_str(&style.wrapped("Stack:   ", 9, &text));
        }
        return;
    }
    let key = |one: &StackVerdict| (one.runs, one.stopped_by.clone());
    let mut groups: Vec<(Runs, Option<String>)> = Vec::new();
    for runs in [Runs::Yes, Runs::No, Runs::Unknown] {
        for one in stacks.iter().map(key).filter(|one| one.0 == runs) {
            if !groups.contains(&one) {
                groups.push(one);
            }
        }
    }
    let group = |group: &(Runs, Option<String>)| {
        let of: Vec<_> =
            stacks.iter().filter(|one| key(one) == *group).map(|one| one.stack.title()).collect();
        let code = group.1.as_deref().map(|code| format!(" ({code})")).unwrap_or_default();
        format!("{}{code}: {}", word(group.0), of.join(", "))
    };
    let text = match &groups[..] {
        [(Runs::No, Some(code))] => format!("none of {} can run: {code} stops them", stacks.len()),
        groups => groups.iter().map(group).collect::<Vec<_>>().join("; "),
    };
    if !text.is_empty() {
        out.push_str(&style.wrapped("Stacks:  ", 9, &text));
    }
}

fn render_verdict(
    out: &mut String,
    group: &Alike<'_>,
    every: bool,
    stacks: &[StackVerdict],
    checks: &[Graded],
    style: Style,
) {
    let failed =
        |code: &str| checks.iter().any(|one| one.finding.code == code && one.finding.state == State::Fail);
    let Verdict { gpu, result, next, step, .. } = group.first;
    let stopped = match step {
        Step::Fix { code, by_verbs, .. } if failed(code) => Some((code, by_verbs)),
        _ => None,
    };
    let stops_jobs = stops_gda(stacks).filter(|code| failed(code));
    let (word, paint) = match result {
        Reach::Gda if stopped.is_none() && stops_jobs.is_some() => ("blocked", Paint::Bad),
        Reach::Gda => ("gda", Paint::Good),
        Reach::HostRung => ("host-rung", Paint::Costly),
        Reach::None if *step == Step::Elsewhere => ("GPUs not looked at", Paint::Bold),
        Reach::None if gpu == "none" && stopped.is_none() => ("no GPU", Paint::Bold),
        Reach::None => ("none", Paint::Bad),
    };
    let pairs: Vec<&str> = group.pairs.iter().map(String::as_str).collect();
    let next = match (stopped, step) {
        // Its fix follows below.
        (Some((code, by_verbs)), _) => {
            format!("stopped by {code}{}", if *by_verbs { Step::BY_VERBS } else { "" })
        }
        (None, Step::Drives) => match stops_jobs {
            Some(code) => format!("{code} stops jobs; only a small test works"),
            None => match machine_wide(checks) {
                codes if codes.is_empty() => format!("the GPU drives the adapter{}", but_stacks(stacks)),
                codes => format!("the GPU drives the adapter, but {codes} failed for this machine"),
            },
        },
        (None, Step::Rung { mode, fix: Some(fix) }) => match &**fix {
            Step::Fix { code, .. } if failed(code) => format!(
                "the GPU posts, and a host thread rings the adapter for it, which is slower (--doorbell {mode} works); \
                 for gda, fix {code}"
            ),
            _ => next.to_owned(),
        },
        (None, _) => next.to_owned(),
    };
    let first = format!("Verdict: {}  ", style.paint(word, paint));
    let pairs = match gpu.as_str() {
        _ if !every => problems::names(&pairs, None, style),
        "none" => problems::names(&pairs, Some("adapters"), style),
        _ => problems::names(&pairs, Some("pairs"), style),
    };
    let text = format!("{pairs}: {next}");
    out.push_str(&style.wrapped(&first, "Verdict: ".len() + word.len() + 2, &text));
}

/// The check that stops raw GDA. A put of a few bytes can work although jobs cannot.
fn stops_gda(stacks: &[StackVerdict]) -> Option<&str> {
    stacks.iter().find(|one| one.stack == StackName::Gda)?.stopped_by.as_deref()
}

/// Whether a failed check stops jobs although a GPU drives an adapter.
pub(super) fn is_blocked(document: &Document) -> bool {
    let drives = |one: &Verdict| one.result == Reach::Gda;
    if !document.verdict.iter().flatten().any(drives) {
        return false;
    }
    let is = |code: &str, one: &Graded| one.finding.code == code && one.finding.state == State::Fail;
    let checks = document.checks.as_deref().unwrap_or_default();
    let stops = stops_gda(document.stacks.as_deref().unwrap_or_default());
    stops.is_some_and(|code| checks.iter().any(|one| is(code, one)))
}

/// The number of stacks that cannot run although a GPU drives an adapter.
fn but_stacks(stacks: &[StackVerdict]) -> String {
    match stacks.iter().filter(|one| one.runs == Runs::No).count() {
        _ if stacks.len() == 1 => String::new(),
        0 => String::new(),
        count => format!(", but {count} of {} stacks cannot run", stacks.len()),
    }
}

/// The codes that failed for the machine as a whole, in words.
fn machine_wide(checks: &[Graded]) -> String {
    let failed = |one: &&Graded| one.finding.state == State::Fail && one.finding.subject.is_none();
    let codes: Vec<&str> = checks.iter().filter(failed).map(|one| one.finding.code.as_str()).collect();
    match &codes[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        all => all.concat(),
    }
}
