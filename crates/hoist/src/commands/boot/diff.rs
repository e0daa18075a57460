//! `hoist boot diff`.

use clap::Args;
use hoist_api::boot::{BootChangeKind, BootDiff};
use hoist_model::Exit;

use super::Shell;
use crate::commands::apply::FileArgs;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Printer, Tone};

/// Nodes shown one by one; the rest is counted.
const SHOWN: usize = 100;

/// Show which nodes would boot differently if documents were applied
///
/// Changes nothing. Exits like diff: 0 when no node boots differently, 1 when some do, 2 or more on
/// an error.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist boot diff -f change.yaml\n  hoist boot diff -f site/ -R -o json"
)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
}

impl DiffArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let documents = input::read(&self.files.file, self.files.recursive)?;
        let diff = shell.client()?.boot_diff(documents.body("comparing")?).await?;
        print(&mut shell.printer, &diff)?;
        shell.printer.flush()?;
        shell.printer.note(&summary(&diff));
        Ok(if diff.is_empty() { Exit::Done } else { Exit::Failed })
    }
}

fn print(printer: &mut Printer, diff: &BootDiff) -> Result<(), Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => return printer.value(diff),
        Output::Name => {
            return diff.nodes.iter().try_for_each(|change| printer.line(change.node.as_str()));
        }
        Output::Table | Output::Wide => {}
    }
    for change in diff.nodes.iter().take(SHOWN) {
        let node = &change.node;
        let from = &change.from;
        let to = &change.to;
        let (tone, line) = match change.change {
            BootChangeKind::Loses => (Tone::Removed, format!("- {node}: {from} -> {to}")),
            BootChangeKind::Gains => (Tone::Added, format!("+ {node}: {from} -> {to}")),
            BootChangeKind::Other if from == to => {
                (Tone::Changed, format!("~ {node}: {to} with another kernel or initrd"))
            }
            BootChangeKind::Other => (Tone::Changed, format!("~ {node}: {from} -> {to}")),
            BootChangeKind::Line => {
                (Tone::Changed, format!("~ {node}: {to} with another command line or script"))
            }
        };
        printer.toned(tone, &line)?;
    }
    let total = diff.other + diff.loses + diff.gains + diff.line;
    if total > SHOWN {
        printer.toned(Tone::Faint, &format!("… and {} more", total - SHOWN))?;
    }
    Ok(())
}

fn summary(diff: &BootDiff) -> String {
    if diff.is_empty() {
        return "no node boots differently".to_owned();
    }
    let counts = [
        (diff.other, "boot another configuration"),
        (diff.loses, "lose their configuration"),
        (diff.gains, "gain a configuration"),
        (diff.line, "get another command line or script"),
    ];
    let told = counts.iter().filter(|(count, _)| *count > 0);
    told.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}
