//! `hoist boot list` and `hoist boot show`: boot configurations, and boot parameters of BSS as
//! `bss:KEY`.

use clap::Args;
use hoist_api::boot::BootConfigObject;
use hoist_api::client::Client;
use hoist_model::{BootParameters, ConfigMode, Exit};
use serde_json::Value;

use super::{Shell, answered_status};
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Prefix of boot parameters among the names of boot configurations.
const BSS: &str = "bss:";

/// Show a boot configuration, or boot parameters of BSS
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist boot show compute\n  hoist boot show compute -o json\n  \
    hoist boot show bss:Default"
)]
pub(super) struct ShowArgs {
    /// The name of a boot configuration, or `bss:` and the key of boot parameters
    #[arg(value_name = "CONFIG")]
    name: String,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if let Some(key) = self.name.strip_prefix(BSS) {
            return show_parameters(shell, key).await;
        }
        let config = find(&shell.client()?, &self.name).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Name => printer.line(config.name.as_str())?,
            Output::Json => printer.value(&config)?,
            Output::Table | Output::Wide | Output::Yaml => printer.yaml(&config)?,
        }
        Ok(Exit::Done)
    }
}

async fn show_parameters(shell: &mut Shell, key: &str) -> Result<Exit, Failure> {
    let found = shell.client()?.bss_parameters_of(key).await;
    let found = found.map_err(|error| match answered_status(&error) {
        Some(404) => Failure::missing(format!("boot parameters of `{key}`"))
            .with_hint("`hoist boot list` shows all of them as `bss:KEY`"),
        _ => error.into(),
    })?;
    let elements: Vec<Value> = found.into_iter().map(named).collect();
    let printer = &mut shell.printer;
    for element in &elements {
        match printer.output() {
            Output::Name => printer.line(name_of(element))?,
            Output::Json => printer.value(element)?,
            Output::Table | Output::Wide | Output::Yaml => printer.yaml(element)?,
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let configs = client.boot_configs().await?.items;
    let elements: Vec<Value> = match client.bss_parameters().await {
        Ok(elements) => elements.into_iter().map(named).collect(),
        Err(error) if matches!(answered_status(&error), Some(401 | 403)) => {
            shell.printer.note("boot parameters of BSS are not shown: the token may not read them");
            Vec::new()
        }
        Err(error) => return Err(error.into()),
    };
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => {
            let mut table = table(&configs);
            for element in &elements {
                parameters_row(&mut table, element);
            }
            printer.table(&table)?;
        }
        Output::Name => {
            configs.iter().try_for_each(|config| printer.line(config.name.as_str()))?;
            elements.iter().try_for_each(|element| printer.line(name_of(element)))?;
        }
        Output::Json | Output::Yaml => {
            let configs = configs.iter().map(serde_json::to_value);
            let mut all: Vec<Value> = configs.collect::<Result<_, _>>().map_err(Failure::Json)?;
            all.extend(elements);
            printer.value(&all)?;
        }
    }
    Ok(Exit::Done)
}

/// An element of BSS with the name that `hoist boot explain` gives it. An element without a node
/// or tag holds the parameters of an image.
fn named(mut element: Value) -> Value {
    let read = BootParameters::from_value(element.clone()).unwrap_or_default();
    let nids = read.nids.iter().map(|nid| format!("nid{nid}"));
    let keys: Vec<String> = read.hosts.iter().chain(&read.macs).cloned().chain(nids).collect();
    let key = if keys.is_empty() { "image".to_owned() } else { keys.join(",") };
    if let Value::Object(members) = &mut element {
        members.insert("name".to_owned(), format!("{BSS}{key}").into());
    }
    element
}

fn name_of(element: &Value) -> &str {
    element["name"].as_str().unwrap_or_default()
}

fn parameters_row(table: &mut Table, element: &Value) {
    let name = name_of(element).to_owned();
    let key = name.strip_prefix(BSS).unwrap_or_default().to_owned();
    let read = BootParameters::from_value(element.clone()).unwrap_or_default();
    let mut flags = Vec::new();
    if read.addresses() && read.kernel.is_empty() {
        flags.push("no-kernel");
    }
    if !read.cloud_init.is_empty() {
        flags.push("cloud-init");
    }
    table.row(vec![
        name,
        key,
        "0".to_owned(),
        String::new(),
        "live".to_owned(),
        flags.join(","),
        read.kernel,
        read.initrd,
        read.params,
    ]);
}

pub(crate) async fn find(client: &Client, name: &str) -> Result<BootConfigObject, Failure> {
    client.boot_config(name).await?.ok_or_else(|| {
        Failure::missing(format!("boot configuration `{name}`"))
            .with_hint("`hoist boot list` shows all of them")
    })
}

pub(crate) fn table(configs: &[BootConfigObject]) -> Table {
    let mut table = Table::new(&["NAME", "SELECTOR", "PRIORITY", "NODES", "MODE", "FLAGS"])
        .wide(&["KERNEL", "INITRD", "PARAMS"]);
    for config in configs {
        let mode = match config.mode {
            ConfigMode::Live => "live",
            ConfigMode::Install => "install",
        };
        table.row(vec![
            config.name.to_string(),
            config.selector.as_ref().map(ToString::to_string).unwrap_or_default(),
            config.priority.to_string(),
            config.nodes.to_string(),
            mode.to_owned(),
            flags(config),
            config.kernel.clone(),
            config.initrd.join(","),
            config.params.clone(),
        ]);
    }
    table
}

fn flags(config: &BootConfigObject) -> String {
    let mut flags = Vec::new();
    if !config.enabled {
        flags.push("off".to_owned());
    }
    if config.once {
        flags.push("once".to_owned());
    }
    if config.template.is_some() {
        flags.push("template".to_owned());
    }
    flags.extend(config.profile.as_ref().map(|profile| format!("profile={profile}")));
    flags.join(",")
}
