//! Working on the data directory and the store themselves, while no server does.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use hoist_server::backup::{self, BackupError};
use hoist_server::data_dir::DataDir;
use hoist_store::Store;
use hoist_store::url::{self, Address};
use jiff::Timestamp;

use crate::commands::Shell;
use crate::failure::Failure;
use crate::serve;

/// Which store. A password in an address can be read by others: `password-file=` is there for it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StoreArgs {
    /// The store: `embedded`, `etcd://…` or `postgres://…`; else the one of the configuration
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

/// Where things are, without anything opened yet.
#[derive(Debug)]
pub(crate) struct StoreLocation {
    pub(crate) data_dir: PathBuf,
    pub(crate) store: String,
    pub(crate) embedded: bool,
}

/// A store that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct Offline {
    pub(crate) data_dir: PathBuf,
    pub(crate) store: Arc<dyn Store>,
    /// None where the store is elsewhere and there is no data directory here.
    _lock: Option<DataDir>,
}

impl StoreArgs {
    /// What `hoist serve` would use with the same options.
    pub(crate) fn location(&self, shell: &Shell) -> Result<StoreLocation, Failure> {
        let (data_dir, store) = serve::store_location(self.store.clone(), &shell.connection)?;
        let address: Address = store.parse().map_err(BackupError::from)?;
        Ok(StoreLocation { data_dir, store, embedded: matches!(address, Address::Embedded) })
    }

    /// Opens a store that is there, and takes the lock of its directory.
    pub(crate) async fn open(&self, shell: &Shell) -> Result<Offline, Failure> {
        let places = self.location(shell)?;
        let found = DataDir::is_there(&places.data_dir);
        if places.embedded && !places.data_dir.join("hoist.redb").exists() {
            let what = format!("database in `{}`", places.data_dir.display());
            return Err(Failure::missing(what).with_hint(
                "name another directory with `--data-dir`, or the store with `--store`",
            ));
        }
        let lock = if places.embedded || found {
            Some(DataDir::open_existing(&places.data_dir).map_err(BackupError::from)?)
        } else {
            None
        };
        places.opened(lock).await
    }

    /// As [`Self::open`], and makes the directory and the store if they are not there.
    pub(crate) async fn create(&self, shell: &Shell) -> Result<Offline, Failure> {
        let places = self.location(shell)?;
        let lock = DataDir::open(&places.data_dir).map_err(BackupError::from)?;
        places.opened(Some(lock)).await
    }
}

impl StoreLocation {
    async fn opened(self, lock: Option<DataDir>) -> Result<Offline, Failure> {
        let store = url::open(&self.store, &self.data_dir).await.map_err(BackupError::from)?;
        if !self.embedded {
            backup::check_unused(store.as_ref(), Timestamp::now()).await?;
        }
        Ok(Offline { data_dir: self.data_dir, store, _lock: lock })
    }
}
