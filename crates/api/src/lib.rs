//! Bodies of HTTP requests and responses, and the problem body.
//!
//! Nothing here knows a rule of the domain; `model` owns the rules, `server` the routes. Only the
//! typed client, behind the feature `client`, does I/O.
//! Server and clients share these types, so that neither can drift from the other.
//!
//! Does not belong here: routes, handlers and stored records.

pub mod admin;
pub mod artifact;
pub mod boot;
pub mod bss;
#[cfg(feature = "client")]
pub mod client;
pub mod cluster;
pub mod deploy;
pub mod event;
pub mod inventory;
mod json_text;
pub mod metadata;
pub mod problem;
pub mod provision;

pub use json_text::JsonText;
pub use problem::{Code, Conflict, Problem};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
