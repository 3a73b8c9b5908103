//! Exit statuses.

use std::process::ExitCode;

use crate::model::{Finding, State};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// No check failed or warned; skipped checks and checks without a result do not count.
    Fine,
    /// The probe has an internal error.
    Internal,
    /// The command line or the input is malformed, or this version lacks the command.
    Usage,
    /// A check failed, a put was not verified, a decoded entry breaks a rule.
    Failed,
    /// Nothing failed, and the stack that was asked for could not be judged.
    Unjudged,
    /// Checks warned, and none failed.
    Warned,
}

impl Exit {
    /// The exit for `findings`.
    pub(crate) fn of(findings: &[Finding]) -> Self {
        if findings.iter().any(|finding| finding.state == State::Fail) {
            Self::Failed
        } else if findings.iter().any(|finding| finding.state == State::Warn) {
            Self::Warned
        } else {
            Self::Fine
        }
    }

    /// The exit status; with `npd`, the status of a node-problem-detector plugin (0 fine, 1 problem, 2
    /// unknown).
    pub(crate) fn status(self, npd: bool) -> u8 {
        match (self, npd) {
            (Self::Fine, _) => 0,
            (Self::Internal, false) | (Self::Failed | Self::Warned, true) => 1,
            (Self::Usage, _) | (Self::Internal | Self::Unjudged, true) => 2,
            (Self::Failed | Self::Unjudged, false) => 3,
            (Self::Warned, false) => 4,
        }
    }

    /// The exit status as `main` returns it.
    pub(crate) fn code(self, npd: bool) -> ExitCode {
        ExitCode::from(self.status(npd))
    }
}
