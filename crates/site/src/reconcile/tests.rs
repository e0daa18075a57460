use hoist_model::node::Protection;
use hoist_model::{Nid, NodeId};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn source() -> Name {
    "smd".parse().unwrap()
}

fn spec(json: Value) -> NodeSpec {
    serde_json::from_value(json).unwrap()
}

fn new(id: &str, json: Value) -> ImportedNode {
    ImportedNode { external_id: id.to_owned(), name: None, spec: spec(json), state: None }
}

fn import(nodes: Vec<ImportedNode>) -> ImportedSet {
    let fields = crate::source::smd::FIELDS.into_iter().collect();
    ImportedSet { nodes, fields, ..ImportedSet::default() }
}

fn nic(n: u8) -> Value {
    json!([{"name": "eth0", "mac": format!("02:00:00:00:00:{n:02x}")}])
}

/// A site that applies every outcome.
#[derive(Debug, Clone, Default)]
struct TestSite {
    nodes: Vec<Node>,
    memory: Memory,
    minted: u128,
}

impl TestSite {
    fn add(&mut self, name: &str, spec: NodeSpec, provenance: Option<Provenance>) -> &mut Node {
        self.minted += 1;
        self.nodes.push(Node {
            id: NodeId::mint(1, self.minted),
            name: name.parse().unwrap(),
            spec,
            protection: None,
            maintenance: None,
            provenance: provenance.map(Box::new),
            generation: 1,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        });
        self.nodes.last_mut().unwrap()
    }

    fn plan(&self, imported: &ImportedSet, options: &Options) -> Reconciliation {
        reconcile(&self.nodes, &source(), imported, &self.memory, options)
    }

    fn apply(&mut self, outcome: Reconciliation) {
        self.nodes.retain(|node| !outcome.removals.contains(&node.id));
        for update in outcome.updates {
            let node = self.nodes.iter_mut().find(|node| node.id == update.id).unwrap();
            node.spec = update.spec;
            node.name = update.name.unwrap_or(node.name.clone());
            node.provenance = update.provenance.map(Box::new).or(node.provenance.take());
        }
        for create in outcome.creates {
            self.add(&create.name, create.spec, Some(create.provenance));
        }
        self.memory = outcome.memory;
    }

    fn cycle(&mut self, imported: &ImportedSet, options: &Options) -> Reconciliation {
        let outcome = self.plan(imported, options);
        self.apply(outcome.clone());
        outcome
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == *name).unwrap()
    }

    fn check(&self) {
        let mut names = HashSet::new();
        let mut xnames = HashSet::new();
        let mut nids = HashSet::new();
        let mut macs = HashSet::new();
        let mut addresses = HashSet::new();
        for node in &self.nodes {
            assert!(node.spec.check().is_empty(), "{:?}", node.spec.check());
            assert!(names.insert(&node.name), "name {}", node.name);
            assert!(node.spec.xname.is_none_or(|xname| xnames.insert(xname)));
            assert!(node.spec.nid.is_none_or(|nid| nids.insert(nid)));
            for interface in &node.spec.interfaces {
                assert!(macs.insert(interface.mac), "MAC {}", interface.mac);
                for address in &interface.addresses {
                    assert!(addresses.insert((&interface.network, address.addr())));
                }
            }
        }
    }
}

fn ten() -> ImportedSet {
    let nodes = (1..=10).map(|n| {
        new(
            &format!("x1c0s{n}b0n0"),
            json!({
                "xname": format!("x1c0s{n}b0n0"), "nid": n, "interfaces": nic(n),
            }),
        )
    });
    import(nodes.collect())
}

#[test]
fn first_import_creates_and_idle_import_does_nothing() {
    let mut site = TestSite::default();
    let options = Options::default();
    let first = site.cycle(&ten(), &options);
    assert_eq!(first.creates.len(), 10);
    assert_eq!(first.creates[0].name.as_str(), "nid000001");
    let second = site.cycle(&ten(), &options);
    assert!(second.is_idle() && !second.again);
    assert_eq!(second.unchanged, 10);
}

