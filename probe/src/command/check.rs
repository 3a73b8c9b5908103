//! `gda-probe check`: every check, and a verdict.

use super::CommandError;
use super::run::Run;
use crate::checks::library::Libraries;
use crate::checks::{self, cuda, dev, env, library};
use crate::cli::{Common, Op, Via};
use crate::exit::Exit;
use crate::part::{Part, PutRequest};
use crate::report::{Document, Finding, State};
use crate::verdict::verdicts;

/// What the check moves through the queues: small, and more than the phase of one entry.
const PUT: PutRequest = PutRequest { op: Op::Write, bytes: 64, count: 16, one_adapter: false, plant: None };

/// Whether this check, which asks for queues, passed on any adapter.
fn exposed(findings: &[Finding], code: &str) -> bool {
    findings.iter().any(|finding| finding.code == code && finding.state == State::Pass)
}

/// Runs every check whose prerequisites hold.
pub(crate) fn run(common: &Common) -> Result<(Document, Exit), CommandError> {
    let mut run = Run::new(common)?;
    for unit in env::CHECKS.iter().chain(dev::CHECKS) {
        run.runner.run(unit, None, &mut run.system);
    }
    run.runner.run(&cuda::CHOICE, None, &mut run.system);
    for unit in cuda::DRIVER_CHECKS {
        run.runner.run(unit, None, &mut run.system);
    }
    let through = run.queues(PUT)?;
    if common.via == Via::Libfabric && !common.soft && !exposed(&run.runner.findings, "GDA-003") {
        run.exposure(PUT)?;
    }
    let gpus = if run.runner.blocked(&cuda::CHECKS[0].check, None).is_some() {
        let mut none = cuda::Cuda::default();
        for unit in cuda::CHECKS.iter().chain(cuda::GPU_CHECKS) {
            run.runner.run(unit, None, &mut none);
        }
        Vec::new()
    } else {
        run.part(Part::Cuda, PUT)?.gpus
    };
    let mut libraries = Libraries { system: run.system.clone(), loaded: through.loaded };
    let of_libfabric = match common.via {
        Via::Libfabric => library::OF_LIBFABRIC,
        Via::Verbs => &[],
    };
    for unit in of_libfabric.iter().chain(library::OF_LIBEFA) {
        run.runner.run(unit, None, &mut libraries);
    }
    let mut findings = std::mem::take(&mut run.runner.findings);
    checks::sort(&mut findings);
    let mut adapters = through.adapters;
    if adapters.is_empty() && !common.soft {
        adapters = run.system.adapters().iter().map(|adapter| adapter.name().to_owned()).collect();
    }
    let exit = Exit::of(&findings);
    let mut document = Document::new("check", common.soft);
    document.verdict = Some(verdicts(&findings, &gpus, &adapters));
    document.checks = Some(findings);
    document.queues = through.queues;
    document.put = through.put;
    Ok((document, exit))
}
