//! Failures and warnings for people: alike ones of several subjects are one problem, failures come first.

use std::collections::BTreeSet;

use super::style::Style;
use crate::check::Subject;
use crate::checks::rows::row;
use crate::model::{Action, CATEGORIES, Finding, Graded, Severity, StackName, State};

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
    stops: &'a [StackName],
    follows_from: Option<&'static str>,
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
                    stops: &one.stops,
                    follows_from: one.follows_from,
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

/// A list of names: all with `-v`, otherwise the first and the number of the others, or `every` if there are no others
/// than these.
pub(super) fn names(all: &[&str], every: Option<&str>, style: Style) -> String {
    if style.verbose || all.len() <= NAMED + 1 {
        return all.join(", ");
    }
    if let Some(every) = every {
        return format!("all {} {every}", all.len());
    }
    format!("{} and {} more", all[..NAMED].join(", "), all.len() - NAMED)
}

impl Problem<'_> {
    /// Code and role, such as `CUDA-002 (host)`.
    pub(super) fn short(&self) -> String {
        if let Some(cause) = self.follows_from {
            return format!("{} (follows from {cause})", self.first.code);
        }
        let who = self.first.who.map(|who| format!(" ({})", who.role())).unwrap_or_default();
        format!("{}{who}", self.first.code)
    }

    /// Appends the problem: what was observed and how to mend it first; the requirement, the reason and what waits
    /// for it only if `whole`. A consequence has no fix of its own.
    pub(super) fn render(&self, out: &mut String, checks: &[Graded], style: Style, whole: bool) {
        let Finding { code, title, state, required, why, fix, party, .. } = self.first;
        let first = format!("{}  {code:<8}  ", style.mark(*state));
        let subjects = self.subjects(checks, style);
        out.push_str(&style.wrapped(&first, INDENT, &format!("{}{subjects}", expected(title))));
        let mut line = |name: &str, text: &str| {
            let first = format!("      {name:<10}");
            // Texts of others have backticks too.
            out.push_str(&match name {
                "fix" => style.with_commands(&first, INDENT, text),
                _ => style.wrapped(&first, INDENT, text),
            });
        };
        if let Some(observed) = self.observed(style) {
            line("observed", &observed);
        }
        if let Some(cause) = self.follows_from {
            line("follows", &format!("from {cause}: fix that first"));
            return;
        }
        // Before the fix, which can be long.
        if let Some(party) = party {
            let node = self.action.map(|action| action.of_node(*state)).unwrap_or_default();
            line("who", &format!("{}; {node}", party.person()));
        }
        line("fix", fix.as_deref().unwrap_or_default());
        line("stops", &self.stops());
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

    /// The subjects in brackets, after a title.
    fn subjects(&self, checks: &[Graded], style: Style) -> String {
        let [first, ..] = self.subjects[..] else { return String::new() };
        let code = &self.first.code;
        let is_all = checks.iter().filter(|one| one.finding.code == *code).count() == self.subjects.len();
        let every = match row(code).map(|row| row.check.subject) {
            Some(Subject::Pair) if first.contains('/') => "pairs",
            Some(Subject::Adapter | Subject::Pair) => "adapters",
            Some(Subject::Gpu) => "GPUs",
            _ => "of them",
        };
        format!(" [{}]", names(&self.subjects, is_all.then_some(every), style))
    }

    fn observed(&self, style: Style) -> Option<String> {
        let observed = self.first.observed.as_deref()?;
        let shown = match style.verbose {
            true => observed.to_owned(),
            false => crate::terminal::shortened(observed, OBSERVED),
        };
        Some(match self.subjects[..] {
            [first, _, ..] => format!("{first}: {shown}"),
            _ => shown,
        })
    }

    /// What cannot run because of this problem, and so how severe it is.
    fn stops(&self) -> String {
        let severity = self.severity.map(Severity::word).unwrap_or_default();
        let stacks: Vec<&str> = self.stops.iter().map(|stack| stack.title()).collect();
        match (&stacks[..], self.severity) {
            ([], _) => format!("no stack ({severity})"),
            ([_, _, ..], Some(Severity::Critical)) => format!("every stack ({severity})"),
            (some, _) => format!("{} ({severity})", some.join(", ")),
        }
    }
}

/// The title of a check that does not pass: what should be so.
pub(super) fn expected(title: &str) -> String {
    let mut letters = title.chars();
    let (first, second) = (letters.next(), letters.next());
    match (first, second) {
        // An abbreviation keeps its case.
        (Some(first), Some(second)) if !second.is_uppercase() => {
            format!("expected: {}{}", first.to_lowercase(), &title[first.len_utf8()..])
        }
        _ => format!("expected: {title}"),
    }
}

/// The checks that did not run because of `code` or of what follows from it: their number, and ranges of their codes.
pub(super) fn blocked(checks: &[Graded], code: &str) -> String {
    let consequences: Vec<&str> = checks
        .iter()
        .filter(|one| one.follows_from == Some(code))
        .map(|one| one.finding.code.as_str())
        .collect();
    let is_root = |root: &str| root == code || consequences.contains(&root);
    let of = |one: &&Graded| one.finding.blocked_by.as_deref().is_some_and(is_root);
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
    use super::{expected, ranges};

    #[test]
    fn a_title_becomes_an_expectation_and_abbreviations_keep_their_case() {
        assert_eq!(expected("The adapter's port is active"), "expected: the adapter's port is active");
        assert_eq!(expected("A CUDA context opens"), "expected: a CUDA context opens");
        assert_eq!(expected("NCCL and its EFA plugin fit"), "expected: NCCL and its EFA plugin fit");
        assert_eq!(expected("query_cq succeeds"), "expected: query_cq succeeds");
    }

    #[test]
    fn consecutive_codes_and_repeated_ones_are_one_range() {
        assert_eq!(
            ranges(&["LIB-003", "LIB-001", "LIB-002", "PUT-001", "FAB-002", "FAB-003", "FAB-002", "FAB-005"]),
            "LIB-001 to 003, FAB-002 to 003, FAB-005, PUT-001"
        );
    }
}
