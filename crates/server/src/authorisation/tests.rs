use std::collections::BTreeSet;

use hoist_api::admin::Scope;
use hoist_model::{BootState, BssImage, BssImageKey, BssKey, BssRecord, ImageKind, NodeId};
use hoist_site::Delta;
use hoist_site::record::{AppliedSet, Tombstone};
use hoist_site::roster::Incarnation;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::review::Change;
use super::*;
use hoist_chassis::principal::{Caller, Grant};

/// Expected rights of each kind: read, then write. Repeats the table on purpose, as a second
/// opinion.
const EXPECTED: [(ResourceKind, Expected, Expected); 13] = [
    (ResourceKind::Node, (Context::Inventory, Extent::Node), (Context::Inventory, Extent::Node)),
    (ResourceKind::Group, NAMES, (Context::Inventory, Extent::Partition)),
    (ResourceKind::Partition, NAMES, INVENTORY),
    (ResourceKind::Network, NAMES, INVENTORY),
    (ResourceKind::Artifact, BOOT, BOOT),
    (
        ResourceKind::BootConfig,
        (Context::Boot, Extent::Selected),
        (Context::Boot, Extent::Partition),
    ),
    (
        ResourceKind::MetadataLayer,
        (Context::Metadata, Extent::Selected),
        (Context::Metadata, Extent::Partition),
    ),
    (
        ResourceKind::ProvisionProfile,
        (Context::Provision, Extent::Selected),
        (Context::Provision, Extent::Site),
    ),
    (ResourceKind::BootState, (Context::Boot, Extent::Node), (Context::Boot, Extent::Node)),
    (ResourceKind::Bss, BOOT, BOOT),
    (ResourceKind::BssImage, BOOT, BOOT),
    (ResourceKind::Set, INVENTORY, INVENTORY),
    (ResourceKind::Tombstone, INVENTORY, INVENTORY),
];
type Expected = (Context, Extent);
const NAMES: Expected = (Context::Inventory, Extent::Vocabulary);
const INVENTORY: Expected = (Context::Inventory, Extent::Site);
const BOOT: Expected = (Context::Boot, Extent::Site);

/// The kind after this one. No wildcard: a new kind must be tested.
fn next(kind: ResourceKind) -> Option<ResourceKind> {
    match kind {
        ResourceKind::Node => Some(ResourceKind::Group),
        ResourceKind::Group => Some(ResourceKind::Partition),
        ResourceKind::Partition => Some(ResourceKind::Network),
        ResourceKind::Network => Some(ResourceKind::Artifact),
        ResourceKind::Artifact => Some(ResourceKind::BootConfig),
        ResourceKind::BootConfig => Some(ResourceKind::MetadataLayer),
        ResourceKind::MetadataLayer => Some(ResourceKind::ProvisionProfile),
        ResourceKind::ProvisionProfile => Some(ResourceKind::BootState),
        ResourceKind::BootState => Some(ResourceKind::Bss),
        ResourceKind::Bss => Some(ResourceKind::BssImage),
        ResourceKind::BssImage => Some(ResourceKind::Set),
        ResourceKind::Set => Some(ResourceKind::Tombstone),
        ResourceKind::Tombstone => None,
    }
}

fn kinds() -> impl Iterator<Item = ResourceKind> {
    std::iter::successors(Some(ResourceKind::Node), |kind| next(*kind))
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).expect("a resource"))
}

fn node_id(partition: &str) -> NodeId {
    NodeId::mint(0, if partition == "a" { 1 } else { 2 })
}

