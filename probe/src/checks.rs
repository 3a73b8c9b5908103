//! All checks: the table of them ([`rows`]), the functions that it names, and the workers that run them.

pub(crate) mod copies;
pub(crate) mod cuda;
pub(crate) mod data;
pub(crate) mod dev;
pub(crate) mod env;
pub(crate) mod external_memory;
pub(crate) mod fabric;
pub(crate) mod groups;
pub(crate) mod library;
pub(crate) mod measure;
pub(crate) mod node;
pub(crate) mod queues;
pub(crate) mod rows;
pub(crate) mod session;
pub(crate) mod stacks;
mod variables;
pub(crate) mod verbs;

use crate::model::Finding;

/// Sorts findings into the order of a report. The order of a code's subjects stays.
pub(crate) fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| rows::rows().position(|row| row.check.code == finding.code));
}
