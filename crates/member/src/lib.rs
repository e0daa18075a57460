//! The node's side of a cluster: joining one, and working as its member.
//!
//! | Module | Concept |
//! | --- | --- |
//! | [`state`] | the files of a member, and the lock of their directory |
//! | [`key`] | the key of the node, and the id that follows from it |
//! | [`trust`] | TLS that trusts a pinned root, or the authorities of the cluster |
//! | [`controller`] | calls of a controller, over a bounded HTTP client |
//! | [`facts`] | hardware and host, as the controller and the checks want them |
//! | [`join`] | joining as a plan of the engine, with a journal |
//! | [`service`] | the systemd unit of the agent |
//! | [`daemon`] | reports, work and renewal of a member |
//! | [`bootstrap`] | the command `bootstrap`: decide, then found, join or stop |
//! | [`local_network`] | the search for clusters of `bootstrap` |
//! | [`identity`] | the command `identity` |
//! | [`command_line`] | the arguments of both commands |
//!
//! Everything is synchronous: a node carries no async runtime. Decisions about found, join or stop
//! belong to `hoist_cluster::detection`, and the controller's side to `hoist-server`.

pub mod bootstrap;
pub mod command_line;
pub mod console;
pub mod controller;
pub mod daemon;
pub mod facts;
mod http;
pub mod identity;
pub mod interrupt;
pub mod join;
pub mod key;
pub mod local_network;
mod random;
pub mod service;
pub mod state;
pub mod trust;
