//! What travels over HTTP: request and response types and the problem body.
//!
//! Nothing here knows a rule of the domain; `model` owns the rules, `server` the routes. Only the
//! typed client, behind the feature `client`, does I/O.
//! Server and clients share these types, so that neither can drift from the other.

pub mod admin;
pub mod artifact;
pub mod boot;
pub mod bss;
#[cfg(feature = "client")]
pub mod client;
pub mod deploy;
pub mod event;
pub mod inventory;
pub mod metadata;
pub mod problem;
pub mod provision;

pub use problem::{Code, Conflict, Problem};
