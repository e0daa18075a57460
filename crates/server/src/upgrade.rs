//! Migrating the database to a newer schema, with a backup before it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_chassis::secret;
use hoist_site::schema::{self, MigrateError, MigrationReport, Schema};
use hoist_store::Store;
use jiff::Timestamp;

use crate::backup::{self, BackupError, Output};

/// Where the backups go that are made before a migration.
const UPGRADES: &str = "upgrades";

pub type UpgradeError = MigrateError<BackupError>;

/// What [`upgrade`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeReport {
    pub migrated: MigrationReport,
    /// The backup that was made before, if there was something to do.
    pub backup: Option<PathBuf>,
}

/// Brings the store to the newest schema; before that, a backup goes to `<data-dir>/upgrades/`. It
/// is as private as the directory, which holds the same keys, and not encrypted.
pub async fn upgrade(
    store: Arc<dyn Store>,
    data_dir: &Path,
    now: Timestamp,
) -> Result<UpgradeReport, UpgradeError> {
    let mut made = None;
    let backup = async |schema: &Schema| {
        made = Some(write_backup(&store, data_dir, schema, now).await?);
        Ok(())
    };
    let migrated = schema::migrate(store.as_ref(), now, backup).await?;
    Ok(UpgradeReport { migrated, backup: made })
}

async fn write_backup(
    store: &Arc<dyn Store>,
    data_dir: &Path,
    schema: &Schema,
    now: Timestamp,
) -> Result<PathBuf, BackupError> {
    let dir = data_dir.join(UPGRADES);
    secret::ensure_private_dir(&dir).map_err(BackupError::File)?;
    let name = format!("schema-{}-{}.backup", schema.version, now.strftime("%Y%m%dT%H%M%SZ"));
    let path = dir.join(name);
    let output = Output::create(&path, false)?;
    let source = backup::Source {
        data_dir: data_dir.to_owned(),
        store: Arc::clone(store),
        with_artifacts: false,
        now,
    };
    let (output, ..) = backup::write(source, output).await?;
    output.finish()?;
    Ok(path)
}
