//! Starting and stopping.

use std::sync::Arc;
use std::time::Duration;

use hoist_chassis::{Limits, Server, StartError};
use hoist_testkit::eventually_async;
use reqwest::Method;
use tokio::time::timeout;

use hoist_testkit::failing_store::Mood;
use hoist_testkit::stores::test_store;

use crate::site::{Site, limits, local};

#[tokio::test]
async fn a_stop_finishes_the_running_request() {
    let site = Site::start().await;
    let addr = site.running.plain_addr().unwrap();
    let gates = Arc::clone(&site.gates);
    let request = tokio::spawn(site.request(Method::GET, "/test/wait").send());
    gates.entered.notified().await;
    let stop = tokio::spawn(site.stop());
    // Refused from now on, while the request still runs.
    eventually_async("new connections are refused", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    assert!(!stop.is_finished());
    gates.open.notify_one();
    assert_eq!(request.await.unwrap().unwrap().text().await.unwrap(), "waited");
    timeout(Duration::from_secs(5), stop).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_ends_streams_and_idle_connections_at_once() {
    let site = Site::start().await;
    let stream = site.get_as(&site.admin, "/events/v1").await;
    let idle = tokio::net::TcpStream::connect(site.running.plain_addr().unwrap()).await.unwrap();
    let reader = tokio::spawn(stream.text());
    timeout(Duration::from_secs(3), site.stop()).await.unwrap();
    reader.await.unwrap().unwrap();
    drop(idle);
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_after_the_grace_period() {
    let limits = Limits { grace: Duration::from_millis(100), ..limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let request = tokio::spawn(site.request(Method::GET, "/test/wait").send());
    site.gates.entered.notified().await;
    let stopped = timeout(Duration::from_secs(5), site.running.stop()).await.unwrap();
    assert_eq!(stopped.cut, 1);
    assert!(request.await.unwrap().is_err());
}

#[tokio::test]
async fn a_write_is_finished_although_its_caller_hung_up() {
    let site = Site::start().await;
    let gates = Arc::clone(&site.gates);
    let request = site.request(Method::PATCH, "/test/write").bearer_auth(&site.admin).send();
    let request = tokio::spawn(request);
    gates.entered.notified().await;
    request.abort();
    let _ = request.await;
    gates.open.notify_one();
    let audit = site.running.chassis().audit.clone();
    eventually_async("request is in the audit log", async || audit.head().await.unwrap() != 0)
        .await;
    site.stop().await;
}

#[tokio::test]
async fn a_hanging_store_holds_up_neither_requests_nor_the_stop() {
    let limits = Limits {
        request_timeout: Duration::from_millis(200),
        grace: Duration::from_millis(100),
        ..limits()
    };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    site.store.set(Mood::Hanging);
    assert_eq!(site.get_as(&site.admin, "/test/site").await.status(), 200);
    let stuck = site.post_as(&site.admin, "/test/write", &serde_json::json!(1)).await;
    assert_eq!(stuck.status(), 503);
    timeout(Duration::from_secs(15), site.running.stop()).await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let site = Site::start().await;
    let taken = site.running.plain_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let second = Server::builder(dir.path(), test_store()).listen_plain(taken);
    let error = second.start().await.unwrap_err();
    assert!(matches!(error, StartError::Listen { addr, .. } if addr == taken), "{error}");
    site.stop().await;
}

#[tokio::test]
async fn a_store_that_is_away_does_not_keep_the_server_from_starting() {
    let store = test_store();
    store.set(Mood::Unavailable);
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start_on(dir, store, |builder| builder.listen_tls(local())).await;
    assert_eq!(site.get("/healthz").await.status(), 200);
    assert_eq!(site.get_as(&site.admin, "/test/site").await.status(), 200);
    site.store.set(Mood::Working);
    site.stop().await;
}
