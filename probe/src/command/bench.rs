//! `gda-probe bench`: measures the latency of a write, the message rate and the bandwidth. The report
//! contains the checks that lead there. With `--peer`, the writes go to another host ([`ring::bench`]).

use super::CommandError;
use super::executor::executor;
use super::file::{self, is_stdout};
use super::put::{downgrade_unneeded_mapping, refuse_options_of_a_pair};
use super::ring;
use super::run::{Run, Work};
use crate::cli::{BenchArgs, Common, DEFAULT_BENCH_TIME, DEFAULT_MAX_SECONDS};
use crate::exit::Exit;
use crate::model::{BENCH, Document, Op, State, Via};
use crate::report::html;
use crate::supervisor::Results;
use crate::worker::{BenchRequest, PutRequest};

/// The put that is verified before the measurements.
const PUT: PutRequest = PutRequest {
    op: Op::Write,
    bytes: 64,
    count: 64,
    max_seconds: DEFAULT_MAX_SECONDS,
    one_adapter: true,
    fault: None,
    qualify_laps: None,
};

/// Runs the checks and the measurements.
pub(crate) fn run(common: &Common, args: &BenchArgs) -> Result<(Document, Exit), CommandError> {
    file::check(args.html.as_deref(), "--html", common)?;
    if let Some(peer) = &args.peer {
        return ring::bench(common, args, peer, PUT);
    }
    refuse_options_of_a_pair(&args.exchange, "--peer HOST")?;
    if common.via == Via::Verbs {
        return Err(CommandError::NotInThisVersion {
            what: "bench --via verbs",
            missing: "more than one queue through rdma-core",
            instead: "use --via libfabric",
        });
    }
    // Here --time-limit is the limit of all measurements. A check gets as much as a bench by default, so that the checks
    // before the measurements pass on a busy machine.
    let mut run = Run::new(&Common { time_limit: Some(DEFAULT_BENCH_TIME), ..common.clone() })?;
    run.prerequisites(PUT);
    let executor = executor(&mut run, common, args.executor, PUT)?;
    let time_limit = common.time_limit.unwrap_or(DEFAULT_BENCH_TIME);
    let bench = Some(BenchRequest { queues: args.queues, time_limit });
    let results = run.queues(Work { executor, bench, ..PUT.into() })?;
    run.explain_failures();
    let mut findings = run.findings();
    if results.puts.iter().any(|put| put.verified && put.lost.is_some()) {
        downgrade_unneeded_mapping(&mut findings);
    }
    let measured = findings.iter().any(|finding| finding.code == BENCH && finding.state == State::Pass);
    let exit = if measured { Exit::of(&findings) } else { Exit::Failed };
    let Results { queues, bench, .. } = results;
    Ok((Document { queues, bench, ..run.document("bench", findings) }, exit))
}

/// The page, if `--html -` prints it in place of the report. A bench that measured nothing has none.
pub(crate) fn page_on_stdout(document: &Document, args: &BenchArgs) -> Option<String> {
    let on_stdout = args.html.as_deref().is_some_and(is_stdout) && document.bench.is_some();
    on_stdout.then(|| page(document))
}

/// Writes the page to the file of `--html`. The report is printed first, so that it survives a full disk.
pub(crate) fn save(document: &Document, args: &BenchArgs) -> Result<(), CommandError> {
    match args.html.as_deref().filter(|file| !is_stdout(file)) {
        Some(file) if document.bench.is_some() => file::replace(file, page(document).as_bytes()),
        _ => Ok(()),
    }
}

fn page(document: &Document) -> String {
    let Document { bench, queues, origin, soft, .. } = document;
    bench.as_ref().map(|bench| html::page(bench, queues.as_ref(), origin, *soft)).unwrap_or_default()
}
