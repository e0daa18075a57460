//! Messages between a node's agent and the controller while a machine is provisioned.

use std::collections::BTreeMap;
use std::fmt;

use hoist_diagnostic::Diagnostic;
use hoist_model::{Name, NodeId};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest body of a [`ProvisioningJobRequest`]: the facts of a machine with hundreds of disks.
pub const MAX_JOB_REQUEST: usize = 1024 * 1024;
/// Largest body of an [`EventsRequest`].
pub const MAX_EVENTS_REQUEST: usize = 256 * 1024;
/// Most events in one request; an agent that has more sends them in several.
pub const MAX_EVENTS: usize = 256;
/// Largest body of a [`Report`].
pub const MAX_REPORT: usize = 512 * 1024;
/// Largest body of a [`DiskBackup`]: both ends of a disk that cannot be packed.
pub const MAX_BACKUP: usize = 4 * 1024 * 1024;
/// Most bytes of all copies of one node that a controller keeps.
pub const MAX_BACKUPS: usize = 8 * 1024 * 1024;

/// `POST /provision/v1/agent/job`, over TLS: an agent has started and asks for its job.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvisioningJobRequest {
    pub node: NodeId,
    /// The provision token.
    pub token: String,
    /// The agent's ephemeral Ed25519 public key: 32 bytes in base64.
    pub key: String,
    /// Its signature, in base64, over the lines `hoist provision`, the node's id and the token, each
    /// ended by a line feed.
    pub signature: String,
    /// The facts of the machine, in the format of `hoist-agent facts -o json`.
    #[serde(default)]
    pub facts: Value,
}

/// The job of an agent.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct ProvisioningJob {
    pub run: String,
    /// The agent's bearer token from here on, valid for this node in this run.
    pub session: String,
    pub node: Name,
    pub id: NodeId,
    pub generation: u64,
    /// The provisioning document of this machine.
    pub document: Value,
    /// The values of `secret://NAME` in the document, by name.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Nothing is provisioned: the disks of the document are restored to their state before the
    /// run, from these backups of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Vec<DiskBackup>>,
}

/// `POST /provision/v1/agent/runs/{run}/backup`, with the session as bearer token: both ends of a
/// disk, sent before anything is written to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskBackup {
    /// The name of the disk in the document.
    pub disk: String,
    pub kernel_name: String,
    pub size: u64,
    pub sector: u32,
    /// The backup as it is in the metadata area of the disk, in base64.
    pub packed: String,
}

/// The answer, once it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupKept {
    pub bytes: usize,
}

/// `POST /provision/v1/agent/runs/{run}/events`, with the session as bearer token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    pub events: Vec<Event>,
}

/// Progress of a machine. Must never contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Counts from 1 within a session; identifies events that are sent again.
    pub seq: u64,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub action: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    pub phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The unit of `done` and `total`; `bytes` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Of that unit, in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Started,
    Progress,
    Done,
    Failed,
    /// Something worth telling, and no more.
    Note,
}

/// The answer to events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsAnswer {
    pub directive: Directive,
}

/// Whether the agent continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Directive {
    Continue,
    /// It ends where it safely can, and reports `aborted`.
    Abort,
}

/// `POST /provision/v1/agent/runs/{run}/report`, with the session as bearer token: the outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub outcome: Outcome,
    /// The hash of the plan that was carried out, if it came to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// True if the run wrote to a disk.
    #[serde(default)]
    pub changed: bool,
    /// True if the run resumed an interrupted attempt.
    #[serde(default)]
    pub resumed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<NodeDiagnostic>,
    /// The receipts of the actions, for later runs.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub receipts: Value,
    /// Disks that were to be erased, and what became of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<Erasure>,
    /// The disks that the root is on, as far as something that lasts is known of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root: Vec<RootDisk>,
}

