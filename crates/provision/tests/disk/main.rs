//! Real block devices: loop devices over files, as root. Disks that no test names must come out of
//! every one of them as they went in.

mod again;
mod erase;
mod guard;
mod images;
mod kernel;
mod loop_device;
mod machine;
mod old_system;
mod power_cut;
mod probe;
mod qcow2;
mod resume;
mod server;
mod signature;
mod stalled;
mod table;
mod undo;
mod whole;
