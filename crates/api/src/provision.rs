//! Bodies of `/provision/v1`: who may take a node's secrets, the documents with them, and what an
//! agent is told and tells, and the runs in which that happens.

mod agent;
mod run;

use std::fmt;
use std::net::IpAddr;

use hoist_model::{Name, NodeId};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::agent::{
    BackupKept, DiskBackup, Erasure, ErasureVerdict, Event, EventsAnswer, EventsRequest, Finding,
    Go, MAX_BACKUP, MAX_BACKUPS, MAX_EVENTS, MAX_EVENTS_REQUEST, MAX_ORDER_REQUEST, MAX_REPORT,
    Order, OrderRequest, Outcome, Phase, Report, ReportAnswer, RootDisk, Then,
};
pub use self::run::{
    Chosen, Counts, How, Installed, LeftOutNode, NodeFacts, NodeRunState, Progress,
    ProvisionProfileObject, Run, RunNode, RunState, StartRequest, Started, SteerRequest, Steered,
};
use crate::metadata::RenderedDocument;

/// `POST /provision/v1/nodes/{node}/arming`: the token is told only now.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct Armed {
    pub node: Name,
    pub id: NodeId,
    /// Of the node; the token is good for no other.
    pub generation: u64,
    /// What the node's agent shows, once.
    pub token: String,
}

/// A node that is armed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Arming {
    pub node: Name,
    pub id: NodeId,
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The key that has redeemed the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redeemed: Option<ShownKey>,
    /// Other keys that came with the right token later: somebody else has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<ShownKey>,
    /// The address that fetched the boot script with the token, or showed it, first; the token is
    /// good there alone. None of a node that has an address of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<IpAddr>,
    /// Other addresses that had the token since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
    /// Whether the node was renewed or the site's key changed since: the token is good for nothing.
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

/// What a node is told, with its secrets.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct NodeDocuments {
    pub node: Name,
    pub id: NodeId,
    pub generation: u64,
    pub documents: Vec<RenderedDocument>,
}

impl fmt::Debug for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed").field("node", &self.node).finish_non_exhaustive()
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
        let (id, node): (_, Name) = (NodeId::from_bits(1), "n1".parse().unwrap());
        let armed = Armed { node: node.clone(), id, generation: 0, token: "hunter2".to_owned() };
        let request = DocumentsRequest {
            node: id,
            token: "hunter2".to_owned(),
            key: String::new(),
            signature: "hunter2".to_owned(),
        };
        let text = "password: hunter2".to_owned();
        let documents = vec![RenderedDocument { document: "user-data".to_owned(), text }];
        let given = NodeDocuments { node, id, generation: 0, documents };
        let printed = format!("{armed:?} {request:?} {given:?}");
        assert!(printed.contains("n1") && !printed.contains("hunter2"), "{printed}");
    }
}
