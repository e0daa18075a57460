//! The event stream as a client sees it.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Response;
use serde_json::Value;
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
        .request(reqwest::Method::GET, "/events/v1")
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
    tokio::time::sleep(Duration::from_millis(5)).await;
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
