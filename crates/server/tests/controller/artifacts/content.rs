//! Content to bring, and a controller's artifacts as tests use them.

use std::path::PathBuf;

use hoist_model::Digest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::site::{Answer, Site, document};

pub(crate) const MIB: usize = 1024 * 1024;

/// Bytes that repeat late, and differ with the seed.
pub(crate) fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = 2 * seed + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

pub(crate) fn digest(content: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(content).into())
}

pub(crate) fn blob_path(content: &[u8]) -> String {
    format!("/boot/v2/blobs/{}", digest(content))
}

/// An artifact's document.
pub(crate) fn artifact(name: &str, content: &[u8]) -> Value {
    let spec = json!({"sha256": digest(content).to_string(), "size": content.len()});
    document("Artifact", name, &spec)
}

pub(crate) fn boot_config(name: &str, kernel: &str) -> Value {
    document("BootConfig", name, &json!({"selector": "*", "kernel": kernel}))
}

impl Site {
    /// Brings `bytes` as the part of `content` from `offset` on.
    pub(crate) async fn bring(&self, content: &[u8], offset: usize, bytes: &[u8]) -> Answer {
        let path = format!("{}?offset={offset}&size={}", blob_path(content), content.len());
        self.ask("PATCH", &path).body(bytes.to_vec()).send().await
    }

    /// Brings content and names it.
    pub(crate) async fn add_artifact(&self, name: &str, content: &[u8]) {
        let brought = self.bring(content, 0, content).await.expect(200).json();
        assert_eq!(brought["whole"], true, "{brought}");
        self.apply(&[artifact(name, content)]).await;
    }

    /// Where whole content lies.
    pub(crate) fn blob_file(&self, content: &[u8]) -> PathBuf {
        let name = digest(content).to_string();
        self.data_dir().join("artifacts/blobs").join(&name[..2]).join(name)
    }

    pub(crate) fn part_file(&self, content: &[u8]) -> PathBuf {
        self.data_dir().join("artifacts/parts").join(digest(content).to_string())
    }

    /// Asked for as machines do.
    pub(crate) async fn fetch(&self, path: &str) -> Answer {
        self.ask_as_nobody("GET", path).send().await
    }

    pub(crate) async fn fetch_content(&self, content: &[u8]) -> Answer {
        self.fetch(&format!("/artifacts/{}", digest(content))).await
    }
}
