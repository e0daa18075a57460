//! Listings: selection, fields, and pages that show one moment.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::site::{NDJSON, NODES, Site, document, id, names, node, node_document, spec, with};

async fn small_site() -> Site {
    let site = Site::start().await;
    let mut documents = vec![
        document("Partition", "p1", &json!({})),
        document("Group", "p1/gpu", &json!({})),
        document("Group", "default/login", &json!({})),
    ];
    for n in 1..=6 {
        let extra = match n {
            1 => json!({"groups": ["login"], "role": "Application"}),
            2 | 3 => json!({"partition": "p1", "groups": ["gpu"], "role": "Compute"}),
            4 => json!({"arch": "aarch64", "labels": {"rack": "7"}}),
            _ => json!({"role": "Compute", "xname": format!("x1000c0s{n}b0n0")}),
        };
        documents.push(document("Node", &format!("n{n}"), &with(spec(n), &extra)));
    }
    site.apply(&documents).await;
    site
}

/// A query value as it travels.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |url, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => url + &char::from(byte).to_string(),
        _ => format!("{url}%{byte:02X}"),
    })
}

async fn select(site: &Site, selector: &str) -> Vec<String> {
    let path = format!("{NODES}?selector={}", encoded(selector));
    let mut found = names(&site.get(&path).await.expect(200).json());
    found.sort();
    found
}

#[tokio::test]
async fn selectors_choose() {
    let site = small_site().await;
    for (selector, expected) in [
        ("*", "n1 n2 n3 n4 n5 n6"),
        ("", "n1 n2 n3 n4 n5 n6"),
        ("p1/gpu", "n2 n3"),
        ("p1/*", "n2 n3"),
        ("partition:p1", "n2 n3"),
        ("login", "n1"),
        ("group:login", "n1"),
        ("role:compute", "n2 n3 n5 n6"),
        ("compute & !p1/*", "n5 n6"),
        ("node:n1, node:n4", "n1 n4"),
        ("nid:1-2,5", "n1 n2 n5"),
        ("label:rack=7", "n4"),
        ("rack=7 or arch:x86_64", "n4"),
        ("xname:x1000c0s[5-9]b*n*", "n5 n6"),
        ("mac:02-00-00-00-00-03", "n3"),
        ("!(role:compute , rack=7)", "n1"),
        ("node:kettle", ""),
    ] {
        assert_eq!(select(&site, selector).await.join(" "), expected, "{selector}");
    }
    site.stop().await;
}

#[tokio::test]
async fn unknown_groups_and_partitions_are_errors_with_a_suggestion() {
    let site = small_site().await;
    for (selector, message) in [
        ("group:logni", "group `logni` does not exist; did you mean `login`?"),
        ("p1/gpo", "group `gpo` does not exist; did you mean `gpu`?"),
        ("role:compute & !partition:p2", "partition `p2` does not exist; did you mean `p1`?"),
        ("zzzzzz/*", "partition `zzzzzz` does not exist; `hoist partition list` shows all of them"),
    ] {
        let path = format!("{NODES}?selector={}", encoded(selector));
        let problem = site.get(&path).await.problem(400, "bad-parameter");
        assert!(problem.detail.contains(message), "{selector}: {}", problem.detail);
    }
    // A pattern may match nothing.
    assert_eq!(select(&site, "partition:zz*").await, [""; 0]);
    site.stop().await;
}

#[tokio::test]
async fn a_wrong_selector_is_told_with_the_character() {
    let site = small_site().await;
    for (selector, at) in [
        ("role:compute &", "character 15"),
        ("(role:compute", "character 14"),
        ("rol:compute", "character 1"),
        ("node:n1 , nid:x", "character 15"),
        ("ö & nid:x", "character 1"),
    ] {
        for route in [NODES, "/inventory/v1/export"] {
            let path = format!("{route}?selector={}", encoded(selector));
            let problem = site.get(&path).await.problem(400, "bad-parameter");
            assert!(problem.detail.contains(at), "{selector}: {}", problem.detail);
            assert_eq!(problem.errors[0].at, format!("selector, {at}"));
        }
    }
    for query in ["watch=1&selector=%26", "since=0&wait=0s&selector=%26"] {
        site.get(&format!("{NODES}?{query}")).await.problem(400, "bad-parameter");
    }
    let unknown = site.get(&format!("{NODES}?selector=logn")).await.problem(400, "bad-parameter");
    assert!(unknown.detail.contains("login"), "{}", unknown.detail);
    site.stop().await;
}

