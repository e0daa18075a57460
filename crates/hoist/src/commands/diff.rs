//! `hoist diff`.

use clap::Args;
use hoist_api::client::ApplyQuery;
use hoist_model::Exit;

use super::Shell;
use super::apply::FileArgs;
use crate::changes;
use crate::failure::Failure;
use crate::input;

/// Show how documents differ from the site
///
/// Ends like diff: 0 without differences, 1 with differences, 2 or more when it could not look.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist diff -f site.yaml\n  hoist diff -f site/ -R -o json\n  \
    hoist diff -f site.yaml && echo nothing to do"
)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
}

impl DiffArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let documents = input::read(&self.files.file, self.files.recursive)?;
        let query = ApplyQuery { dry_run: true, ..ApplyQuery::default() };
        let (plan, _) = shell.client()?.apply(&query, documents.body("comparing")?).await?;
        changes::print(&mut shell.printer, &plan)?;
        shell.printer.flush()?;
        shell.printer.note(&changes::summary(&plan));
        Ok(if changes::is_empty(&plan) { Exit::Done } else { Exit::Failed })
    }
}
