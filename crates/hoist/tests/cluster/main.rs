//! `hoist cluster` against a controller that runs as a process.

mod commands;
mod discovery;
mod journey;
mod network;
