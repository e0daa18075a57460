//! Rights of tokens over every kind of document, through every way in: `apply`, `delete`, prune,
//! export, lists and watches. Invisible documents must answer as missing ones.

use serde_json::{Value, json};

use crate::inventory::watch::Stream;
use crate::site::{APPLY, Answer, NODES, Site, document, id, lines, mac, spec, with};

const DELETE: &str = "/inventory/v1/delete";
const HIDDEN: u32 = 66;

/// One document of every kind, as it is, and changed.
fn documents(name: &str) -> Vec<(Value, Value)> {
    let profile = |flow: Value| json!({"selector": "*", "document": {"flow": flow}});
    let digest = |byte: &str| json!({"sha256": byte.repeat(32), "size": 1});
    let group = format!("default/{name}");
    let pair = |kind: &str, name: &str, one: Value, other: Value| {
        (document(kind, name, &one), document(kind, name, &other))
    };
    vec![
        pair("Partition", name, json!({}), json!({"description": "x"})),
        pair("Network", name, json!({}), json!({"vlan": 7})),
        pair("Group", &group, json!({}), json!({"priority": 7})),
        pair("Artifact", name, digest("ab"), digest("cd")),
        pair(
            "BootConfig",
            name,
            json!({"selector": "*", "kernel": "http://k"}),
            json!({"selector": "*", "kernel": "http://other"}),
        ),
        pair(
            "MetadataLayer",
            name,
            json!({"selector": "*", "user_data": {"a": 1}}),
            json!({"selector": "*", "user_data": {"a": 2}}),
        ),
        pair(
            "ProvisionProfile",
            name,
            profile(json!({"end": "reboot"})),
            profile(json!({"end": "power_off"})),
        ),
    ]
}

fn target(document: &Value) -> String {
    let word = |key: &str| document[key].as_str().expect("a word");
    format!("{}/{}", word("kind"), word("name"))
}

fn is_inventory(document: &Value) -> bool {
    let kind = document["kind"].as_str().expect("a kind");
    ["Partition", "Network", "Group"].contains(&kind)
}

/// A node in reach of `partition:p1`, one out of it, and one document of each kind.
async fn site() -> Site {
    let site = Site::start().await;
    let hidden = json!({"nid": HIDDEN, "xname": "x66c0s0b0n0",
                        "system": {"uuid": "66666666-0042-3510-8057-b4c04f4a5931"}});
    site.apply(&[
        document("Partition", "p1", &json!({})),
        document("Node", "mine", &with(spec(1), &json!({"partition": "p1"}))),
        document("Node", "hidden", &with(spec(HIDDEN), &hidden)),
    ])
    .await;
    let all: Vec<_> = documents("there").into_iter().map(|(document, _)| document).collect();
    site.apply(&all).await;
    site
}

async fn token(site: &Site, scopes: &[(&[&str], &[&str], Option<&str>)]) -> String {
    let scope = |(verbs, contexts, selector): &(&[&str], &[&str], Option<&str>)| {
        let mut scope = json!({"verbs": verbs, "contexts": contexts});
        if let Some(selector) = selector {
            scope["selector"] = json!(selector);
        }
        scope
    };
    site.token(scopes.iter().map(scope).collect()).await
}

const BOTH: &[&str] = &["read", "write"];

async fn apply(site: &Site, token: &str, query: &str, document: &Value) -> Answer {
    let text = lines(std::slice::from_ref(document));
    let path = format!("{APPLY}{query}");
    let ask = site.ask_as(token, "POST", &path).header("content-type", crate::site::NDJSON);
    ask.body(text).send().await
}

async fn delete(site: &Site, token: &str, query: &str, target: &str) -> Answer {
    let body = json!({"targets": [target]});
    site.ask_as(token, "POST", &format!("{DELETE}{query}")).json(&body).send().await
}

/// The answer without the name that was asked about.
fn without(answer: &Answer, name: &str) -> (u16, String) {
    let mut body = answer.json();
    body.as_object_mut().expect("a problem").remove("request_id");
    (answer.status, body.to_string().replace(name, "(name)"))
}

