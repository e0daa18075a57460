//! The disks and the firmware of one machine, and the files fetched for them. Carries out the plans
//! of `hoist-provision`, within the planned ranges.
//!
//! This crate makes no decisions: [`observe`] reads the inputs of a plan, [`apply`] carries out a
//! plan, and [`undo`] restores disks. [`guard::GuardedIo`] is the only way to write.
//!
//! Must never know: the store, the site, boot scripts, metadata, HTTP routes, an async runtime.

pub mod actions;
pub mod apply;
pub mod buffer;
mod disk;
pub mod efivars;
pub mod fat;
pub mod fault;
pub mod guard;
pub mod holders;
pub mod images;
mod ioctl;
pub mod kernel;
pub mod metadata_area;
mod mount;
pub mod nvme;
pub mod observe;
pub mod probe;
pub mod ranges;
#[cfg(test)]
pub(crate) mod scratch;
pub mod signature;
pub mod start;
pub mod table;
pub mod undo;
mod users;

use std::sync::Arc;

use hoist_engine::plugin::Plugin;
use hoist_provision::document::Secrets;

use crate::images::Trust;

pub use disk::{Identity, OpenError, ReadIo};
pub use guard::GuardedIo;
pub use ranges::Ranges;
pub use users::DiskUsers;

/// The inputs of a run beside its document.
#[derive(Debug, Clone, Default)]
pub struct RunInputs {
    /// Values of `secret://NAME` references.
    pub secrets: Secrets,
    /// Trusted authorities of the servers that files are fetched from.
    pub trust: Trust,
    /// Usable plug-ins.
    pub plugins: Vec<Arc<Plugin>>,
    /// The reasons why other plug-ins cannot be used.
    pub unusable: Vec<String>,
}
