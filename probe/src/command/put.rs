//! `gda-probe put`: moves bytes through the adapter and compares every byte. The report contains the
//! checks that lead there, so that it shows why a put cannot start.

use super::CommandError;
use super::executor::executor;
use super::run::{Run, Work};
use crate::cli::{Common, ExchangeArgs, ExecutorChoice, PutArgs};
use crate::exit::Exit;
use crate::model::{Document, Doorbell, Finding, MAPS, Op, State};
use crate::worker::PutRequest;

/// Runs the checks and the put.
pub(crate) fn run(common: &Common, args: &PutArgs) -> Result<(Document, Exit), CommandError> {
    refuse_options_of_a_pair(&args.exchange, "--peer HOST or --listen")?;
    if args.fault.is_some() && !matches!(common.doorbell, Doorbell::Direct | Doorbell::Auto) {
        return Err(CommandError::Input(
            "--plant breaks a rule at the adapter's doorbell; omit --doorbell, or use --doorbell direct"
                .to_owned(),
        ));
    }
    if args.bytes == 0 && !matches!(args.op, Op::WriteImm | Op::Send) {
        let why = "--bytes 0 leaves nothing to compare; give at least 1, or --op write-imm or send";
        return Err(CommandError::Input(why.to_owned()));
    }
    let choice = match args.qualify_stores {
        Some(_) => executor_of_qualification(common, args)?,
        None => args.executor,
    };
    let mut run = Run::new(common)?;
    let request = PutRequest {
        op: args.op,
        bytes: args.bytes,
        count: args.count,
        max_seconds: args.max_seconds,
        one_adapter: true,
        fault: args.fault,
        qualify_laps: args.qualify_stores,
    };
    run.prerequisites(request);
    let executor = executor(&mut run, common, choice, request)?;
    let results = run.queues(Work { executor, ..request.into() })?;
    run.explain_failures();
    let mut findings = run.findings();
    let put = results.puts.into_iter().next();
    let verified = put.as_ref().is_some_and(|put| put.verified);
    if put.as_ref().is_some_and(|put| put.verified && put.lost.is_some()) {
        downgrade_unneeded_mapping(&mut findings);
    }
    let exit = if verified { Exit::of(&findings) } else { Exit::Failed };
    Ok((Document { queues: results.queues, put, ..run.document("put", findings) }, exit))
}

/// Turns the failure of mapping into a warning. The put arrived in a doorbell mode that needs fewer mappings,
/// so the missing ones are a cost and not a failure.
pub(super) fn downgrade_unneeded_mapping(findings: &mut [Finding]) {
    let failed = findings.iter_mut().filter(|one| one.code == MAPS && one.state == State::Fail);
    failed.for_each(|one| one.state = State::Warn);
}

/// Refuses options with which no GPU would write entries into the adapter's ring.
fn executor_of_qualification(common: &Common, args: &PutArgs) -> Result<ExecutorChoice, CommandError> {
    let why = if args.executor == ExecutorChoice::Host {
        "--qualify-stores tries the stores of a GPU, and the host executor stores 8 bytes at a time; omit --executor"
    } else if common.doorbell == Doorbell::Staged {
        "--qualify-stores tries the stores of a GPU, and with --doorbell staged a host thread writes the entries; use \
         --doorbell direct or record"
    } else {
        return Ok(ExecutorChoice::Cuda);
    };
    Err(CommandError::Input(why.to_owned()))
}

/// Refuses the options of an exchange without one; `add` names the options that start it.
pub(super) fn refuse_options_of_a_pair(exchange: &ExchangeArgs, add: &str) -> Result<(), CommandError> {
    match exchange.token_file.is_some() || exchange.wait.is_some() {
        true => Err(CommandError::Input(format!("--token-file and --wait are for two hosts; add {add}"))),
        false => Ok(()),
    }
}
