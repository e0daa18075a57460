//! One node at a time: by id and by every key it has.

use serde_json::{Value, json};

use crate::site::{NODES, Site, id, mac, node, with};

fn by(key: &str, value: &str) -> String {
    format!("{NODES}/by/{key}/{value}")
}

#[tokio::test]
async fn a_node_is_created_read_replaced_and_removed() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    assert_eq!(made["name"], "n1");
    assert_eq!(made["partition"], "default");
    assert_eq!(made["boot"]["mac"], mac(1));
    assert_eq!(made["boot"]["selected_by"], "only-one");
    assert_eq!(made["revision"], site.revision());
    assert_eq!(site.get(&path).await.expect(200).json(), made);

    let wanted = with(node(1), &json!({"role": "Compute", "labels": {"rack": "7"}}));
    let replaced = site.put(&path, &wanted).await.expect(200).json();
    assert_eq!((&replaced["role"], &replaced["labels"]["rack"]), (&json!("Compute"), &json!("7")));
    assert_eq!(replaced["id"], made["id"]);
    assert_eq!(replaced["created"], made["created"]);
    let replaced = site.put(&path, &node(1)).await.expect(200).json();
    assert_eq!(replaced.get("labels"), None, "a PUT replaces, it does not merge");

    let removed = site.delete(&path).await.expect(200).json();
    assert_eq!((&removed["removed"], &removed["items"][0]["name"]), (&json!(1), &json!("n1")));
    for method in ["GET", "DELETE"] {
        site.ask(method, &path).send().await.problem(404, "not-found");
    }
    site.put(&path, &node(1)).await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn a_node_is_found_by_every_key_and_every_spelling() {
    let site = Site::start().await;
    let uuid = "4C4C4544-0042-3510-8057-B4C04F4A5931";
    let wanted = with(
        node(0x00ab_cdef),
        &json!({"name": "login1", "nid": 48, "xname": "x1000c0s0b0n0", "system": {"uuid": uuid}}),
    );
    let made = site.add(&wanted).await;
    let lower = uuid.to_lowercase();
    for (key, value) in [
        ("name", "login1"),
        ("xname", "x1000c0s0b0n0"),
        ("xname", "X1000C0S0B0N0"),
        ("xname", "x01000c0s0b0n0"),
        ("nid", "48"),
        ("ip", "10.171.205.239"),
        ("uuid", uuid),
        ("uuid", &lower),
        ("mac", "02:00:00:ab:cd:ef"),
        ("mac", "02:00:00:AB:CD:EF"),
        ("mac", "02-00-00-ab-cd-ef"),
        ("mac", "020000abcdef"),
        ("mac", "0200.00ab.cdef"),
        ("mac", "01-02-00-00-ab-cd-ef"),
        ("mac", "02%3A00%3A00%3Aab%3Acd%3Aef"),
    ] {
        let answer = site.get(&by(key, value)).await.expect(200);
        assert_eq!(answer.json()["id"], made["id"], "{key} {value}");
    }
    for (key, value) in [
        ("name", "login2"),
        ("xname", "x1000c0s0b0n1"),
        ("nid", "49"),
        ("ip", "10.0.0.99"),
        ("ip", "2001:db8::1"),
        ("uuid", "00000000-0000-0000-0000-000000000001"),
        ("mac", "02:00:00:00:00:99"),
    ] {
        let problem = site.get(&by(key, value)).await.problem(404, "not-found");
        assert!(problem.detail.contains(value), "{}", problem.detail);
    }
    site.stop().await;
}

#[tokio::test]
async fn invalid_value_is_reported_with_its_text_and_a_hint() {
    let site = Site::start().await;
    for (key, value) in [
        ("name", "Not_A_Name"),
        ("xname", "kettle"),
        ("nid", "-1"),
        ("nid", "4294967296"),
        ("ip", "10.0.0.0.1"),
        ("ip", "10.0.0.1%2f24"),
        ("uuid", "kettle"),
        ("mac", "02:00:00:00:00"),
        ("mac", "02:00:00:00:00:zz"),
        ("mac", "02:00-00:00:00:00"),
    ] {
        for method in ["GET", "PUT"] {
            let answer = site.ask(method, &by(key, value)).json(&node(1)).send().await;
            let problem = answer.problem(400, "bad-parameter");
            let text = value.replace("%2f", "/");
            assert!(problem.detail.contains(&text), "{key}: {}", problem.detail);
            let hint = problem.errors.first().and_then(|diagnostic| diagnostic.hint.clone());
            assert!(hint.is_some(), "{key} {value}: {problem:?}");
        }
    }
    let problem = site.get(&by("serial", "1")).await.problem(400, "bad-parameter");
    assert!(problem.errors[0].hint.as_deref().is_some_and(|hint| hint.contains("xname")));
    let problem = site.get(&format!("{NODES}/kettle")).await.problem(400, "bad-parameter");
    assert!(problem.detail.contains("kettle") && problem.remedy.is_some());
    assert_eq!(site.revision(), 0);
    site.stop().await;
}

