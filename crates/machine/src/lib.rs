//! Virtual machines that boot from the network with real firmware, and what to boot in them. For
//! tests and the demo; nothing that ships depends on this.
//!
//! Virtual machines are emulated (`-accel tcg`): no `/dev/kvm`, no rights, the same on every machine.
//! Where only cloud-init is wanted, [`cloud_init`] runs it without one.

mod alone;
pub mod cloud_init;
pub mod console;
pub mod disk;
mod from_disk;
pub mod guest;
pub mod initrd;
mod machine;
mod patience;
pub mod scratch;
pub mod variables;

pub use alone::{Alone, Drive};
pub use disk::quick_dir;
pub use from_disk::{NvmeDisk, boot_from_disk};
pub use machine::{Firmware, HOST, Hardware, Kernel, Machine, Turn};
