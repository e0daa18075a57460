//! `hoist boot history`.

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Show when a node last asked, and the answer it got
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot history n1\n  hoist boot history n1 -o json")]
pub(super) struct HistoryArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,
}

impl HistoryArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let history = shell.client()?.boot_history(&self.node).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&history)?,
            Output::Name => {
                history.rows.iter().try_for_each(|row| printer.line(&row.endpoint))?;
            }
            Output::Table | Output::Wide if history.rows.is_empty() => {
                printer.note(&format!("{} has not asked yet", history.node));
            }
            Output::Table | Output::Wide => {
                let columns = ["ENDPOINT", "LAST", "GOT", "REVISION", "FROM", "TIMES"];
                let mut table = Table::new(&columns);
                for row in &history.rows {
                    table.row(vec![
                        row.endpoint.clone(),
                        row.last.to_string(),
                        row.what.clone(),
                        row.revision.to_string(),
                        row.from.to_string(),
                        row.count.to_string(),
                    ]);
                }
                printer.table(&table)?;
            }
        }
        Ok(Exit::Done)
    }
}
