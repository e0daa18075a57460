//! What tests share: stores that fail on request, real servers on loopback, connections that break.
//! For development only; nothing that ships depends on this.

pub mod certificates;
pub mod etcd;
pub mod failing_store;
pub mod postgres;
pub mod proxy;
pub mod smd;
pub mod sshd;
pub mod stores;

pub use hoist_machine as machine;
pub use hoist_machine::scratch;
