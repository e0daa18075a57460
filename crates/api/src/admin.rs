//! Bodies of `/admin/v1`: tokens, the audit log and the database.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An action on the objects of a context that a token may allow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Read,
    Write,
}

/// A part of the API that tokens are limited to, one per route prefix.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Context {
    Inventory,
    Boot,
    Metadata,
    Deploy,
    Provision,
    Cluster,
    Storage,
    Etcd,
    /// Calls of a node's agent about that node.
    Agent,
    /// `write`: naming a secret in a metadata layer, a provision profile or a task.
    Secrets,
    Events,
    Metrics,
    /// Tokens, audit, database, backup.
    Admin,
    /// Every context, also those that do not exist yet.
    #[serde(rename = "*")]
    All,
}

/// One permission: these verbs, in these contexts, on the nodes of this selector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    pub verbs: Vec<Verb>,
    pub contexts: Vec<Context>,
    /// Absent: every node, and objects that belong to no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// `POST /admin/v1/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The future holder of the token, for people.
    pub name: String,
    pub scopes: Vec<Scope>,
    /// RFC 3339; absent means that it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

/// A token as it is listed: everything but the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    pub id: String,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
}

/// The answer to a [`TokenRequest`]: the only time the secret is shown.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    #[serde(flatten)]
    pub token: Token,
    /// Goes after `Authorization: Bearer`.
    pub secret: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("token", &self.token).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TokenList {
    pub tokens: Vec<Token>,
}

/// One write that happened. `hash` covers all other fields, `prev` among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    pub seq: u64,
    /// RFC 3339, UTC.
    pub at: String,
    /// `admin`, `token/<id>` or `jwt/<subject>`.
    pub who: String,
    /// Address the request came from; empty for actions of the controller itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    pub method: String,
    /// The route's template, such as `/inventory/v1/nodes/{id}`.
    pub route: String,
    /// The object of the write, such as `node/n1` or `apply: 3 nodes`.
    pub object: String,
    /// Site revision before and after, where the write touched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// `done`, or the status the writer was answered.
    pub outcome: String,
    /// Hash of the entry before this one, hexadecimal.
    pub prev: String,
    pub hash: String,
}

/// One page of the audit log, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    /// Sequence number of the newest entry there is.
    pub head: u64,
    /// Give this as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Only with `verify=1`: what walking the whole chain found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<AuditVerification>,
}

/// Result of verifying the whole audit chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditVerification {
    pub intact: bool,
    /// Entries walked.
    pub entries: u64,
    /// The first entry still kept; older ones were removed by retention.
    pub first: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Context {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inventory => "inventory",
            Self::Boot => "boot",
            Self::Metadata => "metadata",
            Self::Deploy => "deploy",
            Self::Provision => "provision",
            Self::Cluster => "cluster",
            Self::Storage => "storage",
            Self::Etcd => "etcd",
            Self::Agent => "agent",
            Self::Secrets => "secrets",
            Self::Events => "events",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
            Self::All => "*",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_on_the_wire_are_the_displayed_ones() {
        for context in [Context::Inventory, Context::Secrets, Context::Metrics, Context::All] {
            assert_eq!(serde_json::to_string(&context).unwrap(), format!("\"{context}\""));
        }
        assert_eq!(serde_json::to_string(&Verb::Write).unwrap(), "\"write\"");
    }

    #[test]
    fn a_new_token_does_not_print_its_secret() {
        let token = Token {
            id: "a".into(),
            name: "ci".into(),
            scopes: vec![],
            created: "2026-01-01T00:00:00Z".into(),
            expires: None,
            revoked: None,
        };
        let text = format!("{:?}", NewToken { token, secret: "hoist_a_kettle".into() });
        assert!(!text.contains("kettle"), "{text}");
    }
}

/// `GET /admin/v1/db`: the store as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Database {
    /// `embedded`, `etcd` or `postgres`.
    pub backend: String,
    /// For people: version of the server, path of the file.
    pub detail: String,
    /// Revision of the store, which grows with every commit.
    pub revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Absent in an unused store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<DatabaseSchema>,
    /// The newest schema that this hoist knows.
    pub newest_schema: u32,
    /// Number of records by the first part of their key.
    pub records: BTreeMap<String, u64>,
    /// An import was begun and not finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished_import: bool,
    /// Controllers registered on this store.
    pub controllers: Vec<ControllerSeen>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatabaseSchema {
    pub version: u32,
    /// The version of hoist that wrote it.
    pub written_by: String,
    pub incarnation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerSeen {
    pub id: String,
    pub version: String,
    /// The newest schema that it can read.
    pub schema: u32,
    /// The time of its last sign of life; RFC 3339.
    pub at: String,
    pub live: bool,
}
