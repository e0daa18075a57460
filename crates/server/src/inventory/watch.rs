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
use hoist_model::{Node, NodeId};
use hoist_site::Roster;
use http::{StatusCode, header};
use tokio::sync::watch::Receiver;

use super::nodes::{self, ListQuery, NodeQuery, bad_parameter};
use super::{Inventory, NDJSON};
use crate::authorisation::Sight;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Live;

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
    let other_site = match incarnation {
        Some(known) => known != roster.incarnation().as_str(),
        // A plain number from before the restore would be taken for one of now.
        None => roster.incarnation().is_restored() && revision > 0,
    };
    if other_site || revision < roster.horizon() || revision > roster.revision() {
        return Err(gone());
    }
    Ok(revision)
}

/// Where a reader goes on who has seen everything up to `revision`: a value for `since`.
pub(super) fn resume_point(incarnation: &str, revision: u64) -> String {
    format!("{incarnation}.{revision}")
}

fn gone() -> Failure {
    Failure::new(Code::Gone, "the changes since then are not kept any more")
        .with_remedy("list again and watch from the `since` of that listing")
}

/// One watch in progress. It holds pending changes as numbers, not as nodes, so that a slow reader
/// costs little memory.
struct Watcher {
    inventory: Inventory,
    principal: Principal,
    selector: Option<String>,
    changes: Receiver<u64>,
    /// Everything up to here has been told.
    seen: u64,
    /// The site at `seen`, for a watch of some nodes: it tells the deletion of nodes that it told
    /// of before, and not even the ids of others.
    before: Option<Roster>,
    /// It is about some nodes only, and must not tell of others.
    is_partial: bool,
    /// Changes between `seen` and `until`, in order.
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
        // A selector error must be reported before the stream starts.
        NodeQuery::new(&roster, principal, query.selector.as_deref())?;
        let seen = start(&roster, query.since.as_deref())?;
        let is_limited = !Sight::new(principal, Verb::Read, &roster).is_all();
        let is_partial = is_limited || query.selector.is_some();
        let mut watcher = Self {
            inventory: inventory.clone(),
            principal: principal.clone(),
            selector: query.selector.clone(),
            changes,
            seen,
            before: None,
            is_partial,
            pending: VecDeque::new(),
            until: seen,
            incarnation: roster.incarnation().as_str().to_owned(),
            finished: false,
        };
        watcher.look_back().ok_or_else(gone)?;
        Ok(watcher)
    }

    /// Finds the site at `seen`; `None` if it is needed and no longer known, because the history of
    /// the roster begins with this process. The reader must list again then.
    fn look_back(&mut self) -> Option<()> {
        if self.is_partial {
            self.before = Some(self.inventory.registry.roster_at(self.seen).ok()?);
        }
        Some(())
    }

    /// Collects the changes after `seen`; `None` if they are no longer known.
    fn collect(&mut self, roster: &Roster) -> Option<()> {
        let (changed, gone) = roster.changes_since(self.seen)?;
        self.look_back()?;
        let put = |node: &&Arc<Node>| Step { revision: node.revision, id: node.id, removed: false };
        let gone = gone.iter().map(|t| Step { revision: t.revision, id: t.node, removed: true });
        let mut steps: Vec<Step> = changed.iter().map(put).chain(gone).collect();
        steps.sort_by_key(|step| step.revision);
        self.pending = steps.into();
        self.until = roster.revision();
        Some(())
    }

    /// The next lines of the collected changes, in their current state; `None` if that is unknown.
    fn take(&mut self, roster: &Roster, count: usize) -> Option<Vec<WatchLine>> {
        if roster.incarnation().as_str() != self.incarnation {
            return None;
        }
        let chosen = NodeQuery::new(roster, &self.principal, self.selector.as_deref()).ok()?;
        let chosen_before = self.before.as_ref().map(|before| {
            let selector = self.selector.as_deref();
            (before, NodeQuery::new(before, &self.principal, selector).ok())
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
        vec![self.bookmark()]
    }

    fn bookmark(&self) -> WatchLine {
        let since = resume_point(&self.incarnation, self.seen);
        WatchLine::Bookmark { revision: self.seen, since }
    }

    /// The next lines to send; `None` ends the stream.
    async fn next(&mut self) -> Option<Vec<WatchLine>> {
        if self.finished {
            return None;
        }
        let stopping = self.inventory.chassis.tasks.stopping().clone();
        // Silent changes must not put the bookmark off.
        let bookmark_due = tokio::time::Instant::now() + BOOKMARK_EVERY;
        loop {
            if stopping.is_cancelled() {
                return Some(self.finish());
            }
            self.changes.mark_unchanged();
            let roster = self.inventory.roster();
            // The revisions of a restored site are not comparable.
            if roster.incarnation().as_str() != self.incarnation {
                return Some(self.finish());
            }
            if self.pending.is_empty() && roster.revision() != self.seen {
                // A reader that was too slow for the history has to list again.
                if self.collect(&roster).is_none() {
                    return Some(self.finish());
                }
                if self.pending.is_empty() {
                    self.seen = self.until;
                    if !self.is_partial {
                        return Some(vec![self.bookmark()]);
                    }
                }
            }
            if !self.pending.is_empty() {
                let Some(mut lines) = self.take(&roster, CHUNK) else {
                    return Some(self.finish());
                };
                // A bookmark alone would tell a partial watch of every change of other nodes.
                if self.pending.is_empty() && !(self.is_partial && lines.is_empty()) {
                    lines.push(self.bookmark());
                }
                if lines.is_empty() {
                    continue;
                }
                return Some(lines);
            }
            tokio::select! {
                () = stopping.cancelled() => return Some(self.finish()),
                changed = self.changes.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep_until(bookmark_due) => {
                    return Some(vec![self.bookmark()]);
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
        if roster.incarnation().as_str() != watcher.incarnation {
            return Err(gone());
        }
        if roster.revision() != watcher.seen {
            watcher.collect(&roster).ok_or_else(gone)?;
            let lines = watcher.take(&roster, usize::MAX).ok_or_else(gone)?;
            if !lines.is_empty() {
                let since = resume_point(&watcher.incarnation, watcher.seen);
                let batch = WatchBatch { revision: watcher.seen, since, lines };
                return Ok(Json(batch).into_response());
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
