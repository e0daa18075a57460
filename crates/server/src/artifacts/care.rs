//! `/boot/v2/artifacts`: lists and verifies contents, and collects unreferenced ones.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hoist_api::artifact::{
    ArtifactObject, ArtifactVerification, CollectedBlob, CollectionResult, Outcome,
};
use hoist_api::inventory::Listing;
use hoist_model::{ArtifactName, Digest, Kind};
use hoist_site::registry::Terms;
use hoist_site::uses::Uses;
use hoist_site::{Registry, Roster};
use http::header;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::blobs::{BlobFile, Blobs, blocking, hash};
use super::{Artifacts, NDJSON, disk_failed};
use crate::authorisation::ScopedCommit;
use crate::inventory::write_failure;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Live;

/// Content younger than this stays: its artifact is about to be written.
const NEW: Duration = Duration::from_hours(1);

/// Unfinished uploads and damaged files older than this are removed.
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
            provides: artifact.spec.provides.clone(),
            unpacked: artifact.spec.unpacked.clone(),
            revision: artifact.revision,
            here: here.contains(&artifact.spec.sha256),
            used_by: users.configs.into_iter().chain(users.profiles).collect(),
            bss_records: users.records,
        }
    };
    let items = roster.artifacts().map(|artifact| object(artifact)).collect();
    Ok(Json(Listing { revision: roster.revision(), items }))
}

/// One line per blob, as it is found; then those that should be here and are not.
pub(super) async fn verify(State(artifacts): State<Artifacts>) -> Result<Response, Failure> {
    let kept = artifacts.kept().await?;
    let total = kept.iter().map(|kept| kept.size).sum();
    let missing = missing(&artifacts.registry.roster(), &kept).into_iter();
    let missing = missing
        .map(move |verified| Ok(line(&ArtifactVerification { done: total, total, ..verified })));
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
            let line = line(&ArtifactVerification { done, total, ..verified });
            Ok::<_, io::Error>(Some((line, (artifacts, kept, done, guard))))
        }
    });
    let lines = lines.chain(stream::iter(missing));
    let mut response = ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response();
    response.extensions_mut().insert(Live);
    Ok(response)
}

fn line(verified: &ArtifactVerification) -> Vec<u8> {
    let mut line = serde_json::to_vec(verified).expect("a plain record");
    line.push(b'\n');
    line
}

/// Declared contents that this controller lacks, each once.
fn missing(roster: &Roster, kept: &[BlobFile]) -> Vec<ArtifactVerification> {
    let here: HashSet<Digest> = kept.iter().map(|kept| kept.digest).collect();
    let mut missing: BTreeMap<Digest, ArtifactVerification> = BTreeMap::new();
    for artifact in roster.artifacts().filter(|artifact| !here.contains(&artifact.spec.sha256)) {
        let sha256 = artifact.spec.sha256;
        let size = artifact.spec.size;
        let names = Vec::new();
        let outcome = Outcome::Missing;
        let verified = ArtifactVerification { sha256, names, size, outcome, done: 0, total: 0 };
        missing.entry(sha256).or_insert(verified).names.push(artifact.name.clone());
    }
    missing.into_values().collect()
}

#[derive(Debug, Deserialize)]
pub(super) struct CollectQuery {
    #[serde(default)]
    dry_run: Flag,
    #[serde(default)]
    unused: Flag,
    #[serde(default)]
    unfinished: Flag,
    #[serde(default)]
    previous: Flag,
}

