//! Filling a store with a copy: the last step of a restore, and `hoist db import`.

use std::sync::Arc;

use hoist_chassis::audit::{AuditError, AuditLog, Draft};
use hoist_chassis::clock::SystemClock;
use hoist_site::controllers;
use hoist_site::schema::{self, Schema};
use hoist_store::{Key, Store, copy};
use jiff::Timestamp;
use tokio::io::AsyncRead;

use super::BackupError;
use crate::cluster;
use crate::enrollment::keys;

/// Controllers that run on a store, unless the lock of its directory tells better.
pub async fn check_unused(store: &dyn Store, now: Timestamp) -> Result<(), BackupError> {
    let live = controllers::live(store, now).await?;
    if live.is_empty() { Ok(()) } else { Err(BackupError::InUse(live)) }
}

/// Fills the store with a verified copy, as a new incarnation, which is returned: revisions that
/// clients remember become void. `method` appears in the audit log.
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
        // A token that was claimed or ended since must not come to life again.
        let is_past = controllers::is_registration(key) || keys::is_enrollment(key);
        if is_past { None } else { cluster::restored(key, value) }
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
