//! The commands.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod decode;
pub(crate) mod executor;
pub(crate) mod explain;
pub(crate) mod put;
pub(crate) mod run;

/// What ends a command before it can report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CommandError {
    /// This version lacks it.
    #[error("{what} is not in this version; missing: {missing}")]
    NotInThisVersion {
        /// What was asked for.
        what: &'static str,
        /// What it needs.
        missing: &'static str,
    },
    /// What was given cannot be used.
    #[error("{0}")]
    Input(String),
    /// A child process could not be started.
    #[error(transparent)]
    Start(#[from] crate::supervisor::StartError),
    /// A file that was asked for could not be written.
    #[error("{} cannot be written: {source}", file.display())]
    File {
        /// The file.
        file: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The report could not be made or written.
    #[error("the report cannot be written: {0}")]
    Output(#[from] std::io::Error),
    /// The report could not be put into JSON.
    #[error("the report cannot be put into JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CommandError {
    /// The exit that it comes to.
    pub(crate) fn exit(&self) -> crate::exit::Exit {
        match self {
            Self::NotInThisVersion { .. } | Self::Input(_) => crate::exit::Exit::Usage,
            _ => crate::exit::Exit::Internal,
        }
    }
}
