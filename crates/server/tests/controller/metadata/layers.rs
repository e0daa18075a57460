//! Layers, from the document to the metadata of a node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::metadata::{ask, key, metric, seed, site, spec};
use crate::site::{Site, document};

/// How long a node waits for its documents.
const BUDGET: Duration = Duration::from_secs(2);

fn layer(name: &str, spec: &Value) -> Value {
    document("MetadataLayer", name, spec)
}

async fn user_data(site: &Site, n: u32) -> String {
    let path = seed(site, n).await;
    ask(site, &format!("{path}user-data")).await.expect(200).text()
}

async fn rendering(site: &Site, query: &str) -> Value {
    site.get(&format!("/meta/v1/nodes/n1/render{query}")).await.expect(200).json()
}

#[tokio::test]
async fn nodes_get_their_layers_as_previewed() {
    let site = site(|_| {}).await;
    assert_eq!(user_data(&site, 1).await, "");
    site.apply(&[
        layer("site", &json!({"selector": "*", "user_data": {"runcmd": ["site"], "who": "site"}})),
        layer(
            "n1",
            &json!({"selector": "node:n1", "hostname": "{{ node.name }}.example",
                "user_data": {"runcmd": ["{{ token }}"], "who": "n1",
                    "password": {"secret": {"file": "db"}}}}),
        ),
    ])
    .await;
    let told = user_data(&site, 1).await;
    assert!(told.starts_with("#cloud-config\n# layers: site (*), n1 (node:n1)\n"), "{told}");
    let id = crate::metadata::id(&site, "n1").await;
    assert!(told.contains(key(&site).seed(id, 0).as_str()), "{told}");
    assert!(!told.contains("password"), "{told}");
    assert!(user_data(&site, 2).await.contains("who: site"));

    let shown = rendering(&site, "?doc=user-data&trace=1").await;
    assert_eq!(shown["documents"].as_array().map(Vec::len), Some(1));
    let text = shown["documents"][0]["text"].as_str().expect("a text");
    assert!(text.contains("password: \"(secret)\"") && text.contains("(token)"), "{text}");
    let who =
        json!({"document": "user-data", "key": "who", "from": "layer:n1", "over": ["layer:site"]});
    assert!(shown["trace"].as_array().expect("a trace").contains(&who), "{shown}");
    assert_eq!(shown["layers"][1]["name"], "n1");
    let all = rendering(&site, "").await;
    assert_eq!(all["documents"].as_array().map(Vec::len), Some(4));
    assert!(all.get("trace").is_none());
    site.get("/meta/v1/nodes/n1/render?doc=../x").await.problem(400, "bad-parameter");
    site.get("/meta/v1/nodes/n9/render").await.problem(404, "not-found");

    let listed = site.get("/meta/v1/layers").await.expect(200).json();
    assert_eq!(
        (&listed["items"][0]["name"], &listed["items"][0]["nodes"]),
        (&json!("n1"), &json!(1))
    );
    let exported = site.export().await;
    assert_eq!(exported.iter().filter(|one| one["kind"] == "MetadataLayer").count(), 2);

    // The same after a restart; gone when the layer is.
    let site = site.restart().await;
    assert_eq!(user_data(&site, 1).await, told);
    let gone = json!({"targets": ["MetadataLayer/n1"]});
    site.post("/inventory/v1/delete", &gone).await.expect(200);
    assert!(!user_data(&site, 1).await.contains("n1 (node:n1)"));
    site.stop().await;
}

#[tokio::test]
async fn a_layer_that_fails_for_a_node_is_refused_and_nothing_changes() {
    let site = site(|_| {}).await;
    site.apply(&[layer("site", &json!({"selector": "*", "user_data": {"a": 1}}))]).await;
    let revision = site.revision();
    let before = user_data(&site, 1).await;
    for (spec, at, expected) in [
        (json!({"selector": "*", "user_data": {"a": "{{ node.nmae }}"}}), "user_data.a", "`n1`"),
        (
            json!({"selector": "node:later", "user_data": {"a": "{{ node.nmae }}"}}),
            "user_data.a",
            "undefined",
        ),
        (
            json!({"selector": "node:later", "user_data": {"a": "{% set x = 1 %}"}}),
            "user_data.a",
            "`set`",
        ),
        (json!({"selector": "group:none"}), "selector", "group `none` does not exist"),
        (json!({"selector": "partition:p9"}), "selector", "partition `p9` does not exist"),
        (
            json!({"selector": "*", "hostname": "{{ node.name }}_{{ node.id }}"}),
            "hostname",
            "not a host name",
        ),
    ] {
        let answer = site.try_apply("", &[layer("bad", &spec)]).await;
        let diagnostic = &answer.problem(400, "invalid-body").errors[0];
        assert_eq!(diagnostic.at, format!("MetadataLayer bad: {at}"));
        assert!(diagnostic.message.contains(expected), "{diagnostic:?}");
    }
    assert_eq!((site.revision(), user_data(&site, 1).await), (revision, before));

    // Nodes that come later harm themselves only.
    site.apply(&[layer(
        "rack",
        &json!({"selector": "node:n3", "user_data": {"rack": "{{ node.labels.rack }}"}}),
    )])
    .await;
    site.apply(&[document("Node", "n3", &spec(3, "10.0.0.3/8"))]).await;
    let told = user_data(&site, 3).await;
    assert!(told.contains("a: 1") && !told.contains("rack:"), "{told}");
    assert!(metric(&site, "hoist_metadata_failures_total").await >= 1.0);
    let shown = site.get("/meta/v1/nodes/n3/render").await.expect(200).json();
    assert_eq!(shown["failed"][0]["layer"], "rack");
    site.stop().await;
}