#[tokio::test]
async fn limited_token_cannot_write_profiles() {
    let site = site().await;
    let limited = site.limited_token("partition:p1").await;
    let before = site.records().await;
    let profile = |name: &str, flow: Value| {
        let spec = json!({"selector": "*", "document": {"flow": flow}});
        document("ProvisionProfile", name, &spec)
    };
    let end = json!({"end": "power_off"});
    for dry in ["", "?dry_run=1"] {
        for name in ["new", "there"] {
            let refused = apply(&site, &limited, dry, &profile(name, end.clone())).await;
            let problem = refused.problem(403, "forbidden");
            assert!(problem.remedy.unwrap_or_default().contains("`write` in `provision`"));
        }
        delete(&site, &limited, dry, "ProvisionProfile/there").await.problem(403, "forbidden");
    }
    assert_eq!(site.records().await, before);
    site.stop().await;
}

/// Every kind x (create, change, remove, remove a missing one) x two tokens without the right.
#[tokio::test]
async fn kinds_need_their_right_in_apply_and_delete() {
    let site = site().await;
    let limited = token(&site, &[(BOTH, &["*"], Some("partition:p1"))]).await;
    let inventory = token(&site, &[(BOTH, &["inventory"], None)]).await;
    let before = site.records().await;
    let there = documents("there");
    for ((new, _), (same, changed)) in documents("new").into_iter().zip(there) {
        for token in [&limited, &inventory] {
            if token == &inventory && is_inventory(&new) {
                continue;
            }
            for document in [&new, &changed] {
                apply(&site, token, "", document).await.problem(403, "forbidden");
            }
            let gone = delete(&site, token, "", &target(&same)).await;
            gone.problem(403, "forbidden");
            let missing = delete(&site, token, "", &target(&new)).await;
            assert_eq!(without(&gone, "there"), without(&missing, "new"));
            // Unreadable documents are not confirmed either.
            let right_to_read = token == &limited && new["kind"] != "Artifact";
            let unchanged = apply(&site, token, "", &same).await;
            assert_eq!(unchanged.status, if right_to_read { 200 } else { 403 }, "{same}");
        }
    }
    assert_eq!(site.records().await, before);
    site.stop().await;
}

#[tokio::test]
async fn kinds_are_written_with_their_right() {
    let site = site().await;
    for ((new, changed), context) in documents("new").into_iter().zip([
        "inventory",
        "inventory",
        "inventory",
        "boot",
        "boot",
        "metadata",
        "provision",
    ]) {
        let some: &[(&[&str], &[&str], Option<&str>)] =
            &[(&["write"], &["inventory"], Some("node:mine")), (&["write"], &[context], None)];
        let token = token(&site, some).await;
        apply(&site, &token, "", &new).await.expect(200);
        apply(&site, &token, "", &changed).await.expect(200);
        delete(&site, &token, "", &target(&new)).await.expect(200);
    }
    site.stop().await;
}

