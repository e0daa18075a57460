//! `hoist metadata list` and `hoist metadata show`.

use clap::Args;
use hoist_api::client::Client;
use hoist_api::metadata::MetadataLayerObject;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Show a metadata layer
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist metadata show site\n  hoist metadata show site -o json")]
pub(super) struct ShowArgs {
    /// The name of a layer
    #[arg(value_name = "LAYER")]
    name: String,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let layer = find(&shell.client()?, &self.name).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Name => printer.line(layer.name.as_str())?,
            Output::Json => printer.value(&layer)?,
            Output::Table | Output::Wide | Output::Yaml => printer.yaml(&layer)?,
        }
        Ok(Exit::Done)
    }
}

pub(super) async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let layers = shell.client()?.metadata_layers().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&layers))?,
        Output::Name => layers.iter().try_for_each(|layer| printer.line(layer.name.as_str()))?,
        Output::Json | Output::Yaml => printer.value(&layers)?,
    }
    Ok(Exit::Done)
}

pub(crate) async fn find(client: &Client, name: &str) -> Result<MetadataLayerObject, Failure> {
    client.metadata_layer(name).await?.ok_or_else(|| {
        Failure::missing(format!("metadata layer `{name}`"))
            .with_hint("`hoist metadata list` shows all of them")
    })
}

pub(crate) fn table(layers: &[MetadataLayerObject]) -> Table {
    let mut table = Table::new(&["NAME", "SELECTOR", "PRIORITY", "NODES", "SAYS"]);
    for layer in layers {
        table.row(vec![
            layer.name.to_string(),
            layer.spec.selector.as_ref().map(ToString::to_string).unwrap_or_default(),
            layer.spec.priority.to_string(),
            layer.nodes.to_string(),
            says(layer),
        ]);
    }
    table
}

/// The fields of a layer that say something.
fn says(layer: &MetadataLayerObject) -> String {
    let spec = &layer.spec;
    let fields = [
        ("hostname", spec.hostname.is_some()),
        ("public_keys", !spec.public_keys.is_empty()),
        ("meta_data", !spec.meta_data.is_empty()),
        ("user_data", !spec.user_data.is_empty()),
        ("vendor_data", !spec.vendor_data.is_empty()),
        ("parts", !spec.parts.is_empty()),
        ("network_config", spec.network_config.is_some()),
        ("openchami", spec.openchami.is_some()),
    ];
    let said: Vec<_> = fields.iter().filter(|(_, said)| *said).map(|(field, _)| *field).collect();
    said.join(",")
}
