//! What documents would mean for booting, before they are applied.

use axum::extract::{Request, State};
use hoist_api::boot::{BootChange, BootChangeKind, BootDiff};
use hoist_boot::diff::{Difference, Kind, Sides};
use hoist_model::Name;
use hoist_site::registry::{Commit, Terms, mint_id};
use serde::Deserialize;

use super::Boot;
use crate::inventory::{bad_parameter, read_documents, write_failure};
use hoist_chassis::extract::{Flag, Json, Query};
use hoist_chassis::failure::Failure;

/// Nodes listed in an answer; the counts are always whole.
const MAX_LISTED: usize = 10_000;

#[derive(Debug, Deserialize)]
pub(super) struct DiffQuery {
    set: Option<Name>,
    #[serde(default)]
    prune: Flag,
}

pub(super) async fn diff(
    State(boot): State<Boot>,
    Query(query): Query<DiffQuery>,
    request: Request,
) -> Result<Json<BootDiff>, Failure> {
    let prune = query.prune.0;
    if prune && query.set.is_none() {
        return Err(bad_parameter("prune", "it needs a set", "name it with `set`"));
    }
    let mut documents = Some(read_documents(request).await?);
    let before = boot.registry.roster();
    let terms = Terms { dry_run: true, expect: Some(before.revision()), ..Terms::default() };
    let commit = boot.registry.store();
    let written = boot
        .registry
        .write(terms, commit as &dyn Commit, |draft| {
            draft.apply(documents.take().unwrap_or_default(), &mut mint_id);
            if let Some(set) = &query.set {
                draft.record_set(set, prune);
            }
            Ok(())
        })
        .await
        .map_err(write_failure)?;
    let after = written.plan.outcome(&before);
    let revision = before.revision();
    let differences = Sides::new(&boot.booter, before, after).all();
    let count = |kind| differences.iter().filter(|difference| difference.kind == kind).count();
    Ok(Json(BootDiff {
        revision,
        other: count(Kind::Other),
        loses: count(Kind::Loses),
        gains: count(Kind::Gains),
        line: count(Kind::Line),
        truncated: differences.len() > MAX_LISTED,
        nodes: differences.into_iter().take(MAX_LISTED).map(change).collect(),
    }))
}

fn change(difference: Difference) -> BootChange {
    let change = match difference.kind {
        Kind::Other => BootChangeKind::Other,
        Kind::Loses => BootChangeKind::Loses,
        Kind::Gains => BootChangeKind::Gains,
        Kind::Line => BootChangeKind::Line,
    };
    BootChange { node: difference.name, change, from: difference.from, to: difference.to }
}
