//! Initial RAM disks: archives that a kernel unpacks before anything else runs, and their content.
//! The same input gives the same bytes.
//!
//! * [`Tree`] is the content of an archive; [`Tree::archive`] writes it in the kernel's format.
//! * [`cpio`] is that format, also for archives that do not fit into memory.
//! * [`modules`] finds drivers and their dependencies in a kernel that is not installed.
//! * [`programs`] finds the shared libraries of programs.
//! * [`agent`] assembles the image of the provisioning agent.
//!
//! Must never know: nodes, HTTP, the store.

pub mod agent;
pub mod cpio;
mod elf;
pub mod modules;
pub mod programs;
mod tree;

pub use elf::ElfError;
pub use tree::{Entry, Tree, TreeError, pack};
