//! Decisions about a cluster as functions of values: today the roles of its members.
//!
//! [`role`] has the roles with their bounds, [`resources`] the hardware that the decision compares,
//! [`planner`] assigns a role to each member, [`what_if`] reads a file of members and plans it
//! offline.
//!
//! Must never know: I/O, async, a clock, randomness, the store, the site, HTTP.

pub mod planner;
pub mod resources;
pub mod role;
pub mod what_if;