#[test]
fn import_writes_only_differences_and_no_labels() {
    let mut site = TestSite::default();
    site.cycle(&ten(), &Options::default());
    site.nodes[2].spec.labels = spec(json!({"labels": {"rack": "a"}})).labels;
    let mut changed = ten();
    changed.nodes[2].spec.role = "Compute".parse().ok();
    let outcome = site.cycle(&changed, &Options::default());
    assert_eq!((outcome.updates.len(), outcome.unchanged), (1, 9));
    assert_eq!(outcome.updates[0].spec.labels.get("rack"), Some("a"));
    assert!(outcome.updates[0].spec.role.is_some());
}

#[test]
fn released_field_is_not_written_by_imports() {
    let mut site = TestSite::default();
    site.cycle(&ten(), &Options::default());
    let node = &mut site.nodes[0];
    node.provenance.as_mut().unwrap().released = vec!["role".to_owned(), "nid".to_owned()];
    node.spec.role = "Login".parse().ok();
    node.spec.nid = Some(Nid::new(77));
    let mut changed = ten();
    changed.nodes[0].spec.role = "Compute".parse().ok();
    // The source cannot give a released value to another node.
    changed.nodes[1].spec.nid = Some(Nid::new(77));
    let outcome = site.cycle(&changed, &Options::default());
    assert_eq!(outcome.updates.len(), 1);
    assert_eq!(outcome.updates[0].spec.nid, None);
    assert_eq!(site.nodes[0].spec.nid, Some(Nid::new(77)));
    assert!(site.nodes[0].spec.role.as_ref().unwrap().is("login"));
    assert_eq!(outcome.warnings[0].to_string(), "nid000002: the nid 77 belongs to nid000001");
    site.check();
}

#[test]
fn node_is_removed_after_two_good_cycles_without_it() {
    let mut site = TestSite::default();
    let options = Options::default();
    site.cycle(&ten(), &options);
    let mut less = ten();
    less.nodes.remove(0);
    let first = site.cycle(&less, &options);
    assert!(first.is_idle() && first.again);
    // It came back: the count starts over.
    assert!(site.cycle(&ten(), &options).is_idle());
    assert!(site.cycle(&less, &options).is_idle());
    // The memory survives a restart.
    let text = serde_json::to_string(&site.memory).unwrap();
    site.memory = serde_json::from_str(&text).unwrap();
    let gone = site.cycle(&less, &options);
    assert_eq!(gone.removals.len(), 1);
    assert!(site.cycle(&less, &options).is_idle());
    assert_eq!(site.nodes.len(), 9);
}

#[test]
fn moved_mac_leaves_an_absent_node_at_once() {
    let mut site = TestSite::default();
    let options = Options::default();
    site.cycle(&ten(), &options);
    let mut moved = ten();
    moved.nodes.remove(0);
    moved.nodes[0].spec.interfaces = spec(json!({"interfaces": nic(1)})).interfaces;
    let outcome = site.cycle(&moved, &options);
    assert_eq!((outcome.updates.len(), outcome.removals.len()), (2, 0));
    assert!(site.node("nid000001").spec.interfaces.is_empty());
    assert_eq!(site.node("nid000001").spec.nid, Some(Nid::new(1)), "no other node claims its nid");
    assert_eq!(site.node("nid000002").spec.interfaces[0].mac.to_string(), "02:00:00:00:00:01");
    site.check();
    // The source gives it back.
    site.cycle(&ten(), &options);
    assert_eq!(site.node("nid000001").spec.interfaces.len(), 1);
    site.check();
}

