//! `hoist-agent` on loop devices, as root. Each test starts the agent as a process of its own.

mod apply;
mod facts;
mod interrupted;
mod job;
mod report;
mod walls;
mod whole_disk;