/// Groups, layers and boot configurations of a partition, by `apply`, `delete` and routes.
#[tokio::test]
async fn partition_admin_writes_documents_of_the_partition() {
    let site = site().await;
    let scopes: &[(&[&str], &[&str], Option<&str>)] =
        &[(BOTH, &["inventory", "boot", "metadata"], Some("partition:p1"))];
    let admin = token(&site, scopes).await;
    let part = token(&site, &[(BOTH, &["*"], Some("partition:p1 & node:mine"))]).await;
    let config = |selector: &str| {
        document("BootConfig", "own", &json!({"selector": selector, "kernel": "http://k"}))
    };
    let layer = |selector: &str| {
        document("MetadataLayer", "own", &json!({"selector": selector, "user_data": {"a": 1}}))
    };
    let group = |partition: &str| {
        document("Group", &format!("{partition}/own"), &json!({"description": "x"}))
    };
    let foreign =
        [config("*"), config("node:hidden"), layer("partition:default"), group("default")];
    for document in &foreign {
        apply(&site, &admin, "", document).await.problem(403, "forbidden");
    }
    for document in [config("p1/own"), layer("partition:p1"), group("p1")] {
        apply(&site, &part, "", &document).await.problem(403, "forbidden");
    }
    for document in [group("p1"), config("p1/own"), config("partition:p1"), layer("p1/own")] {
        apply(&site, &admin, "", &document).await.expect(200);
    }
    // Also while no node is in the partition.
    site.ask_as(&admin, "GET", "/boot/v2/configs/own").send().await.expect(200);
    let wider = apply(&site, &admin, "", &config("*")).await.problem(403, "forbidden");
    assert!(wider.remedy.unwrap_or_default().contains("the partition"), "it says what is needed");
    let path = "/inventory/v1/groups/p1/own";
    let members = json!({"members": ["mine"]});
    site.ask_as(&admin, "PUT", path).json(&members).send().await.expect(200);
    let hidden = json!({"members": ["mine", "hidden"]});
    let refused = site.ask_as(&admin, "PUT", path).json(&hidden).send().await;
    assert!(refused.status >= 400, "{}", refused.text());
    for target in ["BootConfig/own", "MetadataLayer/own"] {
        delete(&site, &part, "", target).await.problem(403, "forbidden");
        delete(&site, &admin, "", target).await.expect(200);
    }
    site.ask_as(&admin, "DELETE", path).send().await.expect(200);
    for target in ["BootConfig/there", "MetadataLayer/there", "Group/default/there"] {
        delete(&site, &admin, "", target).await.problem(403, "forbidden");
    }
    site.stop().await;
}

#[tokio::test]
async fn prune_needs_the_right_to_what_it_removes() {
    let site = site().await;
    let inventory = token(&site, &[(BOTH, &["inventory"], None)]).await;
    let limited = site.limited_token("partition:p1").await;
    let network = document("Network", "kept", &json!({}));
    for (kept, _) in documents("pruned") {
        let set = [network.clone(), kept.clone()];
        site.try_apply("?set=all&prune=1", &set).await.expect(200);
        let path = "?set=all&prune=1";
        let ours = apply(&site, &inventory, path, &network).await;
        assert_eq!(ours.status, if is_inventory(&kept) { 200 } else { 403 }, "{kept}");
        let theirs = apply(&site, &limited, path, &network).await;
        theirs.problem(403, "forbidden");
    }
    site.stop().await;
}

#[tokio::test]
async fn export_and_lists_show_what_a_token_may_read() {
    let site = site().await;
    let by_node = |kind: &str, name: &str, node: &str| {
        let selector = json!({"selector": format!("node:{node}")});
        let rest = match kind {
            "BootConfig" => json!({"kernel": format!("http://for-{node}")}),
            "MetadataLayer" => json!({"user_data": {"a": format!("for-{node}")}}),
            _ => json!({"document": {"flow": {"end": "reboot"}}}),
        };
        document(kind, name, &with(selector, &rest))
    };
    let kinds = [
        ("BootConfig", "boot", "/boot/v2/configs"),
        ("MetadataLayer", "metadata", "/meta/v1/layers"),
        ("ProvisionProfile", "provision", "/provision/v1/profiles"),
    ];
    for (kind, ..) in kinds {
        site.apply(&[by_node(kind, "ours", "mine"), by_node(kind, "theirs", "hidden")]).await;
    }
    let exported = async |token: &str, kind: &str| -> Vec<String> {
        let lines = site.ask_as(token, "GET", "/inventory/v1/export").send().await.lines();
        let of_kind = lines.iter().filter(|line| line["kind"] == kind);
        of_kind.map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    };
    let inventory = token(&site, &[(&["read"], &["inventory"], None)]).await;
    for kind in ["Artifact", "BootConfig", "MetadataLayer", "ProvisionProfile"] {
        assert!(exported(&inventory, kind).await.is_empty(), "{kind}");
    }
    for (kind, context, path) in kinds {
        let limited =
            token(&site, &[(&["read"], &["inventory", context], Some("partition:p1"))]).await;
        let ask = async |path: &str| site.ask_as(&limited, "GET", path).send().await;
        assert_eq!(exported(&limited, kind).await, ["ours", "there"]);
        assert!(exported(&limited, "Artifact").await.is_empty());
        let listed = ask(path).await.expect(200);
        assert!(!listed.text().contains("theirs"), "{}", listed.text());
        assert_eq!(listed.json()["items"].as_array().unwrap().len(), 2, "{}", listed.text());
        ask(&format!("{path}/ours")).await.expect(200);
        let hidden = ask(&format!("{path}/theirs")).await;
        hidden.problem(404, "not-found");
        let missing = ask(&format!("{path}/ghost")).await;
        assert_eq!(without(&hidden, "theirs"), without(&missing, "ghost"));
        let whole = token(&site, &[(&["read"], &["inventory", context], None)]).await;
        assert_eq!(exported(&whole, kind).await, ["ours", "theirs", "there"]);
    }
    site.stop().await;
}

