//! Changing the inventory. Every handler drafts a change; the registry does the rest.

mod bulk;
mod node;
mod rest;

use axum::extract::FromRequestParts;
use hoist_api::admin::Verb;
use hoist_api::inventory::{AppliedItem, ApplyResult, FieldChange, ItemChange, Node};
use hoist_model::NodeId;
use hoist_site::Roster;
use hoist_site::plan::{Draft, Item, SiteChange};
use hoist_site::registry::{Terms, WriteError, WriteOutcome};
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;

use super::refusal::write_failure;
use super::{Inventory, etag, nodes};
use crate::authorisation::ScopedCommit;
use crate::authorisation::Sight;
use crate::node_lookup::no_such_node;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::Flag;
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;

pub(crate) use bulk::read_documents;
pub(super) use bulk::{apply, delete, renew};
pub(super) use node::{
    create_node, delete_node, end_maintenance, maintain, protect, put_node, put_node_by, put_state,
    release, swap, unprotect,
};
pub(super) use rest::{
    delete_group, delete_network, delete_partition, put_group, put_network, put_partition,
};

/// Items listed in an answer; the counts are always whole.
const MAX_ITEMS: usize = 10_000;

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct WriteQuery {
    #[serde(default)]
    dry_run: Flag,
    affects: Option<usize>,
}

impl WriteQuery {
    pub(crate) fn terms(self) -> Terms {
        let Self { dry_run, affects } = self;
        Terms { dry_run: dry_run.0, affects, ..Terms::default() }
    }
}

/// Extractor of routes that write: the principal that writes, and its entry of the audit log.
pub(super) struct Writer {
    inventory: Inventory,
    principal: Principal,
    audit: AuditContext,
}

impl FromRequestParts<Inventory> for Writer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, inventory: &Inventory) -> Result<Self, Failure> {
        let Ok(principal) = Principal::from_request_parts(parts, inventory).await;
        let audit = AuditContext::from_request_parts(parts, inventory).await?;
        Ok(Self { inventory: inventory.clone(), principal, audit })
    }
}

impl Writer {
    async fn write(
        &self,
        terms: Terms,
        draft: impl FnMut(&mut Draft<'_>) -> Result<(), WriteError> + Send,
    ) -> Result<WriteOutcome, Failure> {
        let chassis = &self.inventory.chassis;
        let scoped = ScopedCommit::new(&chassis.audit, self.principal.clone(), &self.audit);
        let written = self.inventory.registry.write(terms, &scoped, draft).await;
        let written = written.map_err(write_failure)?;
        if !terms.dry_run && !written.plan.is_empty() {
            let told = serde_json::json!({
                "revision": written.revision,
                "created": written.plan.count(SiteChange::Created),
                "changed": written.plan.count(SiteChange::Changed),
                "removed": written.plan.count(SiteChange::Removed),
                "by": self.principal.who().to_string(),
            });
            chassis.events.publish("inventory.changed", "site", told);
        }
        Ok(written)
    }

    /// A node that the caller can neither see nor change is not there, as far as they can tell.
    fn check_sight(&self, id: NodeId) -> Result<(), Failure> {
        let roster = self.inventory.roster();
        match roster.by_id(id) {
            Some(node) if self.sight(&roster).reaches(&roster, node) => Ok(()),
            _ => Err(no_such_node(format!("`{id}`"))),
        }
    }

    /// The nodes that the caller can see or change.
    fn sight(&self, roster: &Roster) -> Sight {
        let of = |verb| Sight::new(&self.principal, verb, roster);
        of(Verb::Read).or(of(Verb::Write))
    }

    /// The node as it is after a write; in a dry run, as it would be.
    fn node_after(&self, written: &WriteOutcome, id: NodeId) -> Result<(Node, String), Failure> {
        let roster = self.inventory.roster();
        let planned = written.plan.puts.iter().find_map(|put| match put {
            hoist_site::Resource::Node(node) if node.id == id => Some(node),
            _ => None,
        });
        let node = planned.or_else(|| roster.by_id(id)).ok_or_else(|| no_such_node(id))?;
        let tag = etag::of_node(&roster, id, node.revision);
        Ok((nodes::object(&self.inventory, &roster, node, false), tag))
    }
}

/// An object that is written only in the version that the caller has seen.
fn check_version(
    headers: &HeaderMap,
    draft: &Draft<'_>,
    inventory: &Inventory,
    id: NodeId,
) -> Result<(), WriteError> {
    let roster = inventory.roster();
    let tag = draft.node(id).map(|node| etag::of_node(&roster, id, node.revision));
    etag::check(headers, tag.as_deref())
}

fn applied(written: &WriteOutcome, dry_run: bool) -> ApplyResult {
    let plan = &written.plan;
    let differing = plan.items.iter().filter(|item| item.change != SiteChange::Unchanged);
    let truncated = differing.clone().count() > MAX_ITEMS;
    ApplyResult {
        revision: written.revision,
        dry_run,
        created: plan.count(SiteChange::Created),
        changed: plan.count(SiteChange::Changed),
        unchanged: plan.count(SiteChange::Unchanged),
        removed: plan.count(SiteChange::Removed),
        affected: plan.affected.len(),
        needs_affects: written.needs_affects,
        items: differing.take(MAX_ITEMS).filter_map(item).collect(),
        truncated,
        warnings: plan.warnings.clone(),
    }
}

fn item(item: &Item) -> Option<AppliedItem> {
    let change = match item.change {
        SiteChange::Created => ItemChange::Created,
        SiteChange::Changed => ItemChange::Changed,
        SiteChange::Removed => ItemChange::Removed,
        SiteChange::Unchanged => return None,
    };
    let field = |field: &hoist_site::plan::FieldChange| FieldChange {
        at: field.at.clone(),
        from: field.from.clone(),
        to: field.to.clone(),
    };
    Some(AppliedItem {
        kind: item.kind.clone(),
        name: item.name.clone(),
        change,
        fields: item.fields.iter().map(field).collect(),
    })
}
