//! `hoist delete`.

use std::path::PathBuf;

use clap::Args;
use hoist_model::Exit;
use hoist_model::document;

use super::{Shell, get, schema};
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::input;

/// Remove objects, by name or by the documents that declared them
///
/// All objects are removed in one transaction. Protected nodes and objects that others refer to are
/// not removed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist delete node/login1 group/default/gpu\n  \
    hoist delete -f old-rack.yaml --dry-run")]
pub(crate) struct DeleteArgs {
    /// Such as `node/login1` or `group/PARTITION/NAME`
    #[arg(value_name = "KIND/NAME", required_unless_present = "file")]
    targets: Vec<String>,

    /// Remove the objects that the documents of this file name; `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    #[command(flatten)]
    write: WriteArgs,
}

impl DeleteArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let mut targets = Vec::new();
        for text in &self.targets {
            let (kind, name) = text.split_once('/').ok_or_else(|| {
                Failure::usage(format!("`{text}` is not an object name"))
                    .with_hint("write it as KIND/NAME, such as `node/login1`")
            })?;
            targets.push(get::target(schema::kind(kind)?, name)?);
        }
        for path in &self.file {
            let text = input::read_whole(path)?;
            let found =
                document::read(&path.display().to_string(), &text).map_err(Failure::Documents)?;
            let named =
                found.iter().map(|document| format!("{}/{}", document.kind(), document.name()));
            targets.extend(named);
        }
        let client = shell.client()?;
        edit::delete(shell, &client, targets, &self.write).await
    }
}