#[tokio::test]
async fn a_preview_shows_what_a_node_is_served_although_a_layer_fails() {
    let site = site(|_| {}).await;
    let mut node = spec(1, "10.0.0.1/8");
    node["labels"] = json!({"rack": "r1"});
    site.apply(&[
        document("Node", "n1", &node),
        layer(
            "rack",
            &json!({"selector": "node:n1",
                "user_data": {"rack": "{{ node.labels.rack }}", "url": "http://h/{{ token }}"}}),
        ),
    ])
    .await;
    let good = user_data(&site, 1).await;
    assert!(good.contains("rack: r1"), "{good}");
    let shown = rendering(&site, "?doc=user-data&trace=1").await;
    assert_eq!((shown.get("stale"), &shown["mode"]), (None, &json!("builtin")));
    assert!(shown.get("elsewhere").is_none());

    // The label goes; the node keeps its documents, and the preview shows that.
    site.apply(&[document("Node", "n1", &spec(1, "10.0.0.1/8"))]).await;
    assert_eq!(user_data(&site, 1).await, good);
    let shown = rendering(&site, "?doc=user-data&trace=1").await;
    assert_eq!((&shown["stale"], &shown["failed"][0]["layer"]), (&json!(true), &json!("rack")));
    assert_eq!(shown["failed"][0]["at"], "user_data.rack");
    assert!(shown.get("trace").is_none(), "{shown}");
    let text = shown["documents"][0]["text"].as_str().expect("a text");
    let token = key(&site).seed(crate::metadata::id(&site, "n1").await, 0);
    assert_eq!(text, good.replace(token.as_str(), "(token)"));
    assert_ne!(text, good);
    site.stop().await;
}

#[tokio::test]
async fn memory_filling_layers_are_refused_unnoticed() {
    let site = site(|_| {}).await;
    let mut bomb = String::from(
        "api: hoist/v1\nkind: MetadataLayer\nname: bomb\nspec:\n  selector: '*'\n  user_data:\n    a: &a [x, x, x, x, x, x, x, x, x]\n",
    );
    for (letter, before) in ('b'..='i').zip('a'..) {
        let many = vec![format!("*{before}"); 9].join(", ");
        bomb.extend(["    ", &letter.to_string(), ": &", &letter.to_string(), " [", &many, "]\n"]);
    }
    let deep = format!(
        "api: hoist/v1\nkind: MetadataLayer\nname: deep\nspec: {{selector: '*', user_data: {{a: {}{}}}}}\n",
        "[".repeat(5000),
        "]".repeat(5000)
    );
    for text in [bomb, deep] {
        let answer = site.ask("POST", "/inventory/v1/apply").body(text).send().await;
        answer.problem(400, "invalid-body");
    }
    let large = json!({"selector": "*", "user_data": {"a": "x".repeat(300 * 1024)}});
    site.try_apply("", &[layer("large", &large)]).await.problem(400, "invalid-body");
    assert_eq!(user_data(&site, 1).await, "");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn slow_layers_delay_one_node_for_two_seconds_at_most() {
    let site = site(|_| {}).await;
    let of_n1 = seed(&site, 1).await;
    let of_n2 = seed(&site, 2).await;
    // About as much work as templates may make.
    let work = "{% for a in node.id %}{% for b in node.id %}{% if a == b %}x{% endif %}\
                {% endfor %}{% endfor %}";
    let texts: Vec<_> = (0..128).map(|i| format!("{work} {i}")).collect();
    let slow =
        |name: &str| layer(name, &json!({"selector": "node:n1", "user_data": {name: texts}}));
    let all: Vec<_> = (0..16).map(|n| slow(&format!("slow{n}"))).collect();
    site.apply(&all).await;
    ask(&site, &format!("{of_n2}user-data")).await.expect(200);
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let path = format!("{of_n1}user-data");
        let other = format!("{of_n2}meta-data");
        let (answer, ()) = tokio::join!(ask(&site, &path), async {
            let asked = Instant::now();
            ask(&site, &other).await.expect(200);
            assert!(asked.elapsed() < BUDGET, "{:?}", asked.elapsed());
        });
        // On a machine that does other things too.
        assert!(asked.elapsed() < BUDGET + Duration::from_secs(3), "{:?}", asked.elapsed());
        if answer.status == 200 {
            let text = answer.text();
            assert!(text.contains("slow15:") && text.contains("x 127"), "{text}");
            break;
        }
        answer.problem(503, "held");
        assert_eq!(answer.header("retry-after"), "1");
        assert!(begun.elapsed() < Duration::from_mins(2), "it is never there");
    }
    site.stop().await;
}

