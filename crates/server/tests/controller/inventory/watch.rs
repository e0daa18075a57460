//! Watching: what changes arrives once, in order, and a watcher that was away can go on.

use std::time::Duration;

use hoist_site::registry::Horizon;
use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_store::{Op, Store, Txn};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::site::{NODES, Site, id, node, node_document, plain_client, with};

/// One open watch, read line by line.
pub(crate) struct Stream {
    response: reqwest::Response,
    text: Vec<u8>,
}

impl Stream {
    pub(crate) async fn open(site: &Site, query: &str) -> Self {
        Self::open_as(site, &site.admin, query).await
    }

    pub(crate) async fn open_as(site: &Site, token: &str, query: &str) -> Self {
        let ask = site.ask_as(token, "GET", &format!("{NODES}?watch=1{query}"));
        let response = ask.open().await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], crate::site::NDJSON);
        Self { response, text: Vec::new() }
    }

    /// The next line, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line of JSON"));
            }
            let chunk = timeout(Duration::from_secs(30), self.response.chunk());
            match chunk.await.expect("a line in time").expect("the stream goes on") {
                Some(chunk) => self.text.extend_from_slice(&chunk),
                None => return None,
            }
        }
    }

    /// Lines up to and without the next bookmark, and its revision.
    pub(crate) async fn batch(&mut self) -> (Vec<Value>, u64) {
        let mut lines = Vec::new();
        loop {
            let line = self.next().await.expect("a bookmark before the end");
            match line["type"].as_str() {
                Some("bookmark") => {
                    let revision = line["revision"].as_u64().expect("a number");
                    let since = line["since"].as_str().expect("a resume point");
                    assert!(since.ends_with(&format!(".{revision}")), "{line}");
                    return (lines, revision);
                }
                _ => lines.push(line),
            }
        }
    }

    /// The next line that is no bookmark.
    pub(crate) async fn change(&mut self) -> Value {
        loop {
            let line = self.next().await.expect("a change before the end");
            if line["type"] != "bookmark" {
                return line;
            }
        }
    }
}

