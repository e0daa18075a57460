//! `hoist node set`.

use std::collections::HashMap;

use clap::Args;
use hoist_model::{Document, Exit};

use super::Shell;
use super::spec::SpecArgs;
use crate::commands::{get, selector};
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::input::Documents;
use crate::node_ref;

/// Change nodes; other fields stay unchanged
///
/// All nodes are changed in one transaction. If the site changes in between, the change is computed
/// again.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist node set n1 --role login --label rack=7 --label old-\n  \
    hoist node set n1 n2 --group +gpu --group -cpu --dry-run\n  \
    hoist node set -l 'label:rack=7' --disable --affects 64"
)]
pub(super) struct SetArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE", required_unless_present = "selector")]
    nodes: Vec<String>,

    /// All nodes of a selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,

    #[command(flatten)]
    spec: SpecArgs,

    #[command(flatten)]
    write: WriteArgs,
}

impl SetArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if self.spec.is_empty() {
            return Err(Failure::usage("no change was given")
                .with_hint("`hoist node set --help` lists what can be changed"));
        }
        let words: Vec<String> = self.selector.into_iter().collect();
        let selector = selector(&words)?;
        let client = shell.client()?;
        edit::modify(shell, &client, &self.write, async || {
            let nodes = match &selector {
                Some(selector) => client.all_nodes(Some(selector)).await?.1,
                None => node_ref::find_all(&client, &self.nodes).await?,
            };
            if nodes.is_empty() {
                return Err(Failure::missing("a node that matches the selector"));
            }
            let mut boots = HashMap::new();
            for node in nodes {
                let name = node_ref::name_of(&node)?.clone();
                boots.insert(name, node.boot.and_then(|boot| boot.interface));
            }
            let names: Vec<_> = boots.keys().cloned().collect();
            let mut changed = Vec::with_capacity(names.len());
            for document in get::node_documents(&client, &names).await? {
                if let Document::Node(name, spec) = document {
                    let boots = boots.get(&name).and_then(Option::as_ref);
                    let spec = self.spec.onto(&name, *spec, boots)?;
                    changed.push(Document::node(name, spec));
                }
            }
            Documents::of(&changed)
        })
        .await
    }
}
