//! Metadata of nodes, rendered from layers on a real roster.

mod network;

use std::sync::Arc;

use hoist_metadata::{
    Basis, Document, Layers, RenderResult, RenderedDocuments, Renderer, Resolve, SecretError,
    Secrets, With, render,
};
use hoist_model::{Document as Declared, MetadataLayer, Node, NodeId, Secret};
use hoist_site::roster::{Delta, Incarnation, Roster};
use hoist_site::{Resource, ResourceKey};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

const LEAVE_OUT: With<'static> = With { token: "t0k", secrets: Secrets::LeaveOut, trace: true };

#[expect(clippy::needless_pass_by_value, reason = "it reads better with `json!` in calls")]
fn resource(kind: &str, name: &str, spec: Value) -> Resource {
    let document = json!({ "api": "hoist/v1", "kind": kind, "name": name, "spec": spec });
    let document =
        hoist_model::document::from_json("test", 1, &document.to_string()).expect("a document");
    let revision = 1;
    match document {
        Declared::Node(name, spec) => node_of(name.as_str(), *spec, 0),
        Declared::MetadataLayer(name, spec) => {
            Resource::MetadataLayer(Arc::new(MetadataLayer { name, spec: *spec, revision }))
        }
        Declared::Group(key, spec) => {
            let partition = key.partition;
            let name = key.name;
            Resource::Group(Arc::new(hoist_model::Group { partition, name, spec, revision }))
        }
        Declared::Network(name, spec) => {
            Resource::Network(Arc::new(hoist_model::Network { name, spec, revision }))
        }
        other => panic!("no {} here", other.kind()),
    }
}

fn node_of(name: &str, spec: hoist_model::NodeSpec, generation: u64) -> Resource {
    let now = Timestamp::UNIX_EPOCH;
    let number = name.bytes().fold(1, |n, byte| n * 31 + u128::from(byte));
    Resource::Node(Arc::new(Node {
        id: NodeId::from_bits(number),
        name: name.parse().expect("a name"),
        spec,
        protection: None,
        maintenance: None,
        provenance: None,
        generation,
        revision: 1,
        created: now,
        updated: now,
    }))
}

fn roster(resources: Vec<Resource>) -> Arc<Roster> {
    Arc::new(Roster::build(Incarnation::new("test"), 1, 0, resources.into_iter()))
}

fn after(roster: &Roster, puts: Vec<Resource>, deletes: Vec<ResourceKey>) -> Arc<Roster> {
    let revision = roster.revision() + 1;
    Arc::new(roster.apply(Delta { revision, horizon: 0, puts, deletes }))
}

fn layer(name: &str, spec: Value) -> Resource {
    resource("MetadataLayer", name, spec)
}

/// `n1` in the groups `gpu` (late) and `web` (early), with a rack.
fn site(layers: Vec<Resource>) -> Arc<Roster> {
    let mut all = vec![
        resource("Group", "default/gpu", json!({ "priority": 20, "description": "with GPUs" })),
        resource("Group", "default/web", json!({ "priority": 10 })),
        resource(
            "Node",
            "n1",
            json!({
                "nid": 7, "groups": ["gpu", "web"], "labels": { "rack": "r1" },
                "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.1/24"] }],
            }),
        ),
        resource("Node", "n2", json!({})),
    ];
    all.extend(layers);
    roster(all)
}

fn rendered(roster: &Roster, node: &str, with: With<'_>) -> RenderedDocuments {
    let node = roster.by_name(node).expect("a node");
    render(roster, &Layers::of(roster), node, with)
}

fn text(rendered: &RenderedDocuments, document: Document) -> String {
    String::from_utf8(rendered.documents.get(document).to_vec()).expect("text")
}

