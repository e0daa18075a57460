//! Access on every route: none without a token, and only to its own nodes with a limited one.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::site::{NODES, Site, document, id, mac, names, node_document, spec, with};

/// The methods and paths the server has, as its own document lists them.
async fn routes(site: &Site) -> Vec<(String, String, String)> {
    let document = site.ask_as_nobody("GET", "/openapi.json").send().await.expect(200).json();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let access =
                operation["x-hoist-access-class"].as_str().expect("an access class").to_owned();
            routes.push((method.to_uppercase(), path.clone(), access));
        }
    }
    routes
}

fn filled(template: &str, value: &str) -> String {
    let fill = |segment: &str| {
        if segment.starts_with('{') { value.to_owned() } else { segment.to_owned() }
    };
    template.split('/').map(fill).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn administration_needs_a_token() {
    let site = Site::start().await;
    let mut closed = 0;
    for (method, path, access) in routes(&site).await {
        let open = ["open", "lockable", "proof"].iter().any(|word| access.starts_with(word));
        let bss = access.starts_with("bss");
        let closed_to_all =
            bss || access == "agent" || access == "member" || access.starts_with("admin");
        assert!(open || closed_to_all, "{method} {path}: what is `{access}`?");
        assert!(!path.starts_with("/inventory/") || !open, "{method} {path} is open");
        if open {
            continue;
        }
        let answer = site.ask_as_nobody(&method, &filled(&path, "x")).json(&json!({})).send().await;
        if bss {
            answer.expect(401);
        } else {
            answer.problem(401, "unauthenticated");
        }
        closed += 1;
    }
    assert!(closed > 30, "{closed}");
    site.stop().await;
}

#[tokio::test]
async fn no_route_ignores_a_parameter_it_does_not_know() {
    let site = Site::start().await;
    for (method, path, _) in routes(&site).await {
        if path.starts_with("/inventory/") {
            let path = format!("{}?dryrun=1", filled(&path, "x"));
            let answer = site.ask(&method, &path).json(&json!({})).send().await;
            let problem = answer.problem(400, "unknown-parameter");
            assert_eq!(problem.errors[0].at, "?dryrun");
        }
    }
    site.stop().await;
}

/// A site with one node in reach (`mine`: partition p1, group gpu) and one out of it (`hidden`).
struct SharedState {
    site: Site,
    mine: String,
    hidden: String,
}

const HIDDEN_MAC: u32 = 0x00dd_ee01;

impl SharedState {
    async fn start() -> Self {
        let site = Site::start().await;
        let hidden = json!({"nid": 66, "xname": "x66c0s0b0n0", "groups": ["gpu2"],
                            "system": {"uuid": "66666666-0042-3510-8057-b4c04f4a5931"}});
        site.apply(&[
            document("Partition", "p1", &json!({})),
            document("Network", "nmn", &json!({})),
            document("Group", "p1/gpu", &json!({})),
            document("Group", "default/gpu2", &json!({})),
            document(
                "Node",
                "mine",
                &with(spec(1), &json!({"partition": "p1", "groups": ["gpu"]})),
            ),
            document("Node", "hidden", &with(spec(HIDDEN_MAC), &hidden)),
        ])
        .await;
        let id_of = async |name: &str| {
            id(&site.get(&format!("{NODES}/by/name/{name}")).await.json()).to_owned()
        };
        let mine = id_of("mine").await;
        let hidden = id_of("hidden").await;
        let state = json!({"since": "2026-01-01T00:00:00Z", "source": "test"});
        for id in [&mine, &hidden] {
            site.put(&format!("{NODES}/{id}/state"), &state).await.expect(200);
        }
        Self { site, mine, hidden }
    }
}

/// A request of a limited token on one route, and the expected answer.
struct Try {
    method: &'static str,
    template: &'static str,
    path: String,
    body: Value,
    status: &'static [u16],
}

const REFUSED: &[u16] = &[403, 404];

#[expect(clippy::too_many_lines, reason = "one line per route and attempt: a table")]
fn tries(shared: &SharedState) -> Vec<Try> {
    const ID: &str = "/inventory/v1/nodes/{id}";
    const BY: &str = "/inventory/v1/nodes/by/{key}/{value}";
    let mine = |rest: &str| format!("{NODES}/{}{rest}", shared.mine);
    let hidden = |rest: &str| format!("{NODES}/{}{rest}", shared.hidden);
    let by = |key: &str, value: &str| format!("{NODES}/by/{key}/{value}");
    let node = |members: Value| with(spec(1), &members);
    let ours = json!({"name": "mine", "partition": "p1", "groups": ["gpu"]});
    let none = Value::Null;
    let why = json!({"reason": "why"});
    let state = json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "test"});
    let swap = |from: u32| json!({"macs": [{"old": mac(from), "new": mac(99)}]});
    let new = |members: Value| with(spec(50), &with(members, &json!({"name": "new"})));
    let hidden_mac = json!([{"name": "eth0", "mac": mac(HIDDEN_MAC)}]);
    let lines = |name: &str, members: &Value| document("Node", name, &with(spec(51), members));
    let reach = json!({"partition": "p1", "groups": ["gpu"]});
    let rows: Vec<(&str, &str, String, Value, &[u16])> = vec![
        ("GET", "/inventory/v1/nodes", NODES.into(), none.clone(), &[200]),
        ("POST", "/inventory/v1/nodes", format!("{NODES}?dry_run=1"), new(reach.clone()), &[201]),
        ("POST", "/inventory/v1/nodes", NODES.into(), new(json!({})), REFUSED),
        (
            "POST",
            "/inventory/v1/nodes",
            NODES.into(),
            new(with(reach.clone(), &json!({"interfaces": hidden_mac}))),
            &[403],
        ),
        ("GET", ID, mine(""), none.clone(), &[200]),
        ("GET", ID, hidden(""), none.clone(), &[404]),
        (
            "PUT",
            ID,
            mine("?dry_run=1"),
            node(with(ours.clone(), &json!({"role": "Login"}))),
            &[200],
        ),
        (
            "PUT",
            ID,
            mine(""),
            node(with(ours.clone(), &json!({"partition": "default", "groups": []}))),
            REFUSED,
        ),
        ("PUT", ID, mine(""), node(with(ours.clone(), &json!({"interfaces": hidden_mac}))), &[403]),
        ("PUT", ID, hidden(""), node(with(ours.clone(), &json!({"name": "other"}))), &[404]),
        ("PUT", ID, hidden(""), json!({"kettle": 1}), &[400]),
        ("DELETE", ID, mine("?dry_run=1"), none.clone(), &[200]),
        ("DELETE", ID, hidden(""), none.clone(), &[404]),
        ("GET", BY, by("name", "mine"), none.clone(), &[200]),
        ("GET", BY, by("mac", &mac(HIDDEN_MAC)), none.clone(), &[404]),
        ("GET", BY, by("ip", "10.221.238.1"), none.clone(), &[404]),
        ("GET", BY, by("nid", "66"), none.clone(), &[404]),
        ("GET", BY, by("xname", "x66c0s0b0n0"), none.clone(), &[404]),
        ("GET", BY, by("uuid", "66666666-0042-3510-8057-b4c04f4a5931"), none.clone(), &[404]),
        ("PUT", BY, format!("{}?dry_run=1", by("name", "mine")), node(ours.clone()), &[200]),
        (
            "PUT",
            BY,
            by("nid", "66"),
            json!({"name": "other", "partition": "p1", "groups": ["gpu"]}),
            REFUSED,
        ),
        (
            "PUT",
            BY,
            by("mac", &mac(HIDDEN_MAC)),
            with(reach.clone(), &json!({"name": "other", "interfaces": hidden_mac})),
            REFUSED,
        ),
        ("PUT", BY, by("name", "new"), new(json!({})), REFUSED),
        ("GET", "/inventory/v1/nodes/{id}/state", mine("/state"), none.clone(), &[200]),
        ("GET", "/inventory/v1/nodes/{id}/state", hidden("/state"), none.clone(), &[404]),
        ("PUT", "/inventory/v1/nodes/{id}/state", hidden("/state"), state, &[404]),
        (
            "PUT",
            "/inventory/v1/nodes/{id}/protection",
            mine("/protection?dry_run=1"),
            why.clone(),
            &[200],
        ),
        ("PUT", "/inventory/v1/nodes/{id}/protection", hidden("/protection"), why.clone(), &[404]),
        (
            "DELETE",
            "/inventory/v1/nodes/{id}/protection",
            mine("/protection"),
            none.clone(),
            &[200],
        ),
        (
            "DELETE",
            "/inventory/v1/nodes/{id}/protection",
            hidden("/protection"),
            none.clone(),
            &[404],
        ),
        (
            "PUT",
            "/inventory/v1/nodes/{id}/maintenance",
            mine("/maintenance?dry_run=1"),
            why.clone(),
            &[200],
        ),
        ("PUT", "/inventory/v1/nodes/{id}/maintenance", hidden("/maintenance"), why, &[404]),
        (
            "DELETE",
            "/inventory/v1/nodes/{id}/maintenance",
            mine("/maintenance"),
            none.clone(),
            &[200],
        ),
        (
            "DELETE",
            "/inventory/v1/nodes/{id}/maintenance",
            hidden("/maintenance"),
            none.clone(),
            &[404],
        ),
        (
            "PUT",
            "/inventory/v1/nodes/{id}/released",
            mine("/released"),
            json!({"fields": []}),
            &[409],
        ),
        (
            "PUT",
            "/inventory/v1/nodes/{id}/released",
            hidden("/released"),
            json!({"fields": []}),
            &[404],
        ),
        ("POST", "/inventory/v1/nodes/{id}/swap", mine("/swap?dry_run=1"), swap(1), &[200]),
        ("POST", "/inventory/v1/nodes/{id}/swap", hidden("/swap"), swap(HIDDEN_MAC), &[404]),
        (
            "POST",
            "/inventory/v1/nodes/{id}/swap",
            mine("/swap"),
            json!({"with": "hidden"}),
            REFUSED,
        ),
        ("GET", "/inventory/v1/groups", "/inventory/v1/groups".into(), none.clone(), &[200]),
        (
            "GET",
            "/inventory/v1/groups/{partition}/{name}",
            "/inventory/v1/groups/p1/gpu".into(),
            none.clone(),
            &[200],
        ),
        (
            "GET",
            "/inventory/v1/groups/{partition}/{name}",
            "/inventory/v1/groups/default/gpu2".into(),
            none.clone(),
            &[200],
        ),
        (
            "PUT",
            "/inventory/v1/groups/{partition}/{name}",
            "/inventory/v1/groups/p1/gpu".into(),
            json!({"priority": 3}),
            &[403],
        ),
        (
            "PUT",
            "/inventory/v1/groups/{partition}/{name}",
            "/inventory/v1/groups/default/gpu".into(),
            json!({"members": ["hidden"]}),
            &[403],
        ),
        (
            "DELETE",
            "/inventory/v1/groups/{partition}/{name}",
            "/inventory/v1/groups/p1/gpu".into(),
            none.clone(),
            &[403],
        ),
        (
            "GET",
            "/inventory/v1/partitions",
            "/inventory/v1/partitions".into(),
            none.clone(),
            &[200],
        ),
        (
            "GET",
            "/inventory/v1/partitions/{name}",
            "/inventory/v1/partitions/p1".into(),
            none.clone(),
            &[200],
        ),
        (
            "PUT",
            "/inventory/v1/partitions/{name}",
            "/inventory/v1/partitions/p1".into(),
            json!({"description": "x"}),
            &[403],
        ),
        (
            "DELETE",
            "/inventory/v1/partitions/{name}",
            "/inventory/v1/partitions/p1".into(),
            none.clone(),
            &[403],
        ),
        ("GET", "/inventory/v1/networks", "/inventory/v1/networks".into(), none.clone(), &[200]),
        (
            "GET",
            "/inventory/v1/networks/{name}",
            "/inventory/v1/networks/nmn".into(),
            none.clone(),
            &[200],
        ),
        (
            "PUT",
            "/inventory/v1/networks/{name}",
            "/inventory/v1/networks/nmn".into(),
            json!({"vlan": 9}),
            &[403],
        ),
        (
            "DELETE",
            "/inventory/v1/networks/{name}",
            "/inventory/v1/networks/nmn".into(),
            none.clone(),
            &[403],
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply?dry_run=1".into(),
            lines("new", &reach),
            &[200],
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            lines("new", &json!({})),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            lines("hidden", &reach),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply?set=mine".into(),
            lines("new", &reach),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            document("Group", "p1/new", &json!({})),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            document("Group", "p1/gpu", &json!({"priority": 9})),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            document("Partition", "new", &json!({})),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/apply",
            "/inventory/v1/apply".into(),
            document("Network", "new", &json!({})),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/delete",
            "/inventory/v1/delete?dry_run=1".into(),
            json!({"targets": ["Node/mine"]}),
            &[200],
        ),
        (
            "POST",
            "/inventory/v1/delete",
            "/inventory/v1/delete".into(),
            json!({"targets": ["Node/mine", "Node/hidden"]}),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/delete",
            "/inventory/v1/delete".into(),
            json!({"targets": ["Group/p1/gpu"]}),
            REFUSED,
        ),
        (
            "POST",
            "/inventory/v1/renew",
            "/inventory/v1/renew?dry_run=1".into(),
            json!({"nodes": [shared.mine]}),
            &[200],
        ),
        (
            "POST",
            "/inventory/v1/renew",
            "/inventory/v1/renew".into(),
            json!({"nodes": [shared.mine, shared.hidden]}),
            REFUSED,
        ),
        ("GET", "/inventory/v1/export", "/inventory/v1/export".into(), none.clone(), &[200]),
        ("POST", "/inventory/v1/refresh", "/inventory/v1/refresh".into(), none.clone(), &[403]),
        (
            "POST",
            "/inventory/v1/import",
            "/inventory/v1/import".into(),
            json!({"url": "file:/nowhere"}),
            &[403],
        ),
        ("GET", "/inventory/v1/status", "/inventory/v1/status".into(), none, &[200]),
    ];
    let make =
        |(method, template, path, body, status)| Try { method, template, path, body, status };
    rows.into_iter().map(make).collect()
}

