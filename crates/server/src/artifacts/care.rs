//! `/boot/v2/artifacts`: what there is, whether it is still whole, and away with what nobody names.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hoist_api::artifact::{ArtifactObject, Collected, CollectedBlob, Outcome, Verified};
use hoist_api::inventory::Listing;
use hoist_inventory::Roster;
use hoist_inventory::registry::Terms;
use hoist_model::{ArtifactName, Digest, Kind};
use http::header;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::blobs::{Blobs, Kept, Leftover, blocking, hash};
use super::uses::Uses;
use super::{Artifacts, NDJSON, disk_failed};
use crate::auth::AuditContext;
use crate::extract::{Json, Query};
use crate::failure::Failure;
use crate::inventory::Flag;
use crate::route::Live;

/// Content younger than this stays: its artifact is about to be written.
const NEW: Duration = Duration::from_hours(1);

/// Uploads that nobody went on with for so long, and what was set aside before that, go.
const STALE: Duration = Duration::from_hours(24);

pub(super) async fn list(
    State(artifacts): State<Artifacts>,
) -> Result<Json<Listing<ArtifactObject>>, Failure> {
    let here: HashSet<Digest> =
        artifacts.kept().await?.into_iter().map(|kept| kept.digest).collect();
    let roster = artifacts.registry.roster();
    let uses = Uses::of(&roster);
    let object = |artifact: &hoist_model::Artifact| {
        let users = uses.users(artifact);
        ArtifactObject {
            name: artifact.name.clone(),
            sha256: artifact.spec.sha256,
            size: artifact.spec.size,
            arch: artifact.spec.arch,
            description: artifact.spec.description.clone(),
            revision: artifact.revision,
            here: here.contains(&artifact.spec.sha256),
            used_by: users.configs.into_iter().collect(),
            bss_records: users.records,
        }
    };
    let items = roster.artifacts().map(|artifact| object(artifact)).collect();
    Ok(Json(Listing { revision: roster.revision(), items }))
}

/// One line per blob, as it is found.
pub(super) async fn verify(State(artifacts): State<Artifacts>) -> Result<Response, Failure> {
    let kept = artifacts.kept().await?;
    let total = kept.iter().map(|kept| kept.size).sum();
    let stop = artifacts.chassis.tasks.stopping().child_token();
    let state = (artifacts, kept.into_iter(), 0, stop.clone().drop_guard());
    let lines = stream::try_unfold(state, move |(artifacts, mut kept, done, guard)| {
        let stop = stop.clone();
        async move {
            let Some(blob) = kept.next() else {
                artifacts.show_kept().await;
                return Ok(None);
            };
            let done = done + blob.size;
            let verified = artifacts.check(blob, stop).await?;
            let mut line =
                serde_json::to_vec(&Verified { done, total, ..verified }).expect("a plain record");
            line.push(b'\n');
            Ok::<_, io::Error>(Some((line, (artifacts, kept, done, guard))))
        }
    });
    let mut response = ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response();
    response.extensions_mut().insert(Live);
    Ok(response)
}

#[derive(Debug, Deserialize)]
pub(super) struct CollectQuery {
    #[serde(default)]
    dry_run: Flag,
    #[serde(default)]
    unused: Flag,
}

pub(super) async fn collect(
    State(artifacts): State<Artifacts>,
    audit: AuditContext,
    Query(query): Query<CollectQuery>,
) -> Result<Json<Collected>, Failure> {
    let (dry_run, unused) = (query.dry_run.0, query.unused.0);
    let _one_at_a_time = artifacts.collecting.lock().await;
    if dry_run {
        audit.nothing_written();
    }
    let now: SystemTime = artifacts.chassis.clock.now().into();
    let kept = artifacts.kept().await?;
    let gone = if unused {
        let new = kept.iter().filter(|kept| age(kept, now) >= NEW);
        artifacts.forget_unused(&new.map(|kept| kept.digest).collect(), dry_run, &audit).await?
    } else {
        Vec::new()
    };
    let named = artifacts.named(&gone);
    let unnamed = kept.into_iter().filter(|kept| age(kept, now) >= NEW);
    let unnamed: Vec<_> = unnamed.filter(|kept| !named.contains(&kept.digest)).collect();
    let blobs = artifacts.blobs.clone();
    let collected = blocking(move || {
        let mut leftovers = blobs.leftovers()?;
        leftovers.retain(|leftover| age(&leftover.kept, now) >= STALE);
        if !dry_run {
            remove(&blobs, &unnamed, &leftovers)?;
        }
        let bytes = unnamed.iter().chain(leftovers.iter().map(|leftover| &leftover.kept));
        let bytes = bytes.map(|kept| kept.size).sum();
        let blob = |kept: &Kept| CollectedBlob { sha256: kept.digest, size: kept.size };
        let removed = unnamed.iter().map(blob).collect();
        let leftovers = leftovers.len();
        Ok(Collected { dry_run, artifacts: gone, blobs: removed, leftovers, bytes })
    });
    let collected = collected.await.map_err(|error| disk_failed(&error))?;
    artifacts.show_kept().await;
    Ok(Json(collected))
}

