//! `gda-probe bench`: measures the latency of a write, the message rate and the bandwidth. The report
//! contains the checks that lead there.

use std::fs;

use super::CommandError;
use super::executor::executor;
use super::put::{downgrade_unneeded_mapping, run_prerequisites};
use super::run::Run;
use crate::checks;
use crate::cli::{BenchArgs, Common, DEFAULT_BENCH_TIME, DEFAULT_MAX_SECONDS, Via};
use crate::exit::Exit;
use crate::model::{Document, Op, State};
use crate::report::html;
use crate::worker::{BenchRequest, PutRequest};

/// The put that is verified before the measurements.
const PUT: PutRequest = PutRequest {
    op: Op::Write,
    bytes: 64,
    count: 64,
    max_seconds: DEFAULT_MAX_SECONDS,
    one_adapter: true,
    fault: None,
};

/// Runs the checks and the measurements.
pub(crate) fn run(common: &Common, args: &BenchArgs) -> Result<(Document, Exit), CommandError> {
    if common.via == Via::Verbs {
        return Err(CommandError::NotInThisVersion {
            what: "bench --via verbs",
            missing: "more than one queue through rdma-core",
        });
    }
    // Here --time-limit is the limit of all measurements; checks keep their default.
    let mut run = Run::new(&Common { time_limit: None, ..common.clone() })?;
    run_prerequisites(&mut run);
    let executor = executor(&mut run, common, args.executor, PUT)?;
    let time_limit = common.time_limit.unwrap_or(DEFAULT_BENCH_TIME);
    run.bench = Some(BenchRequest { queues: args.queues, time_limit });
    let results = run.queues(PUT, executor)?;
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    if results.puts.iter().any(|put| put.verified && put.lost.is_some()) {
        downgrade_unneeded_mapping(&mut findings);
    }
    let measured = findings.iter().any(|finding| {
        finding.code == checks::fabric::bench::CHECK.check.code && finding.state == State::Pass
    });
    let exit = if measured { Exit::of(&findings) } else { Exit::Failed };
    let mut document = Document::new("bench", common.soft);
    document.checks = Some(findings);
    document.queues = results.queues;
    document.bench = results.bench;
    if let (Some(file), Some(bench)) = (&args.html, &document.bench) {
        let page = html::page(bench, document.queues.as_ref());
        fs::write(file, page).map_err(|source| CommandError::File { file: file.clone(), source })?;
    }
    Ok((document, exit))
}