#[tokio::test]
async fn limited_token_reaches_only_its_nodes_on_every_route() {
    let shared = SharedState::start().await;
    let site = &shared.site;
    let tries = tries(&shared);
    let tried: BTreeSet<_> =
        tries.iter().map(|t| (t.method.to_owned(), t.template.to_owned())).collect();
    let there: BTreeSet<_> = routes(site)
        .await
        .into_iter()
        .filter(|(_, path, _)| path.starts_with("/inventory/"))
        .map(|(method, path, _)| (method, path))
        .collect();
    assert_eq!(there, tried, "every route of the inventory has its lines in the table above");

    // A token for a whole partition may write its groups too: see `partition_admin_writes_documents_of_the_partition`.
    for selector in ["partition:p1 & *", "group:gpu", "partition:p1 & gpu"] {
        let token = site.limited_token(selector).await;
        let before = site.records().await;
        for Try { method, path, body, status, .. } in &tries {
            let what = format!("{selector}: {method} {path} {body}");
            let ask = site.ask_as(&token, method, path);
            let ask = if body.is_null() { ask } else { ask.json(body) };
            let answer = ask.send().await;
            let fits = status.contains(&answer.status);
            assert!(fits, "{what}: {} {}", answer.status, answer.text());
            if answer.status >= 400 {
                assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
            }
            let said = format!("{path} {body}").contains("hidden");
            assert!(said || !answer.text().contains("hidden"), "{what}: {}", answer.text());
            let given = format!("{path} {body}").contains(&shared.hidden);
            assert!(given || !answer.text().contains(&shared.hidden), "{what}: {}", answer.text());
            assert_eq!(site.records().await, before, "{what} wrote something");
        }
    }
    let SharedState { site, .. } = shared;
    site.stop().await;
}