#[tokio::test]
async fn one_address_on_two_networks_is_ambiguous_not_a_guess() {
    let site = Site::start().await;
    for network in ["red", "blue"] {
        site.put(&format!("/inventory/v1/networks/{network}"), &json!({})).await.expect(200);
    }
    for (n, network) in [(1, "red"), (2, "blue")] {
        let interface = json!({
            "name": "eth0", "mac": mac(n), "addresses": ["10.0.0.7/24"], "network": network,
        });
        site.add(&json!({"name": format!("n{n}"), "interfaces": [interface]})).await;
    }
    let problem = site.get(&by("ip", "10.0.0.7")).await.problem(409, "ambiguous");
    assert!(problem.detail.contains("n1") && problem.detail.contains("n2"), "{}", problem.detail);
    let body = json!({"name": "n3"});
    site.put(&by("ip", "10.0.0.7"), &body).await.problem(409, "ambiguous");
    site.stop().await;
}

#[tokio::test]
async fn a_put_by_key_creates_then_replaces() {
    let site = Site::start().await;
    let uuid = "4c4c4544-0042-3510-8057-b4c04f4a5931";
    let body = with(node(7), &json!({"xname": "x1000c0s0b0n0", "system": {"uuid": uuid}}));
    for (key, value) in [
        ("name", "n7"),
        ("mac", "02-00-00-00-00-07"),
        ("xname", "x1000c0s0b0n0"),
        ("nid", "7"),
        ("ip", "10.0.0.7"),
        ("uuid", uuid),
    ] {
        let made = site.put(&by(key, value), &body).await.expect(201).json();
        let again = site.put(&by(key, value), &body).await.expect(200).json();
        assert_eq!(made, again, "{key}: the same again changes nothing");
        let changed = with(body.clone(), &json!({"labels": {"by": key}}));
        let changed = site.put(&by(key, value), &changed).await.expect(200).json();
        assert_eq!(changed["id"], made["id"]);
        assert_eq!(changed["labels"]["by"], key);
        site.delete(&format!("{NODES}/{}", id(&made))).await.expect(200);
    }
    // The name of the path need not be repeated.
    let made = site.put(&by("name", "n1"), &json!({})).await.expect(201).json();
    assert_eq!(made["name"], "n1");
    let made = site.put(&by("nid", "2"), &json!({})).await.expect(201).json();
    assert_eq!((&made["nid"], &made["name"]), (&json!(2), &json!("nid000002")));
    let made = site.put(&by("xname", "x1c0s0b0n0"), &json!({"nid": 3})).await.expect(201).json();
    assert_eq!((&made["xname"], &made["name"]), (&json!("x1c0s0b0n0"), &json!("nid000003")));
    site.stop().await;
}

#[tokio::test]
async fn a_body_that_contradicts_its_path_is_refused() {
    let site = Site::start().await;
    let one = site.add(&node(1)).await;
    let two = site.add(&node(2)).await;
    let before = site.revision();
    for (key, value) in [
        ("mac", mac(9)),
        ("nid", "9".to_owned()),
        ("xname", "x9c0s0b0n0".to_owned()),
        ("ip", "10.0.0.9".to_owned()),
        ("uuid", "4c4c4544-0042-3510-8057-b4c04f4a5931".to_owned()),
        ("name", "n9".to_owned()),
    ] {
        let body = with(node(3), &json!({"xname": "x1c0s0b0n0"}));
        site.put(&by(key, &value), &body).await.problem(400, "bad-parameter");
    }
    // Sent to the wrong place: the body of one node to the path of another.
    let path = |node: &Value| format!("{NODES}/{}", id(node));
    site.put(&path(&one), &two).await.problem(400, "bad-parameter");
    site.put(&by("name", "n1"), &with(two.clone(), &json!({"name": "n1"})))
        .await
        .problem(400, "bad-parameter");
    assert_eq!(site.revision(), before);
    site.stop().await;
}

