//! Layouts and their refusals.
#![expect(clippy::needless_pass_by_value, reason = "literals read better by value")]

mod laws;
mod refusals;

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::document::size::{GIB, MIB};
use crate::facts::{PartitionFacts, SignatureKind, SignaturePlace, TableFacts, TableKind};

const TXN: &str = "00000000-0000-0000-0000-000000000001";

/// A document for one machine with disk `os`, and these sections.
fn document(sections: Value) -> Document {
    let mut all = json!({"node": {"id": "n1"}, "disks": {"os": {"match": {"serial": "S-sda"}}}});
    for (name, section) in sections.as_object().expect("an object").clone() {
        all[name] = section;
    }
    let text = json!({"api": "hoist/v1", "txn": TXN, "sections": all}).to_string();
    crate::document::read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
}

fn disk(name: &str, size: u64) -> DiskFacts {
    DiskFacts {
        kernel_name: name.to_owned(),
        size,
        logical_sector: 512,
        physical_sector: 512,
        serial: Some(format!("S-{name}")),
        ..DiskFacts::default()
    }
}

fn machine(disks: impl IntoIterator<Item = DiskFacts>) -> Facts {
    let mut facts = Facts { disks: disks.into_iter().collect(), ..Facts::default() };
    facts.cpu.arch = "x86_64".to_owned();
    facts
}

fn part(id: &str, size: &str) -> Value {
    json!({"part": {"id": id, "on": "os", "size": size}})
}

fn signature(kind: SignatureKind, place: SignaturePlace, offset: u64) -> Signature {
    Signature { kind, offset, place, label: None, uuid: None, members: None, ours: None }
}

impl TablePlan {
    /// The facts of the table once it is written.
    pub(crate) fn written(&self) -> TableFacts {
        let partition = |part: &PartitionPlan| PartitionFacts {
            number: part.number,
            start: part.start,
            len: part.len,
            type_guid: Some(part.type_guid),
            partuuid: Some(part.partuuid),
            name: part.name.clone(),
            attributes: part.attributes,
            kernel_name: None,
        };
        TableFacts {
            kind: TableKind::Gpt,
            id: Some(self.guid.to_string()),
            partitions: self.partitions.iter().map(partition).collect(),
            defects: Vec::new(),
        }
    }
}

/// A disk after its plan is carried out.
fn after(layout: &Layout, facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    for plan in &layout.disks {
        let Work::Table(table) = &plan.work else { continue };
        let disk = facts.disks.iter_mut().find(|d| d.kernel_name == plan.kernel_name).expect("it");
        disk.table = Some(table.written());
        let is_kept = |s: &Signature| !plan.destroys.contains(s);
        disk.signatures.retain(is_kept);
        disk.signatures.push(signature(SignatureKind::Gpt, SignaturePlace::Disk, 512));
        for part in table.partitions.iter().filter(|part| !part.retained) {
            let place = SignaturePlace::Partition(part.number);
            let mut found = signature(SignatureKind::Ext, place, part.start + 1080);
            let fs = layout.stack.iter().find(|fs| fs.kind == "fs" && fs.on == [part.id.clone()]);
            found.uuid = fs.map(|fs| fs.uuid.to_string());
            disk.signatures.push(found);
        }
    }
    facts
}

fn laid_out(document: &Document, facts: &Facts) -> Layout {
    plan(document, facts).unwrap_or_else(|found| panic!("{found:#?}"))
}

/// Start and length of every partition in MiB, by id.
fn places(layout: &Layout) -> Vec<(String, u64, u64)> {
    let mut places = Vec::new();
    for disk in &layout.disks {
        let Work::Table(table) = &disk.work else { continue };
        for part in &table.partitions {
            assert_eq!((part.start % MIB, part.len % MIB), (0, 0));
            places.push((part.id.to_string(), part.start / MIB, part.len / MIB));
        }
    }
    places
}

fn is_at(layout: &Layout, expected: &[(&str, u64, u64)]) {
    let places = places(layout);
    let places: Vec<_> =
        places.iter().map(|(id, start, len)| (id.as_str(), *start, *len)).collect();
    assert_eq!(places, expected);
}

#[test]
fn rest_partition_fills_the_space_before_trailing_ones() {
    let document = document(json!({"storage": [
        part("boot", "100 MiB"), part("root", "rest"), part("var", "200 MiB"),
    ]}));
    let layout = laid_out(&document, &machine([disk("sda", 1024 * MIB)]));
    // The last MiB holds the copy of the table.
    is_at(&layout, &[("boot", 1, 100), ("root", 101, 722), ("var", 823, 200)]);
}

