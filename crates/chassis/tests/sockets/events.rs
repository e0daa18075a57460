//! The event stream as a client sees it.

use std::time::Duration;

use futures_util::StreamExt;
use hoist_api::Code;
use hoist_api::admin::NewToken;
use hoist_chassis::clock::Clock;
use hoist_store::{Key, Op, Store, Txn};
use hoist_testkit::eventually_async;
use jiff::SignedDuration;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::site::{Site, problem};

/// Reads a stream until `count` events have come.
async fn read(response: Response, count: usize) -> Vec<(String, String)> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(!response.headers().contains_key("content-encoding"));
    let mut text = String::new();
    let mut stream = response.bytes_stream();
    while text.matches("\n\n").count() < count {
        let chunk = timeout(Duration::from_secs(5), stream.next()).await.unwrap();
        text.push_str(std::str::from_utf8(&chunk.expect("the stream goes on").unwrap()).unwrap());
    }
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim_start_matches(": ").to_owned()
    };
    text.split("\n\n")
        .filter(|block| !block.is_empty())
        .map(|block| (field(block, "id"), field(block, "event")))
        .collect()
}

fn kinds(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(_, kind)| kind.as_str()).collect()
}

#[tokio::test]
async fn a_client_follows_loses_the_line_and_resumes() {
    let site = Site::start().await;
    let bus = &site.running.chassis().events;
    let response = site.get_as(&site.admin, "/events/v1").await;
    bus.publish("node.changed", "node/n1", Value::Null);
    let seen = read(response, 1).await;
    assert_eq!(kinds(&seen), ["node.changed"]);
    bus.publish("node.removed", "node/n1", Value::Null);
    bus.publish("token.created", "token/a", Value::Null);

    let by_header = site
        .request(Method::GET, "/events/v1")
        .bearer_auth(&site.admin)
        .header("last-event-id", &seen[0].0)
        .send()
        .await
        .unwrap();
    assert_eq!(kinds(&read(by_header, 2).await), ["node.removed", "token.created"]);
    let path = format!("/events/v1?since={}&kind=token", seen[0].0);
    let filtered = site.get_as(&site.admin, &path).await;
    assert_eq!(kinds(&read(filtered, 1).await), ["token.created"]);
    problem(site.get_as(&site.admin, "/events/v1?since=kettle").await, 400).await;
    site.stop().await;
}

#[tokio::test]
async fn a_clean_restart_is_resumed_and_a_lost_past_is_reset() {
    let site = Site::start().await;
    let bus = site.running.chassis().events.clone();
    bus.publish("a", "x", Value::Null);
    let seen = bus.last_id();
    bus.publish("b", "x", Value::Null);
    let (dir, store) = site.stop().await;
    // Ids of events begin with milliseconds, and must not repeat those before the restart.
    let stopped = jiff::Timestamp::now().as_millisecond();
    let later = async || jiff::Timestamp::now().as_millisecond() > stopped + 1;
    eventually_async("clock has moved on", later).await;
    let site = Site::start_on(dir, store, |builder| builder).await;
    let bus = &site.running.chassis().events;
    bus.publish("c", "x", Value::Null);
    let resumed = site.get_as(&site.admin, &format!("/events/v1?since={seen}")).await;
    assert_eq!(kinds(&read(resumed, 2).await), ["b", "c"]);
    let lost = site.get_as(&site.admin, "/events/v1?since=00000000000000-gone.1&kind=node").await;
    let lost = read(lost, 1).await;
    assert_eq!(lost, [(bus.last_id(), "reset".to_owned())]);
    site.stop().await;
}

/// The content of a stream, or the error that ended it.
async fn end(response: Response) -> Result<String, reqwest::Error> {
    assert_eq!(response.status(), 200);
    timeout(Duration::from_secs(30), response.text()).await.expect("the stream ends")
}

#[tokio::test]
async fn streams_and_waiting_requests_end_when_their_token_is_revoked() {
    let site = Site::start().await;
    let scopes = json!([{ "verbs": ["read"], "contexts": ["*"] }]);
    let revoked = site.token(scopes.clone()).await;
    let other = site.token(scopes).await;
    let events = site.get_as(&revoked.secret, "/events/v1").await;
    let listing = site.get_as(&revoked.secret, "/test/listing").await;
    let kept = site.get_as(&other.secret, "/events/v1?kind=kettle").await;
    let poll = site.request(Method::GET, "/test/poll").bearer_auth(&revoked.secret).send();
    let poll = tokio::spawn(poll);
    site.gates.entered.notified().await;

    let path = format!("/admin/v1/tokens/{}", revoked.token.id);
    let revoke = site.request(Method::DELETE, &path).bearer_auth(&site.admin).send();
    assert_eq!(revoke.await.unwrap().status(), 200);
    end(events).await.expect("a stream of events may end anywhere");
    end(listing).await.expect_err("a part of a listing is not taken for the whole");
    assert_eq!(problem(poll.await.unwrap().unwrap(), 401).await.code, Code::Unauthenticated);
    problem(site.get_as(&revoked.secret, "/events/v1").await, 401).await;
    // Those of others go on.
    site.running.chassis().events.publish("kettle", "x", Value::Null);
    assert_eq!(kinds(&read(kept, 1).await), ["kettle"]);
    site.stop().await;
}

#[tokio::test]
async fn streams_end_when_their_token_expires() {
    let site = Site::start().await;
    let hour = SignedDuration::from_hours(1);
    let body = json!({
        "name": "test",
        "scopes": [{ "verbs": ["read"], "contexts": ["events"] }],
        "expires": (site.clock.now() + hour).to_string(),
    });
    let made = site.post_as(&site.admin, "/admin/v1/tokens", &body).await;
    let token = made.json::<NewToken>().await.unwrap().secret;
    let events = site.get_as(&token, "/events/v1").await;
    site.clock.forward(hour);
    end(events).await.unwrap();
    problem(site.get_as(&token, "/events/v1").await, 401).await;
    site.stop().await;
}

#[tokio::test]
async fn streams_end_when_their_token_allows_less_than_before() {
    let site = Site::start().await;
    let token = site.token(json!([{ "verbs": ["read"], "contexts": ["events", "boot"] }])).await;
    let events = site.get_as(&token.secret, "/events/v1").await;
    let key: Key = format!("token/{}", token.token.id).parse().unwrap();
    let stored = site.store.get(&key).await.unwrap().unwrap();
    let mut record: Value = serde_json::from_slice(&stored.value).unwrap();
    record["scopes"][0]["contexts"] = json!(["boot"]);
    let put = Op::Put(key, record.to_string().into_bytes());
    site.store.commit(Txn { compares: vec![], ops: vec![put] }).await.unwrap();
    end(events).await.unwrap();
    problem(site.get_as(&token.secret, "/events/v1").await, 403).await;
    site.stop().await;
}
