//! Records beside the spec: protection, maintenance, state; the exchange of machines; dry runs and
//! the audit log of every route that writes.

use serde_json::{Value, json};

use crate::site::{Answer, NODES, Site, document, id, mac, node, node_document, spec, with};

#[tokio::test]
async fn a_protected_node_cannot_be_removed_by_any_way() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    let protection = format!("{path}/protection");
    let shown = site.put(&protection, &json!({"reason": "runs the site"})).await.expect(200).json();
    assert_eq!(shown["protection"]["reason"], "runs the site");
    let revision = site.revision();
    let again = site.put(&protection, &json!({"reason": "runs the site"})).await.expect(200).json();
    assert_eq!((&again, site.revision()), (&shown, revision), "twice changes nothing");
    site.delete(&path).await.problem(409, "protected");
    let targets = json!({"targets": ["Node/n1"]});
    site.post("/inventory/v1/delete", &targets).await.problem(409, "protected");
    site.put(&path, &with(node(1), &json!({"role": "Compute"}))).await.expect(200);
    assert_eq!(site.get(&path).await.json()["protection"]["reason"], "runs the site");
    let site = site.restart().await;
    site.delete(&path).await.problem(409, "protected");
    let shown = site.delete(&protection).await.expect(200).json();
    assert_eq!(shown.get("protection"), None);
    site.delete(&path).await.expect(200);
    site.put(&protection, &json!({})).await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn maintenance_says_why_and_until_when() {
    let site = Site::start().await;
    let path = format!("{NODES}/{}/maintenance", id(&site.add(&node(1)).await));
    site.put(&path, &json!({})).await.problem(400, "invalid-body");
    let past = json!({"reason": "dimm", "until": "2020-01-01T00:00:00Z"});
    site.put(&path, &past).await.problem(400, "bad-parameter");
    let until = "2999-01-01T00:00:00Z";
    let shown =
        site.put(&path, &json!({"reason": "dimm", "until": until})).await.expect(200).json();
    assert_eq!(
        (&shown["maintenance"]["reason"], &shown["maintenance"]["until"]),
        (&json!("dimm"), &json!(until))
    );
    let since = shown["maintenance"]["since"].clone();
    let shown = site.put(&path, &json!({"reason": "psu"})).await.expect(200).json();
    assert_eq!((&shown["maintenance"]["since"], shown["maintenance"].get("until")), (&since, None));
    assert_eq!(site.delete(&path).await.expect(200).json().get("maintenance"), None);
    site.stop().await;
}

#[tokio::test]
async fn maintenance_ends_by_itself_when_its_time_is_over() {
    let site = Site::start().await;
    let path = format!("{NODES}/{}", id(&site.add(&node(1)).await));
    let other = format!("{NODES}/{}", id(&site.add(&node(2)).await));
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1500);
    let body = json!({"reason": "dimm", "until": until.to_string()});
    site.put(&format!("{path}/maintenance"), &body).await.expect(200);
    site.put(&format!("{other}/maintenance"), &json!({"reason": "psu"})).await.expect(200);
    assert_eq!(site.get(&path).await.json()["maintenance"]["reason"], "dimm");
    site.eventually(&path, |answer| answer.json().get("maintenance").is_none()).await;
    assert!(jiff::Timestamp::now() >= until, "it ended too early");
    assert_eq!(site.get(&other).await.json()["maintenance"]["reason"], "psu");
    let entries = site.audit().await;
    let ended = entries.iter().find(|entry| entry.method == "maintenance");
    let ended = ended.expect("an entry of the end");
    assert!(ended.who == "controller" && ended.object.contains("n1"), "{ended:?}");
    let objects: Vec<_> = entries.iter().map(|entry| entry.object.as_str()).collect();
    assert!(objects.contains(&"1 changed: Node/n1 (maintenance: dimm)"), "{objects:?}");
    site.stop().await;
}

