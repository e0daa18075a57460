//! The reference from a boot script to the documents that cloud-init reads.
//!
//! Boot scripts need only this reference. Serving the documents belongs to the metadata context,
//! so booting does not depend on it.

use std::fmt;

use hoist_model::Node;

use crate::roster::Roster;

/// The location of a node's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedRef {
    /// Kernel arguments that point cloud-init at the documents; empty when none are needed.
    pub kernel_args: String,
    /// Ends with a slash.
    pub url: Option<String>,
    pub kind: SeedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeedKind {
    /// The node fetches its documents over HTTP.
    NoCloud,
    /// The node has no documents.
    None,
}

/// Knows where each node finds its documents.
pub trait SeedProvider: fmt::Debug + Send + Sync {
    /// Called while a machine waits for its boot script, so it must not lock, read a disk or use
    /// the network. `base` is the URL at which the machine reaches this controller, without a
    /// trailing slash.
    fn seed_ref(&self, roster: &Roster, node: &Node, base: &str) -> SeedRef;
}

impl SeedRef {
    pub const NONE: Self = Self { kernel_args: String::new(), url: None, kind: SeedKind::None };

    /// A `NoCloud` seed at `url`, in the form that every version of cloud-init accepts.
    pub fn nocloud(url: impl Into<String>) -> Self {
        let url = url.into();
        let kernel_args = nocloud_argument(&url);
        Self { kernel_args, url: Some(url), kind: SeedKind::NoCloud }
    }
}

/// `ds=nocloud;s=URL/;dsmode=net`. Older versions of cloud-init discard the documents without
/// `dsmode`, and request the wrong ones without the trailing slash.
pub fn nocloud_argument(url: &str) -> String {
    let slash = if url.ends_with('/') { "" } else { "/" };
    format!("ds=nocloud;s={url}{slash};dsmode=net")
}
