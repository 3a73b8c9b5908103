//! `gda-probe bench`: how long one write takes, how many a second, and how many bytes. The checks on the
//! way there are part of the report.

use std::fs;

use super::CommandError;
use super::driver::driver;
use super::put::{allow_what_the_rung_does_without, on_the_way};
use super::run::Run;
use crate::checks;
use crate::cli::{BENCH_TIME, BenchArgs, Common, MOST_SECONDS, Op, Via};
use crate::exit::Exit;
use crate::part::{BenchRequest, PutRequest};
use crate::report::{Document, State, html};

/// What is put, and verified, before anything is measured.
const PUT: PutRequest = PutRequest {
    op: Op::Write,
    bytes: 64,
    count: 64,
    max_seconds: MOST_SECONDS,
    one_adapter: true,
    plant: None,
};

/// Measures.
pub(crate) fn run(common: &Common, args: &BenchArgs) -> Result<(Document, Exit), CommandError> {
    if common.via == Via::Verbs {
        return Err(CommandError::NotInThisVersion {
            what: "bench --via verbs",
            missing: "more than one queue through rdma-core",
        });
    }
    // The limit is that of measuring; checks keep theirs.
    let mut run = Run::new(&Common { time_limit: None, ..common.clone() })?;
    on_the_way(&mut run);
    let driver = driver(&mut run, common, args.executor, PUT)?;
    let time_limit = common.time_limit.unwrap_or(BENCH_TIME);
    run.bench = Some(BenchRequest { queues: args.queues, time_limit });
    let gathered = run.queues(PUT, driver)?;
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    if gathered.puts.iter().any(|put| put.verified && put.lost.is_some()) {
        allow_what_the_rung_does_without(&mut findings);
    }
    let ran = findings
        .iter()
        .any(|found| found.code == checks::fabric::bench::CHECK.check.code && found.state == State::Pass);
    let exit = if ran { Exit::of(&findings) } else { Exit::Failed };
    let mut document = Document::new("bench", common.soft);
    document.checks = Some(findings);
    document.queues = gathered.queues;
    document.bench = gathered.bench;
    if let (Some(file), Some(bench)) = (&args.html, &document.bench) {
        let page = html::page(bench, document.queues.as_ref());
        fs::write(file, page).map_err(|source| CommandError::File { file: file.clone(), source })?;
    }
    Ok((document, exit))
}
