//! The values of a node that a template can use.

use std::collections::HashMap;

use hoist_model::{Interface, Mac, Nid, Node, NodeId, NodeSpec};
use hoist_site::Roster;
use jiff::Timestamp;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct NodeValues<'a> {
    pub id: String,
    pub name: &'a str,
    pub xname: Option<String>,
    pub nid: Option<u32>,
    pub role: Option<&'a str>,
    pub subrole: Option<&'a str>,
    pub partition: &'a str,
    pub groups: Vec<String>,
    pub arch: &'a str,
    pub mac: Option<String>,
    pub ip: Option<String>,
    pub labels: HashMap<&'a str, &'a str>,
    pub data: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

impl<'a> NodeValues<'a> {
    /// With the MAC it asked with, if it asked with one; otherwise the one it boots from.
    pub fn of(roster: &Roster, node: &'a Node, asked: Option<Mac>) -> Self {
        let spec = &node.spec;
        let boot = roster.boot(node);
        Self {
            id: node.id.to_string(),
            name: &node.name,
            xname: spec.xname.map(|xname| xname.to_string()),
            nid: spec.nid.map(Nid::get),
            role: spec.role.as_deref(),
            subrole: spec.subrole.as_deref(),
            partition: &spec.partition,
            groups: roster.groups_of(node).iter().map(ToString::to_string).collect(),
            arch: spec.arch.as_str(),
            mac: asked.or(boot.as_ref().map(|boot| boot.mac)).map(|mac| mac.to_string()),
            ip: boot.and_then(|boot| boot.ip).map(|ip| ip.to_string()),
            labels: spec.labels.iter().map(|(key, value)| (key.as_str(), value)).collect(),
            data: spec.data.as_deref(),
        }
    }
}

/// A node as there may be one, to try a template on where there is none yet.
pub fn sample() -> Node {
    let interface = serde_json::json!({
        "name": "eth0", "mac": "02:00:00:00:00:01", "addresses": ["192.0.2.1/24"],
    });
    let interface: Interface = serde_json::from_value(interface).expect("a plain interface");
    let now = Timestamp::UNIX_EPOCH;
    Node {
        id: NodeId::from_bits(0),
        name: "sample".parse().expect("a name"),
        spec: NodeSpec {
            nid: Some(Nid::new(1)),
            interfaces: vec![interface],
            ..NodeSpec::default()
        },
        protection: None,
        maintenance: None,
        provenance: None,
        generation: 0,
        revision: 0,
        created: now,
        updated: now,
    }
}
