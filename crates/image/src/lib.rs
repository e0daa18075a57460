//! Builds images of operating systems, on a server and never on a node.
//!
//! A document describes the content of an image. A builder fills a directory, which becomes a file
//! system or one file for machines without disks; boot loaders are made beside it. Nothing is
//! mounted, and the same input gives the same bytes.
//!
//! The crate is separate because it needs package managers, compressors and boot loaders, which no
//! node should carry. `hoist`, `hoist-agent` and `hoist-provision` must never depend on it; it must
//! never know the store, the inventory, the server or HTTP.

pub mod build;
mod builder;
mod cpio;
pub mod document;
mod ext4;
mod loader;
mod package;
mod pe;
mod tool;
mod tree;
pub mod unpack;
mod whole_disk;

pub use build::{Build, BuildError, BuildPaths, BuildProgress, OutputFile};
