//! Calls of `/boot/v2/artifacts` and `/boot/v2/blobs`.

use hoist_model::Digest;
use reqwest::{Body, Method};

use super::{Client, ClientError, TypedLines};
use crate::artifact::{ArtifactObject, ArtifactVerification, Blob, CollectionResult};
use crate::inventory::Listing;

const ARTIFACTS: [&str; 3] = ["boot", "v2", "artifacts"];

impl Client {
    pub async fn artifacts(&self) -> Result<Listing<ArtifactObject>, ClientError> {
        self.get(&ARTIFACTS).ordinary().value().await
    }

    /// Asks for the received size of a blob.
    pub async fn blob(&self, sha256: Digest) -> Result<Blob, ClientError> {
        self.get(&["boot", "v2", "blobs", &sha256.to_string()]).ordinary().value().await
    }

    /// Sends content from `offset` on. The answer to the last bytes comes after all of it was
    /// verified. Content that exists already is kept long enough for the caller to name it in an
    /// artifact.
    pub async fn upload(
        &self,
        sha256: Digest,
        offset: u64,
        size: u64,
        content: impl Into<Body>,
    ) -> Result<Blob, ClientError> {
        let mut call = self
            .call(Method::PATCH, &["boot", "v2", "blobs", &sha256.to_string()])
            .query("offset", Some(&offset.to_string()))
            .query("size", Some(&size.to_string()));
        call.request = call.request.body(content);
        call.value().await
    }

    /// Reads everything that is kept and compares it with its digest.
    pub async fn verify_artifacts(&self) -> Result<TypedLines<ArtifactVerification>, ClientError> {
        let path: Vec<_> = ARTIFACTS.into_iter().chain(["verify"]).collect();
        let lines = self.call(Method::POST, &path).accept_lines().stream().await?;
        Ok(TypedLines::new(lines))
    }

    /// Removes content that no artifact names; with `unused`, also artifacts that are not
    /// referenced; with `unfinished`, also recently interrupted uploads; with `previous`, also
    /// content that nodes need to return to their previous installation.
    #[expect(clippy::fn_params_excessive_bools, reason = "each is a flag of its own")]
    pub async fn collect_artifacts(
        &self,
        dry_run: bool,
        unused: bool,
        unfinished: bool,
        previous: bool,
    ) -> Result<CollectionResult, ClientError> {
        let path: Vec<_> = ARTIFACTS.into_iter().chain(["gc"]).collect();
        let mut call = self.call(Method::POST, &path);
        call.write = !dry_run;
        let call = call.flag("dry_run", dry_run).flag("unused", unused);
        call.flag("unfinished", unfinished).flag("previous", previous).value().await
    }
}
