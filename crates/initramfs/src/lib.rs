//! Initial RAM disks: archives that a kernel unpacks before anything else runs, and what belongs into
//! them. The same input gives the same bytes.
//!
//! * [`Tree`] is what the archive holds; [`Tree::archive`] writes it as the kernel reads it.
//! * [`modules`] finds drivers and what they need, in a kernel that nobody has installed.
//! * [`programs`] finds the shared libraries of programs.
//! * [`agent`] puts the image together that provisions machines.
//!
//! Must never know: nodes, HTTP, the store.

pub mod agent;
mod elf;
pub mod modules;
pub mod programs;
mod tree;

pub use elf::ElfError;
pub use tree::{Entry, Tree, TreeError, pack};
