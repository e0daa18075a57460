//! `hoist node discovered`.

use clap::Args;
use hoist_model::{Exit, Mac};
use jiff::Timestamp;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;
use crate::when;

/// List machines that asked for a boot script and are not in the inventory
///
/// They are told to wait and ask again. `hoist node adopt` makes nodes of them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node discovered\n  hoist node discovered -o json\n  \
    hoist node discovered --forget 52:54:00:00:00:09")]
pub(super) struct DiscoveredArgs {
    /// Forget a machine, until it asks again
    #[arg(long, value_name = "MAC")]
    forget: Option<Mac>,
}

impl DiscoveredArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        if let Some(mac) = self.forget {
            client.forget_discovered(mac).await?;
            shell.printer.note(&format!("{mac} is forgotten"));
            return Ok(Exit::Done);
        }
        let machines = client.discovered().await?.items;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&machines)?,
            Output::Name => {
                machines.iter().try_for_each(|machine| printer.line(machine.mac.to_string()))?;
            }
            Output::Table | Output::Wide => {
                let now = Timestamp::now();
                let columns = ["MAC", "ARCH", "ADDRESS", "FIRST SEEN", "LAST SEEN", "TIMES"];
                let mut table = Table::new(&columns).wide(&["AGENT", "BOOTED"]);
                for machine in &machines {
                    table.row(vec![
                        machine.mac.to_string(),
                        machine.arch.clone().unwrap_or_default(),
                        machine.from.to_string(),
                        ago(machine.first, now),
                        ago(machine.last, now),
                        machine.count.to_string(),
                        machine.agent.clone().unwrap_or_default(),
                        if machine.booted { "yes" } else { "no" }.to_owned(),
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
