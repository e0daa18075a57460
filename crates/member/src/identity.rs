//! The command `identity`: who this node is in its cluster, and the end of that.

use std::fmt;

use hoist_cluster::detection::DiskState;
use hoist_diagnostic::chain;
use hoist_model::Exit;
use serde::Serialize;

use crate::join::{self, JoinError, JoinSetup};
use crate::state::{LockKind, RoleFile, StateDir, StateError};

/// Who this node is.
#[derive(Debug, Clone, Serialize)]
pub struct IdentityView {
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_order: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<String>,
    /// The join that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<RoleFile>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the state of this machine is damaged: {0}")]
    Corrupt(String),
    #[error(
        "a reset removes the key of this node for ever; the controller keeps {subject} until an \
         operator removes it"
    )]
    NotConfirmed { subject: &'static str },
    #[error("the state was removed, but {0}")]
    NotWithdrawn(JoinError),
}

impl IdentityError {
    pub fn exit(&self) -> Exit {
        match self {
            Self::State(error) => error.exit(),
            Self::Corrupt(_) => Exit::Failed,
            Self::NotConfirmed { .. } => Exit::Refused,
            Self::NotWithdrawn(_) => Exit::Waiting,
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            Self::State(error) => error.remedy(),
            Self::Corrupt(_) => "restore it from a backup, or run `identity reset --yes`",
            Self::NotConfirmed { .. } => {
                "leave the cluster first with `hoist cluster leave`, or pass `--yes`"
            }
            Self::NotWithdrawn(_) => {
                "remove the request on the controller: `hoist cluster reject`, or `hoist cluster \
                 expel` for an accepted node"
            }
        }
    }
}

/// Who this node is. Changes nothing.
pub fn show(state: &StateDir) -> Result<IdentityView, IdentityError> {
    let disk = state.disk_state();
    let mut view = IdentityView {
        state: match &disk {
            DiskState::None => "none",
            DiskState::Joining { .. } => "joining",
            DiskState::Member(_) => "member",
            DiskState::Founded(_) => "founder",
            DiskState::Ended(_, end) => end.as_str(),
            DiskState::Corrupt { detail } => return Err(IdentityError::Corrupt(detail.clone())),
        },
        id: state.node_id()?.map(|id| id.to_string()),
        cluster: None,
        uid: None,
        node: None,
        join_order: None,
        certificate_ends: None,
        controllers: Vec::new(),
        operation: None,
        role: state.role()?,
    };
    if let DiskState::Joining { operation, .. } = disk {
        view.operation = Some(operation);
        return Ok(view);
    }
    if let Some(member) = state.member()? {
        view.cluster = Some(member.name.to_string());
        view.uid = Some(member.uid.to_string());
        view.node = Some(member.node.to_string());
        view.join_order = Some(member.join_order);
        view.certificate_ends = Some(member.certificate_ends.to_string());
        view.controllers = member.controllers;
    }
    Ok(view)
}

/// Gives up an unfinished join, and removes key, certificate and membership. A member needs
/// `is_confirmed`. True if there was anything.
pub fn reset(setup: &JoinSetup, is_confirmed: bool) -> Result<bool, IdentityError> {
    let state = &setup.state;
    if !state.path().exists() {
        return Ok(false);
    }
    let _lock = state.lock(LockKind::Operation, "identity reset")?;
    let _daemon = state.lock(LockKind::Daemon, "identity reset")?;
    let disk = state.disk_state();
    let not_confirmed = |subject| {
        if is_confirmed { Ok(()) } else { Err(IdentityError::NotConfirmed { subject }) }
    };
    let mut left = None;
    match disk {
        DiskState::None => {
            let had_key = state.node_id()?.is_some();
            state.remove_all()?;
            return Ok(had_key);
        }
        DiskState::Joining { .. } => {
            not_confirmed("the request of the unfinished join")?;
            left = join::withdraw(setup).err();
        }
        DiskState::Member(_) | DiskState::Founded(_) => not_confirmed("this member")?,
        DiskState::Ended(..) => not_confirmed("the record of the former member")?,
        DiskState::Corrupt { detail } => {
            setup.console.warn(&detail);
            not_confirmed("this node")?;
        }
    }
    state.remove_all()?;
    match left {
        None => Ok(true),
        Some(error) => {
            setup.console.warn(&chain(&error));
            Err(IdentityError::NotWithdrawn(error))
        }
    }
}

impl fmt::Display for IdentityView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state: {}", self.state)?;
        let join_order = self.join_order.map(|order| order.to_string());
        let role = self.role.as_ref().map(|role| role.role.as_deref().unwrap_or("none yet"));
        let stale = self.role.as_ref().and_then(|role| role.stale_since).map(|at| at.to_string());
        let fields = [
            ("id", self.id.as_deref()),
            ("cluster", self.cluster.as_deref()),
            ("cluster id", self.uid.as_deref()),
            ("node", self.node.as_deref()),
            ("join order", join_order.as_deref()),
            ("certificate ends", self.certificate_ends.as_deref()),
            ("unfinished join", self.operation.as_deref()),
            ("role", role),
            ("stale since", stale.as_deref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                write!(f, "\n{name}: {value}")?;
            }
        }
        for controller in &self.controllers {
            write!(f, "\ncontroller: {controller}")?;
        }
        Ok(())
    }
}