#[tokio::test]
async fn limited_token_works_on_its_own_nodes() {
    let shared = SharedState::start().await;
    let site = &shared.site;
    let token = site.limited_token("partition:p1").await;
    let ask = async |method: &str, path: &str, body: &Value| {
        site.ask_as(&token, method, path).json(body).send().await
    };
    let made = ask("POST", NODES, &json!({"name": "new", "partition": "p1"})).await.expect(201);
    let path = format!("{NODES}/{}", id(&made.json()));
    ask("PUT", &path, &json!({"name": "newer", "partition": "p1"})).await.expect(200);
    ask("PUT", &format!("{path}/maintenance"), &json!({"reason": "x"})).await.expect(200);
    let state = json!({"since": "2026-01-01T00:00:00Z", "source": "test"});
    ask("PUT", &format!("{path}/state"), &state).await.expect(200);
    ask("PUT", &path, &json!({"name": "newer"})).await.problem(403, "forbidden");
    let listed = site.ask_as(&token, "GET", NODES).send().await.json();
    assert_eq!(names(&listed), ["mine", "newer"]);
    let entry = site.audit().await.pop().unwrap();
    assert!(entry.who.starts_with("token/"), "{entry:?}");
    site.ask_as(&token, "DELETE", &path).send().await.expect(200);
    // Reading is not writing.
    let scope = json!([{"verbs": ["read"], "contexts": ["inventory"]}]);
    let reader = site.token(scope).await;
    site.ask_as(&reader, "GET", NODES).send().await.expect(200);
    site.ask_as(&reader, "POST", NODES)
        .json(&json!({"nid": 1}))
        .send()
        .await
        .problem(403, "forbidden");
    // A read scope that is wider than the write scope shows more, and changes no more.
    let scope = json!([{"verbs": ["read"], "contexts": ["inventory"]},
                       {"verbs": ["write"], "contexts": ["inventory"], "selector": "partition:p1"}]);
    let mixed = site.token(scope).await;
    let hidden = format!("{NODES}/{}", shared.hidden);
    site.ask_as(&mixed, "GET", &hidden).send().await.expect(200);
    site.ask_as(&mixed, "DELETE", &hidden).send().await.problem(403, "forbidden");
    // A selector that means nothing here reaches nothing.
    let nothing = site.limited_token("partition:ghost").await;
    assert!(names(&site.ask_as(&nothing, "GET", NODES).send().await.json()).is_empty());
    let SharedState { site, .. } = shared;
    site.stop().await;
}