fn remove(blobs: &Blobs, unnamed: &[Kept], leftovers: &[Leftover]) -> io::Result<()> {
    for kept in unnamed {
        blobs.remove(kept.digest)?;
        tracing::info!(digest = %kept.digest, size = kept.size, "content removed");
    }
    leftovers.iter().try_for_each(Leftover::remove)
}

/// One from the future, by a clock that was wrong, is new.
fn age(kept: &Kept, now: SystemTime) -> Duration {
    now.duration_since(kept.modified).unwrap_or_default()
}

impl Artifacts {
    async fn kept(&self) -> Result<Vec<Kept>, Failure> {
        let blobs = self.blobs.clone();
        blocking(move || blobs.list()).await.map_err(|error| disk_failed(&error))
    }

    async fn check(&self, blob: Kept, stop: CancellationToken) -> io::Result<Verified> {
        let Kept { digest, size, .. } = blob;
        let blobs = self.blobs.clone();
        let stopped = stop.clone();
        let found = blocking(move || match blobs.open(digest)? {
            Some(content) => hash(&content.file, &|| stop.is_cancelled()),
            None => Err(io::ErrorKind::NotFound.into()),
        });
        let outcome = match found.await {
            Ok(Some(found)) if found == digest => Outcome::Whole,
            Ok(Some(found)) => {
                tracing::error!(%digest, %found, "content is damaged and set aside");
                let blobs = self.blobs.clone();
                blocking(move || blobs.set_aside(digest)).await?;
                Outcome::Damaged
            }
            Ok(None) => {
                debug_assert!(stopped.is_cancelled());
                return Err(io::Error::other("the server stops"));
            }
            Err(error) => {
                tracing::error!(%digest, %error, "content cannot be read");
                Outcome::Unreadable
            }
        };
        let roster = self.registry.roster();
        let artifacts = roster.artifacts().filter(|artifact| artifact.spec.sha256 == digest);
        let names = artifacts.map(|artifact| artifact.name.clone()).collect();
        Ok(Verified { sha256: digest, names, size, outcome, done: 0, total: 0 })
    }

    /// Removes artifacts that nothing names, in one transaction with the look whether that is so.
    /// Only those whose content has been `here` for long enough: others may be on their way.
    async fn forget_unused(
        &self,
        here: &HashSet<Digest>,
        dry_run: bool,
        audit: &AuditContext,
    ) -> Result<Vec<ArtifactName>, Failure> {
        let mut gone = Vec::new();
        let commit = self.chassis.audit.committer(audit.draft());
        let terms = Terms { dry_run, ..Terms::default() };
        let written = self.registry.write(terms, &commit, |draft| {
            gone = unused(draft.roster(), here);
            for name in &gone {
                draft.remove(Kind::Artifact, name);
            }
            Ok(())
        });
        written.await?;
        Ok(gone)
    }

    /// Content that is named, by an artifact other than those that are `gone` or by a URL.
    fn named(&self, gone: &[ArtifactName]) -> HashSet<Digest> {
        let roster = self.registry.roster();
        let gone: HashSet<_> = gone.iter().collect();
        let artifacts = roster.artifacts().filter(|artifact| !gone.contains(&artifact.name));
        let declared = artifacts.map(|artifact| artifact.spec.sha256);
        declared.chain(Uses::of(&roster).contents()).collect()
    }

    /// Tells the metrics what is kept.
    pub(super) async fn show_kept(&self) {
        let blobs = self.blobs.clone();
        match blocking(move || blobs.list()).await {
            #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
            Ok(kept) => {
                let bytes: u64 = kept.iter().map(|kept| kept.size).sum();
                metrics::gauge!("hoist_artifact_blobs").set(kept.len() as f64);
                metrics::gauge!("hoist_artifact_blob_bytes").set(bytes as f64);
            }
            Err(error) => tracing::warn!(%error, "kept content cannot be counted"),
        }
    }
}

fn unused(roster: &Roster, here: &HashSet<Digest>) -> Vec<ArtifactName> {
    let uses = Uses::of(roster);
    let unused = roster.artifacts().filter(|artifact| !uses.names(artifact));
    let old = unused.filter(|artifact| here.contains(&artifact.spec.sha256));
    old.map(|artifact| artifact.name.clone()).collect()
}
