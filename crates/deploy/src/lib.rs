//! Deployment: task files over roles, compiled to plans of the engine.
//!
//! Reading, merging, expanding over nodes, binding and selecting are functions of values: the same
//! files and nodes give the same plan, byte for byte. No clock, no network, no store in here; what
//! tasks do on a machine is in [`actions`], which runs where the machine is.
//!
//! Does not belong here: runs and their journals (`hoist-engine`), transports to nodes and HTTP
//! (`hoist-server`).

pub mod actions;
pub mod bind;
pub mod checks;
pub mod compile;
pub mod condition;
pub mod diagnostic;
pub mod graph;
pub mod layer;
pub mod lint;
pub mod parse;
pub mod select;
pub mod spec;
pub mod target;
