//! The verdict: how far each GPU can drive each adapter, and the next step. It depends on findings and puts
//! only.

mod consequence;
pub(crate) mod stack;

use std::collections::BTreeMap;

use crate::checks::registry;
use crate::model::{
    Finding, Gpu, Graded, NO_GPU, NOT_LOADED, Pair, Put, Reach, StackName, State, Stops, Verdict, Who,
};
use crate::remedy;

/// The check that queues map into a GPU.
pub(crate) const MAPS: &str = "CUDA-008";
/// The next step if `--root` left libraries out.
pub(crate) const WITHOUT_ROOT: &str =
    "run gda-probe in the container of the job, which has its own libraries";
/// The check that bytes moved through the queues arrive.
const MOVED: &str = "PUT-002";

/// The verdicts: one for each pair; without a GPU, one for each adapter. The adapter is "none" if there is
/// none.
pub(crate) fn verdicts(
    findings: &[Finding],
    puts: &[Put],
    pairs: &[Pair],
    gpus: &[Gpu],
    adapters: &[String],
) -> Vec<Verdict> {
    let none = ["none".to_owned()];
    let adapters = if adapters.is_empty() { &none[..] } else { adapters };
    if pairs.is_empty() && !gpus.is_empty() {
        let alone = |gpu: &Gpu| Pair { gpu: gpu.number, adapter: none[0].clone() };
        return gpus.iter().map(|gpu| pair(findings, puts, &alone(gpu))).collect();
    }
    if pairs.is_empty() {
        return adapters.iter().map(|adapter| without_gpu(findings, adapter)).collect();
    }
    pairs.iter().map(|one| pair(findings, puts, one)).collect()
}

/// Grades all findings of a run, in which all stacks or `only` this one are judged.
pub(crate) fn graded(findings: Vec<Finding>, only: Option<StackName>) -> Vec<Graded> {
    // Alike problems of a thousand adapters are judged once: each judgement reads all findings.
    let mut judged: BTreeMap<_, (Stops, Option<&'static str>)> = BTreeMap::new();
    let mut all = Vec::with_capacity(findings.len());
    for one in &findings {
        // The subject of a check of the environment is a variable, which concerns some stacks.
        let variable = one.subject.as_deref().filter(|_| one.code.starts_with("ENV-"));
        let key = (one.code.as_str(), one.state == State::Fail, one.who.map(Who::role), variable);
        let (stops, cause) = match one.state {
            State::Warn | State::Fail => judged
                .entry(key)
                .or_insert_with(|| {
                    (stack::stopped_by(&findings, one, only), consequence::cause_of(&findings, one))
                })
                .clone(),
            State::Pass | State::Skip | State::Unknown => <_>::default(),
        };
        all.push(Graded::new(one.clone(), remedy::of_host(&one.code), stops, cause));
    }
    all
}

fn state(findings: &[Finding], code: &str, subject: &str) -> Option<State> {
    let of = |finding: &&Finding| finding.code == code && finding.subject.as_deref() == Some(subject);
    findings.iter().find(of).map(|finding| finding.state)
}

/// The first failure, in the order of a report, of one of `subjects` or without a subject.
fn first_failure<'a>(findings: &'a [Finding], subjects: &[&str]) -> Option<&'a Finding> {
    let concerns = |finding: &&Finding| {
        finding.state == State::Fail
            // The subject of a check of the environment is a variable, which concerns every adapter.
            && finding.subject.as_deref().filter(|_| !finding.code.starts_with("ENV-")).is_none_or(|subject| {
                subjects.iter().any(|wanted| *wanted == subject || wanted.starts_with(&format!("{subject}-")))
            })
    };
    registry().iter().find_map(|check| findings.iter().filter(concerns).find(|f| f.code == check.code))
}

fn fix(failure: &Finding) -> String {
    let fix = failure.fix.as_deref().unwrap_or("see gda-probe explain");
    format!("{}: {fix}", failure.code)
}

