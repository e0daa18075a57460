//! The chassis: listeners, route table, authentication, certificates, audit, events, metrics.
//!
//! A context of the domain adds its routes with one function that returns `Vec<Route>`; everything
//! a route needs from the chassis comes in a [`Chassis`]. Nothing here reads flags or environment:
//! the composition root passes values in.

mod addresses;
mod admin;
pub mod artifacts;
pub mod audit;
pub mod auth;
mod authorisation;
pub mod backup;
pub mod boot;
pub mod ca;
pub mod clock;
mod compress;
pub mod controller;
pub mod data_dir;
pub mod database;
pub mod deploy;
pub mod direct;
pub mod events;
pub mod extract;
pub mod failure;
pub mod health;
mod host;
pub mod hsm;
pub mod inventory;
pub mod jwks;
mod lanes;
mod listen;
mod log_limit;
pub mod metadata;
mod observe;
pub mod open_files;
pub mod openapi;
mod path;
pub mod peer;
mod plain;
pub mod principal;
pub mod provision;
mod registration;
pub mod route;
mod scan;
mod secret;
mod server;
mod streams;
pub mod systemd;
pub mod tasks;
pub mod telemetry;
pub mod token;
mod validity;
mod whole_site;

pub use failure::Failure;
pub use listen::Limits;
pub use route::{Plane, Route};
pub use server::{Chassis, Retentions, Running, Server, ServerBuilder, StartError, Stopped};

#[cfg(test)]
#[path = "../tests/support/store.rs"]
mod store;

use std::error::Error;

/// An error and all its sources in one line, for logs.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
