//! What a check is, and the runner that runs every check whose prerequisites hold.
//!
//! A check is a row: its data is stated once, in `checks::rows`, and plan, order, skips, verdicts, `explain` and
//! `docs/checks.md` are derived from it. A check names the codes that it needs and knows nothing else of other checks.
//! If a need does not hold, the runner skips the check and names the root of the chain of needs.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::model::text::visible;
use crate::model::{Action, Finding, Kind, NO_GPU, NOT_LOADED, Party, SOFTWARE_ADAPTER, StackName, State};

/// Why checks of hardware do not run under `--soft`.
pub(crate) const ON_SOFTWARE_ADAPTER: &str = "software adapter";

/// What a check examines, which decides when it is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Always runs.
    Any,
    /// EFA or NVIDIA hardware and its kernel drivers: skipped under `--soft`.
    Hardware,
    /// The GPU: skipped when no GPU takes part.
    Gpu,
    /// The NVIDIA kernel driver: skipped in both cases.
    GpuHardware,
}

/// What the subjects of a check are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// No subject: the machine as a whole.
    Machine,
    Adapter,
    Gpu,
    /// An adapter, or a GPU and an adapter.
    Pair,
    /// An environment variable.
    Variable,
    /// A library's file.
    File,
}

/// A library that a check loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    Libfabric,
    RdmaCore,
    Cuda,
}

/// A stack that depends on a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) stack: StackName,
    /// Whether the stack needs more than "no failure": a warning stops it, and no result leaves it unknown.
    pub(crate) pass: bool,
    /// The prefix of the subjects that concern the stack; empty for all.
    pub(crate) subjects: &'static str,
}

/// The checks whose problem can be the cause of a check's problem, the first in a report first. What solves the cause
/// solves both.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Follows {
    /// A cause that passes for no subject.
    IfNonePasses(&'static [&'static str]),
    /// A cause that the same role can solve.
    IfSameRole(&'static [&'static str]),
}

impl Follows {
    /// The codes of the causes.
    pub(crate) fn causes(self) -> &'static [&'static str] {
        match self {
            Self::IfNonePasses(causes) | Self::IfSameRole(causes) => causes,
        }
    }
}

/// The description of a check.
#[derive(Debug)]
pub(crate) struct Check {
    /// Its stable code: category, dash, three digits.
    pub(crate) code: &'static str,
    /// A short statement that holds if the check passes.
    pub(crate) title: &'static str,
    /// The evidence for its result.
    pub(crate) kind: Kind,
    /// What it examines.
    pub(crate) nature: Nature,
    /// What it has a result for.
    pub(crate) subject: Subject,
    /// Codes that must not have failed or been skipped.
    pub(crate) needs: &'static [&'static str],
    /// The library that it loads first.
    pub(crate) loads: Option<Load>,
    /// The stacks that depend on it.
    pub(crate) stacks: &'static [Need],
    /// The checks whose consequence its problem can be.
    pub(crate) follows: Follows,
    /// The parties that can solve its problem, the most likely first.
    pub(crate) who: &'static [Party],
    /// What is done with the node if its operator solves the problem.
    pub(crate) of_host: Action,
    /// The requirement, unless a problem states another one.
    pub(crate) required: &'static str,
    /// Why it matters, unless a problem states another reason.
    pub(crate) why: &'static str,
    /// The usual fix, which a problem has unless it states another one.
    pub(crate) fix: &'static str,
    /// Its page, in Markdown.
    pub(crate) page: &'static str,
}

impl Check {
    /// A check of the machine that always runs and on which nothing depends.
    pub(crate) const fn new(code: &'static str, title: &'static str, kind: Kind) -> Self {
        Self {
            code,
            title,
            kind,
            nature: Nature::Any,
            subject: Subject::Machine,
            needs: &[],
            loads: None,
            stacks: &[],
            follows: Follows::IfNonePasses(&[]),
            who: &[],
            of_host: Action::FixHost,
            required: "",
            why: "",
            fix: "",
            page: "",
        }
    }

    /// The category: the prefix of the code.
    pub(crate) fn category(&self) -> &'static str {
        self.code.split_once('-').map_or(self.code, |(category, _)| category)
    }

    /// The party that can solve a problem.
    pub(crate) fn party(&self, problem: &Problem) -> Party {
        problem.who.or(self.who.first().copied()).unwrap_or(Party::Program)
    }
}