/// The answer to a limited token that creates a node must not depend on nodes out of its reach.
#[tokio::test]
async fn limited_token_learns_no_names_from_refusals() {
    let site = site().await;
    let token = site.limited_token("partition:p1").await;
    let post = async |body: &Value| site.ask_as(&token, "POST", NODES).json(body).send().await;
    // A node out of reach, by a name that is taken and by one that is free.
    let taken = post(&json!({"name": "hidden"})).await;
    let free = post(&json!({"name": "ghost"})).await;
    taken.problem(403, "forbidden");
    assert_eq!(without(&taken, "hidden"), without(&free, "ghost"));
    for partition in ["p1", "nowhere"] {
        let spec = json!({"partition": partition, "role": "x"});
        let taken = apply(&site, &token, "", &document("Node", "hidden", &spec)).await;
        let taken = without(&taken, "hidden");
        let free = without(&free, "ghost");
        assert_eq!(taken, free, "{partition}");
    }
    // A node in reach, with something that a node out of reach has.
    let refused = without(&post(&json!({"name": "new"})).await, "new");
    let nic = |mac: String, addresses: Value| json!({"interfaces": [{"name": "e", "mac": mac, "addresses": addresses}]});
    let address = spec(HIDDEN)["interfaces"][0]["addresses"].clone();
    let clashes = [
        json!({"nid": HIDDEN}),
        json!({"xname": "x66c0s0b0n0"}),
        json!({"system": {"uuid": "66666666-0042-3510-8057-b4c04f4a5931"}}),
        nic(mac(HIDDEN), json!([])),
        nic(mac(77), address),
    ];
    let base = json!({"name": "new", "partition": "p1"});
    for clash in &clashes {
        let body = with(base.clone(), clash);
        assert_eq!(without(&post(&body).await, "new"), refused, "{clash}");
        let by = format!("{NODES}/by/name/new");
        let put = site.ask_as(&token, "PUT", &by).json(&body).send().await;
        assert_eq!(without(&put, "new"), refused, "{clash}");
        let spec = with(json!({"partition": "p1"}), clash);
        let applied = apply(&site, &token, "", &document("Node", "new", &spec)).await;
        assert_eq!(without(&applied, "new"), refused, "{clash}");
    }
    assert_eq!(
        without(&post(&json!({"name": "hidden", "partition": "p1"})).await, "hidden"),
        refused
    );
    for (key, value) in [("nid", "66".to_owned()), ("mac", mac(HIDDEN))] {
        let members = if key == "nid" { &clashes[0] } else { &clashes[3] };
        let by = format!("{NODES}/by/{key}/{value}");
        let put = site.ask_as(&token, "PUT", &by).json(&with(base.clone(), members)).send().await;
        assert_eq!(without(&put, "new"), refused, "{key}");
    }
    // Removing is no way to ask either.
    let gone = delete(&site, &token, "", "Node/hidden").await;
    let missing = delete(&site, &token, "", "Node/ghost").await;
    gone.problem(403, "forbidden");
    assert_eq!(without(&gone, "hidden"), without(&missing, "ghost"));
    // Nor is a document that equals the stored one.
    let same = site.export().await.into_iter().find(|line| line["name"] == "hidden").unwrap();
    apply(&site, &token, "", &same).await.problem(403, "forbidden");
    site.stop().await;
}

