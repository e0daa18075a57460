use hoist_model::{InterfaceKind, Nid};
use proptest::prelude::*;

use super::*;
use crate::source::{FailureKind, Field};

fn good(text: &str) -> ImportedSet {
    read("file", text.as_bytes()).unwrap()
}

fn bad(text: &str) -> SourceError {
    read("file", text.as_bytes()).unwrap_err()
}

#[test]
fn documents_set_every_field_of_a_node() {
    let imported = good(
        "\
api: hoist/v1
kind: Node
name: login1
spec:
  nid: 7
  partition: p1
  labels: {rack: a}
  interfaces: [{name: eth0, mac: '02:00:00:00:00:01', network: nmn}]
---
api: hoist/v1
kind: Group
name: p1/login
spec: {members: [login1, login9], priority: 5}
---
api: hoist/v1
kind: Network
name: nmn
---
api: hoist/v1
kind: Partition
name: p1
",
    );
    assert_eq!(imported.fields, FieldSet::all());
    let [node] = imported.nodes.as_slice() else { panic!("one node") };
    assert_eq!(node.external_id, "login1");
    assert_eq!(node.spec.labels.get("rack"), Some("a"));
    assert_eq!(node.spec.groups.len(), 1);
    assert_eq!(imported.groups[0].1.priority, 5);
    assert_eq!(imported.groups[0].1.members, None);
    assert_eq!((imported.networks.len(), imported.partitions.len()), (1, 1));
    assert_eq!(imported.warnings.len(), 1);
}

#[test]
fn documents_with_an_error_are_rejected() {
    let node =
        |name: &str| format!("api: hoist/v1\nkind: Node\nname: {name}\nspec: {{nid: 1}}\n---\n");
    assert!(bad(&format!("{}{}", node("a"), node("b"))).to_string().contains("nid 1"));
    assert!(bad(&format!("{}{}", node("a"), node("a"))).to_string().contains("two nodes"));
    let typo = bad("api: hoist/v1\nkind: Node\nname: a\nspec: {nit: 1}\n");
    assert!(typo.to_string().contains("file:4"), "{typo}");
    assert_eq!(typo.kind(), FailureKind::Broken);
    assert_eq!(bad("").kind(), FailureKind::Empty);
    assert_eq!(bad("api: hoist/v1\nkind: Network\nname: nmn\n").kind(), FailureKind::Empty);
}

const BSS: &str = r#"{
  "Components": [
    {"Id": "x0c0s0b0n0", "NID": 4, "FQDN": "x0c0s0b0n0.test", "State": "Ready", "Role": "System",
     "MAC": ["00:1e:67:00:00:01", "00:1e:67:00:00:02"], "EndpointEnabled": true},
    {"ID": "x0c0s1b0n0", "NID": "8", "FQDN": "login1.test", "State": "Off",
     "MAC": ["00:1e:67:00:00:03"], "EndpointEnabled": false},
    {"ID": "x0c0s2b0n0", "State": "Empty", "MAC": ["00:1e:67:00:00:04"]}
  ],
  "IPAddresses": {
    "10.0.0.2": {"ID": "001e67000002", "MACAddress": "001e67000002", "ComponentID": "x0c0s0b0n0"},
    "10.0.0.3": "x0c0s1b0n0",
    "10.0.0.9": "x9c0s0b0n0"
  }
}"#;