/// What a warning or a failure reports; what is None is the check's own.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) observed: String,
    pub(crate) required: Option<String>,
    pub(crate) why: Option<String>,
    pub(crate) fix: Option<String>,
    pub(crate) who: Option<Party>,
}

impl Problem {
    /// A problem with the requirement, the reason, the fix and the party of its check.
    pub(crate) fn new(observed: impl Into<String>) -> Self {
        Self { observed: observed.into(), required: None, why: None, fix: None, who: None }
    }

    /// Another requirement, and why it matters.
    pub(crate) fn expects(self, required: impl Into<String>, why: impl Into<String>) -> Self {
        Self { required: Some(required.into()), why: Some(why.into()), ..self }
    }

    /// Another fix, and the party that can apply it.
    pub(crate) fn fix(self, fix: impl Into<String>, who: Party) -> Self {
        Self { fix: Some(fix.into()), who: Some(who), ..self }
    }
}

/// The result of a check for one subject.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The statement holds; the observed value.
    Pass(String),
    /// The statement holds, at a cost.
    Warn(Problem),
    /// The statement does not hold.
    Fail(Problem),
    /// The check did not run: the code that blocks it, and why.
    Skip(String, String),
    /// The check has no result: the observed value, and why it decides nothing.
    Unknown(Option<String>, String),
}

impl Outcome {
    /// A failure.
    pub(crate) fn fail(observed: impl Into<String>) -> Self {
        Self::Fail(Problem::new(observed))
    }

    /// A warning.
    pub(crate) fn warn(observed: impl Into<String>) -> Self {
        Self::Warn(Problem::new(observed))
    }

    /// This outcome with its problem changed, if it has one.
    fn with(self, change: impl FnOnce(Problem) -> Problem) -> Self {
        match self {
            Self::Warn(problem) => Self::Warn(change(problem)),
            Self::Fail(problem) => Self::Fail(change(problem)),
            other => other,
        }
    }

    /// Another requirement than the check's, and why it matters.
    pub(crate) fn expects(self, required: impl Into<String>, why: impl Into<String>) -> Self {
        self.with(|problem| problem.expects(required, why))
    }

    /// Another requirement than the check's, for the same reason.
    pub(crate) fn required(self, required: impl Into<String>) -> Self {
        self.with(|problem| Problem { required: Some(required.into()), ..problem })
    }

    /// Another reason than the check's.
    pub(crate) fn why(self, why: impl Into<String>) -> Self {
        self.with(|problem| Problem { why: Some(why.into()), ..problem })
    }

    /// Another fix than the check's, and the party that can apply it.
    pub(crate) fn fix(self, fix: impl Into<String>, who: Party) -> Self {
        self.with(|problem| problem.fix(fix, who))
    }

    /// Another fix than the check's, which the same party can apply.
    pub(crate) fn hint(self, fix: impl Into<String>) -> Self {
        self.with(|problem| Problem { fix: Some(fix.into()), ..problem })
    }

    /// A pass with the observed value.
    pub(crate) fn pass(observed: impl Display) -> Self {
        Self::Pass(observed.to_string())
    }

    /// No result, and why.
    pub(crate) fn unknown(why: impl Display) -> Self {
        Self::Unknown(None, why.to_string())
    }
}

/// The outcomes of one check, with their subjects.
#[derive(Debug)]
pub(crate) struct Outcomes(pub(crate) Vec<(Option<String>, Outcome)>);

impl Outcomes {
    /// No outcome, of a check that does not apply.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }
}

impl From<Outcome> for Outcomes {
    fn from(outcome: Outcome) -> Self {
        Self(vec![(None, outcome)])
    }
}

/// What a check returns. A check ends early by `?`; the outcomes of `Err` are recorded as those of `Ok`.
pub(crate) type Checked = Result<Outcomes, Outcomes>;

impl From<Outcome> for Checked {
    fn from(outcome: Outcome) -> Self {
        Ok(outcome.into())
    }
}

/// The checks that a run skips by the choice of the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// The software adapter replaces hardware.
    pub(crate) soft: bool,
    /// No GPU takes part.
    pub(crate) no_gpu: bool,
    /// The libraries of this container that no check may load, because they are not a part of what `--root` names.
    pub(crate) not_loaded: Vec<Load>,
}

