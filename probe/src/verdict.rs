//! The verdict: what each pair of GPU and adapter can do, and the next step. It reads findings and
//! nothing else.

use crate::checks::registry;
use crate::part::Gpu;
use crate::report::{Finding, Reach, State, Verdict};

/// The check that says whether queues map into a GPU.
const MAPS: &str = "CUDA-008";
/// The check that says whether bytes moved through the queues arrived.
const MOVED: &str = "PUT-002";

/// A verdict for each pair; for each adapter where no GPU takes part; one with the adapter "none"
/// where there is none.
pub(crate) fn verdicts(findings: &[Finding], gpus: &[Gpu], adapters: &[String]) -> Vec<Verdict> {
    let none = ["none".to_owned()];
    let adapters = if adapters.is_empty() { &none[..] } else { adapters };
    let numbers: Vec<String> = gpus.iter().map(|gpu| gpu.number.to_string()).collect();
    let mut all = Vec::new();
    for adapter in adapters {
        if numbers.is_empty() {
            all.push(without_gpu(findings, adapter));
        }
        all.extend(numbers.iter().map(|gpu| pair(findings, gpu, adapter)));
    }
    all
}

fn state(findings: &[Finding], code: &str, subject: &str) -> Option<State> {
    let of = |finding: &&Finding| finding.code == code && finding.subject.as_deref() == Some(subject);
    findings.iter().find(of).map(|finding| finding.state)
}

/// The first failure that concerns one of `subjects`, or no subject at all, in the order of a
/// report.
fn first_failure<'a>(findings: &'a [Finding], subjects: &[&str]) -> Option<&'a Finding> {
    let concerns = |finding: &&Finding| {
        finding.state == State::Fail
            && finding.subject.as_deref().is_none_or(|subject| {
                subjects.iter().any(|wanted| *wanted == subject || wanted.starts_with(&format!("{subject}-")))
            })
    };
    registry().iter().find_map(|check| findings.iter().filter(concerns).find(|f| f.code == check.code))
}

fn fix(failure: &Finding) -> String {
    let fix = failure.fix.as_deref().unwrap_or("see gda-probe explain");
    format!("{}: {fix}", failure.code)
}

/// Where libfabric exposes no queue of the adapter and rdma-core does, that a transport without
/// libfabric has one.
fn without_libfabric(findings: &[Finding], adapter: &str) -> &'static str {
    let passed = |code: &str| {
        let of = |subject: &str| adapter == subject || adapter.starts_with(&format!("{subject}-"));
        findings.iter().any(|finding| {
            finding.code == code && finding.state == State::Pass && finding.subject.as_deref().is_some_and(of)
        })
    };
    match passed("VRB-011") && passed("VRB-012") && !passed("PUT-002") && !passed("GDA-003") {
        true => "; rdma-core exposes the queues, this libfabric does not: see --via verbs",
        false => "",
    }
}

fn without_gpu(findings: &[Finding], adapter: &str) -> Verdict {
    let next = match first_failure(findings, &[adapter]) {
        Some(failure) => fix(failure) + without_libfabric(findings, adapter),
        None if state(findings, MOVED, adapter) == Some(State::Pass) => {
            "the adapter's queues work from the host; run where a GPU takes part".to_owned()
        }
        None => "run where a GPU and an adapter take part".to_owned(),
    };
    Verdict { gpu: "none".to_owned(), adapter: adapter.to_owned(), result: Reach::None, next }
}

fn pair(findings: &[Finding], gpu: &str, adapter: &str) -> Verdict {
    let maps = state(findings, MAPS, gpu);
    let moved = state(findings, MOVED, adapter) == Some(State::Pass);
    let (result, next) = match (maps, moved) {
        (Some(State::Pass), true) => (Reach::Gda, "nothing is missing".to_owned()),
        (Some(State::Fail), true) => {
            let why = first_failure(findings, &[gpu]).map(fix).unwrap_or_default();
            (Reach::HostRung, format!("use --doorbell record; for gda: {why}"))
        }
        (_, false) => {
            let next = first_failure(findings, &[gpu, adapter])
                .map(|failure| fix(failure) + without_libfabric(findings, adapter));
            (Reach::None, next.unwrap_or_else(|| "no put was verified on this adapter".to_owned()))
        }
        (_, true) => {
            let next =
                "the adapter's queues work from the host; mapping them into a GPU is not in this version";
            (Reach::None, next.to_owned())
        }
    };
    Verdict { gpu: gpu.to_owned(), adapter: adapter.to_owned(), result, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    fn finding(code: &str, subject: &str, state: State) -> Finding {
        Finding {
            code: code.to_owned(),
            subject: Some(subject.to_owned()),
            title: String::new(),
            state,
            kind: Kind::Proven,
            observed: None,
            required: None,
            why: None,
            fix: Some("do it".to_owned()),
            who: None,
            blocked_by: None,
        }
    }

    fn gpu() -> Vec<Gpu> {
        vec![Gpu { number: 0, name: String::new() }]
    }

    #[test]
    fn a_pair_that_maps_and_moves_is_gda() {
        let findings = [finding(MAPS, "0", State::Pass), finding(MOVED, "a-rdm", State::Pass)];
        assert_eq!(verdicts(&findings, &gpu(), &["a-rdm".to_owned()])[0].result, Reach::Gda);
    }

    #[test]
    fn a_pair_that_moves_but_does_not_map_is_host_rung() {
        let findings = [finding(MAPS, "0", State::Fail), finding(MOVED, "a-rdm", State::Pass)];
        assert_eq!(verdicts(&findings, &gpu(), &["a-rdm".to_owned()])[0].result, Reach::HostRung);
    }

    #[test]
    fn an_adapter_that_moves_nothing_is_none_whatever_maps() {
        let findings = [finding(MAPS, "0", State::Pass), finding(MOVED, "a-rdm", State::Fail)];
        assert_eq!(verdicts(&findings, &gpu(), &["a-rdm".to_owned()])[0].result, Reach::None);
    }

    #[test]
    fn without_a_gpu_there_is_one_verdict_for_each_adapter() {
        let all = verdicts(&[], &[], &["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            all.iter().map(|v| (v.gpu.as_str(), v.adapter.as_str())).collect::<Vec<_>>(),
            [("none", "a"), ("none", "b")]
        );
    }

    #[test]
    fn the_next_step_says_where_rdma_core_exposes_what_libfabric_does_not() {
        let mut findings = vec![
            finding("GDA-001", "a-rdm", State::Fail),
            finding("VRB-011", "a", State::Pass),
            finding("VRB-012", "a", State::Pass),
        ];
        let next = |findings: &[Finding]| verdicts(findings, &[], &["a-rdm".to_owned()])[0].next.clone();
        assert!(next(&findings).contains("see --via verbs"));
        findings.push(finding("GDA-003", "a-rdm", State::Pass));
        assert!(!next(&findings).contains("see --via verbs"));
    }

    #[test]
    fn the_next_step_is_the_first_failure_of_this_adapter() {
        let findings = [finding("PUT-002", "b", State::Fail), finding("FAB-005", "b", State::Fail)];
        let all = verdicts(&findings, &[], &["a".to_owned(), "b".to_owned()]);
        assert!(!all[0].next.contains("FAB-005") && all[1].next.starts_with("FAB-005"), "{all:?}");
    }
}
