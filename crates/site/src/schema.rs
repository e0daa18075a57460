//! The version of the records in the store, and the store's incarnation.
//!
//! A controller works with every schema from [`OLDEST`] to [`VERSION`], so all controllers of a
//! site can be replaced one by one before [`migrate`] raises the schema. An older controller
//! refuses a newer schema by name.

mod migrate;

use hoist_store::{Compare, Key, Op, Prefix, Store, StoreError, Txn};
use serde::{Deserialize, Serialize};

use crate::registry::mint_incarnation;
use crate::roster::Incarnation;

/// The newest layout of records that this version can read, and the one it writes.
pub const VERSION: u32 = 1;

/// The oldest layout that this version still works with.
pub const OLDEST: u32 = 1;

pub use migrate::{
    MIGRATIONS, MigrateError, Migration, MigrationReport, due, migrate, migrate_with,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub version: u32,
    /// The version of hoist that wrote it.
    pub written_by: String,
    pub incarnation: Incarnation,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    #[error("the store cannot be reached")]
    Store(#[from] StoreError),
    #[error(
        "the store has schema {found}, written by hoist {by}; this is hoist {} and knows schemas up to {VERSION}",
        env!("CARGO_PKG_VERSION")
    )]
    Newer { found: u32, by: String },
    #[error(
        "the store has schema {found}, written by hoist {by}; this is hoist {} and knows schemas from {OLDEST} on",
        env!("CARGO_PKG_VERSION")
    )]
    Older { found: u32, by: String },
    #[error("an import into the store was begun and not finished; repeat it, with `--overwrite`")]
    Unfinished,
    #[error("the store has records, but none of them says that it belongs to hoist")]
    Foreign,
    #[error("the schema record cannot be read: {0}")]
    Unreadable(String),
}

pub fn schema_key() -> Key {
    "meta/schema".parse().expect("a valid key")
}

/// The incarnation of a store of ours; a new, empty store becomes one.
pub async fn open(store: &dyn Store) -> Result<Incarnation, SchemaError> {
    if hoist_store::copy::is_unfinished(store).await? {
        return Err(SchemaError::Unfinished);
    }
    if let Some(schema) = read(store).await? {
        return Ok(schema.incarnation);
    }
    if !store.list(&Prefix::All, None, 1).await?.records.is_empty() {
        return Err(SchemaError::Foreign);
    }
    let schema = Schema::new();
    let bytes = schema.to_bytes();
    let compares = vec![Compare::Absent(schema_key())];
    match store.commit(Txn { compares, ops: vec![Op::Put(schema_key(), bytes)] }).await {
        Ok(_) => Ok(schema.incarnation),
        // Another controller started at the same moment.
        Err(StoreError::Conflict { .. }) => {
            read(store).await?.map(|schema| schema.incarnation).ok_or(SchemaError::Foreign)
        }
        Err(error) => Err(error.into()),
    }
}

/// The schema record of the store; `None` when the store is new.
pub async fn read(store: &dyn Store) -> Result<Option<Schema>, SchemaError> {
    let Some(record) = store.get(&schema_key()).await? else { return Ok(None) };
    let schema = Schema::from_bytes(&record.value)?;
    if schema.version > VERSION {
        return Err(SchemaError::Newer { found: schema.version, by: schema.written_by });
    }
    if schema.version < OLDEST {
        return Err(SchemaError::Older { found: schema.version, by: schema.written_by });
    }
    Ok(Some(schema))
}

impl Schema {
    /// Of this version, with a new incarnation.
    #[expect(clippy::new_without_default, reason = "every call gives another incarnation")]
    pub fn new() -> Self {
        Self {
            version: VERSION,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: mint_incarnation(),
        }
    }

    /// Whatever version it is of.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SchemaError> {
        serde_json::from_slice(bytes).map_err(|error| SchemaError::Unreadable(error.to_string()))
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a plain record")
    }

    /// The same schema under a new incarnation: revisions of the old one no longer count.
    #[must_use]
    pub fn reborn(self) -> Self {
        Self { incarnation: Incarnation::restored(&mint_incarnation()), ..self }
    }
}