#[test]
fn moved_mac_stays_with_protected_and_invalid_nodes() {
    let mut site = TestSite::default();
    site.cycle(&ten(), &Options::default());
    site.nodes[0].protection =
        Some(Box::new(Protection { reason: None, since: Timestamp::UNIX_EPOCH }));
    // An operator chose the boot interface, so the node is not valid without it.
    site.nodes[1].spec.boot = spec(json!({"boot": {"mac": "02:00:00:00:00:02"}})).boot;
    let mut moved = ten();
    moved.nodes.drain(..2);
    for (node, mac) in moved.nodes.iter_mut().zip([1, 2]) {
        node.spec.interfaces = spec(json!({"interfaces": nic(mac)})).interfaces;
    }
    site.cycle(&moved, &Options::default());
    for name in ["nid000001", "nid000002"] {
        assert_eq!(site.node(name).spec.interfaces.len(), 1, "{name}");
    }
    site.check();
}

#[test]
fn too_many_removals_raise_an_alarm_and_remove_nothing() {
    let mut site = TestSite::default();
    let options = Options::default();
    site.cycle(&ten(), &options);
    let mut less = ten();
    less.nodes.truncate(8);
    site.cycle(&less, &options);
    for _ in 0..3 {
        let outcome = site.cycle(&less, &options);
        assert_eq!(outcome.alarm, Some(Alarm::PruneGuard { gone: 2, limit: 1, managed: 10 }));
        assert!(outcome.removals.is_empty());
    }
    let brave = Options { max_prune_percent: 20, ..Options::default() };
    assert_eq!(site.cycle(&less, &brave).removals.len(), 2);
    less.nodes.truncate(7);
    let never = Options { max_prune_percent: 0, ..Options::default() };
    site.cycle(&less, &never);
    assert!(site.cycle(&less, &never).removals.is_empty());
}

#[test]
fn empty_import_held_and_protected_nodes_remove_nothing() {
    let mut site = TestSite::default();
    let options = Options::default();
    site.cycle(&ten(), &options);
    for _ in 0..3 {
        let outcome = site.cycle(&import(Vec::new()), &options);
        assert_eq!(outcome.alarm, Some(Alarm::Empty));
        assert!(outcome.is_idle());
    }
    let mut held = ten();
    held.held.insert(held.nodes.remove(0).external_id);
    for _ in 0..3 {
        assert!(site.cycle(&held, &options).is_idle());
    }
    held.held.clear();
    site.nodes[0].protection =
        Some(Box::new(Protection { reason: None, since: Timestamp::UNIX_EPOCH }));
    site.cycle(&held, &options);
    let outcome = site.cycle(&held, &options);
    assert!(outcome.removals.is_empty());
    assert_eq!(outcome.warnings[0].kind, WarningKind::Protected);
}

#[test]
fn foreign_nodes_are_adopted_only_with_the_option() {
    let mut site = TestSite::default();
    site.add("login1", spec(json!({"interfaces": nic(3), "labels": {"a": "b"}})), None);
    let outcome = site.plan(&ten(), &Options::default());
    assert_eq!((outcome.creates.len(), outcome.updates.len()), (9, 0));
    assert_eq!(outcome.warnings[0].kind, WarningKind::Foreign);
    let adopt = Options { adopt: true, ..Options::default() };
    let outcome = site.cycle(&ten(), &adopt);
    assert_eq!((outcome.creates.len(), outcome.updates.len()), (9, 1));
    let node = site.node("login1");
    assert_eq!(node.spec.nid, Some(Nid::new(3)));
    assert_eq!(node.spec.labels.get("a"), Some("b"));
    assert_eq!(node.provenance.as_ref().unwrap().external_id, "x1c0s3b0n0");
    assert!(site.cycle(&ten(), &Options::default()).is_idle());
}

#[test]
fn taken_name_falls_back_to_the_next_candidate() {
    let mut site = TestSite::default();
    site.add("nid000001", NodeSpec::default(), None);
    let outcome = site.cycle(&ten(), &Options::default());
    assert_eq!(outcome.creates[0].name.as_str(), "x1c0s1b0n0");
    site.check();
    assert!(site.cycle(&ten(), &Options::default()).is_idle());
}

