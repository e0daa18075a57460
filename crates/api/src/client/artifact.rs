//! Calls of `/boot/v2/artifacts` and `/boot/v2/blobs`.

use hoist_model::Digest;
use reqwest::{Body, Method};

use super::{Client, ClientError, TypedLines};
use crate::artifact::{ArtifactObject, Blob, Collected, Verified};
use crate::inventory::Listing;

const ARTIFACTS: [&str; 3] = ["boot", "v2", "artifacts"];

impl Client {
    pub async fn artifacts(&self) -> Result<Listing<ArtifactObject>, ClientError> {
        self.get(&ARTIFACTS).ordinary().value().await
    }

    /// How much of some content is there.
    pub async fn blob(&self, sha256: Digest) -> Result<Blob, ClientError> {
        self.get(&["boot", "v2", "blobs", &sha256.to_string()]).ordinary().value().await
    }

    /// Sends content from `offset` on. The last bytes are answered when all of it was checked; with
    /// content that is there already, it is kept for whoever is about to name it.
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
    pub async fn verify_artifacts(&self) -> Result<TypedLines<Verified>, ClientError> {
        let path: Vec<_> = ARTIFACTS.into_iter().chain(["verify"]).collect();
        let lines = self.call(Method::POST, &path).accept_lines().stream().await?;
        Ok(TypedLines::new(lines))
    }

    /// Removes content that no artifact names; with `unused`, also artifacts that nothing names;
    /// with `unfinished`, also uploads that were broken off a moment ago; with `previous`, also what
    /// nodes need to go back to what they had before.
    #[expect(clippy::fn_params_excessive_bools, reason = "each is a flag of its own")]
    pub async fn collect_artifacts(
        &self,
        dry_run: bool,
        unused: bool,
        unfinished: bool,
        previous: bool,
    ) -> Result<Collected, ClientError> {
        let path: Vec<_> = ARTIFACTS.into_iter().chain(["gc"]).collect();
        let mut call = self.call(Method::POST, &path);
        call.write = !dry_run;
        let call = call.flag("dry_run", dry_run).flag("unused", unused);
        call.flag("unfinished", unfinished).flag("previous", previous).value().await
    }
}
