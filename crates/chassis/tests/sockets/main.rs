//! The chassis over real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod site;

mod access;
mod audit;
mod bounds;
mod direct;
mod events;
mod files;
mod jwt;
mod lifecycle;
mod members;
mod plain;
mod routes;
mod tls;
