//! An empty store of each kind, for tests that must hold on all of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::etcd::EtcdServer;
use crate::failing_store::FailingStore;
use crate::postgres::PostgresServer;
use hoist_store::Store;
use hoist_store::embedded::{EmbeddedStore, Retention};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Embedded,
    Etcd,
    EtcdTls,
    Postgres,
}

/// An empty store that several handles can be opened on.
#[derive(Debug)]
pub struct Ground {
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// One process, one file: handles are clones.
    Embedded {
        store: EmbeddedStore,
        _dir: tempfile::TempDir,
    },
    Server(String),
}

impl Ground {
    pub fn new(backend: Backend) -> Self {
        let backing = match backend {
            Backend::Embedded => {
                let dir = tempfile::tempdir().expect("an empty backing to open");
                let store = EmbeddedStore::open(dir.path(), Retention::default());
                Backing::Embedded { store: store.expect("an empty backing to open"), _dir: dir }
            }
            Backend::Etcd => Backing::Server(EtcdServer::shared().url(&fresh_name())),
            Backend::EtcdTls => Backing::Server(EtcdServer::shared_with_tls().url(&fresh_name())),
            Backend::Postgres => Backing::Server(PostgresServer::shared().url(&fresh_name())),
        };
        Self { backing }
    }

    /// A further handle: for servers as another process would have it, with its own connections.
    pub async fn store(&self) -> Arc<dyn Store> {
        match &self.backing {
            Backing::Embedded { store, .. } => Arc::new(store.clone()),
            Backing::Server(url) => {
                hoist_store::url::open(url, Path::new("/")).await.expect("an empty backing to open")
            }
        }
    }

    /// Whether others write to the same revisions meanwhile.
    pub fn is_shared(&self) -> bool {
        matches!(&self.backing, Backing::Server(url) if url.starts_with("etcd"))
    }
}

/// The embedded store, made to fail on request.
pub type TestStore = FailingStore<EmbeddedStore>;

/// An empty store, removed with its last handle: the open file outlives its name.
pub fn test_store() -> Arc<TestStore> {
    let dir = tempfile::tempdir().expect("a directory");
    let store = EmbeddedStore::open(dir.path(), Retention::default()).expect("an empty store");
    Arc::new(FailingStore::new(store))
}

/// A prefix or schema that no other test of this process uses.
pub fn fresh_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
