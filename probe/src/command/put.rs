//! `gda-probe put`: moves bytes through the adapter and compares every one. The checks on the way
//! there are part of the report, so that a put that cannot start says why.

use super::CommandError;
use super::executor::executor;
use super::run::Run;
use crate::checks::{self, env};
use crate::cli::{Common, PutArgs};
use crate::exit::Exit;
use crate::model::{Document, Doorbell, Finding, State};
use crate::verdict::MAPS;
use crate::worker::PutRequest;

/// Checks of the environment that a put depends on.
const PREREQUISITES: [&str; 2] = ["ENV-000", "ENV-005"];

/// Moves the bytes.
pub(crate) fn run(common: &Common, args: &PutArgs) -> Result<(Document, Exit), CommandError> {
    refuse_what_is_missing(args)?;
    if args.fault.is_some() && !matches!(common.doorbell, Doorbell::Direct | Doorbell::Auto) {
        return Err(CommandError::Input(
            "--plant breaks a rule at the adapter's own doorbell; leave --doorbell out".to_owned(),
        ));
    }
    if args.count == 0 {
        return Err(CommandError::Input("--count 0 moves nothing; give at least 1".to_owned()));
    }
    let mut run = Run::new(common)?;
    run_prerequisites(&mut run);
    let request = PutRequest {
        op: args.op,
        bytes: args.bytes,
        count: args.count,
        max_seconds: args.max_seconds,
        one_adapter: true,
        fault: args.fault,
    };
    let executor = executor(&mut run, common, args.executor, request)?;
    let results = run.queues(request, executor)?;
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    let put = results.puts.into_iter().next();
    let verified = put.as_ref().is_some_and(|put| put.verified);
    if put.as_ref().is_some_and(|put| put.verified && put.lost.is_some()) {
        downgrade_unneeded_mapping(&mut findings);
    }
    let exit = if verified { Exit::of(&findings) } else { Exit::Failed };
    let mut document = Document::new("put", common.soft);
    document.checks = Some(findings);
    document.queues = results.queues;
    document.put = put;
    Ok((document, exit))
}

/// Bytes arrived on a rung for which less has to map: that the rest does not is a cost and no failure.
pub(super) fn downgrade_unneeded_mapping(findings: &mut [Finding]) {
    let rest = findings.iter_mut().filter(|found| found.code == MAPS && found.state == State::Fail);
    rest.for_each(|found| found.state = State::Warn);
}

/// Runs what a put depends on.
pub(crate) fn run_prerequisites(run: &mut Run) {
    for unit in env::CHECKS.iter().filter(|unit| PREREQUISITES.contains(&unit.check.code)) {
        run.runner.run(unit, None, &mut run.system);
    }
}

fn refuse_what_is_missing(args: &PutArgs) -> Result<(), CommandError> {
    let missing = |what, missing| Err(CommandError::NotInThisVersion { what, missing });
    if args.peer.is_some() {
        return missing("put --peer", "the exchange of addresses with another host");
    }
    Ok(())
}
