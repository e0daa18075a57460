//! What changes: a stream of lines, or one batch for those who poll.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hoist_api::Code;
use hoist_api::inventory::{WatchBatch, WatchLine};
use hoist_inventory::Roster;
use http::{StatusCode, header};
use tokio::sync::watch::Receiver;

use super::nodes::{self, Chosen, ListQuery, bad_parameter};
use super::{Inventory, NDJSON};
use crate::extract::Json;
use crate::failure::Failure;
use crate::principal::Principal;
use crate::route::Live;

/// A line at least this often: it shows that the stream lives, and where to resume.
const BOOKMARK_EVERY: Duration = Duration::from_secs(15);
const LONGEST_WAIT: Duration = Duration::from_mins(5);

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

/// One watch in progress.
struct Watcher {
    inventory: Inventory,
    principal: Principal,
    selector: Option<String>,
    changes: Receiver<u64>,
    seen: u64,
    incarnation: String,
    finished: bool,
}

impl Watcher {
    fn new(
        inventory: &Inventory,
        principal: &Principal,
        query: &ListQuery,
    ) -> Result<Self, Failure> {
        let roster = inventory.roster();
        // Faults of the selector are told at once, not in the middle of the stream.
        Chosen::new(&roster, principal, query.selector.as_deref())?;
        Ok(Self {
            inventory: inventory.clone(),
            principal: principal.clone(),
            selector: query.selector.clone(),
            // Before the start is read, so that nothing falls in between.
            changes: inventory.registry.changes(),
            seen: start(&roster, query.since.as_deref())?,
            incarnation: roster.incarnation().as_str().to_owned(),
            finished: false,
        })
    }

    /// The lines after what was seen, or `None` when that is too long ago.
    fn lines(&mut self, roster: &Arc<Roster>) -> Option<Vec<WatchLine>> {
        if roster.incarnation().as_str() != self.incarnation {
            return None;
        }
        let (changed, gone) = roster.changes_since(self.seen)?;
        let chosen = Chosen::new(roster, &self.principal, self.selector.as_deref()).ok()?;
        let mut lines: Vec<(u64, WatchLine)> = Vec::with_capacity(changed.len() + gone.len());
        for node in changed {
            let (revision, id) = (node.revision, node.id);
            // A node that left the selected set is gone, as far as this watcher is concerned.
            let line = if chosen.contains(roster, node) {
                let node = nodes::object(&self.inventory, roster, node, false);
                WatchLine::Put { revision, node: Box::new(node) }
            } else {
                WatchLine::Delete { revision, id }
            };
            lines.push((revision, line));
        }
        for tombstone in gone {
            let line = WatchLine::Delete { revision: tombstone.revision, id: tombstone.node };
            lines.push((tombstone.revision, line));
        }
        lines.sort_by_key(|(revision, _)| *revision);
        self.seen = roster.revision();
        Some(lines.into_iter().map(|(_, line)| line).collect())
    }

    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<Vec<WatchLine>> {
        if self.finished {
            return None;
        }
        let stopping = self.inventory.chassis.tasks.stopping().clone();
        loop {
            self.changes.mark_unchanged();
            let roster = self.inventory.roster();
            if roster.revision() != self.seen {
                let Some(mut lines) = self.lines(&roster) else {
                    // The reader was too slow for the history: tell where it stood, and end.
                    self.finished = true;
                    return Some(vec![WatchLine::Bookmark { revision: self.seen }]);
                };
                lines.push(WatchLine::Bookmark { revision: self.seen });
                return Some(lines);
            }
            tokio::select! {
                () = stopping.cancelled() => {
                    self.finished = true;
                    return Some(vec![WatchLine::Bookmark { revision: self.seen }]);
                }
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
    let deadline = tokio::time::Instant::now() + wait.min(LONGEST_WAIT);
    loop {
        watcher.changes.mark_unchanged();
        let roster = inventory.roster();
        if roster.revision() != watcher.seen {
            let lines = watcher.lines(&roster).ok_or_else(gone)?;
            if !lines.is_empty() {
                return Ok(Json(WatchBatch { revision: watcher.seen, lines }).into_response());
            }
        }
        if tokio::time::timeout_at(deadline, watcher.changes.changed()).await.is_err() {
            return Ok(StatusCode::NOT_MODIFIED.into_response());
        }
    }
}
