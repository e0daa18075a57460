//! The behaviour of a backend whose history, server or file is gone.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hoist_store::embedded::{EmbeddedStore, FILE_NAME, Retention};
use hoist_store::etcd::EtcdStore;
use hoist_store::postgres::PostgresStore;
use hoist_store::url::{Address, open};
use hoist_store::{Key, Op, Prefix, Revision, Store, StoreError, Txn};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::failing_store::{FailingStore, Mood};
use hoist_testkit::postgres::PostgresServer;

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

async fn put(store: &dyn Store, k: &str, v: &[u8]) -> Result<Revision, StoreError> {
    store.commit(Txn { compares: vec![], ops: vec![Op::Put(key(k), v.to_vec())] }).await
}

/// Longer than any call may take, with room for a busy machine.
const SOON: Duration = Duration::from_secs(8);

/// Both a cursor and a watch from before must be told, and a fresh start must work.
async fn forgets_the_past(store: &dyn Store, forget: impl AsyncFnOnce(Revision)) {
    put(store, "a", b"1").await.unwrap();
    put(store, "b", b"1").await.unwrap();
    let page = store.list(&Prefix::All, None, 1).await.unwrap();
    for n in 0..200u8 {
        put(store, "a", &[n]).await.unwrap();
    }
    let head = put(store, "a", b"2").await.unwrap();
    forget(head).await;
    let watch = store.watch(&Prefix::All, page.revision).await.map(drop);
    assert!(
        matches!(watch, Err(StoreError::Compacted { asked, .. }) if asked == page.revision),
        "{watch:?}"
    );
    let next = store.list(&Prefix::All, page.next, 1).await;
    assert!(matches!(next, Err(StoreError::Compacted { .. })), "{next:?}");
    let fresh = store.list(&Prefix::All, None, 10).await.unwrap();
    assert_eq!(fresh.records.len(), 2);
    let mut watch = store.watch(&Prefix::All, fresh.revision).await.unwrap();
    let revision = put(store, "b", b"2").await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
}

#[tokio::test]
async fn embedded_history_ends_with_its_retention() {
    let dir = tempfile::tempdir().unwrap();
    for (name, retention) in [
        ("changes", Retention { changes: 50, ..Retention::default() }),
        ("bytes", Retention { bytes: 50, ..Retention::default() }),
        ("age", Retention { age: Duration::from_millis(1), ..Retention::default() }),
    ] {
        let dir = dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let store = EmbeddedStore::open(&dir, retention).unwrap();
        forgets_the_past(&store, async |_| {}).await;
    }
}

#[tokio::test]
async fn etcd_history_ends_with_a_compaction() {
    let server = EtcdServer::start();
    let Address::Etcd(config) = server.url("x").parse().unwrap() else { panic!() };
    let store = EtcdStore::new(&config).unwrap();
    forgets_the_past(&store, async |head| store.compact(head).await.unwrap()).await;
}

#[tokio::test]
async fn postgres_history_ends_with_its_retention() {
    let server = PostgresServer::shared();
    for (schema, changes, age) in
        [("changes", 50, Duration::from_hours(1)), ("age", 1_000_000, Duration::from_millis(1))]
    {
        let Address::Postgres(mut config) = server.url(schema).parse().unwrap() else { panic!() };
        config.retention.changes = changes;
        config.retention.age = age;
        let store = PostgresStore::new(*config);
        forgets_the_past(&store, async |_| {}).await;
    }
}

