//! Nodes that a command is about: named one by one, or by a selector.

use clap::Args;
use hoist_api::client::Client;
use hoist_api::inventory::Node;

use crate::commands::selector;
use crate::failure::Failure;
use crate::node_ref;

#[derive(Debug, Args)]
pub(crate) struct ChosenArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE", required_unless_present = "selector")]
    nodes: Vec<String>,

    /// All nodes of a selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
}

impl ChosenArgs {
    pub(crate) async fn find(self, client: &Client) -> Result<Vec<Node>, Failure> {
        let words: Vec<String> = self.selector.into_iter().collect();
        match selector(&words)? {
            Some(selector) => Ok(client.all_nodes(Some(&selector)).await?.1),
            None => node_ref::find_all(client, &self.nodes).await,
        }
    }
}
