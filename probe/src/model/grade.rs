//! How much a problem matters, and what is done about it with the node.

use serde::Serialize;

use super::{Finding, StackName, State, Who};

/// How much a problem matters, by the stacks that cannot run with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// A warning with which every stack can run.
    Minor,
    /// Some stack cannot run; or a check failed for a part of the machine, such as one of its adapters.
    Major,
    /// No stack can run.
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

    /// What is done with the node, which may be sound although a job cannot run on it.
    pub(crate) fn of_node(self, state: State) -> &'static str {
        match self {
            Self::FixImage | Self::FixPod | Self::FixProgram => "keep the node in service",
            Self::FixHost if state == State::Warn => "keep the node in service, and drain it for the fix",
            Self::FixHost => "drain the node, fix it, and return it to service",
            Self::Restart => "drain the node and restart it; isolate it if that does not help",
            Self::Isolate => "isolate the node (cordon and drain it) until it is fixed",
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
    /// The stacks that cannot run with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stops: Vec<StackName>,
    /// The code of the problem whose consequence this one is: it has no fix of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) follows_from: Option<&'static str>,
}

/// What a problem stops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    /// The stacks that cannot run with it.
    pub(crate) stacks: Vec<StackName>,
    /// Whether these are all stacks that are judged.
    pub(crate) all: bool,
}

impl Graded {
    /// Grades a finding of a run. `of_host` is the action for a problem that the host's operator solves; `stops` and
    /// `follows_from` are for problems only.
    pub(crate) fn new(
        finding: Finding,
        of_host: Action,
        stops: Stops,
        follows_from: Option<&'static str>,
    ) -> Self {
        let severity = match finding.state {
            State::Pass | State::Skip | State::Unknown => {
                return Self { finding, severity: None, action: None, stops: Vec::new(), follows_from: None };
            }
            State::Warn | State::Fail if stops.all => Severity::Critical,
            State::Warn if stops.stacks.is_empty() => Severity::Minor,
            State::Warn | State::Fail => Severity::Major,
        };
        let action = finding.who.map(|who| match who {
            // No node is drained for a warning: other jobs work on it.
            Who::Host if finding.state == State::Warn => Action::FixHost,
            Who::Host => of_host,
            Who::Image => Action::FixImage,
            Who::Pod => Action::FixPod,
            Who::Code => Action::FixProgram,
        });
        Self { finding, severity: Some(severity), action, stops: stops.stacks, follows_from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn graded(state: State, who: Who, stacks: &[StackName], all: bool) -> Graded {
        let finding = Finding { who: Some(who), ..Finding::new("A-1", "", state, Kind::Declared) };
        Graded::new(finding, Action::Isolate, Stops { stacks: stacks.to_vec(), all }, None)
    }

    #[test]
    fn the_severity_is_by_the_stacks_that_are_stopped_whatever_the_state() {
        let of = |state, stacks: &[StackName], all| graded(state, Who::Pod, stacks, all).severity;
        let some = [StackName::Nccl];
        for state in [State::Fail, State::Warn] {
            assert_eq!(of(state, &some, true), Some(Severity::Critical));
            assert_eq!(of(state, &some, false), Some(Severity::Major));
        }
        assert_eq!(of(State::Fail, &[], false), Some(Severity::Major), "one adapter of several");
        assert_eq!(of(State::Warn, &[], false), Some(Severity::Minor));
        assert_eq!(of(State::Skip, &some, true), None);
    }

    #[test]
    fn a_failure_of_the_host_has_the_action_of_its_code_and_a_warning_never_drains_a_node() {
        let action = |state, who| graded(state, who, &[], false).action;
        assert_eq!(action(State::Fail, Who::Host), Some(Action::Isolate));
        assert_eq!(action(State::Warn, Who::Host), Some(Action::FixHost));
        assert_eq!(action(State::Fail, Who::Image), Some(Action::FixImage));
        assert_eq!(action(State::Fail, Who::Pod), Some(Action::FixPod));
        assert_eq!(action(State::Warn, Who::Code), Some(Action::FixProgram));
        assert_eq!(action(State::Pass, Who::Code), None);
    }

    #[test]
    fn a_node_is_kept_unless_its_host_is_at_fault() {
        for action in [Action::FixImage, Action::FixPod, Action::FixProgram] {
            assert!(action.of_node(State::Fail).starts_with("keep the node"));
        }
        assert!(Action::FixHost.of_node(State::Fail).starts_with("drain the node"));
        assert!(Action::FixHost.of_node(State::Warn).starts_with("keep the node"));
    }
}