#[test]
fn sizes_are_exact_or_shares_of_usable_room() {
    let document = document(json!({"storage": [
        part("a", "50%"), part("b", "1 MB"), part("c", "25%"),
    ]}));
    let layout = laid_out(&document, &machine([disk("sda", 1026 * MIB)]));
    // A little more than was said rather than a little less.
    is_at(&layout, &[("a", 1, 512), ("b", 513, 1), ("c", 514, 256)]);
}

#[test]
fn large_sectors_give_the_same_layout() {
    let document = document(json!({"storage": [part("a", "1 GiB"), part("b", "rest")]}));
    let large = DiskFacts { logical_sector: 4096, physical_sector: 4096, ..disk("sda", 8 * GIB) };
    let layout = laid_out(&document, &machine([large]));
    is_at(&layout, &[("a", 1, 1024), ("b", 1025, 8 * 1024 - 1025 - 1)]);
}

#[test]
fn partition_type_follows_from_role_and_node_on_it() {
    let document = document(json!({"storage": [
        {"part": {"id": "esp", "on": "os", "size": "512 MiB", "role": "esp"}},
        part("root", "1 GiB"), part("swap", "1 GiB"), part("pv", "1 GiB"), part("data", "1 GiB"),
        {"part": {"id": "own", "on": "os", "size": "1 MiB", "name": "two words",
            "type": "00000000-0000-0000-0000-0000000000ff", "attributes": ["legacy_boot", "no_auto"]}},
        {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
        {"fs": {"id": "swap-fs", "on": "swap", "kind": "swap"}},
        {"pv": {"id": "pv0", "on": "pv"}},
        {"fs": {"id": "data-fs", "on": "data", "kind": "xfs", "mount": "/srv"}},
    ]}));
    let layout = laid_out(&document, &machine([disk("sda", 8 * GIB)]));
    let of = |id: &str| layout.partition(&id.parse().unwrap()).expect(id).1;
    for (id, role) in [
        ("esp", crate::document::PartRole::Esp),
        ("root", crate::document::PartRole::Root),
        ("swap", crate::document::PartRole::Swap),
        ("pv", crate::document::PartRole::Lvm),
        ("data", crate::document::PartRole::Data),
    ] {
        assert_eq!(of(id).type_guid, type_of(role, "x86_64"), "{id}");
    }
    assert_eq!(of("own").type_guid, Uuid::from_u128(0xff));
    assert_eq!((of("own").name.as_str(), of("own").attributes), ("two words", 1 << 63 | 1 << 2));
    assert_eq!(of("own").number, 6);
}

#[test]
fn stacks_are_planned_bottom_up_with_sizes() {
    let document = document(json!({
        "disks": {
            "os": {"match": {"serial": "S-sda"}},
            "two": {"match": {"serial": "S-sdb"}},
        },
        "storage": [
            {"fs": {"id": "fs", "on": "lv", "kind": "xfs", "mount": "/srv"}},
            {"lv": {"id": "lv", "on": "vg", "size": "50%"}},
            {"lv": {"id": "more", "on": "vg", "size": "rest"}},
            {"lv": {"id": "little", "on": "vg", "size": "1 MiB"}},
            {"vg": {"id": "vg", "on": ["pv"], "name": "data"}},
            {"pv": {"id": "pv", "on": "secret"}},
            {"luks": {"id": "secret", "on": "md", "key": "secret://disk"}},
            {"md": {"id": "md", "on": ["a", "b"], "level": "raid1"}},
            part("a", "1 GiB"),
            {"part": {"id": "b", "on": "two", "size": "1 GiB"}},
        ],
    }));
    let layout = laid_out(&document, &machine([disk("sda", 4 * GIB), disk("sdb", 4 * GIB)]));
    let order: Vec<_> = layout.stack.iter().map(|plan| plan.id.as_str()).collect();
    assert_eq!(order, ["md", "secret", "pv", "vg", "lv", "more", "little", "fs"]);
    let size =
        |id: &str| layout.stack.iter().find(|plan| plan.id.as_str() == id).unwrap().size / MIB;
    assert_eq!((size("md"), size("secret"), size("pv")), (1022, 1006, 1005));
    // In pieces of four.
    assert_eq!((size("vg"), size("lv"), size("little"), size("more")), (1004, 500, 4, 500));
    assert_eq!(size("fs"), size("lv"));
}

/// Array sizes in KiB from mdadm 4.2 and Linux 6.1, with devices of 34, 35, 36 and 40 MiB.
#[test]
fn array_size_matches_its_program() {
    for (level, count, spares, made) in [
        ("raid0", 2, 0, 66_560),
        ("raid1", 3, 1, 32_768),
        ("raid5", 3, 0, 65_536),
        ("raid6", 4, 0, 65_536),
        ("raid10", 4, 0, 65_536),
        ("raid10", 4, 1, 49_152),
    ] {
        let parts = [("a", 34), ("b", 35), ("c", 36), ("d", 40)];
        let mut storage: Vec<_> =
            parts.iter().map(|(id, mib)| part(id, &format!("{mib} MiB"))).collect();
        let on: Vec<_> = parts.iter().take(count).map(|(id, _)| *id).collect();
        storage.push(json!({"md": {"id": "m", "on": on, "level": level, "spares": spares}}));
        let layout = laid_out(&document(json!({"storage": storage})), &machine([disk("sda", GIB)]));
        let planned = layout.stack[0].size / 1024;
        let is_striped = level == "raid0";
        // A stripe also uses the additional room of larger devices.
        assert!(planned == made || (is_striped && planned == 65_536), "{level}: {planned}");
    }
}

#[test]
fn stack_with_many_paths_is_planned_quickly() {
    // Every layer is a group of twenty volumes on which the next one lies: 20^8 ways.
    let mut storage = vec![part("p", "100%"), json!({"pv": {"id": "pv", "on": "p"}})];
    let mut on = vec!["pv".to_owned()];
    for layer in 0..8 {
        let group = format!("v{layer}");
        storage.push(json!({"vg": {"id": group, "on": on}}));
        on = (0..20).map(|at| format!("pv{layer}-{at}")).collect();
        for (at, pv) in on.iter().enumerate() {
            let lv = format!("l{layer}-{at}");
            storage.push(json!({"lv": {"id": lv, "on": group, "size": "5%"}}));
            if layer < 7 {
                storage.push(json!({"pv": {"id": pv, "on": lv}}));
            } else {
                storage.push(json!({"fs": {"id": pv, "on": lv, "kind": "xfs", "label": "same", "retain": {}}}));
            }
        }
    }
    let made = document(json!({"storage": [part("p", "100%")]}));
    let facts = machine([disk("sda", 1 << 40)]);
    let there = after(&laid_out(&made, &facts), &facts);
    let stacked = document(json!({"storage": storage, "policy": {"tables": "adopt"}}));
    let found = plan_refused(&stacked, &there);
    assert!(found.iter().all(|found| found.code == Code::Duplicate), "{found:#?}");
}

#[test]
fn a_second_run_changes_nothing() {
    let document = document(json!({"storage": [
        part("root", "1 GiB"), part("data", "rest"),
        {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/", "label": "root"}},
    ]}));
    let facts = machine([disk("sda", 4 * GIB)]);
    let first = laid_out(&document, &facts);
    assert!(!first.is_settled());
    let mut later = after(&first, &facts);
    // The label that is found is the one that was made.
    for signature in &mut later.disks[0].signatures {
        signature.label = Some("root".to_owned());
    }
    let second = laid_out(&document, &later);
    assert!(second.is_settled(), "{:#?}", second.disks);
    let Work::Table(before) = &first.disks[0].work else { panic!("a table") };
    assert_eq!(second.disks[0].work, Work::Table(before.clone()));
}

#[test]
fn difference_shows_kept_new_recreated_and_deleted() {
    let small =
        document(json!({"storage": [part("a", "1 GiB"), part("b", "1 GiB"), part("c", "1 GiB")]}));
    let facts = machine([disk("sda", 8 * GIB)]);
    let there = after(&laid_out(&small, &facts), &facts);
    let other = document(json!({
        "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": "any"}},
        "storage": [part("a", "1 GiB"), part("b", "2 GiB"), part("d", "1 GiB")],
    }));
    let layout = laid_out(&other, &there);
    let changes: Vec<_> = layout.disks[0].changes.iter().map(|change| change.what).collect();
    // `c` is deleted, and `d` is placed behind the larger `b`.
    let expected = [Difference::Kept, Difference::Recreated, Difference::Deleted, Difference::New];
    assert_eq!(changes, expected);
    let destroyed: Vec<_> = layout.disks[0].destroys.iter().map(|s| (s.kind, s.place)).collect();
    let expected = [
        (SignatureKind::Gpt, SignaturePlace::Disk),
        (SignatureKind::Ext, SignaturePlace::Partition(2)),
        (SignatureKind::Ext, SignaturePlace::Partition(3)),
    ];
    assert_eq!(destroyed, expected);
}

