//! `hoist node discovered`.

use std::net::IpAddr;

use clap::Args;
use hoist_model::{Exit, Mac};
use jiff::Timestamp;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;
use crate::when;

/// List machines that asked for a boot script or metadata and are not in the inventory
///
/// Such machines wait and ask again. `hoist node adopt` makes nodes of those with a MAC. A machine
/// that asked for metadata only is known by its address: add the address to its node, or enable the
/// node that has it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node discovered\n  hoist node discovered -o json\n  \
    hoist node discovered --forget 52:54:00:00:00:09")]
pub(super) struct DiscoveredArgs {
    /// Forget a machine, until it asks again
    #[arg(long, value_name = "MAC|ADDRESS")]
    forget: Option<String>,
}

impl DiscoveredArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        if let Some(machine) = self.forget {
            let is_known_form = machine.parse::<Mac>().is_ok() || machine.parse::<IpAddr>().is_ok();
            if !is_known_form {
                let message = format!("`{machine}` is neither a MAC nor an address");
                return Err(Failure::usage(message));
            }
            client.forget_discovered(&machine).await?;
            shell.printer.note(&format!("{machine} is forgotten"));
            return Ok(Exit::Done);
        }
        let machines = client.discovered().await?.items;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&machines)?,
            Output::Name => {
                let macs = machines.iter().filter_map(|machine| machine.mac);
                macs.into_iter().try_for_each(|mac| printer.line(mac.to_string()))?;
            }
            Output::Table | Output::Wide => {
                let now = Timestamp::now();
                let columns =
                    ["MAC", "ARCH", "ADDRESS", "ASKED FOR", "FIRST SEEN", "LAST SEEN", "TIMES"];
                let mut table = Table::new(&columns).wide(&["AGENT", "BOOTED", "DISABLED NODE"]);
                for machine in &machines {
                    table.row(vec![
                        machine.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                        machine.arch.clone().unwrap_or_default(),
                        machine.from.to_string(),
                        if machine.mac.is_some() { "boot" } else { "metadata" }.to_owned(),
                        ago(machine.first, now),
                        ago(machine.last, now),
                        machine.count.to_string(),
                        machine.agent.clone().unwrap_or_default(),
                        if machine.booted { "yes" } else { "no" }.to_owned(),
                        machine.node.as_ref().map(ToString::to_string).unwrap_or_default(),
                    ]);
                }
                printer.table(&table)?;
            }
        }
        Ok(Exit::Done)
    }
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs();
    format!("{} ago", when::age(u64::try_from(seconds).unwrap_or(0)))
}
