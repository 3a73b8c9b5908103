//! `gda-probe put`: moves bytes through the adapter and compares every one. The checks on the way
//! there are part of the report, so that a put that cannot start says why.

use super::CommandError;
use super::driver::driver;
use super::run::Run;
use crate::checks::{self, env};
use crate::cli::{Common, Doorbell, PutArgs};
use crate::exit::Exit;
use crate::part::PutRequest;
use crate::report::{Document, Finding, State};
use crate::verdict::MAPS;

/// Checks of the environment that a put depends on.
const ON_THE_WAY: [&str; 2] = ["ENV-000", "ENV-005"];

/// Moves the bytes.
pub(crate) fn run(common: &Common, args: &PutArgs) -> Result<(Document, Exit), CommandError> {
    refuse_what_is_missing(args)?;
    if args.plant.is_some() && !matches!(common.doorbell, Doorbell::Direct | Doorbell::Auto) {
        return Err(CommandError::Input(
            "--plant breaks a rule at the adapter's own doorbell; leave --doorbell out".to_owned(),
        ));
    }
    if args.count == 0 {
        return Err(CommandError::Input("--count 0 moves nothing; give at least 1".to_owned()));
    }
    let mut run = Run::new(common)?;
    on_the_way(&mut run);
    let request = PutRequest {
        op: args.op,
        bytes: args.bytes,
        count: args.count,
        max_seconds: args.max_seconds,
        one_adapter: true,
        plant: args.plant,
    };
    let driver = driver(&mut run, common, args.executor, request)?;
    let gathered = run.queues(request, driver)?;
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    let put = gathered.puts.into_iter().next();
    let verified = put.as_ref().is_some_and(|put| put.verified);
    if put.as_ref().is_some_and(|put| put.verified && put.lost.is_some()) {
        allow_what_the_rung_does_without(&mut findings);
    }
    let exit = if verified { Exit::of(&findings) } else { Exit::Failed };
    let mut document = Document::new("put", common.soft);
    document.checks = Some(findings);
    document.queues = gathered.queues;
    document.put = put;
    Ok((document, exit))
}

/// Bytes arrived on a rung for which less has to map: that the rest does not is a cost and no failure.
pub(super) fn allow_what_the_rung_does_without(findings: &mut [Finding]) {
    let rest = findings.iter_mut().filter(|found| found.code == MAPS && found.state == State::Fail);
    rest.for_each(|found| found.state = State::Warn);
}

/// Runs what a put depends on.
pub(crate) fn on_the_way(run: &mut Run) {
    for unit in env::CHECKS.iter().filter(|unit| ON_THE_WAY.contains(&unit.check.code)) {
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
