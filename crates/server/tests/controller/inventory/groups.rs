//! Groups, partitions and networks: written, read, refused while in use.

use serde_json::{Value, json};

use crate::site::{NODES, Site, document, names, node, spec, with};

fn path(kind: &str, name: &str) -> String {
    format!("/inventory/v1/{kind}/{name}")
}

async fn groups_of(site: &Site, name: &str) -> Value {
    let node = site.get(&format!("{NODES}/by/name/{name}")).await.expect(200).json();
    node.get("groups").cloned().unwrap_or_else(|| json!([]))
}

#[tokio::test]
async fn each_kind_is_created_read_listed_replaced_and_removed() {
    let site = Site::start().await;
    let network = json!({
        "description": "node management", "vlan": 5, "mtu": 9000, "domain": "site.example",
        "subnets": [{"cidr": "10.0.0.0/8", "gateway": "10.0.0.254",
                     "dhcp": [{"start": "10.1.0.1", "end": "10.1.0.9"}]},
                    {"cidr": "2001:db8::/64"}],
        "dns": ["10.0.0.53", "2001:db8::53"], "ntp": ["10.0.0.123", "time.example"],
    });
    let partition = json!({"description": "first", "boot_networks": ["nmn"],
                           "boot_subnets": ["10.0.0.0/8"]});
    let group = json!({"description": "gpu nodes", "priority": 7, "exclusive_set": "kind"});
    for (kind, name, body) in
        [("networks", "nmn", network), ("partitions", "p1", partition), ("groups", "p1/gpu", group)]
    {
        let path = path(kind, name);
        site.get(&path).await.problem(404, "not-found");
        site.delete(&path).await.problem(404, "not-found");
        let made = site.put(&path, &body).await.expect(200).json();
        for (member, value) in body.as_object().unwrap() {
            assert_eq!(made[member], *value, "{kind}.{member}");
        }
        assert_eq!(made["revision"], site.revision());
        assert_eq!(site.get(&path).await.expect(200).json(), made);
        let listing = site.get(&format!("/inventory/v1/{kind}")).await.expect(200).json();
        assert_eq!((&listing["items"], &listing["revision"]), (&json!([made]), &made["revision"]));
        let unknown = with(body.clone(), &json!({"descriptio": "x"}));
        let problem = site.put(&path, &unknown).await.problem(400, "invalid-body");
        assert_eq!(problem.errors[0].hint.as_deref(), Some("did you mean `description`?"));
        let elsewhere = with(body.clone(), &json!({"name": "another"}));
        site.put(&path, &elsewhere).await.problem(400, "bad-parameter");
        let replaced = site.put(&path, &json!({})).await.expect(200).json();
        assert_eq!(replaced.get("description"), None);
    }
    for (kind, name) in [("groups", "p1/gpu"), ("partitions", "p1"), ("networks", "nmn")] {
        let removed = site.delete(&path(kind, name)).await.expect(200).json();
        assert_eq!(removed["removed"], 1);
        site.get(&path(kind, name)).await.problem(404, "not-found");
    }
    for (kind, name) in [("groups", "p1/B%20d"), ("partitions", "B%20d"), ("networks", "B%20d")] {
        site.put(&path(kind, name), &json!({})).await.problem(400, "bad-parameter");
    }
    let vlan = site.put(&path("networks", "x"), &json!({"vlan": 5000})).await;
    vlan.problem(400, "invalid-body");
    let both = json!({"selector": "*", "members": []});
    site.put(&path("groups", "default/x"), &both).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn members_are_written_through_to_the_nodes() {
    let site = Site::start().await;
    for n in 1..=3 {
        site.add(&node(n)).await;
    }
    let gpu = path("groups", "default/gpu");
    let made = site.put(&gpu, &json!({"members": ["n1", "n2"]})).await.expect(200).json();
    assert_eq!(made["members"], json!(["n1", "n2"]));
    assert_eq!(groups_of(&site, "n1").await, json!(["gpu"]));
    let revision = site.revision();
    site.put(&gpu, &json!({"members": ["n2", "n3"]})).await.expect(200);
    assert_eq!(site.revision(), revision + 1, "one change, however many nodes");
    assert_eq!(groups_of(&site, "n1").await, json!([]));
    assert_eq!(groups_of(&site, "n3").await, json!(["gpu"]));
    site.put(&gpu, &json!({"priority": 3})).await.expect(200);
    assert_eq!(site.get(&gpu).await.json()["members"], json!(["n2", "n3"]), "left out, left alone");
    let problem = site.put(&gpu, &json!({"members": ["n1", "ghost"]})).await;
    assert!(problem.problem(400, "invalid-body").detail.contains("ghost"));
    site.put(&path("partitions", "p1"), &json!({})).await.expect(200);
    let problem = site.put(&path("groups", "p1/x"), &json!({"members": ["n1"]})).await;
    assert!(problem.problem(400, "invalid-body").detail.contains("default"));
    site.put(&path("groups", "p9/x"), &json!({})).await.problem(400, "invalid-body");

    site.delete(&gpu).await.expect(200);
    assert_eq!(groups_of(&site, "n2").await, json!([]));
    assert_eq!(site.get(&format!("{NODES}/by/name/n2")).await.json()["revision"], site.revision());
    site.stop().await;
}

#[tokio::test]
async fn a_computed_group_follows_its_nodes_and_takes_no_members() {
    let site = Site::start().await;
    let rack = path("groups", "default/rack7");
    site.put(&rack, &json!({"selector": "label:rack=7"})).await.expect(200);
    site.add(&with(node(1), &json!({"labels": {"rack": "7"}}))).await;
    site.add(&node(2)).await;
    assert_eq!(site.get(&rack).await.json()["members"], json!(["n1"]));
    let listed = site.get(&format!("{NODES}?selector=group:rack7")).await.json();
    assert_eq!(names(&listed), ["n1"]);
    let n2 = format!("{NODES}/by/name/n2");
    site.put(&n2, &with(node(2), &json!({"labels": {"rack": "7"}}))).await.expect(200);
    assert_eq!(site.get(&rack).await.json()["members"], json!(["n1", "n2"]));
    let problem = site.put(&n2, &with(node(2), &json!({"groups": ["rack7"]}))).await;
    assert!(problem.problem(400, "invalid-body").detail.contains("rack7"));
    for selector in ["group:rack7", "ghost", "("] {
        let answer = site.put(&rack, &json!({"selector": selector})).await;
        answer.problem(400, "invalid-body");
    }
    // A group with members that becomes a computed one lets them go.
    site.put(&path("groups", "default/gpu"), &json!({"members": ["n1"]})).await.expect(200);
    let computed = json!({"selector": "node:n2"});
    let gpu = site.put(&path("groups", "default/gpu"), &computed).await.expect(200).json();
    assert_eq!(gpu["members"], json!(["n2"]));
    assert_eq!(groups_of(&site, "n1").await, json!(["rack7"]));
    site.stop().await;
}

#[tokio::test]
async fn a_node_is_in_one_group_of_an_exclusive_set() {
    let site = Site::start().await;
    for group in ["compute", "login"] {
        let body = json!({"exclusive_set": "kind"});
        site.put(&path("groups", &format!("default/{group}")), &body).await.expect(200);
    }
    site.put(&path("groups", "default/gpu"), &json!({})).await.expect(200);
    site.add(&with(node(1), &json!({"groups": ["compute", "gpu"]}))).await;
    let both = with(node(2), &json!({"groups": ["compute", "login"]}));
    let problem = site.post(NODES, &both).await.problem(409, "conflict");
    assert!(problem.detail.contains("compute") && problem.detail.contains("login"));
    let login = path("groups", "default/login");
    site.put(&login, &json!({"exclusive_set": "kind", "members": ["n1"]}))
        .await
        .problem(409, "conflict");
    // The rule may also come after the nodes.
    let gpu = json!({"exclusive_set": "kind"});
    site.put(&path("groups", "default/gpu"), &gpu).await.problem(409, "conflict");
    site.stop().await;
}

#[tokio::test]
async fn a_nodes_groups_come_in_the_order_of_priority_then_name() {
    let site = Site::start().await;
    for (group, priority) in [("zeta", -5), ("beta", 10), ("alpha", 10), ("mid", 0)] {
        let body = json!({"priority": priority});
        site.put(&path("groups", &format!("default/{group}")), &body).await.expect(200);
    }
    let computed = json!({"priority": 5, "selector": "*"});
    site.put(&path("groups", "default/all"), &computed).await.expect(200);
    site.add(&with(node(1), &json!({"groups": ["alpha", "beta", "mid", "zeta"]}))).await;
    assert_eq!(groups_of(&site, "n1").await, json!(["zeta", "mid", "all", "alpha", "beta"]));
    site.stop().await;
}

#[tokio::test]
async fn group_in_use_is_not_removed() {
    let site = Site::start().await;
    site.apply(&[
        document("Partition", "p1", &json!({})),
        document("Partition", "p2", &json!({})),
        document("Group", "p2/gpu", &json!({})),
        document("Network", "nmn", &json!({})),
        document("Node", "n1", &with(spec(1), &json!({"partition": "p1"}))),
        document(
            "Node",
            "n2",
            &json!({"interfaces": [
            {"name": "eth0", "mac": "02:00:00:00:00:02", "network": "nmn"}]}),
        ),
    ])
    .await;
    for (kind, name, user) in
        [("partitions", "p1", "n1"), ("networks", "nmn", "n2"), ("partitions", "p2", "p2/gpu")]
    {
        let problem = site.delete(&path(kind, name)).await.problem(409, "conflict");
        assert!(problem.detail.contains(user), "{}", problem.detail);
        assert!(problem.errors[0].hint.is_some());
    }
    assert_eq!(site.revision(), 1);
    let targets = json!({"targets": ["Partition/p2", "Group/p2/gpu"]});
    site.post("/inventory/v1/delete", &targets).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn a_partition_decides_which_interface_boots() {
    let site = Site::start().await;
    site.apply(&[
        document("Partition", "p1", &json!({})),
        document("Network", "nmn", &json!({})),
        document(
            "Node",
            "n1",
            &json!({"partition": "p1", "interfaces": [
            {"name": "hsn0", "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.1/24"]},
            {"name": "eth0", "mac": "02:00:00:00:00:02", "network": "nmn"}]}),
        ),
    ])
    .await;
    let n1 = format!("{NODES}/by/name/n1");
    let before = site.get(&n1).await;
    assert_eq!(before.json()["boot"]["interface"], "hsn0");
    site.put(&path("partitions", "p1"), &json!({"boot_networks": ["nmn"]})).await.expect(200);
    let after = site.get(&n1).await;
    assert_eq!(after.json()["boot"]["interface"], "eth0");
    assert_eq!(after.json()["boot"]["selected_by"], "network");
    assert_ne!(before.tag(), after.tag());
    site.stop().await;
}
