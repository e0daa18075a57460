//! Failures of the commands and the exit code of each.

use std::io;
use std::path::PathBuf;

use hoist_diagnostic::{Diagnostic, chain};
use hoist_image::build::BuildError;
use hoist_image::document::DocumentError;
use hoist_image::unpack::UnpackError;
use hoist_model::Exit;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read `{path}`; name a document with -f")]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("SOURCE_DATE_EPOCH is `{0}`; write seconds since 1970")]
    Epoch(String),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("cannot print")]
    Print(#[from] io::Error),
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Read { .. }
            | Self::Document(_)
            | Self::Epoch(_)
            | Self::Unpack(UnpackError::Read { .. } | UnpackError::NoName(_)) => Exit::Usage,
            Self::Unpack(UnpackError::Occupied(_))
            | Self::Build(BuildError::Occupied(_) | BuildError::Future(_)) => Exit::Refused,
            Self::Build(BuildError::Locked(_)) => Exit::Locked,
            // The reader closed the pipe because it needs no more output.
            Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Build(_) | Self::Unpack(_) | Self::Print(_) => Exit::Failed,
        }
    }

    pub(crate) fn print(&self) {
        if self.exit() == Exit::Done {
            return;
        }
        eprintln!("error: {}", chain(self));
        if let Self::Document(DocumentError::Invalid(found)) = self {
            print_each(found);
        }
    }
}

fn print_each(found: &[Diagnostic]) {
    for found in found {
        eprintln!("  {found}");
    }
}
