//! Why `hoist bootstrap` neither founds nor joins. Nothing was changed.

use hoist_model::Exit;

use crate::id::ClusterId;
use crate::membership::MembershipEnd;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectionRefusal {
    #[error("{first} and {second} contradict each other")]
    Contradiction { first: &'static str, second: &'static str },
    #[error("the state of this machine is damaged: {detail}")]
    CorruptState { detail: String },
    #[error("join {operation} of this machine did not end")]
    JoinUnfinished { operation: String },
    #[error("this machine is a member of cluster {}", .0.short())]
    MemberOfOther(ClusterId),
    #[error("this machine founded cluster {}", .0.short())]
    FoundedOther(ClusterId),
    #[error("this machine {} cluster {}", .1.predicate(), .0.short())]
    Ended(ClusterId, MembershipEnd),
    #[error("there is no token and no pin for the cluster to join, and no terminal to ask on")]
    NoCredentialForAddress,
    #[error("found {seen}; there is no token and no pin to trust it")]
    NoCredential { seen: String },
    #[error("found {seen}, which is not the cluster to join")]
    OnlyOthers { seen: String },
    #[error("found {seen}, which sent no address")]
    NoAddress { seen: String },
    #[error("found more than one cluster: {seen}")]
    Ambiguous { seen: String },
    #[error("the cluster to join did not answer")]
    NothingToJoin,
    #[error("no cluster answered, and nothing permits founding one")]
    NoConsent,
}

impl DetectionRefusal {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Contradiction { .. } => Exit::Usage,
            Self::CorruptState { .. } => Exit::Failed,
            Self::JoinUnfinished { .. }
            | Self::MemberOfOther(_)
            | Self::FoundedOther(_)
            | Self::Ended(..) => Exit::Refused,
            Self::NoCredentialForAddress | Self::NoCredential { .. } => Exit::Waiting,
            Self::OnlyOthers { .. }
            | Self::NoAddress { .. }
            | Self::NothingToJoin
            | Self::NoConsent => Exit::NoCluster,
            Self::Ambiguous { .. } => Exit::Ambiguous,
        }
    }

    /// The next step of the operator.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Contradiction { .. } => "remove one of them",
            Self::CorruptState { .. } => {
                "restore it from a backup, or run `hoist identity reset` and join again"
            }
            Self::JoinUnfinished { .. } => {
                "run `hoist bootstrap` without other flags to resume it, or withdraw it"
            }
            Self::MemberOfOther(_) | Self::FoundedOther(_) => {
                "leave that cluster first: `hoist cluster leave`"
            }
            Self::Ended(..) => "run `hoist identity reset --yes` and join with a new identity",
            Self::NoCredentialForAddress | Self::NoCredential { .. } => {
                "create a token with `hoist cluster token create` and pass `--token-file`"
            }
            Self::OnlyOthers { .. } => {
                "check the token, the pin and the configuration; `hoist cluster discover` lists \
                 every answer"
            }
            Self::NoAddress { .. } => "pass an address with `--join-cluster`",
            Self::Ambiguous { .. } => {
                "name the one to join with `--token-file`, `--join-cluster` or `cluster.uid`"
            }
            Self::NothingToJoin => {
                "check the network, or pass an address with `--join-cluster`; to found a cluster \
                 instead, pass `--single-node` alone"
            }
            Self::NoConsent => "pass `--single-node` to found a cluster, or `--join-cluster`",
        }
    }
}
