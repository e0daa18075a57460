//! `hoist audit`.

use clap::{Args, Subcommand};
use hoist_api::admin::AuditEntry;
use hoist_api::client::AuditQuery;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Entries asked for in one page.
const PAGE: usize = 1000;

/// The audit log: every write with its author and effect
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Show the newest entries, or those after a number
    #[command(
        after_help = "Examples:\n  hoist audit list\n  hoist audit list --tail 20 -o wide\n  \
        hoist audit list --after 4711"
    )]
    List {
        /// So many of the newest
        #[arg(long, value_name = "N", default_value_t = 50, conflicts_with = "after")]
        tail: u64,
        /// All entries after this number
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
    },
    /// Print the whole log, one JSON entry per line
    #[command(after_help = "Examples:\n  hoist audit export > audit.ndjson\n  \
        hoist audit export --after 4711 >> audit.ndjson")]
    Export {
        /// Only entries after this number
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
    },
    /// Check that nothing in the log was changed or taken out
    #[command(after_help = "Examples:\n  hoist audit verify && echo intact")]
    Verify,
}

impl AuditArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            AuditCommand::List { tail, after } => list(shell, tail, after).await,
            AuditCommand::Export { after } => {
                pages(shell, after.unwrap_or_default(), |shell, entries| {
                    entries.iter().try_for_each(|entry| shell.printer.json_line(entry))
                })
                .await
            }
            AuditCommand::Verify => verify(shell).await,
        }
    }
}

async fn list(shell: &mut Shell, tail: u64, after: Option<u64>) -> Result<Exit, Failure> {
    let mut all = Vec::new();
    let after = if let Some(after) = after {
        after
    } else {
        let query = AuditQuery { limit: Some(1), tail: Some(1), ..AuditQuery::default() };
        shell.client()?.audit(query).await?.head.saturating_sub(tail)
    };
    pages(shell, after, |_, entries| {
        all.extend_from_slice(entries);
        Ok(())
    })
    .await?;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&all))?,
        Output::Name => all.iter().try_for_each(|entry| printer.line(entry.seq.to_string()))?,
        Output::Json | Output::Yaml => printer.value(&all)?,
    }
    Ok(Exit::Done)
}

/// Hands out all entries after a number, page by page.
async fn pages(
    shell: &mut Shell,
    mut after: u64,
    mut take: impl FnMut(&mut Shell, &[AuditEntry]) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let client = shell.client()?;
    loop {
        let query = AuditQuery { after: Some(after), limit: Some(PAGE), ..AuditQuery::default() };
        let page = client.audit(query).await?;
        take(shell, &page.entries)?;
        match page.next {
            Some(next) if next > after => after = next,
            _ => return Ok(Exit::Done),
        }
    }
}

fn table(entries: &[AuditEntry]) -> Table {
    let mut table = Table::new(&["SEQ", "AT", "WHO", "VERB", "OBJECT", "OUTCOME"])
        .wide(&["ROUTE", "BEFORE", "AFTER", "FROM", "REQUEST"]);
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    for entry in entries {
        table.row(vec![
            entry.seq.to_string(),
            entry.at.clone(),
            entry.who.clone(),
            entry.method.clone(),
            entry.object.clone(),
            entry.outcome.clone(),
            entry.route.clone(),
            number(entry.before),
            number(entry.after),
            entry.from.clone(),
            entry.request_id.clone(),
        ]);
    }
    table
}

async fn verify(shell: &mut Shell) -> Result<Exit, Failure> {
    let query = AuditQuery { verify: true, tail: Some(1), ..AuditQuery::default() };
    let page = shell.client()?.audit(query).await?;
    let found =
        page.verification.ok_or_else(|| Failure::Broken("it contains no chain status".into()))?;
    if !matches!(shell.printer.output(), Output::Table | Output::Wide) {
        shell.printer.value(&found)?;
    } else if found.intact {
        let text = format!("intact: {} entries from {} on", found.entries, found.first);
        shell.printer.line(text)?;
    } else {
        let at = found.broken_at.map(|seq| format!(" at entry {seq}")).unwrap_or_default();
        let detail = found.detail.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        shell.printer.line(format!("broken{at}{detail}"))?;
    }
    Ok(if found.intact { Exit::Done } else { Exit::Failed })
}
