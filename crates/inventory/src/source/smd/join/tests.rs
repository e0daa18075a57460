use hoist_model::{Arch, Nid};
use hoist_testkit::smd::SmdSet;
use serde_json::{Value, json};

use super::*;
use crate::source::smd::wire::Components;

fn run(set: &SmdSet, options: &JoinOptions) -> (Imported, usize) {
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

fn joined(set: &SmdSet) -> Imported {
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

fn kinds(imported: &Imported) -> Vec<WarningKind> {
    imported.warnings.iter().map(|warning| warning.kind).collect()
}

#[test]
fn a_node_is_put_together_from_its_parts() {
    let mut set = SmdSet::synthetic(6);
    set.component(5)["State"] = "Off".into();
    set.component(5)["Arch"] = "ARM".into();
    set.component(5)["Enabled"] = false.into();
    set.component(5)["SubRole"] = "Worker".into();
    let imported = joined(&set);
    assert_eq!(imported.warnings, []);
    assert_eq!(imported.nodes.len(), 6);
    let ImportedNode { external_id, name, spec, state } = &imported.nodes[1];
    assert_eq!((external_id.as_str(), name), ("x1000c0s0b0n1", &None));
    assert_eq!(spec.nid, Nid::new(2));
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
fn the_order_of_the_answer_does_not_matter() {
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
    // The empty slot's interfaces are nobody's, and that is all there is to say.
    assert_eq!(kinds(&imported), [WarningKind::Orphan]);
}

#[test]
fn interfaces_filed_under_the_bmc_are_adopted_when_told_and_only_by_the_one_node() {
    let mut set = SmdSet::default();
    for (node, slot) in [(0, 1), (0, 2), (1, 2)] {
        let id = format!("x1c0s{slot}b0n{node}");
        set.components.push(json!({"ID": id, "Type": "Node"}));
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
fn what_collides_stays_with_the_first_by_place() {
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
    assert_eq!(imported.nodes[0].spec.nid, Nid::new(5));
    assert_eq!(imported.nodes[0].spec.interfaces.len(), 2);
    assert_eq!(imported.nodes[1].spec.nid, None);
    assert_eq!(imported.nodes[1].spec.interfaces.len(), 1);
    assert!(imported.nodes[1].spec.interfaces[0].addresses.is_empty());
    assert_eq!(kinds(&imported), [WarningKind::Collision; 3]);
}

#[test]
fn a_node_without_a_valid_xname_needs_an_interface() {
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
fn values_that_make_no_sense_are_left_out_with_a_word() {
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
fn other_types_and_exclusive_sets_are_seen_to_here_too() {
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
fn the_join_touches_every_record_a_fixed_number_of_times() {
    let (small, few) = run(&SmdSet::synthetic(5_000), &JoinOptions::default());
    let (large, many) = run(&SmdSet::synthetic(20_000), &JoinOptions::default());
    assert_eq!((small.nodes.len(), large.nodes.len()), (5_000, 20_000));
    assert!(large.warnings.is_empty());
    assert!(many <= 4 * few, "{many} is more than four times {few}");
    // Two interfaces, a membership, a component, and a few walks over the nodes.
    assert!(many <= 12 * 20_000, "{many}");
}
