//! BSS v1 over real sockets: what its shipped clients depend on.

#[path = "../support/whole.rs"]
mod site;

mod access;
mod parameters;
