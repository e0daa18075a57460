//! `hoist node release`.

use std::collections::BTreeSet;

use clap::Args;
use hoist_api::inventory::ReleaseRequest;
use hoist_model::Exit;

use super::Shell;
use crate::commands::network::joined;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;

/// Take fields of an imported node over from its source
///
/// An imported node belongs to its source: the fields of the source cannot be changed here. A
/// released field belongs to people from then on, and imports leave it alone.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node release n1 role groups\n  \
    hoist node release n1 role --back")]
pub(super) struct ReleaseArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,

    /// Fields as documents call them, such as `role`
    #[arg(value_name = "FIELD", required = true)]
    fields: Vec<String>,

    /// Give them back to the source
    #[arg(long)]
    back: bool,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl ReleaseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let node = node_ref::find(&client, &self.node).await?;
        let name = node_ref::name_of(&node)?;
        let Some(provenance) = &node.provenance else {
            return Err(Failure::refused(format!("node {name} was not imported"))
                .with_hint("all of its fields can be changed"));
        };
        let before: BTreeSet<_> = provenance.released.iter().cloned().collect();
        let mut after = before.clone();
        for field in self.fields {
            if self.back {
                after.remove(&field);
            } else {
                after.insert(field);
            }
        }
        let list = if after.is_empty() { "nothing".to_owned() } else { joined(after.iter()) };
        if after == before {
            shell.printer.note(&format!("node {name}: {list} already released"));
            return Ok(Exit::Done);
        }
        let request = ReleaseRequest { fields: after.into_iter().collect() };
        client.release(node_ref::id_of(&node)?, &request, self.dry_run).await?;
        if self.dry_run {
            let what = format!("release {list} of node {name}");
            return edit::would(&mut shell.printer, &what);
        }
        shell.printer.note(&format!("node {name}: {list} released"));
        Ok(Exit::Done)
    }
}
