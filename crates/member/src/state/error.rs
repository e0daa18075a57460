//! Why the state of a node cannot be used, with the remedy.

use std::io;
use std::path::PathBuf;

use hoist_model::Exit;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    #[error("cannot use `{path}`")]
    Unusable { path: PathBuf, source: io::Error },
    #[error("`{path}` is damaged: {detail}")]
    Corrupt { path: PathBuf, detail: String },
    #[error("{holder} holds the lock `{path}`")]
    Locked { path: PathBuf, holder: String },
}

impl StateError {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Locked { .. } => Exit::Locked,
            Self::Unusable { .. } | Self::Corrupt { .. } => Exit::Failed,
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unusable { .. } => {
                "check permissions, mount and free space of the state directory"
            }
            Self::Corrupt { .. } => {
                "restore the file from a backup, or run `hoist identity reset` and join again"
            }
            Self::Locked { .. } => "wait for its end, or stop it",
        }
    }

    /// The disk has no space left.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::Unusable { source, .. } => {
                matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            Self::Corrupt { .. } | Self::Locked { .. } => false,
        }
    }
}
