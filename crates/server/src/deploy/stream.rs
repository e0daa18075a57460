//! Events of a run after any record: as server-sent events, or as one batch for polling clients.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hoist_api::Code;
use hoist_api::deploy::{RunEvent, RunEvents, RunState};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::entry::Entry;
use super::{Deploy, READ};
use hoist_chassis::extract::{Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;

/// Events in one batch.
const BATCH: usize = 1000;
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// How often the store is asked for the records of a run of another controller.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Vec<Route<Deploy>> {
    vec![
        Route::get("/deploy/v1/runs/{run}/events", READ, events)
            .summary("Records of a run, as server-sent events or in batches")
            .query("after", "number of the last event seen; `Last-Event-ID` wins")
            .query(
                "wait",
                "without server-sent events: answer when there is one, or after this long",
            )
            .streaming()
            .gives::<RunEvents>(200)
            .gives_media(200, "text/event-stream"),
    ]
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    after: Option<u64>,
    wait: Option<String>,
}

async fn events(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accepts.is_some_and(|accept| accept.contains("text/event-stream")) {
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let after = last.or(query.after).unwrap_or(0);
        return Ok(server_sent(&deploy, id, after));
    }
    let wait = query.wait.as_deref().unwrap_or("0s");
    let wait = humantime::parse_duration(wait).map_err(|_| {
        Failure::new(Code::BadParameter, format!("`wait`: `{wait}` is not a duration"))
            .with_remedy("write it like `30s`")
    })?;
    let after = query.after.unwrap_or(0);
    let rests = |found: &RunEvents| found.rests;
    let batch = batch(&deploy, &id, after, wait.min(LONGEST_WAIT), rests).await?;
    Ok(Json(batch).into_response())
}

/// The events after `after`; waits for the first one unless the run rests.
async fn batch(
    deploy: &Deploy,
    id: &str,
    after: u64,
    wait: Duration,
    is_over: fn(&RunEvents) -> bool,
) -> Result<RunEvents, Failure> {
    let deadline = tokio::time::Instant::now() + wait;
    let stopping = deploy.chassis.tasks.stopping().clone();
    loop {
        let live = deploy.runs.live(id);
        let mut count = live.as_ref().map(|entry| entry.count());
        if let Some(count) = &mut count {
            count.mark_unchanged();
        }
        let found = look(deploy, live, id, after).await?;
        if !found.items.is_empty() || is_over(&found) {
            return Ok(found);
        }
        let changed = async {
            match &mut count {
                Some(count) => {
                    // An error means that its thread is gone: look again.
                    let _ = count.changed().await;
                }
                // Another controller has the run; its records come to the store.
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        tokio::select! {
            () = stopping.cancelled() => return Ok(found),
            waited = tokio::time::timeout_at(deadline, changed) => {
                if waited.is_err() {
                    return Ok(found);
                }
            }
        }
    }
}

async fn look(
    deploy: &Deploy,
    live: Option<Arc<Entry>>,
    id: &str,
    after: u64,
) -> Result<RunEvents, Failure> {
    let id = id.to_owned();
    let looked = deploy.blocking(move |runs| {
        let view = match live {
            Some(entry) => entry.view(),
            None => runs.view(&id)?,
        };
        let items = view.events(after, BATCH);
        let last = view.records.len() as u64;
        Ok(RunEvents { items, last, state: view.state(), rests: view.rests() })
    });
    looked.await
}

fn server_sent(deploy: &Deploy, id: String, after: u64) -> Response {
    struct Reader {
        deploy: Deploy,
        id: String,
        after: u64,
        pending: VecDeque<RunEvent>,
    }
    let reader = Reader { deploy: deploy.clone(), id, after, pending: VecDeque::new() };
    let stopping = deploy.chassis.tasks.stopping().clone();
    let events = stream::unfold(reader, |mut reader| async move {
        if reader.pending.is_empty() {
            let is_over =
                |found: &RunEvents| matches!(found.state, RunState::Ended | RunState::Broken);
            // The client sees the end of the stream and reconnects after its last event.
            while reader.pending.is_empty() {
                let id = &reader.id;
                let after = reader.after;
                let found = batch(&reader.deploy, id, after, LONGEST_WAIT, is_over).await.ok()?;
                let nobody_drives = || reader.deploy.runs.live(id).is_none();
                if found.items.is_empty() && (is_over(&found) || nobody_drives()) {
                    return None;
                }
                reader.pending = found.items.into();
            }
        }
        let event = reader.pending.pop_front()?;
        reader.after = event.seq;
        let data = serde_json::to_string(&event).expect("an event always serializes");
        let sent = sse::Event::default().id(event.seq.to_string()).event(&event.record).data(data);
        Some((Ok::<_, Infallible>(sent), reader))
    });
    let events = events.take_until(stopping.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("alive")).into_response()
}
