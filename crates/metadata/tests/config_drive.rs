//! The disk of a node: files as `OpenStack` has them, on a file system that a kernel can mount.

use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use hoist_metadata::{Layers, RenderedDocuments, Secrets, With, config_drive, render};
use hoist_model::{MetadataLayer, Network, Node};
use hoist_site::Resource;
use hoist_site::roster::{Incarnation, Roster};
use serde_json::{Value, json};

fn rendered(layer: &Value) -> RenderedDocuments {
    booting_from("eth0", layer)
}

fn booting_from(boot: &str, layer: &Value) -> RenderedDocuments {
    let node = json!({
        "id": "01J00000000000000000000001", "name": "n1", "generation": 2, "revision": 1,
        "created": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z",
        "spec": { "interfaces": [
            { "name": "eth0", "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.1/24"], "network": "mgmt" },
            { "name": "hsn0", "mac": "02:00:00:00:00:02", "addresses": ["fd00::1/64"], "vlan": 7 },
        ], "boot": { "interface": boot } },
    });
    let node: Node = serde_json::from_value(node).expect("a node");
    let network = json!({ "name": "mgmt", "revision": 1, "spec": {
        "subnets": [{ "cidr": "10.0.0.0/24", "gateway": "10.0.0.254" }], "dns": ["10.0.0.53"],
    } });
    let network: Network = serde_json::from_value(network).expect("a network");
    let layer = json!({ "name": "site", "revision": 1, "spec": layer });
    let layer: MetadataLayer = serde_json::from_value(layer).expect("a layer");
    let resources = [
        Resource::Node(Arc::new(node)),
        Resource::Network(Arc::new(network)),
        Resource::MetadataLayer(Arc::new(layer)),
    ];
    let roster = Roster::build(Incarnation::new("test"), 1, 0, resources.into_iter());
    let with = With { token: "t", secrets: Secrets::LeaveOut, trace: false };
    let node = roster.by_name("n1").expect("a node");
    render(&roster, &Layers::of(&roster), node, with)
}

fn json_of(bytes: &Bytes) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

#[test]
fn documents_have_the_names_of_openstack() {
    let found = rendered(&json!({
        "selector": "*", "network_config": true, "public_keys": ["ssh-ed25519 AAAA a"],
        "user_data": { "a": 1 }, "vendor_data": { "b": 2 }, "meta_data": { "cluster-name": "demo" },
    }));
    let tree = config_drive::tree(&found);
    let names: Vec<_> = tree.keys().map(|path| path.strip_prefix("openstack/latest/")).collect();
    let expected = ["meta_data.json", "network_data.json", "user_data", "vendor_data.json"];
    assert_eq!(names, expected.map(Some));
    let meta = json_of(&tree["openstack/latest/meta_data.json"]);
    assert_eq!(meta["uuid"], "01J00000000000000000000001-g2");
    assert_eq!((&meta["name"], &meta["hostname"]), (&json!("n1"), &json!("n1")));
    assert_eq!(meta["public_keys"], json!({ "key-0": "ssh-ed25519 AAAA a" }));
    assert_eq!((&meta["cluster-name"], &meta["hoist"]["name"]), (&json!("demo"), &json!("n1")));
    assert_eq!(tree["openstack/latest/user_data"], found.documents.user_data);
    let vendor = json_of(&tree["openstack/latest/vendor_data.json"]);
    assert_eq!(
        vendor["cloud-init"].as_str().map(str::as_bytes),
        Some(&*found.documents.vendor_data)
    );
    let network = json_of(&tree["openstack/latest/network_data.json"]);
    let expected = json!({
        "links": [
            { "id": "eth0", "type": "phy", "ethernet_mac_address": "02:00:00:00:00:01" },
        ],
        "networks": [
            { "id": "network0", "link": "eth0", "type": "ipv4", "ip_address": "10.0.0.1",
              "netmask": "255.255.255.0",
              "routes": [{ "network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.254" }] },
        ],
        "services": [{ "type": "dns", "address": "10.0.0.53" }],
    });
    assert_eq!(network, expected, "an interface that may be missing is not in it");
}

#[test]
fn vlan_of_the_boot_interface_is_in_the_config_drive() {
    let found = booting_from("hsn0", &json!({ "selector": "*", "network_config": true }));
    let network = json_of(&config_drive::tree(&found)["openstack/latest/network_data.json"]);
    let expected = json!({
        "links": [
            { "id": "hsn0", "type": "phy", "ethernet_mac_address": "02:00:00:00:00:02" },
            { "id": "hsn0.7", "type": "vlan", "vlan_link": "hsn0", "vlan_id": 7,
              "vlan_mac_address": "02:00:00:00:00:02" },
        ],
        "networks": [
            { "id": "network0", "link": "hsn0.7", "type": "ipv6", "ip_address": "fd00::1",
              "netmask": "ffff:ffff:ffff:ffff::", "routes": [] },
        ],
        "services": [],
    });
    assert_eq!(network, expected);
}

#[test]
fn empty_files_are_left_out() {
    let tree = config_drive::tree(&rendered(&json!({ "selector": "*" })));
    assert_eq!(tree.keys().collect::<Vec<_>>(), ["openstack/latest/meta_data.json"]);
}

#[test]
fn config_drive_is_found_by_its_label() {
    let found = rendered(&json!({ "selector": "*", "user_data": { "a": 1 } }));
    let image = config_drive::image(&config_drive::tree(&found));
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let path = dir.path().join("config-2.iso");
    std::fs::write(&path, image).expect("a file can be written");
    let blkid = Command::new("blkid").args(["-p", "-o", "export"]).arg(&path).output();
    let blkid = blkid.expect("blkid runs; it is in the package util-linux");
    let told = String::from_utf8_lossy(&blkid.stdout).into_owned();
    for line in ["LABEL=config-2", "TYPE=iso9660"] {
        assert!(told.lines().any(|one| one == line), "{line}: {told}");
    }
}
