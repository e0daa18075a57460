//! network-config from interfaces and networks of the inventory.

use hoist_metadata::Document;
use serde_json::{Value, json};

use super::{LEAVE_OUT, layer, rendered, resource, roster, yaml};

#[test]
fn network_config_is_opt_in_and_never_for_a_bmc() {
    let network = json!({
        "subnets": [{ "cidr": "10.0.0.0/24", "gateway": "10.0.0.254" }, { "cidr": "fd00::/64", "gateway": "fd00::1" }],
        "dns": ["10.0.0.53"], "domain": "site", "ntp": ["10.0.0.123"], "mtu": 9000,
    });
    let fast = json!({ "subnets": [{ "cidr": "10.1.0.0/24", "gateway": "10.1.0.254" }] });
    let interface = |name: &str, n: u8, more: Value| {
        let mut value = json!({ "name": name, "mac": format!("02:00:00:00:01:{n:02x}") });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    let interfaces = json!([
        interface(
            "hsn0",
            1,
            json!({ "kind": "hsn", "addresses": ["10.1.0.1/24"], "network": "fast", "vlan": 7 })
        ),
        interface(
            "bmc0",
            2,
            json!({ "kind": "bmc", "addresses": ["10.0.0.2/24"], "network": "mgmt" })
        ),
        interface(
            "eth0",
            3,
            json!({ "kind": "boot", "addresses": ["10.0.0.3/24", "fd00::3/64"], "network": "mgmt" })
        ),
        interface("eth1", 4, json!({})),
    ]);
    let roster = roster(vec![
        resource("Network", "mgmt", network),
        resource("Network", "fast", fast),
        resource(
            "Node",
            "n1",
            json!({ "interfaces": interfaces, "boot": { "interface": "eth0" } }),
        ),
        resource("Node", "n2", json!({ "interfaces": [interface("eth0", 9, json!({}))] })),
        layer(
            "site",
            json!({ "selector": "*", "network_config": true, "vendor_data": { "ntp": { "enabled": true } } }),
        ),
        layer("n2", json!({ "selector": "node:n3", "network_config": false })),
        resource(
            "Node",
            "n3",
            json!({ "interfaces": [interface("eth0", 10, json!({ "addresses": ["10.9.0.1/24"] }))] }),
        ),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let expected = json!({
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": { "macaddress": "02:00:00:00:01:03" }, "set-name": "eth0", "mtu": 9000,
                "addresses": ["10.0.0.3/24", "fd00::3/64"],
                "routes": [{ "to": "0.0.0.0/0", "via": "10.0.0.254" }, { "to": "::/0", "via": "fd00::1" }],
                "nameservers": { "addresses": ["10.0.0.53"], "search": ["site"] },
            },
            "hsn0": { "match": { "macaddress": "02:00:00:00:01:01" }, "optional": true },
        },
        "vlans": { "hsn0.7": { "id": 7, "link": "hsn0", "addresses": ["10.1.0.1/24"] } },
    });
    assert_eq!(yaml(&found, Document::NetworkConfig), expected);
    let ntp = json!({ "ntp": { "servers": ["10.0.0.123"], "enabled": true } });
    assert_eq!(yaml(&found, Document::VendorData), ntp);
    let from = found.trace.iter().find(|(_, traced)| traced.key == "ntp.servers[0]");
    assert_eq!(from.map(|(_, traced)| &*traced.from), Some("network:mgmt"));
    let dhcp = yaml(&rendered(&roster, "n2", LEAVE_OUT), Document::NetworkConfig);
    assert_eq!(dhcp["ethernets"]["eth0"]["dhcp4"], true);
    assert!(rendered(&roster, "n3", LEAVE_OUT).documents.network_config.is_empty());
}

/// Sources of inventory give addresses alone; a machine with `/32` cannot reach its gateway.
#[test]
fn address_without_a_prefix_gets_that_of_its_subnet() {
    let network = json!({
        "subnets": [{ "cidr": "10.0.0.0/22", "gateway": "10.0.0.254" }, { "cidr": "fd00::/64", "gateway": "fd00::1" }],
    });
    let interface = |name: &str, mac: u8, network: Option<&str>, addresses: &[&str]| {
        let mac = format!("02:00:00:00:02:{mac:02x}");
        json!({ "name": name, "mac": mac, "network": network, "addresses": addresses })
    };
    let interfaces = [
        interface("eth0", 1, Some("mgmt"), &["10.0.1.7/32", "fd00::7/128", "10.0.2.7/24"]),
        interface("eth1", 2, Some("mgmt"), &["192.0.2.7/32"]),
        interface("eth2", 3, None, &["198.51.100.7/32"]),
    ];
    let boot = json!({ "interface": "eth0" });
    let roster = roster(vec![
        resource("Network", "mgmt", network),
        resource("Node", "n1", json!({ "interfaces": interfaces, "boot": boot })),
        layer("site", json!({ "selector": "*", "network_config": true })),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let ethernets = &yaml(&found, Document::NetworkConfig)["ethernets"];
    let addresses = json!(["10.0.1.7/22", "fd00::7/64", "10.0.2.7/24"]);
    assert_eq!(ethernets["eth0"]["addresses"], addresses);
    let routes =
        json!([{ "to": "0.0.0.0/0", "via": "10.0.0.254" }, { "to": "::/0", "via": "fd00::1" }]);
    assert_eq!(ethernets["eth0"]["routes"], routes);
    assert_eq!(
        found.warnings,
        [
            "interface eth1: the address 192.0.2.7 has no prefix length, and no subnet has it; declare \
             its subnet in the network `mgmt`, or write the address with its prefix length",
            "interface eth2: the address 198.51.100.7 has no prefix length, and no subnet has it; name \
             the network of the interface, or write the address with its prefix length",
        ]
    );
}

/// A route over a gateway out of reach fails at boot, and another interface may have the right one.
#[test]
fn gateway_out_of_reach_is_warned_about_and_no_route() {
    let subnet = |cidr: &str, gateway: &str| json!({ "cidr": cidr, "gateway": gateway });
    let subnets = [subnet("10.0.0.0/22", "10.0.0.254"), subnet("fd00::/64", "fd00::1")];
    let interface = |name: &str, mac: u8, addresses: &[&str]| {
        let mac = format!("02:00:00:00:03:{mac:02x}");
        json!({ "name": name, "mac": mac, "network": "mgmt", "addresses": addresses })
    };
    let interfaces = [
        interface("eth0", 1, &["10.0.2.7/24", "fd00::7/64"]),
        interface("eth1", 2, &["10.0.1.7/32"]),
    ];
    let roster = roster(vec![
        resource("Network", "mgmt", json!({ "subnets": subnets })),
        resource(
            "Node",
            "n1",
            json!({ "interfaces": interfaces, "boot": { "interface": "eth0" } }),
        ),
        layer("site", json!({ "selector": "*", "network_config": true })),
    ]);
    let found = rendered(&roster, "n1", LEAVE_OUT);
    let ethernets = &yaml(&found, Document::NetworkConfig)["ethernets"];
    assert_eq!(ethernets["eth0"]["addresses"], json!(["10.0.2.7/24", "fd00::7/64"]));
    let routes = |via: &str, to: &str| json!([{ "to": to, "via": via }]);
    assert_eq!(ethernets["eth0"]["routes"], routes("fd00::1", "::/0"));
    assert_eq!(ethernets["eth1"]["routes"], routes("10.0.0.254", "0.0.0.0/0"));
    assert_eq!(
        found.warnings,
        [
            "interface eth0: the gateway 10.0.0.254 is not within 10.0.2.7/24, so there is no default \
          route over it; write the address with the prefix length of its subnet 10.0.0.0/22, or \
          without one"
        ]
    );
}
