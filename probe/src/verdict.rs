//! The verdict: how far each GPU can drive each adapter, and the next step. It depends on findings and puts
//! only.

pub(crate) mod stack;

use std::collections::BTreeMap;

use crate::check::{Follows, Subject};
use crate::checks::rows::{Row, row, rows};
use crate::model::{
    Action, EXPOSES, Finding, Gpu, GpuChoice, Graded, MAPS, MOVED, NOT_LOADED, PROVIDER, Pair, Put, Reach,
    StackName, State, Step, Stops, VERBS_EXPOSES, Verdict, Who,
};

/// The results on which verdicts depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged<'a> {
    pub(crate) findings: &'a [Finding],
    pub(crate) puts: &'a [Put],
    /// The choice of `--gpu`.
    pub(crate) gpu: Option<GpuChoice>,
}

/// Grades all findings of a run, in which all stacks or `only` this one are judged.
pub(crate) fn graded(findings: Vec<Finding>, only: Option<StackName>) -> Vec<Graded> {
    // Alike problems of a thousand adapters are judged once: each judgement reads all findings.
    let mut judged: BTreeMap<_, (Stops, Option<&'static str>)> = BTreeMap::new();
    let mut all = Vec::with_capacity(findings.len());
    for one in &findings {
        let check = row(&one.code).map(|row| &row.check);
        // A variable concerns some stacks.
        let of_variable = check.is_some_and(|check| check.subject == Subject::Variable);
        let variable = one.subject.as_deref().filter(|_| of_variable);
        let key = (one.code.as_str(), one.state == State::Fail, one.who.map(Who::role), variable);
        let (stops, cause) = match one.state {
            State::Warn | State::Fail => judged
                .entry(key)
                .or_insert_with(|| {
                    let cause = check.and_then(|check| cause_of(&findings, one, check.follows));
                    (stack::stopped_by(&findings, one, only), cause)
                })
                .clone(),
            State::Pass | State::Skip | State::Unknown => <_>::default(),
        };
        let of_host = check.map_or(Action::FixHost, |check| check.of_host);
        all.push(Graded::new(one.clone(), of_host, stops, cause));
    }
    all
}

/// The code of the problem from which `one` follows.
fn cause_of(findings: &[Finding], one: &Finding, follows: Follows) -> Option<&'static str> {
    follows.causes().iter().copied().find(|cause| {
        let of = || findings.iter().filter(|other| other.code == *cause);
        let is_bad = |other: &Finding| matches!(other.state, State::Fail | State::Warn);
        match follows {
            Follows::IfNonePasses(_) => of().any(is_bad) && of().all(|other| other.state != State::Pass),
            Follows::IfSameRole(_) => of().any(|other| is_bad(other) && other.who == one.who),
        }
    })
}

/// Whether a finding concerns one of `subjects`, which are an adapter, a GPU and their pair, or the whole machine.
fn concerns(finding: &Finding, subjects: &[&str]) -> bool {
    let of_variable = |row: &Row| row.check.subject == Subject::Variable;
    row(&finding.code).is_some_and(of_variable)
        || finding.subject.as_deref().is_none_or(|subject| {
            subjects.iter().any(|wanted| *wanted == subject || wanted.starts_with(&format!("{subject}-")))
        })
}

impl Judged<'_> {
    /// The verdicts: one for each pair; without a GPU, one for each adapter. The adapter is "none" if there is none.
    pub(crate) fn verdicts(&self, pairs: &[Pair], gpus: &[Gpu], adapters: &[String]) -> Vec<Verdict> {
        let none = ["none".to_owned()];
        let adapters = if adapters.is_empty() { &none[..] } else { adapters };
        if pairs.is_empty() && !gpus.is_empty() {
            let alone = |gpu: &Gpu| Pair { gpu: gpu.number, adapter: none[0].clone() };
            return gpus.iter().map(|gpu| self.pair(&alone(gpu))).collect();
        }
        if pairs.is_empty() {
            return adapters.iter().map(|adapter| self.without_gpu(adapter)).collect();
        }
        pairs.iter().map(|one| self.pair(one)).collect()
    }

    /// Whether a check passes for a subject.
    fn passes(&self, code: &str, subject: &str) -> bool {
        let of = |finding: &&Finding| finding.code == code && finding.subject.as_deref() == Some(subject);
        self.findings.iter().find(of).is_some_and(|finding| finding.state == State::Pass)
    }

    /// The first failure, in the order of a report, of one of `subjects` or of the machine, with its fix.
    fn failure(&self, subjects: &[&str], adapter: &str) -> Option<Step> {
        let failed = |finding: &&Finding| finding.state == State::Fail && concerns(finding, subjects);
        let first =
            rows().find_map(|row| self.findings.iter().filter(failed).find(|f| f.code == row.check.code))?;
        let fix = first.fix.as_deref().unwrap_or("see gda-probe explain").to_owned();
        Some(Step::Fix { code: first.code.clone(), fix, by_verbs: self.only_verbs_expose(adapter) })
    }

    /// Whether rdma-core exposes queues of the adapter, and libfabric, which was asked, does not.
    fn only_verbs_expose(&self, adapter: &str) -> bool {
        let passed = |code: &str| {
            let of = |subject: &str| adapter == subject || adapter.starts_with(&format!("{subject}-"));
            self.findings.iter().any(|finding| {
                finding.code == code
                    && finding.state == State::Pass
                    && finding.subject.as_deref().is_some_and(of)
            })
        };
        self.findings.iter().any(|finding| finding.code == PROVIDER)
            && VERBS_EXPOSES.into_iter().all(passed)
            && !passed(MOVED)
            && !passed(EXPOSES)
    }

    fn without_gpu(&self, adapter: &str) -> Verdict {
        let next = match self.failure(&[adapter], adapter) {
            Some(fix) => fix,
            None if self.passes(MOVED, adapter) => Step::Do(format!(
                "the adapter's queues work from the host; to check a GPU, {}",
                find_gpu(self.gpu)
            )),
            None if self.findings.iter().any(|one| one.blocked_by.as_deref() == Some(NOT_LOADED)) => {
                Step::Elsewhere
            }
            None => Step::Do("run on a machine with a GPU and an EFA adapter".to_owned()),
        };
        Verdict::new("none", adapter, Reach::None, next)
    }

    fn pair(&self, pair: &Pair) -> Verdict {
        let (gpu, adapter, subject) = (pair.gpu.to_string(), pair.adapter.as_str(), pair.subject());
        let maps = self.passes(MAPS, &subject);
        let is_own = |put: &&Put| {
            let of_gpu = put.gpu.as_deref() == Some(&*gpu) && put.executor == "cuda";
            put.adapter == adapter && of_gpu && put.verified
        };
        let failure = || self.failure(&[&gpu, adapter, &subject], adapter);
        let (result, next) = match self.puts.iter().find(is_own) {
            Some(put) if put.doorbell == "direct" && maps => (Reach::Gda, Step::Drives),
            Some(put) => {
                let fix = failure().filter(|_| !maps).map(Box::new);
                (Reach::HostRung, Step::Rung { mode: put.doorbell.clone(), fix })
            }
            None => {
                let unverified = match self.passes(MOVED, adapter) {
                    true => "the adapter's queues work from the host; no put of this GPU was verified",
                    false => "no put was verified on this adapter",
                };
                (Reach::None, failure().unwrap_or_else(|| Step::Do(unverified.to_owned())))
            }
        };
        Verdict::new(&gpu, adapter, result, next)
    }
}

