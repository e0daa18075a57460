//! Bodies of `/events/v1` and the health routes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that happened. Events tell, they never carry secrets and are never the truth itself:
/// after a `reset`, read the objects again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// `incarnation.seq`; hand it back as `Last-Event-ID` to go on from there.
    pub id: String,
    /// RFC 3339, UTC.
    pub at: String,
    /// Dotted, most general word first: `node.changed`, `token.created`.
    pub kind: String,
    /// The subject of the event, such as `node/n1`.
    pub subject: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// The kind of the event that says: something was missed, read everything again.
pub const RESET: &str = "reset";

/// `/healthz` and `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    pub status: HealthStatus,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<HealthCheck>,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    Ok,
    /// Serving, but something is away; the checks say what.
    Degraded,
    /// Send no requests here.
    Down,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthCheck {
    pub name: String,
    pub status: HealthStatus,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}
