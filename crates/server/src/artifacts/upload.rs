//! `/boot/v2/blobs`: content on its way in, piece by piece, and on from where it was broken off.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use futures_util::StreamExt;
use hoist_api::artifact::Blob;
use hoist_api::{Code, Conflict, Problem};
use hoist_model::Digest;
use hoist_model::artifact::MAX_ARTIFACT_BYTES;
use serde::Deserialize;

use super::blobs::{NoPart, Origin, Part, PartError, blocking};
use super::serve::parse;
use super::{Artifacts, disk_failed};
use hoist_chassis::auth::{AuditContext, drain_body};
use hoist_chassis::extract::{Json, Path, Query, body_failure};
use hoist_chassis::failure::Failure;

/// Largest blob.
pub const MAX_BLOB_BYTES: u64 = MAX_ARTIFACT_BYTES;

/// An upload that brings nothing for so long makes room for the next one.
const STALL: Duration = Duration::from_mins(1);

#[derive(Debug, Deserialize)]
pub(super) struct UploadQuery {
    offset: u64,
    size: u64,
}

pub(super) async fn state(
    State(artifacts): State<Artifacts>,
    Path(digest): Path<String>,
) -> Result<Json<Blob>, Failure> {
    artifacts.blob(parse(&digest)?).await.map(Json)
}

pub(super) async fn upload(
    State(artifacts): State<Artifacts>,
    audit: AuditContext,
    Path(digest): Path<String>,
    Query(UploadQuery { offset, size }): Query<UploadQuery>,
    request: Request,
) -> Result<Json<Blob>, Failure> {
    let digest = parse(&digest)?;
    let mut body = request.into_body().into_data_stream();
    let mut part = match artifacts.begin(digest, offset, size).await {
        Ok(Begun::Part(part)) => part,
        Ok(Begun::Whole) => {
            audit.nothing_written();
            return artifacts.blob(digest).await.map(Json);
        }
        Err(failure) => {
            artifacts.hear_out(body);
            return Err(failure);
        }
    };
    let taken = artifacts.take(&mut part, &mut body).await;
    if taken.is_ok() && part.is_complete() {
        part.finish().await.map_err(|error| failed(&error))?;
        artifacts.show_kept().await;
        tracing::info!(%digest, size, "artifact content received");
    } else {
        // The next attempt resumes from the received bytes.
        let synced = part.sync().await.map_err(|error| failed(&error));
        drop(part);
        if taken.is_err() {
            artifacts.hear_out(body);
        }
        taken.and(synced)?;
        // The entry of the audit log is for content that is there.
        audit.nothing_written();
    }
    artifacts.blob(digest).await.map(Json)
}

enum Begun {
    Part(Part),
    Whole,
}

impl Artifacts {
    async fn blob(&self, sha256: Digest) -> Result<Blob, Failure> {
        let blobs = self.blobs.clone();
        let found = blocking(move || {
            Ok(match blobs.open(sha256)? {
                Some(content) => Blob { sha256, whole: true, received: content.size },
                None => Blob { sha256, whole: false, received: blobs.received(sha256)? },
            })
        });
        found.await.map_err(|error| disk_failed(&error))
    }

    async fn begin(&self, digest: Digest, offset: u64, size: u64) -> Result<Begun, Failure> {
        if size > MAX_BLOB_BYTES {
            let detail = format!("artifacts have at most {MAX_BLOB_BYTES} bytes, not {size}");
            return Err(Failure::new(Code::BodyTooLarge, detail)
                .with_remedy("serve larger files elsewhere, and name them by URL"));
        }
        let blobs = self.blobs.clone();
        let now = self.chassis.clock.now().into();
        let started = blocking(move || match blobs.start(digest, size, Origin::Upload) {
            Err(NoPart::Whole) => blobs.renew(digest, now).map(|()| Err(NoPart::Whole)),
            Err(NoPart::Io(error)) => Err(error),
            other => Ok(other),
        });
        let part = match started.await.map_err(|error| failed(&error.into()))? {
            Ok(part) => part,
            Err(NoPart::Busy(_)) => {
                return Err(Failure::new(Code::Busy, "another client is uploading this content")
                    .with_remedy("wait until that upload ends, or try again"));
            }
            Err(NoPart::Whole | NoPart::Io(_)) => return Ok(Begun::Whole),
        };
        part.begin();
        if part.received() == offset {
            return Ok(Begun::Part(part));
        }
        let received = part.received();
        let detail = format!("{received} bytes are here, so {offset} is not where to go on");
        let at = Conflict {
            field: "offset".to_owned(),
            value: received.to_string(),
            holder: format!("blobs/{digest}"),
        };
        let problem = Problem::new(Code::Conflict, detail).with_conflict(at);
        Err(problem.with_remedy(format!("go on at {received}")).into())
    }

    /// Reads on beside the answer: a client that is in the middle of sending would see a reset in
    /// place of it.
    fn hear_out(&self, body: BodyDataStream) {
        self.chassis.tasks.spawn("rest of an upload", drain_body(Body::from_stream(body)));
    }

    /// Writes the body until it ends, stalls, or the server stops.
    async fn take(&self, part: &mut Part, body: &mut BodyDataStream) -> Result<(), Failure> {
        loop {
            let next = tokio::select! {
                () = self.chassis.tasks.stopping().cancelled() => {
                    return Err(Failure::new(Code::Stopping, "the server stops")
                        .with_remedy("go on with the upload when it is back"));
                }
                next = tokio::time::timeout(STALL, body.next()) => next,
            };
            let Ok(next) = next else {
                return Err(Failure::new(Code::Timeout, "nothing came for a minute")
                    .with_remedy("go on with the upload"));
            };
            match next {
                None => return Ok(()),
                Some(Ok(bytes)) => part.append(bytes).await.map_err(|error| failed(&error))?,
                Some(Err(error)) => return Err(body_failure(&error)),
            }
        }
    }
}

pub(super) fn failed(error: &PartError) -> Failure {
    match error {
        PartError::WrongDigest { .. } => Failure::new(Code::InvalidBody, error.to_string())
            .with_remedy("nothing was kept; send the file again, as it is now"),
        PartError::TooLong => Failure::new(Code::InvalidBody, error.to_string())
            .with_remedy("`size` is that of the whole content"),
        PartError::Io(_) if error.is_full() => Failure::new(
            Code::StoreFull,
            "the data disk has no room for artifacts; the part received so far is kept",
        )
        .with_remedy(
            "`hoist artifact gc` (with `--unfinished`, other broken uploads too), or make \
                     room on the data disk; then go on",
        ),
        PartError::Io(source) => disk_failed(source),
    }
}