#[tokio::test]
async fn a_replaced_machine_keeps_its_node() {
    let site = Site::start().await;
    let body = with(node(1), &json!({"boot": {"mac": mac(1)}, "system": {"serial": "old"}}));
    let made = site.add(&body).await;
    site.add(&node(2)).await;
    let path = format!("{NODES}/{}/swap", id(&made));
    let swap = json!({"macs": [{"old": mac(1), "new": mac(9)}], "system": {"serial": "new"}});
    let shown = site.post(&path, &swap).await.expect(200).json();
    assert_eq!((&shown["id"], &shown["name"]), (&made["id"], &json!("n1")));
    assert_eq!(
        (&shown["boot"]["mac"], &shown["system"]["serial"]),
        (&json!(mac(9)), &json!("new"))
    );
    assert_eq!(shown["interfaces"][0]["addresses"], made["interfaces"][0]["addresses"]);
    site.get(&format!("{NODES}/by/mac/{}", mac(1))).await.problem(404, "not-found");
    let taken = json!({"macs": [{"old": mac(9), "new": mac(2)}]});
    site.post(&path, &taken).await.problem(409, "conflict");
    let unknown = json!({"macs": [{"old": mac(7), "new": mac(8)}]});
    site.post(&path, &unknown).await.problem(400, "invalid-body");
    let group = json!({"macs": [{"old": mac(9), "new": "ff:ff:ff:ff:ff:ff"}]});
    site.post(&path, &group).await.problem(400, "invalid-body");
    for nonsense in [json!({}), json!({"with": "n2", "macs": [{"old": mac(9), "new": mac(8)}]})] {
        site.post(&path, &nonsense).await.problem(400, "bad-parameter");
    }
    site.stop().await;
}

#[tokio::test]
async fn two_nodes_exchange_their_machines() {
    let site = Site::start().await;
    let made = site
        .add(&with(
            node(1),
            &json!({"system": {"serial": "a"}, "role": "Login",
                                               "bmc": {"ref": "bmc-a"}}),
        ))
        .await;
    let spare = site
        .add(&with(
            node(2),
            &json!({"system": {"serial": "b"}, "enabled": false,
                                                "bmc": {"ref": "bmc-b"}}),
        ))
        .await;
    let odd = json!({"name": "odd", "interfaces": [{"name": "ib0", "mac": mac(3)}]});
    site.add(&odd).await;
    let path = format!("{NODES}/{}/swap", id(&made));
    let revision = site.revision();
    let shown = site.post(&path, &json!({"with": "n2"})).await.expect(200).json();
    assert_eq!(site.revision(), revision + 1);
    assert_eq!((&shown["id"], &shown["role"]), (&made["id"], &json!("Login")));
    assert_eq!((&shown["boot"]["mac"], &shown["boot"]["ip"]), (&json!(mac(2)), &json!("10.0.0.1")));
    assert_eq!((&shown["system"]["serial"], &shown["bmc"]["ref"]), (&json!("b"), &json!("bmc-b")));
    let other = site.get(&format!("{NODES}/{}", id(&spare))).await.json();
    assert_eq!((&other["boot"]["mac"], &other["enabled"]), (&json!(mac(1)), &json!(false)));
    site.post(&path, &json!({"with": "ghost"})).await.problem(404, "not-found");
    site.post(&path, &json!({"with": "odd"})).await.problem(400, "invalid-body");
    let revision = site.revision();
    let itself = site.post(&path, &json!({"with": "n1"})).await;
    assert!([200, 400].contains(&itself.status), "{}", itself.text());
    assert_eq!(site.revision(), revision);
    site.stop().await;
}

#[tokio::test]
async fn the_state_makes_no_revision_and_survives_a_restart() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}/state", id(&made));
    site.get(&path).await.problem(404, "not-found");
    let revision = site.revision();
    let entries = site.audit().await.len();
    let tag = site.get(NODES).await.tag();
    let state = json!({"power": "on", "phase": "installed", "since": "2026-01-01T00:00:00Z",
                       "source": "test"});
    assert_eq!(site.put(&path, &state).await.expect(200).json(), state);
    assert_eq!(site.get(&path).await.expect(200).json(), state);
    let shown = site.get(&format!("{NODES}/{}?state=1", id(&made))).await.expect(200).json();
    assert_eq!((&shown["state"], &shown["revision"]), (&state, &made["revision"]));
    let listed = site.get(&format!("{NODES}?state=1")).await.json();
    assert_eq!(listed["items"][0]["state"], state);
    assert_eq!(site.get(NODES).await.json()["items"][0].get("state"), None);
    site.put(&path, &json!({"power": "maybe"})).await.problem(400, "invalid-body");
    assert_eq!(site.revision(), revision);
    assert_eq!(site.get(NODES).await.tag(), tag);
    assert_eq!(site.audit().await.len(), entries, "observations are no decisions");
    let site = site.restart().await;
    assert_eq!(site.revision(), revision);
    let kept = site.eventually(&path, |answer| answer.status == 200).await;
    assert_eq!(kept.json(), state);
    site.stop().await;
}

