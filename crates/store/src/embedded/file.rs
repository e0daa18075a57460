//! The redb file: opening it, opening it again after it failed, and what its errors mean.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, StorageBackend};

use super::tables::TableError;
use crate::StoreError;

/// Makes the storage below the database; called for every opening.
pub type OpenBackend = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync>;

/// The database, replaced as a whole after an I/O error.
///
/// redb refuses all work once a write has failed, because it cannot know how much reached the disk.
/// Reopening finds the newest complete commit, so this type reopens the file; `None` is the time
/// between a failure and the first successful reopening (a full disk may last for hours).
pub(super) struct File {
    open: Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>,
    name: String,
    path: Option<PathBuf>,
    database: RwLock<Option<Database>>,
    full: AtomicBool,
}

/// Pages kept in memory. The working set of a site is small; the roster answers the boots.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

impl File {
    pub(super) fn at(path: PathBuf) -> Self {
        let name = path.display().to_string();
        let target = path.clone();
        let open = move || create_file(&target);
        Self::new(Box::new(open), name, Some(path))
    }

    pub(super) fn on(open: OpenBackend) -> Self {
        let open = move || {
            let backend = BoxedBackend(open()?);
            Ok(Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
        };
        Self::new(Box::new(open), "storage of the caller".to_owned(), None)
    }

    fn new(
        open: Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>,
        name: String,
        path: Option<PathBuf>,
    ) -> Self {
        let full = AtomicBool::new(false);
        Self { open, name, path, database: RwLock::new(None), full }
    }

    /// Whether the last write found no space.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn size(&self) -> Option<u64> {
        Some(fs_err::metadata(self.path.as_ref()?).ok()?.len())
    }

    /// Runs `job` on one snapshot.
    pub(super) fn read<T>(
        &self,
        job: impl FnOnce(&ReadTransaction) -> Result<T, TableError>,
    ) -> Result<T, StoreError> {
        self.with(|database| job(&database.begin_read().map_err(redb::Error::from)?))
    }

    /// Runs `job` on the open database, opening it first if it had failed.
    pub(super) fn with<T>(
        &self,
        job: impl FnOnce(&Database) -> Result<T, TableError>,
    ) -> Result<T, StoreError> {
        loop {
            let slot = self.database.read();
            if let Some(database) = slot.as_ref() {
                return job(database).map_err(|error| self.explain(error));
            }
            drop(slot);
            self.reopen()?;
        }
    }

    /// Closes the database after an error. The next use opens it again.
    pub(super) fn close(&self) {
        *self.database.write() = None;
    }

    fn reopen(&self) -> Result<(), StoreError> {
        let mut slot = self.database.write();
        if slot.is_some() {
            return Ok(());
        }
        // redb asserts on some headers it cannot make sense of; to our callers that is damage too.
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.open)()))
            .map_err(|_| StoreError::Damaged { detail: format!("{}: unreadable", self.name) })?;
        *slot = Some(opened.map_err(|error| self.explain(TableError::Storage(error)))?);
        Ok(())
    }

    pub(super) fn explain(&self, error: TableError) -> StoreError {
        match error {
            TableError::Answer(error) => error,
            TableError::Storage(error) => explain(&self.name, &error),
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Mode 0600: the records hold secrets.
fn create_file(path: &std::path::Path) -> Result<Database, redb::Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Ok(Builder::new().set_cache_size(CACHE_BYTES).create_file(file)?)
}

fn explain(name: &str, error: &redb::Error) -> StoreError {
    let detail = format!("{name}: {error}");
    match error {
        redb::Error::Io(io) => match io.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => StoreError::Full { detail },
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                StoreError::Damaged { detail }
            }
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::ReadOnlyFilesystem => StoreError::Refused { detail },
            _ => StoreError::Unavailable { detail },
        },
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse { detail },
        redb::Error::Corrupted(_)
        | redb::Error::RepairAborted
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableIsMultimap(_) => StoreError::Damaged { detail },
        _ => StoreError::Unavailable { detail },
    }
}

/// `create_with_backend` wants a type, the caller gave us an object.
#[derive(Debug)]
struct BoxedBackend(Box<dyn StorageBackend>);

impl StorageBackend for BoxedBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}
