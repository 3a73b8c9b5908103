//! The verdict for a stack: whether raw GPU-Direct Async, NCCL's EFA-GDA, FI_XPU, NVSHMEM's proxy or DeepEP can run
//! here, the one check that stops it, and the next step. It depends on findings only.

use std::collections::BTreeSet;

use crate::check::{Check, Follows, Need};
use crate::checks::rows::{Row, Run, row, rows};
use crate::model::{
    Finding, GpuChoice, NO_GPU, NOT_LOADED, Runs, SOFTWARE_ADAPTER, StackName, StackVerdict, State, Step,
    Stops,
};

/// A check on which a stack depends.
#[derive(Clone, Copy, Debug)]
struct Needed {
    check: &'static Check,
    need: Need,
}

impl Needed {
    /// Whether a finding decides on this need.
    fn concerns(self, finding: &Finding) -> bool {
        let subject = finding.subject.as_deref().unwrap_or_default();
        finding.code == self.check.code && subject.starts_with(self.need.subjects)
    }

    /// Whether this need does not hold because of `problem`. One adapter that passes is enough.
    fn is_missed_for(self, findings: &[Finding], problem: &Finding) -> bool {
        let of_need = || findings.iter().filter(|finding| self.concerns(finding));
        if of_need().any(|one| one.state == State::Pass) {
            return false;
        }
        let waits =
            |one: &Finding| one.state == State::Skip && one.blocked_by.as_ref() == Some(&problem.code);
        // What was not proven is missed for a cause that is there.
        let caused =
            || of_need().next().is_some() && self.causes(findings).any(|one| one.code == problem.code);
        match problem.state {
            State::Fail => self.concerns(problem) || of_need().any(waits) || caused(),
            State::Warn => self.need.pass && self.concerns(problem) || caused(),
            _ => false,
        }
    }

    /// The problems that are the reason if this need does not pass.
    fn causes(self, findings: &[Finding]) -> impl Iterator<Item = &Finding> {
        let follows = self.check.follows;
        let of = move |cause: &'static str| findings.iter().filter(move |one| one.code == cause);
        let passes = move |cause| of(cause).any(|one| one.state == State::Pass);
        let counts = move |cause: &&'static str| match follows {
            Follows::IfNonePasses(_) => !passes(*cause),
            Follows::IfSameRole(_) => true,
        };
        let is_bad = |one: &&Finding| matches!(one.state, State::Fail | State::Warn);
        follows.causes().iter().copied().filter(counts).flat_map(of).filter(is_bad)
    }
}

/// What a stack needs, in the order of a report.
fn needs(stack: StackName) -> impl Iterator<Item = Needed> {
    let of_row = move |row: &'static Row| {
        let of_stack = row.check.stacks.iter().filter(move |need| need.stack == stack);
        of_stack.map(|need| Needed { check: &row.check, need: *need })
    };
    rows().flat_map(of_row)
}

/// The next step if nothing stops a stack.
fn ready(stack: StackName) -> &'static str {
    match stack {
        StackName::Gda => "none: a GPU posts to the adapter and rings it",
        StackName::Nccl => {
            "set NCCL_GIN_TYPE=5 and NCCL_SYM_GIN_KERNELS_ENABLE=0 in each job; with NCCL_DEBUG=INFO, \"gin GDAKI: \
             createContext done\" proves that EFA-GDA runs"
        }
        StackName::FiXpu => {
            "read the provider's release notes: in libfabric 2.7.0 the device functions return ENOSYS"
        }
        StackName::Nvshmem => {
            "set NVSHMEM_REMOTE_TRANSPORT=libfabric and NVSHMEM_LIBFABRIC_PROVIDER=efa; a CPU proxy posts"
        }
        StackName::Deepep => {
            "use amazon-contributing/DeepEP with EP_HYBRID_KERNEL=unordered, NCCL_GIN_TYPE=5 and \
             NCCL_SYM_GIN_KERNELS_ENABLE=0: unmodified DeepEP needs signals that EFA-GDA lacks; DeepEP 1 runs on \
             the compatibility headers, which need only gda"
        }
    }
}

