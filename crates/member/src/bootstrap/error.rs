//! Why `bootstrap` did not end with a membership.

use hoist_cluster::detection::DetectionRefusal;
use hoist_model::Exit;

use crate::join::JoinError;
use crate::state::StateError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    #[error(transparent)]
    Refused(#[from] DetectionRefusal),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Found(#[from] FoundError),
    #[error("not confirmed; nothing was changed")]
    Declined,
    #[error("{authority} presents no single root that could be compared; nothing was sent")]
    NoRoot { authority: String },
    #[error("the cluster has no name: the configuration has none, and the host name is not one")]
    NoName,
}

/// Why a cluster was not founded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FoundError {
    #[error("an agent cannot found a cluster")]
    NoController,
    /// The controller refused, or cannot be asked. The text has the remedy.
    #[error("{message}")]
    Refused { message: String, exit: Exit },
}

impl BootstrapError {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused(refusal) => refusal.exit(),
            Self::State(error) => error.exit(),
            Self::Join(error) => error.exit(),
            Self::Found(FoundError::NoController) | Self::NoRoot { .. } => Exit::Refused,
            Self::Found(FoundError::Refused { exit, .. }) => *exit,
            Self::Declined => Exit::Stopped,
            Self::NoName => Exit::Usage,
        }
    }

    /// The next step of the operator; none where the message has it.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::Refused(refusal) => refusal.remedy(),
            Self::State(error) => error.remedy(),
            Self::Join(error) => return error.remedy(),
            Self::Found(FoundError::NoController) => {
                "start a controller with `hoist serve`, and run `hoist bootstrap --single-node` \
                 beside it"
            }
            Self::Found(FoundError::Refused { .. }) | Self::Declined => return None,
            Self::NoRoot { .. } => "create a token with `hoist cluster token create` and pass it",
            Self::NoName => "set `cluster.id` in the configuration",
        })
    }
}
