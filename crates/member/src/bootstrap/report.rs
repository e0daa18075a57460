//! The result of `bootstrap`, for people and for programs.

use std::fmt;

use hoist_cluster::pre_check::{CheckResult, Severity, blocking};
use hoist_model::{Exit, Name};
use serde::Serialize;

use crate::join::Inspection;
use crate::state::MemberFile;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Founded,
    Joined,
    AlreadyMember,
    WouldFound,
    WouldJoin,
    WouldResume,
}

/// The fields that do not apply are left out.
#[derive(Debug, Clone, Serialize)]
pub struct BootstrapReport {
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The id of this member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The inventory node that this member is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_order: Option<u64>,
    /// The controller of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// The join to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_consent: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckResult>,
}

impl BootstrapReport {
    fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            cluster: None,
            uid: None,
            id: None,
            node: None,
            join_order: None,
            controller: None,
            operation: None,
            needs_consent: false,
            checks: Vec::new(),
        }
    }

    pub(super) fn of_member(outcome: Outcome, member: &MemberFile) -> Self {
        Self {
            cluster: Some(member.name.clone()),
            uid: Some(member.uid.to_string()),
            id: Some(member.id.to_string()),
            node: Some(member.node.clone()),
            join_order: Some(member.join_order),
            ..Self::new(outcome)
        }
    }

    pub(super) fn would_found(name: &Name, controller: &str, needs_consent: bool) -> Self {
        Self {
            cluster: Some(name.clone()),
            controller: Some(controller.to_owned()),
            needs_consent,
            ..Self::new(Outcome::WouldFound)
        }
    }

    pub(super) fn would_join(
        outcome: Outcome,
        operation: Option<&str>,
        inspection: Inspection,
    ) -> Self {
        let Inspection { address, cluster, checks } = inspection;
        Self {
            cluster: Some(cluster.name),
            uid: Some(cluster.uid),
            controller: Some(address),
            operation: operation.map(str::to_owned),
            checks,
            ..Self::new(outcome)
        }
    }

    pub fn exit(&self) -> Exit {
        let is_refused = !blocking(&self.checks, &std::collections::BTreeSet::new()).is_empty();
        match self.outcome {
            Outcome::Founded | Outcome::Joined | Outcome::AlreadyMember => Exit::Done,
            _ if is_refused => Exit::Refused,
            Outcome::WouldFound | Outcome::WouldJoin | Outcome::WouldResume => Exit::WouldChange,
        }
    }
}

impl fmt::Display for BootstrapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.cluster.as_ref().map_or("?", Name::as_str);
        let controller = self.controller.as_deref().unwrap_or("?");
        match self.outcome {
            Outcome::Founded => write!(f, "founded cluster {cluster}")?,
            Outcome::Joined => write!(f, "joined cluster {cluster}")?,
            Outcome::AlreadyMember => write!(f, "already a member of cluster {cluster}")?,
            Outcome::WouldFound => {
                write!(f, "would found cluster {cluster} through {controller}")?;
                if self.needs_consent {
                    f.write_str(" after a confirmation")?;
                }
            }
            Outcome::WouldJoin => write!(f, "would join cluster {cluster} at {controller}")?,
            Outcome::WouldResume => {
                let operation = self.operation.as_deref().unwrap_or("?");
                write!(f, "would continue {operation} to cluster {cluster} at {controller}")?;
            }
        }
        if let Some(node) = &self.node {
            write!(f, " as node {node}")?;
        }
        if let Some(order) = self.join_order {
            write!(f, ", join order {order}")?;
        }
        for check in &self.checks {
            let mark = match check.severity {
                Severity::Passed => "ok",
                Severity::Warning => "warning",
                Severity::Refused => "refused",
            };
            write!(f, "\n  {mark}: {}", check.evidence)?;
            if let Some(remedy) = check.remedy {
                write!(f, "; {remedy}")?;
            }
        }
        Ok(())
    }
}