#[tokio::test]
async fn a_put_can_rename_and_the_old_name_is_free() {
    let site = Site::start().await;
    let made = site.add(&node(1)).await;
    let renamed = with(made.clone(), &json!({"name": "login1"}));
    let answer = site.put(&by("name", "n1"), &renamed).await.expect(200).json();
    assert_eq!((&answer["id"], &answer["name"]), (&made["id"], &json!("login1")));
    site.get(&by("name", "n1")).await.problem(404, "not-found");
    let back = with(made.clone(), &json!({"name": "n1"}));
    site.put(&format!("{NODES}/{}", id(&made)), &back).await.expect(200);
    assert_eq!(site.get(&by("name", "n1")).await.expect(200).json()["id"], made["id"]);
    site.add(&json!({"name": "login1"})).await;
    site.put(&by("name", "n1"), &renamed).await.problem(409, "conflict");
    site.stop().await;
}

#[tokio::test]
async fn read_node_is_written_back_without_a_revision() {
    let site = Site::start().await;
    let networks = json!({"subnets": [{"cidr": "10.0.0.0/8", "gateway": "10.0.0.254"}]});
    site.put("/inventory/v1/networks/nmn", &networks).await.expect(200);
    site.put("/inventory/v1/groups/default/gpu", &json!({"priority": 5})).await.expect(200);
    let racks = json!({"selector": "label:rack=7", "priority": -1});
    site.put("/inventory/v1/groups/default/rack7", &racks).await.expect(200);
    let full = json!({
        "name": "login1", "nid": 48, "xname": "x1000c0s0b0n0", "groups": ["gpu"],
        "boot": {"mac": mac(1)}, "arch": "aarch64", "firmware": "uefi", "role": "Application",
        "subrole": "UAN", "enabled": false, "bmc": {"ref": "x1000c0s0b0", "protocol": "redfish"},
        "system": {"uuid": "4c4c4544-0042-3510-8057-b4c04f4a5931", "serial": "S1"},
        "labels": {"rack": "7"}, "data": {"deep": [{"er": null}]},
        "interfaces": [
            {"name": "eth0", "kind": "mgmt", "mac": mac(1), "network": "nmn", "vlan": 5,
             "addresses": ["10.0.0.1/24", "2001:db8::1/64"], "mtu": 9000},
            {"name": "hsn0", "kind": "hsn", "mac": mac(2)},
            {"name": "bmc", "kind": "bmc", "mac": mac(3)},
        ],
    });
    let made = site.add(&full).await;
    assert_eq!(made["groups"], json!(["rack7", "gpu"]));
    assert_eq!(made["computed_groups"], json!(["rack7"]));
    let path = format!("{NODES}/{}", id(&made));
    site.put(&format!("{path}/protection"), &json!({"reason": "prod"})).await.expect(200);
    site.put(&format!("{path}/maintenance"), &json!({"reason": "dimm"})).await.expect(200);
    let state = json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "test"});
    site.put(&format!("{path}/state"), &state).await.expect(200);

    let before = (site.revision(), site.records().await);
    let entries = site.audit().await.len();
    for path in [path.clone(), by("name", "login1"), by("mac", &mac(3))] {
        let read = site.get(&format!("{path}?state=1")).await.expect(200).json();
        assert_eq!(read["state"]["power"], "on");
        let written = site.put(&path, &read).await.expect(200);
        assert_eq!(written.json()["revision"], read["revision"]);
        assert_eq!(written.tag(), site.get(&path).await.tag());
    }
    for kind in ["groups/default/gpu", "groups/default/rack7", "networks/nmn"] {
        let path = format!("/inventory/v1/{kind}");
        let read = site.get(&path).await.expect(200).json();
        assert_eq!(site.put(&path, &read).await.expect(200).json(), read, "{kind}");
    }
    assert_eq!((site.revision(), site.records().await), before);
    assert_eq!(site.audit().await.len(), entries);
    site.stop().await;
}

