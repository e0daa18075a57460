//! The chassis: everything that each HTTP route stands on.
//!
//! Belongs here: listeners and acceptor threads, answering from memory, the route table and its
//! `OpenAPI` document, authentication, tokens, JWKS, the CA, certificates of cluster members, the
//! audit log, events, background tasks, health, metrics, extractors and problem answers. The
//! chassis serves its own routes for tokens, audit, events and health.
//!
//! Does not belong here: any context of the domain (site, boot, metadata, provisioning,
//! deployment, artifacts). A context adds its routes with one function that returns
//! `Vec<Route>` and takes its services from a [`Chassis`]. The chassis must not depend on a
//! context's crate; `cargo xtask tidy` checks that. Nothing here reads flags or the environment:
//! the composition root passes values in.

mod acceptor_threads;
pub mod addresses;
mod admin;
pub mod audit;
pub mod auth;
pub mod ca;
pub mod certificate_request;
pub mod clock;
pub mod cluster_authority;
mod compress;
pub mod direct;
pub mod events;
pub mod extract;
pub mod failure;
pub mod file_answer;
pub mod health;
mod host;
pub mod jwks;
pub mod large_answer;
mod listen;
pub mod log_limit;
pub mod member;
mod observe;
pub mod open_files;
pub mod openapi;
mod path;
pub mod peer;
mod plain;
pub mod principal;
pub mod route;
pub mod scan;
pub mod secret;
mod server;
mod streams;
pub mod systemd;
pub mod tasks;
pub mod telemetry;
pub mod token;
mod validity;

pub use failure::Failure;
pub use listen::Limits;
pub use route::{AccessClass, Route};
pub use server::{
    Chassis, PreparedServer, Retentions, RunningServer, Server, ServerBuilder, StartError,
    StopReport,
};
