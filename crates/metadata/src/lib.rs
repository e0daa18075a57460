//! What a node is told about itself when it first runs: the documents that cloud-init reads, merged
//! from the layers that speak of the node, and the boundary behind which another service may give
//! them instead.
//!
//! Rendering is a function of a roster and a node; it never waits or touches a disk. HTTP
//! and bearer tokens do not belong here.

pub mod config_drive;
pub mod document;
pub mod facts;
pub mod layer;
pub mod layers;
pub mod merge;
mod mime;
pub mod mode;
pub mod network;
pub mod provider;
pub mod provision;
pub mod render;
pub mod renderer;
pub mod rule;
pub mod secret;
pub mod token;
mod yaml;

pub use document::{Document, Documents};
pub use facts::Facts;
pub use layer::Failed;
pub use layers::Layers;
pub use mode::{Mode, Unknown};
pub use provider::{MetadataProvider, SeedRef};
pub use render::{Rendered, With, instance_id, render};
pub use renderer::{Basis, Made, Renderer};
pub use rule::LayerRule;
pub use secret::{Resolve, Secrets};
pub use token::SiteKey;