#[test]
fn source_with_names_renames_its_nodes() {
    let mut site = TestSite::default();
    let mut named = ten();
    named.fields = named.fields.with(Field::Name);
    named.nodes[0].name = "login1".parse().ok();
    assert_eq!(site.cycle(&named, &Options::default()).creates[0].name.as_str(), "login1");
    named.nodes[0].name = "login2".parse().ok();
    site.cycle(&named, &Options::default());
    assert_eq!(site.node("login2").spec.nid, Some(Nid::new(1)));
    // Not onto another.
    named.nodes[0].name = "nid000002".parse().ok();
    let outcome = site.cycle(&named, &Options::default());
    assert!(outcome.is_idle());
    site.check();
}

#[test]
fn invalid_import_result_leaves_the_node_unchanged() {
    let mut site = TestSite::default();
    site.cycle(&ten(), &Options::default());
    // People chose the boot interface; the source takes that interface away and gives it to
    // another node.
    site.nodes[0].spec.boot = spec(json!({"boot": {"mac": "02:00:00:00:00:01"}})).boot;
    let mut changed = ten();
    changed.nodes[0].spec.interfaces = spec(json!({"interfaces": nic(99)})).interfaces;
    changed.nodes[1].spec.interfaces = spec(json!({"interfaces": nic(1)})).interfaces;
    let outcome = site.cycle(&changed, &Options::default());
    assert!(outcome.warnings.iter().any(|warning| warning.kind == WarningKind::Invalid));
    assert_eq!(site.node("nid000001").spec.interfaces[0].mac.to_string(), "02:00:00:00:00:01");
    site.check();
}

/// A few machines that share few values, so that they clash often.
fn machine() -> impl Strategy<Value = (u8, NodeSpec)> {
    let nid = prop::option::of(1u32..6);
    let nics = prop::collection::vec((1u8..9, prop::option::of(1u8..5)), 0..3);
    (0u8..8, any::<bool>(), nid, nics, any::<bool>()).prop_map(|(id, placed, nid, nics, on)| {
        let mut json = json!({"enabled": on});
        if placed {
            json["xname"] = format!("x1c0s{id}b0n0").into();
        }
        if let Some(nid) = nid {
            json["nid"] = nid.into();
        }
        let mut seen = HashSet::new();
        json["interfaces"] = nics
            .into_iter()
            .filter(|(mac, _)| seen.insert(*mac))
            .map(|(mac, ip)| {
                let addresses: Vec<_> = ip.iter().map(|ip| format!("10.0.0.{ip}/32")).collect();
                json!({
                    "name": format!("n{mac}"), "mac": format!("02:00:00:00:00:{mac:02x}"),
                    "addresses": addresses,
                })
            })
            .collect();
        (id, spec(json))
    })
}

fn imports() -> impl Strategy<Value = ImportedSet> {
    prop::collection::vec(machine(), 1..8).prop_map(|machines| {
        let machines: BTreeMap<u8, NodeSpec> = machines.into_iter().collect();
        let nodes = machines.into_iter().map(|(id, spec)| ImportedNode {
            external_id: format!("e{id}"),
            name: None,
            spec,
            state: None,
        });
        let mut warnings = Vec::new();
        import(crate::source::settle(nodes.collect(), &mut warnings))
    })
}

/// Nodes of people, consistent with each other, some with a choice of boot interface.
fn foreign_site() -> impl Strategy<Value = TestSite> {
    prop::collection::vec((machine(), any::<bool>()), 0..4).prop_map(|machines| {
        let (machines, chosen): (Vec<_>, Vec<_>) = machines.into_iter().unzip();
        let nodes = machines.into_iter().enumerate().map(|(i, (_, spec))| ImportedNode {
            external_id: format!("p{i}"),
            name: None,
            spec,
            state: None,
        });
        let mut site = TestSite::default();
        for (node, chosen) in
            crate::source::settle(nodes.collect(), &mut Vec::new()).into_iter().zip(chosen)
        {
            let node = site.add(&node.external_id, node.spec, None);
            if chosen && let Some(interface) = node.spec.interfaces.first() {
                let mac = interface.mac.to_string();
                node.spec.boot = spec(json!({"boot": {"mac": mac}})).boot;
            }
        }
        site
    })
}

