//! Many documents in one change: all of them or none, and hostile bodies are none.

use std::time::Duration;

use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::site::{
    APPLY, NDJSON, NODES, Site, document, lines, mac, node_document, plain_client, spec, with,
};

const SITE: &str = "
api: hoist/v1
kind: Partition
name: p1
spec: {description: first}
---
api: hoist/v1
kind: Group
name: p1/gpu
spec:
  members: [n1]
---
api: hoist/v1
kind: Node
name: n1
spec:
  partition: p1
  nid: 1
  interfaces:
    - {name: eth0, mac: '02:00:00:00:00:01', addresses: [10.0.0.1/8]}
---
api: hoist/v1
kind: Network
name: nmn
spec: {vlan: 5}
";

#[tokio::test]
async fn the_same_documents_as_yaml_json_and_lines_are_the_same_site() {
    let documents = [
        document("Partition", "p1", &json!({"description": "first"})),
        document("Group", "p1/gpu", &json!({"members": ["n1"]})),
        document("Node", "n1", &with(spec(1), &json!({"partition": "p1"}))),
        document("Network", "nmn", &json!({"vlan": 5})),
    ];
    let list = Value::from(documents.to_vec()).to_string();
    let mut exports = Vec::new();
    for (media_type, body) in [
        ("application/yaml", SITE.to_owned()),
        ("application/json", list.clone()),
        ("", list),
        (NDJSON, lines(&documents)),
        ("application/x-ndjson; charset=utf-8", format!("\n{}\r\n", lines(&documents))),
    ] {
        let site = Site::start().await;
        let apply = || {
            let ask = site.ask("POST", APPLY);
            let ask =
                if media_type.is_empty() { ask } else { ask.header("content-type", media_type) };
            ask.body(body.clone()).send()
        };
        let report = apply().await.expect(200).json();
        assert_eq!((&report["created"], &report["revision"]), (&json!(4), &json!(1)));
        assert_eq!(report["items"].as_array().unwrap().len(), 4);
        let again = apply().await.expect(200).json();
        assert_eq!((&again["unchanged"], &again["revision"]), (&json!(4), &json!(1)));
        assert_eq!(again["items"], json!([]));
        exports.push(site.export().await);
        site.stop().await;
    }
    assert!(exports.iter().all(|export| *export == exports[0] && export.len() == 4));
}

