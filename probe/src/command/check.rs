//! `gda-probe check`: runs every check and gives a verdict.

use std::time::{SystemTime, UNIX_EPOCH};

use super::CommandError;
use super::run::{Run, Work};
use crate::checks::library::{self, Libraries};
use crate::checks::rows::{self, Row, is_of_machine, rows};
use crate::cli::{Common, DEFAULT_MAX_SECONDS};
use crate::exit::Exit;
use crate::model::{Document, EXPOSES, Finding, Gpu, Op, Pair, Put, Runs, StackVerdict, State, Via};
use crate::report::prometheus;
use crate::verdict::{Judged, stack};
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

/// Runs every check whose prerequisites hold.
pub(crate) fn run(common: &Common) -> Result<(Document, Exit), CommandError> {
    let mut run = Run::new(common)?;
    // Commands that move bytes load what they are told to; this one judges the machine below the root.
    run.runner.policy.not_loaded = library::left_out(&run.system);
    let opens = |row: &&Row| matches!(row.run, rows::Run::Nodes(_));
    for row in rows().filter(|row| is_of_machine(row) && !opens(row)) {
        run.machine(row);
    }
    match rows().filter(opens).any(|row| run.runner.blocked(&row.check, None).is_none()) {
        true => _ = run.group(Group::Nodes, PUT.into())?,
        false => run.skip(|row| opens(&row)),
    }
    let host = run.queues(PUT.into())?;
    let exposes = |one: &Finding| one.code == EXPOSES && one.state == State::Pass;
    if common.via == Via::Libfabric
        && !common.soft
        && !run.runner.findings.iter().any(exposes)
        // What rdma-core exposes tells nothing if libfabric was not even loaded.
        && run.is_asked(Group::Fabric)
        && run.can_start(Group::Verbs)
    {
        run.group(Group::Verbs, Work { exposure_alone: true, ..PUT.into() })?;
    }
    let gpus = match run.can_start(Group::Cuda) {
        true => run.group(Group::Cuda, PUT.into())?.gpus,
        false => {
            run.skip(|row| matches!(row.run, rows::Run::Cuda(_) | rows::Run::Gpu(_)));
            Vec::new()
        }
    };
    let mut libraries = Libraries { system: run.system.clone(), loaded: host.loaded };
    for row in rows().filter(|row| matches!(row.run, rows::Run::Libraries(_))) {
        run.runner.run(&row.check, None, || row.outcomes(&mut libraries));
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
    let mut findings = run.findings();
    let judged = Judged { findings: &findings, puts: &puts, gpu: common.gpu };
    let verdicts = judged.verdicts(&pairs, &gpus, &adapters);
    let stacks = stack::stacks(&findings, common.gpu, common.stack);
    if let Some(only) = common.stack {
        stack::narrow(&mut findings, only);
    }
    let exit = match (Exit::of(&findings), stacks.first().filter(|_| common.stack.is_some())) {
        (Exit::Fine | Exit::Warned, Some(StackVerdict { runs: Runs::No, .. })) => Exit::Failed,
        (Exit::Fine | Exit::Warned, Some(StackVerdict { runs: Runs::Unknown, .. })) => Exit::Unjudged,
        (exit, _) => exit,
    };
    let document = Document {
        verdict: Some(verdicts),
        stacks: Some(stacks),
        queues: host.queues,
        // A GPU's puts come first.
        put: puts.into_iter().next(),
        ..run.document("check", findings)
    };
    Ok((document, exit))
}

/// Runs the checks of the pairs. Returns the puts of their GPUs.
fn on_gpus(run: &mut Run, gpus: &[Gpu], pairs: &[Pair]) -> Result<Vec<Put>, CommandError> {
    for gpu in gpus {
        for row in rows() {
            if let rows::Run::Near(near) = row.run {
                let outcome = near(&run.system, gpu, pairs);
                run.runner.record(&row.check, Some(gpu.number.to_string()), outcome);
            }
        }
    }
    if pairs.is_empty() {
        run.skip(|row| matches!(row.run, rows::Run::Near(_) | rows::Run::Pair(_)));
        return Ok(Vec::new());
    }
    Ok(run.queues(Work { executor: Executor::Pairs(pairs.to_vec()), ..PUT.into() })?.puts)
}
