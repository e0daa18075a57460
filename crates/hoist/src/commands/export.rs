//! `hoist export`.

use clap::Args;
use hoist_api::client::Lines;
use hoist_model::{Document, Exit};

use super::{SelectorArgs, Shell};
use crate::failure::Failure;
use crate::printer::Output;

/// Print everything that is declared, as documents
///
/// The output can be applied again, here or at another site. `-o json` prints one document per
/// line, which is what large sites want. With a selector only those nodes are printed, without
/// the groups, networks and partitions they refer to.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist export > site.yaml\n  hoist export -o json > site.ndjson\n  \
    hoist export 'role:compute & partition:p1'"
)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    selector: SelectorArgs,
}

impl ExportArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let selector = self.selector.text()?;
        let lines = shell.client()?.export(selector.as_deref()).await?;
        print_all(shell, lines).await?;
        Ok(Exit::Done)
    }
}

async fn print_all(shell: &mut Shell, mut lines: Lines) -> Result<(), Failure> {
    while let Some(line) = lines.next().await? {
        if shell.printer.output() == Output::Json {
            shell.printer.bytes(&line)?;
            shell.printer.bytes(b"\n")?;
        } else if let Some(document) = document(&line)? {
            print(shell, &document)?;
        }
    }
    Ok(())
}

/// The document of a line; none where the line is empty.
pub(crate) fn document(line: &[u8]) -> Result<Option<Document>, Failure> {
    let text = std::str::from_utf8(line).map_err(|error| Failure::Broken(error.to_string()))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    hoist_model::document::from_json("the server", 1, text).map(Some).map_err(|errors| {
        Failure::Broken(errors.first().map(ToString::to_string).unwrap_or_default())
    })
}

fn print(shell: &mut Shell, document: &Document) -> Result<(), Failure> {
    match shell.printer.output() {
        Output::Name => shell.printer.line(format!("{}/{}", document.kind(), document.name())),
        Output::Table | Output::Wide | Output::Json | Output::Yaml => {
            shell.printer.line("---")?;
            shell.printer.bytes(document.to_yaml().as_bytes())
        }
    }
}
