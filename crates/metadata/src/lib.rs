//! What a node is told about itself when it first runs: the documents that cloud-init reads, merged
//! from the layers that speak of the node, and the boundary behind which another service may give
//! them instead.
//!
//! Rendering is a function of a roster and a node; it never waits or touches a disk. HTTP, tokens
//! and command lines do not belong here.

pub mod document;
pub mod layer;
pub mod layers;
pub mod merge;
mod mime;
pub mod network;
pub mod render;
pub mod renderer;
pub mod rule;
pub mod secret;
mod yaml;

pub use document::{Document, Documents};
pub use layer::Failed;
pub use layers::Layers;
pub use render::{Rendered, With, instance_id, render};
pub use renderer::Renderer;
pub use rule::LayerRule;
pub use secret::{Resolve, Secrets};