/// Runs checks and collects their findings.
#[derive(Debug, Default)]
pub(crate) struct Runner {
    /// The checks to skip.
    pub(crate) policy: Policy,
    /// The findings, in the order in which checks ran.
    pub(crate) findings: Vec<Finding>,
}

impl Runner {
    /// A runner without findings.
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, findings: Vec::new() }
    }

    /// Runs `check` by `run`, or skips it. Outcomes without a subject get `subject`.
    pub(crate) fn run(&mut self, check: &Check, subject: Option<&str>, run: impl FnOnce() -> Outcomes) {
        let outcomes = match self.blocked(check, subject) {
            Some((code, why)) => Outcome::Skip(code, why).into(),
            None => run(),
        };
        for (named, outcome) in outcomes.0 {
            self.record(check, named.or_else(|| subject.map(str::to_owned)), outcome);
        }
    }

    /// Adds an outcome as a finding of `check`. A repeated subject gets a number, so that code and
    /// subject stay unique.
    pub(crate) fn record(&mut self, check: &Check, subject: Option<String>, outcome: Outcome) {
        let mut finding = into_finding(check, subject, outcome);
        let wanted = finding.subject.clone();
        let mut number = 2;
        while self.findings.iter().any(|old| old.code == finding.code && old.subject == finding.subject) {
            finding.subject = Some(format!("{}#{number}", wanted.as_deref().unwrap_or("")));
            number += 1;
        }
        tracing::debug!(code = finding.code, subject = ?finding.subject, state = ?finding.state, "check done");
        self.findings.push(finding);
    }

    /// Why `check` cannot run for `subject`: the root code and the reason. None if it can run.
    pub(crate) fn blocked(&self, check: &Check, subject: Option<&str>) -> Option<(String, String)> {
        let hardware = matches!(check.nature, Nature::Hardware | Nature::GpuHardware);
        if hardware && self.policy.soft {
            return Some((SOFTWARE_ADAPTER.to_owned(), ON_SOFTWARE_ADAPTER.to_owned()));
        }
        let gpu = matches!(check.nature, Nature::Gpu | Nature::GpuHardware);
        if gpu && self.policy.no_gpu {
            return Some((NO_GPU.to_owned(), "no GPU takes part".to_owned()));
        }
        if check.loads.is_some_and(|library| self.policy.not_loaded.contains(&library)) {
            return Some((
                NOT_LOADED.to_owned(),
                "with --root, this container's libraries are left out".to_owned(),
            ));
        }
        check.needs.iter().find_map(|need| self.unmet(need, subject))
    }

    /// The root because of which `need` does not hold for `subject`; None if it holds. A need that did not
    /// run holds, because commands leave checks out. If `subject` is a pair with findings, the findings of
    /// its GPU and its adapter do not count.
    fn unmet(&self, need: &str, subject: Option<&str>) -> Option<(String, String)> {
        let of_subject =
            self.findings.iter().any(|one| one.code == need && one.subject.as_deref() == subject);
        let relevant = || {
            self.findings.iter().filter(|finding| {
                let of = match (finding.subject.as_deref(), subject) {
                    (Some(found), Some(subject)) if of_subject => found == subject,
                    (Some(found), Some(subject)) => concerns(found, subject),
                    _ => true,
                };
                finding.code == need && of
            })
        };
        let holds = |state| matches!(state, State::Pass | State::Warn | State::Unknown);
        if relevant().any(|finding| holds(finding.state)) {
            return None;
        }
        let first = relevant().next()?;
        let root = first.blocked_by.clone().unwrap_or_else(|| first.code.clone());
        let why = match first.state {
            State::Skip => first.why.clone().unwrap_or_else(|| format!("blocked by {root}")),
            _ => format!("{} failed: {}", first.code, first.title),
        };
        Some((root, why))
    }
}

/// Whether findings of `of` apply to `subject`: they are the same, or `of` is the GPU or the adapter of the
/// pair `subject`.
pub(crate) fn concerns(of: &str, subject: &str) -> bool {
    let pair = subject.split_once('/');
    of == subject || pair.is_some_and(|(gpu, adapter)| of == gpu || of == adapter)
}