#[tokio::test]
async fn an_exported_site_is_the_same_site_elsewhere() {
    let site = Site::start().await;
    site.apply(&[
        document("Partition", "p1", &json!({"boot_networks": ["nmn"]})),
        document("Network", "nmn", &json!({"vlan": 5, "subnets": [{"cidr": "10.0.0.0/8"}]})),
        document("Group", "p1/gpu", &json!({"priority": 3, "exclusive_set": "kind"})),
        document("Group", "p1/all", &json!({"selector": "*"})),
        document("Group", "default/members", &json!({"members": ["n2"]})),
        document(
            "Node",
            "n1",
            &with(
                spec(1),
                &json!({
            "partition": "p1", "groups": ["gpu"], "data": {"a": [1, null, "ü"]}, "enabled": false,
            "labels": {"rack": "7"}, "boot": {"interface": "eth0"}}),
            ),
        ),
        node_document(2),
    ])
    .await;
    let exported = site.export().await;
    assert_eq!(exported.len(), 7);
    let other = Site::start().await;
    let report = other.apply(&exported).await;
    assert_eq!(report["created"], 7);
    assert_eq!(other.export().await, exported);
    assert_eq!(site.apply(&exported).await["unchanged"], 7);
    let some = site.get("/inventory/v1/export?selector=gpu").await.expect(200).lines();
    assert_eq!((some.len(), &some[0]["name"]), (1, &json!("n1")));
    other.stop().await;
    site.stop().await;
}

/// Every route that writes the inventory, with a request that would change something.
async fn writes(site: &Site) -> Vec<(&'static str, String, Value)> {
    site.apply(&[
        document("Partition", "p1", &json!({})),
        document("Network", "nmn", &json!({})),
        document("Group", "default/gpu", &json!({})),
        node_document(1),
        node_document(2),
    ])
    .await;
    let get = async |name: &str| site.get(&format!("{NODES}/by/name/{name}")).await.json();
    let n1 = format!("{NODES}/{}", id(&get("n1").await));
    let n2 = format!("{NODES}/{}", id(&get("n2").await));
    let machine = "02:00:00:00:00:77";
    site.get(&format!("/boot/v1/bootscript?mac={machine}")).await.expect(200);
    let role = json!({"role": "Compute"});
    let reason = json!({"reason": "why"});
    vec![
        ("POST", NODES.to_owned(), node(3)),
        ("PUT", n1.clone(), with(node(1), &role)),
        ("PUT", format!("{NODES}/by/name/n4"), node(4)),
        ("PUT", format!("{n1}/protection"), reason.clone()),
        ("DELETE", format!("{n1}/protection"), Value::Null),
        ("PUT", format!("{n1}/maintenance"), reason),
        ("DELETE", format!("{n1}/maintenance"), Value::Null),
        ("POST", format!("{n1}/swap"), json!({"macs": [{"old": mac(1), "new": mac(99)}]})),
        ("PUT", "/inventory/v1/groups/default/new".into(), json!({"priority": 1})),
        ("DELETE", "/inventory/v1/groups/default/gpu".into(), Value::Null),
        ("PUT", "/inventory/v1/partitions/p2".into(), json!({})),
        ("DELETE", "/inventory/v1/partitions/p1".into(), Value::Null),
        ("PUT", "/inventory/v1/networks/hsn".into(), json!({})),
        ("DELETE", "/inventory/v1/networks/nmn".into(), Value::Null),
        ("POST", "/inventory/v1/apply".into(), node_document(5)),
        ("POST", "/inventory/v1/renew".into(), json!({"nodes": [n1.rsplit('/').next()]})),
        ("POST", "/inventory/v1/delete".into(), json!({"targets": ["Node/n1"]})),
        ("DELETE", n2, Value::Null),
        ("POST", format!("/boot/v2/discovered/{machine}/adopt"), json!({"name": "adopted"})),
    ]
}