#[test]
fn bss_file_is_read() {
    let imported = good(BSS);
    let [system, login] = imported.nodes.as_slice() else { panic!("two nodes") };
    assert_eq!((system.name.as_ref(), system.spec.nid), (None, Some(Nid::new(4))));
    assert_eq!(system.spec.interfaces[1].addresses[0].to_string(), "10.0.0.2/32");
    assert!(system.spec.enabled && !login.spec.enabled);
    assert_eq!(login.name.as_ref().unwrap().as_str(), "login1");
    assert_eq!(login.spec.nid, Some(Nid::new(8)));
    assert_eq!(login.spec.interfaces[0].addresses[0].to_string(), "10.0.0.3/32");
    // The address without an owner, and the interface of the empty slot.
    assert_eq!(imported.warnings.len(), 2, "{:?}", imported.warnings);
    // BSS knows nothing of partitions and groups.
    assert!(!imported.fields.contains(Field::Groups));
    assert_eq!(bad(r#"{"Components": []}"#).kind(), FailureKind::Empty);
    assert_eq!(bad(r#"{"Components": {}}"#).kind(), FailureKind::Broken);
    assert_eq!(bad(&BSS[..BSS.len() / 2]).kind(), FailureKind::Broken);
}

const OCHAMI: &str = "\
bmcs:
- name: bmc01
  xname: x1000c1s7b0
  mac: de:ca:fc:0f:ee:ee
  ip: 172.16.0.101
- name: shared
  xname: x1000c1s8b0
  mac: de:ca:fc:0f:ee:ef
nodes:
- name: node01
  nid: 1
  xname: x1000c1s7b0n0
  bmc: bmc01
  groups: [compute, slurm]
  interfaces:
  - mac_addr: de:ad:be:ee:ee:f1
    ip_addrs:
    - name: internal
      ip_addr: 172.16.0.1
  - mac_addr: de:ad:be:ee:ee:f2
    ip_addrs:
    - name: external
      ip_addr: fd00::7
- name: node02
  nid: 2
  xname: x1000c1s8b0n0
- name: node03
  nid: 3
  xname: x1000c1s8b0n1
";

#[test]
fn ochami_file_is_read() {
    let imported = good(OCHAMI);
    assert_eq!(imported.warnings, []);
    let [first, second, _] = imported.nodes.as_slice() else { panic!("three nodes") };
    assert_eq!(first.external_id, "x1000c1s7b0n0");
    assert_eq!(first.name.as_ref().unwrap().as_str(), "node01");
    let kinds: Vec<_> = first.spec.interfaces.iter().map(|i| i.kind).collect();
    assert_eq!(kinds, [InterfaceKind::Other, InterfaceKind::Other, InterfaceKind::Bmc]);
    assert_eq!(first.spec.interfaces[1].addresses[0].to_string(), "fd00::7/128");
    assert_eq!(first.spec.interfaces[0].network.as_ref().unwrap().as_str(), "internal");
    assert_eq!(first.spec.groups.len(), 2);
    assert_eq!(imported.groups.len(), 2);
    // A BMC of two nodes is an interface of neither.
    assert!(second.spec.interfaces.is_empty());
    assert_eq!(second.spec.bmc.as_ref().unwrap().r#ref, "x1000c1s8b0");
}

#[test]
fn older_ochami_and_json_files_are_read() {
    let imported = good(
        r#"{"nodes": [{"name": "a", "nid": 1, "xname": "x1c0s0b0n0", "group": "compute",
            "bmc_mac": "02:00:00:00:00:99", "bmc_ip": "10.9.0.1",
            "interfaces": [{"mac_addr": "02:00:00:00:00:01",
                            "ip_addrs": [{"network": "mgmt", "ip_addr": "10.0.0.1"}]}]}]}"#,
    );
    let spec = &imported.nodes[0].spec;
    assert_eq!(spec.interfaces.len(), 2);
    assert_eq!(spec.groups.len(), 1);
    assert_eq!(spec.interfaces[0].network.as_ref().unwrap().as_str(), "mgmt");
    assert_eq!(bad("nodes: []\n").kind(), FailureKind::Empty);
    assert_eq!(bad("bmcs: []\n").kind(), FailureKind::Broken);
}

#[test]
fn file_source_refuses_oversized_files() {
    let error = read("file", &vec![b' '; yaml::MAX_BYTES + 1]).unwrap_err();
    assert_eq!(error.kind(), FailureKind::Broken);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read("file", &bytes);
    }

    /// Valid files with a bite taken out somewhere, or something put in.
    #[test]
    fn damaged_copies_never_panic(
        which in 0usize..2, from in 0usize..2000, len in 0usize..60, put in "[ -~\n]{0,12}",
    ) {
        let text = [BSS, OCHAMI][which];
        let from = from.min(text.len());
        let to = (from + len).min(text.len());
        let damaged = format!("{}{put}{}", &text[..from], &text[to..]);
        if let Ok(imported) = read("file", damaged.as_bytes()) {
            prop_assert!(!imported.nodes.is_empty());
            for node in imported.nodes {
                prop_assert!(node.spec.check().is_empty());
            }
        }
    }
}
