//! The node's documents on a disk: `OpenStack`'s config drive, as a tree of files and as an ISO
//! 9660 image of it, for nodes without network access to a metadata service.

mod iso;

use std::collections::BTreeMap;

use bytes::Bytes;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::render::RenderedDocuments;

/// What clients look for among the disks.
pub const LABEL: &str = "config-2";

/// Files by path. A pure function of the rendered documents: the same node gets the same disk.
pub fn tree(rendered: &RenderedDocuments) -> BTreeMap<String, Bytes> {
    let mut files = BTreeMap::new();
    let mut put = |name: &str, content: Bytes| {
        files.insert(format!("openstack/latest/{name}"), content);
    };
    put("meta_data.json", pretty(&meta_data(&rendered.meta_data)));
    let documents = &rendered.documents;
    if !documents.user_data.is_empty() {
        put("user_data", documents.user_data.clone());
    }
    if !documents.vendor_data.is_empty() {
        let text = String::from_utf8_lossy(&documents.vendor_data);
        put("vendor_data.json", pretty(&json!({ "cloud-init": text })));
    }
    if let Some(network) = rendered.network_config.as_ref().and_then(network_data) {
        put("network_data.json", pretty(&network));
    }
    files
}

/// A disk with these files, to be written to a drive or attached as one.
pub fn image(files: &BTreeMap<String, Bytes>) -> Vec<u8> {
    iso::image(files, LABEL)
}

fn pretty(value: &Value) -> Bytes {
    let mut text = serde_json::to_vec_pretty(value).expect("plain values");
    text.push(b'\n');
    text.into()
}

/// Under `OpenStack`'s names where it has some; the rest stays where it was, so that templates of the
/// client find it at the same place.
fn meta_data(meta: &Map<String, Value>) -> Value {
    let mut out = Map::new();
    for (key, value) in meta {
        match key.as_str() {
            "instance-id" => drop(out.insert("uuid".to_owned(), value.clone())),
            "local-hostname" => drop(out.insert("name".to_owned(), value.clone())),
            "public-keys" => {
                let keys = value.as_array().into_iter().flatten().enumerate();
                let keys = keys.map(|(i, key)| (format!("key-{i}"), key.clone()));
                out.insert("public_keys".to_owned(), Value::Object(keys.collect()));
            }
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(out)
}

/// `OpenStack`'s words for a network-config of version 2. They have none for an optional interface,
/// and a client stops if an interface is missing in the machine, so only the others are in it; `None`
/// if there is no other, because even an empty one makes the client configure the network.
fn network_data(config: &Map<String, Value>) -> Option<Value> {
    let mut links = Vec::new();
    let mut networks = Vec::new();
    let mut services = Vec::new();
    let section = |key: &str| config.get(key).and_then(Value::as_object).into_iter().flatten();
    let is_required = |port: &Value| port["optional"] != true;
    for (name, port) in section("ethernets").filter(|(_, port)| is_required(port)) {
        let mut link = Map::new();
        link.insert("id".to_owned(), name.as_str().into());
        link.insert("type".to_owned(), "phy".into());
        link.insert("ethernet_mac_address".to_owned(), port["match"]["macaddress"].clone());
        if let Some(mtu) = port.get("mtu") {
            link.insert("mtu".to_owned(), mtu.clone());
        }
        links.push(Value::Object(link));
        place(name, port, &mut networks, &mut services);
    }
    for (name, vlan) in section("vlans") {
        let parent = vlan["link"].as_str().unwrap_or_default();
        let port = &config["ethernets"][parent];
        if !is_required(port) {
            continue;
        }
        let mac = &port["match"]["macaddress"];
        links.push(json!({
            "id": name, "type": "vlan", "vlan_link": parent, "vlan_id": vlan["id"],
            "vlan_mac_address": mac,
        }));
        place(name, vlan, &mut networks, &mut services);
    }
    (!links.is_empty())
        .then(|| json!({ "links": links, "networks": networks, "services": services }))
}

/// The addresses of a link, each as a network of its own.
fn place(link: &str, port: &Value, networks: &mut Vec<Value>, services: &mut Vec<Value>) {
    let mut add = |kind: &str, more: Value| {
        let id = format!("network{}", networks.len());
        let mut network = json!({ "id": id, "link": link, "type": kind });
        if let (Some(network), Value::Object(more)) = (network.as_object_mut(), more) {
            network.extend(more);
        }
        networks.push(network);
    };
    if port["dhcp4"] == true {
        add("ipv4_dhcp", json!({}));
    }
    let list = |key: &str| port[key].as_array().cloned().unwrap_or_default();
    let mut routes = list("routes");
    for address in list("addresses") {
        let address = address.as_str().and_then(|text| text.parse::<IpNet>().ok());
        let Some(address) = address else { continue };
        let kind = if address.addr().is_ipv4() { "ipv4" } else { "ipv6" };
        let mine = |route: &Value| {
            route["via"].as_str().is_some_and(|via| via.contains(':') == address.addr().is_ipv6())
        };
        let own: Vec<Value> = routes.iter().filter(|route| mine(route)).map(route).collect();
        // Each route stands with one address only.
        routes.retain(|route| !mine(route));
        let ip = address.addr().to_string();
        let netmask = address.netmask().to_string();
        add(kind, json!({ "ip_address": ip, "netmask": netmask, "routes": own }));
    }
    for server in port["nameservers"]["addresses"].as_array().into_iter().flatten() {
        let service = json!({ "type": "dns", "address": server });
        if !services.contains(&service) {
            services.push(service);
        }
    }
}

fn route(route: &Value) -> Value {
    let to = route["to"].as_str().and_then(|to| to.parse::<IpNet>().ok());
    let network = to.map(|to| to.network().to_string());
    let netmask = to.map(|to| to.netmask().to_string());
    json!({ "network": network, "netmask": netmask, "gateway": route["via"] })
}
