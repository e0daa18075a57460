//! Metadata of nodes: the documents that cloud-init reads, merged from the layers of the node, and
//! the boundary behind which another service may provide them instead.
//!
//! Rendering is a function of a roster and a node; it never waits or touches a disk. HTTP and
//! bearer tokens do not belong here.

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
mod yaml;

pub use document::{Document, Documents};
pub use facts::Facts;
pub use layer::LayerFailure;
pub use layers::Layers;
pub use mode::{Mode, Unknown};
pub use provider::MetadataProvider;
pub use render::{RenderedDocuments, With, instance_id, render};
pub use renderer::{Basis, RenderResult, Renderer};
pub use rule::LayerRule;
pub use secret::{Resolve, SecretError, Secrets};
