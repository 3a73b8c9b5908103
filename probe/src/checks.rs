//! The list of all checks, in the order of a report: from the environment to a verified completion. A code is a
//! category and three digits, and its meaning never changes. `docs/checks.md` has a page for each code.

pub(crate) mod cuda;
pub(crate) mod data;
pub(crate) mod dev;
pub(crate) mod env;
pub(crate) mod external_memory;
pub(crate) mod fabric;
pub(crate) mod groups;
pub(crate) mod library;
pub(crate) mod measure;
pub(crate) mod queues;
pub(crate) mod session;
pub(crate) mod stacks;
mod variables;
pub(crate) mod verbs;

use crate::check::Check;
use crate::model::Finding;

/// Every check, in the order of a report.
pub(crate) fn registry() -> Vec<&'static Check> {
    let mut all: Vec<&'static Check> = Vec::new();
    all.extend(env::CHECKS.iter().chain(dev::CHECKS).map(|unit| &unit.check));
    all.push(&library::CHOICE.check);
    all.extend(fabric::start::CHECKS.iter().take(2).map(|unit| &unit.check));
    all.extend(library::OF_LIBFABRIC.iter().chain(library::OF_LIBEFA).map(|unit| &unit.check));
    all.extend(stacks::CHECKS.iter().map(|unit| &unit.check));
    all.push(&cuda::CHOICE.check);
    all.extend(cuda::DRIVER_CHECKS.iter().map(|unit| &unit.check));
    all.extend(cuda::CHECKS.iter().chain(cuda::GPU_CHECKS).map(|unit| &unit.check));
    all.push(&cuda::NEAR);
    all.extend(fabric::on_gpu::MAPPING.map(|unit| &unit.check));
    all.extend(fabric::start::CHECKS.iter().skip(2).map(|unit| &unit.check));
    all.extend(fabric::objects::CHECKS.iter().chain(fabric::gda::CHECKS).map(|unit| &unit.check));
    all.extend(verbs::start::CHECKS.iter().chain(verbs::objects::CHECKS).map(|unit| &unit.check));
    // libfabric and rdma-core have the same checks here.
    let moving = queues::checks::<fabric::Libfabric>().iter().chain(data::checks());
    all.extend(moving.map(|unit| &unit.check));
    all.push(&fabric::bench::CHECK.check);
    all
}

/// Sorts findings into the order of a report. The order of a code's subjects stays.
pub(crate) fn sort(findings: &mut [Finding]) {
    let codes: Vec<&str> = registry().iter().map(|check| check.code).collect();
    findings.sort_by_key(|finding| codes.iter().position(|code| *code == finding.code));
}