#[tokio::test]
async fn wrong_bodies_are_told_with_a_place() {
    let site = Site::start().await;
    let refuse = async |body: Value| site.post(NODES, &body).await.problem(400, "invalid-body");
    let unknown = refuse(json!({"name": "n1", "lables": {}})).await;
    assert!(unknown.errors[0].message.contains("lables"));
    assert_eq!(unknown.errors[0].hint.as_deref(), Some("did you mean `labels`?"));
    refuse(json!({"name": "n1", "interfaces": [{"name": "e", "mac": mac(1), "speed": 1}]})).await;
    refuse(json!({"name": "n1", "nid": "one"})).await;
    refuse(json!({"name": "N 1"})).await;
    refuse(json!({"name": "n1", "xname": "x1000c0s0b0"})).await;
    refuse(json!({"name": "n1", "system": {"uuid": "kettle"}})).await;
    let group = refuse(json!({"name": "n1", "groups": ["ghost"]})).await;
    assert!(group.detail.contains("default/ghost"), "{}", group.detail);
    refuse(json!({"name": "n1", "partition": "ghost"})).await;
    let boot = refuse(with(node(1), &json!({"boot": {"mac": mac(2)}}))).await;
    assert_eq!(boot.errors[0].at, "boot");
    let zero = json!({"name": "n1", "interfaces": [{"name": "e", "mac": "00:00:00:00:00:00"}]});
    assert_eq!(refuse(zero).await.errors[0].at, "interfaces[0].mac");
    let nameless = site.post(NODES, &json!({})).await.problem(400, "bad-parameter");
    assert!(nameless.errors[0].hint.is_some());
    assert_eq!(site.revision(), 0);
    site.stop().await;
}

#[tokio::test]
async fn two_nodes_cannot_share_a_key_and_both_are_named() {
    let site = Site::start().await;
    let uuid = json!({"uuid": "4c4c4544-0042-3510-8057-b4c04f4a5931"});
    site.add(&with(node(1), &json!({"xname": "x1c0s0b0n0", "system": uuid}))).await;
    let before = site.revision();
    let interfaces =
        |mac: String, address: &str| json!([{"name": "eth0", "mac": mac, "addresses": [address]}]);
    for (member, value, field) in [
        ("interfaces", interfaces(mac(1).to_uppercase(), "10.0.0.9/8"), "interfaces[0].mac"),
        ("interfaces", interfaces(mac(9), "10.0.0.1/24"), "interfaces[0].addresses"),
        ("nid", json!(1), "nid"),
        ("xname", json!("X1C0S0B0N0"), "xname"),
        ("system", uuid.clone(), "system.uuid"),
    ] {
        let mut second = json!({"name": "n2"});
        second[member] = value;
        let problem = site.post(NODES, &second).await.problem(409, "conflict");
        assert!(problem.detail.contains("n1") && problem.detail.contains("n2"), "{problem:?}");
        assert_eq!(problem.conflicts[0].field, field);
        assert_eq!(problem.conflicts[0].holder, "node/n1");
        assert!(!problem.conflicts[0].value.is_empty());
    }
    site.post(NODES, &json!({"name": "n1"})).await.problem(409, "conflict");
    assert_eq!(site.revision(), before);
    site.stop().await;
}

#[tokio::test]
async fn a_name_defaults_from_the_nid() {
    let site = Site::start().await;
    assert_eq!(site.add(&json!({"nid": 48})).await["name"], "nid000048");
    assert_eq!(site.add(&json!({"nid": 12_345_678})).await["name"], "nid12345678");
    let renamed = json!({"nid": 49, "name": "login1"});
    let made = site.add(&renamed).await;
    let kept = site.put(&format!("{NODES}/{}", id(&made)), &json!({"nid": 50})).await.expect(200);
    assert_eq!(kept.json()["name"], "login1", "a known node keeps its name");
    site.stop().await;
}

#[tokio::test]
async fn one_of_two_concurrent_creations_of_a_node_succeeds() {
    let site = Site::start().await;
    let body = node(1);
    let path = by("name", "n1");
    let create = || site.ask("PUT", &path).header("if-none-match", "*").json(&body).send();
    let answers = tokio::join!(create(), create(), create(), create());
    let mut statuses = [answers.0.status, answers.1.status, answers.2.status, answers.3.status];
    statuses.sort_unstable();
    assert_eq!(statuses[0], 201, "{statuses:?}");
    assert!(statuses[1..].iter().all(|status| [409, 412].contains(status)), "{statuses:?}");
    assert_eq!(site.revision(), 1);
    site.stop().await;
}
