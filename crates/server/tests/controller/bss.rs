//! BSS v1 over real sockets: what its shipped clients depend on.

mod access;
mod helper;
mod history;
mod hosts;
mod import;
mod locks;
mod metadata;
mod notices;
mod parameters;
mod service;