pub(super) async fn collect(
    State(artifacts): State<Artifacts>,
    principal: Principal,
    audit: AuditContext,
    Query(query): Query<CollectQuery>,
) -> Result<Json<CollectionResult>, Failure> {
    let dry_run = query.dry_run.0;
    let unused = query.unused.0;
    let _one_at_a_time = artifacts.collecting.lock().await;
    if dry_run {
        audit.nothing_written();
    }
    let now: SystemTime = artifacts.chassis.clock.now().into();
    let kept = artifacts.kept().await?;
    let gone = if unused {
        let new = kept.iter().filter(|kept| age(kept, now) >= NEW);
        let here = new.map(|kept| kept.digest).collect();
        artifacts.forget_unused(&here, dry_run, &principal, &audit).await?
    } else {
        Vec::new()
    };
    // An artifact that exists again after its removal was declared again.
    let mut names = artifacts.names(if dry_run { gone.clone() } else { Vec::new() }).await?;
    let back =
        if query.previous.0 { HashSet::new() } else { artifacts.retained.retained().await? };
    let named = move |digest| names.has(digest) || back.contains(&digest);
    let unfinished = query.unfinished.0;
    let collection = Collection { blobs: artifacts.blobs.clone(), named, now, unfinished, dry_run };
    let collected = blocking(move || collection.run(kept));
    let collected = collected.await.map_err(|error| disk_failed(&error))?;
    artifacts.show_kept().await;
    Ok(Json(CollectionResult { artifacts: gone, ..collected }))
}

/// Removes unreferenced contents. Each one is checked again just before its removal: an upload may
/// have been acknowledged and a document may refer to it since.
struct Collection<N> {
    blobs: Blobs,
    named: N,
    now: SystemTime,
    /// Of any age.
    unfinished: bool,
    dry_run: bool,
}

impl<N: FnMut(Digest) -> bool> Collection<N> {
    /// Blocks.
    fn run(mut self, kept: Vec<BlobFile>) -> io::Result<CollectionResult> {
        let mut collected =
            CollectionResult { dry_run: self.dry_run, ..CollectionResult::default() };
        for BlobFile { digest: sha256, size, .. } in kept {
            if self.is_collected(sha256)? {
                collected.blobs.push(CollectedBlob { sha256, size });
                collected.bytes += size;
            }
        }
        for leftover in self.blobs.leftovers()? {
            let any_age = self.unfinished && leftover.unfinished;
            let stale = |kept: &BlobFile| any_age || age(kept, self.now) >= STALE;
            let gone = if self.dry_run {
                stale(&leftover.kept)
            } else {
                self.blobs.remove_leftover(&leftover, stale)?
            };
            if gone {
                collected.leftovers += 1;
                collected.bytes += leftover.kept.size;
            }
        }
        Ok(collected)
    }

    fn is_collected(&mut self, digest: Digest) -> io::Result<bool> {
        let mut unwanted = false;
        let gone = self.blobs.remove(digest, |kept| {
            unwanted = age(kept, self.now) >= NEW && !(self.named)(digest);
            unwanted && !self.dry_run
        })?;
        if gone {
            tracing::info!(%digest, "content removed");
        }
        Ok(if self.dry_run { unwanted } else { gone })
    }
}

/// Content that is named: by an artifact other than those that are `gone`, or by a URL.
struct Names {
    registry: Registry,
    gone: HashSet<ArtifactName>,
    revision: u64,
    named: HashSet<Digest>,
}

impl Names {
    fn of(registry: Registry, gone: Vec<ArtifactName>) -> Self {
        let gone = gone.into_iter().collect();
        let mut names = Self { registry, gone, revision: 0, named: HashSet::new() };
        names.read(&names.registry.roster());
        names
    }

    fn read(&mut self, roster: &Roster) {
        let artifacts = roster.artifacts().filter(|artifact| !self.gone.contains(&artifact.name));
        let declared = artifacts.map(|artifact| artifact.spec.sha256);
        self.named = declared.chain(Uses::of(roster).contents()).collect();
        self.revision = roster.revision();
    }

    /// As the site is now.
    fn has(&mut self, digest: Digest) -> bool {
        let roster = self.registry.roster();
        if roster.revision() != self.revision {
            self.read(&roster);
        }
        self.named.contains(&digest)
    }
}

/// One from the future, by a clock that was wrong, is new.
fn age(kept: &BlobFile, now: SystemTime) -> Duration {
    now.duration_since(kept.modified).unwrap_or_default()
}

impl Artifacts {
    async fn kept(&self) -> Result<Vec<BlobFile>, Failure> {
        let blobs = self.blobs.clone();
        blocking(move || blobs.list()).await.map_err(|error| disk_failed(&error))
    }

    async fn check(
        &self,
        blob: BlobFile,
        stop: CancellationToken,
    ) -> io::Result<ArtifactVerification> {
        let BlobFile { digest, size, .. } = blob;
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
        Ok(ArtifactVerification { sha256: digest, names, size, outcome, done: 0, total: 0 })
    }

