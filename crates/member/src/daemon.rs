//! The agent of a member: reports to the cluster, does the work that the controller has for this
//! node, and renews its certificate.
//!
//! The daemon never founds, joins or leaves. When a controller says that the membership has ended,
//! the daemon records that and ends. While no controller answers it keeps its role, notes
//! since when the orders are stale, and tries every controller with growing pauses. All waits are
//! blocking: an idle agent uses no CPU.

mod orders;
mod renewal;
mod reports;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use hoist_cluster::detection::DiskState;
use hoist_cluster::membership::MembershipEnd;
use hoist_engine::action::Cancel;
use hoist_model::{Exit, Name};

pub use orders::{OrdersRefusal, accept_orders};
pub use renewal::is_due;

use crate::console::Console;
use crate::facts::FactSource;
use crate::interrupt::Interrupt;
use crate::join::JoinError;
use crate::state::{LockKind, MemberFile, StateDir, StateError};
use crate::trust::{Tls, TrustError};

/// Everything that the daemon works with.
#[derive(Clone)]
pub struct DaemonSetup {
    pub state: StateDir,
    pub console: Arc<dyn Console>,
    pub interrupt: Interrupt,
    pub facts: FactSource,
    /// Plug-ins for the steps of deployments; none if the directory does not exist.
    pub plugins: PathBuf,
}

impl std::fmt::Debug for DaemonSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaemonSetup").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("this machine is not a member of a cluster")]
    NoMember,
    #[error("this machine {} cluster {cluster}", end.predicate())]
    Ended { cluster: Name, end: MembershipEnd },
    #[error("the state of this machine is damaged: {0}")]
    Corrupt(String),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("cannot start the worker")]
    Worker(#[source] std::io::Error),
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl DaemonError {
    pub fn exit(&self) -> Exit {
        match self {
            Self::State(error) => error.exit(),
            Self::NoMember => Exit::NoCluster,
            Self::Ended { .. } => Exit::Refused,
            Self::Join(error) => error.exit(),
            Self::Corrupt(_) | Self::Trust(_) | Self::Worker(_) => Exit::Failed,
        }
    }

    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::State(error) => error.remedy(),
            Self::NoMember => "join one with `hoist-agent bootstrap`",
            Self::Ended { .. } => {
                "run `hoist-agent identity reset --yes` and join with a new identity"
            }
            Self::Corrupt(_) | Self::Trust(_) => {
                "restore it from a backup, or run `hoist-agent identity reset` and join again"
            }
            Self::Worker(_) => "check the directory `work` in the state directory",
            Self::Join(error) => return error.remedy(),
        })
    }
}

/// The part of the membership that the daemon's threads share.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) file: MemberFile,
    pub(crate) tls: Tls,
}

impl Membership {
    pub(crate) fn load(state: &StateDir) -> Result<Self, DaemonError> {
        let file = state.member()?.ok_or(DaemonError::NoMember)?;
        let identity = state.identity_pem()?.ok_or(DaemonError::NoMember)?;
        let authorities = state.authorities()?.ok_or(DaemonError::NoMember)?;
        let tls = Tls::of_member(&authorities, &identity)?;
        Ok(Self { file, tls })
    }
}

/// Works until a signal comes.
pub fn run(setup: &DaemonSetup) -> Result<Exit, DaemonError> {
    if !setup.state.path().is_dir() {
        return Err(DaemonError::NoMember);
    }
    let _lock = setup.state.lock(LockKind::Daemon, "daemon")?;
    match setup.state.disk_state() {
        DiskState::Member(_) | DiskState::Founded(_) => {}
        DiskState::None | DiskState::Joining { .. } => return Err(DaemonError::NoMember),
        DiskState::Ended(_, end) => {
            let file = setup.state.member()?.ok_or(DaemonError::NoMember)?;
            return Err(DaemonError::Ended { cluster: file.name, end });
        }
        DiskState::Corrupt { detail } => return Err(DaemonError::Corrupt(detail)),
    }
    setup.state.remove_finished_join()?;
    let membership = Membership::load(&setup.state)?;
    let text = format!(
        "member {} of cluster {}, node {}",
        membership.file.id.short(),
        membership.file.name,
        membership.file.node
    );
    setup.console.step(&text);
    let shared = Arc::new(parking_lot::Mutex::new(membership));
    let cancel = Cancel::default();
    work::start(setup, &shared, &cancel)?;
    let ended = reports::run(setup, &shared);
    // The worker may wait for an answer. Its ledger is durable at any time, so it is not waited for.
    cancel.leave();
    ended.map(|()| Exit::Done)
}
