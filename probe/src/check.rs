//! What a check is, and the runner that runs every check whose prerequisites hold.
//!
//! A check knows nothing of the others but the codes that it needs; the runner turns a need that
//! does not hold into a skip that names its root.

use std::fmt::Display;

use crate::model::{Finding, Kind, NO_GPU, SOFTWARE_ADAPTER, State, Who};

/// What a check looks at, which decides when it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Runs always.
    Any,
    /// Looks at EFA or NVIDIA hardware and its kernel drivers: left out under `--soft`.
    Hardware,
    /// Uses the GPU: left out where none takes part.
    Gpu,
    /// Looks at the NVIDIA kernel driver: left out in both cases.
    GpuHardware,
}

/// A check, before it is run.
#[derive(Debug)]
pub(crate) struct Check {
    /// Its stable code: category, dash, three digits.
    pub(crate) code: &'static str,
    /// What it checks, as a short statement that holds when it passes.
    pub(crate) title: &'static str,
    /// What its answer rests on.
    pub(crate) kind: Kind,
    /// What it looks at.
    pub(crate) nature: Nature,
    /// Codes that must not have failed or been skipped.
    pub(crate) needs: &'static [&'static str],
}

/// A check with its code, which looks at an `S`.
#[derive(Debug)]
pub(crate) struct Unit<S: 'static> {
    /// What it is.
    pub(crate) check: Check,
    /// Does it.
    pub(crate) run: fn(&mut S) -> Outcomes,
}

/// Everything that a warning or a failure has to say.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) observed: String,
    pub(crate) required: String,
    pub(crate) why: String,
    pub(crate) fix: String,
    pub(crate) who: Who,
}

/// An answer, about the subject given beside it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It holds; what was seen.
    Pass(String),
    /// It holds at a cost.
    Warn(Problem),
    /// It does not hold.
    Fail(Problem),
    /// Left out because of another code, and why.
    Skip(String, String),
    /// No answer: what was seen, and why that is none.
    Unknown(Option<String>, String),
}

impl Outcome {
    /// It holds, and this was seen.
    pub(crate) fn pass(observed: impl Display) -> Self {
        Self::Pass(observed.to_string())
    }

    /// No answer can be had, and why.
    pub(crate) fn unknown(why: impl Display) -> Self {
        Self::Unknown(None, why.to_string())
    }
}

/// The answers of one check: one, or one for each subject.
#[derive(Debug)]
pub(crate) struct Outcomes(pub(crate) Vec<(Option<String>, Outcome)>);

impl From<Outcome> for Outcomes {
    fn from(outcome: Outcome) -> Self {
        Self(vec![(None, outcome)])
    }
}

/// What is left out of a run, by decision rather than by failure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    /// The software adapter stands in for hardware.
    pub(crate) soft: bool,
    /// No GPU takes part.
    pub(crate) no_gpu: bool,
}

/// Runs checks in order and keeps what they found.
#[derive(Debug, Default)]
pub(crate) struct Runner {
    /// What is left out.
    pub(crate) policy: Policy,
    /// What was found, in the order of running.
    pub(crate) findings: Vec<Finding>,
}