/// The verdict for the adapter on which the stack gets furthest.
fn verdict(stack: StackName, findings: &[Finding], gpu: Option<GpuChoice>) -> StackVerdict {
    let per_adapter =
        |finding: &&Finding| row(&finding.code).is_some_and(|row| matches!(row.run, Run::Adapter(_)));
    let adapters: BTreeSet<&str> = findings.iter().filter(per_adapter).filter_map(adapter).collect();
    let on = |name: &str| {
        let concerns = |finding: &&Finding| {
            adapter(finding).is_none_or(|other| other == name || !adapters.contains(other))
        };
        verdict_on(stack, &findings.iter().filter(concerns).cloned().collect::<Vec<_>>(), gpu)
    };
    let verdicts = adapters.iter().map(|name| on(name));
    verdicts.min_by_key(|verdict| verdict.runs).unwrap_or_else(|| verdict_on(stack, findings, gpu))
}

/// The verdict, by the first problem in the order of a report because of which a need does not hold.
fn verdict_on(stack: StackName, findings: &[Finding], gpu: Option<GpuChoice>) -> StackVerdict {
    let mut open: Option<(String, String)> = None;
    let mut stops: Vec<(String, String)> = Vec::new();
    for need in needs(stack) {
        match judge(need, findings, gpu) {
            Answer::Holds => {}
            Answer::Stops(code, next) => stops.push((code, next)),
            Answer::Open(code, why) => _ = open.get_or_insert((code, why)),
        }
    }
    let first = |(code, _): &(String, String)| rows().position(|row| row.check.code == code);
    if let Some((code, next)) = stops.into_iter().min_by_key(first) {
        return StackVerdict { stack, runs: Runs::No, stopped_by: Some(code), next };
    }
    match open {
        Some((code, next)) => StackVerdict { stack, runs: Runs::Unknown, stopped_by: Some(code), next },
        None => StackVerdict { stack, runs: Runs::Yes, stopped_by: None, next: ready(stack).to_owned() },
    }
}

/// The adapter that a finding is of: its subject, or what follows the GPU in a pair's; without libfabric's suffix.
fn adapter(finding: &Finding) -> Option<&str> {
    let subject = finding.subject.as_deref()?;
    let name = subject.rsplit_once('/').map_or(subject, |(_, name)| name);
    Some(name.strip_suffix("-rdm").unwrap_or(name))
}

/// Whether a need holds.
enum Answer {
    Holds,
    /// The code that stops the stack, and the next step.
    Stops(String, String),
    /// The code that has no result, and why.
    Open(String, String),
}

fn judge(needed: Needed, findings: &[Finding], gpu: Option<GpuChoice>) -> Answer {
    let Needed { check, need } = needed;
    let of =
        |state: State| findings.iter().find(|finding| needed.concerns(finding) && finding.state == state);
    if of(State::Pass).is_some() {
        // One pair that works is enough.
        return Answer::Holds;
    }
    let fix = |finding: &Finding| finding.fix.clone().unwrap_or_else(|| check.title.to_owned());
    let is_open = [State::Warn, State::Unknown, State::Skip].into_iter().any(|state| of(state).is_some());
    if let Some(cause) = needed.causes(findings).next().filter(|_| is_open) {
        return Answer::Stops(cause.code.clone(), fix(cause));
    }
    if let Some(warning) = of(State::Warn) {
        return if need.pass { Answer::Stops(check.code.to_owned(), fix(warning)) } else { Answer::Holds };
    }
    if let Some(failure) = of(State::Fail) {
        return Answer::Stops(check.code.to_owned(), fix(failure));
    }
    if let Some(skipped) = of(State::Skip) {
        let root = skipped.blocked_by.clone().unwrap_or_else(|| check.code.to_owned());
        let failed = findings.iter().find(|finding| finding.code == root && finding.state == State::Fail);
        return match failed {
            Some(failure) => Answer::Stops(root, fix(failure)),
            None if !need.pass => Answer::Holds,
            None => {
                let next = match root.as_str() {
                    NO_GPU => format!("for a GPU, {}", super::find_gpu(gpu)),
                    NOT_LOADED => Step::Elsewhere.text(),
                    SOFTWARE_ADAPTER => "run without --soft where an EFA adapter is".to_owned(),
                    _ => "see the check that blocks it".to_owned(),
                };
                Answer::Open(root, next)
            }
        };
    }
    match of(State::Unknown) {
        Some(unknown) if need.pass => {
            Answer::Open(check.code.to_owned(), unknown.why.clone().unwrap_or_default())
        }
        _ => Answer::Holds,
    }
}