/// Down: every call says so soon. Up again: the same handle works, nothing acknowledged is lost.
async fn survives_an_outage(url: &str, stop: impl Fn(), resume: impl Fn()) {
    let store: Arc<dyn Store> = open(url, Path::new("/")).await.unwrap();
    let revision = put(&*store, "a", b"1").await.unwrap();
    let mut watch = store.watch(&Prefix::All, revision).await.unwrap();
    stop();
    for call in 0..4 {
        let asked = Instant::now();
        let outcome = match call {
            0 => store.get(&key("a")).await.map(drop),
            1 => store.list(&Prefix::All, None, 1).await.map(drop),
            2 => put(&*store, "b", b"1").await.map(drop),
            _ => store.health().await.map(drop),
        };
        assert!(matches!(outcome, Err(StoreError::Unavailable { .. })), "{outcome:?}");
        assert!(asked.elapsed() < SOON, "took {:?}", asked.elapsed());
    }
    resume();
    // The first calls may still meet the dead connection.
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = put(&*store, "c", b"1").await {
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert!(Instant::now() < deadline, "{error}");
    }
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().revision, revision);
    // A watch either went on or said that it ended; it never goes quiet.
    let after = tokio::time::timeout(SOON, watch.next()).await.expect("not silent");
    if !matches!(after, Some(Ok(_))) {
        assert!(matches!(after, Some(Err(StoreError::Unavailable { .. }))), "{after:?}");
        let mut again = store.watch(&Prefix::All, revision).await.unwrap();
        again.next().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn etcd_outages_are_noticed_and_survived() {
    let server = EtcdServer::start();
    survives_an_outage(&server.url("x"), || server.stop(), || server.resume()).await;
}

#[tokio::test]
async fn hanging_etcd_is_unavailable() {
    let server = EtcdServer::start();
    survives_an_outage(&server.url("x"), || server.freeze(), || server.thaw()).await;
}

#[tokio::test]
async fn dead_etcd_member_is_passed_over() {
    let server = EtcdServer::start();
    let dead = hoist_testkit::scratch::free_port();
    let url = format!("etcd://127.0.0.1:{dead},127.0.0.1:{}/x", server.port());
    let store = open(&url, Path::new("/")).await.unwrap();
    put(&*store, "a", b"1").await.unwrap();
    store.health().await.unwrap();
}

#[tokio::test]
async fn postgres_outages_are_noticed_and_survived() {
    let server = PostgresServer::start();
    survives_an_outage(&server.url("x"), || server.stop(), || server.resume()).await;
}

#[tokio::test]
async fn wrong_credentials_are_refused_not_retried() {
    let etcd = EtcdServer::shared_with_tls().url("x");
    let without_certificate = etcd.split("&cert=").next().unwrap();
    let store = open(without_certificate, Path::new("/")).await.unwrap();
    assert!(store.get(&key("a")).await.is_err());
    let postgres = PostgresServer::shared().url("x").replace("hoist@", "nobody@");
    let store = open(&postgres, Path::new("/")).await.unwrap();
    let refused = store.get(&key("a")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn etcd_takes_a_password_and_again_after_its_restart() {
    let server = EtcdServer::start();
    server.demand_password("sesame");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let url = format!("{}?user=root&password-file={}", server.url("x"), file.path().display());
    let store = open(&url, Path::new("/")).await.unwrap();
    let revision = put(&*store, "a", b"1").await.unwrap();
    let mut watch = store.watch(&Prefix::All, Revision(revision.0 - 1)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
    // Tokens do not outlive the server.
    server.stop();
    server.resume();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");

    let without = open(&server.url("x"), Path::new("/")).await.unwrap();
    let refused = without.get(&key("a")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    std::fs::write(file.path(), "wrong").unwrap();
    let wrong = open(&url, Path::new("/")).await.unwrap();
    let refused = wrong.get(&key("a")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn changed_password_is_read_again() {
    let server = EtcdServer::start();
    server.demand_password("sesame");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let url = format!("{}?user=root&password-file={}", server.url("x"), file.path().display());
    let store = open(&url, Path::new("/")).await.unwrap();
    put(&*store, "a", b"1").await.unwrap();
    server.change_password("sesame", "open");
    let refused = store.get(&key("a")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    std::fs::write(file.path(), "open\n").unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");
}

#[tokio::test]
async fn full_etcd_refuses_writes_and_answers_reads() {
    let server = EtcdServer::start_with_quota(4 << 20);
    let store = open(&server.url("x"), Path::new("/")).await.unwrap();
    put(&*store, "a", b"1").await.unwrap();
    assert!(!store.health().await.unwrap().full);
    let large = vec![7; 512 << 10];
    let mut refused = None;
    for n in 0..64 {
        if let Err(error) = put(&*store, &format!("k/{n}"), &large).await {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(StoreError::Full { .. })), "{refused:?}");
    assert!(store.health().await.unwrap().full);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");
    let page = store.list(&Prefix::All, None, 1).await.unwrap();
    assert_eq!(page.records.len(), 1);
    let next = store.list(&Prefix::All, page.next, 1).await.unwrap();
    assert_eq!((next.records.len(), next.revision), (1, page.revision));
}

/// HTTP/2 pings alone would take 15 s to find it.
#[tokio::test]
async fn watch_on_a_frozen_member_ends_within_seconds() {
    let servers = EtcdServer::start_cluster(3);
    let hosts: Vec<_> = servers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let store = open(&format!("etcd://{}/x", hosts.join(",")), Path::new("/")).await.unwrap();
    let revision = put(&*store, "a", b"1").await.unwrap();
    let mut watch = store.watch(&Prefix::All, revision).await.unwrap();
    let progress = watch.progress().expect("a watch of a server may lag");
    // Quiet for some seconds: the member confirms that there is nothing new.
    let quiet = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let confirmed = progress.last().expect("the member answered");
    assert!(confirmed.elapsed() < Duration::from_secs(4), "{:?}", confirmed.elapsed());

    // The first member was asked first.
    servers[0].freeze();
    let frozen = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(12), watch.next()).await;
    assert!(matches!(ended, Ok(Some(Err(StoreError::Unavailable { .. })))), "{ended:?}");
    assert!(progress.last() < Some(frozen + Duration::from_secs(1)));
    let deadline = Instant::now() + Duration::from_secs(30);
    let next = loop {
        match put(&*store, "a", b"2").await {
            Ok(next) => break next,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    let mut watch = store.watch(&Prefix::All, revision).await.unwrap();
    let delivered = async {
        while let Some(batch) = watch.next().await {
            if batch.unwrap().revision == next {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, delivered).await.expect("another member is followed");
    servers[0].thaw();
}

#[tokio::test]
async fn postgres_speaks_tls_and_verifies_the_server() {
    let server = PostgresServer::start_with_tls();
    let store = open(&server.url("x"), Path::new("/")).await.unwrap();
    let revision = put(&*store, "a", b"1").await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().revision, revision);
    // Another CA's server is not ours, whatever it answers.
    let other = tempfile::tempdir().unwrap();
    hoist_testkit::certificates::write(other.path());
    let (base, _) =
        server.url("x").split_once("&sslrootcert=").map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    let url = format!("{base}&sslrootcert={}", other.path().join("ca.pem").display());
    let store = open(&url, Path::new("/")).await.unwrap();
    assert!(store.get(&key("a")).await.is_err());
}

#[tokio::test]
async fn store_file_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
    put(&store, "a", b"1").await.unwrap();
    let second = EmbeddedStore::open(dir.path(), Retention::default());
    match second {
        Err(StoreError::InUse { detail }) => assert!(detail.contains(FILE_NAME), "{detail}"),
        other => panic!("{other:?}"),
    }
    drop(store);
    let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");
}

#[tokio::test]
async fn leases_of_a_dead_process_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
    let long = Duration::from_hours(1);
    let lease = store.acquire("job", "me", long).await.unwrap().unwrap();
    drop(store);
    let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
    assert_eq!(store.get(&key("lease/job")).await.unwrap(), None);
    let next = store.acquire("job", "other", long).await.unwrap().unwrap();
    assert!(next.fence > lease.fence);
}

#[tokio::test]
async fn damaged_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE_NAME);
    std::fs::write(&file, "this is not a database, whatever its name says").unwrap();
    match EmbeddedStore::open(dir.path(), Retention::default()) {
        Err(StoreError::Damaged { detail }) => assert!(detail.contains(FILE_NAME), "{detail}"),
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&file).unwrap();
    {
        let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
        for n in 0..500 {
            put(&store, &format!("k/{n}"), &[7; 1000]).await.unwrap();
        }
    }
    // Everything after the header.
    let mut raw = std::fs::read(&file).unwrap();
    raw[4096..].fill(0xa5);
    std::fs::write(&file, raw).unwrap();
    match EmbeddedStore::open(dir.path(), Retention::default()) {
        Err(StoreError::Damaged { detail }) => assert!(detail.contains(FILE_NAME), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn file_that_cannot_be_opened_is_opened_by_a_later_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE_NAME);
    // A directory in its place stands for every reason that passes.
    std::fs::create_dir(&file).unwrap();
    let store = open("embedded", dir.path()).await.unwrap();
    let refused = store.get(&key("a")).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    std::fs::remove_dir(&file).unwrap();
    put(&*store, "a", b"1").await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");
    let second = open("embedded", dir.path()).await;
    assert!(matches!(second, Err(StoreError::InUse { .. })), "{second:?}");
}

#[tokio::test]
async fn failing_store_fails_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
    let store = Arc::new(FailingStore::new(inner));
    put(&*store, "a", b"1").await.unwrap();
    store.set(Mood::Unavailable);
    assert!(matches!(store.get(&key("a")).await, Err(StoreError::Unavailable { .. })));
    store.set(Mood::Full);
    assert!(matches!(put(&*store, "a", b"2").await, Err(StoreError::Full { .. })));
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"1");
    store.set(Mood::Working);
    store.lose_next_answer();
    assert!(matches!(put(&*store, "a", b"3").await, Err(StoreError::Unavailable { .. })));
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, b"3");
    store.set(Mood::Hanging);
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.get(&key("a")).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    store.set(Mood::Working);
    assert!(waiting.await.unwrap().unwrap().is_some());
}
