//! `hoist metadata render`.

use clap::{Args, ValueEnum};
use hoist_api::metadata::RenderedMetadata;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Print the documents that cloud-init would get for a node
///
/// Rendered by the server from the layers of the node, in their order; nothing is written. Secrets
/// are shown as `(secret)`. If a layer fails, the output is the document that the node is served
/// instead; if another service provides the node's documents, the output says so. With `--trace`,
/// every key with its layer and the layers whose values it replaced.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist metadata render n1\n  \
    hoist metadata render n1 --doc user-data\n  hoist metadata render n1 --trace\n  \
    hoist metadata render n1 --doc vendor-data | cloud-init schema -c /dev/stdin")]
pub(super) struct RenderArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,

    /// Only this document, as it would be sent
    #[arg(long, value_name = "DOCUMENT")]
    doc: Option<Doc>,

    /// Show where every key comes from
    #[arg(long)]
    trace: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Doc {
    MetaData,
    UserData,
    VendorData,
    NetworkConfig,
}

impl RenderArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let name = self.doc.and_then(|doc| doc.to_possible_value());
        let name = name.as_ref().map(clap::builder::PossibleValue::get_name);
        let found = shell.client()?.render_metadata(&self.node, name, self.trace).await?;
        let printer = &mut shell.printer;
        for warning in warnings(&found) {
            printer.warn(&warning);
        }
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&found)?,
            Output::Name => {
                found.layers.iter().try_for_each(|layer| printer.line(layer.name.as_str()))?;
            }
            Output::Table | Output::Wide if self.trace => print_trace(printer, &found)?,
            Output::Table | Output::Wide => print(printer, &found, self.doc.is_some())?,
        }
        Ok(Exit::Done)
    }
}

/// Reasons why the node gets other documents than those shown.
fn warnings(found: &RenderedMetadata) -> Vec<String> {
    let mut warnings = Vec::new();
    let node = &found.node;
    match (found.mode.as_str(), &found.elsewhere) {
        (_, Some(place)) => warnings.push(format!(
            "node `{node}` gets its documents elsewhere ({}: {place}); these are what hoist would say",
            found.mode
        )),
        ("none", None) => warnings.push(format!(
            "node `{node}` gets no documents (mode none); these are what hoist would say"
        )),
        _ => {}
    }
    let becomes = if found.stale { "fails" } else { "is left out" };
    warnings.extend(found.failed.iter().map(|failed| {
        let layer = &failed.layer;
        let at = &failed.at;
        let reason = &failed.reason;
        format!("layer `{layer}` {becomes}: {at}: {reason}")
    }));
    if found.stale {
        warnings.push(format!(
            "node `{node}` is served these, the last documents in which nothing failed; mend the \
             layers, or the node"
        ));
    }
    warnings.extend(found.warnings.iter().cloned());
    warnings
}

/// One document as it is; several with their names between them.
fn print(printer: &mut Printer, found: &RenderedMetadata, alone: bool) -> Result<(), Failure> {
    for document in &found.documents {
        if alone {
            printer.text(&document.text)?;
            continue;
        }
        let nothing = if document.text.is_empty() { " (empty)" } else { "" };
        printer.toned(Tone::Strong, &format!("==> {}{nothing} <==", document.document))?;
        printer.text(&document.text)?;
    }
    Ok(())
}

fn print_trace(printer: &mut Printer, found: &RenderedMetadata) -> Result<(), Failure> {
    let mut table = Table::new(&["DOCUMENT", "KEY", "FROM", "OVER"]);
    for key in &found.trace {
        let row = [&key.document, &key.key, &key.from, &key.over.join(", ")];
        table.row(row.map(ToOwned::to_owned).to_vec());
    }
    printer.table(&table)
}