/// The stacks that are judged: all, or `only` this one.
fn judged(only: Option<StackName>) -> impl Iterator<Item = StackName> {
    let all = [StackName::Gda, StackName::Nccl, StackName::FiXpu, StackName::Nvshmem, StackName::Deepep];
    all.into_iter().filter(move |stack| only.is_none_or(|only| only == *stack))
}

/// The stacks, or `only` this one, that a problem keeps from running.
pub(crate) fn stopped_by(findings: &[Finding], problem: &Finding, only: Option<StackName>) -> Stops {
    let is_stopped = |stack: &StackName| needs(*stack).any(|need| need.is_missed_for(findings, problem));
    let stacks: Vec<_> = judged(only).filter(is_stopped).collect();
    Stops { all: stacks.len() == judged(only).count(), stacks }
}

/// The verdicts for all stacks, or for `only` one; `gpu` is the choice of `--gpu`.
pub(crate) fn stacks(
    findings: &[Finding],
    gpu: Option<GpuChoice>,
    only: Option<StackName>,
) -> Vec<StackVerdict> {
    judged(only).map(|stack| verdict(stack, findings, gpu)).collect()
}

/// Keeps the findings on which the stack `only` depends, and those that block them.
pub(crate) fn narrow(findings: &mut Vec<Finding>, only: StackName) {
    let needed = |finding: &Finding| {
        let mut of = needs(only).filter(|needed| needed.check.code == finding.code);
        let concerns = |needed: Needed| {
            finding.subject.as_deref().is_none_or(|subject| subject.starts_with(needed.need.subjects))
        };
        of.any(concerns)
    };
    let blocking: Vec<String> = findings
        .iter()
        .filter(|finding| needs(only).any(|needed| needed.check.code == finding.code))
        .filter_map(|finding| finding.blocked_by.clone())
        .collect();
    findings.retain(|finding| needed(finding) || blocking.contains(&finding.code));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn finding(code: &str, subject: Option<&str>, state: State) -> Finding {
        let (subject, fix) = (subject.map(str::to_owned), Some(format!("fix {code}")));
        let blocked_by = (state == State::Skip).then(|| "DEV-001".to_owned());
        let why = Some("because".to_owned());
        Finding { subject, why, fix, blocked_by, ..Finding::new(code, "", state, Kind::Proven) }
    }

    /// A machine on which every check passes, with these findings in place of the same codes.
    fn machine(changed: &[(&str, Option<&str>, State)]) -> Vec<Finding> {
        let mut all: Vec<Finding> = rows().map(|row| finding(row.check.code, None, State::Pass)).collect();
        all.retain(|one| changed.iter().all(|(code, ..)| *code != one.code));
        all.extend(changed.iter().map(|(code, subject, state)| finding(code, *subject, *state)));
        all
    }

    fn of(name: StackName, changed: &[(&str, Option<&str>, State)]) -> (Runs, Option<String>) {
        let verdict = stacks(&machine(changed), None, Some(name)).remove(0);
        (verdict.runs, verdict.stopped_by)
    }

    fn stopped(code: &str) -> (Runs, Option<String>) {
        (Runs::No, Some(code.to_owned()))
    }

    #[test]
    fn every_stack_runs_where_every_check_passes() {
        for verdict in stacks(&machine(&[]), None, None) {
            assert_eq!((verdict.runs, verdict.stopped_by), (Runs::Yes, None), "{:?}", verdict.stack);
        }
    }

    #[test]
    fn missing_counters_stop_nccl_and_deepep_and_no_other_stack() {
        let counters = [("GDA-010", None, State::Warn)];
        assert_eq!(of(StackName::Nccl, &counters), stopped("GDA-010"));
        assert_eq!(of(StackName::Deepep, &counters), stopped("GDA-010"));
        for other in [StackName::Gda, StackName::Nvshmem, StackName::FiXpu] {
            assert_eq!(of(other, &counters).0, Runs::Yes, "{other:?}");
        }
    }

    #[test]
    fn a_write_that_no_adapter_completes_stops_each_stack_whose_gpu_posts() {
        for stack in [StackName::Gda, StackName::Nccl, StackName::FiXpu, StackName::Deepep] {
            assert_eq!(
                of(stack, &[("PUT-001", Some("GPU0/efa_0"), State::Fail)]),
                stopped("PUT-001"),
                "{stack:?}"
            );
            assert_eq!(of(stack, &[("PUT-001", None, State::Warn)]).0, Runs::Yes, "{stack:?}");
        }
    }

    #[test]
    fn a_kernel_driver_without_counters_is_why_they_are_missing() {
        let old = [("DEV-002", None, State::Warn), ("GDA-010", None, State::Warn)];
        assert_eq!(of(StackName::Nccl, &old), stopped("DEV-002"));
        assert_eq!(of(StackName::Gda, &old).0, Runs::Yes);
        // Counters that are off by default.
        let off = [("DEV-002", None, State::Warn), ("GDA-010", None, State::Unknown)];
        assert_eq!(of(StackName::Nccl, &off), stopped("DEV-002"));
        // What was proven is right: the counters count.
        assert_eq!(of(StackName::Nccl, &old[..1]).0, Runs::Yes);
    }

    #[test]
    fn a_warning_stops_a_stack_if_the_stack_needs_a_pass_and_there_is_none() {
        let stops = |warning: &str, changed: &[(&str, Option<&str>, State)]| {
            let findings = machine(changed);
            let warning = findings.iter().find(|one| one.code == warning && one.state == State::Warn);
            !stopped_by(&findings, warning.expect("the warning"), None).stacks.is_empty()
        };
        assert!(stops("LIB-008", &[("LIB-008", None, State::Warn)]));
        assert!(!stops("LIB-004", &[("LIB-004", None, State::Warn)]), "no stack needs it");
        let (old, uncounted) = (("DEV-002", None, State::Warn), ("GDA-010", Some("a"), State::Warn));
        assert!(!stops("DEV-002", &[old]), "the counters count");
        assert!(stops("DEV-002", &[old, uncounted]));
        assert!(
            !stops("GDA-010", &[uncounted, ("GDA-010", Some("b"), State::Pass)]),
            "one adapter is enough"
        );
        assert!(stops("ENV-007", &[("ENV-007", Some("NCCL_GIN_TYPE"), State::Warn)]));
    }

    #[test]
    fn a_failure_stops_the_stacks_that_need_it_or_a_check_that_waits_for_it() {
        let stops = |changed: &[(&str, Option<&str>, State)]| {
            let findings = machine(changed);
            let problem = findings.iter().find(|one| one.state == State::Fail).expect("a failure");
            let Stops { stacks, all } = stopped_by(&findings, problem, None);
            (stacks.len(), all)
        };
        assert_eq!(stops(&[("ENV-003", None, State::Fail)]), (5, true));
        assert_eq!(stops(&[("CUDA-002", None, State::Fail)]), (4, false), "NVSHMEM's proxy runs");
        assert_eq!(stops(&[("DEV-001", None, State::Fail), ("FAB-005", None, State::Skip)]), (5, true));
        assert_eq!(stops(&[("LIB-004", None, State::Fail)]), (0, false), "no stack needs it");
        let one = [("DEV-005", Some("a"), State::Fail), ("DEV-005", Some("b"), State::Pass)];
        assert_eq!(stops(&one), (0, false), "another adapter is enough");
        let findings = machine(&[("CUDA-002", None, State::Fail)]);
        let failure = findings.last().expect("the failure");
        assert!(stopped_by(&findings, failure, Some(StackName::Nccl)).all, "the only one that was asked for");
    }

    #[test]
    fn the_proxy_of_nvshmem_needs_no_mapping_into_the_gpu() {
        let unmapped = [
            ("CUDA-002", None, State::Fail),
            ("CUDA-008", Some("0/a"), State::Fail),
            ("GDA-003", None, State::Fail),
        ];
        assert_eq!(of(StackName::Nvshmem, &unmapped).0, Runs::Yes);
        assert_eq!(of(StackName::Gda, &unmapped), stopped("CUDA-002"));
    }

    #[test]
    fn the_first_failure_in_the_order_of_a_report_stops_a_stack() {
        let two = [("GDA-001", None, State::Fail), ("DEV-005", Some("a"), State::Fail)];
        assert_eq!(of(StackName::Gda, &two), stopped("DEV-005"));
    }

    #[test]
    fn one_working_adapter_is_enough() {
        let one = [("DEV-005", Some("a"), State::Fail), ("DEV-005", Some("b"), State::Pass)];
        assert_eq!(of(StackName::Gda, &one).0, Runs::Yes);
    }

    #[test]
    fn two_adapters_that_fail_different_checks_do_not_make_one_that_works() {
        let state = |code, a, b| [(code, Some("a-rdm"), a), (code, Some("b-rdm"), b)];
        let opened = state("GDA-001", State::Pass, State::Pass);
        let halves =
            [opened, state("GDA-003", State::Fail, State::Pass), state("QUE-001", State::Pass, State::Fail)];
        assert_eq!(of(StackName::Gda, halves.as_flattened()), stopped("GDA-003"));
        let one = [opened, state("GDA-003", State::Fail, State::Pass)];
        assert_eq!(of(StackName::Gda, one.as_flattened()).0, Runs::Yes);
    }

    #[test]
    fn a_skipped_check_names_the_failure_that_blocks_it() {
        let blocked = [("FAB-005", None, State::Skip), ("DEV-001", None, State::Fail)];
        assert_eq!(of(StackName::Gda, &blocked), stopped("DEV-001"));
    }

    #[test]
    fn a_proof_without_a_result_leaves_the_stack_unknown() {
        let unknown = [("LIB-007", None, State::Unknown)];
        assert_eq!(of(StackName::Nccl, &unknown), (Runs::Unknown, Some("LIB-007".to_owned())));
        assert_eq!(of(StackName::Gda, &unknown).0, Runs::Yes);
    }

    #[test]
    fn the_software_adapter_decides_only_raw_gda() {
        let mut findings = machine(&[("DEV-001", None, State::Skip)]);
        findings.last_mut().expect("a finding").blocked_by = Some(SOFTWARE_ADAPTER.to_owned());
        for verdict in stacks(&findings, None, None) {
            let expected = if verdict.stack == StackName::Gda { Runs::Yes } else { Runs::Unknown };
            assert_eq!(verdict.runs, expected, "{:?}", verdict.stack);
        }
    }

    #[test]
    fn variables_of_one_stack_do_not_stop_another() {
        let set = [("ENV-007", Some("NCCL_GIN_ENABLE"), State::Warn)];
        assert_eq!(of(StackName::Nccl, &set), stopped("ENV-007"));
        assert_eq!(of(StackName::Nvshmem, &set).0, Runs::Yes);
    }

    #[test]
    fn narrowing_keeps_the_needs_of_the_stack_and_what_blocks_them() {
        let mut findings = machine(&[("FAB-005", None, State::Skip), ("DEV-001", None, State::Fail)]);
        narrow(&mut findings, StackName::Nvshmem);
        let has = |code: &str| findings.iter().any(|finding| finding.code == code);
        assert!(has("FAB-005") && has("DEV-001") && !has("GDA-010") && !has("LIB-007"));
    }
}
