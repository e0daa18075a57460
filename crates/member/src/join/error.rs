//! Why a join did not end with a membership: the exit code and the remedy of each reason.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hoist_cluster::join_token::ParseTokenError;
use hoist_cluster::membership::MembershipEnd;
use hoist_cluster::pre_check::CheckResult;
use hoist_engine::PlanError;
use hoist_engine::drive::SayError;
use hoist_engine::journal::JournalError;
use hoist_engine::run::ReplayError;
use hoist_engine::undo::UndoError;
use hoist_model::Exit;
use jiff::Timestamp;

use crate::controller::CallError;
use crate::key::KeyError;
use crate::service::ServiceError;
use crate::state::StateError;
use crate::trust::TrustError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Call(#[from] CallError),
    /// The request was sent, and the controller may have accepted it.
    #[error("the outcome of the registration is not known: {0}")]
    OutcomeUnknown(CallError),
    /// The controller has accepted, and the node could not finish.
    #[error("the node is accepted, and the join did not end: {0}")]
    NotFinished(Box<JoinError>),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("{address} is a controller of cluster {found}, expected {expected}")]
    OtherCluster { address: String, found: String, expected: String },
    #[error(
        "the clocks differ too much: this machine has {node}, the controller {address} has \
         {controller}"
    )]
    Clock { address: String, node: Timestamp, controller: Timestamp },
    #[error("the certificate of {address} has expired: it is not valid at {now}")]
    ExpiredCertificate { address: String, now: Timestamp },
    #[error("{}", refused(.0))]
    Checks(Vec<CheckResult>),
    /// An operator was faster than the confirmation of the node.
    #[error("this machine {} the cluster before it could confirm", .0.predicate())]
    Ended(MembershipEnd),
    #[error("the request waits for an operator; the fingerprint of this node is: {fingerprint}")]
    Pending { fingerprint: String },
    #[error("the controller sent a bundle that does not fit: {0}; nothing of it was stored")]
    Bundle(&'static str),
    #[error("the stored bundle is missing")]
    NoBundle,
    #[error("no join has begun on this machine")]
    NoJoin,
    #[error("the token that is stored in `{0}` is not usable")]
    StoredToken(PathBuf, #[source] ParseTokenError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("cannot write the journal of the join")]
    Journal(#[from] JournalError),
    #[error("cannot continue the join from `{0}`")]
    Replay(PathBuf, #[source] ReplayError),
    #[error(transparent)]
    Say(#[from] SayError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot undo the join")]
    Undo(#[source] UndoError),
    #[error("{}", interrupted(*.is_undone))]
    Interrupted { is_undone: bool },
    #[error("the undo of an earlier join was completed; this machine is not in a cluster")]
    UndoCompleted,
    #[error("the join was given up, and these steps could not be undone: {}", listed(.failed))]
    NeedsOperator { failed: BTreeMap<String, String> },
}

impl JoinError {
    /// The join may still succeed without another request of an operator on this machine.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Pending { .. } | Self::OutcomeUnknown(_))
    }

    /// The error of a join that stays for a later run.
    pub(super) fn kept(self) -> Self {
        match self {
            error @ (Self::Pending { .. } | Self::OutcomeUnknown(_) | Self::Interrupted { .. }) => {
                error
            }
            error => Self::NotFinished(Box::new(error)),
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::State(error) => error.exit(),
            Self::Call(
                CallError::Refused { .. }
                | CallError::WrongPin { .. }
                | CallError::Untrusted { .. },
            )
            | Self::OtherCluster { .. }
            | Self::Clock { .. }
            | Self::ExpiredCertificate { .. }
            | Self::Bundle(_)
            | Self::Ended(_)
            | Self::Checks(_) => Exit::Refused,
            Self::OutcomeUnknown(_) | Self::NotFinished(_) => Exit::Unknown,
            Self::Pending { .. } | Self::NeedsOperator { .. } => Exit::Waiting,
            Self::Interrupted { .. } | Self::UndoCompleted => Exit::Stopped,
            Self::Journal(JournalError::InUse) => Exit::Locked,
            _ => Exit::Failed,
        }
    }

    /// The next step of the operator; none where the message has it.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::State(error) => error.remedy(),
            Self::Call(CallError::Unreachable { .. } | CallError::NoAnswer { .. }) => {
                "check address, port and network, and run the command again"
            }
            Self::Call(CallError::WrongPin { .. } | CallError::Untrusted { .. }) => {
                "check the address; if the cluster has a new root, get a new token from its operator"
            }
            Self::OtherCluster { .. } => "check the address, the token and the configuration",
            Self::Clock { .. } => "set the clock, for instance with NTP, and run the command again",
            Self::ExpiredCertificate { .. } => {
                "restart the controller: it renews its certificate when it starts"
            }
            Self::Pending { .. } => {
                "compare the fingerprint with `hoist cluster pending`, accept the node there, and \
                 run the command again"
            }
            Self::OutcomeUnknown(_)
            | Self::NotFinished(_)
            | Self::Interrupted { is_undone: false } => {
                "run `hoist bootstrap` again to continue, or `hoist identity reset` to give up"
            }
            Self::Interrupted { is_undone: true } | Self::UndoCompleted => {
                "run the command again to join"
            }
            Self::Ended(_) => "run `hoist identity reset --yes` and join with a new identity",
            Self::NoBundle => "run `hoist identity reset`, and join again",
            Self::Replay(..) | Self::StoredToken(..) => {
                "run `hoist identity reset` to give the join up, and join again"
            }
            Self::NeedsOperator { .. } => {
                "remove the request on the controller: `hoist cluster reject`, or `hoist cluster \
                 expel` for an accepted node"
            }
            _ => return None,
        })
    }
}

fn interrupted(is_undone: bool) -> &'static str {
    if is_undone {
        "interrupted; the join was undone"
    } else {
        "interrupted; the join stays as it is and can be continued"
    }
}

fn refused(checks: &[CheckResult]) -> String {
    let texts: Vec<String> = checks
        .iter()
        .map(|check| match check.remedy {
            Some(remedy) => format!("{}; {remedy}", check.evidence),
            None => check.evidence.clone(),
        })
        .collect();
    format!("a check before the join failed: {}", texts.join(". "))
}

fn listed(failed: &BTreeMap<String, String>) -> String {
    let texts: Vec<String> =
        failed.iter().map(|(step, reason)| format!("`{step}`: {reason}")).collect();
    texts.join("; ")
}
