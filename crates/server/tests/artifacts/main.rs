//! Artifacts over real sockets and a real disk: brought, served, cared for, and shared.

#[path = "../support/whole.rs"]
mod site;

mod care;
mod content;
mod serve;
mod siblings;
mod upload;
