//! The opened site: the state that all contexts share.
//!
//! Not here: opening it (`controller`), and the services of the chassis.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hoist_site::import::Importer;
use hoist_site::{Registry, SiteKey, States};

/// The site of a running controller. Clones share it.
#[derive(Debug, Clone)]
pub struct Site {
    pub registry: Registry,
    pub states: States,
    /// Makes the tokens of nodes and agents.
    pub key: SiteKey,
    /// `embedded`, `etcd` or `postgres`: known even while the store is away.
    pub backend: &'static str,
    /// Where nodes are imported from, if they are.
    pub source: Option<Source>,
    pub data_dir: PathBuf,
    pub ports: Ports,
    /// When this controller started.
    pub started: Instant,
}

impl Site {
    /// Whether other controllers may use the same store.
    pub fn is_shared(&self) -> bool {
        self.backend != EMBEDDED
    }
}

/// The backend that only one controller can use.
pub(crate) const EMBEDDED: &str = "embedded";

/// The configured source of the inventory.
#[derive(Debug, Clone)]
pub struct Source {
    /// Without credentials.
    pub url: String,
    pub importer: Importer,
}

/// The ports that this controller listens on. They are empty until it listens: a machine that asks
/// before that must be told to ask again.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    pub plain: Arc<OnceLock<u16>>,
    pub tls: Arc<OnceLock<u16>>,
}

impl Ports {
    /// Only the first call counts.
    pub(crate) fn set(&self, plain: Option<SocketAddr>, tls: Option<SocketAddr>) {
        for (port, addr) in [(&self.plain, plain), (&self.tls, tls)] {
            if let Some(addr) = addr {
                let _ = port.set(addr.port());
            }
        }
    }
}
