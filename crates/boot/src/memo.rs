//! The choices of ordinary nodes, computed ahead of requests. Matching a selector reads fields all
//! over a node's record, which are in no CPU cache when a whole site asks at once. This table is.

use std::sync::Arc;

use hashbrown::HashMap;
use hoist_model::{BootConfig, Mac, Node, NodeId};
use hoist_site::Roster;

use crate::request::{BootRequest, Who};
use crate::select::{BootContext, Choice, Source, Table};
use crate::skeleton::Seed;

/// By the MACs that nodes boot with. Holds where nothing but the table decides: for nodes without a
/// boot state, at sites without BSS records.
#[derive(Debug)]
pub(crate) struct Memo(HashMap<Mac, Entry>);

/// Numbers in bytes, so that entries are small.
#[derive(Debug)]
struct Entry {
    node: [u8; 16],
    /// Its place in the table.
    config: u32,
    /// Where the node finds its documents, if the configuration leaves that to the provider.
    seed: Option<Seed>,
}

impl Memo {
    pub(crate) fn build(
        roster: &Arc<Roster>,
        table: &Table,
        seed: impl Fn(&Node, &BootConfig) -> Option<Seed>,
    ) -> Self {
        let entry = |node: &Arc<Node>| {
            let mac = roster.boot(node)?.mac;
            let at = usual(roster, table, node, mac)?;
            let seed = seed(node, table.config(at));
            let config = u32::try_from(at).ok()?;
            Some((mac, Entry { node: node.id.to_bits().to_ne_bytes(), config, seed }))
        };
        let mut entries = HashMap::with_capacity(roster.len());
        entries.extend(roster.nodes().filter_map(entry));
        Self(entries)
    }

    /// The node with this MAC, the place of the configuration it boots, and its seed.
    pub(crate) fn get(&self, mac: Mac) -> Option<(NodeId, usize, Option<&Seed>)> {
        let Entry { node, config, seed } = self.0.get(&mac)?;
        let node = NodeId::from_bits(u128::from_ne_bytes(*node));
        Some((node, usize::try_from(*config).ok()?, seed.as_ref()))
    }
}

/// The configuration that a node gets every time, without leaving anything to remember.
fn usual(roster: &Roster, table: &Table, node: &Node, mac: Mac) -> Option<usize> {
    if !node.spec.enabled {
        return None;
    }
    let key = Who::Mac(mac, None).key();
    let choice = table.best(roster, node, key.as_ref(), BootContext::default())?;
    match &choice.source {
        Source::Config(config) if is_usual(&choice) => table.place_of(config),
        Source::Config(_) | Source::Bss(_) => None,
    }
}

fn is_usual(choice: &Choice) -> bool {
    choice.boots() && !choice.is_for_one_boot() && !choice.installs()
}

/// Who asks, if the answer may be known ahead.
pub(crate) fn usual_asker(roster: &Roster, asked: &BootRequest<'_>) -> Option<Mac> {
    match asked.who {
        Who::Mac(mac, _) if !asked.json && !roster.has_bss_records() => Some(mac),
        Who::Mac(..) | Who::Name(_) | Who::Nid(_) => None,
    }
}
