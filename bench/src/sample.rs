//! A site as sites are: nodes with two interfaces, one address each, two groups and two labels.

use std::sync::Arc;

use hoist_model::document::Document;
use hoist_model::{BootConfig, Mac, MetadataLayer, Node, NodeId, NodeSpec};
use hoist_site::roster::{Incarnation, Roster};
use hoist_site::{Resource, ResourceKey};
use hoist_store::{Op, Record, Revision, Store, Txn};
use jiff::Timestamp;
use serde_json::json;

/// The sizes to which the limits refer.
pub(crate) const SITE: u32 = 100_000;
pub(crate) const LARGE_SITE: u32 = 1_000_000;

/// Puts per transaction when a store is filled; only the speed of filling depends on it.
const FILL: usize = 20_000;

pub(crate) fn mac(n: u32, nic: u8) -> Mac {
    let mut octets = [0x02, nic, 0, 0, 0, 0];
    octets[2..].copy_from_slice(&n.to_be_bytes());
    Mac::from_octets(octets)
}

pub(crate) fn spec(n: u32) -> NodeSpec {
    let [_, a, b, c] = n.to_be_bytes();
    let slot = n / 4;
    let chassis = slot / 64;
    let cabinet = slot / 512;
    let role = if n.is_multiple_of(64) { "Service" } else { "Compute" };
    let kind = if n.is_multiple_of(64) { "login" } else { "compute" };
    let value = json!({
        "xname": format!("x{}c{}s{}b0n{}", 1000 + cabinet, chassis % 8, slot % 64, n % 4),
        "nid": n + 1,
        "partition": "default",
        "groups": [kind, format!("rack-{cabinet}")],
        "interfaces": [
            {"name": "eth0", "kind": "boot", "mac": mac(n, 0).to_string(), "network": "nmn",
             "addresses": [format!("10.{a}.{b}.{c}/8")]},
            {"name": "hsn0", "kind": "hsn", "mac": mac(n, 1).to_string(), "network": "hsn",
             "addresses": [format!("11.{a}.{b}.{c}/8")]},
        ],
        "arch": "x86_64",
        "role": role,
        "labels": {"rack": format!("r{cabinet}"), "generation": format!("g{}", n % 5)},
    });
    let mut spec: NodeSpec = serde_json::from_value(value).expect("it is written as specs are");
    spec.shrink();
    spec
}

pub(crate) fn node(n: u32, revision: u64) -> Node {
    Node {
        id: NodeId::mint(1_700_000_000_000 + u64::from(n / 8), u128::from(n).wrapping_mul(MIX)),
        name: format!("nid{n:06}").parse().expect("a name"),
        spec: spec(n),
        protection: None,
        maintenance: None,
        provenance: None,
        generation: 1,
        revision,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
    }
}

/// Spreads small numbers over the random part of an id.
const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The node as the store keeps it.
pub(crate) fn record(n: u32) -> Record {
    let resource = Resource::Node(Arc::new(node(n, 1)));
    Record { key: resource.key().to_key(), value: resource.to_bytes(), revision: Revision(1) }
}

pub(crate) fn roster(count: u32) -> Roster {
    let nodes = (0..count).map(|n| Resource::Node(Arc::new(node(n, 1))));
    Roster::build(Incarnation::new("bench"), 1, 0, nodes)
}

/// The same with boot configurations or BSS records.
pub(crate) fn boot_roster(count: u32, boots: Vec<Resource>) -> Roster {
    let nodes = (0..count).map(|n| Resource::Node(Arc::new(node(n, 1))));
    Roster::build(Incarnation::new("bench"), 1, 0, nodes.chain(boots))
}

/// Everything besides the nodes that documents of nodes refer to.
pub(crate) fn surroundings(count: u32) -> Vec<serde_json::Value> {
    let document = |kind: &str, name: String, spec: serde_json::Value| json!({"api": "hoist/v1", "kind": kind, "name": name, "spec": spec});
    let mut all = vec![
        document("Network", "nmn".to_owned(), json!({"subnets": [{"cidr": "10.0.0.0/8"}]})),
        document("Network", "hsn".to_owned(), json!({"subnets": [{"cidr": "11.0.0.0/8"}]})),
    ];
    let racks = (0..=count / 2048).map(|rack| format!("rack-{rack}"));
    for group in ["login".to_owned(), "compute".to_owned()].into_iter().chain(racks) {
        all.push(document("Group", format!("default/{group}"), json!({})));
    }
    all
}