/// A disk, identified independently of its connector: by its WWN, its EUI, or its serial number and
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RootDisk {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eui: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The erasure of a disk, as evidence after the disk is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Erasure {
    /// In the document.
    pub disk: String,
    pub kernel_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// Bytes.
    pub size: u64,
    /// `overwrite`, `block` or `signatures`, or the command that the disk was given, as
    /// `sanitize_crypto`.
    pub method: String,
    pub verdict: ErasureVerdict,
    /// The reason why it is not erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By the clock of the machine.
    #[schemars(with = "String")]
    pub started: Timestamp,
    #[schemars(with = "String")]
    pub ended: Timestamp,
    /// Number and size of the samples read back. They are empty or, on a disk that erased itself,
    /// differ from their earlier content.
    #[serde(default)]
    pub samples: u64,
    #[serde(default)]
    pub sample: u64,
    /// Number of samples that held data before, if that was examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// The disk's own statement about the erasure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErasureVerdict {
    Erased,
    /// The earlier content of the disk may still be there.
    NotErased,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// A step failed.
    Failed,
    /// A rule forbids it, or the document is wrong for this machine; nothing was written.
    Refused,
    /// Stopped by the controller.
    Aborted,
}

/// A problem of provisioning a node, with a message that a person can act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDiagnostic {
    pub code: String,
    /// The class of the cause, which says who must act: `input`, `facts`, `refused`, `transient`,
    /// `device`, `plugin` or `bug`.
    pub class: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// Its place is in the document, or on the machine.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

impl NodeDiagnostic {
    /// A problem that belongs to no action or step.
    pub fn new(code: &str, class: &str, diagnostic: Diagnostic) -> Self {
        Self {
            code: code.to_owned(),
            class: class.to_owned(),
            action: String::new(),
            step: String::new(),
            diagnostic,
            evidence: Vec::new(),
        }
    }
}

/// The answer to a report, once it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportAnswer {
    pub then: NextAction,
}

/// The machine's next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NextAction {
    Reboot,
    PowerOff,
    /// It waits for people, with its screen as it is.
    Stay,
    /// It asks for a job again, after a while.
    Retry,
    Kexec,
}

impl fmt::Debug for DiskBackup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, size, .. } = self;
        f.debug_struct("DiskBackup").field("disk", disk).field("size", size).finish_non_exhaustive()
    }
}

impl fmt::Debug for ProvisioningJobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProvisioningJobRequest").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for ProvisioningJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, node, .. } = self;
        f.debug_struct("ProvisioningJob")
            .field("run", run)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn neither_tokens_nor_documents_nor_secrets_are_printed() {
        let id = NodeId::from_bits(1);
        let request = ProvisioningJobRequest {
            node: id,
            token: "hunter2".to_owned(),
            key: String::new(),
            signature: "hunter2".to_owned(),
            facts: json!("hunter2"),
        };
        let job = ProvisioningJob {
            run: "r1".to_owned(),
            session: "hunter2".to_owned(),
            node: "n1".parse().unwrap(),
            id,
            generation: 0,
            document: json!({"sections": "hunter2"}),
            secrets: BTreeMap::from([("disk".to_owned(), "hunter2".to_owned())]),
            undo: Some(vec![DiskBackup {
                disk: "os".to_owned(),
                kernel_name: "sda".to_owned(),
                size: 1,
                sector: 512,
                packed: "hunter2".to_owned(),
            }]),
        };
        let printed = format!("{request:?} {job:?}");
        assert!(printed.contains("n1") && printed.contains("r1"), "{printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn agent_message_is_read_with_omitted_fields() {
        let events: EventsRequest = serde_json::from_value(json!({"events": [{
            "seq": 1, "at": "2026-01-02T03:04:05Z", "action": "images", "phase": "progress",
            "done": 1024, "total": 4096, "unit": "bytes", "rate": 512,
        }]}))
        .unwrap();
        assert_eq!((events.events[0].phase, events.events[0].done), (Phase::Progress, Some(1024)));
        let report: Report = serde_json::from_value(json!({"outcome": "refused", "problems": [{
            "code": "foreign-data", "class": "refused", "message": "an ext file system is there",
        }]}))
        .unwrap();
        assert_eq!(report.outcome, Outcome::Refused);
        assert!(!report.changed && report.plan.is_none());
        let typo: Result<Report, _> =
            serde_json::from_value(json!({"outcome": "done", "plam": ""}));
        assert!(typo.unwrap_err().to_string().contains("plam"));
    }

    #[test]
    fn answers_are_words() {
        let told = json!([
            EventsAnswer { directive: Directive::Abort },
            ReportAnswer { then: NextAction::PowerOff }
        ]);
        assert_eq!(told, json!([{"directive": "abort"}, {"then": "power_off"}]));
    }
}
