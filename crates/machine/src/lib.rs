//! Virtual machines that boot from the network with real firmware, and kernels and images for them.
//! For tests and the demo; nothing that ships depends on this.
//!
//! Virtual machines are emulated (`-accel tcg`): no `/dev/kvm`, no rights, the same on every
//! machine. Where cloud-init alone is tested, [`cloud_init`] runs it without one.
//!
//! Does not belong here: tests, and assertions about hoist.

pub mod cloud_init;
pub mod console;
mod deadline;
pub mod disk;
mod from_disk;
pub mod guest;
mod machine;
pub mod scratch;
mod standalone;
pub mod variables;

pub use disk::quick_dir;
pub use from_disk::{NvmeDisk, boot_from_disk};
pub use machine::{Firmware, HOST, Hardware, Kernel, Machine, Permit};
pub use standalone::{Drive, StandaloneMachine};
