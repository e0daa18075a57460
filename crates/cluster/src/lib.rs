//! Decisions about a cluster as functions of values: who founds and joins it, who its members are,
//! and which roles they have.
//!
//! Joining: [`config`] reads `cluster.yaml`, [`detection`] decides between founding and joining,
//! [`pre_check`] judges a machine before it joins, [`join_token`] is the permission to join, and
//! [`membership`] has the members with the operations on them. [`id`] has the identities of clusters,
//! nodes and keys, [`address`] the addresses of controllers, [`beacon`] the messages by which machines
//! find clusters on the local network.
//!
//! Roles: [`role`] has them with their bounds, [`resources`] the hardware that the decision compares,
//! [`planner`] assigns a role to each member, [`cluster_plan`] chains the plans of a cluster, and
//! [`what_if`] reads a file of members and plans it offline.
//!
//! Must never know: I/O, async, a clock, randomness, the store, the site, HTTP.

pub mod address;
pub mod beacon;
pub mod cluster_plan;
pub mod config;
pub mod detection;
mod hexadecimal;
pub mod id;
pub mod join_token;
pub mod membership;
pub mod planner;
pub mod pre_check;
pub mod resources;
pub mod role;
mod text_form;
pub mod what_if;
