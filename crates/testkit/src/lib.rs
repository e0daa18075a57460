//! Support that tests of several crates share: waiting, servers on loopback, disks, stores that fail
//! on request, connections that break. For development only; nothing that ships depends on this.
//!
//! Support that only one crate uses belongs to the tests of that crate. Virtual machines belong to
//! [`hoist_machine`], which the demo uses too.

mod eventually;
mod skip;

#[cfg(feature = "agent")]
pub mod agent_controller;
#[cfg(feature = "servers")]
pub mod certificates;
pub mod controller_process;
#[cfg(feature = "servers")]
pub mod etcd;
#[cfg(feature = "servers")]
pub mod failing_store;
#[cfg(feature = "tokens")]
pub mod issuer;
pub mod loop_disk;
#[cfg(feature = "async")]
pub mod own_network;
#[cfg(feature = "servers")]
pub mod postgres;
#[cfg(feature = "servers")]
pub mod proxy;
#[cfg(feature = "servers")]
pub mod smd;
pub mod sshd;
#[cfg(feature = "servers")]
pub mod stores;

pub use eventually::{DEADLINE, Observation, eventually, eventually_within};
#[cfg(feature = "async")]
pub use eventually::{eventually_async, eventually_async_within};
pub use hoist_machine as machine;
pub use hoist_machine::scratch;
pub use skip::skip;