/// Four foreign partitions of 1 GiB, each with a file system.
fn used() -> DiskFacts {
    let partition = |number: u32| PartitionFacts {
        number,
        start: MIB + u64::from(number - 1) * GIB,
        len: GIB,
        type_guid: Some(Uuid::from_u128(7)),
        partuuid: Some(Uuid::from_u128(100 + u128::from(number))),
        name: format!("p{number}"),
        attributes: 0,
        kernel_name: Some(format!("sda{number}")),
    };
    let table = TableFacts {
        kind: TableKind::Gpt,
        id: Some(Uuid::from_u128(99).to_string()),
        partitions: (1..=4).map(partition).collect(),
        defects: Vec::new(),
    };
    let mut signatures = vec![signature(SignatureKind::Gpt, SignaturePlace::Disk, 512)];
    for part in &table.partitions {
        let place = SignaturePlace::Partition(part.number);
        let mut found = signature(SignatureKind::Ext, place, part.start + 1080);
        found.label = Some(format!("fs{}", part.number));
        signatures.push(found);
    }
    DiskFacts { table: Some(table), signatures, ..disk("sda", 8 * GIB) }
}

fn keeping(number: u128, more: Value) -> Value {
    let mut retain = json!({"partuuid": Uuid::from_u128(100 + number)});
    for (key, value) in more.as_object().expect("an object").clone() {
        retain[key] = value;
    }
    json!({"storage": [
        {"part": {"id": "kept", "on": "os", "size": "1 GiB", "retain": retain}},
        part("before", "512 MiB"), part("rest", "rest"), part("last", "1 GiB"),
        {"fs": {"id": "kept-fs", "on": "kept", "kind": "ext4", "retain": {"label": "fs2"}}},
    ], "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": ["gpt", "ext"]}}})
}