async fn send(site: &Site, method: &str, path: &str, body: &Value) -> Answer {
    let ask = site.ask(method, path);
    if body.is_null() { ask.send().await } else { ask.json(body).send().await }
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_a_write_is_audited_once() {
    let site = Site::start().await;
    for (method, path, body) in writes(&site).await {
        let what = format!("{method} {path}");
        let before = (site.revision(), site.records().await);
        let dry = send(&site, method, &format!("{path}?dry_run=1"), &body).await;
        assert!([200, 201].contains(&dry.status), "{what}: {}", dry.text());
        assert_eq!((site.revision(), site.records().await), before, "{what} was not dry");
        for doubtful in ["2", "TRUE", "yes", ""] {
            let path = format!("{path}?dry_run={doubtful}");
            send(&site, method, &path, &body).await.problem(400, "bad-parameter");
        }
        assert_eq!((site.revision(), site.records().await), before, "{what} was not dry");

        let entries = site.audit().await;
        let done = send(&site, method, &format!("{path}?dry_run=0"), &body).await;
        assert!([200, 201].contains(&done.status), "{what}: {}", done.text());
        let after = site.audit().await;
        let new = &after[entries.len()..];
        let answers = dry.status == done.status;
        assert!(answers, "{what}: a dry run answers as the real one does");
        assert_eq!(new.len(), 1, "{what}: {new:?}");
        let entry = &new[0];
        assert_eq!((entry.before, entry.after), (Some(before.0), Some(before.0 + 1)), "{what}");
        assert_eq!((entry.who.as_str(), entry.method.as_str()), ("admin", method));
        assert_eq!(site.revision(), before.0 + 1);
    }
    site.stop().await;
}

/// Whether a path could be one of this route.
fn is_of(path: &str, template: &str) -> bool {
    let path: Vec<_> = path.split('/').collect();
    let template: Vec<_> = template.split('/').collect();
    path.len() == template.len()
        && path.iter().zip(&template).all(|(path, part)| part.starts_with('{') || path == part)
}

/// A new route that writes has to come with a dry run, and with a line in the table above.
#[tokio::test]
async fn every_route_that_writes_has_its_dry_run_tried() {
    let site = Site::start().await;
    let tried = writes(&site).await;
    let document = site.get("/openapi.json").await.json();
    let mut without = Vec::new();
    for (template, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["x-hoist-access-class"] != "admin inventory:write" {
                continue;
            }
            let what = format!("{} {template}", method.to_uppercase());
            let mut parameters = operation["parameters"].as_array().unwrap().iter();
            if !parameters.any(|parameter| parameter["name"] == "dry_run") {
                without.push(what);
                continue;
            }
            // It needs an imported node, and is tried where there are some.
            let elsewhere = template.ends_with("/released");
            let mut known = tried.iter().map(|(method, path, _)| (method.to_lowercase(), path));
            let here = known.any(|(tried, path)| tried == *method && is_of(path, template));
            assert!(here || elsewhere, "{what} is not in the table");
        }
    }
    without.sort();
    let observations_and_imports = [
        "POST /inventory/v1/import",
        "POST /inventory/v1/refresh",
        "PUT /inventory/v1/nodes/{id}/state",
    ];
    assert_eq!(without, observations_and_imports);
    site.stop().await;
}

#[tokio::test]
async fn a_refused_or_empty_write_is_not_in_the_audit_log() {
    let site = Site::start().await;
    site.add(&node(1)).await;
    let entries = site.audit().await.len();
    site.post(NODES, &node(1)).await.expect(409);
    site.post(NODES, &json!({"kettle": 1})).await.expect(400);
    site.put(&format!("{NODES}/by/name/n1"), &node(1)).await.expect(200);
    site.apply(&[node_document(1)]).await;
    assert_eq!(site.audit().await.len(), entries);
    site.stop().await;
}
