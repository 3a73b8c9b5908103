//! How much a problem matters, and what is done about it with the node.

use serde::Serialize;

use super::{Finding, State, Who};

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It works, at a cost.
    Minor,
    /// It does not work, and no other check waits for it; or a stack does not work with it.
    Major,
    /// It does not work, and other checks could not run because of it.
    Critical,
}

impl Severity {
    /// The severity in a word, as in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Minor => "minor",
            Self::Major => "major",
            Self::Critical => "critical",
        }
    }
}

/// What is done with the node, the image or the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// Change the host's configuration, drivers or instance type.
    FixHost,
    /// Build another container image.
    FixImage,
    /// Change the pod or the job: devices, limits, environment.
    FixPod,
    /// Change the program or the command line.
    FixProgram,
    /// Restart the host: its driver is stuck or did not start.
    Restart,
    /// Take the node out of service: its hardware does not answer as it should.
    Isolate,
}

impl Action {
    /// The action as a request to the person who can do it.
    pub(crate) fn request(self) -> &'static str {
        match self {
            Self::FixHost => "fix the host",
            Self::FixImage => "fix the image",
            Self::FixPod => "fix the pod or job",
            Self::FixProgram => "fix the program or the command line",
            Self::Restart => "fix the host or restart it; isolate it if that does not help",
            Self::Isolate => "isolate the node until this is fixed",
        }
    }
}

/// A finding with its grade. Only problems have one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Graded {
    /// The finding.
    #[serde(flatten)]
    pub(crate) finding: Finding,
    /// How much the problem matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) severity: Option<Severity>,
    /// What is done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<Action>,
}

impl Graded {
    /// Grades all findings of a run. `of_host` is the action for a code whose problem the host's operator solves;
    /// `stops` decides whether a warning keeps a stack from running.
    pub(crate) fn all(
        findings: Vec<Finding>,
        of_host: impl Fn(&str) -> Action,
        stops: impl Fn(&[Finding], &Finding) -> bool,
    ) -> Vec<Self> {
        let blocks = |code: &str| findings.iter().any(|other| other.blocked_by.as_deref() == Some(code));
        let severity = |one: &Finding| match one.state {
            State::Fail if blocks(&one.code) => Some(Severity::Critical),
            State::Fail => Some(Severity::Major),
            State::Warn if stops(&findings, one) => Some(Severity::Major),
            State::Warn => Some(Severity::Minor),
            State::Pass | State::Skip | State::Unknown => None,
        };
        let severities: Vec<_> = findings.iter().map(severity).collect();
        let grade = |(finding, severity): (Finding, Option<Severity>)| {
            let action = severity.and(finding.who).map(|who| match who {
                // No node is drained for a warning: other jobs work on it.
                Who::Host if finding.state == State::Warn => Action::FixHost,
                Who::Host => of_host(&finding.code),
                Who::Image => Action::FixImage,
                Who::Pod => Action::FixPod,
                Who::Code => Action::FixProgram,
            });
            Self { finding, severity, action }
        };
        findings.into_iter().zip(severities).map(grade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn finding(code: &str, state: State, who: Option<Who>, blocked_by: Option<&str>) -> Finding {
        let blocked_by = blocked_by.map(str::to_owned);
        Finding { who, blocked_by, ..Finding::new(code, "", state, Kind::Declared) }
    }

    #[test]
    fn a_failure_is_critical_if_other_checks_wait_for_it() {
        let all = Graded::all(
            vec![
                finding("A-1", State::Fail, Some(Who::Image), None),
                finding("B-1", State::Fail, Some(Who::Pod), None),
                finding("C-1", State::Warn, Some(Who::Code), None),
                finding("D-1", State::Skip, None, Some("A-1")),
            ],
            |_| Action::FixHost,
            |_, _| false,
        );
        let grades: Vec<_> = all.iter().map(|one| (one.severity, one.action)).collect();
        assert_eq!(
            grades,
            [
                (Some(Severity::Critical), Some(Action::FixImage)),
                (Some(Severity::Major), Some(Action::FixPod)),
                (Some(Severity::Minor), Some(Action::FixProgram)),
                (None, None),
            ]
        );
    }

    #[test]
    fn a_warning_that_stops_a_stack_is_major() {
        let found = ["A-1", "B-1"].map(|code| finding(code, State::Warn, Some(Who::Host), None)).to_vec();
        let all = Graded::all(found, |_| Action::Isolate, |_, one| one.code == "B-1");
        let grades: Vec<_> = all.iter().map(|one| (one.severity, one.action)).collect();
        let of = |severity| (Some(severity), Some(Action::FixHost));
        assert_eq!(grades, [of(Severity::Minor), of(Severity::Major)]);
    }

    #[test]
    fn a_failure_of_the_host_has_the_action_of_its_code_and_a_warning_never_drains_a_node() {
        let action = |state: State| {
            let found = vec![finding("A-1", state, Some(Who::Host), None)];
            Graded::all(found, |_| Action::Isolate, |_, _| true)[0].action
        };
        assert_eq!(action(State::Fail), Some(Action::Isolate));
        assert_eq!(action(State::Warn), Some(Action::FixHost));
    }
}
