//! `hoist node remove`.

use clap::Args;
use hoist_model::{Exit, Kind};

use super::Shell;
use crate::commands::selector;
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::node_ref;

/// Remove nodes
#[derive(Debug, Args)]
#[command(
    visible_alias = "rm",
    after_help = "Examples:\n  hoist node remove n1 n2\n  \
        hoist node remove -l 'label:rack=7' --affects 64 --dry-run"
)]
pub(super) struct RemoveArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE", required_unless_present = "selector")]
    nodes: Vec<String>,

    /// All nodes of a selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,

    #[command(flatten)]
    write: WriteArgs,
}

impl RemoveArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let words: Vec<String> = self.selector.into_iter().collect();
        let selector = selector(&words)?;
        let client = shell.client()?;
        let nodes = match selector {
            Some(selector) => client.all_nodes(Some(&selector)).await?.1,
            None => node_ref::find_all(&client, &self.nodes).await?,
        };
        if nodes.is_empty() {
            shell.printer.note("no nodes");
            return Ok(Exit::Done);
        }
        let target = |node| node_ref::name_of(node).map(|name| format!("{}/{name}", Kind::Node));
        let targets = nodes.iter().map(target).collect::<Result<_, _>>()?;
        edit::delete(shell, &client, targets, &self.write).await
    }
}
