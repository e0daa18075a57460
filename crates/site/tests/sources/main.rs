//! Sources over real sockets and real files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod conformance;
mod file;
mod smd;
mod store;
mod tls;
