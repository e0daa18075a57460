//! `/boot/v1/service/…`: the state of this server and of its store.

use std::time::{Duration, Instant};

use hoist_server::boot::BssDialect;
use hoist_server::inventory::SourceConfig;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::smd::{Mode, Smd, SmdSet};
use serde_json::{Value, json};

use crate::site::Site;

const SERVICE: &str = "/boot/v1/service";

async fn told(site: &Site, path: &str, status: u16) -> Value {
    let answer = site.ask_as_nobody("GET", &format!("{SERVICE}/{path}")).send().await;
    let answer = answer.expect(status);
    assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
    answer.json()
}

#[tokio::test]
async fn a_site_that_is_well_says_so() {
    let site = Site::start().await;
    let version = json!(env!("CARGO_PKG_VERSION"));
    let storage = json!({"name": "embedded", "status": "connected"});
    assert_eq!(told(&site, "status", 200).await, json!({"bss-status": "running"}));
    assert_eq!(told(&site, "version", 200).await, json!({"bss-version": version}));
    assert_eq!(told(&site, "hsm", 200).await, json!({"bss-status-hsm": "connected"}));
    assert_eq!(told(&site, "etcd", 200).await, json!({"bss-status-etcd": "connected"}));
    let stored = told(&site, "storage/status", 200).await;
    assert_eq!(stored, json!({"bss-storage-backend": storage}));
    let all = json!({
        "bss-status": "running", "bss-version": version, "bss-status-hsm": "connected",
        "bss-storage-backend": storage,
    });
    assert_eq!(told(&site, "status/all", 200).await, all);
    site.stop().await;
}

#[tokio::test]
async fn wrong_methods_are_refused_under_every_spelling() {
    let site = Site::start().await;
    let mut routes: Vec<(String, &str)> =
        ["status", "version", "hsm", "storage/status", "status/all", "etcd"]
            .map(|path| (format!("{SERVICE}/{path}"), "GET"))
            .into();
    routes.extend(
        [
            ("/boot/v1/hosts", "GET,POST"),
            ("/boot/v1/dumpstate", "GET"),
            ("/boot/v1/endpoint-history", "GET"),
            ("/boot/v1/scn", "POST"),
            ("/meta-data", "GET"),
            ("/user-data", "GET"),
            ("/phone-home", "POST"),
        ]
        .map(|(path, allow)| (path.to_owned(), allow)),
    );
    for (path, allow) in routes {
        let mut spellings = vec![path.clone(), format!("{path}/")];
        if path.starts_with("/boot/") {
            spellings.extend([format!("/apis/bss{path}"), format!("/apis/bss{path}/")]);
        }
        for path in spellings {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
                if allow.split(',').any(|allowed| allowed == method) {
                    continue;
                }
                let answer = site.ask_as_nobody(method, &path).send().await.expect(405);
                assert_eq!(answer.header("allow"), allow, "{method} {path}");
                assert_eq!(answer.header("content-type"), "application/problem+json");
                if method != "HEAD" {
                    let problem = answer.json();
                    assert_eq!(problem["detail"], format!("allow {allow}"), "{method} {path}");
                    assert_eq!(problem["title"], "Method Not Allowed");
                    assert_eq!(problem.as_object().map(serde_json::Map::len), Some(4));
                }
            }
        }
        if allow.starts_with("GET") {
            let query = format!("{path}/?kettle=1");
            site.ask_as_nobody("GET", &query).send().await.expect(200);
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn failing_source_is_reported_and_not_queried_again() {
    let smd = Smd::start(SmdSet::synthetic(3)).await;
    let mut source = SourceConfig::new(smd.url().parse().expect("an address")).expect("a source");
    source.every = Duration::from_hours(1);
    source.smd.retry_pause = Duration::from_millis(10);
    let site = Site::start_with(|config| config.source = Some(source)).await;
    site.eventually("/boot/v1/hosts", |answer| {
        answer.json().as_array().is_some_and(|hosts| hosts.len() == 3)
    })
    .await;
    assert_eq!(told(&site, "hsm", 200).await["bss-status-hsm"], "connected");

    smd.set_mode(Mode::Fail);
    site.ask_as_nobody("POST", "/boot/v1/hosts").send().await.expect(204);
    let before = smd.requests();
    assert_eq!(told(&site, "hsm", 500).await, json!({"bss-status-hsm": "error"}));
    let all = told(&site, "status/all", 500).await;
    assert_eq!((&all["bss-status"], &all["bss-status-hsm"]), (&json!("running"), &json!("error")));
    assert_eq!(all["bss-storage-backend"]["status"], "connected");
    assert_eq!(smd.requests(), before, "telling does not ask");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_is_reported_at_once_and_empties_nothing() {
    let server = EtcdServer::start();
    let url = server.url("site");
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    site.add(&crate::site::node(1)).await;
    let stored = told(&site, "storage/status", 200).await;
    let expected = json!({"bss-storage-backend": {"name": "etcd", "status": "connected"}});
    assert_eq!(stored, expected);

    tokio::task::block_in_place(|| server.freeze());
    let started = Instant::now();
    let stored = told(&site, "storage/status", 500).await;
    let expected = json!({"bss-storage-backend": {"name": "etcd", "status": "error"}});
    assert_eq!(stored, expected);
    // A request has thirty seconds; a moment is less, also on a busy machine.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(told(&site, "etcd", 500).await, json!({"bss-status-etcd": "error"}));
    let all = told(&site, "status/all", 500).await;
    assert_eq!(all["bss-storage-backend"]["status"], "error");
    assert_eq!(told(&site, "status", 200).await["bss-status"], "running");
    for path in ["/boot/v1/hosts", "/boot/v1/dumpstate"] {
        let answer = site.ask_as_nobody("GET", path).send().await.expect(200);
        assert!(answer.text().contains("02:00:00:00:00:01"), "{path}");
    }
    tokio::task::block_in_place(|| server.thaw());
    site.eventually(&format!("{SERVICE}/storage/status"), |answer| answer.status == 200).await;
    site.stop().await;
}

#[tokio::test]
async fn whole_status_speaks_the_dialect_of_the_site() {
    let site = Site::start_with(|config| config.boot.dialect = BssDialect::Hpe).await;
    let all = told(&site, "status/all", 200).await;
    let version = env!("CARGO_PKG_VERSION");
    let expected = json!({
        "bss-status": "running", "bss-version": version,
        "bss-status-hsm": "connected", "bss-status-etcd": "connected",
    });
    assert_eq!(all, expected);
    site.stop().await;
}