#[tokio::test]
async fn one_wrong_document_refuses_all_and_every_fault_has_its_place() {
    let site = Site::start().await;
    let before = site.records().await;
    let yaml = format!(
        "{SITE}---\napi: hoist/v1\nkind: Node\nname: n2\nspec:\n  lables: {{}}\n---\napi: hoist/v1\nkind: Nod\nname: n3\n"
    );
    let ask = site.ask("POST", APPLY).header("content-type", "application/yaml");
    let problem = ask.body(yaml).send().await.problem(400, "invalid-body");
    assert_eq!(problem.errors.len(), 2, "{problem:?}");
    assert!(problem.errors[0].at.starts_with("body:31:"), "{problem:?}");
    assert!(problem.errors[0].at.contains("Node n2"), "{problem:?}");
    assert_eq!(problem.errors[0].hint.as_deref(), Some("did you mean `labels`?"));
    assert!(problem.errors[1].hint.as_deref().is_some_and(|hint| hint.contains("Node")));

    // Problems that only show against the site, one per document.
    let documents = [
        node_document(1),
        document("Node", "n2", &with(spec(2), &json!({"groups": ["ghost"]}))),
        document("Node", "n3", &with(spec(3), &json!({"partition": "ghost"}))),
        document("Group", "default/g", &json!({"members": ["nobody"]})),
        document("Group", "p9/g", &json!({})),
    ];
    let problem = site.try_apply("", &documents).await.problem(400, "invalid-body");
    for subject in ["Node n2", "Node n3", "Group default/g", "Group p9/g"] {
        assert!(
            problem.errors.iter().any(|diagnostic| diagnostic.at.starts_with(subject)),
            "{problem:?}"
        );
    }
    let wrong_line = format!("{}{}\n", lines(&[node_document(1)]), r#"{"api":"hoist/v1"}"#);
    let ask = site.ask("POST", APPLY).header("content-type", NDJSON).body(wrong_line);
    let problem = ask.send().await.problem(400, "invalid-body");
    assert!(problem.errors[0].at.starts_with("body:2:"), "{problem:?}");
    assert_eq!(site.records().await, before);
    site.stop().await;
}

#[tokio::test]
async fn documents_that_contradict_each_other_are_refused() {
    let site = Site::start().await;
    let twice = [node_document(1), node_document(1)];
    let problem = site.try_apply("", &twice).await.problem(400, "invalid-body");
    assert!(problem.detail.contains("twice"), "{}", problem.detail);
    let same_mac = [
        node_document(1),
        document("Node", "n2", &json!({"interfaces": [{"name": "e", "mac": mac(1)}]})),
    ];
    let problem = site.try_apply("", &same_mac).await.problem(409, "conflict");
    assert!(problem.detail.contains("n1") && problem.detail.contains("n2"), "{problem:?}");
    let spellings =
        [document("Group", "gpu", &json!({})), document("Group", "default/gpu", &json!({}))];
    site.try_apply("", &spellings).await.problem(400, "invalid-body");
    let yaml = "api: hoist/v1\nkind: Node\nname: n1\nname: n2\n";
    site.ask("POST", APPLY).body(yaml).send().await.problem(400, "invalid-body");
    // Two nodes may exchange unique values in one change.
    site.apply(&[node_document(1), node_document(2)]).await;
    let exchanged = [document("Node", "n1", &spec(2)), document("Node", "n2", &spec(1))];
    assert_eq!(site.apply(&exchanged).await["changed"], 2);
    site.stop().await;
}

#[tokio::test]
async fn a_set_remembers_what_it_applied_and_prune_removes_the_rest() {
    let site = Site::start().await;
    let all: Vec<_> = (1..=4).map(node_document).collect();
    site.apply(&[node_document(9)]).await;
    site.try_apply("?set=rack", &all).await.expect(200);
    let pruned = site.try_apply("?set=rack&prune=1&dry_run=1", &all[..3]).await.expect(200).json();
    assert_eq!(pruned["removed"], 1);
    // Left out without prune: still there, and still the set's, so that a later prune finds it.
    let left = site.try_apply("?set=rack", &all[..3]).await.expect(200).json();
    assert_eq!(left["removed"], 0);
    let pruned = site.try_apply("?set=rack&prune=1", &all[..3]).await.expect(200).json();
    assert_eq!((&pruned["removed"], &pruned["unchanged"]), (&json!(1), &json!(3)));
    assert_eq!(pruned["items"][0]["name"], "n4");
    // What moved to another set belongs to that one.
    site.try_apply("?set=other", &all[2..3]).await.expect(200);
    let pruned = site.try_apply("?set=rack&prune=1", &all[..2]).await.expect(200).json();
    assert_eq!(pruned["removed"], 0, "{pruned}");
    let mut names = crate::site::names(&site.get(NODES).await.json());
    names.sort();
    assert_eq!(names, ["n1", "n2", "n3", "n9"]);
    site.try_apply("?prune=1", &all).await.problem(400, "bad-parameter");
    site.try_apply("?set=No%20Name", &all).await.problem(400, "bad-parameter");
    // A protected node stops the prune as a whole.
    let path = format!("{NODES}/by/name/n1");
    let id = site.get(&path).await.json()["id"].as_str().unwrap().to_owned();
    site.put(&format!("{NODES}/{id}/protection"), &json!({})).await.expect(200);
    site.try_apply("?set=rack&prune=1", &all[1..2]).await.problem(409, "protected");
    site.stop().await;
}

#[tokio::test]
async fn a_change_of_many_nodes_must_name_their_exact_number() {
    let site = Site::start().await;
    let nodes: Vec<_> = (1..=60).map(node_document).collect();
    site.apply(&nodes).await;
    let roles = |count: usize| -> Vec<Value> {
        let role = json!({"role": "Compute"});
        (1..=count)
            .map(|n| {
                let n = u32::try_from(n).unwrap();
                document("Node", &format!("n{n}"), &with(spec(n), &role))
            })
            .collect()
    };
    // Ten of sixty are more than 10 %, nine are too few to count.
    site.try_apply("", &roles(10)).await.problem(409, "affects-too-many");
    let problem = site.try_apply("", &roles(60)).await.problem(409, "affects-too-many");
    assert!(problem.detail.contains("60") && problem.remedy.unwrap().contains("60"));
    site.try_apply("?affects=59", &roles(60)).await.problem(409, "affects-too-many");
    let dry = site.try_apply("?dry_run=1", &roles(60)).await.expect(200).json();
    assert_eq!((&dry["affected"], &dry["needs_affects"]), (&json!(60), &json!(true)));
    assert_eq!(site.revision(), 1);
    site.try_apply("?affects=8", &roles(9)).await.problem(409, "affects-too-many");
    site.try_apply("", &roles(9)).await.expect(200);
    site.try_apply("?affects=51", &roles(60)).await.expect(200);
    // Labels do not count, and new nodes never do.
    let label = json!({"role": "Compute", "labels": {"a": "b"}});
    let labelled: Vec<_> =
        (1..=60).map(|n| document("Node", &format!("n{n}"), &with(spec(n), &label))).collect();
    assert_eq!(site.apply(&labelled).await["affected"], 0);
    site.apply(&(100..300).map(node_document).collect::<Vec<_>>()).await;
    let targets: Vec<_> = (1..=60).map(|n| format!("Node/n{n}")).collect();
    let delete = async |query: &str| {
        site.post(&format!("/inventory/v1/delete{query}"), &json!({"targets": targets})).await
    };
    delete("").await.problem(409, "affects-too-many");
    delete("?affects=60").await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn documents_are_removed_together() {
    let site = Site::start().await;
    site.ask("POST", APPLY).body(SITE).send().await.expect(200);
    let delete = async |targets: Value| {
        site.post("/inventory/v1/delete", &json!({"targets": targets})).await
    };
    delete(json!(["Partition/p1"])).await.problem(409, "conflict");
    delete(json!(["Node/n1", "Node/ghost"])).await.problem(400, "invalid-body");
    delete(json!(["kettle"])).await.problem(400, "bad-parameter");
    delete(json!(["Node/"])).await.problem(400, "bad-parameter");
    assert_eq!(site.revision(), 1);
    let all = json!(["Partition/p1", "Group/p1/gpu", "Node/n1", "Network/nmn"]);
    let removed = delete(all).await.expect(200).json();
    assert_eq!((&removed["removed"], &removed["revision"]), (&json!(4), &json!(2)));
    assert!(site.export().await.is_empty());
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_nodes_arrive_in_one_stream() {
    const NODES_SENT: u32 = 100_000;
    let site = Site::start().await;
    let chunks = (0..NODES_SENT / 1000).map(|chunk| {
        let line = |n: u32| {
            let [_, b, c, d] = n.to_be_bytes();
            format!(
                "{{\"api\":\"hoist/v1\",\"kind\":\"Node\",\"name\":\"n{n}\",\"spec\":{{\"nid\":{},\
                 \"interfaces\":[{{\"name\":\"eth0\",\"mac\":\"{}\",\
                 \"addresses\":[\"10.{b}.{c}.{d}/8\"]}}]}}}}\n",
                n + 1,
                mac(n)
            )
        };
        Ok::<_, std::io::Error>((chunk * 1000..(chunk + 1) * 1000).map(line).collect::<String>())
    });
    let body = reqwest::Body::wrap_stream(stream::iter(chunks));
    let ask = site.ask("POST", APPLY).header("content-type", NDJSON).body(body);
    let report = ask.send().await.expect(200).json();
    assert_eq!((&report["created"], &report["revision"]), (&json!(NODES_SENT), &json!(1)));
    assert_eq!(report["truncated"], true);
    let last = site.get(&format!("{NODES}/by/nid/{NODES_SENT}")).await.expect(200).json();
    assert_eq!(last["name"], format!("n{}", NODES_SENT - 1));
    assert_eq!(site.audit().await.len(), 1);
    let site = site.restart().await;
    assert_eq!(site.controller.registry().roster().len(), 100_000);
    site.stop().await;
}

/// Sends a head and then a body that need not end, and reads the answer.
async fn raw(site: &Site, head: &str, chunk: &[u8], times: usize) -> String {
    let addr = site.controller.plain_addr().expect("it listens");
    let socket = tokio::net::TcpStream::connect(addr).await.expect("it accepts");
    let (mut reader, mut writer) = socket.into_split();
    let head = format!(
        "POST {APPLY} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n{head}\r\n\r\n",
        site.admin
    );
    let send = async {
        if writer.write_all(head.as_bytes()).await.is_ok() {
            for _ in 0..times {
                if writer.write_all(chunk).await.is_err() {
                    break;
                }
            }
        }
        writer
    };
    let receive = async {
        let mut answer = vec![0; 4096];
        let count = reader.read(&mut answer).await.unwrap_or(0);
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    let both = async { tokio::join!(send, receive) };
    let (_writer, answer) =
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("an answer in time");
    answer
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_the_server_survives() {
    let site = Site::start().await;
    let before = site.records().await;
    let post = async |media_type: &str, body: Vec<u8>| {
        site.ask("POST", APPLY).header("content-type", media_type).body(body).send().await
    };
    let head = r#"{"api":"hoist/v1","kind":"Node","name":"n1","spec":{"data":{"a":"#;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{head}{}1{}}}}}}}", open.repeat(10_000), close.repeat(10_000));
        for media_type in ["application/json", NDJSON, "application/yaml"] {
            post(media_type, deep.clone().into_bytes()).await.expect(400);
            let unclosed = format!("{head}{}", open.repeat(10_000)).into_bytes();
            post(media_type, unclosed).await.expect(400);
        }
    }
    post("application/yaml", format!("a: {}", "[".repeat(10_000)).into_bytes()).await.expect(400);
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (last, this) in ('a'..'j').zip('b'..='j') {
        let nine = vec![format!("*{last}"); 9].join(",");
        bomb += &[&format!("{this}: &{this} ["), nine.as_str(), "]\n"].concat();
    }
    post("application/yaml", bomb.into_bytes()).await.expect(400);
    for media_type in ["application/json", NDJSON, "application/yaml"] {
        let broken = b"{\"api\":\"hoist/v1\",\"kind\":\"Node\",\"name\":\"\xff\"}\n".to_vec();
        assert_eq!(
            post(media_type, broken).await.expect(400).header("content-type"),
            "application/problem+json"
        );
        post(media_type, vec![0; 64]).await.expect(400);
    }
    let long = [b"{\"api\":\"".to_vec(), vec![b'x'; (1 << 20) + 1]].concat();
    post(NDJSON, long).await.problem(413, "body-too-large");
    post(NDJSON, b"not json\n".repeat(100_000)).await.problem(400, "invalid-body");
    for media_type in ["application/json", NDJSON, "application/yaml"] {
        let nothing = post(media_type, Vec::new()).await.expect(200).json();
        assert_eq!((&nothing["created"], &nothing["revision"]), (&json!(0), &json!(0)));
    }

    let length = format!("content-length: {}\r\ncontent-type: application/json", 100 << 20);
    let answer = raw(&site, &length, &vec![b' '; 1 << 20], 100).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    let chunked = "transfer-encoding: chunked\r\ncontent-type: application/yaml";
    let chunk = [b"100000\r\n".to_vec(), vec![b'#'; 1 << 20], b"\r\n".to_vec()].concat();
    let answer = raw(&site, chunked, &chunk, 100).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    let endless = format!("transfer-encoding: chunked\r\ncontent-type: {NDJSON}");
    let chunk = [b"100000\r\n".to_vec(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    let answer = raw(&site, &endless, &chunk, 100).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    let body = json!({"name": "n1", "data": {"a": "x".repeat(9 << 20)}});
    site.post(NODES, &body).await.problem(413, "body-too-large");

    assert_eq!(site.records().await, before);
    site.apply(&[node_document(1)]).await;
    site.stop().await;
}

#[tokio::test]
async fn broken_stream_changes_nothing() {
    let site = Site::start().await;
    let half = lines(&[node_document(1), node_document(2)]);
    let chunks = [Ok(half), Err(std::io::Error::other("the sender died"))];
    let body = reqwest::Body::wrap_stream(stream::iter(chunks));
    let client = plain_client().build().unwrap();
    let request = client.post(site.url(APPLY)).bearer_auth(&site.admin).body(body);
    assert!(request.header("content-type", NDJSON).send().await.is_err());
    site.get("/inventory/v1/status").await.expect(200);
    assert_eq!(site.revision(), 0);
    site.stop().await;
}
