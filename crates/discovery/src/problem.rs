//! Failures that discovery survives.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hoist_cluster::beacon::Method;

/// A part of discovery that does not work. The others do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("{interface}: no such interface, or it is down or has no address")]
    Missing { interface: String },
    #[error("{interface}: cannot ask by {}: {error}", .method.as_str())]
    Ask { interface: String, method: Method, error: Arc<io::Error> },
    #[error("{interface}: cannot listen on {family}: {error}")]
    Listen { interface: String, family: &'static str, error: Arc<io::Error> },
    #[error("seed {seed} is on the network of no interface; only such seeds answer")]
    Seed { seed: SocketAddr },
}