#[test]
fn partitions_are_placed_around_a_retained_one() {
    let document = document(keeping(2, json!({})));
    let layout = laid_out(&document, &machine([used()]));
    let end = 8 * 1024;
    // The rest is in the largest free range: behind the retained partitions.
    is_at(
        &layout,
        &[
            ("kept", 1025, 1024),
            ("before", 1, 512),
            ("rest", 2049, end - 2049 - 1 - 1024),
            ("last", end - 1 - 1024, 1024),
        ],
    );
    let plan = &layout.disks[0];
    let kept = MIB + GIB..MIB + 2 * GIB;
    assert_eq!(plan.writable, [0..kept.start, kept.end..8 * GIB]);
    let Work::Table(table) = &plan.work else { panic!("a table") };
    assert_eq!(table.guid, Uuid::from_u128(99));
    let numbers: Vec<_> = table.partitions.iter().map(|part| part.number).collect();
    assert_eq!(numbers, [2, 1, 3, 4]);
    assert_eq!(table.partitions[0].partuuid, Uuid::from_u128(102));
    let destroyed: Vec<_> = plan.destroys.iter().map(|s| s.place).collect();
    assert!(!destroyed.contains(&SignaturePlace::Partition(2)));
}

#[test]
fn kept_partition_is_matched_by_name_and_type() {
    let mut sections = keeping(2, json!({}));
    sections["storage"][0]["part"]["retain"] = json!({"name": "p2", "type": Uuid::from_u128(7)});
    laid_out(&document(sections), &machine([used()]));
}

