use std::collections::HashMap;

use hoist_model::NodeSpec;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn node(id: u128, name: &str, revision: u64, spec: &str) -> Arc<Node> {
    let spec: NodeSpec = serde_json::from_str(spec).unwrap();
    Arc::new(Node {
        id: NodeId::from_bits(id),
        name: name.parse().unwrap(),
        spec,
        protection: None,
        maintenance: None,
        provenance: None,
        generation: 0,
        revision,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
    })
}

fn with_mac(id: u128, mac: u8, revision: u64) -> Arc<Node> {
    let spec = format!(
        r#"{{"nid":{},"interfaces":[{{"name":"eth0","mac":"02:00:00:00:00:{mac:02x}","addresses":["10.0.0.{mac}/24"]}}]}}"#,
        u32::from(mac) + 1,
    );
    node(id, &format!("n{id}"), revision, &spec)
}

fn mac(last: u8) -> Mac {
    Mac::from_octets([2, 0, 0, 0, 0, last])
}

fn roster(nodes: impl IntoIterator<Item = Arc<Node>>) -> Roster {
    Roster::build(Incarnation::new("a"), 1, 0, nodes.into_iter().map(Resource::Node))
}

#[test]
fn moved_key_leads_to_its_new_node() {
    let first = roster([with_mac(1, 1, 1), with_mac(2, 2, 1)]);
    let swapped = first.apply(Delta {
        revision: 2,
        puts: vec![Resource::Node(with_mac(1, 2, 2)), Resource::Node(with_mac(2, 1, 2))],
        ..Delta::default()
    });
    assert_eq!(swapped.by_mac(mac(1)).unwrap().id, NodeId::from_bits(2));
    assert_eq!(swapped.by_mac(mac(2)).unwrap().id, NodeId::from_bits(1));
    assert_eq!(swapped.by_ip("10.0.0.1".parse().unwrap()).len(), 1);
    assert_eq!(first.by_mac(mac(1)).unwrap().id, NodeId::from_bits(1), "the old picture stays");
}

#[test]
fn removed_node_is_not_found_by_any_key() {
    let first = roster([with_mac(1, 1, 1), with_mac(2, 2, 1)]);
    let id = NodeId::from_bits(1);
    let gone = first.apply(Delta {
        revision: 2,
        deletes: vec![ResourceKey::Node(id)],
        ..Delta::default()
    });
    assert!(gone.by_mac(mac(1)).is_none() && gone.by_id(id).is_none());
    assert!(gone.by_name("n1").is_none() && gone.by_nid(Nid::new(2)).is_none());
    assert!(gone.by_ip("10.0.0.1".parse().unwrap()).is_empty());
    assert_eq!((gone.len(), gone.nodes().count()), (1, 1));
}

#[test]
fn selected_groups_follow_changes() {
    let gpu = r#"{"partition":"p1","groups":["gpu"],"role":"Compute","labels":{"rack":"r1"}}"#;
    let plain = r#"{"partition":"p1"}"#;
    let first = roster([node(1, "a", 1, gpu), node(2, "b", 1, plain)]);
    let names =
        |nodes: Vec<&Arc<Node>>| nodes.iter().map(|n| n.name.to_string()).collect::<Vec<_>>();
    let key: GroupKey = "p1/gpu".parse().unwrap();
    assert_eq!(names(first.members(&key)), ["a"]);
    let moved = first.apply(Delta {
        revision: 2,
        puts: vec![Resource::Node(node(1, "a", 2, plain)), Resource::Node(node(2, "b", 2, gpu))],
        ..Delta::default()
    });
    for roster in [&moved, &moved.folded()] {
        assert_eq!(names(roster.members(&key)), ["b"]);
        assert_eq!(names(roster.labelled("rack", "r1")), ["b"]);
        assert_eq!(names(roster.in_partition(&"p1".parse().unwrap())), ["a", "b"]);
        assert_eq!(names(roster.select(&"gpu".parse().unwrap()).unwrap()), ["b"]);
        assert_eq!(names(roster.select(&"compute & node:b".parse().unwrap()).unwrap()), ["b"]);
    }
}

#[test]
fn computed_groups_are_listed_in_priority_order() {
    let group = |name: &str, priority: i32, selector: Option<&str>| {
        let key: GroupKey = name.parse().unwrap();
        Resource::Group(Arc::new(Group {
            partition: key.partition,
            name: key.name,
            spec: hoist_model::GroupSpec {
                priority,
                selector: selector.map(|text| text.parse().unwrap()),
                ..Default::default()
            },
            revision: 1,
        }))
    };
    let it = node(1, "a", 1, r#"{"partition":"p1","groups":["late","early"],"arch":"x86_64"}"#);
    let site = Roster::build(
        Incarnation::new("a"),
        1,
        0,
        [
            Resource::Node(it),
            group("p1/late", 50, None),
            group("p1/early", -5, None),
            group("p1/fast", 10, Some("arch:x86_64")),
            group("p2/other", 1, Some("arch:x86_64")),
        ]
        .into_iter(),
    );
    let node = site.by_name("a").unwrap();
    let names: Vec<_> = site.groups_of(node).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["early", "fast", "late"]);
    assert_eq!(site.members(&"p1/fast".parse().unwrap()).len(), 1);
    assert_eq!(site.members(&"p2/other".parse().unwrap()).len(), 0);
}

