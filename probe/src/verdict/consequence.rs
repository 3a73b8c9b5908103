//! Problems that are consequences of others: what solves the other one solves them.

use crate::model::{Finding, State};

/// The codes of consequences, each with those that can be its cause, the first in a report first.
const CAUSES: [(&str, &[&str]); 3] = [
    // libfabric finds adapters through their RDMA devices and their nodes.
    ("FAB-001", &["DEV-001", "DEV-003", "DEV-005", "DEV-006"]),
    ("DEV-007", &["DEV-005"]),
    ("GDA-010", &["DEV-002"]),
];

/// The code of the problem from which `one` follows.
pub(crate) fn cause_of(findings: &[Finding], one: &Finding) -> Option<&'static str> {
    let (_, causes) = CAUSES.iter().find(|(code, _)| *code == one.code)?;
    causes.iter().copied().find(|cause| {
        let of = || findings.iter().filter(|other| other.code == *cause);
        let is_bad = |other: &Finding| matches!(other.state, State::Fail | State::Warn);
        match one.code.as_str() {
            "FAB-001" => of().any(is_bad) && of().all(|other| other.state != State::Pass),
            // Counters can also be missing for reasons of the image and of the environment.
            _ => of().any(|other| is_bad(other) && other.who == one.who),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, Who};

    fn problem(code: &str, who: Who, state: State) -> Finding {
        Finding { who: Some(who), ..Finding::new(code, "", state, Kind::Declared) }
    }

    #[test]
    fn no_adapter_follows_from_nodes_that_are_all_missing() {
        let no_adapter = problem("FAB-001", Who::Image, State::Fail);
        let missing = problem("DEV-005", Who::Pod, State::Fail);
        assert_eq!(cause_of(std::slice::from_ref(&missing), &no_adapter), Some("DEV-005"));
        let there = problem("DEV-005", Who::Pod, State::Pass);
        assert_eq!(cause_of(&[missing, there], &no_adapter), None);
    }

    #[test]
    fn missing_counters_follow_from_the_kernel_driver_unless_a_variable_disables_them() {
        let driver = [problem("DEV-002", Who::Host, State::Warn)];
        assert_eq!(cause_of(&driver, &problem("GDA-010", Who::Host, State::Warn)), Some("DEV-002"));
        assert_eq!(cause_of(&driver, &problem("GDA-010", Who::Pod, State::Warn)), None);
    }
}
