use hoist_model::{Arch, Nid};
use hoist_testkit::smd::SmdSet;
use serde_json::{Value, json};

use super::*;
use crate::source::smd::wire::Components;

fn run(set: &SmdSet, options: &JoinOptions) -> (ImportedSet, usize) {
    let [components, interfaces, memberships, groups] = set.bodies();
    let components: Components = serde_json::from_str(&components).unwrap();
    let mut join = Join::new(
        serde_json::from_str(&interfaces).unwrap(),
        serde_json::from_str(&memberships).unwrap(),
        serde_json::from_str(&groups).unwrap(),
        options,
    );
    let imported = join.run(components.components);
    (imported, join.visits)
}

fn joined(set: &SmdSet) -> ImportedSet {
    run(set, &JoinOptions::default()).0
}

fn nic(component: &str, mac: &str, ip: &str) -> Value {
    let addresses: Vec<_> = Some(ip)
        .filter(|ip| !ip.is_empty())
        .map(|ip| json!({"IPAddress": ip}))
        .into_iter()
        .collect();
    json!({"ID": mac, "MACAddress": mac, "ComponentID": component, "IPAddresses": addresses})
}

fn kinds(imported: &ImportedSet) -> Vec<WarningKind> {
    imported.warnings.iter().map(|warning| warning.kind).collect()
}

