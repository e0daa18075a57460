//! The chassis over real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../support/memory.rs"]
mod memory;
mod site;

mod access;
mod audit;
mod bounds;
mod events;
mod jwt;
mod lifecycle;
mod routes;
mod tls;
