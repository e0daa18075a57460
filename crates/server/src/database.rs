//! hoist's own database as a whole: what is in it, filling it from a copy, and its way to a newer
//! schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_api::admin::{ControllerSeen, Database, DatabaseSchema};
use hoist_inventory::schema::{self, MigrateError, Migrated, Schema, SchemaError};
use hoist_inventory::{controllers, record};
use hoist_store::{Cursor, Key, Prefix, Store, copy};
use jiff::Timestamp;
use tokio::io::AsyncRead;

use crate::audit::{AuditError, AuditLog, Draft};
use crate::backup::{self, BackupError, Output};
use crate::clock::SystemClock;
use crate::secret;

/// Where the backups go that are made before a migration.
const UPGRADES: &str = "upgrades";

/// Records read at once.
const PAGE: usize = 1000;

pub type UpgradeError = MigrateError<BackupError>;

/// What [`upgrade`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgraded {
    pub migrated: Migrated,
    /// The backup that was made before, if there was something to do.
    pub backup: Option<PathBuf>,
}

/// Counts everything, and says who uses it.
pub async fn status(store: &dyn Store, now: Timestamp) -> Result<Database, SchemaError> {
    let health = store.health().await?;
    let schema = match store.get(&schema::schema_key()).await? {
        None => None,
        Some(record) => Some(Schema::from_bytes(&record.value)?),
    };
    let seen = |found: controllers::Registration| ControllerSeen {
        live: found.is_live(now),
        id: found.id,
        version: found.version,
        schema: found.schema,
        at: found.at.to_string(),
    };
    Ok(Database {
        backend: health.backend.to_owned(),
        detail: health.detail,
        revision: health.revision.0,
        size_bytes: health.size_bytes,
        schema: schema.map(|schema| DatabaseSchema {
            version: schema.version,
            written_by: schema.written_by,
            incarnation: schema.incarnation.as_str().to_owned(),
        }),
        newest_schema: schema::VERSION,
        records: count(store).await?,
        unfinished_import: copy::is_unfinished(store).await?,
        controllers: controllers::list(store).await?.into_iter().map(seen).collect(),
    })
}

async fn count(store: &dyn Store) -> Result<BTreeMap<String, u64>, SchemaError> {
    let mut counts = BTreeMap::new();
    let mut from: Option<Cursor> = None;
    loop {
        let page = store.list(&Prefix::All, from, PAGE).await?;
        for record in &page.records {
            let top = record.key.as_str().split('/').next().unwrap_or_default();
            match counts.get_mut(top) {
                Some(count) => *count += 1,
                None => drop(counts.insert(top.to_owned(), 1)),
            }
        }
        from = page.next;
        if from.is_none() {
            return Ok(counts);
        }
    }
}

/// Controllers that run on a store, unless the lock of its directory tells better.
pub async fn check_unused(store: &dyn Store, now: Timestamp) -> Result<(), BackupError> {
    let live = controllers::live(store, now).await?;
    if live.is_empty() { Ok(()) } else { Err(BackupError::InUse(live)) }
}

/// Fills the store with a copy that was checked, as a new incarnation of it, which is returned:
/// what others remember of revisions does not count any more. `method` is what the audit log says.
pub async fn fill(
    store: Arc<dyn Store>,
    copy: impl AsyncRead + Unpin,
    overwrite: bool,
    method: &str,
) -> Result<String, BackupError> {
    let overwrite = overwrite || copy::is_unfinished(store.as_ref()).await?;
    let schema_key = schema::schema_key();
    let mut incarnation = None;
    let edit = |key: &Key, value: Vec<u8>| {
        if *key == schema_key
            && let Ok(schema) = Schema::from_bytes(&value)
        {
            let schema = schema.reborn();
            incarnation = Some(schema.incarnation.as_str().to_owned());
            return Some(schema.to_bytes());
        }
        // A token that was redeemed or ended since must not come to life again.
        let is_past = controllers::is_registration(key) || record::is_arming(key);
        (!is_past).then_some(value)
    };
    copy::import_checked(store.as_ref(), copy, overwrite, edit).await?;
    let audit = AuditLog::new(store, Arc::new(SystemClock));
    let draft = Draft {
        who: "local".to_owned(),
        method: method.to_owned(),
        object: "database".to_owned(),
        ..Draft::default()
    };
    match audit.append(&draft).await {
        Err(AuditError::Store(error)) => return Err(error.into()),
        // A chain that was damaged before is not a reason to be without the site.
        Err(AuditError::Damaged { .. }) | Ok(_) => {}
    }
    incarnation.ok_or(BackupError::NoSchema)
}

/// Brings the store to the newest schema; before that, a backup goes to `<data-dir>/upgrades/`. It
/// is as private as the directory, which holds the same keys, and not encrypted.
pub async fn upgrade(
    store: Arc<dyn Store>,
    data_dir: &Path,
    now: Timestamp,
) -> Result<Upgraded, UpgradeError> {
    let mut made = None;
    let backup = async |schema: &Schema| {
        let dir = data_dir.join(UPGRADES);
        secret::ensure_private_dir(&dir).map_err(BackupError::File)?;
        let name = format!("schema-{}-{}.backup", schema.version, now.strftime("%Y%m%dT%H%M%SZ"));
        let path = dir.join(name);
        let output = Output::create(&path, false)?;
        let source = backup::Source {
            data_dir: data_dir.to_owned(),
            store: Arc::clone(&store),
            with_artifacts: false,
            now,
        };
        let (output, ..) = backup::write(source, output).await?;
        output.finish()?;
        made = Some(path);
        Ok(())
    };
    let migrated = schema::migrate(store.as_ref(), now, backup).await?;
    Ok(Upgraded { migrated, backup: made })
}
