//! Tests on real block devices: loop devices over files, as root. Disks that a test does not name
//! must stay unchanged.

mod again;
mod erase;
mod foreign;
mod formats;
mod guard;
mod images;
mod kernel;
mod machine;
mod old_system;
mod power_cut;
mod probe;
mod qcow2;
mod resume;
mod server;
mod signature;
mod sources;
mod stalled;
mod table;
mod undo;
mod whole;
