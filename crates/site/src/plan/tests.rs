use std::sync::Arc;

use hoist_model::{BootState, document};
use jiff::Timestamp;

use super::*;
use crate::record::Resource;
use crate::roster::{Delta, Incarnation, Roster};

const SITE: &str = "
{api: hoist/v1, kind: Partition, name: p1}
---
{api: hoist/v1, kind: Network, name: nmn}
---
{api: hoist/v1, kind: Group, name: p1/compute}
---
{api: hoist/v1, kind: Group, name: p1/blue, spec: {exclusive_set: colour}}
---
{api: hoist/v1, kind: Group, name: p1/red, spec: {exclusive_set: colour}}
---
api: hoist/v1
kind: Node
name: a
spec:
  partition: p1
  nid: 1
  groups: [compute]
  interfaces:
  - {name: eth0, mac: 02:00:00:00:00:01, addresses: [10.0.0.1/24], network: nmn}
---
api: hoist/v1
kind: Node
name: b
spec:
  partition: p1
  nid: 2
  interfaces:
  - {name: eth0, mac: 02:00:00:00:00:02, addresses: [10.0.0.2/24], network: nmn}
";

fn plan(roster: &Roster, text: &str) -> Result<Plan, Vec<Refusal>> {
    let documents = document::read("test", text.as_bytes()).unwrap();
    let mut draft = Draft::new(roster, Timestamp::UNIX_EPOCH);
    let mut next = u128::from(roster.revision()) * 1000;
    draft.apply(documents, &mut || {
        next += 1;
        NodeId::from_bits(next)
    });
    draft.finish()
}

fn commit(roster: &Roster, plan: &Plan) -> Roster {
    let puts = plan.puts.clone();
    let deletes = plan.deletes.clone();
    roster.apply(Delta { revision: plan.base + 1, horizon: 0, puts, deletes })
}

fn site() -> Roster {
    let empty = Roster::empty(Incarnation::new("a"));
    commit(&empty, &plan(&empty, SITE).expect("the site is valid"))
}

fn refusals(text: &str) -> Vec<(Reason, String)> {
    let refusals = plan(&site(), text).expect_err(text);
    refusals.into_iter().map(|refusal| (refusal.reason, refusal.to_string())).collect()
}

fn node(name: &str, spec: &str) -> String {
    format!("{{api: hoist/v1, kind: Node, name: {name}, spec: {{{spec}}}}}")
}

#[test]
fn repeated_apply_changes_nothing() {
    let site = site();
    let again = plan(&site, SITE).unwrap();
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(again.count(SiteChange::Unchanged), 7);
    assert_eq!(again.affected, []);
}

#[test]
fn clashing_nodes_are_both_named() {
    for (spec, at) in [
        ("nid: 1", "nid"),
        ("interfaces: [{name: x, mac: 02-00-00-00-00-01}]", "interfaces[0].mac"),
        (
            "interfaces: [{name: x, mac: 02:00:00:00:00:09, addresses: [10.0.0.1/8], network: nmn}]",
            "interfaces[0].addresses",
        ),
    ] {
        let found = refusals(&node("c", spec));
        assert_eq!(found.len(), 1, "{spec}: {found:?}");
        assert_eq!(found[0].0, Reason::Clash);
        assert!(found[0].1.starts_with(&format!("Node c: {at}: ")), "{}", found[0].1);
        assert!(found[0].1.contains("node `a`"), "{}", found[0].1);
    }
    let twins = format!("{}\n---\n{}", node("c", "nid: 7"), node("d", "nid: 7"));
    assert_eq!(refusals(&twins).len(), 1, "inside of one change, too");
    let other_net = "interfaces: [{name: x, mac: 02:00:00:00:00:09, addresses: [10.0.0.1/8]}]";
    assert!(plan(&site(), &node("c", other_net)).is_ok(), "another network, another address");
}

#[test]
fn keys_can_be_exchanged_in_one_change() {
    let swap =
        SITE.replace("nid: 1", "nid: 99").replace("nid: 2", "nid: 1").replace("nid: 99", "nid: 2");
    let plan = plan(&site(), &swap).unwrap();
    assert_eq!(plan.count(SiteChange::Changed), 2);
}

#[test]
fn dangling_references_are_refused() {
    let found = refusals(&node("c", "partition: pp1"));
    assert!(found[0].1.contains("Partition `pp1` not found; did you mean `p1`?"), "{found:?}");
    let found = refusals(&node("c", "partition: p1, groups: [computer]"));
    assert!(found[0].1.contains("did you mean `compute`?"), "{found:?}");
    let found =
        refusals(&node("c", "interfaces: [{name: x, mac: 02:00:00:00:00:09, network: hsn}]"));
    assert!(found[0].1.contains("hoist network add hsn"), "{found:?}");
    let found = refusals(&node("c", "partition: p1, groups: [blue, red]"));
    assert_eq!(found[0].0, Reason::Clash);
}

