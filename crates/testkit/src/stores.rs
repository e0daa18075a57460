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
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// One process, one file: handles are clones.
    Embedded {
        store: EmbeddedStore,
        _dir: tempfile::TempDir,
    },
    Server(String),
}

impl Ground {
    pub fn new(backend: Backend) -> Self {
        let place = match backend {
            Backend::Embedded => {
                let dir = tempfile::tempdir().expect("an empty place to open");
                let store = EmbeddedStore::open(dir.path(), Retention::default());
                Place::Embedded { store: store.expect("an empty place to open"), _dir: dir }
            }
            Backend::Etcd => Place::Server(EtcdServer::shared().url(&fresh_name())),
            Backend::EtcdTls => Place::Server(EtcdServer::shared_with_tls().url(&fresh_name())),
            Backend::Postgres => Place::Server(PostgresServer::shared().url(&fresh_name())),
        };
        Self { place }
    }

    /// A further handle: for servers as another process would have it, with its own connections.
    pub async fn store(&self) -> Arc<dyn Store> {
        match &self.place {
            Place::Embedded { store, .. } => Arc::new(store.clone()),
            Place::Server(url) => {
                hoist_store::url::open(url, Path::new("/")).await.expect("an empty place to open")
            }
        }
    }

    /// Whether others write to the same revisions meanwhile.
    pub fn is_shared(&self) -> bool {
        matches!(&self.place, Place::Server(url) if url.starts_with("etcd"))
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