#[test]
fn shown_layout_has_old_and_new_contents_and_losses() {
    let mut sections = keeping(2, json!({}));
    sections["images"] = json!({"system": {"sources": ["https://h/i"], "target": "before"}});
    let layout = laid_out(&document(sections), &machine([used()]));
    let partuuid = |id: &str| derive(TXN.parse().unwrap(), "n1", &id.parse().unwrap());
    let expected = format!(
        "\
disk os is sda, 8 GiB, serial S-sda
  - deleted   1  at      1 MiB       1 GiB  p1  00000000-0000-0000-0000-000000000007  00000000-0000-0000-0000-000000000065
  + new       1  at      1 MiB     512 MiB  before  data  {}
  = kept      2  at   1025 MiB       1 GiB  p2  00000000-0000-0000-0000-000000000007  00000000-0000-0000-0000-000000000066
  - deleted   3  at   2049 MiB       1 GiB  p3  00000000-0000-0000-0000-000000000007  00000000-0000-0000-0000-000000000067
  + new       3  at   2049 MiB    5118 MiB  rest  data  {}
  - deleted   4  at   3073 MiB       1 GiB  p4  00000000-0000-0000-0000-000000000007  00000000-0000-0000-0000-000000000068
  + new       4  at   7167 MiB       1 GiB  last  data  {}
  ! destroys gpt in the disk at byte 512
  ! destroys ext in partition 1 at byte 1049656, label `fs1`
  ! destroys ext in partition 3 at byte 2148533304, label `fs3`
  ! destroys ext in partition 4 at byte 3222275128, label `fs4`
on them
  = fs   kept-fs on kept, 1 GiB, stays
",
        partuuid("before"),
        partuuid("rest"),
        partuuid("last")
    );
    assert_eq!(layout.to_string(), expected);
}

#[test]
fn image_of_a_whole_disk_replaces_all_contents() {
    let document = document(json!({
        "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": "any"}},
        "images": {"system": {"sources": ["https://h/i"], "target": "os"}},
    }));
    let layout = laid_out(&document, &machine([used()]));
    let plan = &layout.disks[0];
    assert_eq!(plan.work, Work::Image("system".parse().unwrap()));
    assert_eq!((plan.changes.len(), plan.destroys.len()), (4, 5));
    assert!(plan.changes.iter().all(|change| change.what == Difference::Deleted));
}

#[test]
fn erased_disk_must_be_ours_or_named_with_its_data() {
    let with = |wipe: Value| {
        json!({
            "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": wipe}},
            "erase": {"disks": ["os"]},
        })
    };
    let found = plan_refused(&document(with(json!(["gpt"]))), &machine([used()]));
    assert_eq!((found.len(), found[0].code), (1, Code::ForeignData));
    let layout = laid_out(&document(with(json!("any"))), &machine([used(), disk("sdb", GIB)]));
    let [plan] = layout.disks.as_slice() else { panic!("one disk") };
    assert_eq!((&plan.work, plan.destroys.len()), (&Work::Erase, 5));
    assert!(plan.changes.iter().all(|change| change.what == Difference::Deleted));
    assert_eq!((plan.writable.len(), plan.writable[0].end), (1, 8 * GIB));
    assert!(!layout.is_settled());
    // Named and not queued is not erased.
    let mut idle = with(json!("any"));
    idle["flow"] = json!({"actions": ["report"]});
    let layout = laid_out(&document(idle), &machine([used()]));
    assert_eq!((&layout.disks[0].work, layout.disks[0].writable.len()), (&Work::None, 0));
}

#[test]
fn kept_table_is_compared_and_only_new_parts_are_written() {
    let sections = json!({"policy": {"tables": "adopt"}, "storage": [
        part("one", "1 GiB"), part("two", "1 GiB"), part("three", "1 GiB"), part("four", "1 GiB"),
        {"fs": {"id": "kept", "on": "one", "kind": "ext4", "retain": {}}},
        {"fs": {"id": "new", "on": "two", "kind": "xfs"}},
    ]});
    let found = plan_refused(&document(sections.clone()), &machine([used()]));
    assert_eq!(found[0].code, Code::ForeignData, "{}", found[0]);
    let mut sections = sections;
    sections["disks"] = json!({"os": {"match": {"serial": "S-sda"}, "wipe": ["ext"]}});
    let layout = laid_out(&document(sections.clone()), &machine([used()]));
    let plan = &layout.disks[0];
    assert!(plan.changes.iter().all(|change| change.what == Difference::Kept));
    let destroyed: Vec<_> = plan.destroys.iter().map(|signature| signature.place).collect();
    assert_eq!(destroyed, [SignaturePlace::Partition(2)]);
    let area = crate::metadata_area::MetadataArea::before(None).expect("it has room").range();
    assert_eq!(plan.writable, [area, MIB + GIB..MIB + 2 * GIB]);
    let mut other = sections;
    other["storage"][1] = part("two", "2 GiB");
    let found = plan_refused(&document(other), &machine([used()]));
    assert_eq!(found[0].code, Code::NotAsRetained);
}

fn plan_refused(document: &Document, facts: &Facts) -> Vec<ProvisionDiagnostic> {
    plan(document, facts).expect_err("refused")
}