    /// Removes artifacts that nothing names, in one transaction with the look whether that is so.
    /// Only those whose content has been `here` for long enough: others may be on their way.
    async fn forget_unused(
        &self,
        here: &HashSet<Digest>,
        dry_run: bool,
        principal: &Principal,
        audit: &AuditContext,
    ) -> Result<Vec<ArtifactName>, Failure> {
        let mut gone = Vec::new();
        let commit = ScopedCommit::new(&self.chassis.audit, principal.clone(), audit);
        let terms = Terms { dry_run, ..Terms::default() };
        let written = self.registry.write(terms, &commit, |draft| {
            gone = unused(draft.roster(), here);
            for name in &gone {
                draft.remove(Kind::Artifact, name);
            }
            Ok(())
        });
        written.await.map_err(write_failure)?;
        Ok(gone)
    }

    /// References as the store has them: a controller without the store must not decide, since
    /// others may have added references.
    async fn names(&self, gone: Vec<ArtifactName>) -> Result<Names, Failure> {
        self.registry.latest().await.map_err(write_failure)?;
        Ok(Names::of(self.registry.clone(), gone))
    }

    /// Updates the metrics of stored contents.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::artifacts::blobs::Origin;
    use hoist_chassis::secret;

    async fn bring(blobs: &Blobs, content: &'static [u8]) -> Digest {
        let digest = Digest::from_bytes(secret::sha256(content));
        let mut part = blobs.start(digest, content.len() as u64, Origin::Upload).unwrap();
        part.append(Bytes::from_static(content)).await.unwrap();
        part.finish().await.unwrap();
        digest
    }

    /// The three that are there to be collected, and what becomes of them when `meanwhile` happens
    /// after they were listed.
    async fn collected(meanwhile: impl FnOnce(&Blobs, [Digest; 3])) -> Vec<bool> {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path());
        let mut all = Vec::new();
        for content in [&b"tea"[..], b"pot", b"kettle"] {
            let digest = bring(&blobs, content).await;
            blobs.renew(digest, SystemTime::now() - 2 * NEW).unwrap();
            all.push(digest);
        }
        let kept = blobs.list().unwrap();
        meanwhile(&blobs, all.clone().try_into().unwrap());
        let named = |_| false;
        let now = SystemTime::now();
        let blobs = blobs.clone();
        let unfinished = false;
        let dry_run = false;
        let collection = Collection { blobs, named, now, unfinished, dry_run };
        let collected = collection.run(kept).unwrap();
        let gone = |digest: &Digest| collected.blobs.iter().any(|blob| blob.sha256 == *digest);
        all.iter().map(gone).collect()
    }

    #[tokio::test]
    async fn content_that_an_upload_was_told_of_since_it_was_listed_stays() {
        let told = |blobs: &Blobs, all: [Digest; 3]| {
            blobs.renew(all[1], SystemTime::now()).unwrap();
        };
        assert_eq!(collected(told).await, [true, false, true]);
    }

    #[tokio::test]
    async fn content_that_is_gone_meanwhile_does_not_stop_the_collection() {
        let gone = |blobs: &Blobs, all: [Digest; 3]| {
            for digest in &all[..2] {
                assert!(blobs.remove(*digest, |_| true).unwrap());
            }
        };
        assert_eq!(collected(gone).await, [false, false, true]);
    }

    #[tokio::test]
    async fn an_upload_that_goes_on_is_not_collected_from_under_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path());
        let digest = Digest::from_bytes(secret::sha256(b"kettle"));
        let mut part = blobs.start(digest, 6, Origin::Upload).unwrap();
        part.append(Bytes::from_static(b"ket")).await.unwrap();
        part.sync().await.unwrap();
        drop(part);
        let found = blobs.leftovers().unwrap();
        let mut part = blobs.start(digest, 6, Origin::Upload).unwrap();
        assert!(!blobs.remove_leftover(&found[0], |_| true).unwrap());
        part.append(Bytes::from_static(b"tle")).await.unwrap();
        part.finish().await.unwrap();
        assert!(blobs.is_whole(digest));
    }
}
