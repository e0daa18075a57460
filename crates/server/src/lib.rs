//! The controller: the contexts of the domain as HTTP routes on the chassis.
//!
//! Belongs here: the routes and background tasks of each context (site, boot, metadata,
//! provisioning, deployment, cluster, artifacts, HSM), backup of the data directory, and
//! [`controller::Controller`], which puts them together. Nothing here reads flags or the
//! environment: the composition root passes values in.
//!
//! Does not belong here: anything that a route of every context needs (`hoist-chassis`), and the
//! rules of a context that need no HTTP (the context's own crate).

// Shared by the contexts, and below all of them.
pub mod age_identities;
mod ahead;
mod audited_commit;
mod authorisation;
pub mod data_dir;
mod data_disk;
pub mod enrollment;
pub mod http_client;
pub mod installed_systems;
mod node_lookup;
mod profile_secrets;
mod registration;
pub mod site;
pub mod site_key;
pub mod vault;

// The contexts.
pub mod artifacts;
pub mod backup;
pub mod boot;
pub mod cluster;
pub mod database;
pub mod deploy;
pub mod hsm;
pub mod inventory;
pub mod metadata;
pub mod provision;
pub mod upgrade;

// The composition.
pub mod controller;
