//! The state of hoist's own database: backend, schema, records, controllers.
//!
//! Not here: filling it from a copy (`backup`), and migrating it to a newer schema (`upgrade`).

use std::collections::BTreeMap;

use hoist_api::admin::{ControllerSeen, Database, DatabaseSchema};
use hoist_site::controllers;
use hoist_site::schema::{self, Schema, SchemaError};
use hoist_store::{Cursor, Prefix, Store, copy};
use jiff::Timestamp;

/// Records read at once.
const PAGE: usize = 1000;

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
