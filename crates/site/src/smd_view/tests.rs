use std::collections::BTreeSet;

use hoist_model::{GroupSpec, NodeId, NodeSpec, PartitionSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Resource;
use crate::roster::Incarnation;
use crate::source::smd::{JoinOptions, join, wire};

fn node(id: u128, name: &str, spec: Value) -> Resource {
    let spec: NodeSpec = serde_json::from_value(spec).unwrap();
    Resource::Node(Arc::new(Node {
        id: NodeId::from_bits(id),
        name: name.parse().unwrap(),
        spec,
        protection: None,
        maintenance: None,
        provenance: None,
        generation: 0,
        revision: 1,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
    }))
}

fn group(partition: &str, name: &str, spec: Value) -> Resource {
    let spec: GroupSpec = serde_json::from_value(spec).unwrap();
    let partition = partition.parse().unwrap();
    let name = name.parse().unwrap();
    Resource::Group(Arc::new(hoist_model::Group { partition, name, spec, revision: 1 }))
}

fn partition(name: &str, description: &str) -> Resource {
    let spec = PartitionSpec { description: description.to_owned(), ..PartitionSpec::default() };
    let name = name.parse().unwrap();
    Resource::Partition(Arc::new(hoist_model::Partition { name, spec, revision: 1 }))
}

/// A full node, a disabled one, a virtual one, and one that has only a name.
fn site() -> Roster {
    let full = json!({
        "xname": "x1000c0s0b0n0", "nid": 7, "partition": "p1", "groups": ["compute", "rack-a"],
        "arch": "x86_64", "role": "compute", "subrole": "Worker",
        "system": {"uuid": "66666666-0042-3510-8057-b4c04f4a5931"},
        "interfaces": [
            {"name": "eth0", "mac": "02:00:00:00:00:01", "addresses": ["10.1.0.7/32"], "network": "nmn"},
            {"name": "eth1", "mac": "02:00:00:00:00:02", "addresses": ["10.2.0.7/32", "fd00::7/128"]},
            {"name": "ipmi", "kind": "bmc", "mac": "02:00:00:00:00:03", "addresses": ["10.9.0.7/32"]},
        ],
    });
    let disabled = json!({
        "xname": "x1000c0s1b0n0", "nid": 8, "partition": "p1", "groups": ["compute"],
        "enabled": false, "arch": "aarch64", "role": "Login",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:04"}],
    });
    let virtual_node = json!({
        "xname": "x1000c0s0b0n0v1", "groups": ["compute"],
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:06"}],
    });
    let unplaced = json!({
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:05", "addresses": ["10.1.0.9/32"]}],
    });
    let resources = [
        partition("default", "everything else"),
        partition("p1", "production"),
        group("p1", "compute", json!({"description": "works", "exclusive_set": "use"})),
        group("default", "compute", json!({})),
        group("p1", "rack-a", json!({})),
        group("p1", "empty", json!({})),
        group("p1", "odd", json!({"selector": "nid:7"})),
        node(1, "n7", full),
        node(2, "n8", disabled),
        node(3, "v1", virtual_node),
        node(4, "spare", unplaced),
    ];
    Roster::build(Incarnation::new("a"), 1, 0, resources.into_iter())
}

fn on_or_off(node: &Node) -> Power {
    if node.spec.enabled { Power::On } else { Power::Off }
}

fn components(roster: &Roster, query: Query<'_>) -> Result<Value, FilterError> {
    let filter = NodeFilter::parse(roster, query.iter().copied())?;
    let list = |nodes: Vec<&Arc<Node>>| {
        let mut found = Vec::new();
        let mut bmcs = BTreeSet::new();
        for node in nodes {
            found.extend(filter.component(roster, node, on_or_off(node)));
            let bmc = filter.bmc(node).filter(|(bmc, _)| bmcs.insert(*bmc));
            found.extend(bmc.map(|(_, component)| component));
        }
        serde_json::to_value(found).unwrap()
    };
    Ok(looked_up_or_walked(roster, filter.named(roster), list))
}

/// A lookup must find the same nodes as a walk over all nodes, in the same order.
fn looked_up_or_walked(
    roster: &Roster,
    named: Option<Vec<&Arc<Node>>>,
    list: impl Fn(Vec<&Arc<Node>>) -> Value,
) -> Value {
    let walked = list(roster.nodes().collect());
    if let Some(named) = named {
        assert_eq!(list(named), walked);
    }
    walked
}

fn interfaces(roster: &Roster, query: Query<'_>) -> Result<Value, FilterError> {
    let filter = InterfaceFilter::parse(query.iter().copied())?;
    let list = |nodes: Vec<&Arc<Node>>| {
        let all = nodes.into_iter().flat_map(|node| {
            node.spec.interfaces.iter().map(|interface| ethernet_interface(roster, node, interface))
        });
        let found: Vec<_> = all.filter(|interface| filter.matches(interface)).collect();
        serde_json::to_value(found).unwrap()
    };
    Ok(looked_up_or_walked(roster, filter.named(roster), list))
}

type Query<'q> = &'q [(&'q str, &'q str)];

fn ids(found: &Value) -> Vec<&str> {
    found.as_array().unwrap().iter().map(|item| item["ID"].as_str().unwrap()).collect()
}

#[test]
fn components_omit_unknown_fields() {
    assert_eq!(
        components(&site(), &[]).unwrap(),
        json!([
            {"ID": "x1000c0s0b0n0", "Type": "Node", "State": "On", "Flag": "OK", "Enabled": true,
             "Role": "Compute", "SubRole": "Worker", "NID": 7, "Arch": "X86"},
            {"ID": "x1000c0s0b0", "Type": "NodeBMC", "State": "Unknown", "Flag": "OK",
             "Enabled": true},
            {"ID": "x1000c0s1b0n0", "Type": "Node", "State": "Off", "Flag": "OK", "Enabled": false,
             "Role": "Login", "NID": 8, "Arch": "ARM"},
            {"ID": "x1000c0s0b0n0v1", "Type": "VirtualNode", "State": "On", "Flag": "OK",
             "Enabled": true, "Arch": "UNKNOWN"},
            {"ID": "spare", "Type": "Node", "State": "On", "Flag": "OK", "Enabled": true,
             "Arch": "UNKNOWN"},
        ])
    );
}

#[test]
fn interfaces_belong_to_their_node_or_to_its_bmc() {
    let since = "1970-01-01T00:00:00Z";
    assert_eq!(
        interfaces(&site(), &[("ComponentID", "X1000c0s0b0n00"), ("ComponentID", "x1000c0s0b0")])
            .unwrap(),
        json!([
            {"ID": "020000000001", "Description": "eth0", "MACAddress": "02:00:00:00:00:01",
             "LastUpdate": since, "ComponentID": "x1000c0s0b0n0", "Type": "Node",
             "IPAddresses": [{"IPAddress": "10.1.0.7", "Network": "nmn"}]},
            {"ID": "020000000002", "Description": "eth1", "MACAddress": "02:00:00:00:00:02",
             "LastUpdate": since, "ComponentID": "x1000c0s0b0n0", "Type": "Node",
             "IPAddresses": [{"IPAddress": "10.2.0.7"}, {"IPAddress": "fd00::7"}]},
            {"ID": "020000000003", "Description": "ipmi", "MACAddress": "02:00:00:00:00:03",
             "LastUpdate": since, "ComponentID": "x1000c0s0b0", "Type": "NodeBMC",
             "IPAddresses": [{"IPAddress": "10.9.0.7"}]},
        ])
    );
    let bare = interfaces(&site(), &[("id", "020000000004")]).unwrap();
    assert_eq!(bare[0]["IPAddresses"], json!([]));
}

/// A client that joins both lists gives no lease to an interface without a component.
#[test]
fn every_listed_interface_has_its_component() {
    let site = site();
    let components = components(&site, &[]).unwrap();
    let components: BTreeSet<_> = ids(&components).into_iter().collect();
    for interface in interfaces(&site, &[]).unwrap().as_array().unwrap() {
        let owner = interface["ComponentID"].as_str().unwrap();
        assert!(components.contains(owner), "{owner} of {interface}");
    }
    let bmcs = [("type", "NodeBMC")];
    assert_eq!(ids(&self::components(&site, &bmcs).unwrap()), ["x1000c0s0b0"]);
    let both = [("id", "X1000c0s0b0"), ("id", "x1000c0s1b0n0")];
    assert_eq!(ids(&self::components(&site, &both).unwrap()), ["x1000c0s0b0", "x1000c0s1b0n0"]);
    assert_eq!(
        ids(&self::components(&site, &[("type", "NodeBMC"), ("partition", "p1")]).unwrap()),
        [""; 0]
    );
    assert_eq!(find_bmc(&site, "x1000c0s0b0", |_| true).unwrap().r#type, "NodeBMC");
    assert_eq!(find_bmc(&site, "x1000c0s0b0", |_| false), None);
    assert_eq!(find_bmc(&site, "x1000c0s1b0", |_| true), None, "it has no interface here");
}

#[test]
fn network_has_the_spelling_of_smd() {
    let spec = json!({"smd_name": "NMN_River"});
    let network = hoist_model::Network {
        name: "nmn".parse().unwrap(),
        spec: serde_json::from_value(spec).unwrap(),
        revision: 1,
    };
    let nic = json!({"name": "eth0", "mac": "02:00:00:00:00:01", "addresses": ["10.1.0.7/32"], "network": "nmn"});
    let resources =
        [Resource::Network(Arc::new(network)), node(1, "n7", json!({"interfaces": [nic]}))];
    let site = Roster::build(Incarnation::new("a"), 1, 0, resources.into_iter());
    for query in ["nmn", "NMN"] {
        let shown = interfaces(&site, &[("Network", query)]).unwrap();
        assert_eq!(shown[0]["IPAddresses"][0]["Network"], "NMN_River", "{query}");
    }
}

#[test]
fn endpoints_list_system_interfaces_without_the_bmc() {
    let site = site();
    let shown = component_endpoint(&site, find(&site, "x1000c0s0b0n0").unwrap());
    assert_eq!(
        serde_json::to_value(shown).unwrap(),
        json!({
            "ID": "x1000c0s0b0n0", "Type": "Node", "RedfishType": "ComputerSystem",
            "RedfishSubtype": "Physical", "MACAddr": "02:00:00:00:00:01",
            "UUID": "66666666-0042-3510-8057-b4c04f4a5931", "OdataID": "",
            "RedfishEndpointID": "x1000c0s0b0", "Enabled": true, "RedfishEndpointFQDN": "",
            "RedfishURL": "", "ComponentEndpointType": "ComponentEndpointComputerSystem",
            "RedfishSystemInfo": {"EthernetNICInfo": [
                {"RedfishId": "eth0", "@odata.id": "", "Description": "eth0",
                 "MACAddress": "02:00:00:00:00:01", "PermanentMACAddress": "02:00:00:00:00:01"},
                {"RedfishId": "eth1", "@odata.id": "", "Description": "eth1",
                 "MACAddress": "02:00:00:00:00:02", "PermanentMACAddress": "02:00:00:00:00:02"},
            ]},
        })
    );
}

#[test]
fn bmc_is_shown_once_with_its_known_fields() {
    assert_eq!(
        serde_json::to_value(redfish_endpoints(&site(), |_| true)).unwrap(),
        json!([
            {"ID": "x1000c0s0b0", "Type": "NodeBMC", "Hostname": "x1000c0s0b0", "Domain": "",
             "FQDN": "x1000c0s0b0", "Enabled": true, "MACAddr": "02:00:00:00:00:03",
             "IPAddress": "10.9.0.7"},
            {"ID": "x1000c0s1b0", "Type": "NodeBMC", "Hostname": "x1000c0s1b0", "Domain": "",
             "FQDN": "x1000c0s1b0", "Enabled": true},
        ])
    );
}

#[test]
fn view_joins_groups_and_hides_the_default_partition() {
    let site = site();
    let seen = |_: &Node| true;
    assert_eq!(
        serde_json::to_value(groups(&site, seen)).unwrap(),
        json!([
            {"label": "compute", "description": "works", "exclusiveGroup": "use",
             "members": {"ids": ["x1000c0s0b0n0", "x1000c0s1b0n0", "x1000c0s0b0n0v1"]}},
            {"label": "empty", "description": "", "members": {"ids": []}},
            {"label": "odd", "description": "", "members": {"ids": ["x1000c0s0b0n0"]}},
            {"label": "rack-a", "description": "", "members": {"ids": ["x1000c0s0b0n0"]}},
        ])
    );
    assert_eq!(
        serde_json::to_value(partitions(&site, seen)).unwrap(),
        json!([{"name": "p1", "description": "production",
                "members": {"ids": ["x1000c0s0b0n0", "x1000c0s1b0n0"]}}])
    );
    let memberships: Vec<_> = site.nodes().map(|node| membership(&site, node)).collect();
    assert_eq!(
        serde_json::to_value(memberships).unwrap(),
        json!([
            {"id": "x1000c0s0b0n0", "groupLabels": ["compute", "odd", "rack-a"],
             "partitionName": "p1"},
            {"id": "x1000c0s1b0n0", "groupLabels": ["compute"], "partitionName": "p1"},
            {"id": "x1000c0s0b0n0v1", "groupLabels": ["compute"], "partitionName": ""},
            {"id": "spare", "groupLabels": [], "partitionName": ""},
        ])
    );
    let hidden = groups(&site, |_: &Node| false);
    assert!(hidden.iter().all(|group| group.members.ids.is_empty()), "{hidden:?}");
}

#[test]
fn view_finds_a_node_only_by_its_shown_id() {
    let site = site();
    for node in site.nodes() {
        assert_eq!(find(&site, &id_of(node)).unwrap().id, node.id);
    }
    assert!(find(&site, " X1000C0S0B0N00 ").is_some());
    assert!(find(&site, "SPARE").is_some());
    assert!(find(&site, "n7").is_none());
    assert!(find(&site, &"x".repeat(100_000)).is_none());
    let (node, interface) = find_interface(&site, "020000000003").unwrap();
    assert_eq!((node.name.as_str(), interface.name.as_str()), ("n7", "ipmi"));
    assert!(find_interface(&site, "0200000000").is_none());
}

#[test]
fn component_filters_accept_every_word_of_smd() {
    let site = site();
    let a = "x1000c0s0b0n0";
    let b = "x1000c0s1b0n0";
    let v = "x1000c0s0b0n0v1";
    let s = "spare";
    let bmc = "x1000c0s0b0";
    let table: &[(Query<'_>, &[&str])] = &[
        (&[("id", "X1000C0S0B0N0")], &[a]),
        (&[("id", a), ("id", s)], &[a, s]),
        (&[("id", "!spare")], &[a, bmc, b, v]),
        (&[("nid", "7"), ("nid", "8")], &[a, b]),
        (&[("nid", "!7")], &[bmc, b, v, s]),
        (&[("nid_start", "8")], &[b]),
        (&[("nid_start", "1"), ("nid_end", "7"), ("nid_start", "9"), ("nid_end", "9")], &[a]),
        (&[("type", "node")], &[a, b, s]),
        (&[("type", "Node"), ("type", "VirtualNode")], &[a, b, v, s]),
        (&[("type", "!node")], &[bmc, v]),
        (&[("type", "NodeBMC")], &[bmc]),
        (&[("state", "off")], &[b]),
        (&[("state", "Ready")], &[]),
        (&[("flag", "ok")], &[a, bmc, b, v, s]),
        (&[("enabled", "false")], &[b]),
        (&[("role", "COMPUTE")], &[a]),
        (&[("role", "login")], &[b]),
        (&[("role", "!compute")], &[bmc, b, v, s]),
        (&[("subrole", "worker"), ("state", "On")], &[a]),
        (&[("arch", "arm"), ("arch", "x86")], &[a, b]),
        (&[("locked", "true")], &[]),
        (&[("reservation_disabled", "false")], &[a, bmc, b, v, s]),
        (&[("softwarestatus", "AdminStatus")], &[]),
        (&[("class", "!river")], &[a, bmc, b, v, s]),
        (&[("group", "odd")], &[a]),
        (&[("group", "nowhere")], &[]),
        (&[("group", "NULL")], &[bmc, s]),
        (&[("partition", "p1"), ("group", "compute")], &[a, b]),
        (&[("partition", "null")], &[bmc, v, s]),
        (&[("kettle", "x"), ("ipaddr", "10.1.0.7")], &[a, bmc, b, v, s]),
    ];
    for (query, expected) in table {
        let found = components(&site, query).unwrap();
        assert_eq!(ids(&found), *expected, "{query:?}");
    }
    for (column, members) in [
        ("stateonly", vec!["Flag", "ID", "State", "Type"]),
        ("flagonly", vec!["Flag", "ID", "Type"]),
        ("roleonly", vec!["ID", "Role", "SubRole", "Type"]),
        ("nidonly", vec!["ID", "NID", "Type"]),
    ] {
        let found = components(&site, &[(column, "true"), ("nid", "7")]).unwrap();
        let shown: BTreeSet<_> = found[0].as_object().unwrap().keys().cloned().collect();
        assert_eq!(shown, members.into_iter().map(str::to_owned).collect(), "{column}");
    }
}

#[test]
fn interface_filters_accept_every_word_of_smd() {
    let site = site();
    let table: &[(Query<'_>, usize)] = &[
        (&[], 6),
        (&[("MACAddress", "02:00:00:00:00:01"), ("macaddress", "02-00-00-00-00-04")], 2),
        (&[("IPAddress", "fd00::7")], 1),
        (&[("ipaddress", "10.1.0.7"), ("Network", "NMN")], 1),
        (&[("IPAddress", "nonsense")], 0),
        (&[("Network", "hsn")], 0),
        (&[("IPAddress", "10.9.0.7"), ("IPAddress", "10.1.0.7")], 2),
        (&[("id", "020000000006"), ("id", "020000000001"), ("Type", "VirtualNode")], 1),
        (&[("ComponentID", "spare")], 1),
        (&[("ComponentID", "X1000C0S00B0N0"), ("ComponentID", "spare")], 3),
        (&[("ComponentID", "x1000c0s0b0")], 1),
        (&[("ComponentID", "")], 0),
        (&[("Type", "Node")], 4),
        (&[("type", "nodebmc")], 1),
        (&[("OlderThan", "1970-01-01T00:00:01Z")], 6),
        (&[("NewerThan", "1970-01-01T00:00:00Z")], 0),
        (&[("ipaddr", "10.1.0.7")], 6),
    ];
    for (query, expected) in table {
        assert_eq!(ids(&interfaces(&site, query).unwrap()).len(), *expected, "{query:?}");
    }
}

#[test]
fn filter_with_names_uses_lookups() {
    let site = site();
    let nodes = |query: Query<'_>| {
        let filter = NodeFilter::parse(&site, query.iter().copied()).unwrap();
        filter.named(&site).map(|found| found.len())
    };
    assert_eq!(nodes(&[("id", "x1000c0s0b0n0"), ("id", "spare"), ("role", "compute")]), Some(2));
    assert_eq!(nodes(&[("nid", "8"), ("nid", "9"), ("nid", "0")]), Some(1));
    assert_eq!(nodes(&[("id", "!x1000c0s0b0n0")]), None);
    assert_eq!(nodes(&[("role", "compute")]), None);
    let interfaces = |query: Query<'_>| {
        let filter = InterfaceFilter::parse(query.iter().copied()).unwrap();
        filter.named(&site).map(|found| found.len())
    };
    assert_eq!(interfaces(&[("MACAddress", "02:00:00:00:00:01"), ("Type", "Node")]), Some(1));
    assert_eq!(interfaces(&[("IPAddress", "10.1.0.9"), ("IPAddress", "x")]), Some(1));
    assert_eq!(interfaces(&[("ComponentID", "x1000c0s1b0n0")]), Some(1));
    assert_eq!(interfaces(&[("ComponentID", "x1000c0s0b0")]), None);
    assert_eq!(interfaces(&[("Network", "nmn")]), None);
}

#[test]
fn bmc_filters_accept_every_word_of_smd() {
    let site = site();
    let both = ["x1000c0s0b0", "x1000c0s1b0"];
    let table: &[(Query<'_>, &[&str])] = &[
        (&[], &both),
        (&[("id", "X1000C0S0B0")], &both[..1]),
        (&[("id", "!x1000c0s0b0")], &both[1..]),
        (&[("type", "nodebmc")], &both),
        (&[("type", "ChassisBMC")], &[]),
        (&[("fqdn", "x1000c0s1b0"), ("fqdn", "other")], &both[1..]),
        (&[("macaddr", "0200.0000.0003")], &both[..1]),
        (&[("macaddr", "nonsense")], &[]),
        (&[("ipaddress", "10.9.0.7")], &both[..1]),
        (&[("uuid", "66666666-0042-3510-8057-b4c04f4a5931")], &[]),
        (&[("lastdiscoverystatus", "DiscoverOK")], &[]),
        (&[("kettle", "x")], &both),
    ];
    for (query, expected) in table {
        let filter = EndpointFilter::parse(query.iter().copied()).unwrap();
        let mut found = redfish_endpoints(&site, |_| true);
        found.retain(|endpoint| filter.matches(endpoint));
        let found: Vec<_> = found.iter().map(|endpoint| endpoint.id.as_str()).collect();
        assert_eq!(found, *expected, "{query:?}");
    }
    assert!(EndpointFilter::parse([("type", "kettle")]).is_err());
}

#[test]
fn unknown_filter_value_is_refused_with_the_known_ones() {
    let site = site();
    for (name, value) in [
        ("type", "kettle"),
        ("state", "!boiling"),
        ("flag", ""),
        ("role", "Kettle"),
        ("subrole", "Kettle"),
        ("arch", "riscv64"),
        ("class", "Valley"),
        ("enabled", "maybe"),
        ("locked", ""),
        ("nid", "-1"),
        ("nid_start", "x"),
        ("group", "a compute"),
        ("partition", "p 1"),
        ("stateonly", "perhaps"),
    ] {
        let error = components(&site, &[(name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{value}` is no value of `{name}`; ")), "{error}");
    }
    for name in ["group", "partition"] {
        let error = components(&site, &[(name, "p1"), (name, "p2")]).unwrap_err();
        assert_eq!(error, FilterError::Twice { name });
    }
    for (name, value) in [("type", "kettle"), ("OlderThan", "yesterday"), ("NewerThan", "")] {
        assert!(interfaces(&site, &[(name, value)]).is_err(), "{name}");
    }
    for name in ["group", "partition", "nid_start", "nid_end", "StateOnly"] {
        let error = components(&site, &[(name, "!1")]).unwrap_err().to_string();
        assert!(error.starts_with("`!` does not negate"), "{error}");
    }
    for name in ["id", "MACAddress", "IPAddress", "Network", "ComponentID", "Type", "OlderThan"] {
        let error = interfaces(&site, &[(name, "!spare")]).unwrap_err().to_string();
        assert!(error.starts_with("`!` does not negate"), "{error}");
    }
    let long = "x".repeat(10_000);
    assert!(components(&site, &[("type", &long)]).unwrap_err().to_string().len() < 200);
}

#[test]
fn shown_words_are_all_listed() {
    let listed = |name: &str| LISTS.iter().find(|(list, _)| *list == name).unwrap().1;
    for component in components(&site(), &[]).unwrap().as_array().unwrap() {
        for name in ["Type", "State", "Flag", "Arch"] {
            let word = component.get(name).map(|word| word.as_str().unwrap());
            assert!(word.is_none_or(|word| listed(name).contains(&word)), "{name} {word:?}");
        }
    }
}

/// Through the eyes of the source that reads an SMD.
fn read_back(site: &Roster) -> crate::source::ImportedSet {
    fn through<T: serde::de::DeserializeOwned>(value: impl Serialize) -> T {
        serde_json::from_value(serde_json::to_value(value).unwrap()).unwrap()
    }
    let components: Vec<wire::Component> =
        site.nodes().map(|node| through(component(node, Power::On))).collect();
    let interfaces = site.nodes().flat_map(|node| {
        let nics = node.spec.interfaces.iter();
        nics.map(|nic| through(ethernet_interface(site, node, nic))).collect::<Vec<_>>()
    });
    let memberships = site.nodes().map(|node| through(membership(site, node))).collect();
    let groups = groups(site, |_| true).iter().map(through).collect();
    let options = JoinOptions::default();
    join(components, interfaces.collect(), memberships, groups, &options)
}

#[test]
fn source_reads_the_site_that_the_view_shows() {
    let site = site();
    let imported = read_back(&site);
    assert!(imported.held.is_empty());
    assert_eq!(imported.nodes.len(), site.len());
    for back in &imported.nodes {
        let node = find(&site, &back.external_id).unwrap();
        let spec = &back.spec;
        let before = &node.spec;
        assert_eq!((spec.xname, spec.nid, spec.arch), (before.xname, before.nid, before.arch));
        assert_eq!((&spec.partition, spec.enabled), (&before.partition, before.enabled));
        let groups: Vec<_> = spec.groups.iter().cloned().collect();
        assert_eq!(groups, site.groups_of(node));
        let same = |a: &Option<hoist_model::Role>, b: &Option<hoist_model::Role>| {
            a.as_ref().map(|role| role.to_lowercase()) == b.as_ref().map(|role| role.to_lowercase())
        };
        assert!(same(&spec.role, &before.role) && same(&spec.subrole, &before.subrole));
        let known = |spec: &NodeSpec| -> Vec<_> {
            let nics = spec.interfaces.iter().filter(|nic| nic.kind != InterfaceKind::Bmc);
            nics.map(|nic| (nic.mac, nic.addresses.clone(), nic.network.clone())).collect()
        };
        assert_eq!(known(spec), known(before));
    }
    let partitions: Vec<_> = imported.partitions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(partitions, ["default", "p1"]);
}

proptest! {
    #[test]
    fn no_query_makes_a_filter_panic(name in "[a-zA-Z_]{0,20}", value in ".{0,40}") {
        let site = site();
        let _ = components(&site, &[(&name, &value)]);
        let _ = interfaces(&site, &[(&name, &value)]);
        for known in ["id", "nid", "group", "partition", "type", "OlderThan", "IPAddress"] {
            let _ = components(&site, &[(known, &value)]);
            let _ = interfaces(&site, &[(known, &value)]);
        }
        let _ = (find(&site, &value), find_interface(&site, &value));
    }
}