/// Much longer than any client waits, for many nodes together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validation_of_a_layer_blocks_no_write_and_ends_with_a_stop() {
    let site = site(|_| {}).await;
    let nodes: Vec<_> = (10..410)
        .map(|n| document("Node", &format!("n{n}"), &json!({"labels": {"a": "b"}})))
        .collect();
    site.apply(&nodes).await;
    let work = "{% for a in node.id %}{% for b in node.id %}{% if a == b %}x{% endif %}\
                {% endfor %}{% endfor %}";
    let texts: Vec<_> = (0..100).map(|i| format!("{work} {i}")).collect();
    let slow = [layer("slow", &json!({"selector": "*", "user_data": {"a": texts}}))];
    let before = site.revision();
    let others = async {
        for n in 0..10 {
            let spec = json!({"kernel": format!("http://k/{n}"), "selector": "node:n1"});
            site.apply(&[document("BootConfig", "other", &spec)]).await;
        }
    };
    tokio::select! {
        answer = site.try_apply("", &slow) => panic!("that was not slow: {answer:?}"),
        () = others => {}
    }
    assert_eq!(site.revision(), before + 10, "the layer is not there");
    let begun = Instant::now();
    site.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn layers_are_another_right_than_the_inventory() {
    let site = site(|_| {}).await;
    let written = layer("site", &json!({"selector": "*", "user_data": {"a": 1}}));
    let inventory = site.limited_token("*").await;
    let put = async |token: &str| {
        let lines = crate::site::lines(std::slice::from_ref(&written));
        site.ask_as(token, "POST", "/inventory/v1/apply").body(lines).send().await
    };
    put(&inventory).await.problem(403, "forbidden");
    let both = json!([
        {"verbs": ["read", "write"], "contexts": ["inventory", "metadata"]},
    ]);
    put(&site.token(both).await).await.expect(200);
    let some = json!([{"verbs": ["read"], "contexts": ["metadata"], "selector": "node:n1"}]);
    let some = site.token(some).await;
    let get = async |path: &str| site.ask_as(&some, "GET", path).send().await;
    get("/meta/v1/nodes/n1/render").await.expect(200);
    get("/meta/v1/nodes/n2/render").await.problem(404, "not-found");
    site.apply(&[
        layer("mine", &json!({"selector": "node:n1", "user_data": {"b": 1}})),
        layer("theirs", &json!({"selector": "node:n2", "user_data": {"c": "not for n1"}})),
    ])
    .await;
    let listed = get("/meta/v1/layers").await.expect(200).json();
    let items = listed["items"].as_array().expect("a list");
    let seen: Vec<_> = items.iter().map(|item| (&item["name"], &item["nodes"])).collect();
    assert_eq!(seen, [(&json!("mine"), &json!(1)), (&json!("site"), &json!(1))]);
    get("/meta/v1/layers/mine").await.expect(200);
    get("/meta/v1/layers/site").await.expect(200);
    get("/meta/v1/layers/theirs").await.problem(404, "not-found");
    site.get("/meta/v1/layers/theirs").await.expect(200);
    let export = site.ask_as(&inventory, "GET", "/inventory/v1/export").send().await.expect(200);
    let export = String::from_utf8_lossy(&export.body).into_owned();
    assert!(export.contains("\"n2\"") && !export.contains("not for n1"), "{export}");
    ask(&site, "/meta/v1/nodes/n1/render").await.expect(401);
    site.stop().await;
}
