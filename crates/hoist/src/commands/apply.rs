//! `hoist apply`.

use std::path::PathBuf;

use clap::Args;
use hoist_model::{Exit, Name};

use super::Shell;
use crate::edit::{self, Terms, WriteArgs};
use crate::failure::Failure;
use crate::input;

/// Apply documents to the site
///
/// All files are checked first and every error is shown. The server then computes the change, which
/// is shown and made in one transaction: all of it or nothing. If the site changes in between, the
/// change is computed again.
///
/// A change that affects many existing nodes is refused unless `--affects` names their number.
/// Files of JSON lines (.ndjson, .jsonl) are streamed and may be as large as a site.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist apply -f site.yaml\n  hoist apply -f site/ -R --dry-run\n  \
    hoist apply -f rack7.yaml --prune rack7\n  hoist export -o json | hoist apply --server URL -f -"
)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,

    #[command(flatten)]
    write: WriteArgs,

    /// Remember these documents as a set of this name
    #[arg(long, value_name = "NAME", conflicts_with = "prune")]
    set: Option<Name>,

    /// Like `--set`, and remove objects that the set contained before and no longer contains
    #[arg(long, value_name = "NAME")]
    prune: Option<Name>,
}

/// Which documents.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// File, directory or `-` for standard input; may be given several times
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub(crate) file: Vec<PathBuf>,

    /// Also directories inside of directories
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
}

impl ApplyArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let documents = input::read(&self.files.file, self.files.recursive)?;
        let client = shell.client()?;
        let set = self.set.or(self.prune.clone()).map(|name| name.to_string());
        let prune = self.prune.is_some();
        let terms = Terms { write: self.write, set, prune, ..Terms::default() };
        edit::apply(shell, &client, &documents, &terms).await
    }
}
