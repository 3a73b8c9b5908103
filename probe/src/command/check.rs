//! `gda-probe check`: runs every check and gives a verdict.

use std::time::{SystemTime, UNIX_EPOCH};

use super::CommandError;
use super::run::Run;
use crate::check::Outcome;
use crate::checks::library::Libraries;
use crate::checks::{self, cuda, dev, env, fabric, library, stacks, verbs};
use crate::cli::{Common, DEFAULT_MAX_SECONDS, Via};
use crate::exit::Exit;
use crate::model::{Document, Finding, Gpu, Op, Pair, Put, Runs, State};
use crate::report::prometheus;
use crate::verdict::{graded, stack, verdicts};
use crate::worker::{Executor, Group, PutRequest};

/// The put of a check: small, and of several entries.
const PUT: PutRequest = PutRequest {
    op: Op::Write,
    bytes: 64,
    count: 16,
    max_seconds: DEFAULT_MAX_SECONDS,
    one_adapter: false,
    fault: None,
    qualify_laps: None,
};

/// The result of a check for Prometheus.
pub(crate) fn metrics(document: &Document, exit: Exit) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    prometheus::metrics(document, exit.status(false), now)
}

/// Whether the check `code` passed on any adapter.
fn passed(findings: &[Finding], code: &str) -> bool {
    findings.iter().any(|finding| finding.code == code && finding.state == State::Pass)
}

/// Runs every check whose prerequisites hold.
pub(crate) fn run(common: &Common) -> Result<(Document, Exit), CommandError> {
    let mut run = Run::new(common)?;
    for unit in env::CHECKS.iter().chain(dev::CHECKS) {
        if unit.check.code == dev::OPENS && run.runner.blocked(&unit.check, None).is_none() {
            run.group(Group::Nodes, PUT)?;
        } else {
            run.runner.run(unit, None, &mut run.system);
        }
    }
    if common.via == Via::Verbs {
        // These settings stop libfabric's efa provider, and not rdma-core.
        let of_libfabric = |one: &&mut Finding| ["ENV-004", "ENV-006"].contains(&one.code.as_str());
        let stopping = run.runner.findings.iter_mut().filter(of_libfabric);
        stopping.filter(|one| one.state == State::Fail).for_each(|one| one.state = State::Warn);
    }
    // Commands that move bytes load what they are told to; this one judges the machine below the root.
    run.runner.policy.not_loaded = library::left_out(&run.system);
    run.runner.run(&library::CHOICE, None, &mut run.system);
    run.runner.run(&cuda::CHOICE, None, &mut run.system);
    for unit in cuda::DRIVER_CHECKS {
        run.runner.run(unit, None, &mut run.system);
    }
    let host = run.queues(PUT, Executor::Host)?;
    // What rdma-core exposes tells nothing if libfabric was not even loaded.
    let asked = run.runner.findings.iter().any(|one| one.code == "LIB-001" && one.state != State::Skip)
        && run.runner.blocked(&verbs::start::CHECKS[0].check, None).is_none();
    if common.via == Via::Libfabric && !common.soft && asked && !passed(&run.runner.findings, "GDA-003") {
        run.exposure(PUT)?;
    }
    let gpus = if run.runner.blocked(&cuda::CHECKS[0].check, None).is_some() {
        skip_gpus(&mut run);
        Vec::new()
    } else {
        run.group(Group::Cuda, PUT)?.gpus
    };
    let mut libraries = Libraries { system: run.system.clone(), loaded: host.loaded };
    let of_libfabric = match common.via {
        Via::Libfabric => library::OF_LIBFABRIC,
        Via::Verbs => &[],
    };
    for unit in of_libfabric.iter().chain(library::OF_LIBEFA) {
        run.runner.run(unit, None, &mut libraries);
    }
    for unit in stacks::CHECKS {
        run.runner.run(unit, None, &mut run.system);
    }
    let mut adapters = host.adapters;
    if adapters.is_empty() && !common.soft {
        adapters = run.system.adapters().iter().map(|adapter| adapter.name().to_owned()).collect();
    }
    let pairs = match common.via {
        Via::Libfabric => run.system.pairs(&gpus, &adapters, common.pairs),
        // In this version a GPU drives only queues that libfabric opened.
        Via::Verbs => Vec::new(),
    };
    let mut puts = on_gpus(&mut run, &gpus, &pairs)?;
    puts.extend(host.puts);
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    let mut document = Document::new("check", common.soft);
    document.verdict = Some(verdicts(&findings, &puts, &pairs, &gpus, &adapters));
    let stacks = stack::stacks(&findings, common.stack);
    if let Some(only) = common.stack {
        stack::narrow(&mut findings, only);
    }
    let stopped = common.stack.is_some() && stacks.iter().any(|stack| stack.runs == Runs::No);
    let exit = if stopped { Exit::Failed } else { Exit::of(&findings) };
    document.stacks = Some(stacks);
    document.checks = Some(graded(findings, common.stack));
    document.origin = run.system.origin();
    document.counters = run.counters();
    document.queues = host.queues;
    // A GPU's puts come first.
    document.put = puts.into_iter().next();
    Ok((document, exit))
}

fn skip_gpus(run: &mut Run) {
    let mut cuda = cuda::Cuda::default();
    for unit in cuda::CHECKS.iter().chain(cuda::GPU_CHECKS) {
        run.runner.run(unit, None, &mut cuda);
    }
}

/// Skips the checks that need a pair of GPU and adapter.
fn skip_pairs(run: &mut Run) {
    for check in std::iter::once(&cuda::NEAR).chain(fabric::on_gpu::MAPPING.map(|unit| &unit.check)) {
        let has_result = run.runner.findings.iter().any(|finding| finding.code == check.code);
        if let Some((code, why)) = run.runner.blocked(check, None).filter(|_| !has_result) {
            run.runner.record(check, None, Outcome::Skip(code, why));
        }
    }
}

/// Runs the checks of the pairs. Returns the puts of their GPUs.
fn on_gpus(run: &mut Run, gpus: &[Gpu], pairs: &[Pair]) -> Result<Vec<Put>, CommandError> {
    for gpu in gpus {
        let outcome = cuda::near(&run.system, gpu, pairs);
        run.runner.record(&cuda::NEAR, Some(gpu.number.to_string()), outcome);
    }
    if pairs.is_empty() {
        skip_pairs(run);
        return Ok(Vec::new());
    }
    Ok(run.queues(PUT, Executor::Pairs(pairs.to_vec()))?.puts)
}