#[test]
fn changes_since_lists_changed_and_removed_nodes() {
    let first = roster([with_mac(1, 1, 1), with_mac(2, 2, 1)]);
    let id = NodeId::from_bits(1);
    let tombstone = Tombstone { node: id, revision: 2, at: Timestamp::UNIX_EPOCH };
    let second = first.apply(Delta {
        revision: 2,
        horizon: 1,
        puts: vec![Resource::Tombstone(tombstone)],
        deletes: vec![ResourceKey::Node(id)],
    });
    let third = second.apply(Delta {
        revision: 3,
        horizon: 1,
        puts: vec![Resource::Node(with_mac(3, 3, 3))],
        ..Delta::default()
    });
    for roster in [&third, &third.folded()] {
        let (nodes, gone) = roster.changes_since(1).unwrap();
        assert_eq!(nodes.iter().map(|n| n.id).collect::<Vec<_>>(), [NodeId::from_bits(3)]);
        assert_eq!(gone, [tombstone]);
        assert_eq!(roster.changes_since(3).unwrap(), (vec![], vec![]));
        assert!(roster.changes_since(0).is_none(), "beyond the horizon");
    }
}

/// One random step: which node, which MAC it gets, or that it goes.
#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Remove(u8),
    Fold,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..12, 0u8..40).prop_map(|(id, mac)| Step::Put(id, mac)),
        2 => (0u8..12).prop_map(Step::Remove),
        1 => Just(Step::Fold),
    ];
    proptest::collection::vec(step, 0..60)
}

#[test]
fn folding_keeps_changes_made_meanwhile() {
    let put = |id, mac, revision| Delta {
        revision,
        puts: vec![Resource::Node(with_mac(id, mac, revision))],
        ..Delta::default()
    };
    let before = roster([with_mac(1, 1, 1)]).apply(put(2, 2, 2));
    let folded = before.folded();
    let removal = Delta {
        revision: 3,
        deletes: vec![ResourceKey::Node(NodeId::from_bits(2))],
        ..Delta::default()
    };
    let now = before.apply(removal).rebased(&before, &folded).unwrap();
    assert!(now.by_mac(mac(2)).is_none(), "it was new when the folding began, and is gone now");
    assert_eq!((now.len(), now.revision()), (1, 3));

    // A reload, or a change as large as the site, makes a base of its own.
    let reloaded = roster([with_mac(1, 1, 1), with_mac(2, 2, 2), with_mac(3, 3, 3)]);
    assert!(reloaded.rebased(&before, &folded).is_none(), "the third node would be lost");
}

proptest! {
    /// Whatever happens, the roster answers like a plain map from scratch.
    #[test]
    fn roster_answers_like_a_plain_map(steps in steps()) {
        let mut model: HashMap<u8, u8> = HashMap::new();
        let mut roster = roster([]);
        let mut folding = None;
        let mut revision = 1;
        for step in steps {
            revision += 1;
            match step {
                Step::Put(_, mac) if model.values().any(|taken| *taken == mac) => {}
                Step::Put(id, mac) => {
                    model.insert(id, mac);
                    let put = Resource::Node(with_mac(u128::from(id), mac, revision));
                    roster = roster.apply(Delta { revision, puts: vec![put], ..Delta::default() });
                }
                Step::Remove(id) => {
                    model.remove(&id);
                    let key = ResourceKey::Node(NodeId::from_bits(u128::from(id)));
                    roster = roster.apply(Delta { revision, deletes: vec![key], ..Delta::default() });
                }
                // In the registry others write while the folding runs; here every second one ends it.
                Step::Fold => match folding.take() {
                    None => folding = Some(roster.clone()),
                    Some(before) => {
                        roster = roster.rebased(&before, &before.folded()).unwrap_or(roster);
                    }
                },
            }
            prop_assert_eq!(roster.len(), model.len());
            prop_assert_eq!(roster.nodes().count(), model.len());
            prop_assert!(roster.nodes().is_sorted_by_key(|node| node.id));
            for last in 0..40 {
                let wanted = model.iter().find(|(_, mac)| **mac == last).map(|(id, _)| u128::from(*id));
                let found = roster.by_mac(mac(last)).map(|node| node.id.to_bits());
                prop_assert_eq!(found, wanted);
                let ip = format!("10.0.0.{last}").parse().unwrap();
                prop_assert_eq!(roster.by_ip(ip).len(), usize::from(wanted.is_some()));
            }
            for id in 0..12u8 {
                let found = roster.by_name(&format!("n{id}")).is_some();
                prop_assert_eq!(found, model.contains_key(&id));
            }
        }
    }
}
