//! What changes: a stream of lines, or one batch for those who poll.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::{WatchBatch, WatchLine};
use hoist_inventory::Roster;
use hoist_model::{Node, NodeId};
use http::{StatusCode, header};
use tokio::sync::watch::Receiver;

use super::nodes::{self, Chosen, ListQuery, bad_parameter};
use super::sight::Sight;
use super::{Inventory, NDJSON};
use crate::extract::Json;
use crate::failure::Failure;
use crate::principal::Principal;
use crate::route::Live;

/// A line at least this often: it shows that the stream lives, and where to resume.
const BOOKMARK_EVERY: Duration = Duration::from_secs(15);
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// Lines made at once.
const CHUNK: usize = 512;

/// Where a watch starts: `since`, or now.
fn start(roster: &Roster, since: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = since else { return Ok(roster.revision()) };
    let (incarnation, revision) = match text.split_once('.') {
        Some((incarnation, revision)) => (Some(incarnation), revision),
        None => (None, text),
    };
    let revision: u64 = revision.parse().map_err(|_| {
        bad_parameter("since", &format!("`{text}` is not a revision"), "give the last one you saw")
    })?;
    let other_site = incarnation.is_some_and(|known| known != roster.incarnation().as_str());
    if other_site || revision < roster.horizon() || revision > roster.revision() {
        return Err(gone());
    }
    Ok(revision)
}

fn gone() -> Failure {
    Failure::new(Code::Gone, "the changes since then are not kept any more")
        .with_remedy("list again and watch from the revision of that listing")
}

/// One watch in progress. It holds what is still to be told as numbers, not as nodes, so that a
/// slow reader costs little however much happens meanwhile.
struct Watcher {
    inventory: Inventory,
    principal: Principal,
    selector: Option<String>,
    changes: Receiver<u64>,
    /// Everything up to here has been told.
    seen: u64,
    /// The site at `seen`, for a principal that is limited to some nodes: it is told of nodes that
    /// leave its reach, and not even the id of others.
    before: Option<Roster>,
    /// What happened between `seen` and `until`, in order.
    pending: VecDeque<Step>,
    until: u64,
    incarnation: String,
    finished: bool,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    revision: u64,
    id: NodeId,
    removed: bool,
}

impl Watcher {
    fn new(
        inventory: &Inventory,
        principal: &Principal,
        query: &ListQuery,
    ) -> Result<Self, Failure> {
        // Before the start is read, so that nothing falls in between.
        let changes = inventory.registry.changes();
        let roster = inventory.roster();
        // Faults of the selector are told at once, not in the middle of the stream.
        Chosen::new(&roster, principal, query.selector.as_deref())?;
        let seen = start(&roster, query.since.as_deref())?;
        let is_limited = !Sight::new(principal, Verb::Read, &roster).is_all();
        let before = is_limited.then(|| inventory.registry.roster_at(seen).map_err(|_| gone()));
        Ok(Self {
            inventory: inventory.clone(),
            principal: principal.clone(),
            selector: query.selector.clone(),
            changes,
            seen,
            before: before.transpose()?,
            pending: VecDeque::new(),
            until: seen,
            incarnation: roster.incarnation().as_str().to_owned(),
            finished: false,
        })
    }

    /// Notes what happened after what was seen; `None` when that is too long ago.
    fn collect(&mut self, roster: &Roster) -> Option<()> {
        let (changed, gone) = roster.changes_since(self.seen)?;
        if let Some(before) = &mut self.before {
            *before = self.inventory.registry.roster_at(self.seen).ok()?;
        }
        let put = |node: &&Arc<Node>| Step { revision: node.revision, id: node.id, removed: false };
        let gone = gone.iter().map(|t| Step { revision: t.revision, id: t.node, removed: true });
        let mut steps: Vec<Step> = changed.iter().map(put).chain(gone).collect();
        steps.sort_by_key(|step| step.revision);
        self.pending = steps.into();
        self.until = roster.revision();
        Some(())
    }