#[test]
fn group_members_are_written_to_the_nodes() {
    let site = site();
    let text = "{api: hoist/v1, kind: Group, name: p1/compute, spec: {members: [b]}}";
    let plan = plan(&site, text).unwrap();
    let after = commit(&site, &plan);
    let members = after.members(&"p1/compute".parse().unwrap());
    assert_eq!(members.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(plan.affected.len(), 2, "one left, one came");
    let found = refusals("{api: hoist/v1, kind: Group, name: p1/compute, spec: {members: [zz]}}");
    assert_eq!(found[0].0, Reason::Missing);
}

#[test]
fn documents_in_use_and_protected_nodes_stay() {
    let site = site();
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.remove(Kind::Partition, "p1");
    draft.remove(Kind::Network, "nmn");
    draft.remove(Kind::Node, "nobody");
    let refused = draft.finish().unwrap_err();
    let mut reasons: Vec<_> = refused.iter().map(|r| (r.reason, r.subject_text())).collect();
    reasons.dedup();
    reasons[1..].sort_by_key(|(_, subject)| subject.clone());
    reasons.dedup();
    let expected = [
        (Reason::Missing, "Node nobody".to_owned()),
        (Reason::InUse, "Network nmn".to_owned()),
        (Reason::InUse, "Partition p1".to_owned()),
    ];
    assert_eq!(reasons, expected);

    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    let id = site.by_name("a").unwrap().id;
    draft.amend_node(id, |node| {
        node.protection =
            Some(Box::new(hoist_model::Protection { reason: None, since: Timestamp::UNIX_EPOCH }));
    });
    let protected = commit(&site, &draft.finish().unwrap());
    let mut draft = Draft::new(&protected, Timestamp::UNIX_EPOCH);
    draft.remove(Kind::Node, "a");
    assert_eq!(draft.finish().unwrap_err()[0].reason, Reason::Protected);
}

#[test]
fn renewed_node_is_affected_and_protected_node_is_not_renewed() {
    let site = site();
    let a = site.by_name("a").unwrap().id;
    let b = site.by_name("b").unwrap().id;
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.renew_node(a);
    let plan = draft.finish().unwrap();
    assert_eq!(plan.affected, [a]);
    let FieldChange { at, from, to } = &plan.items[0].fields[0];
    assert_eq!((at.as_str(), from, to), ("generation", &Some(0.into()), &Some(1.into())));
    let renewed = commit(&site, &plan);
    assert_eq!(renewed.by_id(a).unwrap().generation, 1);
    assert_eq!(renewed.by_id(b).unwrap().generation, 0);
    let mut draft = Draft::new(&renewed, Timestamp::UNIX_EPOCH);
    draft.amend_node(b, |node| {
        let since = Timestamp::UNIX_EPOCH;
        node.protection = Some(Box::new(hoist_model::Protection { reason: None, since }));
    });
    draft.renew_node(a);
    draft.renew_node(b);
    let refused = draft.finish().unwrap_err();
    assert_eq!((refused.len(), refused[0].reason), (1, Reason::Protected));
    assert!(refused[0].diagnostic.message.contains("renewed"), "{refused:?}");
}

#[test]
fn removed_node_leaves_a_tombstone_and_frees_its_keys() {
    let site = site();
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.remove(Kind::Node, "a");
    let plan = draft.finish().unwrap();
    assert_eq!(plan.affected.len(), 1);
    let after = commit(&site, &plan);
    assert_eq!(after.tombstones().count(), 1);
    let again = super::tests::plan(&after, &node("other", "nid: 1")).unwrap();
    assert_eq!(again.count(SiteChange::Created), 1);
}

fn node_with(name: &str, xname: &str, mac: Option<u8>) -> String {
    let interfaces = mac.map(|n| format!("[{{name: eth0, mac: 02:00:00:00:01:{n:02x}}}]"));
    let interfaces = interfaces.unwrap_or_else(|| "[]".to_owned());
    format!(
        "{{api: hoist/v1, kind: Node, name: {name}, \
         spec: {{xname: {xname}, interfaces: {interfaces}}}}}"
    )
}

fn installed(roster: &Roster, name: &str) -> bool {
    let id = roster.by_name(name).expect("a node").id;
    roster.boot_state(id).is_some_and(|state| state.installed.is_some() && state.was.is_none())
}

/// A site where a node was installed and removed.
fn left(xname: &str, mac: Option<u8>) -> Roster {
    let site = site();
    let site = commit(&site, &plan(&site, &node_with("old", xname, mac)).unwrap());
    let id = site.by_name("old").unwrap().id;
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.amend_boot_state(id, "test", |state| {
        state.installed = Some(Timestamp::UNIX_EPOCH);
        state.mode = Some(hoist_model::BootMode::Hold);
    });
    let site = commit(&site, &draft.finish().unwrap());
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.remove(Kind::Node, "old");
    commit(&site, &draft.finish().unwrap())
}

#[test]
fn returning_node_is_still_installed() {
    for (was, comes, expected) in [
        (("x1c0s0b0n0", Some(1)), ("x1c0s0b0n0", Some(1)), true),
        // The machine was moved, or something else is in its place.
        (("x1c0s0b0n0", Some(1)), ("x1c0s0b0n1", Some(1)), true),
        (("x1c0s0b0n0", Some(1)), ("x1c0s0b0n0", Some(2)), false),
        (("x1c0s0b0n0", None), ("x1c0s0b0n0", Some(2)), true),
        (("x1c0s0b0n0", Some(1)), ("x1c0s0b0n0", None), true),
        (("x1c0s0b0n0", None), ("x1c0s0b0n1", Some(2)), false),
    ] {
        let site = left(was.0, was.1);
        let site = commit(&site, &plan(&site, &node_with("new", comes.0, comes.1)).unwrap());
        assert_eq!(installed(&site, "new"), expected, "{was:?} {comes:?}");
        let id = site.by_name("new").unwrap().id;
        assert!(
            site.boot_state(id).is_none_or(|state| state.mode.is_none()),
            "that was said of it"
        );
        assert_eq!(site.boot_states().count(), 1, "it is remembered in one place");
    }
}

#[test]
fn renamed_node_in_one_change_is_still_installed() {
    let site = left("x1c0s0b0n0", Some(1));
    let site = commit(&site, &plan(&site, &node_with("one", "x1c0s0b0n0", Some(1))).unwrap());
    let mut draft = Draft::new(&site, Timestamp::UNIX_EPOCH);
    draft.remove(Kind::Node, "one");
    let documents = document::read("test", node_with("two", "x1c0s0b0n0", Some(1)).as_bytes());
    draft.apply(documents.unwrap(), &mut || NodeId::from_bits(77));
    let site = commit(&site, &draft.finish().unwrap());
    assert!(installed(&site, "two"));
    assert_eq!(site.boot_states().count(), 1);
}

#[test]
fn removed_nodes_beyond_the_limit_are_forgotten_oldest_first() {
    let site = left("x1c0s0b0n0", Some(1));
    let pattern = site.boot_states().next().unwrap().as_ref().clone();
    let since = |n: usize| Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(n as u64 + 1);
    let others = (1..returning_nodes::MAX_GONE).map(|n| {
        let was = hoist_model::RemovedMachine { xname: None, macs: Vec::new() };
        let node = NodeId::from_bits(1_000_000 + n as u128);
        let state = BootState { node, since: since(n), was: Some(was), ..pattern.clone() };
        Resource::BootState(Arc::new(state))
    });
    let puts = others.collect();
    let full = Delta { revision: site.revision() + 1, horizon: 0, puts, deletes: Vec::new() };
    let full = site.apply(full);
    assert_eq!(full.boot_states().count(), returning_nodes::MAX_GONE);
    let id = full.by_name("a").unwrap().id;
    let mut draft = Draft::new(&full, since(returning_nodes::MAX_GONE));
    let installed = |state: &mut BootState| state.installed = Some(Timestamp::UNIX_EPOCH);
    draft.amend_boot_state(id, "test", installed);
    draft.remove(Kind::Node, "a");
    let after = commit(&full, &draft.finish().unwrap());
    assert_eq!(after.boot_states().count(), returning_nodes::MAX_GONE);
    assert!(after.boot_state(id).is_some());
    assert!(after.boot_state(pattern.node).is_none(), "the oldest one");
}

#[test]
fn set_prunes_only_its_own_members() {
    let site = site();
    let apply = |roster: &Roster, names: &[&str], prune| {
        let text: Vec<_> = names.iter().map(|name| node(name, "")).collect();
        let documents = document::read("t", text.join("\n---\n").as_bytes()).unwrap();
        let mut draft = Draft::new(roster, Timestamp::UNIX_EPOCH);
        let mut next = 10_000 * u128::from(roster.revision());
        draft.apply(documents, &mut || {
            next += 1;
            NodeId::from_bits(next)
        });
        draft.record_set(&"rack7".parse().unwrap(), prune);
        let plan = draft.finish().unwrap();
        (commit(roster, &plan), plan.count(SiteChange::Removed))
    };
    let (first, _) = apply(&site, &["x", "y"], false);
    let (second, removed) = apply(&first, &["y", "z"], true);
    assert_eq!(removed, 1);
    let there: Vec<_> = second.nodes().map(|node| node.name.to_string()).collect();
    assert_eq!(there, ["a", "b", "y", "z"]);
}

#[test]
fn only_outcomes_count_as_affected() {
    let site = site();
    let affected = |text: &str| plan(&site, text).unwrap().affected.len();
    let a = "partition: p1, nid: 1, groups: [compute], interfaces: [{name: eth0, mac: '02:00:00:00:00:01', addresses: [10.0.0.1/24], network: nmn}]";
    assert_eq!(affected(&node("a", &format!("{a}, labels: {{x: y}}"))), 0, "a label boots nothing");
    assert_eq!(affected(&node("a", &format!("{a}, role: Compute"))), 1);
    assert_eq!(affected(&node("new", "role: Compute")), 0, "new nodes never count");
    let rules = "{api: hoist/v1, kind: Group, name: p1/all, spec: {selector: 'partition:p1'}}";
    assert_eq!(affected(rules), 2, "a computed group reaches nodes nobody named");
}