/// A resource of this kind that belongs to the node of a partition, as far as it belongs to any.
fn resource(kind: ResourceKind, partition: &str) -> Resource {
    let name = format!("it-{partition}");
    let named = |spec: Value| json!({"name": name, "spec": spec, "revision": 1});
    let selector = format!("partition:{partition}");
    let time = Timestamp::UNIX_EPOCH;
    match kind {
        ResourceKind::Node => Resource::Node(read(json!({
            "id": node_id(partition), "name": name, "spec": {"partition": partition},
            "generation": 0, "revision": 1, "created": time, "updated": time,
        }))),
        ResourceKind::Group => Resource::Group(read(
            json!({"partition": partition, "name": name, "spec": {}, "revision": 1}),
        )),
        ResourceKind::Partition => {
            Resource::Partition(read(json!({"name": partition, "spec": {}, "revision": 1})))
        }
        ResourceKind::Network => Resource::Network(read(named(json!({})))),
        ResourceKind::Artifact => {
            Resource::Artifact(read(named(json!({"sha256": "ab".repeat(32), "size": 1}))))
        }
        ResourceKind::BootConfig => {
            Resource::BootConfig(read(named(json!({"selector": selector, "kernel": "http://k"}))))
        }
        ResourceKind::MetadataLayer => {
            Resource::MetadataLayer(read(named(json!({"selector": selector}))))
        }
        ResourceKind::ProvisionProfile => Resource::ProvisionProfile(read(named(
            json!({"selector": selector, "document": {"flow": {}}}),
        ))),
        ResourceKind::BootState => {
            Resource::BootState(Arc::new(BootState::new(node_id(partition), "x", time)))
        }
        ResourceKind::Bss => {
            let key: BssKey = BssKey::Tag(name);
            let record: BssRecord = serde_json::from_value(json!({"key": key})).expect("a record");
            Resource::Bss(Arc::new(record))
        }
        ResourceKind::BssImage => {
            let image = BssImageKey { kind: ImageKind::Kernel, path: name };
            let params = "quiet".to_owned();
            Resource::BssImage(Arc::new(BssImage { image, params, revision: 1 }))
        }
        ResourceKind::Set => {
            let name = name.parse().expect("a name");
            Resource::Set(Arc::new(AppliedSet { name, members: BTreeSet::default() }))
        }
        ResourceKind::Tombstone => {
            Resource::Tombstone(Tombstone { node: node_id(partition), revision: 1, at: time })
        }
    }
}

fn site() -> Roster {
    let of = |kind| [resource(kind, "a"), resource(kind, "b")];
    let puts = kinds().filter(|kind| *kind != ResourceKind::Tombstone).flat_map(of).collect();
    let delta = Delta { revision: 1, horizon: 0, puts, deletes: Vec::new() };
    Roster::empty(Incarnation::new("0")).apply(delta)
}

fn holder(verb: Verb, context: Context, selector: Option<&str>) -> Principal {
    let selector = selector.map(str::to_owned);
    let scope = Scope { verbs: vec![verb], contexts: vec![context], selector };
    Principal::new(Caller::Admin, [Grant::try_from(&scope).expect("a scope")])
}

/// Every kind x verb x context of a grant x its selector x whose resource it is.
#[test]
fn rights_hold_for_every_kind_verb_and_scope() {
    let site = site();
    assert_eq!(kinds().collect::<Vec<_>>(), EXPECTED.map(|(kind, ..)| kind));
    let mut tried = 0;
    for (kind, of_read, of_write) in EXPECTED {
        for (verb, (context, extent)) in [(Verb::Read, of_read), (Verb::Write, of_write)] {
            assert_eq!(Right::of(kind, verb), Right { context, extent }, "{verb} {kind:?}");
            for granted in contexts() {
                for (granted_verb, selector, of) in cases() {
                    let principal = holder(granted_verb, granted, selector);
                    let access = Access::new(&principal, verb, &site);
                    let resource = resource(kind, of);
                    let allowed = match verb {
                        Verb::Read => access.covers(&resource),
                        Verb::Write => access.may_change(&resource.key(), Change::of(&resource)),
                    };
                    let in_context = granted == context || granted == Context::All;
                    let in_extent = match (selector, extent) {
                        (None, _) | (Some(_), Extent::Vocabulary) => true,
                        (Some(_), Extent::Node | Extent::Selected | Extent::Partition) => of == "a",
                        (Some(_), Extent::Site) => false,
                    };
                    let expected = granted_verb == verb && in_context && in_extent;
                    let case =
                        format!("{granted_verb}:{granted}:{selector:?}: {verb} {resource:?}");
                    assert_eq!(allowed, expected, "{case}");
                    tried += 1;
                }
            }
        }
    }
    assert_eq!(tried, 13 * 2 * 14 * 8);
}

fn cases() -> impl Iterator<Item = (Verb, Option<&'static str>, &'static str)> {
    [Verb::Read, Verb::Write].into_iter().flat_map(|verb| {
        [None, Some("partition:a")]
            .into_iter()
            .flat_map(move |selector| ["a", "b"].into_iter().map(move |of| (verb, selector, of)))
    })
}

fn contexts() -> [Context; 14] {
    [
        Context::Inventory,
        Context::Boot,
        Context::Metadata,
        Context::Deploy,
        Context::Provision,
        Context::Cluster,
        Context::Storage,
        Context::Etcd,
        Context::Agent,
        Context::Secrets,
        Context::Events,
        Context::Metrics,
        Context::Admin,
        Context::All,
    ]
}