impl Runner {
    /// A runner that has found nothing yet.
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, findings: Vec::new() }
    }

    /// Runs `unit` on `state`, or skips it; `subject` is given to answers that name none.
    pub(crate) fn run<S>(&mut self, unit: &Unit<S>, subject: Option<&str>, state: &mut S) {
        let answers = match self.blocked(&unit.check, subject) {
            Some((code, why)) => Outcome::Skip(code, why).into(),
            None => (unit.run)(state),
        };
        for (own, outcome) in answers.0 {
            self.record(&unit.check, own.or_else(|| subject.map(str::to_owned)), outcome);
        }
    }

    /// Keeps an outcome as a finding of `check`. Code and subject stay unique: a repeated subject
    /// gets a number.
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

    /// Why `check` cannot be tried for `subject`: the code at the root, and words for it.
    pub(crate) fn blocked(&self, check: &Check, subject: Option<&str>) -> Option<(String, String)> {
        let hardware = matches!(check.nature, Nature::Hardware | Nature::GpuHardware);
        if hardware && self.policy.soft {
            return Some((SOFTWARE_ADAPTER.to_owned(), "software adapter".to_owned()));
        }
        let gpu = matches!(check.nature, Nature::Gpu | Nature::GpuHardware);
        if gpu && self.policy.no_gpu {
            return Some((NO_GPU.to_owned(), "no GPU takes part".to_owned()));
        }
        check.needs.iter().find_map(|need| self.unmet(need, subject))
    }

    /// The root of `need` not holding. A need that was never run (a command may leave it out) holds. What
    /// was found of a pair itself counts, and not what was found of its sides.
    fn unmet(&self, need: &str, subject: Option<&str>) -> Option<(String, String)> {
        let of_itself = self.findings.iter().any(|one| one.code == need && one.subject.as_deref() == subject);
        let relevant = || {
            self.findings.iter().filter(|finding| {
                let of = match (finding.subject.as_deref(), subject) {
                    (Some(found), Some(subject)) if of_itself => found == subject,
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
        let words = match first.state {
            State::Skip => first.why.clone().unwrap_or_else(|| format!("blocked by {root}")),
            _ => format!("{} failed: {}", first.code, first.title),
        };
        Some((root, words))
    }
}

/// Whether what was found of `found` counts for `subject`: the same, or one side of the pair that it is.
pub(crate) fn concerns(found: &str, subject: &str) -> bool {
    let pair = subject.split_once('/');
    found == subject || pair.is_some_and(|(gpu, adapter)| found == gpu || found == adapter)
}

fn into_finding(check: &Check, subject: Option<String>, outcome: Outcome) -> Finding {
    let mut finding = Finding {
        code: check.code.to_owned(),
        subject,
        title: check.title.to_owned(),
        state: State::Pass,
        kind: check.kind,
        observed: None,
        required: None,
        why: None,
        fix: None,
        who: None,
        blocked_by: None,
    };
    let trouble = match outcome {
        Outcome::Pass(observed) => {
            finding.observed = Some(observed);
            return finding;
        }
        Outcome::Skip(code, why) => {
            finding.state = State::Skip;
            finding.why = Some(why);
            finding.blocked_by = Some(code);
            return finding;
        }
        Outcome::Unknown(observed, why) => {
            finding.state = State::Unknown;
            finding.observed = observed;
            finding.why = Some(why);
            return finding;
        }
        Outcome::Warn(trouble) => {
            finding.state = State::Warn;
            trouble
        }
        Outcome::Fail(trouble) => {
            finding.state = State::Fail;
            trouble
        }
    };
    finding.observed = Some(trouble.observed);
    finding.required = Some(trouble.required);
    finding.why = Some(trouble.why);
    finding.fix = Some(trouble.fix);
    finding.who = Some(trouble.who);
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn check(code: &'static str, nature: Nature, needs: &'static [&'static str]) -> Check {
        Check { code, title: "t", kind: Kind::Declared, nature, needs }
    }

    fn passes(_: &mut ()) -> Outcomes {
        Outcome::pass("seen").into()
    }

    fn fails(_: &mut ()) -> Outcomes {
        let word = || "x".to_owned();
        let trouble =
            Problem { observed: word(), required: word(), why: word(), fix: word(), who: Who::Host };
        Outcome::Fail(trouble).into()
    }

    #[test]
    fn a_skip_names_the_root_and_not_the_link_before_it() {
        let mut runner = Runner::default();
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: fails }, None, &mut ());
        runner.run(&Unit { check: check("B-1", Nature::Any, &["A-1"]), run: passes }, None, &mut ());
        runner.run(&Unit { check: check("C-1", Nature::Any, &["B-1"]), run: passes }, None, &mut ());
        assert_eq!(runner.findings[2].blocked_by.as_deref(), Some("A-1"));
    }

    #[test]
    fn one_subject_does_not_block_another() {
        let mut runner = Runner::default();
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: fails }, Some("left"), &mut ());
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: passes }, Some("right"), &mut ());
        let second = Unit { check: check("B-1", Nature::Any, &["A-1"]), run: passes };
        runner.run(&second, Some("right"), &mut ());
        assert_eq!(runner.findings[2].state, State::Pass);
    }

    #[test]
    fn a_pair_is_blocked_by_either_of_its_sides_and_by_no_other() {
        let mut runner = Runner::default();
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: fails }, Some("0"), &mut ());
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: passes }, Some("1"), &mut ());
        let unit = Unit { check: check("B-1", Nature::Any, &["A-1"]), run: passes };
        runner.run(&unit, Some("0/left"), &mut ());
        runner.run(&unit, Some("1/left"), &mut ());
        assert_eq!((runner.findings[2].state, runner.findings[3].state), (State::Skip, State::Pass));
    }

    #[test]
    fn what_holds_for_an_adapter_alone_does_not_stand_in_for_a_pair() {
        let mut runner = Runner::default();
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: passes }, Some("left"), &mut ());
        runner.run(&Unit { check: check("A-1", Nature::Any, &[]), run: fails }, Some("0/left"), &mut ());
        let unit = Unit { check: check("B-1", Nature::Any, &["A-1"]), run: passes };
        runner.run(&unit, Some("0/left"), &mut ());
        runner.run(&unit, Some("left"), &mut ());
        assert_eq!((runner.findings[2].state, runner.findings[3].state), (State::Skip, State::Pass));
    }

    #[test]
    fn hardware_is_left_out_under_the_software_adapter() {
        let mut runner = Runner::new(Policy { soft: true, no_gpu: false });
        runner.run(&Unit { check: check("A-1", Nature::Hardware, &[]), run: fails }, None, &mut ());
        assert_eq!(runner.findings[0].blocked_by.as_deref(), Some("ENV-000"));
    }

    #[test]
    fn code_and_subject_stay_unique() {
        let mut runner = Runner::default();
        let unit = Unit { check: check("A-1", Nature::Any, &[]), run: passes };
        runner.run(&unit, Some("x"), &mut ());
        runner.run(&unit, Some("x"), &mut ());
        assert_ne!(runner.findings[0].subject, runner.findings[1].subject);
    }
}
