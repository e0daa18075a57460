//! The site's inventory: the roster in memory, the one way to change it, and where nodes come from.
//!
//! [`Roster`] answers; it never waits, locks or touches a disk. [`Registry`] is the only writer: it
//! validates a change against the roster of exactly one revision, commits it to the store, and only
//! then publishes the next roster. Sources (SMD, files) are importers that hand a complete set to
//! the registry. HTTP, tokens and command lines do not belong here.

pub mod controllers;
pub mod import;
pub mod kind;
pub mod last_good;
pub mod plan;
pub mod reconcile;
pub mod record;
pub mod registry;
pub mod roster;
pub mod schema;
pub mod seed;
pub mod selector_names;
pub mod site_key;
pub mod smd_view;
pub mod source;
pub mod states;
pub mod uses;

pub use kind::DocumentKind;
pub use record::{Resource, ResourceKey, ResourceKind};
pub use registry::Registry;
pub use roster::{AddressFit, Delta, Roster};
pub use seed::{SeedKind, SeedProvider, SeedRef};
pub use site_key::SiteKey;
pub use states::States;
