//! `hoist boot list` and `hoist boot show`.

use clap::Args;
use hoist_api::boot::BootConfigObject;
use hoist_api::client::Client;
use hoist_model::{ConfigMode, Exit};

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Show a boot configuration
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot show compute\n  hoist boot show compute -o json")]
pub(super) struct ShowArgs {
    /// The name of a boot configuration
    #[arg(value_name = "CONFIG")]
    name: String,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
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

pub(super) async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let configs = shell.client()?.boot_configs().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&configs))?,
        Output::Name => configs.iter().try_for_each(|config| printer.line(config.name.as_str()))?,
        Output::Json | Output::Yaml => printer.value(&configs)?,
    }
    Ok(Exit::Done)
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
