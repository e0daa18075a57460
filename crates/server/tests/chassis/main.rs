//! The chassis over real sockets.

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
