//! Migration of the schema: after a backup, when all can read the result, once.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use async_trait::async_trait;
use hoist_site::controllers::{self, Registration};
use hoist_site::schema::{self, MigrateError, Migration, MigrationReport, Schema, SchemaError};
use hoist_store::{Compare, Key, Op, Store, StoreError, Txn};
use hoist_testkit::stores::{Backend, Ground};
use jiff::{SignedDuration, Timestamp};

/// Renames a record, in a way that may be repeated.
#[derive(Debug)]
struct Rename;

#[async_trait]
impl Migration for Rename {
    fn to(&self) -> u32 {
        2
    }

    fn about(&self) -> &'static str {
        "`old/name` becomes `new/name`"
    }

    async fn run(&self, store: &dyn Store, guard: &Compare) -> Result<(), StoreError> {
        let Some(record) = store.get(&key("old/name")).await? else { return Ok(()) };
        let ops = vec![Op::Put(key("new/name"), record.value), Op::Delete(key("old/name"))];
        store.commit(Txn { compares: vec![guard.clone()], ops }).await.map(drop)
    }
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

async fn old_store(ground: &Ground) -> std::sync::Arc<dyn Store> {
    let store = ground.store().await;
    schema::open(store.as_ref()).await.unwrap();
    let ops = vec![Op::Put(key("old/name"), b"kettle".to_vec())];
    store.commit(Txn { compares: vec![], ops }).await.unwrap();
    store
}

async fn upgrade(
    store: &dyn Store,
    now: Timestamp,
    backups: &mut Vec<u32>,
) -> Result<MigrationReport, MigrateError<&'static str>> {
    let backup = async |schema: &Schema| {
        backups.push(schema.version);
        Ok(())
    };
    schema::migrate_with(&[&Rename], store, now, backup).await
}

#[tokio::test]
async fn migration_makes_a_backup_and_older_hoist_refuses_the_result() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let store = old_store(&ground).await;
        let mut backups = Vec::new();
        let done = upgrade(store.as_ref(), Timestamp::now(), &mut backups).await.unwrap();
        assert_eq!((done, backups.as_slice()), (MigrationReport { from: 1, to: 2 }, &[1][..]));
        assert_eq!(store.get(&key("new/name")).await.unwrap().unwrap().value, b"kettle");

        let error = schema::open(store.as_ref()).await.unwrap_err();
        assert!(matches!(error, SchemaError::Newer { found: 2, .. }), "{error}");
    }
}

#[tokio::test]
async fn migration_without_a_backup_changes_nothing() {
    let ground = Ground::new(Backend::Embedded);
    let store = old_store(&ground).await;
    let backup = async |_: &Schema| Err("disk full");
    let done = schema::migrate_with(&[&Rename], store.as_ref(), Timestamp::now(), backup).await;
    assert!(matches!(done, Err(MigrateError::Backup("disk full"))));
    assert!(store.get(&key("old/name")).await.unwrap().is_some());
    // Neither is anything taken or kept when there is nothing to do.
    let none = schema::migrate(store.as_ref(), Timestamp::now(), backup).await.unwrap();
    assert_eq!(none, MigrationReport { from: 1, to: 1 });
}

#[tokio::test]
async fn migration_waits_for_controllers_of_older_schemas() {
    let ground = Ground::new(Backend::Embedded);
    let store = old_store(&ground).await;
    let at = Timestamp::now();
    let old = Registration { id: "a1".into(), version: "0.1.0".into(), schema: 1, at };
    let new = Registration { id: "b2".into(), version: "0.2.0".into(), schema: 2, at };
    for registration in [&old, &new] {
        controllers::beat(store.as_ref(), registration).await.unwrap();
    }
    let mut backups = Vec::new();
    let error = upgrade(store.as_ref(), at, &mut backups).await.unwrap_err().to_string();
    assert!(error.contains("controller a1 (hoist 0.1.0)") && !error.contains("b2"), "{error}");
    assert!(backups.is_empty());

    // One that was killed is not waited for for ever, one that stopped not at all.
    let later = at + controllers::SILENT_AFTER + SignedDuration::from_secs(1);
    assert!(controllers::live(store.as_ref(), later).await.unwrap().is_empty());
    controllers::leave(store.as_ref(), &old.id).await.unwrap();
    upgrade(store.as_ref(), at, &mut backups).await.unwrap();
    assert_eq!(backups, [1]);
}

#[tokio::test]
async fn concurrent_migration_is_refused() {
    let ground = Ground::new(Backend::Embedded);
    let store = old_store(&ground).await;
    let minute = std::time::Duration::from_mins(1);
    store.acquire("schema", "another", minute).await.unwrap().unwrap();
    let mut backups = Vec::new();
    let done = upgrade(store.as_ref(), Timestamp::now(), &mut backups).await;
    assert!(matches!(done, Err(MigrateError::Busy)));
}

#[tokio::test]
async fn half_imported_store_is_not_opened() {
    let ground = Ground::new(Backend::Embedded);
    let store = old_store(&ground).await;
    let ops = vec![Op::Put(key(hoist_store::copy::MARKER), Vec::new())];
    store.commit(Txn { compares: vec![], ops }).await.unwrap();
    assert!(matches!(schema::open(store.as_ref()).await, Err(SchemaError::Unfinished)));
}
