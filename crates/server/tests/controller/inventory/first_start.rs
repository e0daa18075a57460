//! Starts at which the store or the source cannot be read.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_server::inventory::SourceConfig;
use hoist_site::last_good;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::postgres::PostgresServer;
use hoist_testkit::smd::{Mode, Smd, SmdSet};
use hoist_testkit::{eventually, eventually_async};
use serde_json::json;

use crate::site::{NODES, Site, mac, node, plain_client};

const SCRIPT: &str = "/boot/v1/bootscript";

/// The nodes are unknown: machines must ask again, and no lookup says that a node does not exist.
async fn is_not_ready(site: &Site) {
    let ready = site.get("/readyz").await.expect(503).json();
    assert_eq!(ready["status"], "down", "{ready}");
    for path in [NODES.to_owned(), format!("{NODES}/by/mac/{}", mac(1))] {
        site.get(&path).await.problem(503, "store-unavailable");
    }
    for query in [format!("mac={}", mac(1)), format!("mac={}&arch=x86_64", mac(1))] {
        let answer = site.ask_as_nobody("GET", &format!("{SCRIPT}?{query}")).send().await;
        let script = answer.expect(200).text();
        assert!(script.contains("sleep ") && script.contains("chain "), "{query}: {script}");
    }
    for path in ["/boot/v1/hosts", "/boot/v1/dumpstate"] {
        site.ask_as_nobody("GET", path).send().await.expect(503);
    }
    let seed = site.ask_as_nobody("GET", "/meta/v1/seed/meta-data").send().await.expect(503);
    assert!(seed.headers.contains_key("retry-after"), "{seed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn first_start_without_the_store_is_not_ready() {
    let server = EtcdServer::start();
    let url = server.url("site");
    tokio::task::block_in_place(|| server.stop());
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    is_not_ready(&site).await;
    site.post(NODES, &node(1)).await.problem(503, "read-only");
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    assert_eq!(status["roster"]["loaded_from"], "nothing", "{status}");

    tokio::task::block_in_place(|| server.resume());
    site.eventually("/readyz", |answer| answer.json()["status"] == "ok").await;
    site.add(&node(1)).await;
    site.get(&format!("{NODES}/by/mac/{}", mac(2))).await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn first_start_without_the_source_is_not_ready() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    smd.set_mode(Mode::Fail);
    let mut source = SourceConfig::new(smd.url().parse().expect("an address")).expect("a source");
    source.every = Duration::from_millis(200);
    source.smd.retry_pause = Duration::from_millis(10);
    let site = Site::start_with(|config| config.source = Some(source)).await;
    is_not_ready(&site).await;
    smd.set_mode(Mode::Normal);
    site.eventually("/readyz", |answer| answer.json()["status"] == "ok").await;
    site.get(&format!("{NODES}/by/xname/{}", SmdSet::xname(1))).await.expect(200);
    // Imported nodes are a complete site, also while the source is away.
    smd.set_mode(Mode::Fail);
    let site = site.restart().await;
    site.get("/readyz").await.expect(200);
    site.stop().await;
    smd.stop().await;
}

/// The store answers, and refuses this controller.
async fn refused(url: String, refuse: impl AsyncFn(), admit: impl AsyncFn()) {
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    site.add(&node(1)).await;
    copied(&site, 1);
    let (dir, config) = site.stop().await;
    refuse().await;
    let site = Site::start_again(dir, config).await;
    site.get(&format!("{NODES}/by/mac/{}", mac(1))).await.expect(200);
    let problem = site.post(NODES, &node(2)).await.problem(503, "read-only");
    assert!(problem.detail.contains("the store refuses this controller"), "{}", problem.detail);
    let ready = site.get("/readyz").await.expect(200).json();
    assert_eq!(ready["status"], "degraded", "{ready}");
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    assert_eq!(
        (&status["roster"]["loaded_from"], &status["store"]["connected"]),
        (&json!("snapshot"), &json!(false)),
        "{status}"
    );
    admit().await;
    eventually_async("write succeeds again", async || {
        let answer = site.post(NODES, &node(2)).await;
        if answer.status == 201 { Ok(()) } else { Err(answer) }
    })
    .await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_when_the_password_was_changed() {
    let server = EtcdServer::start();
    server.demand_password("sesame");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "sesame").expect("a password");
    let url = format!("{}?user=root&password-file={}", server.url("site"), file.path().display());
    let refuse = async || {
        tokio::task::block_in_place(|| server.change_password("sesame", "other"));
    };
    let admit = async || std::fs::write(file.path(), "other").expect("a password");
    Box::pin(refused(url, refuse, admit)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_without_the_password_file() {
    let server = EtcdServer::start();
    server.demand_password("sesame");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    std::fs::write(&file, "sesame").expect("a password");
    let url = format!("{}?user=root&password-file={}", server.url("site"), file.display());
    let refuse = async || std::fs::remove_file(&file).expect("it is there");
    let admit = async || std::fs::write(&file, "sesame").expect("a password");
    Box::pin(refused(url, refuse, admit)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_when_the_database_is_missing() {
    let server = PostgresServer::start();
    tokio::task::block_in_place(|| server.execute("CREATE DATABASE site"));
    let url = server.url("site").replace("/postgres?", "/site?");
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER DATABASE {from} RENAME TO {to}");
        tokio::task::block_in_place(|| server.execute(&sql));
    };
    let refuse = async || rename("site", "away");
    let admit = async || rename("away", "site");
    Box::pin(refused(url, refuse, admit)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_when_rights_were_revoked() {
    let server = PostgresServer::start();
    let run = |sql: &str| tokio::task::block_in_place(|| server.execute(sql));
    run("create role tenant login; grant create on database postgres to tenant");
    let url = server.url("site").replace("hoist@", "tenant@");
    let refuse = async || run("alter role tenant nologin");
    let admit = async || run("alter role tenant login");
    Box::pin(refused(url, refuse, admit)).await;
}

/// Waits until the last-good copy has this many nodes.
fn copied(site: &Site, count: usize) {
    let copy = site.data_dir().join("roster.snapshot");
    tokio::task::block_in_place(|| {
        eventually("last-good copy is current", || {
            last_good::read(&copy).is_ok_and(|(roster, _)| roster.len() == count)
        });
    });
}

/// Writes a key of etcd as another client, and returns the error of a refusal.
async fn put_raw(server: &EtcdServer, key: &str, value: &[u8]) -> Result<(), String> {
    let client = plain_client().build().expect("a client");
    let url = format!("http://127.0.0.1:{}/v3/kv/put", server.port());
    let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
    let answer = client.post(url).json(&body).send().await.expect("etcd answers");
    if answer.status() == 200 { Ok(()) } else { Err(answer.text().await.expect("a text")) }
}

/// One record as a staged chunk of a large transaction.
fn chunk(key: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_be_bytes();
    [&length(key.as_bytes()), key.as_bytes(), &length(value), value].concat()
}

/// A writer that died after the commit point of a large transaction: every reader has to apply it
/// first, and without space none can.
#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_when_a_pending_write_finds_etcd_full() {
    let server = EtcdServer::start_with_quota(16 << 20);
    let url = server.url("site");
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    site.add(&node(1)).await;
    copied(&site, 1);
    let (dir, config) = site.stop().await;
    let staged = chunk("ballast/0", b"committed");
    put_raw(&server, "site/stage/dead/00000000", &staged).await.expect("there is space");
    let pending = json!({"id": "dead", "state": {"committed": {"chunks": 1}}}).to_string();
    put_raw(&server, "site/pending", pending.as_bytes()).await.expect("there is space");
    let large = vec![7; 1 << 20];
    let mut n = 0;
    let full = loop {
        n += 1;
        assert!(n < 100, "the quota is never reached");
        if let Err(error) = put_raw(&server, &format!("other/{n}"), &large).await {
            break error;
        }
    };
    assert!(full.contains("space exceeded"), "{full}");

    let site = Site::start_again(dir, config).await;
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    let store = &status["store"];
    assert_eq!(
        (&status["roster"]["loaded_from"], &store["connected"], &store["full"]),
        (&json!("snapshot"), &json!(false), &json!(true)),
        "{status}"
    );
    site.get(&format!("{NODES}/by/mac/{}", mac(1))).await.expect(200);
    let problem = site.post(NODES, &node(2)).await.problem(503, "read-only");
    assert!(problem.detail.contains("the store has no space left"), "{}", problem.detail);
    let ready = site.get("/readyz").await.expect(200).json();
    assert_eq!(ready["status"], "degraded", "{ready}");
    site.measures("hoist_store_full", "1").await;
    site.stop().await;
}

/// Reads need no space as long as no large transaction is pending.
#[tokio::test(flavor = "multi_thread")]
async fn full_etcd_is_read_at_the_start_and_refuses_writes() {
    let server = EtcdServer::start_with_quota(16 << 20);
    let url = server.url("site");
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    site.add(&node(1)).await;
    let large = vec![7; 1 << 20];
    // One value at a time: larger transactions may be committed before their application fails.
    let fill = |n: u32| hoist_store::Txn {
        compares: Vec::new(),
        ops: vec![hoist_store::Op::Put(
            format!("ballast/{n}").parse().expect("a key"),
            large.clone(),
        )],
    };
    let store = std::sync::Arc::clone(site.controller.registry().store());
    let mut n = 0;
    let full = loop {
        n += 1;
        match store.commit(fill(n)).await {
            Ok(_) => assert!(n < 100, "the quota is never reached"),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, hoist_store::StoreError::Full { .. }), "{full}");
    drop(store);
    site.post(NODES, &node(2)).await.problem(507, "store-full");
    let told = |answer: &crate::site::Answer| answer.json()["store"]["full"] == true;
    site.eventually("/inventory/v1/status", told).await;
    site.measures("hoist_store_full", "1").await;
    let site = site.restart().await;
    site.get(&format!("{NODES}/by/mac/{}", mac(1))).await.expect(200);
    let ready = site.eventually("/readyz", |answer| answer.json()["status"] == "degraded").await;
    assert!(ready.text().contains("no space left"), "{}", ready.text());
    let problem = site.post(NODES, &node(2)).await.problem(507, "store-full");
    assert!(problem.remedy.is_some(), "{problem:?}");
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    assert_eq!(status["roster"]["loaded_from"], "store", "{status}");
    site.stop().await;
}