#[test]
fn join_builds_a_node_from_its_parts() {
    let mut set = SmdSet::synthetic(6);
    set.component(5)["State"] = "Off".into();
    set.component(5)["Arch"] = "ARM".into();
    set.component(5)["Enabled"] = false.into();
    set.component(5)["SubRole"] = "Worker".into();
    let imported = joined(&set);
    assert_eq!(kinds(&imported), [WarningKind::NoPartition]);
    assert_eq!(imported.nodes.len(), 6);
    let ImportedNode { external_id, name, spec, state } = &imported.nodes[1];
    assert_eq!((external_id.as_str(), name), ("x1000c0s0b0n1", &None));
    assert_eq!(spec.nid, Some(Nid::new(2)));
    assert_eq!(spec.arch, Arch::X86_64);
    assert_eq!(spec.partition.as_str(), "p1");
    let groups: Vec<_> = spec.groups.iter().map(GroupName::as_str).collect();
    assert_eq!(groups, ["compute", "rack-b"]);
    assert_eq!(spec.bmc.as_ref().unwrap().r#ref, "x1000c0s0b0");
    let [nmn, hsn] = spec.interfaces.as_slice() else { panic!("two interfaces") };
    assert_eq!(nmn.name.as_str(), "enx020000000001");
    assert_eq!(nmn.addresses[0].to_string(), "10.0.0.1/32");
    assert_eq!(nmn.network.as_ref().unwrap().as_str(), "nmn");
    assert_eq!(hsn.kind, InterfaceKind::Hsn);
    assert_eq!(state.as_ref().unwrap().word, "Ready");
    // The fifth is in no partition.
    let spec = &imported.nodes[5].spec;
    assert_eq!(spec.partition, Name::default_partition());
    assert_eq!((spec.arch, spec.enabled), (Arch::Aarch64, false));
    assert!(spec.subrole.as_ref().unwrap().is("worker"));
    let groups: Vec<_> = imported.groups.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(
        groups,
        [
            "default/compute",
            "default/rack-a",
            "default/rack-b",
            "p1/compute",
            "p1/login",
            "p1/rack-a",
            "p1/rack-b"
        ]
    );
    assert_eq!(imported.groups[0].1.exclusive_set.as_ref().unwrap().as_str(), "kind");
    assert_eq!(imported.partitions.len(), 2);
    assert_eq!(imported.networks.len(), 2);
    assert!(imported.nodes.iter().all(|node| node.spec.check().is_empty()));
}

#[test]
fn join_ignores_the_order_of_the_answer() {
    let set = SmdSet::synthetic(50);
    let mut turned = set.clone();
    for list in [&mut turned.components, &mut turned.interfaces, &mut turned.memberships] {
        list.reverse();
    }
    assert_eq!(joined(&set), joined(&turned));
}

#[test]
fn empty_slots_and_placeholders_are_skipped() {
    let mut set = SmdSet::synthetic(2);
    set.component(1)["State"] = "Empty".into();
    for (i, mac) in ["", "not available", "ff:ff:ff:ff:ff:ff", "Not Available"].iter().enumerate() {
        set.interfaces.push(nic("x1000c0s0b0n0", mac, &format!("10.9.0.{i}")));
    }
    let imported = joined(&set);
    assert_eq!(imported.nodes.len(), 1);
    assert_eq!(imported.nodes[0].spec.interfaces.len(), 2);
    // The empty slot's interfaces belong to no node.
    assert_eq!(kinds(&imported), [WarningKind::Orphan, WarningKind::PlaceholderMac]);
}

#[test]
fn misfiled_interfaces_are_adopted_only_when_unambiguous() {
    let mut set = SmdSet::default();
    for (node, slot) in [(0, 1), (0, 2), (1, 2)] {
        let id = format!("x1c0s{slot}b0n{node}");
        set.components.push(json!({"ID": id, "Type": "Node", "NID": 10 * slot + node}));
        set.memberships.push(json!({"id": id}));
    }
    set.interfaces.push(nic("x1c0s1b0", "02:00:00:00:00:01", "10.0.0.1"));
    set.interfaces.push(nic("x1c0s2b0", "02:00:00:00:00:02", "10.0.0.2"));
    let off = joined(&set);
    assert!(off.nodes.iter().all(|node| node.spec.interfaces.is_empty()));
    assert_eq!(kinds(&off), [WarningKind::MisfiledNic; 3]);
    let (on, _) = run(&set, &JoinOptions { repair_bmc_nics: true });
    let counts: Vec<_> = on.nodes.iter().map(|node| node.spec.interfaces.len()).collect();
    assert_eq!(counts, [1, 0, 0]);
    assert_eq!(kinds(&on), [WarningKind::MisfiledNic; 3]);
    // A node that has its own interface leaves the BMC its one.
    set.interfaces.push(nic("x1c0s1b0n0", "02:00:00:00:00:03", ""));
    let (on, _) = run(&set, &JoinOptions { repair_bmc_nics: true });
    assert_eq!(on.nodes[0].spec.interfaces.len(), 1);
    assert_eq!(on.nodes[0].spec.interfaces[0].mac.to_string(), "02:00:00:00:00:03");
}

#[test]
fn colliding_values_stay_with_the_first_xname() {
    let mut set = SmdSet::default();
    for id in ["x1c0s10b0n0", "x1c0s9b0n0"] {
        set.components.push(json!({"ID": id, "Type": "Node", "NID": 5}));
        set.memberships.push(json!({"id": id}));
    }
    set.interfaces.push(nic("x1c0s10b0n0", "02:00:00:00:00:01", "10.0.0.1"));
    set.interfaces.push(nic("x1c0s9b0n0", "02-00-00-00-00-01", ""));
    set.interfaces.push(nic("x1c0s9b0n0", "02:00:00:00:00:02", "10.0.0.1"));
    set.interfaces.push(nic("x1c0s10b0n0", "02:00:00:00:00:03", "10.0.0.1"));
    let imported = joined(&set);
    assert_eq!(imported.nodes[0].external_id, "x1c0s9b0n0");
    assert_eq!(imported.nodes[0].spec.nid, Some(Nid::new(5)));
    assert_eq!(imported.nodes[0].spec.interfaces.len(), 2);
    assert_eq!(imported.nodes[1].spec.nid, None);
    assert_eq!(imported.nodes[1].spec.interfaces.len(), 1);
    assert!(imported.nodes[1].spec.interfaces[0].addresses.is_empty());
    assert_eq!(kinds(&imported), [WarningKind::Collision; 3]);
}

#[test]
fn nid_zero_counts_if_one_node_has_it() {
    let nids = |zeros: u32| {
        let mut set = SmdSet::synthetic(3);
        (0..zeros).for_each(|at| set.component(at)["NID"] = 0.into());
        let imported = joined(&set);
        assert_eq!(kinds(&imported), []);
        imported.nodes.iter().map(|node| node.spec.nid.map(Nid::get)).collect::<Vec<_>>()
    };
    assert_eq!(nids(1), [Some(0), Some(2), Some(3)]);
    assert_eq!(nids(2), [None, None, Some(3)]);
}

#[test]
fn node_without_valid_xname_needs_an_interface() {
    let mut set = SmdSet::default();
    for id in ["x1c8s0b0n0", "node-7", "x1c0s0b0"] {
        set.components.push(json!({"ID": id, "Type": "Node", "NID": -1}));
        set.memberships.push(json!({"id": id}));
    }
    set.interfaces.push(nic("node-7", "02:00:00:00:00:07", "10.0.0.300"));
    let imported = joined(&set);
    assert_eq!(imported.nodes.len(), 1);
    assert_eq!(imported.nodes[0].external_id, "node-7");
    assert_eq!(imported.nodes[0].spec.xname, None);
    let held: Vec<_> = imported.held.iter().map(String::as_str).collect();
    assert_eq!(held, ["x1c0s0b0", "x1c8s0b0n0"]);
    assert!(kinds(&imported).contains(&WarningKind::Value));
}

#[test]
fn invalid_values_are_left_out_with_a_warning() {
    let mut set = SmdSet::synthetic(1);
    set.component(0)["NID"] = (1i64 << 40).into();
    set.component(0)["Role"] = "no role".into();
    set.component(0)["Arch"] = "PDP11".into();
    set.memberships[0]["groupLabels"] = json!(["ok", "-bad"]);
    set.interfaces.push(nic("x1000c0s0b0n0", "0g:00:00:00:00:01", ""));
    set.interfaces.push(nic("x7c0s0b0n0", "02:00:00:00:00:77", ""));
    let imported = joined(&set);
    assert_eq!(imported.nodes[0].spec.nid, None);
    assert_eq!(imported.nodes[0].spec.groups.len(), 1);
    assert_eq!(kinds(&imported).iter().filter(|k| **k == WarningKind::Value).count(), 5);
    assert_eq!(kinds(&imported).iter().filter(|k| **k == WarningKind::Orphan).count(), 1);
}

#[test]
fn join_handles_other_types_and_exclusive_sets() {
    let mut set = SmdSet::synthetic(1);
    // SMD ignores filters it does not understand.
    set.components.push(json!({"ID": "x1000c0s0b0", "Type": "NodeBMC", "State": "On"}));
    set.memberships[0]["groupLabels"] = json!(["login", "compute"]);
    let imported = joined(&set);
    assert_eq!(imported.nodes.len(), 1);
    let groups: Vec<_> = imported.nodes[0].spec.groups.iter().map(GroupName::as_str).collect();
    assert_eq!(groups, ["compute"]);
    assert_eq!(kinds(&imported), [WarningKind::Collision]);
}

/// Counted, not timed: four times the nodes are four times the work.
#[test]
fn join_is_linear_in_its_input() {
    let (small, few) = run(&SmdSet::synthetic(5_000), &JoinOptions::default());
    let (large, many) = run(&SmdSet::synthetic(20_000), &JoinOptions::default());
    assert_eq!((small.nodes.len(), large.nodes.len()), (5_000, 20_000));
    assert_eq!(kinds(&large), [WarningKind::NoPartition], "one line, however many nodes");
    assert!(many <= 4 * few, "{many} is more than four times {few}");
    // Two interfaces, a membership, a component, and a few walks over the nodes.
    assert!(many <= 12 * 20_000, "{many}");
}

#[test]
fn common_gaps_are_one_warning_of_each_kind() {
    let mut set = SmdSet::synthetic(8);
    for n in 0..7 {
        set.component(n).as_object_mut().unwrap().remove("NID");
    }
    set.memberships[3]["partitionName"] = "".into();
    let placeholder = nic("x1000c0s0b0n0", "not available", "");
    let unowned = nic("", "02:00:00:00:99:99", "");
    set.interfaces.extend([placeholder.clone(), placeholder, unowned]);
    let imported = joined(&set);
    let told: Vec<_> = imported.warnings.iter().map(|w| (w.kind, w.message.as_str())).collect();
    assert_eq!(told.len(), 4, "{told:?}");
    let of = |kind| told.iter().find(|(one, _)| *one == kind).unwrap().1;
    assert!(of(WarningKind::PlaceholderMac).starts_with("2 interfaces"), "{told:?}");
    assert!(of(WarningKind::Orphan).contains("02:00:00:00:99:99"), "{told:?}");
    assert!(of(WarningKind::NoNid).starts_with("7 nodes have no NID: x"), "{told:?}");
    assert!(of(WarningKind::NoNid).ends_with(", …"), "only the first are named: {told:?}");
    assert!(of(WarningKind::NoPartition).starts_with("5 nodes"), "{told:?}");
}

#[test]
fn network_names_keep_their_spelling_for_the_way_back() {
    let mut set = SmdSet::synthetic(1);
    set.interfaces.push(json!({
        "ID": "0200000000aa", "MACAddress": "02:00:00:00:00:aa", "ComponentID": "x1000c0s0b0n0",
        "IPAddresses": [{"IPAddress": "10.9.0.1", "Network": "HMN_River"}],
    }));
    let imported = joined(&set);
    let network = imported.networks.iter().find(|(name, _)| name.as_str() == "hmn-river").unwrap();
    assert_eq!(network.1.smd_name.as_deref(), Some("HMN_River"));
    let nmn = imported.networks.iter().find(|(name, _)| name.as_str() == "nmn");
    assert!(nmn.is_none_or(|(_, spec)| spec.smd_name.as_deref().is_none_or(|name| name != "nmn")));
}