/// Makes a finding. Its text may come from anywhere, so this makes it visible.
fn into_finding(check: &Check, subject: Option<String>, outcome: Outcome) -> Finding {
    let shown = |text: String| Some(visible(&text));
    let mut finding = Finding::new(check.code, check.title, State::Pass, check.kind);
    finding.subject = subject.and_then(shown);
    let (state, problem) = match outcome {
        Outcome::Pass(observed) => return Finding { observed: shown(observed), ..finding },
        Outcome::Skip(code, why) => {
            return Finding { state: State::Skip, why: shown(why), blocked_by: shown(code), ..finding };
        }
        Outcome::Unknown(observed, why) => {
            let observed = observed.and_then(shown);
            return Finding { state: State::Unknown, observed, why: shown(why), ..finding };
        }
        Outcome::Warn(problem) => (State::Warn, problem),
        Outcome::Fail(problem) => (State::Fail, problem),
    };
    let who = check.party(&problem);
    let Problem { observed, required, why, fix, .. } = problem;
    let own = |text: Option<String>, own: &str| text.unwrap_or_else(|| own.to_owned());
    let (required, why, fix) = (own(required, check.required), own(why, check.why), own(fix, check.fix));
    debug_assert!(!required.is_empty() && !why.is_empty() && !fix.is_empty(), "{} lacks a text", check.code);
    let (observed, required, why, fix) = (shown(observed), shown(required), shown(why), shown(fix));
    Finding { state, observed, required, why, fix, who: Some(who.role()), party: Some(who), ..finding }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn check(code: &'static str, nature: Nature, needs: &'static [&'static str]) -> Check {
        Check { nature, needs, ..Check::new(code, "t", Kind::Declared) }
    }

    fn passes() -> Outcomes {
        Outcome::pass("seen").into()
    }

    fn fails() -> Outcomes {
        Outcome::fail("x").expects("x", "x").fix("x", Party::Operator).into()
    }

    #[test]
    fn a_skip_names_the_root_of_a_chain_of_needs() {
        let mut runner = Runner::default();
        runner.run(&check("A-1", Nature::Any, &[]), None, fails);
        runner.run(&check("B-1", Nature::Any, &["A-1"]), None, passes);
        runner.run(&check("C-1", Nature::Any, &["B-1"]), None, passes);
        assert_eq!(runner.findings[2].blocked_by.as_deref(), Some("A-1"));
    }

    #[test]
    fn one_subject_does_not_block_another() {
        let mut runner = Runner::default();
        runner.run(&check("A-1", Nature::Any, &[]), Some("left"), fails);
        runner.run(&check("A-1", Nature::Any, &[]), Some("right"), passes);
        let second = check("B-1", Nature::Any, &["A-1"]);
        runner.run(&second, Some("right"), passes);
        assert_eq!(runner.findings[2].state, State::Pass);
    }

    #[test]
    fn a_pair_is_blocked_by_either_of_its_sides_and_by_no_other() {
        let mut runner = Runner::default();
        runner.run(&check("A-1", Nature::Any, &[]), Some("0"), fails);
        runner.run(&check("A-1", Nature::Any, &[]), Some("1"), passes);
        let unit = check("B-1", Nature::Any, &["A-1"]);
        runner.run(&unit, Some("0/left"), passes);
        runner.run(&unit, Some("1/left"), passes);
        assert_eq!((runner.findings[2].state, runner.findings[3].state), (State::Skip, State::Pass));
    }

    #[test]
    fn a_pairs_own_finding_overrides_its_adapters_finding() {
        let mut runner = Runner::default();
        runner.run(&check("A-1", Nature::Any, &[]), Some("left"), passes);
        runner.run(&check("A-1", Nature::Any, &[]), Some("0/left"), fails);
        let unit = check("B-1", Nature::Any, &["A-1"]);
        runner.run(&unit, Some("0/left"), passes);
        runner.run(&unit, Some("left"), passes);
        assert_eq!((runner.findings[2].state, runner.findings[3].state), (State::Skip, State::Pass));
    }

    #[test]
    fn hardware_checks_are_skipped_under_the_software_adapter() {
        let mut runner = Runner::new(Policy { soft: true, ..Policy::default() });
        runner.run(&check("A-1", Nature::Hardware, &[]), None, fails);
        assert_eq!(runner.findings[0].blocked_by.as_deref(), Some("ENV-000"));
    }

    #[test]
    fn code_and_subject_stay_unique() {
        let mut runner = Runner::default();
        let unit = check("A-1", Nature::Any, &[]);
        runner.run(&unit, Some("x"), passes);
        runner.run(&unit, Some("x"), passes);
        assert_ne!(runner.findings[0].subject, runner.findings[1].subject);
    }
}
