//! `gda-probe put`: moves bytes through the adapter and compares every byte. The report contains the
//! checks that lead there, so that it shows why a put cannot start.

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

/// Runs the checks and the put.
pub(crate) fn run(common: &Common, args: &PutArgs) -> Result<(Document, Exit), CommandError> {
    refuse_missing_options(args)?;
    if args.fault.is_some() && !matches!(common.doorbell, Doorbell::Direct | Doorbell::Auto) {
        return Err(CommandError::Input(
            "--plant breaks a rule at the adapter's doorbell; omit --doorbell, or use --doorbell direct"
                .to_owned(),
        ));
    }
    if args.count == 0 {
        return Err(CommandError::Input("--count 0 moves no bytes; give at least 1".to_owned()));
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

/// Turns the failure of mapping into a warning. The put arrived in a doorbell mode that needs fewer mappings,
/// so the missing ones are a cost and not a failure.
pub(super) fn downgrade_unneeded_mapping(findings: &mut [Finding]) {
    let failed = findings.iter_mut().filter(|one| one.code == MAPS && one.state == State::Fail);
    failed.for_each(|one| one.state = State::Warn);
}

/// Runs the checks of the environment that a put depends on.
pub(crate) fn run_prerequisites(run: &mut Run) {
    for unit in env::CHECKS.iter().filter(|unit| PREREQUISITES.contains(&unit.check.code)) {
        run.runner.run(unit, None, &mut run.system);
    }
}

fn refuse_missing_options(args: &PutArgs) -> Result<(), CommandError> {
    match args.peer {
        Some(_) => Err(CommandError::NotInThisVersion {
            what: "put --peer",
            missing: "the exchange of addresses with another host",
        }),
        None => Ok(()),
    }
}
