//! The version of what is in the store, and the store's incarnation.

use hoist_store::{Compare, Key, Op, Prefix, Store, StoreError, Txn};
use serde::{Deserialize, Serialize};

use crate::registry::mint_incarnation;
use crate::roster::Incarnation;

/// The newest layout of records that this version can read, and the one it writes.
pub const VERSION: u32 = 1;

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
    if let Some(schema) = read(store).await? {
        return Ok(schema.incarnation);
    }
    if !store.list(&Prefix::All, None, 1).await?.records.is_empty() {
        return Err(SchemaError::Foreign);
    }
    let schema = Schema::new();
    let bytes = serde_json::to_vec(&schema).expect("a plain record");
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

/// What the store says of itself; `None` when it is new.
pub async fn read(store: &dyn Store) -> Result<Option<Schema>, SchemaError> {
    let Some(record) = store.get(&schema_key()).await? else { return Ok(None) };
    let schema: Schema = serde_json::from_slice(&record.value)
        .map_err(|error| SchemaError::Unreadable(error.to_string()))?;
    if schema.version > VERSION {
        return Err(SchemaError::Newer { found: schema.version, by: schema.written_by });
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
}