/// One line of an NDJSON stream.
pub(crate) fn line(n: u32) -> String {
    let name = format!("nid{n:06}").parse().expect("a name");
    let document = Document::node(name, spec(n));
    let mut text = serde_json::to_string(&document).expect("documents are plain values");
    text.push('\n');
    text
}

/// The boot configurations: the usual one, one that most nodes do not get, and one for a single
/// node.
pub(crate) fn boot_configs() -> Vec<Resource> {
    let config = |name: &str, selector: &str, kernel: &str| {
        let spec = json!({
            "selector": selector,
            "kernel": kernel,
            "initrd": ["http://10.0.0.1/images/compute/initramfs.img"],
            "params": "console=ttyS0,115200 root=live:http://10.0.0.1/images/compute/rootfs.squashfs rd.live.ram=1 quiet",
            "cloud_init": "http://10.0.0.1/cloud-init/",
        });
        let spec = serde_json::from_value(spec).expect("it is written as specs are");
        let name = name.parse().expect("a name");
        Resource::BootConfig(Arc::new(BootConfig { name, spec, revision: 1 }))
    };
    vec![
        config("compute", "role:Compute", KERNEL),
        config("service", "role:Service", "http://10.0.0.1/images/service/vmlinuz"),
        config("trial", "node:nid000007", "http://10.0.0.1/images/testing/vmlinuz"),
    ]
}

/// The BSS record that every node boots.
pub(crate) fn bss_records() -> Vec<Resource> {
    let record = json!({
        "key": "Default",
        "kernel": KERNEL,
        "initrd": "http://10.0.0.1/images/compute/initramfs.img",
        "params": "console=ttyS0,115200 root=live:http://10.0.0.1/images/compute/rootfs.squashfs quiet",
        "referral_token": "2b6cf1a0-1a05-4c3c-9d3f-3f1a1a2b7c11",
        "revision": 1,
    });
    let record = serde_json::from_value(record).expect("it is written as records are");
    vec![Resource::Bss(Arc::new(record))]
}

/// The metadata layers: one of the site and one of a group.
pub(crate) fn layers() -> Vec<Resource> {
    let layer = |name: &str, spec: serde_json::Value| {
        let spec = serde_json::from_value(spec).expect("it is written as specs are");
        let name = name.parse().expect("a name");
        Resource::MetadataLayer(Arc::new(MetadataLayer { name, spec, revision: 1 }))
    };
    let site = json!({
        "selector": "*",
        "hostname": "{{ node.name }}.example.org",
        "public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEXAMPLE admin@example.org"],
        "user_data": {
            "timezone": "UTC",
            "ntp": {"enabled": true, "servers": ["10.0.0.1", "10.0.0.2"]},
            "write_files": [{"path": "/etc/site", "content": "{{ node.name }} of the site\n"}],
        },
    });
    let compute = json!({
        "selector": "group:compute",
        "user_data": {
            "write_files": [{"path": "/etc/role", "content": "compute\n"}],
            "runcmd": [["systemctl", "start", "slurmd"]],
        },
    });
    vec![layer("site", site), layer("compute", compute)]
}

/// Of the usual configuration.
pub(crate) const KERNEL: &str = "http://10.0.0.1/images/compute/vmlinuz";

/// Fills a store with the nodes of a site, and nothing else but `others`.
pub(crate) async fn fill(
    store: &dyn Store,
    count: u32,
    others: Vec<Resource>,
) -> anyhow::Result<()> {
    hoist_site::schema::open(store).await?;
    let mut ops = Vec::with_capacity(FILL);
    for n in 0..count {
        let Record { key, value, .. } = record(n);
        ops.push(Op::Put(key, value));
        if ops.len() == FILL {
            store.commit(Txn { compares: Vec::new(), ops: std::mem::take(&mut ops) }).await?;
        }
    }
    ops.extend(others.into_iter().map(|other| Op::Put(other.key().to_key(), other.to_bytes())));
    let site = hoist_site::record::SiteRevision { revision: 1, horizon: 0 };
    let key = hoist_site::record::revision_key();
    ops.push(Op::Put(key, serde_json::to_vec(&site)?));
    store.commit(Txn { compares: Vec::new(), ops }).await?;
    Ok(())
}

pub(crate) fn put(n: u32, revision: u64) -> (ResourceKey, Resource) {
    let resource = Resource::Node(Arc::new(node(n, revision)));
    (resource.key(), resource)
}

/// Numbers that look random and are the same in every run.
#[derive(Debug)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) fn new() -> Self {
        Self(0x853c_49e6_748f_ea9b)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 16) % u64::from(limit)).expect("it is below a u32")
    }
}
