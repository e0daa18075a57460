//! The site's inventory: the roster in memory, the one way to change it, and where nodes come from.
//!
//! [`Roster`] answers; it never waits, locks or touches a disk. [`Registry`] is the only writer: it
//! validates a change against the roster of exactly one revision, commits it to the store, and only
//! then publishes the next roster. Sources (SMD, files) are importers that hand a complete set to
//! the registry. HTTP, tokens and command lines do not belong here.

pub mod plan;
pub mod record;
pub mod roster;

pub use record::{Resource, ResourceKey};
pub use roster::{Delta, Roster};