/// An addition to the next step if rdma-core exposes queues of the adapter and libfabric, which was asked, does not.
fn without_libfabric(findings: &[Finding], adapter: &str) -> &'static str {
    let passed = |code: &str| {
        let of = |subject: &str| adapter == subject || adapter.starts_with(&format!("{subject}-"));
        findings.iter().any(|finding| {
            finding.code == code && finding.state == State::Pass && finding.subject.as_deref().is_some_and(of)
        })
    };
    let asked = findings.iter().any(|finding| finding.code.starts_with("GDA-"));
    match asked && passed("VRB-011") && passed("VRB-012") && !passed("PUT-002") && !passed("GDA-003") {
        true => "; rdma-core exposes the queues, this libfabric does not: see --via verbs",
        false => "",
    }
}

/// How to run with a GPU: without `--gpu none`, if that was given.
fn find_gpu(findings: &[Finding]) -> &'static str {
    let left_out = |finding: &Finding| {
        finding.code == NO_GPU
            && finding.observed.as_deref().is_some_and(|observed| observed.contains("--gpu none"))
    };
    match findings.iter().any(left_out) {
        true => "run where one is and without --gpu none",
        false => "run on a machine with one",
    }
}

fn without_gpu(findings: &[Finding], adapter: &str) -> Verdict {
    let next = match first_failure(findings, &[adapter]) {
        Some(failure) => fix(failure) + without_libfabric(findings, adapter),
        None if state(findings, MOVED, adapter) == Some(State::Pass) => {
            format!("the adapter's queues work from the host; to check a GPU, {}", find_gpu(findings))
        }
        None if findings.iter().any(|one| one.blocked_by.as_deref() == Some(NOT_LOADED)) => {
            WITHOUT_ROOT.to_owned()
        }
        None => "run on a machine with a GPU and an EFA adapter".to_owned(),
    };
    Verdict { gpu: "none".to_owned(), adapter: adapter.to_owned(), result: Reach::None, next }
}

