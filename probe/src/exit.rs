//! Exit statuses: what a run's end says to a script.

use std::process::ExitCode;

use crate::model::{Finding, State};

/// How a run ended, before it is put into a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Nothing failed or warned; what was skipped or is unknown does not count.
    Fine,
    /// The probe itself went wrong.
    Internal,
    /// The command line, or what it was given to read, is wrong; or this version lacks the command.
    Usage,
    /// A check failed, a put was not verified, a decoded entry breaks a rule.
    Failed,
    /// There were warnings, and nothing worse.
    Warned,
}

impl Exit {
    /// What a list of findings comes to.
    pub(crate) fn of(findings: &[Finding]) -> Self {
        if findings.iter().any(|finding| finding.state == State::Fail) {
            Self::Failed
        } else if findings.iter().any(|finding| finding.state == State::Warn) {
            Self::Warned
        } else {
            Self::Fine
        }
    }

    /// The number; with `npd`, that of a node-problem-detector plugin (0 fine, 1 problem, 2 unknown).
    pub(crate) fn status(self, npd: bool) -> u8 {
        match (self, npd) {
            (Self::Fine, _) => 0,
            (Self::Internal, false) | (Self::Failed | Self::Warned, true) => 1,
            (Self::Usage, _) | (Self::Internal, true) => 2,
            (Self::Failed, false) => 3,
            (Self::Warned, false) => 4,
        }
    }

    /// For `main` to return.
    pub(crate) fn code(self, npd: bool) -> ExitCode {
        ExitCode::from(self.status(npd))
    }
}