    /// The next lines of what was collected, as things are now; `None` when that cannot be told.
    fn take(&mut self, roster: &Roster, count: usize) -> Option<Vec<WatchLine>> {
        if roster.incarnation().as_str() != self.incarnation {
            return None;
        }
        let chosen = Chosen::new(roster, &self.principal, self.selector.as_deref()).ok()?;
        let chosen_before = self.before.as_ref().map(|before| {
            let selector = self.selector.as_deref();
            (before, Chosen::new(before, &self.principal, selector).ok())
        });
        let was_told = |id: NodeId| match &chosen_before {
            None => true,
            Some((before, chosen)) => before
                .by_id(id)
                .zip(chosen.as_ref())
                .is_some_and(|(node, chosen)| chosen.contains(before, node)),
        };
        let count = count.min(self.pending.len());
        let mut lines = Vec::with_capacity(count);
        for Step { revision, id, removed } in self.pending.drain(..count) {
            if removed {
                lines.extend(was_told(id).then_some(WatchLine::Delete { revision, id }));
                continue;
            }
            // One that has changed again comes again later, with its newer revision.
            let Some(node) = roster.by_id(id).filter(|node| node.revision == revision) else {
                continue;
            };
            // A node that left the selected set is gone, as far as this watcher is concerned.
            if chosen.contains(roster, node) {
                let node = nodes::object(&self.inventory, roster, node, false);
                lines.push(WatchLine::Put { revision, node: Box::new(node) });
            } else if was_told(id) {
                lines.push(WatchLine::Delete { revision, id });
            }
        }
        if self.pending.is_empty() {
            self.seen = self.until;
        }
        Some(lines)
    }

    /// The last line: where the reader stood.
    fn finish(&mut self) -> Vec<WatchLine> {
        self.finished = true;
        vec![WatchLine::Bookmark { revision: self.seen }]
    }

    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<Vec<WatchLine>> {
        if self.finished {
            return None;
        }
        let stopping = self.inventory.chassis.tasks.stopping().clone();
        loop {
            if stopping.is_cancelled() {
                return Some(self.finish());
            }
            self.changes.mark_unchanged();
            let roster = self.inventory.roster();
            if self.pending.is_empty() && roster.revision() != self.seen {
                // A reader that was too slow for the history has to list again.
                if self.collect(&roster).is_none() {
                    return Some(self.finish());
                }
                if self.pending.is_empty() {
                    self.seen = self.until;
                    return Some(vec![WatchLine::Bookmark { revision: self.seen }]);
                }
            }
            if !self.pending.is_empty() {
                let Some(mut lines) = self.take(&roster, CHUNK) else {
                    return Some(self.finish());
                };
                if self.pending.is_empty() {
                    lines.push(WatchLine::Bookmark { revision: self.seen });
                }
                if lines.is_empty() {
                    continue;
                }
                return Some(lines);
            }
            tokio::select! {
                () = stopping.cancelled() => return Some(self.finish()),
                changed = self.changes.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep(BOOKMARK_EVERY) => {
                    return Some(vec![WatchLine::Bookmark { revision: self.seen }]);
                }
            }
        }
    }
}

/// `?watch=1`. A slow reader holds back only itself: lines are made when it asks for them.
pub(super) fn stream(
    inventory: &Inventory,
    principal: &Principal,
    query: &ListQuery,
) -> Result<Response, Failure> {
    let watcher = Watcher::new(inventory, principal, query)?;
    let chunks = stream::unfold(watcher, |mut watcher| async move {
        let lines = watcher.next().await?;
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, &line).expect("lines are plain values");
            text.push(b'\n');
        }
        Some((Ok::<_, std::convert::Infallible>(text), watcher))
    });
    let body = Body::from_stream(chunks.fuse());
    Ok(([(header::CONTENT_TYPE, NDJSON)], Extension(Live), body).into_response())
}

/// `?since=R&wait=30s`: the poor man's watch.
pub(super) async fn poll(
    inventory: &Inventory,
    principal: &Principal,
    query: &ListQuery,
) -> Result<Response, Failure> {
    let wait = query.wait.as_deref().unwrap_or("0s");
    let wait: Duration = humantime::parse_duration(wait).map_err(|_| {
        bad_parameter("wait", &format!("`{wait}` is not a duration"), "write it like `30s`")
    })?;
    let mut watcher = Watcher::new(inventory, principal, query)?;
    let stopping = inventory.chassis.tasks.stopping().clone();
    let deadline = tokio::time::Instant::now() + wait.min(LONGEST_WAIT);
    loop {
        watcher.changes.mark_unchanged();
        let roster = inventory.roster();
        if roster.revision() != watcher.seen {
            watcher.collect(&roster).ok_or_else(gone)?;
            let lines = watcher.take(&roster, usize::MAX).ok_or_else(gone)?;
            if !lines.is_empty() {
                return Ok(Json(WatchBatch { revision: watcher.seen, lines }).into_response());
            }
        }
        tokio::select! {
            () = stopping.cancelled() => return Ok(StatusCode::NOT_MODIFIED.into_response()),
            waited = tokio::time::timeout_at(deadline, watcher.changes.changed()) => {
                if waited.is_err() {
                    return Ok(StatusCode::NOT_MODIFIED.into_response());
                }
            }
        }
    }
}