fn pair(findings: &[Finding], puts: &[Put], pair: &Pair) -> Verdict {
    let (gpu, adapter, subject) = (pair.gpu.to_string(), pair.adapter.as_str(), pair.subject());
    let maps = state(findings, MAPS, &subject) == Some(State::Pass);
    let is_own = |put: &&Put| {
        put.adapter == adapter && put.gpu.as_deref() == Some(&*gpu) && put.executor == "cuda" && put.verified
    };
    let put = puts.iter().find(is_own);
    let host = state(findings, MOVED, adapter) == Some(State::Pass);
    let failure = || {
        let first = first_failure(findings, &[&gpu, adapter, &subject])?;
        Some(fix(first) + without_libfabric(findings, adapter))
    };
    let (result, next) = match put {
        Some(put) if put.doorbell == "direct" && maps => {
            (Reach::Gda, "none: the GPU drives the adapter".to_owned())
        }
        Some(put) => {
            let next = match failure() {
                Some(fix) if !maps => format!("--doorbell {} works; for gda: {fix}", put.doorbell),
                _ => format!("--doorbell {} was requested and works; omit it for gda", put.doorbell),
            };
            (Reach::HostRung, next)
        }
        None => {
            let unverified = match host {
                true => "the adapter's queues work from the host; no put of this GPU was verified",
                false => "no put was verified on this adapter",
            };
            (Reach::None, failure().unwrap_or_else(|| unverified.to_owned()))
        }
    };
    Verdict { gpu, adapter: adapter.to_owned(), result, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn finding(code: &str, subject: &str, state: State) -> Finding {
        let (subject, fix) = (Some(subject.to_owned()), Some("do it".to_owned()));
        Finding { subject, fix, ..Finding::new(code, "", state, Kind::Proven) }
    }

    fn put(gpu: Option<&str>, doorbell: &str, verified: bool) -> Put {
        Put {
            completed: 16,
            verified,
            doorbell: doorbell.to_owned(),
            executor: "cuda".to_owned(),
            gpu: gpu.map(str::to_owned),
            adapter: "a-rdm".to_owned(),
            ..Put::default()
        }
    }

    /// The verdict on GPU 0 with adapter a-rdm.
    fn of(findings: &[Finding], puts: &[Put]) -> Verdict {
        let pairs = [Pair { gpu: 0, adapter: "a-rdm".to_owned() }];
        verdicts(findings, puts, &pairs, &[], &["a-rdm".to_owned()]).remove(0)
    }

    #[test]
    fn a_pair_that_maps_and_whose_own_put_arrives_is_gda() {
        let findings = [finding(MAPS, "0/a-rdm", State::Pass)];
        assert_eq!(of(&findings, &[put(Some("0"), "direct", true)]).result, Reach::Gda);
    }

    #[test]
    fn a_put_of_the_host_or_another_gpu_proves_nothing_for_a_pair() {
        let findings = [finding(MAPS, "0/a-rdm", State::Pass), finding(MOVED, "a-rdm", State::Pass)];
        for other in [None, Some("1")] {
            assert_eq!(of(&findings, &[put(other, "direct", true)]).result, Reach::None);
        }
        assert_eq!(of(&findings, &[put(Some("0"), "direct", false)]).result, Reach::None);
    }

    #[test]
    fn a_host_rung_pair_reports_the_working_mode_and_the_failed_check() {
        let findings = [finding(MAPS, "0/a-rdm", State::Fail)];
        let verdict = of(&findings, &[put(Some("0"), "staged", true)]);
        assert_eq!(verdict.result, Reach::HostRung);
        assert!(verdict.next.contains("staged") && verdict.next.contains(MAPS), "{}", verdict.next);
    }

    #[test]
    fn the_next_step_is_a_failure_of_the_pair_the_gpu_or_the_adapter() {
        for subject in ["0/a-rdm", "0", "a-rdm"] {
            let verdict = of(&[finding("CUDA-009", subject, State::Fail)], &[]);
            assert!(verdict.next.starts_with("CUDA-009"), "{subject}: {}", verdict.next);
        }
        assert!(!of(&[finding("CUDA-009", "1", State::Fail)], &[]).next.contains("CUDA-009"));
    }

    #[test]
    fn a_gpu_without_an_adapter_has_a_verdict() {
        let gpus = [Gpu { number: 0, name: String::new(), pci: None }];
        let all = verdicts(&[], &[], &[], &gpus, &[]);
        assert_eq!((all[0].gpu.as_str(), all[0].adapter.as_str()), ("0", "none"));
    }

    #[test]
    fn without_a_gpu_there_is_one_verdict_for_each_adapter() {
        let all = verdicts(&[], &[], &[], &[], &["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            all.iter().map(|v| (v.gpu.as_str(), v.adapter.as_str())).collect::<Vec<_>>(),
            [("none", "a"), ("none", "b")]
        );
    }

    #[test]
    fn the_option_without_a_gpu_is_named_only_if_it_was_given() {
        let next = |observed: &str| {
            let choice = Finding {
                observed: Some(observed.to_owned()),
                ..Finding::new(NO_GPU, "", State::Pass, Kind::Declared)
            };
            let findings = [choice, finding(MOVED, "a", State::Pass)];
            verdicts(&findings, &[], &[], &[], &["a".to_owned()])[0].next.clone()
        };
        assert!(next("no GPU (--gpu none)").contains("without --gpu none"));
        assert!(!next("no GPU: this machine shows none").contains("--gpu none"));
    }

    #[test]
    fn the_next_step_reports_queues_that_only_rdma_core_exposes() {
        let mut findings = vec![
            finding("GDA-001", "a-rdm", State::Fail),
            finding("VRB-011", "a", State::Pass),
            finding("VRB-012", "a", State::Pass),
        ];
        let next =
            |findings: &[Finding]| verdicts(findings, &[], &[], &[], &["a-rdm".to_owned()])[0].next.clone();
        assert!(next(&findings).contains("see --via verbs"));
        findings.push(finding("GDA-003", "a-rdm", State::Pass));
        assert!(!next(&findings).contains("see --via verbs"));
        // Under --via verbs no check of libfabric runs.
        findings.retain(|finding| !finding.code.starts_with("GDA-"));
        findings.push(finding("PUT-001", "a-rdm", State::Fail));
        assert!(!next(&findings).contains("see --via verbs"));
    }

    #[test]
    fn the_next_step_is_the_first_failure_of_this_adapter() {
        let findings = [finding("PUT-002", "b", State::Fail), finding("FAB-005", "b", State::Fail)];
        let all = verdicts(&findings, &[], &[], &[], &["a".to_owned(), "b".to_owned()]);
        assert!(!all[0].next.contains("FAB-005") && all[1].next.starts_with("FAB-005"), "{all:?}");
    }
}