#[tokio::test]
async fn limited_token_sees_only_its_nodes_everywhere() {
    let shared = SharedState::start().await;
    let site = &shared.site;
    let token = site.limited_token("p1/gpu").await;
    let get = async |path: &str, accept: &str| {
        site.ask_as(&token, "GET", path).header("accept", accept).send().await.expect(200)
    };
    assert_eq!(names(&get(NODES, "*/*").await.json()), ["mine"]);
    assert_eq!(names(&get(&format!("{NODES}?selector=node:hidden"), "*/*").await.json()), [""; 0]);
    assert_eq!(get(NODES, crate::site::NDJSON).await.lines().len(), 1);
    let exported = get("/inventory/v1/export", "*/*").await.lines();
    let nodes: Vec<_> = exported.iter().filter(|line| line["kind"] == "Node").collect();
    assert_eq!((nodes.len(), &nodes[0]["name"]), (1, &json!("mine")));
    let group = get("/inventory/v1/groups/default/gpu2", "*/*").await.json();
    assert_eq!(group["members"], json!([]));
    let batch = get(&format!("{NODES}?since=0&wait=1s"), "*/*").await;
    assert!(!batch.text().contains("hidden"), "{}", batch.text());
    assert_eq!(
        batch.json()["lines"].as_array().unwrap().iter().filter(|l| l["type"] == "put").count(),
        1
    );

    let watch = site.ask_as(&token, "GET", &format!("{NODES}?watch=1")).open().await;
    let path = format!("{NODES}/{}", shared.hidden);
    let hidden = site.get(&path).await.json();
    site.put(&path, &with(hidden, &json!({"role": "Secret"}))).await.expect(200);
    let mine = format!("{NODES}/{}", shared.mine);
    let shown = site.get(&mine).await.json();
    site.put(&mine, &with(shown, &json!({"role": "Seen"}))).await.expect(200);
    let mut watch = watch;
    let mut text = String::new();
    while !text.contains("Seen") {
        let chunk = watch.chunk().await.unwrap().expect("the watch goes on");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(!text.contains("Secret") && !text.contains("hidden"), "{text}");
    drop(watch);
    let SharedState { site, .. } = shared;
    site.stop().await;
}

/// Two nodes with one address: a token that reaches only one of them asks about that one.
#[tokio::test]
async fn name_ambiguous_for_all_may_be_clear_for_a_limited_token() {
    let shared = SharedState::start().await;
    let site = &shared.site;
    let interface = |n: u32, network: Option<&str>| {
        let mut nic = json!({"name": "e", "mac": mac(n), "addresses": ["10.9.9.9/24"]});
        if let Some(network) = network {
            nic["network"] = network.into();
        }
        json!({"interfaces": [nic]})
    };
    site.apply(&[
        document("Node", "a", &with(interface(80, None), &json!({"partition": "p1"}))),
        document("Node", "b", &interface(81, Some("nmn"))),
        node_document(2),
    ])
    .await;
    let path = format!("{NODES}/by/ip/10.9.9.9");
    site.get(&path).await.problem(409, "ambiguous");
    let on_network = site.get(&format!("{path}?network=nmn")).await.expect(200).json();
    assert_eq!(on_network["name"], "b");
    site.get(&format!("{path}?network=none")).await.problem(404, "not-found");
    let wrong = site.get(&format!("{NODES}/by/name/b?network=nmn")).await;
    wrong.problem(400, "bad-parameter");
    let token = site.limited_token("partition:p1").await;
    let found = site.ask_as(&token, "GET", &path).send().await.expect(200).json();
    assert_eq!(found["name"], "a");
    let SharedState { site, .. } = shared;
    site.stop().await;
}
