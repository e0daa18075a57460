//! Images for agents and systems: they are built, and virtual machines boot them.

mod agent;
mod network_boot;
mod retire;
mod system;
