//! Artifacts over real sockets and a real disk: brought, served, cared for, and shared.

#[path = "../support/whole.rs"]
#[allow(dead_code, reason = "several test binaries share it, and none uses all of it")]
mod site;

mod care;
mod content;
mod serve;
mod siblings;
mod upload;
