//! The checks by category: one line each with counts, or with `-v` every check.

use std::fmt::Write as _;

use super::problems;
use super::style::{Paint, Style};
use crate::check::ON_SOFTWARE_ADAPTER;
use crate::checks::rows::{is_of_machine, row};
use crate::model::{CATEGORIES, Finding, Graded, Kind, SOFTWARE_ADAPTER, State};

/// The numbers of findings in each state.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) warned: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
    pub(super) unknown: usize,
}

impl Counts {
    /// Counts findings.
    pub(super) fn of<'a>(checks: impl IntoIterator<Item = &'a Graded>) -> Self {
        let mut counts = Self::default();
        for one in checks {
            *match one.finding.state {
                State::Pass => &mut counts.passed,
                State::Warn => &mut counts.warned,
                State::Fail => &mut counts.failed,
                State::Skip => &mut counts.skipped,
                State::Unknown => &mut counts.unknown,
            } += 1;
        }
        counts
    }

    /// The state that a section's line shows.
    fn state(self) -> State {
        match self {
            Self { failed: 1.., .. } => State::Fail,
            Self { warned: 1.., .. } => State::Warn,
            Self { passed: 1.., .. } => State::Pass,
            Self { unknown: 1.., .. } => State::Unknown,
            _ => State::Skip,
        }
    }

    /// The counts in words, without those that are zero.
    pub(super) fn words(self) -> String {
        let Self { passed, warned, failed, skipped, unknown } = self;
        let all = [
            (failed, "failed"),
            (warned, if warned == 1 { "warning" } else { "warnings" }),
            (passed, "passed"),
            (skipped, "skipped"),
            (unknown, "without result"),
        ];
        let shown = all.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
        shown.collect::<Vec<_>>().join(", ")
    }
}

fn sections(checks: &[Graded]) -> impl Iterator<Item = (&'static str, Vec<&Graded>)> {
    CATEGORIES.into_iter().filter_map(move |(prefix, title)| {
        let of = |one: &&Graded| one.finding.code.split('-').next() == Some(prefix);
        let all: Vec<&Graded> = checks.iter().filter(of).collect();
        (!all.is_empty()).then_some((title, all))
    })
}

/// Appends a line for each category, and then why checks did not run.
pub(super) fn summary(out: &mut String, checks: &[Graded], style: Style) {
    for (title, all) in sections(checks) {
        let counts = Counts::of(all);
        let first = format!("{}  {title:<34}", style.mark(counts.state()));
        out.push_str(&style.wrapped(&first, 40, &counts.words()));
    }
    blocked_otherwise(out, checks, style);
}

/// Appends why checks did not run, if no failure above says it. Hardware and the software adapter have checks of their
/// own, and `-v` shows which have no result.
fn blocked_otherwise(out: &mut String, checks: &[Graded], style: Style) {
    let mut roots: Vec<&Finding> = Vec::new();
    for one in checks.iter().map(|one| &one.finding) {
        let failed = |code: &str| {
            checks.iter().any(|root| root.finding.code == code && root.finding.state == State::Fail)
        };
        let unexplained = |root: &&str| !failed(root) && *root != SOFTWARE_ADAPTER;
        let Some(root) = one.blocked_by.as_deref().filter(unexplained) else { continue };
        if roots.iter().all(|known| known.blocked_by.as_deref() != Some(root)) {
            roots.push(one);
        }
    }
    for one in checks.iter().map(|one| &one.finding) {
        // What a run on hardware would meet.
        let Some(why) = one.why.as_deref().filter(|why| *why != ON_SOFTWARE_ADAPTER) else { continue };
        if one.blocked_by.as_deref() == Some(SOFTWARE_ADAPTER) && row(&one.code).is_some_and(is_of_machine) {
            let text = format!("{why} ({})", one.code);
            out.push_str(&style.wrapped(&format!("{}  ", style.mark(State::Skip)), 6, &text));
        }
    }
    for root in roots {
        let code = root.blocked_by.as_deref().unwrap_or_default();
        let why = root.why.as_deref().unwrap_or_default();
        let text = format!("{why} ({code}), {}", problems::blocked(checks, code));
        out.push_str(&style.wrapped(&format!("{}  ", style.mark(State::Skip)), 6, &text));
    }
}

/// Appends every check with its observation; problems are shown elsewhere and have their title only.
pub(super) fn all(out: &mut String, checks: &[Graded], style: Style) {
    for (title, all) in sections(checks) {
        let _ = writeln!(out, "{}", style.paint(title, Paint::Bold));
        for one in all {
            check(out, &one.finding, style);
        }
        out.push('\n');
    }
}

fn check(out: &mut String, check: &Finding, style: Style) {
    let subject = check.subject.as_deref().map(|subject| format!(" [{subject}]")).unwrap_or_default();
    let proven = if check.kind == Kind::Proven { "" } else { " (declared)" };
    let observed = check.observed.as_deref().unwrap_or_default();
    let detail = match check.state {
        State::Pass => format!(": {observed}{proven}"),
        State::Skip => {
            let blocked = check.blocked_by.as_deref().unwrap_or("?");
            let why = check.why.as_deref().filter(|why| !why.starts_with(blocked));
            format!(" (blocked by {blocked}{})", why.map(|why| format!(": {why}")).unwrap_or_default())
        }
        State::Unknown => {
            let observed = if observed.is_empty() { String::new() } else { format!("{observed}; ") };
            format!(": {observed}{}", check.why.as_deref().unwrap_or_default())
        }
        State::Warn | State::Fail => String::new(),
    };
    let first = format!("  {}  {:<8}  ", style.mark(check.state), check.code);
    let title = match check.state {
        State::Warn | State::Fail => problems::expected(&check.title),
        State::Pass | State::Skip | State::Unknown => check.title.clone(),
    };
    out.push_str(&style.wrapped(&first, 18, &format!("{title}{subject}{detail}")));
}
