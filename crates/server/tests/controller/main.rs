//! A whole controller over real sockets and real stores, asked as its clients ask it: one module per
//! context. Tests that measure the memory of the process have programs of their own.

mod artifacts;
mod backup;
mod boot;
mod bss;
mod cluster;
mod deploy;
mod filled_site;
mod fixtures;
mod hsm;
mod inventory;
mod log;
mod metadata;
mod provision;
mod site;
