//! Lists of whole sites: complete, tagged, compressed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::hsm::{COMPONENTS, INTERFACES, node, open, sets, small};
use crate::site::{NODES, Site, id, node_document};

/// More than fits into one piece of an answer.
const MANY: u32 = 3_000;

#[tokio::test]
async fn a_large_site_arrives_whole() {
    let site = Site::start().await;
    site.apply(&(1..=MANY).map(node_document).collect::<Vec<_>>()).await;
    let expected: Vec<Value> = (1..=MANY).map(Value::from).collect();
    let components = open(&site, COMPONENTS).await.expect(200).json();
    let components = components["Components"].as_array().expect("a list");
    let mut nids: Vec<_> = components.iter().map(|component| component["NID"].clone()).collect();
    nids.sort_by_key(Value::as_u64);
    assert_eq!(nids, expected);
    let interfaces = open(&site, INTERFACES).await.expect(200).json();
    assert_eq!(interfaces.as_array().expect("an array").len(), expected.len());
    for path in ["/hsm/v2/memberships", "/hsm/v2/Inventory/ComponentEndpoints"] {
        let listed = site.get(path).await.expect(200).json();
        let listed = listed.get("ComponentEndpoints").unwrap_or(&listed);
        assert_eq!(listed.as_array().expect("an array").len(), expected.len(), "{path}");
    }
    let none = open(&site, &format!("{COMPONENTS}?nid=1&nid=1&state=On")).await.expect(200);
    assert_eq!(none.json(), json!({"Components": []}));
    site.stop().await;
}

/// As many as are served at a time ask for everything and read nothing of it.
#[tokio::test]
async fn stalled_readers_delay_others_briefly() {
    const AT_ONCE: usize = 8;
    // More than the sockets between them hold.
    const NODES: u32 = 12_000;
    let site = Site::start().await;
    site.apply(&(1..=NODES).map(node_document).collect::<Vec<_>>()).await;
    let list = "/hsm/v2/Inventory/ComponentEndpoints";
    let began = Instant::now();
    let mut stalled = Vec::new();
    for _ in 0..AT_ONCE {
        let answer = site.ask("GET", list).open().await;
        assert_eq!(answer.status(), 200);
        stalled.push(answer);
    }
    let started = Instant::now();
    // A lookup needs no permit.
    let one = site.get(&format!("{list}?nid=7")).await.expect(200).json();
    assert_eq!(one["ComponentEndpoints"].as_array().expect("a list").len(), 1);
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    // Other clients get the whole list after a while.
    let all = site.get(list).await.expect(200).json();
    assert_eq!(all["ComponentEndpoints"].as_array().expect("a list").len(), NODES as usize);
    assert!(began.elapsed() >= Duration::from_secs(5), "nobody had to wait");
    let first = stalled.swap_remove(0);
    assert!(first.bytes().await.is_err(), "a part is not taken for the whole");
    drop(stalled);
    site.stop().await;
}

#[tokio::test]
async fn an_empty_site_is_an_empty_list() {
    let site = Site::start().await;
    for (path, expected) in [
        (COMPONENTS, json!({"Components": []})),
        (INTERFACES, json!([])),
        ("/hsm/v2/memberships", json!([])),
        ("/hsm/v2/groups", json!([])),
        ("/hsm/v2/partitions", json!([])),
        ("/hsm/v2/Inventory/ComponentEndpoints", json!({"ComponentEndpoints": []})),
        ("/hsm/v2/Inventory/RedfishEndpoints", json!({"RedfishEndpoints": []})),
    ] {
        assert_eq!(site.get(path).await.expect(200).json(), expected, "{path}");
    }
    site.stop().await;
}

#[tokio::test]
async fn current_etag_gets_not_modified_until_a_change() {
    let site = small().await;
    let paths =
        [COMPONENTS, INTERFACES, "/hsm/v2/memberships", "/hsm/v2/groups", "/hsm/v2/groups/odd"];
    for path in paths {
        let tag = site.get(path).await.expect(200).tag();
        let again = async || site.ask("GET", path).header("if-none-match", &tag).send().await;
        assert!(again().await.expect(304).body.is_empty(), "{path}");
        // A filter that is wrong is wrong with a tag as well.
        if path == COMPONENTS {
            let wrong = format!("{path}?type=kettle");
            site.ask("GET", &wrong).header("if-none-match", &tag).send().await.expect(400);
        }
    }
    let tag = open(&site, COMPONENTS).await.tag();
    let stale = async |tag: &str| {
        site.ask("GET", COMPONENTS).header("if-none-match", tag).send().await.expect(200)
    };
    // Observed state makes no revision, and is shown here all the same.
    let node_id = id(&site.get(&format!("{NODES}/by/name/n1")).await.json()).to_owned();
    let state = json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "test"});
    site.put(&format!("{NODES}/{node_id}/state"), &state).await.expect(200);
    let seen = stale(&tag).await;
    assert_eq!(seen.json()["Components"][0]["State"], "On");
    let tag = seen.tag();
    site.apply(&sets().into_iter().chain([node(7)]).collect::<Vec<_>>()).await;
    let grown = stale(&tag).await;
    assert_eq!(grown.json()["Components"].as_array().expect("a list").len(), 9);
    // Nor is the tag of one process that of the next.
    let tag = grown.tag();
    let site = site.restart().await;
    site.ask("GET", COMPONENTS).header("if-none-match", &tag).send().await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn list_is_compressed_for_clients_that_accept_it() {
    let site = Site::start().await;
    site.apply(&(1..=MANY).map(node_document).collect::<Vec<_>>()).await;
    let plain = open(&site, INTERFACES).await.expect(200);
    let packed = site.ask_as_nobody("GET", INTERFACES).header("accept-encoding", "gzip");
    let packed = packed.send().await.expect(200);
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.len() * 5 < plain.body.len(), "{} {}", packed.body.len(), plain.body.len());
    site.stop().await;
}
