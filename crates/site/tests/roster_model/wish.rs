//! Requested writes and their plans: the real validation, the real import.

use hoist_model::{Name, Node, NodeId, NodeSpec, Provenance};
use hoist_site::plan::{Draft, Plan};
use hoist_site::reconcile::{Memory, Options, reconcile};
use hoist_site::source::{Field, ImportedNode, ImportedSet};
use hoist_site::{Resource, Roster};
use jiff::Timestamp;

/// The node whose removal is never requested.
pub(crate) const ANCHOR: u8 = 1;
/// Two nodes that want the same MAC.
pub(crate) const RIVALS: [u8; 2] = [2, 3];
/// Two nodes that come from the source.
pub(crate) const IMPORTED: [u8; 2] = [4, 5];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    /// Sets the node's role to the name of the write.
    Put(u8),
    Remove(u8),
    Import(Answer),
}

/// The answer of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// Everything it has.
    Complete,
    /// The first node only, although it has more: a broken connection, or one list out of four.
    Part,
    None,
}

pub(crate) fn id(number: u8) -> NodeId {
    NodeId::from_bits(u128::from(number))
}

pub(crate) fn name(number: u8) -> Name {
    format!("n{number}").parse().expect("a name")
}

pub(crate) fn source() -> Name {
    "smd".parse().expect("a name")
}

/// A write leaves its name as the node's role.
pub(crate) fn role(write: u8) -> String {
    format!("w{write}")
}

pub(crate) fn spec(number: u8, write: u8) -> NodeSpec {
    // The rivals share theirs.
    let mac = if number == RIVALS[1] { RIVALS[0] } else { number };
    let text = format!(
        r#"{{"role":"{}","interfaces":[{{"name":"eth0","mac":"02:00:00:00:00:{mac:02x}"}}]}}"#,
        role(write)
    );
    serde_json::from_str(&text).expect("a spec")
}

fn external_id(number: u8) -> String {
    format!("x{number}")
}

fn provenance(number: u8) -> Provenance {
    Provenance { source: source(), external_id: external_id(number), released: Vec::new() }
}

/// The site as it is when the model starts.
pub(crate) fn first_nodes() -> Vec<Resource> {
    let node = |number: u8| {
        let imported = IMPORTED.contains(&number);
        Resource::Node(std::sync::Arc::new(Node {
            id: id(number),
            name: name(number),
            spec: spec(number, 0),
            protection: None,
            maintenance: None,
            provenance: imported.then(|| Box::new(provenance(number))),
            generation: 0,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        }))
    };
    [ANCHOR].into_iter().chain(IMPORTED).map(node).collect()
}

/// The given nodes of the source, as an import.
pub(crate) fn imported(numbers: &[u8]) -> ImportedSet {
    let node = |number: &u8| ImportedNode {
        external_id: external_id(*number),
        name: Some(name(*number)),
        spec: spec(*number, 0),
        state: None,
    };
    ImportedSet {
        nodes: numbers.iter().map(node).collect(),
        fields: [Field::Interfaces].into_iter().collect(),
        ..ImportedSet::default()
    }
}

/// The plan of a write on this roster; `None` when it is refused.
pub(crate) fn plan(roster: &Roster, wish: Wish, write: u8) -> Option<Plan> {
    let mut draft = Draft::new(roster, Timestamp::UNIX_EPOCH);
    match wish {
        Wish::Put(number) => draft.put_node(id(number), name(number), spec(number, write)),
        Wish::Remove(number) => draft.remove_node(id(number)),
        Wish::Import(_) => unreachable!("imports are planned by `plan_import`"),
    }
    draft.finish().ok()
}

/// One cycle of the importer: compare, then draft the changes.
pub(crate) fn plan_import(
    roster: &Roster,
    said: &ImportedSet,
    memory: &Memory,
) -> Option<(Plan, Memory)> {
    let existing = roster.nodes().map(AsRef::as_ref);
    // With two nodes a tenth is none: as many as there are may go.
    let options = Options { max_prune_percent: 100, ..Options::default() };
    let outcome = reconcile(existing, &source(), said, memory, &options);
    let mut draft = Draft::new(roster, Timestamp::UNIX_EPOCH);
    for gone in &outcome.removals {
        draft.remove_node(*gone);
    }
    Some((draft.finish().ok()?, outcome.memory))
}
