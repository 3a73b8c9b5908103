//! The commands.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod decode;
pub(crate) mod executor;
pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod manual;
pub(crate) mod put;
pub(crate) mod report;
pub(crate) mod ring;
pub(crate) mod run;

/// An error that ends a command before it can report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CommandError {
    /// This version lacks the command or option.
    #[error("{what} is not in this version; missing: {missing}; {instead}")]
    NotInThisVersion {
        /// The command or option.
        what: &'static str,
        /// What this version lacks for it.
        missing: &'static str,
        /// What the user can do instead.
        instead: &'static str,
    },
    /// The arguments or the input cannot be used.
    #[error("{0}")]
    Input(String),
    /// A worker process could not be started.
    #[error(transparent)]
    Start(#[from] crate::supervisor::StartError),
    /// A process with ranks, or the thread of their exchange, could not be started.
    #[error("the ranks cannot be started: {}{}", .0, crate::exchange::advice(.0))]
    Ranks(std::io::Error),
    /// An output file could not be written.
    #[error("{} cannot be written: {source}", file.display())]
    File {
        /// The path.
        file: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The report was printed, and its file could not be written.
    #[error("{0}")]
    AfterReport(Box<Self>),
    /// The report could not be written.
    #[error(
        "the report cannot be written to stdout: {0}; redirect stdout to a file on a file system with free space"
    )]
    Output(#[from] std::io::Error),
    /// The report could not be serialized.
    #[error("the report cannot be written as JSON: {0}; report this with the command line")]
    Json(#[from] serde_json::Error),
}

impl CommandError {
    /// The exit for this error.
    pub(crate) fn exit(&self) -> crate::exit::Exit {
        match self {
            Self::NotInThisVersion { .. } | Self::Input(_) => crate::exit::Exit::Usage,
            _ => crate::exit::Exit::Internal,
        }
    }
}
