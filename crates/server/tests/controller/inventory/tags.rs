//! Entity tags: unchanged documents are not sent again, and a stale tag overwrites nothing.

use serde_json::json;

use crate::site::{APPLY, NODES, Site, id, lines, node, node_document, with};

#[tokio::test]
async fn known_object_is_not_sent_again() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    let first = site.get(&path).await.expect(200);
    assert_eq!(first.header("cache-control"), "private, no-cache");
    let tag = first.tag();
    assert!(tag.starts_with('"') && tag.contains(id(&made)), "{tag}");
    let by_name = format!("{NODES}/by/name/n1");
    for path in [&path, &by_name] {
        for known in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
            let answer = site.ask("GET", path).header("if-none-match", &known).send().await;
            let answer = answer.expect(304);
            assert!(answer.body.is_empty());
            assert_eq!(answer.tag(), tag);
            assert_eq!(answer.header("cache-control"), "private, no-cache");
        }
        site.ask("GET", path).header("if-none-match", "\"x\"").send().await.expect(200);
    }
    site.put(&path, &with(node(1), &json!({"role": "Compute"}))).await.expect(200);
    let answer = site.ask("GET", &path).header("if-none-match", &tag).send().await.expect(200);
    assert_ne!(answer.tag(), tag);
    site.stop().await;
}

/// A node shows more than its own record: groups in their order, the boot interface. When a rule
/// changes that, the old tag must not answer 304.
#[tokio::test]
async fn a_tag_changes_with_everything_that_the_object_shows() {
    let site = Site::start().await;
    for (group, priority) in [("a", 1), ("b", 2)] {
        let path = format!("/inventory/v1/groups/default/{group}");
        site.put(&path, &json!({"priority": priority})).await.expect(200);
    }
    let body = with(node(1), &json!({"groups": ["a", "b"]}));
    let path = format!("{NODES}/{}", id(&site.add(&body).await));
    let unchanged = async || {
        let first = site.get(&path).await.expect(200);
        (first.json(), first.tag())
    };
    let (shown, tag) = unchanged().await;
    assert_eq!(shown["groups"], json!(["a", "b"]));
    site.put("/inventory/v1/groups/default/a", &json!({"priority": 3})).await.expect(200);
    let answer = site.ask("GET", &path).header("if-none-match", &tag).send().await.expect(200);
    assert_eq!(answer.json()["groups"], json!(["b", "a"]));
    let (_, tag) = unchanged().await;
    site.put("/inventory/v1/groups/default/unrelated", &json!({})).await.expect(200);
    site.ask("GET", &path).header("if-none-match", &tag).send().await.expect(304);
    site.stop().await;
}

#[tokio::test]
async fn a_write_takes_only_the_version_its_author_has_seen() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    let old = site.get(&path).await.tag();
    let body = with(node(1), &json!({"role": "Compute"}));
    let written = site.ask("PUT", &path).header("if-match", &old).json(&body).send().await;
    let new = written.expect(200).tag();
    assert_ne!(new, old);
    assert_eq!(site.get(&path).await.tag(), new);

    let before = (site.revision(), site.records().await);
    for (method, path, body) in [
        ("PUT", path.clone(), node(1)),
        ("PUT", format!("{NODES}/by/name/n1"), node(1)),
        ("DELETE", path.clone(), json!(null)),
        ("PUT", format!("{path}/protection"), json!({})),
        ("DELETE", format!("{path}/protection"), json!(null)),
        ("PUT", format!("{path}/maintenance"), json!({"reason": "x"})),
        ("DELETE", format!("{path}/maintenance"), json!(null)),
        ("POST", format!("{path}/swap"), json!({"with": "n1"})),
    ] {
        let ask = site.ask(method, &path).header("if-match", &old);
        let ask = if body.is_null() { ask } else { ask.json(&body) };
        ask.send().await.problem(412, "precondition-failed");
    }
    assert_eq!((site.revision(), site.records().await), before);
    site.ask("DELETE", &path).header("if-match", &new).send().await.expect(200);
    let gone = site.ask("PUT", &format!("{NODES}/by/name/n1")).header("if-match", "*");
    gone.json(&node(1)).send().await.problem(412, "precondition-failed");
    site.stop().await;
}