#[tokio::test]
async fn fields_are_chosen_and_unknown_ones_refused() {
    let site = small_site().await;
    let listing = site.get(&format!("{NODES}?fields=name,boot&selector=node:n1")).await.json();
    let shown: BTreeSet<_> = listing["items"][0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(shown, ["boot", "id", "name"].map(str::to_owned).into());
    for query in ["fields=name,lables", "fields=name,", "fields="] {
        let problem = site.get(&format!("{NODES}?{query}")).await.problem(400, "bad-parameter");
        assert_eq!(problem.errors[0].at, "fields");
    }
    let problem = site.get(&format!("{NODES}?fields=lables")).await.problem(400, "bad-parameter");
    assert_eq!(problem.errors[0].hint.as_deref(), Some("did you mean `labels`?"));
    site.stop().await;
}

#[tokio::test]
async fn pages_show_one_moment_whatever_is_written_between() {
    let site = Site::start().await;
    site.apply(&(1..=10).map(node_document).collect::<Vec<_>>()).await;
    let revision = site.revision();
    let mut seen: Vec<Value> = Vec::new();
    let mut path = format!("{NODES}?limit=3");
    let mut pages = 0;
    loop {
        let answer = site.get(&path).await.expect(200);
        let page = answer.json();
        assert_eq!(page["revision"], revision);
        assert!(answer.tag().ends_with(&format!(".{revision}\"")));
        seen.extend(page["items"].as_array().unwrap().iter().cloned());
        pages += 1;
        // Changes nodes of sent and of later pages, the first and the last included.
        for n in [pages, 11 - pages] {
            let path = format!("{NODES}/by/name/n{n}");
            let changed = with(node(n), &json!({"labels": {"page": pages.to_string()}}));
            let answer = site.put(&path, &changed).await;
            assert!([200, 201].contains(&answer.status), "{}", answer.text());
        }
        let first = names(&page)[0].clone();
        let victim = site.get(&format!("{NODES}/by/name/{first}")).await.json();
        site.delete(&format!("{NODES}/{}", id(&victim))).await.expect(200);
        site.add(&node(100 + pages)).await;
        let Some(next) = page["continue"].as_str() else { break };
        path = format!("{NODES}?limit=3&continue={next}");
    }
    assert_eq!(pages, 4);
    let found: Vec<_> = seen.iter().map(|node| node["name"].as_str().unwrap()).collect();
    let mut sorted = found.clone();
    sorted.sort_by_key(|name| name[1..].parse::<u32>().unwrap());
    assert_eq!(sorted.len(), 10);
    assert!(seen.iter().all(|node| node.get("labels").is_none()), "a write between pages shows");
    let ids: Vec<_> = seen.iter().map(id).collect();
    assert!(ids.is_sorted(), "pages are in id order");
    site.stop().await;
}

#[tokio::test]
async fn the_snapshot_of_a_slow_listing_is_forgotten_and_that_is_told() {
    let site = Site::start().await;
    site.apply(&(1..=3).map(node_document).collect::<Vec<_>>()).await;
    let page = async || site.get(&format!("{NODES}?limit=1")).await.expect(200).json();
    let first = page().await["continue"].as_str().unwrap().to_owned();
    for n in 10..40 {
        site.add(&node(n)).await;
        page().await;
    }
    let path = format!("{NODES}?limit=1&continue={first}");
    let gone = site.get(&path).await.problem(410, "gone");
    assert!(gone.remedy.is_some());
    let parts: Vec<_> = first.splitn(3, '.').collect();
    let foreign = format!("{NODES}?continue=ffffffffffffffff.{}.{}", parts[1], parts[2]);
    site.get(&foreign).await.problem(410, "gone");
    let kettle = site.get(&format!("{NODES}?continue=kettle")).await;
    kettle.problem(400, "bad-parameter");
    let site = site.restart().await;
    site.get(&path).await.problem(410, "gone");
    site.stop().await;
}

#[tokio::test]
async fn limits_have_bounds() {
    let site = small_site().await;
    for limit in ["0", "10001", "-1", "many", "18446744073709551616"] {
        let answer = site.get(&format!("{NODES}?limit={limit}")).await;
        answer.problem(400, "bad-parameter");
    }
    for (limit, count) in [(1, 1), (6, 6), (10_000, 6)] {
        let listing = site.get(&format!("{NODES}?limit={limit}")).await.expect(200).json();
        assert_eq!(names(&listing).len(), count);
        assert_eq!(listing.get("continue").is_some(), limit == 1);
    }
    site.stop().await;
}

#[tokio::test]
async fn thousands_of_nodes_stream_as_lines() {
    let site = Site::start().await;
    let documents: Vec<_> = (1..=5000).map(node_document).collect();
    site.apply(&documents).await;
    let stream = site.ask("GET", NODES).header("accept", NDJSON).send().await.expect(200);
    assert_eq!(stream.header("content-type"), NDJSON);
    let lines = stream.lines();
    assert_eq!(lines.len(), 5000);
    assert!(lines.iter().map(id).is_sorted());
    let path = format!("{NODES}?fields=name&selector=nid:1-2000");
    let some = site.ask("GET", &path).header("accept", NDJSON).send().await.expect(200).lines();
    assert_eq!(some.len(), 2000);
    assert!(some.iter().all(|line| line.as_object().unwrap().len() == 2));
    let page = site.get(NODES).await.expect(200).json();
    assert_eq!(names(&page).len(), 1000, "a page has a size even when none is asked for");
    site.stop().await;
}

#[tokio::test]
async fn parameters_that_would_be_ignored_are_refused() {
    let site = small_site().await;
    for query in [
        "watch=2",
        "watch=1&limit=5",
        "watch=1&fields=name",
        "watch=1&continue=x",
        "watch=1&wait=5s",
        "since=1&wait=0s&fields=name",
        "state=2",
        "limit=1&limit=2",
    ] {
        let answer = site.get(&format!("{NODES}?{query}")).await;
        answer.problem(400, "bad-parameter");
    }
    site.stop().await;
}