fn options() -> impl Strategy<Value = Options> {
    (any::<bool>(), prop::sample::select(vec![0u8, 10, 50, 100])).prop_map(|(adopt, percent)| {
        Options { adopt, max_prune_percent: percent, ..Options::default() }
    })
}

/// Values of a spec that a released word covers.
fn released_values(node: &Node) -> Vec<String> {
    let Some(from) = &node.provenance else { return Vec::new() };
    let spec = serde_json::to_value(&node.spec).unwrap();
    from.released.iter().map(|word| spec[word.as_str()].to_string()).collect()
}

proptest! {
    /// Whatever comes in, in any order: the site stays consistent and comes to rest.
    #[test]
    fn import_is_consistent_and_settles(
        mut site in foreign_site(),
        sets in prop::collection::vec(imports(), 1..4),
        released in prop::collection::vec(
            prop::sample::subsequence(vec!["nid", "interfaces", "enabled", "xname"], 0..3), 8),
        options in options(),
    ) {
        for set in &sets {
            site.cycle(set, &options);
            site.check();
            for (node, words) in site.nodes.iter_mut().zip(&released) {
                if let Some(from) = &mut node.provenance {
                    from.released = words.iter().map(|word| (*word).to_owned()).collect();
                }
            }
        }
        let last = sets.last().unwrap();
        let mut rest = None;
        for cycle in 0..6 {
            let outcome = site.cycle(last, &options);
            site.check();
            if outcome.is_idle() && !(cycle == 0 && outcome.again) {
                rest = Some(cycle);
                break;
            }
        }
        prop_assert!(rest.is_some(), "no rest after six cycles");
        let outcome = site.plan(last, &options);
        prop_assert!(outcome.is_idle(), "{outcome:?}");
    }

    #[test]
    fn removal_guards_hold(
        mut site in foreign_site(),
        sets in prop::collection::vec(imports(), 1..5),
        released in prop::sample::subsequence(vec!["nid", "interfaces", "enabled"], 0..3),
        options in options(),
    ) {
        for set in &sets {
            let before = site.clone();
            let outcome = site.cycle(set, &options);
            let managed = before.nodes.iter().filter(|node| node.provenance.is_some()).count();
            let limit = match usize::from(options.max_prune_percent) {
                0 => 0,
                percent => (managed * percent / 100).max(1),
            };
            prop_assert!(outcome.removals.len() <= limit);
            for id in &outcome.removals {
                let node = before.nodes.iter().find(|node| node.id == *id).unwrap();
                let from = node.provenance.as_ref().expect("only managed nodes go");
                prop_assert!(before.memory.absent.contains(&from.external_id));
                prop_assert!(set.nodes.iter().all(|n| n.external_id != from.external_id));
            }
            for node in &before.nodes {
                let Some(after) = site.nodes.iter().find(|after| after.id == node.id) else {
                    continue;
                };
                prop_assert_eq!(released_values(node), released_values(after));
                if node.provenance.is_none() && !options.adopt {
                    prop_assert_eq!(node, after);
                }
                // Nothing that this source does not know is touched.
                prop_assert_eq!(&node.spec.boot, &after.spec.boot);
            }
            for node in &mut site.nodes {
                if let Some(from) = &mut node.provenance {
                    from.released = released.iter().map(|word| (*word).to_owned()).collect();
                }
            }
            let mut empty = site.clone();
            let outcome = empty.cycle(&import(Vec::new()), &options);
            prop_assert!(outcome.is_idle() && outcome.alarm.is_some());
        }
    }
}