fn yaml(rendered: &RenderedDocuments, document: Document) -> Value {
    let text = text(rendered, document);
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn node_without_layers_gets_its_own_identity_only() {
    let roster = site(vec![]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let id = roster.by_name("n1").expect("a node").id;
    let meta = yaml(&found, Document::MetaData);
    assert_eq!(meta["instance-id"], format!("{id}-g0"));
    assert_eq!((&meta["hostname"], &meta["local-hostname"]), (&json!("n1"), &json!("n1")));
    let facts = json!({
        "id": id.to_string(), "name": "n1", "nid": 7, "partition": "default", "generation": 0,
        "groups": ["web", "gpu"], "arch": "unknown", "labels": { "rack": "r1" },
        "mac": "02:00:00:00:00:01", "ip": "10.0.0.1",
    });
    assert_eq!(meta["hoist"], facts);
    for document in [Document::UserData, Document::VendorData, Document::NetworkConfig] {
        assert!(found.documents.get(document).is_empty(), "{document}");
    }
}

#[test]
fn layers_are_merged_from_the_site_to_the_node() {
    let say = |selector: &str, priority: i32, who: &str| {
        json!({
            "selector": selector, "priority": priority,
            "user_data": { "who": who, "runcmd": [who], "by": { who: 1 } },
            "public_keys": [format!("key-{who}"), "key-shared"],
        })
    };
    let roster = site(vec![
        layer("a-node", say("node:n1", 0, "node")),
        layer("b-gpu", say("group:gpu", 0, "gpu")),
        layer("c-web", say("default/web", 100, "web")),
        layer("d-other-web", say("other/web", 0, "elsewhere")),
        layer("e-partition", say("partition:default", 0, "partition")),
        layer("f-late", say("*", 5, "late")),
        layer("g-early", say("*", -5, "early")),
        layer("h-gone", say("group:gone", 0, "gone")),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let order = ["g-early", "f-late", "e-partition", "c-web", "b-gpu", "a-node"];
    assert_eq!(found.layers.iter().map(hoist_model::Name::as_str).collect::<Vec<_>>(), order);
    let user = yaml(&found, Document::UserData);
    assert_eq!(user["who"], "node");
    assert_eq!(user["runcmd"], json!(["early", "late", "partition", "web", "gpu", "node"]));
    assert_eq!(user["by"].as_object().map(serde_json::Map::len), Some(6));
    let first = text(&found, Document::UserData);
    let expected = "#cloud-config\n# layers: g-early (*), f-late (*), e-partition (partition:default), \
                    c-web (default/web), b-gpu (group:gpu), a-node (node:n1)\n";
    assert!(first.starts_with(expected), "{first}");
    let keys = yaml(&found, Document::MetaData)["public-keys"].clone();
    assert_eq!(keys[0], "key-early");
    assert_eq!(keys.as_array().map(Vec::len), Some(7), "the shared one once: {keys}");
    let who = found.trace.iter().find(|(_, traced)| traced.key == "who").expect("a trace");
    assert_eq!((who.0, &*who.1.from), (Document::UserData, "layer:a-node"));
    assert_eq!(who.1.over.len(), 5);
    let alone = rendered(&roster, "n2", LEAVE_OUT);
    assert_eq!(alone.layers.len(), 3, "the site and the partition");
}

#[test]
fn later_layer_replaces_where_it_says_so() {
    let roster = site(vec![
        layer(
            "site",
            json!({
                "selector": "*", "public_keys": ["old"],
                "vendor_data": { "ntp": { "servers": ["a"], "enabled": true } },
            }),
        ),
        layer(
            "web",
            json!({
                "selector": "group:web", "public_keys": ["new"],
                "vendor_data": { "ntp": { "servers": ["b"] } },
                "replace": ["vendor_data.ntp.servers", "public_keys"],
            }),
        ),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let expected = json!({ "ntp": { "servers": ["b"], "enabled": true } });
    assert_eq!(yaml(&found, Document::VendorData), expected);
    assert_eq!(yaml(&found, Document::MetaData)["public-keys"], json!(["new"]));
}

#[test]
fn texts_are_templates_with_the_node() {
    let roster = site(vec![layer(
        "site",
        json!({
            "selector": "*", "hostname": "{{ node.name }}.{{ node.labels.rack|default('r0') }}.site",
            "user_data": {
                "write_files": [{ "path": "/etc/me", "content": "{{ instance_id }} {{ node.nid|default(0) }}\n" }],
                "runcmd": ["echo ${#a}"],
                "phone_home": { "url": "http://h/{{ node.id }}/{{ token }}" },
            },
        }),
    )]);
    let node = roster.by_name("n1").expect("a node");
    let found = rendered(&roster, "n1", LEAVE_OUT);
    assert_eq!(found.failed, []);
    assert_eq!(yaml(&found, Document::MetaData)["local-hostname"], "n1.r1.site");
    let user = yaml(&found, Document::UserData);
    let expected = format!("{}-g0 7\n", node.id);
    assert_eq!(user["write_files"][0]["content"], expected);
    assert_eq!(user["runcmd"][0], "echo ${#a}", "no template without braces or percent signs");
    assert_eq!(user["phone_home"]["url"], format!("http://h/{}/t0k", node.id));
}

struct Vault;

impl Resolve for Vault {
    fn resolve(&self, secret: &Secret) -> Result<String, SecretError> {
        match secret {
            Secret::File(path) if path == "db" => Ok("hunter2".to_owned()),
            Secret::File(path) if path.contains('{') => Ok(format!("hunter2{path}")),
            _ => Err(SecretError::NotAFile { name: "other".to_owned() }),
        }
    }
}

#[test]
fn label_value_cannot_add_keys_to_a_document() {
    for value in ["r1, evil: yes", "r1\": {\"evil\": 1}, \"a", "- evil: 1", "&a {evil: 1}", "'"] {
        let user_data =
            json!({ "rack": "{{ node.labels.rack }}", "list": ["{{ node.labels.rack }}"] });
        let labels = json!({ "labels": { "rack": value } });
        let resources = vec![
            layer("own", json!({ "selector": "*", "user_data": user_data })),
            resource("Node", "n2", labels),
        ];
        let found = rendered(&roster(resources), "n2", LEAVE_OUT);
        let told = yaml(&found, Document::UserData);
        assert_eq!(told, json!({ "rack": value, "list": [value] }), "{found:?}");
    }
}

#[test]
fn secrets_are_omitted_hidden_or_shown_by_permission() {
    let secret = |path: &str| json!({ "secret": { "file": path } });
    let part = json!({
        "document": "vendor-data", "type": "text/x-shellscript", "content": secret("db"),
    });
    let roster = site(vec![layer(
        "site",
        json!({
            "selector": "*", "meta_data": { "db": secret("db") },
            "user_data": {
                "users": [{ "name": "a", "passwd": secret("db") }],
                "runcmd": [["curl", "-H", secret("db"), "http://x"]], "timezone": "UTC",
            },
            "parts": [part],
        }),
    )]);
    let with = |secrets| With { secrets, ..LEAVE_OUT };
    let none = rendered(&roster, "n1", with(Secrets::LeaveOut));
    // Not a user without a password, and no command that lacks a word.
    assert_eq!(yaml(&none, Document::UserData), json!({ "timezone": "UTC" }));
    assert!(none.documents.vendor_data.is_empty());
    let hidden = rendered(&roster, "n1", with(Secrets::Redact));
    assert_eq!(yaml(&hidden, Document::UserData)["users"][0]["passwd"], "(secret)");
    for found in [&none, &hidden] {
        assert!(!format!("{found:?}").contains("hunter2"));
    }
    let told = rendered(&roster, "n1", with(Secrets::Resolve(&Vault)));
    assert_eq!(yaml(&told, Document::UserData)["users"][0]["passwd"], "hunter2");
    assert_eq!(yaml(&told, Document::MetaData)["db"], "hunter2");
    assert!(text(&told, Document::VendorData).contains("\nhunter2\n"));

    let missing = site(vec![
        layer("site", json!({ "selector": "*", "user_data": { "a": 1 } })),
        layer("bad", json!({ "selector": "node:n1", "user_data": { "b": secret("other") } })),
    ]);
    let told = rendered(&missing, "n1", with(Secrets::Resolve(&Vault)));
    assert_eq!(yaml(&told, Document::UserData), json!({ "a": 1 }));
    assert_eq!((told.failed[0].layer.as_str(), told.failed[0].at.as_str()), ("bad", "user_data.b"));
}

#[test]
fn secret_is_no_template_of_the_client() {
    let told = |syntax: &str, of: &str| {
        let spec = json!({
            "selector": "*", "client_templates": true, "meta_data": { "m": "x" },
            of: { "users": [{ "passwd": { "secret": { "file": syntax } } }] },
        });
        let roster = site(vec![layer("site", spec)]);
        rendered(&roster, "n1", With { secrets: Secrets::Resolve(&Vault), ..LEAVE_OUT })
    };
    for of in ["user_data", "vendor_data"] {
        for syntax in ["{{", "{%", "{#"] {
            let found = told(syntax, of);
            let failed = &found.failed[0];
            assert_eq!(failed.at, format!("{of}.users[0].passwd"));
            assert_eq!(failed.reason, "the secret contains template syntax");
            assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        }
        assert_eq!(told("{", of).failed, []);
    }
    assert_eq!(told("{{", "meta_data").failed, [], "no client has templates there");
}

#[test]
fn other_user_data_becomes_a_part_of_a_message() {
    let part = |document: &str, content: &str| json!({ "document": document, "type": "text/x-shellscript", "content": content });
    let roster = site(vec![
        layer("site", json!({ "selector": "*", "user_data": { "a": 1 } })),
        layer(
            "web",
            json!({
                "selector": "group:web",
                "parts": [
                    part("user-data", "#!/bin/sh\necho {{ node.name }}\n"),
                    part("user-data", "#!/bin/sh\necho \u{fc}ber ==hoist-\n"),
                    part("vendor-data", "#!/bin/sh\n"),
                ],
            }),
        ),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let message = text(&found, Document::UserData);
    let boundary = message.split('"').nth(1).expect("a boundary");
    let head = format!(
        "Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n\
         X-Hoist-Layers: site (*), web (group:web)\n\n--{boundary}\n\
         Content-Type: text/cloud-config; charset=\"utf-8\"\n"
    );
    assert!(message.starts_with(&head), "{message}");
    assert_eq!(message.matches(&format!("\n--{boundary}")).count(), 4);
    assert_eq!(message, text(&rendered(&roster, "n1", LEAVE_OUT), Document::UserData));
    assert!(message.contains("filename=\"web-0\"\n\n#!/bin/sh\necho n1\n\n"), "{message}");
    assert!(message.contains("Content-Transfer-Encoding: base64\n"), "{message}");
    assert!(message.ends_with(&format!("--{boundary}--\n")));
    let vendor = text(&found, Document::VendorData);
    assert!(!vendor.contains("cloud-config"), "{vendor}");
    assert!(found.trace.iter().any(|(_, traced)| traced.key == "parts[1] text/x-shellscript"));
}

#[test]
fn client_templates_pass_unchanged_beside_rendered_ones() {
    let jinja = "{{ ds.meta_data[\"hoist\"].name }} it's\n";
    let roster = site(vec![
        layer(
            "site",
            json!({ "selector": "*", "user_data": { "a": "plain" }, "vendor_data": { "v": "{{ node.name }}" } }),
        ),
        layer(
            "bad",
            json!({ "selector": "*", "priority": 1, "user_data": { "b": "{{ '{{' }}x" } }),
        ),
        layer(
            "client",
            json!({
                "selector": "group:web", "client_templates": true, "user_data": { "c": jinja, "d": "{{ v1.region }}" },
            }),
        ),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let user = text(&found, Document::UserData);
    assert!(user.starts_with("## template: jinja\n#cloud-config\n"), "{user}");
    // Letter by letter: quotes inside of quotes would be another template.
    assert!(user.contains("c: |\n  {{ ds.meta_data[\"hoist\"].name }} it's\n"), "{user}");
    assert!(user.contains("d: |-\n  {{ v1.region }}\n"), "{user}");
    assert_eq!(
        yaml(&found, Document::UserData),
        json!({ "a": "plain", "c": jinja, "d": "{{ v1.region }}" })
    );
    assert_eq!(found.failed.len(), 1);
    assert_eq!(found.failed[0].at, "user_data.b");
    assert!(text(&found, Document::VendorData).starts_with("#cloud-config\n"));
}

#[test]
fn openchami_tree_is_served_on_request() {
    let roster = site(vec![
        layer(
            "site",
            json!({
                "selector": "*", "openchami": true, "public_keys": ["k"],
                "meta_data": { "cluster-name": "demo", "region": "r" },
            }),
        ),
        layer(
            "gpu",
            json!({ "selector": "group:gpu", "meta_data": { "driver": "{{ node.name }}" } }),
        ),
    ]);
    let meta = yaml(&rendered(&roster, "n1", LEAVE_OUT), Document::MetaData);
    let v1 = &meta["instance_data"]["v1"];
    assert_eq!(v1["instance_id"], meta["instance-id"]);
    assert_eq!((&v1["region"], &v1["local_ipv4"]), (&json!("r"), &json!("10.0.0.1")));
    assert_eq!(v1["public_keys"], json!(["k"]));
    let groups = json!({ "gpu": { "Description": "with GPUs", "driver": "n1" }, "web": { "Description": "" } });
    assert_eq!(v1["vendor_data"]["groups"], groups);
    assert_eq!(v1["vendor_data"]["cluster_name"], "demo");

    let interface =
        json!({ "name": "eth0", "mac": "02:00:00:00:00:06", "addresses": ["fd00::5/64"] });
    let six = resource("Node", "n6", json!({ "interfaces": [interface] }));
    let roster = after(&roster, vec![six], vec![]);
    let meta = yaml(&rendered(&roster, "n6", LEAVE_OUT), Document::MetaData);
    assert_eq!(meta["hoist"]["ip"], "fd00::5");
    assert_eq!(meta["instance_data"]["v1"]["local_ipv4"], Value::Null);
}

fn made(renderer: &Renderer, roster: &Arc<Roster>, node: &str) -> RenderResult {
    let node = roster.by_name(node).expect("a node");
    renderer.documents(&renderer.compiled(roster), node, "t0k")
}

#[test]
fn failed_template_gives_last_good_documents_or_no_layer() {
    let roster = site(vec![
        layer("site", json!({ "selector": "*", "user_data": { "a": 1 } })),
        layer(
            "rack",
            json!({ "selector": "group:web", "user_data": { "rack": "{{ node.labels.rack }}" } }),
        ),
    ]);
    let renderer = Renderer::default();
    let good = made(&renderer, &roster, "n1");
    assert!(good.failed.is_empty() && !good.stale);
    assert!(String::from_utf8_lossy(&good.documents.user_data).contains("rack: r1"));

    let node = roster.by_name("n1").expect("a node").as_ref().clone();
    let mut bare = node.clone();
    bare.spec.labels = hoist_model::node::Labels::default();
    let broken = after(&roster, vec![Resource::Node(Arc::new(bare.clone()))], vec![]);
    let stale = made(&renderer, &broken, "n1");
    assert!(stale.stale);
    assert_eq!(stale.failed[0].layer.as_str(), "rack");
    assert_eq!(stale.documents, good.documents);
    let others = made(&renderer, &broken, "n2");
    assert!(others.failed.is_empty(), "{others:?}");

    // A key removed from another layer does not come back because this one fails.
    let without = layer("site", json!({ "selector": "*", "user_data": { "b": 2 } }));
    let fresh = made(&renderer, &after(&broken, vec![without], vec![]), "n1");
    assert!(!fresh.stale);
    let user = String::from_utf8_lossy(&fresh.documents.user_data).into_owned();
    assert!(user.contains("b: 2") && !user.contains("a: 1") && !user.contains("rack:"), "{user}");

    // A new generation is another node.
    bare.generation += 1;
    let anew = after(&broken, vec![Resource::Node(Arc::new(bare))], vec![]);
    let fresh = made(&renderer, &anew, "n1");
    assert!(!fresh.stale && !fresh.failed.is_empty());
    let user = String::from_utf8_lossy(&fresh.documents.user_data).into_owned();
    assert!(user.contains("a: 1") && !user.contains("rack:"), "{user}");
    assert!(String::from_utf8_lossy(&fresh.documents.meta_data).contains("-g1"));

    // The same after a change of the layers: metadata of another role is not served again.
    let other = layer("more", json!({ "selector": "*", "user_data": { "b": 2 } }));
    let moved = after(&broken, vec![other], vec![]);
    assert!(!made(&renderer, &moved, "n1").stale);
}

#[test]
fn failing_layer_does_not_serve_values_of_another_node() {
    let roster = site(vec![
        resource("Network", "net", json!({ "subnets": [{ "cidr": "10.0.0.0/24" }] })),
        layer("site", json!({ "selector": "*", "network_config": true, "openchami": true })),
        layer(
            "rack",
            json!({ "selector": "group:web",
                "user_data": { "rack": "{{ node.labels.rack }} {{ node.ip }}" } }),
        ),
    ]);
    let node = roster.by_name("n1").expect("a node").as_ref().clone();
    let mut bare = node.clone();
    bare.spec.labels = hoist_model::node::Labels::default();
    let spec = |value: Value| serde_json::from_value::<hoist_model::NodeSpec>(value).expect("spec");
    let interface = |mac: &str, ip: &str| json!({ "interfaces": [{ "name": "eth0", "mac": mac, "addresses": [ip] }] });

    let mut moved = bare.clone();
    moved.spec.interfaces = spec(interface("02:00:00:00:00:01", "10.0.0.9/24")).interfaces;
    let heir = spec(interface("02:00:00:00:00:03", "10.0.0.1/24"));
    let renderer = Renderer::default();
    assert!(made(&renderer, &roster, "n1").failed.is_empty());
    let puts = vec![Resource::Node(Arc::new(moved)), node_of("n3", heir, 0)];
    let told = made(&renderer, &after(&roster, puts, vec![]), "n1");
    assert!(!told.stale && !told.failed.is_empty(), "{told:?}");
    for document in Document::ALL {
        let text = String::from_utf8_lossy(told.documents.get(document)).into_owned();
        assert!(!text.contains("10.0.0.1"), "{document}: {text}");
    }
    for document in [Document::MetaData, Document::NetworkConfig] {
        let text = String::from_utf8_lossy(told.documents.get(document)).into_owned();
        assert!(text.contains("10.0.0.9"), "{document}: {text}");
    }

    // The same of everything else that is the node's own.
    let changes: [fn(&mut Node); 4] = [
        |node| node.name = "n9".parse().expect("a name"),
        |node| node.spec.nid = Some("9".parse().expect("a nid")),
        |node| node.spec.xname = Some("x0c0s0b0n0".parse().expect("an xname")),
        |node| node.spec.groups = ["web".parse().expect("a group")].into_iter().collect(),
    ];
    for change in changes {
        let renderer = Renderer::default();
        assert!(made(&renderer, &roster, "n1").failed.is_empty());
        let mut other = bare.clone();
        change(&mut other);
        let name = other.name.to_string();
        let told =
            made(&renderer, &after(&roster, vec![Resource::Node(Arc::new(other))], vec![]), &name);
        assert!(!told.stale && !told.failed.is_empty(), "{told:?}");
    }
    let mut joined = interface("02:00:00:00:00:01", "10.0.0.1/24");
    joined["interfaces"][0]["network"] = json!("net");
    let mut settled = node;
    let mut bare = bare;
    settled.spec.interfaces = spec(joined).interfaces;
    bare.spec.interfaces.clone_from(&settled.spec.interfaces);
    let roster = after(&roster, vec![Resource::Node(Arc::new(settled))], vec![]);
    let renderer = Renderer::default();
    assert!(made(&renderer, &roster, "n1").failed.is_empty());
    let roster = after(&roster, vec![Resource::Node(Arc::new(bare))], vec![]);
    assert!(made(&renderer, &roster, "n1").stale);
    let gateway = json!({ "subnets": [{ "cidr": "10.0.0.0/24", "gateway": "10.0.0.254" }] });
    let roster = after(&roster, vec![resource("Network", "net", gateway)], vec![]);
    assert!(!made(&renderer, &roster, "n1").stale);
}

/// A cache of rendered documents.
#[derive(Default)]
struct DocumentCache {
    renderer: Renderer,
    kept: std::collections::HashMap<NodeId, (Basis, hoist_metadata::Documents)>,
}

impl DocumentCache {
    /// The documents of a node, and whether they were rendered for this call.
    fn serve(
        &mut self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> (hoist_metadata::Documents, bool) {
        let compiled = self.renderer.compiled(roster);
        if let Some((basis, documents)) = self.kept.get(&node.id)
            && self.renderer.bears(roster, basis, node)
        {
            return (documents.clone(), false);
        }
        let made = self.renderer.documents(&compiled, node, "t0k");
        self.kept.insert(node.id, (compiled.basis(node), made.documents.clone()));
        (made.documents, true)
    }

    /// The nodes that something was made for.
    fn serve_all(&mut self, roster: &Arc<Roster>) -> Vec<String> {
        let nodes = roster.nodes().filter(|node| self.serve(roster, node).1);
        nodes.map(|node| node.name.to_string()).collect()
    }
}

#[test]
fn rendered_documents_hold_until_a_dependency_changes() {
    let roster = site(vec![layer("site", json!({ "selector": "*", "user_data": { "a": 1 } }))]);
    let mut cache = DocumentCache::default();
    assert_eq!(cache.serve_all(&roster), ["n1", "n2"]);
    let node = roster.by_name("n1").expect("a node");
    let state = hoist_model::BootState::new(node.id, "test", Timestamp::UNIX_EPOCH);
    let roster = after(&roster, vec![Resource::BootState(Arc::new(state))], vec![]);
    assert_eq!(cache.serve_all(&roster), [""; 0]);
    let roster = after(&roster, vec![resource("Node", "n2", json!({ "nid": 9 }))], vec![]);
    assert_eq!(cache.serve_all(&roster), ["n2"]);
    let roster = after(&roster, vec![resource("Node", "n3", json!({}))], vec![]);
    assert_eq!(cache.serve_all(&roster), ["n3"]);
    let gone = ResourceKey::Node(roster.by_name("n3").expect("a node").id);
    let roster = after(&roster, vec![], vec![gone]);
    assert_eq!(cache.serve_all(&roster), [""; 0]);
    let roster = Arc::new(roster.folded());
    assert_eq!(cache.serve_all(&roster), [""; 0]);
    // Who is in a group may change with any node; most do not.
    let first = json!({ "selector": "first(*)" });
    let roster = after(&roster, vec![resource("Group", "default/first", first)], vec![]);
    assert_eq!(cache.serve_all(&roster), ["n1", "n2"]);
    let roster = after(&roster, vec![resource("Node", "n3", json!({ "nid": 1 }))], vec![]);
    assert_eq!(cache.serve_all(&roster), ["n1", "n3"]);
    let roster = after(&roster, vec![layer("site", json!({ "selector": "*" }))], vec![]);
    assert_eq!(cache.serve_all(&roster), ["n1", "n2", "n3"]);
}

/// Something that may happen to a site of four nodes.
fn any_change() -> impl Strategy<Value = (Vec<Resource>, Vec<ResourceKey>)> {
    let name = || proptest::sample::select(vec!["n1", "n2", "n3", "n4"]);
    let node = (name(), 0..3_u32, any::<[bool; 3]>()).prop_map(|(name, nid, [gpu, role, rack])| {
        let groups: &[&str] = if gpu { &["gpu"] } else { &[] };
        let mut spec = json!({
            "groups": groups,
            "interfaces": [{ "name": "eth0", "mac": format!("02:00:00:00:00:0{}", &name[1..]),
                "addresses": [format!("10.0.{nid}.1/24")], "network": "mgmt" }],
        });
        if nid > 0 {
            // As in a real site, no two have the same.
            spec["nid"] = json!(nid * 10 + name[1..].parse::<u32>().expect("a number"));
        }
        if role {
            spec["role"] = json!("compute");
        }
        if rack {
            spec["labels"] = json!({ "rack": "r1" });
        }
        (vec![resource("Node", name, spec)], vec![])
    });
    let gone = name().prop_map(|name| {
        let Resource::Node(node) = resource("Node", name, json!({})) else { unreachable!() };
        (vec![], vec![ResourceKey::Node(node.id)])
    });
    let selectors = vec!["compute", "first(*)", "label:rack=r1", "first(role:compute)", "node:n1"];
    let group = (proptest::sample::select(selectors), 0..3).prop_map(|(selector, priority)| {
        let spec = json!({ "selector": selector, "priority": priority, "description": selector });
        (vec![resource("Group", "default/some", spec)], vec![])
    });
    let selectors = vec!["*", "group:gpu", "group:some", "node:n2", "partition:default"];
    let layers = (proptest::sample::select(selectors), any::<[bool; 3]>(), 0..3);
    let layers = layers.prop_map(|(selector, [network, openchami, template], n)| {
        let text = if template { "{{ node.groups | length }} {{ node.ip }}" } else { "text" };
        let spec = json!({
            "selector": selector, "network_config": network, "openchami": openchami,
            "user_data": { format!("k{n}"): text },
        });
        (vec![layer(&format!("l{n}"), spec)], vec![])
    });
    let network = (0..3).prop_map(|n| {
        let subnet = json!({ "cidr": "10.0.1.0/24", "gateway": format!("10.0.1.25{n}") });
        let spec = json!({ "subnets": [subnet], "ntp": [format!("10.0.0.{n}")] });
        (vec![resource("Network", "mgmt", spec)], vec![])
    });
    prop_oneof![3 => node, 1 => gone, 1 => group, 2 => layers, 1 => network]
}

proptest! {
    #[test]
    fn served_documents_equal_fresh_ones_after_any_change(
        changes in proptest::collection::vec(any_change(), 1..24)
    ) {
        let mut roster = site(vec![]);
        let mut cache = DocumentCache::default();
        for (puts, deletes) in changes {
            roster = after(&roster, puts, deletes);
            for node in roster.nodes() {
                let fresh = Renderer::default();
                let fresh = fresh.documents(&fresh.compiled(&roster), node, "t0k");
                prop_assert!(fresh.failed.is_empty(), "{:?}", fresh.failed);
                prop_assert_eq!(cache.serve(&roster, node).0, fresh.documents);
            }
        }
    }
}

#[test]
fn bad_layers_are_reported_and_leave_the_rest_alone() {
    let many: Vec<String> = (0..200).map(|i| format!("{{{{ node.name }}}}{i}")).collect();
    let work = "{% for a in node.name %}".repeat(9) + &"{% endfor %}".repeat(9);
    let long = "x".repeat(200_000);
    for (bad, at, reason) in [
        (json!({ "user_data": { "b": "{{ node.nmae }}" } }), "user_data.b", "undefined"),
        (json!({ "user_data": { "b": ["{% if %}"] } }), "user_data.b[0]", "syntax"),
        (json!({ "user_data": { "b": "{{ 'a' * 1000000 }}" } }), "user_data.b", "cannot be used"),
        (json!({ "user_data": { "b": many } }), "user_data.b[128]", "128 templates"),
        (json!({ "hostname": "{{ node.name }} rm -rf" }), "hostname", "not a host name"),
        (
            json!({ "user_data": { "b": format!("{{% for c in node.id %}}{}{{% endfor %}}", long) } }),
            "user_data.b",
            "longer than",
        ),
        (
            json!({ "user_data": { "b": work.replace("node.name", "node.id") } }),
            "user_data.b",
            "fuel",
        ),
    ] {
        let mut bad = bad;
        bad["selector"] = json!("*");
        let roster = site(vec![
            layer("ok", json!({ "selector": "*", "user_data": { "a": 1 } })),
            layer("bad", bad),
        ]);
        let found = rendered(&roster, "n1", LEAVE_OUT);
        assert_eq!(found.failed.len(), 1, "{reason}");
        let failed = &found.failed[0];
        assert_eq!((failed.layer.as_str(), failed.at.as_str()), ("bad", at), "{failed:?}");
        assert!(failed.reason.contains(reason), "{failed:?}");
        assert_eq!(yaml(&found, Document::UserData), json!({ "a": 1 }));
    }
}

#[test]
fn layers_of_a_node_are_bounded_together() {
    let piece = "x".repeat(200 * 1024);
    let names = ["a", "b", "c", "d", "e", "f"];
    let layers =
        names.map(|name| layer(name, json!({ "selector": "*", "user_data": { name: piece } })));
    let found = rendered(&site(layers.to_vec()), "n1", LEAVE_OUT);
    assert_eq!(found.failed.len(), 1);
    assert_eq!(found.failed[0].layer.as_str(), "f");
    assert!(found.documents.user_data.len() <= hoist_metadata::render::MAX_SAID + 4096);
}

/// Why a layer would be refused.
fn refused(roster: &Roster, layer: Resource) -> Vec<String> {
    use hoist_site::plan::{Plan, Rule, ValidationDeadline};
    let base = roster.revision();
    let puts = vec![layer];
    let mut plan =
        Plan { base, puts, deletes: vec![], items: vec![], affected: vec![], warnings: vec![] };
    let refusals =
        hoist_metadata::LayerRule.validate(roster, &mut plan, &ValidationDeadline::default());
    refusals.iter().map(ToString::to_string).collect()
}

#[test]
fn layer_without_templates_is_validated_with_other_layers() {
    let big = |name: &str, selector: &str| {
        let piece = "x".repeat(250 * 1024);
        layer(name, json!({ "selector": selector, "user_data": { name: piece } }))
    };
    // `n1` alone has all of them; it is not the first node of the site.
    let of_n1 = |names: &[&str]| {
        let mut all = vec![resource("Node", "a", json!({}))];
        all.extend(names.iter().map(|name| big(name, "group:gpu")));
        site(all)
    };
    let roster = of_n1(&["b", "c", "d", "e"]);
    assert_eq!(roster.nodes().next().map(|node| node.name.as_str()), Some("a"));
    let told = refused(&roster, big("site", "*"));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("larger than") && told[0].contains("`n1`"), "{told:?}");
    assert_eq!(refused(&of_n1(&["b", "c", "d"]), big("site", "*")), [""; 0]);
}

#[test]
fn validation_renders_one_of_several_equal_nodes() {
    // So many that trying each would take minutes.
    let nodes = (0..20_000).map(|n| resource("Node", &format!("m{n}"), json!({})));
    let roster = roster(nodes.collect());
    let text = "x".repeat(200 * 1024);
    let plain = layer("plain", json!({ "selector": "*", "user_data": { "a": text } }));
    let before = std::time::Instant::now();
    assert_eq!(refused(&roster, plain), [""; 0]);
    assert!(before.elapsed() < std::time::Duration::from_secs(20), "{:?}", before.elapsed());
}

/// A layer as large as one may be, of one text over and over, deep inside its maps.
fn large(name: &str, field: &str, unit: &str, depth: usize, flags: [bool; 3]) -> Resource {
    let [openchami, client_templates, parts] = flags;
    let make = |text: &str| {
        let nested = (0..depth).fold(json!(text), |inner, i| {
            if i % 2 == 0 { json!([inner]) } else { json!({ "k": inner }) }
        });
        let mut spec = json!({
            "selector": "group:gpu", "openchami": openchami, "client_templates": client_templates,
        });
        spec[field] = json!({ name: nested });
        if parts {
            let part = json!({ "document": "user-data", "type": "text/x-shellscript", "content": "\u{e9}" });
            spec["parts"] = json!([part]);
        }
        spec
    };
    let room = hoist_model::metadata_layer::MAX_LAYER - make("").to_string().len() - 512;
    let times = room / (json!(unit).to_string().len() - 2);
    layer(name, make(&unit.repeat(times)))
}

fn total(found: &RenderedDocuments) -> usize {
    Document::ALL.iter().map(|document| found.documents.get(*document).len()).sum()
}

/// More than hoist says by itself to the nodes of these tests.
const OWN: usize = 16 * 1024;

#[test]
fn text_counts_with_its_size_after_escaping() {
    // Thirty times as much, by indentation and by escapes: more than the bound in one layer.
    for unit in ["a\n", "\u{85}"] {
        let deep = large("deep", "user_data", unit, 30, [false; 3]);
        let roster =
            site(vec![layer("ok", json!({ "selector": "*", "user_data": { "a": 1 } })), deep]);
        let found = rendered(&roster, "n1", LEAVE_OUT);
        assert!(found.failed[0].reason.contains("larger than 1048576 bytes"), "{:?}", found.failed);
        assert_eq!(yaml(&found, Document::UserData), json!({ "a": 1 }));
    }
    // What stays as long as it is may be as long.
    let plain = ["a", "b", "c"].map(|name| large(name, "user_data", "x", 30, [false; 3]));
    let found = rendered(&site(plain.to_vec()), "n1", LEAVE_OUT);
    assert_eq!(found.failed, []);
    assert!(total(&found) > 3 * 255 * 1024);
}

#[test]
fn trace_of_deep_values_is_bounded() {
    let leaves: serde_json::Map<_, _> = (0..9_000).map(|n| (format!("k{n}"), json!(1))).collect();
    let deep = (0..20).fold(Value::Object(leaves), |inner, _| json!({ "k".repeat(256): inner }));
    let spec = json!({ "selector": "*", "user_data": { "a": deep } });
    let found = rendered(&site(vec![layer("deep", spec)]), "n1", LEAVE_OUT);
    assert_eq!(found.failed, []);
    let keys = found.trace.iter().filter(|(document, _)| *document == Document::UserData);
    let bytes: usize = keys.map(|(_, traced)| traced.key.len()).sum();
    let max = hoist_metadata::render::MAX_TRACE;
    assert!((max - 8 * 1024..=max).contains(&bytes), "{bytes}");
}

#[test]
fn templates_with_huge_output_are_stopped_early() {
    let much = format!("{{% for c in node.id %}}{}{{% endfor %}}", "x".repeat(8 * 1024));
    let texts: Vec<_> = (0..20).map(|_| much.clone()).collect();
    let roster = site(vec![layer("much", json!({ "selector": "*", "user_data": { "a": texts } }))]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    assert!(found.failed[0].reason.contains("renders to more than"), "{:?}", found.failed);
    assert!(total(&found) < OWN);
}

#[test]
fn templates_may_be_as_long_as_a_layer() {
    use hoist_metadata::layer::MAX_SOURCE;
    let spec = |length: usize| {
        let text = "{{ node.name }}".to_owned() + &"x".repeat(length - 15);
        serde_json::from_value(json!({ "selector": "*", "user_data": { "a": text } }))
            .expect("a spec")
    };
    for (length, fits) in [(MAX_SOURCE, true), (MAX_SOURCE + 1, false)] {
        // No document may have this name, but a damaged store may hold it.
        let name = "long".parse().expect("a name");
        let long = MetadataLayer { name, spec: spec(length), revision: 1 };
        let found = rendered(&site(vec![Resource::MetadataLayer(Arc::new(long))]), "n1", LEAVE_OUT);
        let told =
            found.failed.first().is_some_and(|one| one.reason.contains("templates are longer"));
        assert_eq!(told, !fits, "{:?}", found.failed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn layers_within_their_limits_stay_below_the_bound(
        all in proptest::collection::vec((
            proptest::sample::select(vec!["meta_data", "user_data", "vendor_data"]),
            proptest::sample::select(vec![
                "x", "a\n", "\u{85}", "\u{7f}", "\"", "\u{e9}", "\n", " ", "y\n\n", "{{ node.id }}\n", "{# #}",
            ]),
            0..31_usize,
            any::<[bool; 3]>(),
        ), 1..6),
    ) {
        let layers = all.iter().zip("abcdef".chars()).map(|((field, unit, depth, flags), name)| {
            large(&name.to_string(), field, unit, *depth, *flags)
        });
        let found = rendered(&site(layers.collect()), "n1", LEAVE_OUT);
        let total = total(&found);
        let max = hoist_metadata::render::MAX_SAID;
        prop_assert!(total <= max + OWN, "{total}");
    }
}

proptest! {
    /// Any layer gives documents that read back as the same values, without a panic.
    #[test]
    fn documents_of_any_text_can_be_read_back(text in "\\PC{0,40}", key in "[a-z]\\PC{0,8}", raw in "[ -~\n\t{}%#]{0,40}") {
        let roster = site(vec![
            layer("one", json!({ "selector": "*", "vendor_data": { key.clone(): text, "raw": raw }, "client_templates": true })),
            layer("two", json!({ "selector": "*", "user_data": { key.clone(): raw.clone(), "list": [text.clone(), { "x": raw }] } })),
        ]);
        let found = rendered(&roster, "n1", LEAVE_OUT);
        let vendor = yaml(&found, Document::VendorData);
        prop_assert_eq!(&vendor["raw"], &Value::from(raw.clone()));
        if key != "raw" {
            prop_assert_eq!(&vendor[&key], &Value::from(text.clone()));
        }
        if found.failed.is_empty() && !raw.contains("{{") && !raw.contains("{%") && key != "list"
            && !text.contains("{{") && !text.contains("{%")
        {
            let expected = json!({ key: raw.clone(), "list": [text, { "x": raw }] });
            prop_assert_eq!(yaml(&found, Document::UserData), expected);
        }
    }
}

fn planned(roster: &Roster, layer: Resource) -> hoist_site::plan::Plan {
    let base = roster.revision();
    let puts = vec![layer];
    hoist_site::plan::Plan {
        base,
        puts,
        deletes: vec![],
        items: vec![],
        affected: vec![],
        warnings: vec![],
    }
}

#[test]
fn layer_without_timely_validation_is_refused_by_name() {
    use hoist_site::plan::{Rule, ValidationDeadline};
    let slow = layer("slow", json!({ "selector": "*", "user_data": { "a": "{{ node.name }}" } }));
    let roster = site(vec![]);
    let judge = |deadline: &ValidationDeadline| {
        hoist_metadata::LayerRule.validate(&roster, &mut planned(&roster, slow.clone()), deadline)
    };
    assert!(judge(&ValidationDeadline::default()).is_empty());
    let refusals = judge(&ValidationDeadline::within(std::time::Duration::ZERO));
    let told: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    let expected = "MetadataLayer slow: validation on its nodes takes longer than 20 s; make \
                    its templates simpler, or let it speak of fewer nodes";
    assert_eq!(told, [expected]);
}

#[test]
fn validation_of_a_layer_ignores_machine_activity() {
    use hoist_site::plan::Rule;
    let said = |value: &str| layer("a", json!({ "selector": "*", "user_data": { "a": value } }));
    let before = site(vec![]);
    let passed = planned(&before, said("{{ node.name }}"));
    let holds = |now: &Roster, value: &str| {
        let Resource::MetadataLayer(layer) = said(value) else { panic!("a layer") };
        let later = MetadataLayer { revision: now.revision() + 1, ..(*layer).clone() };
        let plan = planned(now, Resource::MetadataLayer(Arc::new(later)));
        hoist_metadata::LayerRule.still_holds((&before, &passed), (now, &plan))
    };
    let id = before.nodes().next().expect("a node").id;
    let state = hoist_model::BootState::new(id, "n1", Timestamp::UNIX_EPOCH);
    let booted = after(&before, vec![Resource::BootState(Arc::new(state))], vec![]);
    assert!(holds(&booted, "{{ node.name }}"));
    assert!(!holds(&booted, "{{ node.xname }}"), "it says something else");
    let more = after(&before, vec![resource("Node", "n9", json!({}))], vec![]);
    assert!(!holds(&more, "{{ node.name }}"), "there is another node");
}