async fn put(site: &Site, n: u32, extra: &Value) -> Value {
    let body = with(node(n), extra);
    let answer = site.put(&format!("{NODES}/by/name/n{n}"), &body).await;
    assert!([200, 201].contains(&answer.status), "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn changes_arrive_in_order_with_bookmarks() {
    let site = Site::start().await;
    let first = put(&site, 1, &json!({})).await;
    let mut stream = Stream::open(&site, "").await;
    let second = put(&site, 2, &json!({})).await;
    let line = stream.change().await;
    assert_eq!((&line["type"], &line["node"]), (&json!("put"), &second));
    assert_eq!(line["revision"], site.revision());
    let changed = put(&site, 1, &json!({"role": "Compute"})).await;
    assert_eq!(stream.change().await["node"], changed);
    site.delete(&format!("{NODES}/{}", id(&first))).await.expect(200);
    let line = stream.change().await;
    assert_eq!((&line["type"], &line["id"]), (&json!("delete"), &first["id"]));
    assert_eq!(stream.batch().await, (vec![], site.revision()));
    drop(stream);
    site.stop().await;
}

#[tokio::test]
async fn a_watch_goes_on_from_a_revision_and_coalesces() {
    let site = Site::start().await;
    let made = put(&site, 1, &json!({})).await;
    let since = site.revision();
    for round in 0..5 {
        put(&site, 2, &json!({"labels": {"round": round.to_string()}})).await;
    }
    put(&site, 3, &json!({})).await;
    site.delete(&format!("{NODES}/{}", id(&made))).await.expect(200);
    put(&site, 2, &json!({"labels": {"round": "last"}})).await;
    let mut stream = Stream::open(&site, &format!("&since={since}")).await;
    let (lines, bookmark) = stream.batch().await;
    let told: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(told, ["put", "delete", "put"]);
    assert_eq!(lines[0]["node"]["name"], "n3");
    assert_eq!(lines[2]["node"]["labels"]["round"], "last");
    assert!(lines.iter().map(|line| line["revision"].as_u64().unwrap()).is_sorted());
    assert_eq!(bookmark, site.revision());
    drop(stream);
    site.stop().await;
}

#[tokio::test]
async fn node_that_leaves_the_selected_set_is_gone_for_watchers() {
    let site = Site::start().await;
    let made = put(&site, 1, &json!({"labels": {"rack": "7"}})).await;
    let mut stream = Stream::open(&site, "&selector=label:rack%3D7").await;
    put(&site, 1, &json!({"labels": {"rack": "8"}})).await;
    let line = stream.change().await;
    assert_eq!((&line["type"], &line["id"]), (&json!("delete"), &made["id"]));
    put(&site, 1, &json!({"labels": {"rack": "7"}})).await;
    assert_eq!(stream.change().await["type"], "put");
    drop(stream);
    site.stop().await;
}

#[tokio::test]
async fn watch_of_a_selector_is_silent_about_other_nodes() {
    let site = Site::start().await;
    let mine = put(&site, 1, &json!({"labels": {"rack": "7"}})).await;
    let other = put(&site, 2, &json!({"labels": {"rack": "8"}})).await;
    let selector = "selector=label:rack%3D7";
    let listing = site.get(&format!("{NODES}?{selector}")).await.expect(200);
    let since = listing.json()["since"].as_str().expect("a resume point").to_owned();
    let mut stream = Stream::open(&site, &format!("&{selector}")).await;
    put(&site, 2, &json!({"labels": {"rack": "9"}})).await;
    site.delete(&format!("{NODES}/{}", id(&other))).await.expect(200);
    put(&site, 3, &json!({})).await;
    let group = "/inventory/v1/groups/default/other";
    site.put(group, &json!({"description": "x"})).await.expect(200);
    site.get(&format!("{NODES}?{selector}&since={since}")).await.expect(304);
    let known = site.ask("GET", &format!("{NODES}?{selector}"));
    known.header("if-none-match", &listing.tag()).send().await.expect(304);
    put(&site, 1, &json!({"labels": {"rack": "7"}, "role": "Compute"})).await;
    let line = stream.next().await.expect("the first line, without a bookmark before it");
    assert_eq!((&line["type"], &line["node"]["id"]), (&json!("put"), &mine["id"]), "{line}");
    assert_eq!(stream.batch().await, (vec![], site.revision()));
    let known = site.ask("GET", &format!("{NODES}?{selector}"));
    known.header("if-none-match", &listing.tag()).send().await.expect(200);
    drop(stream);
    site.stop().await;
}

/// The bookmark comes at its time although foreign changes wake the watch again and again.
#[tokio::test]
async fn watch_of_a_selector_has_bookmarks_among_foreign_changes() {
    let site = Site::start().await;
    let mut stream = Stream::open(&site, "&selector=label:rack%3D7").await;
    let before = site.revision();
    let changes = async {
        for round in 0.. {
            put(&site, 2, &json!({"labels": {"round": round.to_string()}})).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = changes => {}
        (lines, revision) = stream.batch() => {
            assert!(lines.is_empty() && revision > before + 10, "{lines:?} {revision}");
        }
    }
    drop(stream);
    site.stop().await;
}

/// Membership may change without the node itself being written.
#[tokio::test]
async fn node_moved_out_of_the_set_by_a_rule_is_gone_for_watchers() {
    let site = Site::start().await;
    let group = "/inventory/v1/groups/default/rack";
    site.put(group, &json!({"selector": "label:rack=7"})).await.expect(200);
    let seven = put(&site, 1, &json!({"labels": {"rack": "7"}})).await;
    let eight = put(&site, 2, &json!({"labels": {"rack": "8"}})).await;
    let since = site.revision();
    let mut live = Stream::open(&site, "&selector=group:rack").await;
    site.put(group, &json!({"selector": "label:rack=8"})).await.expect(200);
    let mut resumed = Stream::open(&site, &format!("&selector=group:rack&since={since}")).await;
    for stream in [&mut live, &mut resumed] {
        let (lines, _) = stream.batch().await;
        let gone = lines.iter().any(|line| line["type"] == "delete" && line["id"] == seven["id"]);
        let came =
            lines.iter().any(|line| line["type"] == "put" && line["node"]["id"] == eight["id"]);
        assert!(gone && came, "{lines:?}");
    }
    drop((live, resumed));
    site.stop().await;
}

#[tokio::test]
async fn a_watch_survives_a_restart_of_the_server() {
    let site = Site::start().await;
    let made = put(&site, 1, &json!({})).await;
    let mut stream = Stream::open(&site, "&since=0").await;
    let (_, since) = stream.batch().await;
    put(&site, 2, &json!({})).await;
    stream.batch().await;
    let (stopped, last) = tokio::join!(site.stop(), async {
        let last = stream.next().await.expect("a last line");
        assert_eq!(stream.next().await, None, "the stream ends");
        last
    });
    assert_eq!(last["type"], "bookmark");
    let site = Site::start_again(stopped.0, stopped.1).await;
    put(&site, 3, &json!({})).await;
    site.delete(&format!("{NODES}/{}", id(&made))).await.expect(200);
    let mut stream = Stream::open(&site, &format!("&since={since}")).await;
    let (lines, _) = stream.batch().await;
    let told: Vec<_> = lines.iter().map(|line| &line["type"]).collect();
    assert_eq!(told, ["put", "put", "delete"]);
    drop(stream);
    site.stop().await;
}

/// The new process does not know which nodes were selected before, and must not tell ids of others.
#[tokio::test]
async fn watch_of_a_selector_lists_again_after_a_restart() {
    let site = Site::start().await;
    put(&site, 1, &json!({"labels": {"rack": "7"}})).await;
    let other = put(&site, 2, &json!({"labels": {"rack": "8"}})).await;
    let since = site.revision();
    site.delete(&format!("{NODES}/{}", id(&other))).await.expect(200);
    let site = site.restart().await;
    let selector = "selector=label:rack%3D7";
    for query in [format!("since={since}&wait=0s"), format!("watch=1&since={since}")] {
        let answer = site.get(&format!("{NODES}?{selector}&{query}")).await;
        assert!(answer.problem(410, "gone").remedy.is_some(), "{query}");
    }
    let listed = site.get(&format!("{NODES}?{selector}")).await.expect(200).json();
    let since = listed["since"].as_str().expect("a resume point");
    site.get(&format!("{NODES}?{selector}&since={since}")).await.expect(304);
    // A watch of all nodes has nothing to hide.
    let status = site.get("/inventory/v1/status").await.json();
    let incarnation = status["incarnation"].as_str().expect("an incarnation");
    let batch = site.get(&format!("{NODES}?since={incarnation}.{}", site.revision() - 1)).await;
    assert_eq!(batch.expect(200).json()["lines"][0]["id"], other["id"]);
    site.stop().await;
}

/// A site with this horizon, where revisions 2, 4, 6 and 8 removed a node and 9 is the last.
async fn with_removals(horizon: Horizon) -> Site {
    let site = Site::start_with(|config| config.horizon = horizon).await;
    for n in 1..=4 {
        let made = put(&site, n, &json!({})).await;
        site.delete(&format!("{NODES}/{}", id(&made))).await.expect(200);
    }
    put(&site, 5, &json!({})).await;
    site
}

#[tokio::test]
async fn horizon_limits_how_far_back_watches_start() {
    let hour = Duration::from_hours(1);
    let site = with_removals(Horizon { age: hour, removals: 2 }).await;
    site.get(&format!("{NODES}?since=3")).await.problem(410, "gone");
    let lines = site.get(&format!("{NODES}?since=5")).await.expect(200).json()["lines"].clone();
    let deleted = lines.as_array().expect("lines").iter().filter(|line| line["type"] == "delete");
    assert_eq!(deleted.count(), 2, "{lines}");
    site.stop().await;

    let site = with_removals(Horizon { age: Duration::ZERO, removals: 100 }).await;
    site.get(&format!("{NODES}?since=7")).await.problem(410, "gone");
    site.get(&format!("{NODES}?since=8")).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn history_that_is_not_kept_is_gone() {
    let site = Site::start().await;
    for n in 1..=5 {
        put(&site, n, &json!({})).await;
    }
    let status = site.get("/inventory/v1/status").await.json();
    let incarnation = status["incarnation"].as_str().unwrap().to_owned();
    let ask = async |site: &Site, since: &str| {
        let streamed = site.get(&format!("{NODES}?since={since}&wait=0s")).await;
        let watched = site.ask("GET", &format!("{NODES}?watch=1&since={since}")).open().await;
        assert_eq!(watched.status().as_u16() == 200, streamed.status != 410, "{since}");
        streamed
    };
    ask(&site, &format!("{incarnation}.3")).await.expect(200);
    ask(&site, "6").await.problem(410, "gone");
    ask(&site, "ffffffffffffffff.3").await.problem(410, "gone");
    site.get(&format!("{NODES}?since=kettle&wait=0s")).await.problem(400, "bad-parameter");

    let (dir, config) = site.stop().await;
    let store = EmbeddedStore::open(dir.path(), Retention::default()).expect("a free store");
    let key = "site/revision".parse().unwrap();
    let forgetful = json!({"revision": 5, "horizon": 3}).to_string().into_bytes();
    let ops = vec![Op::Put(key, forgetful)];
    store.commit(Txn { compares: Vec::new(), ops }).await.unwrap();
    drop(store);
    let site = Site::start_again(dir, config).await;
    assert!(ask(&site, "2").await.problem(410, "gone").remedy.is_some());
    ask(&site, "3").await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn a_poll_answers_when_something_changes_or_the_time_is_up() {
    let site = Site::start().await;
    put(&site, 1, &json!({})).await;
    let since = site.revision();
    let nothing = site.get(&format!("{NODES}?since={since}&wait=50ms")).await.expect(304);
    assert!(nothing.body.is_empty());
    site.get(&format!("{NODES}?since={since}")).await.expect(304);
    let path = format!("{NODES}?since={since}&wait=30s");
    let nothing = json!({});
    let (batch, made) = tokio::join!(site.get(&path), put(&site, 2, &nothing));
    let batch = batch.expect(200).json();
    assert_eq!(batch["revision"], site.revision());
    assert_eq!(batch["lines"][0]["node"], made);
    let everything = site.get(&format!("{NODES}?since=0")).await.expect(200).json();
    assert_eq!(everything["lines"].as_array().unwrap().len(), 2);
    for wait in ["soon", "-1s", "5"] {
        let wrong = site.get(&format!("{NODES}?since={since}&wait={wait}")).await;
        wrong.problem(400, "bad-parameter");
    }
    site.stop().await;
}

#[tokio::test]
async fn stop_does_not_wait_for_waiting_clients() {
    let site = Site::start().await;
    put(&site, 1, &json!({})).await;
    let path = format!("{NODES}?since=1&wait=5m");
    let mut watch = Stream::open(&site, "").await;
    let client = plain_client().build().unwrap();
    let url = site.url(&path);
    let admin = site.admin.clone();
    let poll = tokio::spawn(async move { client.get(url).bearer_auth(admin).send().await });
    // Nothing tells from outside that a request waits; if it arrives later, it is refused.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = std::time::Instant::now();
    let (_, status) = tokio::join!(site.stop(), async {
        assert_eq!(watch.next().await.expect("a last bookmark")["type"], "bookmark");
        poll.await.unwrap().expect("an answer").status().as_u16()
    });
    assert!([304, 503].contains(&status), "{status}");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

/// A stalled reader delays no other, and its pending changes are not kept in memory.
#[tokio::test]
async fn a_slow_reader_holds_back_only_itself() {
    let site = Site::start().await;
    let documents: Vec<_> = (1..=3000).map(node_document).collect();
    site.apply(&documents).await;
    let mut slow: Vec<Stream> = Vec::new();
    for _ in 0..8 {
        slow.push(Stream::open(&site, "&since=0").await);
    }
    for n in 1..=20 {
        put(&site, n, &json!({"labels": {"round": "2"}})).await;
    }
    let mut fast = Stream::open(&site, &format!("&since={}", site.revision() - 1)).await;
    assert_eq!(fast.batch().await.0.len(), 1);
    for stream in &mut slow {
        let mut seen = std::collections::BTreeMap::new();
        while seen.len() < 3000 || stream_is_behind(&seen, site.revision()) {
            let line = stream.change().await;
            let revision = line["revision"].as_u64().unwrap();
            let node = line["node"].clone();
            seen.insert(node["name"].as_str().unwrap().to_owned(), (revision, node));
        }
        assert_eq!(seen["n1"].1["labels"]["round"], "2");
    }
    drop((slow, fast));
    site.stop().await;
}

fn stream_is_behind(
    seen: &std::collections::BTreeMap<String, (u64, Value)>,
    revision: u64,
) -> bool {
    seen.values().map(|(seen, _)| *seen).max() < Some(revision)
}