/// How to run with a GPU: without `--gpu none`, if that was given.
fn find_gpu(choice: Option<GpuChoice>) -> &'static str {
    match choice {
        Some(GpuChoice::None) => "run where one is and without --gpu none",
        _ => "run on a machine with one",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    const NOTHING: Judged<'_> = Judged { findings: &[], puts: &[], gpu: None };

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
        Judged { findings, puts, gpu: None }.verdicts(&pairs, &[], &["a-rdm".to_owned()]).remove(0)
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
        let all = NOTHING.verdicts(&[], &gpus, &[]);
        assert_eq!((all[0].gpu.as_str(), all[0].adapter.as_str()), ("0", "none"));
    }

    #[test]
    fn without_a_gpu_there_is_one_verdict_for_each_adapter() {
        let all = NOTHING.verdicts(&[], &[], &["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            all.iter().map(|v| (v.gpu.as_str(), v.adapter.as_str())).collect::<Vec<_>>(),
            [("none", "a"), ("none", "b")]
        );
    }

    #[test]
    fn the_option_without_a_gpu_is_named_only_if_it_was_given() {
        let findings = [finding(MOVED, "a", State::Pass)];
        let next = |gpu| {
            let judged = Judged { findings: &findings, gpu, ..NOTHING };
            judged.verdicts(&[], &[], &["a".to_owned()])[0].next.clone()
        };
        assert!(next(Some(GpuChoice::None)).contains("without --gpu none"));
        assert!(!next(None).contains("--gpu none"));
    }

    #[test]
    fn the_next_step_reports_queues_that_only_rdma_core_exposes() {
        let mut findings = vec![
            finding("GDA-001", "a-rdm", State::Fail),
            finding("VRB-011", "a", State::Pass),
            finding("VRB-012", "a", State::Pass),
        ];
        let next = |findings: &[Finding]| {
            let judged = Judged { findings, ..NOTHING };
            judged.verdicts(&[], &[], &["a-rdm".to_owned()])[0].next.clone()
        };
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
        let judged = Judged { findings: &findings, ..NOTHING };
        let all = judged.verdicts(&[], &[], &["a".to_owned(), "b".to_owned()]);
        assert!(!all[0].next.contains("FAB-005") && all[1].next.starts_with("FAB-005"), "{all:?}");
    }

    fn follows(findings: &[Finding], one: &Finding) -> Option<&'static str> {
        cause_of(findings, one, row(&one.code).expect("a check").check.follows)
    }

    fn problem(code: &str, who: Who, state: State) -> Finding {
        Finding { who: Some(who), ..Finding::new(code, "", state, Kind::Declared) }
    }

    #[test]
    fn no_adapter_follows_from_nodes_that_are_all_missing() {
        let no_adapter = problem("FAB-001", Who::Image, State::Fail);
        let missing = problem("DEV-005", Who::Pod, State::Fail);
        assert_eq!(follows(std::slice::from_ref(&missing), &no_adapter), Some("DEV-005"));
        let there = problem("DEV-005", Who::Pod, State::Pass);
        assert_eq!(follows(&[missing, there], &no_adapter), None);
    }

    #[test]
    fn missing_counters_follow_from_the_kernel_driver_unless_a_variable_disables_them() {
        let driver = [problem("DEV-002", Who::Host, State::Warn)];
        assert_eq!(follows(&driver, &problem("GDA-010", Who::Host, State::Warn)), Some("DEV-002"));
        assert_eq!(follows(&driver, &problem("GDA-010", Who::Pod, State::Warn)), None);
    }
}
