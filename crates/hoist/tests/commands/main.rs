//! The commands of `hoist`, run as processes against a controller. Commands about deployment, images
//! and machines that boot have programs of their own, because they take longer.

mod artifact;
mod backup;
mod bench;
mod boot;
mod bss_environment;
mod cli;
mod docs;
mod import_bss;
mod journey;
mod metadata;
mod plugin;
mod site;
mod smd_tls;
mod survive;
