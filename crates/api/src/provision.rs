//! Bodies of `/provision/v1`: access to a node's secrets, the documents with them, the exchange
//! with agents, and provisioning runs.

mod agent;
mod run;

use std::fmt;
use std::net::IpAddr;

use hoist_model::{Name, NodeId};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::agent::{
    BackupKept, Directive, DiskBackup, Erasure, ErasureVerdict, Event, EventsAnswer, EventsRequest,
    MAX_BACKUP, MAX_BACKUPS, MAX_EVENTS, MAX_EVENTS_REQUEST, MAX_JOB_REQUEST, MAX_REPORT,
    NextAction, NodeDiagnostic, Outcome, Phase, ProvisioningJob, ProvisioningJobRequest, Report,
    ReportAnswer, RootDisk,
};
pub use self::run::{
    Counts, Installation, LeftOutNode, NodeFacts, NodeRunState, Progress, ProvisionOptions,
    ProvisionProfileObject, ProvisionRun, ProvisionRunState, RunNode, SelectedNode, StartRequest,
    StartResult, SteerRequest, SteerResult,
};
use crate::metadata::RenderedDocument;

/// `POST /provision/v1/nodes/{node}/enrollment`: the only answer that contains the token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentToken {
    pub node: Name,
    pub id: NodeId,
    /// Of the node; the token is good for no other.
    pub generation: u64,
    /// The token of the node's agent, valid once.
    pub token: String,
}

/// A node that is enrolled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enrollment {
    pub node: Name,
    pub id: NodeId,
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The key that has claimed the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<ShownKey>,
    /// Other keys that came later with the right token: it has leaked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<ShownKey>,
    /// The address that fetched the boot script with the token, or showed it, first; the token is
    /// good there alone. None of a node that has an address of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<IpAddr>,
    /// Other addresses that had the token since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
    /// True if the node was renewed or the site's key changed since: the token is invalid.
    pub outdated: bool,
}

/// A key that was shown, when, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShownKey {
    /// The beginning of its SHA-256, in hexadecimal digits.
    pub key: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// `POST /provision/v1/agent/documents`, over TLS.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentsRequest {
    pub node: NodeId,
    /// The provision token.
    pub token: String,
    /// The agent's ephemeral Ed25519 public key: 32 bytes in base64.
    pub key: String,
    /// Its signature, in base64, over the lines `hoist provision`, the node's id and the token, each
    /// ended by a line feed.
    pub signature: String,
}

/// The metadata of a node, with its secrets.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct NodeDocuments {
    pub node: Name,
    pub id: NodeId,
    pub generation: u64,
    pub documents: Vec<RenderedDocument>,
}

impl fmt::Debug for EnrollmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollmentToken").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for DocumentsRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentsRequest").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for NodeDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeDocuments").field("node", &self.node).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_secrets_are_not_printed() {
        let id = NodeId::from_bits(1);
        let node: Name = "n1".parse().unwrap();
        let enrolled =
            EnrollmentToken { node: node.clone(), id, generation: 0, token: "hunter2".to_owned() };
        let request = DocumentsRequest {
            node: id,
            token: "hunter2".to_owned(),
            key: String::new(),
            signature: "hunter2".to_owned(),
        };
        let text = "password: hunter2".to_owned();
        let documents = vec![RenderedDocument { document: "user-data".to_owned(), text }];
        let given = NodeDocuments { node, id, generation: 0, documents };
        let printed = format!("{enrolled:?} {request:?} {given:?}");
        assert!(printed.contains("n1") && !printed.contains("hunter2"), "{printed}");
    }
}