/// A limited writer neither moves a node out of reach nor leaves records without a node.
#[test]
fn limited_writer_keeps_nodes_in_reach() {
    let site = site();
    let limited = holder(Verb::Write, Context::All, Some("partition:a"));
    let access = Access::new(&limited, Verb::Write, &site);
    let node = |partition: &str| match resource(ResourceKind::Node, partition) {
        Resource::Node(node) => node,
        other => panic!("{other:?}"),
    };
    let a = node("a");
    let b = node("b");
    let key = hoist_site::ResourceKey::Node(a.id);
    assert!(access.may_change(&key, Change::Node(&a)));
    assert!(access.may_change(&key, Change::Other));
    assert!(!access.may_change(&key, Change::Node(&b)));
    assert!(!access.may_change(&hoist_site::ResourceKey::Node(b.id), Change::Node(&a)));
    let nobody = hoist_site::ResourceKey::Node(NodeId::mint(0, 9));
    assert!(!access.may_change(&nobody, Change::Other));
    assert!(access.may_change(&nobody, Change::Node(&a)));
}

/// A document is neither taken from another partition nor extended beyond one's own, and a grant
/// for some nodes of a partition is not one for the partition.
#[test]
fn partition_admin_keeps_documents_in_the_partition() {
    let site = site();
    let config = |selector: &str| {
        let spec = json!({"selector": selector, "kernel": "http://k"});
        Resource::BootConfig(read(json!({"name": "new", "spec": spec, "revision": 1})))
    };
    let may = |grant: &str, key: &Resource, after: &Resource| {
        let principal = holder(Verb::Write, Context::Boot, Some(grant));
        let access = Access::new(&principal, Verb::Write, &site);
        access.may_change(&key.key(), Change::of(after))
    };
    let own = resource(ResourceKind::BootConfig, "a");
    let other = resource(ResourceKind::BootConfig, "b");
    for (selector, is_within) in [
        ("partition:a", true),
        ("a/db", true),
        ("partition:a & role:compute", true),
        ("first(partition:a)", true),
        ("partition:a, a/db", true),
        ("*", false),
        ("partition:a, role:compute", false),
        ("partition:b", false),
        ("partition:*", false),
        ("group:db", false),
        ("!partition:b", false),
        ("node:it-a", false),
    ] {
        let new = config(selector);
        assert_eq!(may("partition:a", &new, &new), is_within, "{selector}");
        assert_eq!(
            may("partition:a, partition:b", &own, &new),
            may("partition:a", &own, &new) || selector == "partition:b"
        );
        assert!(!may("partition:a", &other, &new), "{selector}");
        for part in ["partition:a & role:compute", "a/db", "node:it-a", "!partition:b"] {
            assert!(!may(part, &new, &new), "{part}: {selector}");
        }
    }
}

#[test]
fn references_count_place_and_nodes() {
    let layer = |spec: Value| {
        let spec = json!({"name": "l", "spec": spec, "revision": 1});
        secrets::named_in(&Resource::MetadataLayer(read(spec)))
    };
    let file = json!({"secret": {"file": "db/password"}});
    let base = layer(json!({"selector": "group:db", "user_data": {"x": [{"content": file}]}}));
    assert_eq!(base.len(), 1);
    let same = [
        json!({"selector": "group:db", "priority": 3, "user_data": {"x": [{"content": file}]}}),
        json!({"selector": "group:db", "user_data": {"x": [1, {"content": file}], "y": 1}}),
        json!({"selector": "group:db", "user_data": {}}),
    ];
    for spec in same {
        assert!(layer(spec.clone()).is_subset(&base), "{spec}");
    }
    let other = [
        json!({"selector": "*", "user_data": {"x": [{"content": file}]}}),
        json!({"selector": "group:db", "user_data": {"y": [{"content": file}]}}),
        json!({"selector": "group:db", "user_data": {"x": [{"content": {"secret": {"env": "HOIST_SECRET_A"}}}]}}),
        json!({"selector": "group:db", "user_data": {"x": [{"content": file}]},
               "parts": [{"document": "user-data", "type": "text/x-shellscript", "content": file}]}),
    ];
    for spec in other {
        assert!(!layer(spec.clone()).is_subset(&base), "{spec}");
    }
    let profile = |spec: Value| {
        let spec = json!({"name": "p", "spec": spec, "revision": 1});
        secrets::named_in(&Resource::ProvisionProfile(read(spec)))
    };
    let base = profile(json!({"selector": "*", "document": {"files": [{"secret": "secret://a"}]}}));
    assert_eq!(base.len(), 1);
    let moved = profile(json!({"selector": "*", "document": {"files": [{"secret": "secret://a"}]},
                               "secrets": {"a": {"file": "b"}}}));
    assert!(!moved.is_subset(&base));
}