#[tokio::test]
async fn limited_watch_tells_no_ids_of_other_nodes() {
    let site = site().await;
    let token = site.limited_token("partition:p1").await;
    let of = async |name: &str| {
        let node = site.get(&format!("{NODES}/by/name/{name}")).await.json();
        (id(&node).to_owned(), node)
    };
    let (mine, _) = of("mine").await;
    let (hidden, node) = of("hidden").await;
    let since = site.revision();
    let mut watch = Stream::open_as(&site, &token, "").await;
    site.put(&format!("{NODES}/{hidden}"), &with(node, &json!({"role": "x"}))).await.expect(200);
    site.delete(&format!("{NODES}/{hidden}")).await.expect(200);
    let moved = with(spec(1), &json!({"partition": "default"}));
    site.put(&format!("{NODES}/{mine}"), &with(moved, &json!({"name": "mine"}))).await.expect(200);
    let path = format!("{NODES}?since={since}&wait=30s");
    let batch = site.ask_as(&token, "GET", &path).send().await.expect(200);
    assert!(!batch.text().contains(&hidden), "{}", batch.text());
    let told = batch.json()["lines"].clone();
    assert_eq!((told.as_array().unwrap().len(), &told[0]["id"]), (1, &json!(mine)), "{told}");
    // A bookmark for each foreign change would tell of them.
    assert_eq!(watch.next().await, Some(told[0].clone()));
    assert_eq!(watch.batch().await, (vec![], site.revision()));
    drop(watch);
    site.stop().await;
}

/// A document for a selector, that names a secret at a place, with more in it.
type Make<'a> = &'a dyn Fn(&str, &str, Value) -> Value;

#[tokio::test]
async fn naming_a_secret_needs_a_right_of_its_own() {
    let site = site().await;
    let file = json!({"secret": {"file": "db/password"}});
    let layer = |selector: &str, at: &str, more: Value| {
        let spec = json!({"selector": selector, "user_data": with(json!({at: file}), &more)});
        document("MetadataLayer", "db", &spec)
    };
    let profile = |selector: &str, at: &str, more: Value| {
        let image = json!({"sources": ["http://i/root"], "target": "root-fs",
                           "token": "secret://db/password"});
        let sections = json!({
            "disks": {"system": {"match": {"serial": "S1"}}},
            "storage": [
                {"part": {"id": "root", "on": "system", "size": "rest"}},
                {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
            ],
            "images": {at: image},
        });
        let sections = with(sections, &more);
        document("ProvisionProfile", "db", &json!({"selector": selector, "document": sections}))
    };
    let contexts: &[&str] = &["inventory", "metadata", "provision"];
    let without_it = token(&site, &[(BOTH, contexts, None)]).await;
    let with_it = token(&site, &[(BOTH, contexts, None), (&["write"], &["secrets"], None)]).await;
    let limited =
        token(&site, &[(BOTH, contexts, None), (&["write"], &["secrets"], Some("partition:p1"))])
            .await;
    let makes: [Make<'_>; 2] = [&layer, &profile];
    for make in makes {
        let first = make("node:mine", "a", json!({}));
        for token in [&without_it, &limited] {
            let refused = apply(&site, token, "", &first).await.problem(403, "forbidden");
            assert!(refused.detail.contains("file:db/password"), "{}", refused.detail);
            assert!(refused.remedy.unwrap_or_default().contains("`write` in `secrets`"));
        }
        apply(&site, &with_it, "", &first).await.expect(200);
        // It stays where it is, whatever becomes of the rest.
        let more = make("node:mine", "a", json!({"flow": {"end": "reboot"}}));
        apply(&site, &without_it, "", &more).await.expect(200);
        // Other nodes, or another place.
        for moved in [make("*", "a", json!({})), make("node:mine", "b", json!({}))] {
            apply(&site, &without_it, "?dry_run=1", &moved).await.problem(403, "forbidden");
            apply(&site, &without_it, "", &moved).await.problem(403, "forbidden");
        }
        delete(&site, &without_it, "", &target(&first)).await.expect(200);
    }
    site.stop().await;
}
