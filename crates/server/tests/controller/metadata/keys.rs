//! Several controllers have one key, or say that they have not.

use hoist_server::controller::Config;
use hoist_testkit::etcd::EtcdServer;

use crate::metadata::{ask, seed, site};
use crate::site::{Answer, Site};

const KEY: &str = "ca/site.key";

fn of_key(answer: &Answer) -> Option<String> {
    let health = answer.json();
    let mut checks = health["checks"].as_array()?.iter();
    let check = checks.find(|check| check["name"] == "site key")?;
    check["status"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_with_another_key_refuses_the_store() {
    let store = EtcdServer::shared().url("keys");
    let one = site(|config| config.store.clone_from(&store)).await;
    let path = seed(&one, 1).await;
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        store: store.clone(),
        ..Config::new(dir.path())
    };
    let records = one.records().await;
    let refused = Site::start_on(dir, config.clone()).await.map(drop).expect_err("another key");
    let told = hoist_diagnostic::chain(&refused);
    let place = config.data_dir.join(KEY).display().to_string();
    assert!(told.contains(&place) && told.contains("copy `ca/site.key`"), "{told}");
    assert_eq!(one.records().await, records, "nothing was written");

    let two = one.start_beside(|_| {}).await;
    let there = two.eventually("/inventory/v1/status", |a| a.json()["nodes"] == 2).await;
    assert_eq!(there.status, 200);
    ask(&two, &format!("{path}meta-data")).await.expect(200);
    two.eventually("/readyz", |answer| of_key(answer).as_deref() == Some("ok")).await;
    two.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_compared_later_if_the_store_is_away_at_start() {
    let etcd = EtcdServer::start();
    let site = site(|config| config.store = etcd.url("late")).await;
    let (dir, config) = site.stop().await;
    let other = tempfile::tempdir().expect("a directory");
    hoist_server::site_key::open(other.path()).expect("another key");
    fs_err::copy(other.path().join(KEY), dir.path().join(KEY)).expect("a file");
    tokio::task::block_in_place(|| etcd.stop());
    let site = Site::start_again(dir, config).await;
    let path = seed(&site, 1).await;
    tokio::task::block_in_place(|| etcd.resume());
    site.eventually("/readyz", |answer| of_key(answer).as_deref() == Some("degraded")).await;
    // All controllers of this process share the gauge, so its value is not checked.
    let metrics = site.get("/metrics").await.expect(200).text();
    assert!(metrics.contains("hoist_site_key_differs"), "{metrics}");
    // The controller honours its own seeds: nodes are still served.
    ask(&site, &format!("{path}meta-data")).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn controller_alone_on_its_store_may_change_its_key() {
    let site = site(|_| {}).await;
    let before = seed(&site, 1).await;
    let (dir, config) = site.stop().await;
    let other = tempfile::tempdir().expect("a directory");
    hoist_server::site_key::open(other.path()).expect("another key");
    fs_err::copy(other.path().join(KEY), dir.path().join(KEY)).expect("a file");
    let site = Site::start_again(dir, config).await;
    ask(&site, &format!("{before}meta-data")).await.problem(403, "forbidden");
    let now = seed(&site, 1).await;
    ask(&site, &format!("{now}meta-data")).await.expect(200);
    let ready = site.eventually("/readyz", |answer| of_key(answer).is_some()).await;
    assert_eq!(of_key(&ready).as_deref(), Some("ok"));
    site.stop().await;
}
