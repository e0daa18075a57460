//! Building images of operating systems, on a server and never on a node.
//!
//! A document says what shall be in an image. A builder fills a directory; that becomes a file
//! system, or one file for machines without disks; what boots it is made beside it. Nothing is
//! mounted, and the same input gives the same bytes.
//!
//! This is a room of its own, with a program of its own, because it needs what no node shall carry:
//! package managers, compressors, boot loaders. `hoist`, `hoist-agent` and `hoist-provision` must
//! never depend on it; it must never know the store, the inventory, the server or HTTP.

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
mod whole_disk;

pub use build::{Build, BuildError, Made, Place, Told};
