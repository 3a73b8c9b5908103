//! Failures and warnings for people: alike ones of several subjects are one problem, failures come first.

use std::collections::BTreeSet;

use super::style::Style;
use crate::model::{Action, CATEGORIES, Finding, Graded, Severity, State};

/// Subjects that are named; more are counted.
const NAMED: usize = 3;
/// Characters of an observation that are shown without `-v`: enough for the file or name that the fix needs.
const OBSERVED: usize = 360;
/// The column at which texts begin.
const INDENT: usize = 16;

/// Findings of one code that differ in subjects only.
pub(super) struct Problem<'a> {
    /// The first of them.
    pub(super) first: &'a Finding,
    severity: Option<Severity>,
    action: Option<Action>,
    subjects: Vec<&'a str>,
}

/// The problems of a run: failures in the order of a report, then warnings.
pub(super) fn problems(checks: &[Graded]) -> Vec<Problem<'_>> {
    let mut found: Vec<Problem<'_>> = Vec::new();
    for state in [State::Fail, State::Warn] {
        for one in checks.iter().filter(|one| one.finding.state == state) {
            let finding = &one.finding;
            let subject = finding.subject.as_deref();
            match found.iter_mut().find(|problem| is_alike(problem.first, finding)) {
                Some(problem) => problem.subjects.extend(subject),
                None => found.push(Problem {
                    first: finding,
                    severity: one.severity,
                    action: one.action,
                    subjects: subject.into_iter().collect(),
                }),
            }
        }
    }
    found
}

/// Whether two findings differ in their subjects and in numbers only, such as those of device nodes.
fn is_alike(one: &Finding, other: &Finding) -> bool {
    let text = |finding: &Finding| {
        let fix = finding.fix.clone().unwrap_or_default();
        let named = finding.subject.as_deref().map_or(fix.clone(), |subject| fix.replace(subject, ""));
        named.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>()
    };
    let key = |finding: &Finding| (finding.code.clone(), finding.state, finding.who, text(finding));
    key(one) == key(other)
}

/// A list of names: all with `-v`, otherwise the first and the number of the others.
pub(super) fn names(all: &[&str], style: Style) -> String {
    if style.verbose || all.len() <= NAMED + 1 {
        return all.join(", ");
    }
    format!("{} and {} more", all[..NAMED].join(", "), all.len() - NAMED)
}

impl Problem<'_> {
    /// Code and role, such as `CUDA-002 (host)`.
    pub(super) fn short(&self) -> String {
        let who = self.first.who.map(|who| format!(" ({})", who.role())).unwrap_or_default();
        format!("{}{who}", self.first.code)
    }

    /// Appends the problem: what was observed and how to mend it first; the requirement, the reason and what waits
    /// for it only if `whole`.
    pub(super) fn render(&self, out: &mut String, checks: &[Graded], style: Style, whole: bool) {
        let Finding { code, title, state, observed, required, why, fix, who, .. } = self.first;
        let subjects = match self.subjects[..] {
            [] => String::new(),
            _ => format!(" [{}]", names(&self.subjects, style)),
        };
        let first = format!("{}  {code:<8}  ", style.mark(*state));
        out.push_str(&style.wrapped(&first, INDENT, &format!("{title}{subjects}")));
        let mut line = |name: &str, text: &str| {
            out.push_str(&style.wrapped(&format!("      {name:<10}"), INDENT, text));
        };
        if let Some(observed) = observed {
            let shown = match style.verbose {
                true => observed.clone(),
                false => crate::terminal::shortened(observed, OBSERVED),
            };
            let of = match self.subjects[..] {
                [first, _, ..] => format!("{first}: "),
                _ => String::new(),
            };
            line("observed", &format!("{of}{shown}"));
        }
        // Before the fix, which can be long.
        if let Some(who) = who {
            let action = self.action.map(Action::request).unwrap_or_default();
            let severity = self.severity.map(Severity::word).unwrap_or_default();
            let role = if whole { format!("{};", who.person()) } else { format!("{}:", who.role()) };
            line("who", &format!("{role} {action} ({severity})"));
        }
        line("fix", fix.as_deref().unwrap_or_default());
        if !whole {
            return;
        }
        for (name, text) in [("required", required), ("why", why)] {
            line(name, text.as_deref().unwrap_or_default());
        }
        let blocked = blocked(checks, code);
        if !blocked.is_empty() {
            line("blocks", &blocked);
        }
        line("more", &format!("gda-probe explain {code}"));
    }
}

/// The checks that did not run because of `code`: their number, and ranges of their codes.
pub(super) fn blocked(checks: &[Graded], code: &str) -> String {
    let of = |one: &&Graded| one.finding.blocked_by.as_deref() == Some(code);
    let codes: Vec<&str> = checks.iter().filter(of).map(|one| one.finding.code.as_str()).collect();
    match codes[..] {
        [] => String::new(),
        [one] => format!("1 check: {one}"),
        _ => format!("{} checks: {}", codes.len(), ranges(&codes)),
    }
}

/// Codes in words: `LIB-001 to 003, FAB-002`.
fn ranges(codes: &[&str]) -> String {
    let parse = |code: &&str| {
        let (category, number) = code.split_once('-')?;
        let place = CATEGORIES.iter().position(|(known, _)| *known == category);
        Some((place, number.parse::<u32>().ok()?, category.to_owned()))
    };
    let parsed: BTreeSet<_> = codes.iter().filter_map(parse).collect();
    let mut runs: Vec<(String, u32, u32)> = Vec::new();
    for (_, number, category) in parsed {
        match runs.last_mut() {
            Some((of, _, last)) if *of == category && *last + 1 == number => *last = number,
            _ => runs.push((category, number, number)),
        }
    }
    let text = |(category, first, last): &(String, u32, u32)| match last - first {
        0 => format!("{category}-{first:03}"),
        _ => format!("{category}-{first:03} to {last:03}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn consecutive_codes_and_repeated_ones_are_one_range() {
        assert_eq!(
            ranges(&["LIB-003", "LIB-001", "LIB-002", "PUT-001", "FAB-002", "FAB-003", "FAB-002", "FAB-005"]),
            "LIB-001 to 003, FAB-002 to 003, FAB-005, PUT-001"
        );
    }
}
