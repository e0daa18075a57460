//! From one schema to the next: one at a time, after a backup, and only when every running
//! controller can read the result.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use hoist_store::{Compare, Lease, Op, Store, StoreError, Txn};
use jiff::Timestamp;

use super::{Schema, SchemaError, schema_key};
use crate::controllers::{self, Registration};

/// One step to the schema [`Migration::to`].
///
/// A migration is many commits. It may be interrupted and is then run again from the start, so
/// every commit must be safe to repeat. Controllers that read both schemas keep running.
#[async_trait]
pub trait Migration: Send + Sync + fmt::Debug {
    fn to(&self) -> u32;

    /// What changes, in a few words.
    fn about(&self) -> &'static str;

    /// Every commit compares `guard`: it fails once another process migrates.
    async fn run(&self, store: &dyn Store, guard: &Compare) -> Result<(), StoreError>;
}

/// All steps, in order. Empty: there is only one schema yet.
pub const MIGRATIONS: &[&dyn Migration] = &[];

/// The result of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    pub from: u32,
    pub to: u32,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError<B> {
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error("the store failed; run it again when the store is well")]
    Store(#[from] StoreError),
    /// Nothing was changed.
    #[error("schema {to} cannot be read by {}; upgrade them first", names(.controllers))]
    Behind { to: u32, controllers: Vec<Registration> },
    /// Nothing was changed.
    #[error("another process is migrating the store")]
    Busy,
    /// Nothing was changed.
    #[error("no backup was made, so nothing was migrated")]
    Backup(#[source] B),
}

/// How long others wait for a migrator that died.
const LEASE: Duration = Duration::from_mins(1);
const RENEW_EVERY: Duration = Duration::from_secs(15);
const LEASE_NAME: &str = "schema";

/// Brings the store to the newest schema that this version knows. `backup` is called first, and
/// only if there is something to do.
pub async fn migrate<B, E>(
    store: &dyn Store,
    now: Timestamp,
    backup: B,
) -> Result<MigrationReport, MigrateError<E>>
where
    B: AsyncFnOnce(&Schema) -> Result<(), E>,
{
    migrate_with(MIGRATIONS, store, now, backup).await
}

/// The steps that a store of schema `from` still needs.
pub fn due<'a>(
    migrations: &'a [&'a dyn Migration],
    from: u32,
) -> impl Iterator<Item = &'a dyn Migration> {
    migrations.iter().copied().filter(move |step| step.to() > from)
}

/// As [`migrate`], with these steps.
pub async fn migrate_with<B, E>(
    migrations: &[&dyn Migration],
    store: &dyn Store,
    now: Timestamp,
    backup: B,
) -> Result<MigrationReport, MigrateError<E>>
where
    B: AsyncFnOnce(&Schema) -> Result<(), E>,
{
    let Some(schema) = super::read(store).await? else {
        // A new store gets the newest schema when it is first opened.
        return Ok(MigrationReport { from: super::VERSION, to: super::VERSION });
    };
    let from = schema.version;
    let Some(to) = due(migrations, from).last().map(Migration::to) else {
        return Ok(MigrationReport { from, to: from });
    };
    check_controllers(store, to, now).await?;
    let owner = super::mint_incarnation();
    let lease =
        store.acquire(LEASE_NAME, owner.as_str(), LEASE).await?.ok_or(MigrateError::Busy)?;
    let done = migrate_as_holder(migrations, store, &lease, schema, backup).await;
    // Best effort: it also ends by itself.
    let _ = store.release(lease).await;
    done.map(|to| MigrationReport { from, to })
}

async fn migrate_as_holder<B, E>(
    migrations: &[&dyn Migration],
    store: &dyn Store,
    lease: &Lease,
    mut schema: Schema,
    backup: B,
) -> Result<u32, MigrateError<E>>
where
    B: AsyncFnOnce(&Schema) -> Result<(), E>,
{
    let work = async {
        backup(&schema).await.map_err(MigrateError::Backup)?;
        let guard = lease.guard();
        for step in due(migrations, schema.version).collect::<Vec<_>>() {
            step.run(store, &guard).await?;
            schema.version = step.to();
            env!("CARGO_PKG_VERSION").clone_into(&mut schema.written_by);
            let ops = vec![Op::Put(schema_key(), schema.to_bytes())];
            store.commit(Txn { compares: vec![guard.clone()], ops }).await?;
            tracing::info!(schema = step.to(), about = step.about(), "schema migrated");
        }
        Ok(schema.version)
    };
    let keep = async {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            if let Err(error @ StoreError::LeaseLost { .. }) = store.renew(lease).await {
                return error;
            }
        }
    };
    tokio::select! {
        done = work => done,
        lost = keep => Err(lost.into()),
    }
}

async fn check_controllers<E>(
    store: &dyn Store,
    to: u32,
    now: Timestamp,
) -> Result<(), MigrateError<E>> {
    let mut behind = controllers::live(store, now).await?;
    behind.retain(|controller| controller.schema < to);
    if behind.is_empty() { Ok(()) } else { Err(MigrateError::Behind { to, controllers: behind }) }
}

fn names(controllers: &[Registration]) -> String {
    let name = |found: &Registration| format!("controller {} (hoist {})", found.id, found.version);
    controllers.iter().map(name).collect::<Vec<_>>().join(", ")
}