#[tokio::test]
async fn create_only_does_not_replace() {
    let site = Site::start().await;
    for path in [
        "/inventory/v1/nodes/by/name/n1",
        "/inventory/v1/groups/default/gpu",
        "/inventory/v1/partitions/p1",
        "/inventory/v1/networks/nmn",
    ] {
        let create = || site.ask("PUT", path).header("if-none-match", "*").json(&json!({})).send();
        assert!([200, 201].contains(&create().await.status), "{path}");
        create().await.problem(412, "precondition-failed");
    }
    site.stop().await;
}

#[tokio::test]
async fn groups_partitions_and_networks_take_conditions_too() {
    let site = Site::start().await;
    for path in [
        "/inventory/v1/groups/default/gpu",
        "/inventory/v1/partitions/p1",
        "/inventory/v1/networks/nmn",
    ] {
        let first = json!({"description": "one"});
        let old = site.put(path, &first).await.expect(200).tag();
        assert_eq!(site.get(path).await.tag(), old);
        site.ask("GET", path).header("if-none-match", &old).send().await.expect(304);
        let second = json!({"description": "two"});
        let put = |tag: String| site.ask("PUT", path).header("if-match", &tag).json(&second).send();
        let new = put(old.clone()).await.expect(200).tag();
        put(old.clone()).await.problem(412, "precondition-failed");
        let stale = site.ask("DELETE", path).header("if-match", &old).send().await;
        stale.problem(412, "precondition-failed");
        site.ask("DELETE", path).header("if-match", &new).send().await.expect(200);
    }
    site.stop().await;
}

#[tokio::test]
async fn listings_change_their_tag_with_the_site() {
    let site = Site::start().await;
    site.add(&node(1)).await;
    for path in [
        "/inventory/v1/nodes",
        "/inventory/v1/nodes?selector=node:n1&fields=name",
        "/inventory/v1/groups",
        "/inventory/v1/partitions",
        "/inventory/v1/networks",
    ] {
        let first = site.get(path).await.expect(200);
        let tag = first.tag();
        assert_eq!(first.header("cache-control"), "private, no-cache");
        let known = || site.ask("GET", path).header("if-none-match", &tag).send();
        let answer = known().await.expect(304);
        assert!(answer.body.is_empty());
        let label = json!({"labels": {"at": path.replace(|c: char| !c.is_alphanumeric(), "")}});
        site.put(&format!("{NODES}/by/name/n1"), &with(node(1), &label)).await.expect(200);
        assert_ne!(known().await.expect(200).tag(), tag, "{path}");
    }
    // A wrong query is reported even with a current tag.
    let tag = site.get(NODES).await.tag();
    let wrong = site.ask("GET", &format!("{NODES}?fields=kettle")).header("if-none-match", &tag);
    wrong.send().await.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn a_bulk_change_can_be_tied_to_the_site_revision() {
    let site = Site::start().await;
    let tag = site.get(NODES).await.tag();
    let apply = |tag: String, n: u32| {
        let ask = site.ask("POST", APPLY).header("if-match", &tag);
        ask.header("content-type", crate::site::NDJSON).body(lines(&[node_document(n)])).send()
    };
    apply(tag.clone(), 1).await.expect(200);
    apply(tag.clone(), 2).await.problem(412, "precondition-failed");
    apply("\"another.1\"".to_owned(), 2).await.problem(412, "precondition-failed");
    apply("kettle".to_owned(), 2).await.problem(412, "precondition-failed");
    apply(site.get(NODES).await.tag(), 2).await.expect(200);
    let delete = site.ask("POST", "/inventory/v1/delete").header("if-match", &tag);
    let body = json!({"targets": ["Node/n1"]});
    delete.json(&body).send().await.problem(412, "precondition-failed");
    assert_eq!(site.revision(), 2);
    site.stop().await;
}
