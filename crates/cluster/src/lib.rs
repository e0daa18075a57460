//! Decisions about a cluster as functions of values: who founds and joins it, who its members are,
//! and which roles they have.
//!
//! [`id`] has the identities of clusters, nodes and keys, [`address`] the addresses of controllers,
//! [`join_token`] the permission to join, [`membership`] the members and the requests to join,
//! [`cluster_plan`] the chain of role plans, [`detection`] the decision of a machine between founding,
//! joining and stopping, [`config`] reads cluster.yaml, [`pre_check`] has the checks before a join,
//! [`beacon`] the messages by which machines find clusters on the local network. [`role`] has the
//! roles with their bounds, [`resources`] the hardware that the decision compares, [`planner`]
//! assigns a role to each member, [`what_if`] reads a file of members and plans it offline.
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
