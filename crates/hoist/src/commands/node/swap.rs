//! `hoist node swap`.

use clap::{ArgGroup, Args};
use hoist_api::inventory::{MacSwap, Node, SwapRequest};
use hoist_model::{Exit, Mac};

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;

/// Say that the machine behind a node was replaced
///
/// The node keeps its id, its name and everything declared; its hardware identity changes. With
/// `--with` the node and a spare exchange MACs, system identity and BMC.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("how").args(["mac", "with"]).required(true),
    after_help = "Examples:\n  hoist node swap n1 --mac 52:54:00:00:00:01=52:54:00:00:00:99\n  \
        hoist node swap n1 --with spare1 --dry-run"
)]
pub(super) struct SwapArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,

    /// A MAC and the one that replaces it; may be given several times
    #[arg(long, value_name = "OLD=NEW", value_parser = mac_swap)]
    mac: Vec<MacSwap>,

    /// A node to exchange hardware with
    #[arg(long, value_name = "SPARE")]
    with: Option<String>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl SwapArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let node = node_ref::find(&client, &self.node).await?;
        let name = node_ref::name_of(&node)?;
        let (with, what) = match &self.with {
            Some(spare) => {
                let spare = node_ref::find(&client, spare).await?;
                let spare = node_ref::name_of(&spare)?.clone();
                if spare == *name {
                    return Err(Failure::usage(format!("node {name} cannot be its own spare")));
                }
                let what = format!("exchange the hardware of node {name} and node {spare}");
                (Some(spare), what)
            }
            None => (None, self.replaced(&node)?),
        };
        let request = SwapRequest { macs: self.mac, with, system: None };
        client.swap(node_ref::id_of(&node)?, &request, self.dry_run).await?;
        if self.dry_run {
            return edit::would(&mut shell.printer, &what);
        }
        shell.printer.note(&format!("done: {what}"));
        Ok(Exit::Done)
    }

    /// The change of the MACs, all of which must be the node's.
    fn replaced(&self, node: &Node) -> Result<String, Failure> {
        let name = node_ref::name_of(node)?;
        let mut parts = Vec::new();
        for MacSwap { old, new } in &self.mac {
            let known = node.interfaces.iter().find(|interface| interface.mac == *old);
            let interface = known.ok_or_else(|| {
                Failure::usage(format!("node {name} has no interface with the MAC {old}"))
                    .with_hint(format!("`hoist node show {name}` shows what it has"))
            })?;
            parts.push(format!("{} {old} -> {new}", interface.name));
        }
        Ok(format!("replace on node {name}: {}", parts.join(", ")))
    }
}

fn mac_swap(text: &str) -> Result<MacSwap, String> {
    let (old, new) = text.split_once('=').ok_or("write OLD=NEW")?;
    let mac = |text: &str| text.parse::<Mac>().map_err(|error| error.to_string());
    Ok(MacSwap { old: mac(old)?, new: mac(new)? })
}
