//! What a node is told about itself when it first runs: the documents that cloud-init reads, merged
//! from the layers that speak of the node, and the boundary behind which another service may give
//! them instead.
//!
//! Rendering is a function of a roster and a node; it never waits or touches a disk. HTTP
//! and bearer tokens do not belong here.

pub mod document;
pub mod mode;
pub mod provider;
pub mod provision;
pub mod token;

pub use document::{Document, Documents};
pub use mode::{Mode, Unknown};
pub use provider::{MetadataProvider, SeedRef};
pub use token::SiteKey;
