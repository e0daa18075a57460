//! Nodes as operators name them: by id, by the start of an id, or by name.

use std::collections::BTreeSet;

use hoist_api::Code;
use hoist_chassis::failure::Failure;
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::Standing;

use super::snapshot::Snapshot;

/// Fewer digits are more likely a typing error than a choice.
const MIN_DIGITS: usize = 4;

/// Which records a name is looked up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    Members,
    Pending,
    All,
}

impl Snapshot {
    /// The one node that `text` means.
    pub(super) fn find(&self, text: &str, among: Among) -> Result<NodeId, Failure> {
        let text = text.to_ascii_lowercase();
        let named = self.named(&text, among);
        let found = if named.is_empty() { self.starting_with(&text, among) } else { named };
        let mut nodes = found.iter();
        match (nodes.next(), nodes.next()) {
            (Some(node), None) => Ok(*node),
            (Some(_), Some(_)) => {
                let ids: Vec<String> = found.iter().map(|node| node.short()).collect();
                let detail = format!("`{text}` means several nodes: {}", ids.join(", "));
                Err(Failure::new(Code::Ambiguous, detail).with_remedy("give more of the id"))
            }
            (None, _) => Err(not_found(&text, among)),
        }
    }

    /// A name belongs to one node that may connect. Those that are gone are found by name if no
    /// other node has it now.
    fn named(&self, name: &str, among: Among) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        if among != Among::Members {
            let pending = self.membership.pending.values();
            let fitting = pending.filter(|pending| pending.registration.name.as_str() == name);
            found.extend(fitting.map(|pending| pending.registration.node));
        }
        if among != Among::Pending {
            let members = self.membership.members.values();
            let (present, gone): (Vec<_>, Vec<_>) = members
                .filter(|member| member.registration.name.as_str() == name)
                .partition(|member| member.may_connect());
            let members = if present.is_empty() { gone } else { present };
            found.extend(members.into_iter().map(|member| member.registration.node));
        }
        found
    }

    fn starting_with(&self, digits: &str, among: Among) -> BTreeSet<NodeId> {
        if digits.len() < MIN_DIGITS {
            return BTreeSet::new();
        }
        let membership = &self.membership;
        let members = membership.members.keys().filter(|_| among != Among::Pending);
        let pending = membership.pending.keys().filter(|_| among != Among::Members);
        members
            .chain(pending)
            .filter(|node| node.to_string().starts_with(digits))
            .copied()
            .collect()
    }

    /// Members that were there and are not replaced: those that lists count on.
    pub(super) fn is_gone(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| {
            matches!(member.standing, Standing::Left | Standing::Replaced { .. })
        })
    }
}

fn not_found(text: &str, among: Among) -> Failure {
    let (what, command) = match among {
        Among::Members => ("member", "hoist cluster nodes"),
        Among::Pending => ("request to join", "hoist cluster pending"),
        Among::All => ("member or request to join", "hoist cluster nodes"),
    };
    let detail = format!("no {what} has the name or id `{text}`");
    Failure::new(Code::NotFound, detail).with_remedy(format!(
        "`{command}` shows all; an id may be shortened to {MIN_DIGITS} digits"
    ))
}
