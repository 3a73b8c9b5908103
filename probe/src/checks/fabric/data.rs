//! Bytes moved through the queues by the device code, in the host executor.

use super::Session;
use crate::check::Unit;

/// What the checks of this category share.
#[derive(Debug, Default)]
pub(crate) struct Bench {}

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<Session>] = &[];
