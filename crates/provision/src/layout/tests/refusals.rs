//! The safety rules, each with refused and accepted layouts.

use super::*;
use crate::facts::{Bus, Busy, BusyReason, Firmware, Ours};

fn refused(sections: Value, facts: &Facts, code: Code, place: &str) -> ProvisionDiagnostic {
    let mut found = plan_refused(&document(sections), facts);
    assert_eq!(found.len(), 1, "{found:#?}");
    let found = found.remove(0);
    assert_eq!((found.code, found.diagnostic.at.as_str()), (code, place), "{found}");
    found
}

fn one_part(wipe: Value) -> Value {
    json!({
        "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": wipe}},
        "storage": [part("root", "1 GiB")],
    })
}

#[test]
fn foreign_data_is_refused_unless_every_kind_of_it_is_named() {
    for kind in SignatureKind::ALL {
        let mut holding = disk("sda", 4 * GIB);
        holding.signatures.push(signature(kind, SignaturePlace::Disk, 4096));
        let facts = machine([holding]);
        let found = refused(one_part(json!([])), &facts, Code::ForeignData, "disks.os.wipe");
        assert!(found.diagnostic.hint.expect("a hint").contains(&format!("wipe: [{kind}]")));
        let others: Vec<_> = SignatureKind::ALL.iter().filter(|k| **k != kind).collect();
        refused(one_part(json!(others)), &facts, Code::ForeignData, "disks.os.wipe");
        for wipe in [json!([kind]), json!("any")] {
            let layout = laid_out(&document(one_part(wipe)), &facts);
            assert_eq!(layout.disks[0].destroys.len(), 1);
        }
    }
}

#[test]
fn own_content_of_this_node_is_shown_without_naming() {
    let marked = |node: &str| {
        let mut used = used();
        for part in &mut used.table.as_mut().expect("a table").partitions {
            let id = format!("part-{}", part.number).parse().expect("an id");
            part.partuuid = Some(derive(Uuid::from_u128(5), node, &id));
        }
        mark(&mut used, node, false);
        machine([used])
    };
    let layout = laid_out(&document(one_part(json!([]))), &marked("n1"));
    assert_eq!(layout.disks[0].destroys.len(), 5);
    refused(one_part(json!([])), &marked("n2"), Code::ForeignData, "disks.os.wipe");
}

fn mark(disk: &mut DiskFacts, node: &str, of_image: bool) {
    let mut marker = signature(SignatureKind::Hoist, SignaturePlace::Disk, 20_480);
    let txn = Uuid::from_u128(5);
    marker.ours = Some(Ours { node: node.to_owned(), txn, of_image, has_root: false });
    disk.signatures.push(marker);
}

/// A root with a file system, and a partition that changes.
fn with_data(wipe: Value, data: Value, fs: &str) -> Value {
    let kind = json!({"fs": {"id": "data-fs", "on": data["id"], "kind": fs}});
    json!({
        "disks": {"os": {"match": {"serial": "S-sda"}, "wipe": wipe}},
        "storage": [part("root", "1 GiB"), {"part": data}, kind],
    })
}

/// The machine after this transaction completed its disk.
fn installed() -> Facts {
    let data = json!({"id": "data", "on": "os", "size": "1 GiB"});
    let facts = machine([disk("sda", 4 * GIB)]);
    let layout = laid_out(&document(with_data(json!([]), data, "ext4")), &facts);
    let mut later = after(&layout, &facts);
    mark(&mut later.disks[0], "n1", false);
    let marker = later.disks[0].signatures.last_mut().expect("a marker");
    marker.ours.as_mut().expect("it is ours").txn = TXN.parse().expect("a txn");
    later
}

#[test]
fn renamed_partition_keeps_its_contents() {
    let facts = installed();
    let data = json!({"id": "data", "on": "os", "size": "1 GiB", "name": "store", "role": "srv"});
    let layout = laid_out(&document(with_data(json!([]), data, "ext4")), &facts);
    let changes: Vec<_> = layout.disks[0].changes.iter().map(|change| change.what).collect();
    assert_eq!(changes, [Difference::Kept, Difference::Renamed]);
    assert_eq!(layout.disks[0].destroys, []);
    let shown = layout.to_string();
    assert!(
        shown.contains("  ~ renamed   2  at") && shown.contains(", was 2  data  data"),
        "{shown}"
    );
}

/// A change of a document with these `wipe` entries.
type Changed<'a> = &'a dyn Fn(Value) -> Value;

#[test]
fn data_of_this_installation_is_given_up_only_by_wipe() {
    let facts = installed();
    let data = |id: &str, size: &str| json!({"id": id, "on": "os", "size": size});
    let labelled = |wipe: Value| {
        let mut sections = with_data(wipe, data("data", "1 GiB"), "ext4");
        sections["storage"][2]["fs"]["label"] = json!("other");
        sections
    };
    let changed: [(Changed<'_>, &str, &str); 5] = [
        (
            &|wipe| with_data(wipe, data("data", "2 GiB"), "ext4"),
            "ext, gpt",
            "! recreated, data lost",
        ),
        (&|wipe| with_data(wipe, data("store", "1 GiB"), "ext4"), "ext, gpt", "- deleted"),
        (&|wipe| with_data(wipe, data("data", "1 GiB"), "xfs"), "ext", "= kept"),
        (&labelled, "ext", "= kept"),
        (&|wipe| one_part(wipe), "ext, gpt", "- deleted"),
    ];
    for (sections, holds, shown) in changed {
        let found = refused(sections(json!([])), &facts, Code::ForeignData, "disks.os.wipe");
        assert!(found.diagnostic.message.ends_with(&format!("holds {holds}")), "{found}");
        let text = laid_out(&document(sections(json!("any"))), &facts).to_string();
        assert!(text.contains(shown) && text.contains("! destroys ext"), "{text}");
        assert!(!text.contains("resized"), "{text}");
    }
    // Another installation replaces this one.
    let mut other = document(with_data(json!([]), data("data", "2 GiB"), "ext4"));
    other.txn = Uuid::from_u128(77);
    assert_eq!(laid_out(&other, &facts).disks[0].destroys.len(), 3);
}

#[test]
fn unknown_data_of_this_installation_needs_wipe() {
    let sections =
        |wipe: Value| with_data(wipe, json!({"id": "data", "on": "os", "size": "1 GiB"}), "ext4");
    let mut facts = installed();
    let data = SignaturePlace::Partition(2);
    let fs = facts.disks[0].signatures.iter_mut().find(|found| found.place == data);
    let fs = fs.expect("a file system");
    *fs = signature(SignatureKind::Unknown, data, fs.offset);
    let found = refused(sections(json!([])), &facts, Code::ForeignData, "disks.os.wipe");
    assert!(found.diagnostic.message.ends_with("holds unknown data"), "{found}");
    let layout = laid_out(&document(sections(json!(["unknown"]))), &facts);
    assert_eq!(layout.disks[0].destroys.len(), 1);
    // A run of this transaction that was interrupted had its permission before it began.
    let mut at_work = signature(SignatureKind::Hoist, SignaturePlace::Disk, 0);
    at_work.label = Some(TXN.to_owned());
    facts.disks[0].signatures.push(at_work);
    laid_out(&document(sections(json!([]))), &facts);
}

#[test]
fn document_for_other_firmware_is_refused() {
    let with = |firmware: &str| {
        json!({
            "storage": [
                {"part": {"id": "g", "on": "os", "size": "1 MiB", "role": "bios_boot"}},
                {"part": {"id": "esp", "on": "os", "size": "64 MiB", "role": "esp"}},
                part("root", "1 GiB"),
                {"fs": {"id": "fs", "on": "root", "kind": "ext4", "mount": "/"}},
            ],
            "boot": {"firmware": firmware},
        })
    };
    let facts = |firmware: Firmware, bus: Bus| {
        let disk = DiskFacts { bus: Some(bus), ..disk("sda", 4 * GIB) };
        Facts { firmware, ..machine([disk]) }
    };
    for (own, other, firmware) in
        [("bios", "uefi", Firmware::Bios), ("uefi", "bios", Firmware::Uefi)]
    {
        for allowed in [own, "both", "as_started"] {
            laid_out(&document(with(allowed)), &facts(firmware, Bus::Sas));
        }
        refused(with(other), &facts(firmware, Bus::Sas), Code::Firmware, "boot.firmware");
        // Another machine starts from it.
        laid_out(&document(with(other)), &facts(firmware, Bus::Loop));
    }
}

#[test]
fn abandoned_root_disk_of_this_node_is_reported() {
    let with = |policy: Value| {
        json!({
            "policy": policy,
            "storage": [part("root", "1 GiB"),
                {"fs": {"id": "fs", "on": "root", "kind": "ext4", "mount": "/"}}],
        })
    };
    let facts = |node: &str, bus: Bus| {
        let mut before = DiskFacts { bus: Some(bus), ..disk("sdb", 4 * GIB) };
        mark(&mut before, node, false);
        before.signatures[0].ours.as_mut().expect("it is ours").has_root = true;
        machine([disk("sda", 4 * GIB), before])
    };
    let found = refused(with(json!({})), &facts("n1", Bus::Sas), Code::RootMoved, "node.last_root");
    assert!(found.evidence[0].contains("it is on `sdb`"), "{found}");
    laid_out(&document(with(json!({"allow_root_change": true}))), &facts("n1", Bus::Sas));
    laid_out(&document(with(json!({}))), &facts("n2", Bus::Sas));
    laid_out(&document(with(json!({}))), &facts("n1", Bus::Loop));
    // The same disk again, and one of two.
    let mut same = facts("n1", Bus::Sas);
    same.disks[0].serial = Some("S-x".to_owned());
    same.disks[1].serial = Some("S-sda".to_owned());
    laid_out(&document(with(json!({}))), &same);
}

#[test]
fn foreign_content_on_our_disk_is_foreign() {
    let derived = |number: u32| {
        let id = format!("part-{number}").parse().expect("an id");
        Some(derive(Uuid::from_u128(5), "n1", &id))
    };
    // The first partition was there before, or came since; the others hoist made.
    let mut used = used();
    for part in &mut used.table.as_mut().expect("a table").partitions[1..] {
        part.partuuid = derived(part.number);
    }
    mark(&mut used, "n1", false);
    let facts = machine([used.clone()]);
    let found = refused(one_part(json!([])), &facts, Code::ForeignData, "disks.os.wipe");
    assert_eq!(found.evidence.len(), 2, "the table that names it, and what is in it: {found}");
    laid_out(&document(one_part(json!(["gpt", "ext"]))), &facts);
    // The contents of the partition are unknown.
    let mut raw = used.clone();
    raw.signatures.retain(|found| found.place != SignaturePlace::Partition(1));
    let found = refused(one_part(json!([])), &machine([raw]), Code::ForeignData, "disks.os.wipe");
    assert!(found.diagnostic.message.ends_with("holds gpt"), "{found}");
    // The whole disk has foreign contents, and the marker still exists.
    let mut whole = disk("sda", 4 * GIB);
    whole.signatures.push(signature(SignatureKind::Xfs, SignaturePlace::Disk, 0));
    mark(&mut whole, "n1", false);
    let facts = machine([whole]);
    let found = refused(one_part(json!([])), &facts, Code::ForeignData, "disks.os.wipe");
    assert!(found.diagnostic.message.ends_with("holds xfs"), "{found}");
    // An image brings partitions of its own.
    used.signatures.retain(|found| found.kind != SignatureKind::Hoist);
    mark(&mut used, "n1", true);
    laid_out(&document(one_part(json!([]))), &machine([used]));
}

#[test]
fn interrupted_run_is_continued() {
    let left = |txn: &str| {
        let mut left = disk("sda", 8 * GIB);
        let mut at_work = signature(SignatureKind::Hoist, SignaturePlace::Partition(1), 17_408);
        at_work.label = Some(txn.to_owned());
        left.signatures = vec![signature(SignatureKind::Gpt, SignaturePlace::Disk, 512), at_work];
        machine([left])
    };
    laid_out(&document(one_part(json!([]))), &left(TXN));
    let other = Uuid::from_u128(77).to_string();
    refused(one_part(json!([])), &left(&other), Code::ForeignData, "disks.os.wipe");
}

#[test]
fn unnamed_disks_are_in_no_plan() {
    let facts =
        machine([disk("sda", 4 * GIB), DiskFacts { kernel_name: "sdb".to_owned(), ..used() }]);
    let mut facts = facts;
    facts.disks[1].serial = Some("S-sdb".to_owned());
    let layout = laid_out(&document(one_part(json!("any"))), &facts);
    assert_eq!(layout.disks.len(), 1);
    assert_eq!(layout.disks[0].kernel_name, "sda");
}

#[test]
fn busy_disk_is_refused() {
    for reason in [
        BusyReason::Mount("/srv".to_owned()),
        BusyReason::Swap,
        BusyReason::Holder("dm-0".to_owned()),
    ] {
        let mut used = used();
        used.busy.push(Busy { device: "sda1".to_owned(), reason });
        let found = refused(one_part(json!("any")), &machine([used]), Code::Busy, "disks.os");
        assert_eq!(found.evidence.len(), 1);
    }
}

#[test]
fn own_assembled_stack_does_not_block_the_plan() {
    let group = json!({"storage": [
        part("a", "1 GiB"), {"pv": {"id": "p", "on": "a"}}, {"vg": {"id": "v", "on": ["p"]}},
    ]});
    let facts = machine([disk("sda", 4 * GIB)]);
    let mut later = after(&laid_out(&document(group.clone()), &facts), &facts);
    let sda = &mut later.disks[0];
    sda.table.as_mut().unwrap().partitions[0].kernel_name = Some("sda1".to_owned());
    sda.signatures[1].kind = SignatureKind::Lvm;
    let reason = BusyReason::Holder("dm-0".to_owned());
    sda.busy.push(Busy { device: "sda1".to_owned(), reason });
    let settled = laid_out(&document(group.clone()), &later);
    assert!(settled.is_settled());
    assert_eq!(settled.disks[0].tears_down, ["dm-0"], "if anything is done to the disk");
    later.disks[0].busy[0].reason = BusyReason::Mount("/x".to_owned());
    refused(group, &later, Code::Busy, "disks.os");
}

#[test]
fn stacks_of_a_killed_run_are_stopped_and_foreign_ones_not() {
    let mut facts = disk("sda", 4 * GIB);
    let mut at_work = signature(SignatureKind::Hoist, SignaturePlace::Partition(1), 1 << 20);
    at_work.label = Some(TXN.to_owned());
    facts.signatures.push(at_work);
    // Of a partition that the kernel was told of, and that is in no table.
    let reason = BusyReason::Holder("md127".to_owned());
    facts.busy.push(Busy { device: "sda2".to_owned(), reason });
    let layout = laid_out(&document(one_part(json!([]))), &machine([facts.clone()]));
    assert_eq!(layout.disks[0].tears_down, ["md127"]);
    facts.signatures[0].label = Some(Uuid::from_u128(77).to_string());
    refused(one_part(json!("any")), &machine([facts.clone()]), Code::Busy, "disks.os");
    facts.signatures[0].label = Some(TXN.to_owned());
    facts.busy[0].device = "sda".to_owned();
    refused(one_part(json!([])), &machine([facts]), Code::Busy, "disks.os");
}

/// A volume group of two legs.
fn leg(disk: &mut DiskFacts) {
    let mut leg = signature(SignatureKind::Lvm, SignaturePlace::Disk, 512);
    leg.label = Some("data".to_owned());
    leg.uuid = Some("vg-1".to_owned());
    leg.members = Some(2);
    disk.signatures.push(leg);
    disk.busy.push(Busy {
        device: disk.kernel_name.clone(),
        reason: BusyReason::Holder("dm-0".to_owned()),
    });
}

#[test]
fn stack_is_dismantled_only_if_all_its_disks_are_named() {
    let mut one = disk("sda", 4 * GIB);
    let mut two = disk("sdb", 4 * GIB);
    leg(&mut one);
    leg(&mut two);
    let facts = machine([one, two]);
    let found = refused(one_part(json!(["lvm"])), &facts, Code::SharedStack, "disks.os");
    assert!(
        found.diagnostic.message.contains("`data`") && found.diagnostic.message.contains("`sdb`"),
        "{found}"
    );
    let with_two = |wipe: Value| {
        let mut sections = one_part(json!(["lvm"]));
        sections["disks"]["two"] = json!({"match": {"serial": "S-sdb"}, "wipe": wipe});
        sections
    };
    refused(with_two(json!([])), &facts, Code::SharedStack, "disks.os");
    let layout = laid_out(&document(with_two(json!(["lvm"]))), &facts);
    for plan in &layout.disks {
        assert_eq!(
            (plan.destroys.len(), plan.tears_down.as_slice()),
            (1, &["dm-0".to_owned()][..])
        );
    }
    assert_eq!(layout.disks[1].work, Work::None);
}

/// A disk with data in its first partition and a leg in its second.
fn with_leg_inside() -> DiskFacts {
    let mut disk = DiskFacts { kernel_name: "sdb".to_owned(), ..used() };
    disk.serial = Some("S-sdb".to_owned());
    let inside = &mut disk.signatures[2];
    (inside.kind, inside.uuid) = (SignatureKind::Lvm, Some("vg-1".to_owned()));
    disk
}

fn emptying_two(wipe: Value) -> Value {
    let mut sections = one_part(json!(["lvm"]));
    sections["disks"]["two"] = json!({"match": {"serial": "S-sdb"}, "wipe": wipe});
    sections
}

#[test]
fn detached_disk_loses_only_the_partition_of_its_leg() {
    let mut one = disk("sda", 4 * GIB);
    leg(&mut one);
    let mut two = with_leg_inside();
    let part = two.table.as_ref().expect("a table").partitions[1].range();
    let facts = machine([one.clone(), two.clone()]);
    for wipe in [json!(["lvm"]), json!("any")] {
        let layout = laid_out(&document(emptying_two(wipe)), &facts);
        let plan = &layout.disks[1];
        assert_eq!((&plan.writable[..], plan.destroys.len()), (&[part.clone()][..], 1));
        assert_eq!(plan.destroys[0].place, SignaturePlace::Partition(2));
    }
    // The contents of that partition must be named, too.
    let more = signature(SignatureKind::Xfs, SignaturePlace::Partition(2), part.start);
    two.signatures.push(more);
    let facts = machine([one.clone(), two.clone()]);
    let wiped = emptying_two(json!(["lvm"]));
    let found = refused(wiped.clone(), &facts, Code::ForeignData, "disks.two.wipe");
    assert!(
        found.diagnostic.message.contains("xfs") && !found.diagnostic.message.contains("ext"),
        "{found}"
    );
    let both = laid_out(&document(emptying_two(json!(["lvm", "xfs"]))), &facts);
    assert_eq!((both.disks[1].destroys.len(), both.disks[1].writable.len()), (2, 1));
    // Another partition inside of it is foreign.
    two.signatures.pop();
    two.table.as_mut().expect("a table").partitions[2].start -= MIB;
    let facts = machine([one, two]);
    refused(wiped, &facts, Code::ForeignData, "disks.two.wipe");
}

#[test]
fn whole_disk_leg_is_wiped_only_if_all_data_is_named() {
    let mut one = disk("sda", 4 * GIB);
    let mut two = with_leg_inside();
    leg(&mut one);
    two.signatures[2].place = SignaturePlace::Disk;
    let facts = machine([one, two]);
    let wiped = emptying_two(json!(["lvm"]));
    let found = refused(wiped, &facts, Code::ForeignData, "disks.two.wipe");
    assert!(found.diagnostic.message.contains("ext, gpt"), "{found}");
    let layout = laid_out(&document(emptying_two(json!("any"))), &facts);
    assert_eq!(layout.disks[1].writable.as_slice(), std::slice::from_ref(&(0..8 * GIB)));
    assert_eq!(layout.disks[1].destroys.len(), 5);
}

#[test]
fn named_disk_without_nodes_is_left_alone() {
    let mut sections = one_part(json!([]));
    sections["disks"]["two"] = json!({"match": {"serial": "S-sdb"}, "wipe": "any"});
    let mut two = DiskFacts { kernel_name: "sdb".to_owned(), ..used() };
    two.serial = Some("S-sdb".to_owned());
    two.busy.push(Busy { device: "sdb1".to_owned(), reason: BusyReason::Swap });
    let layout = laid_out(&document(sections), &machine([disk("sda", 4 * GIB), two]));
    let plan = &layout.disks[1];
    assert_eq!((plan.work.clone(), plan.writable.len(), plan.destroys.len()), (Work::None, 0, 0));
}

#[test]
fn image_larger_than_its_target_is_refused() {
    let with = |target: &str, size: &str| {
        json!({
            "storage": [part("root", "1 GiB"), {"fs": {"id": "fs", "on": "root", "kind": "ext4"}}],
            "images": {"i": {"sources": ["https://h/i"], "target": target, "size": size}},
        })
    };
    let facts = machine([disk("sda", 4 * GIB)]);
    for target in ["root", "fs"] {
        laid_out(&document(with(target, "1 GiB")), &facts);
        refused(with(target, "1073741825 B"), &facts, Code::ImageTooLarge, "images.i");
    }
    let whole = |size: &str| {
        json!({"images": {"i":
        {"sources": ["https://h/i"], "target": "os", "size": size}}})
    };
    laid_out(&document(whole("4 GiB")), &facts);
    refused(whole("4097 MiB"), &facts, Code::ImageTooLarge, "images.i");
}

#[test]
fn layout_that_firmware_cannot_boot_is_refused() {
    let image = |more: Value| {
        let mut image = json!({"sources": ["https://h/i"], "target": "os"});
        for (key, value) in more.as_object().expect("an object").clone() {
            image[key] = value;
        }
        json!({"images": {"i": image}})
    };
    let bios = machine([disk("sda", 4 * GIB)]);
    let uefi = Facts { firmware: Firmware::Uefi, ..bios.clone() };
    laid_out(&document(image(json!({"sector_size": 512, "table": "gpt"}))), &uefi);
    refused(image(json!({"sector_size": 4096})), &bios, Code::Firmware, "images.i");
    laid_out(&document(image(json!({"table": "mbr"}))), &bios);
    refused(image(json!({"table": "mbr"})), &uefi, Code::Firmware, "images.i");
    let root = |role: &str| {
        json!({"boot": {}, "storage": [
            {"part": {"id": "a", "on": "os", "size": "512 MiB", "role": role}},
            part("root", "1 GiB"),
            {"fs": {"id": "fs", "on": "root", "kind": "ext4", "mount": "/"}},
        ]})
    };
    laid_out(&document(root("esp")), &uefi);
    refused(root("data"), &uefi, Code::Firmware, "boot");
    laid_out(&document(root("bios_boot")), &bios);
    refused(root("data"), &bios, Code::Firmware, "boot");
    let mut large = bios;
    large.disks[0].logical_sector = 4096;
    refused(root("bios_boot"), &large, Code::Firmware, "disks.os");
}

#[test]
fn duplicate_names_are_refused() {
    let labelled = json!({"storage": [
        part("a", "1 GiB"), {"fs": {"id": "fs", "on": "a", "kind": "ext4", "label": "root"}},
        part("b", "1 GiB"), {"pv": {"id": "pv", "on": "b"}}, {"vg": {"id": "vg", "on": ["pv"]}},
    ]});
    let with = |kind: SignatureKind, label: &str, uuid: Option<String>| {
        let mut other = disk("sdb", GIB);
        let mut found = signature(kind, SignaturePlace::Disk, 0);
        (found.label, found.uuid) = (Some(label.to_owned()), uuid);
        other.signatures.push(found);
        machine([disk("sda", 4 * GIB), other])
    };
    laid_out(&document(labelled.clone()), &with(SignatureKind::Ext, "other", None));
    laid_out(&document(labelled.clone()), &with(SignatureKind::Ext, "vg", None));
    refused(
        labelled.clone(),
        &with(SignatureKind::Xfs, "root", None),
        Code::Duplicate,
        "storage.fs",
    );
    refused(labelled.clone(), &with(SignatureKind::Lvm, "vg", None), Code::Duplicate, "storage.vg");
    let mut small = labelled.clone();
    small["storage"][1]["fs"]["kind"] = json!("vfat");
    refused(small, &with(SignatureKind::Vfat, "ROOT", None), Code::Duplicate, "storage.fs");
    let uuid = derive(TXN.parse().unwrap(), "n1", &"fs".parse().unwrap()).to_string();
    refused(labelled, &with(SignatureKind::Ext, "x", Some(uuid)), Code::Duplicate, "storage.fs");
    let twice = json!({"storage": [
        part("a", "1 GiB"), {"fs": {"id": "x", "on": "a", "kind": "ext4", "label": "root"}},
        part("b", "1 GiB"), {"fs": {"id": "y", "on": "b", "kind": "ext4", "label": "root"}},
    ]});
    refused(twice, &machine([disk("sda", 4 * GIB)]), Code::Duplicate, "storage.y");
}

#[test]
fn second_config_drive_is_refused() {
    let sections = json!({
        "storage": [part("root", "1 GiB")],
        "config_drive": {"files": {"openstack/latest/user_data": {"text": "x"}}},
    });
    let with = |label: &str, wipe: Value| {
        let mut other = disk("sdb", GIB);
        let mut found = signature(SignatureKind::Iso9660, SignaturePlace::Disk, 0x8001);
        found.label = Some(label.to_owned());
        other.signatures.push(found);
        let mut sections = sections.clone();
        sections["disks"] = json!({
            "os": {"match": {"serial": "S-sda"}},
            "old": {"match": {"serial": "S-sdb"}, "wipe": wipe},
        });
        sections["erase"] = json!({"disks": ["old"]});
        (sections, machine([disk("sda", 4 * GIB), other]))
    };
    let (mut sections, facts) = with("config-2", json!("any"));
    laid_out(&document(sections.clone()), &facts);
    sections.as_object_mut().expect("sections").remove("erase");
    let found = refused(sections.clone(), &facts, Code::Duplicate, "config_drive");
    assert!(found.to_string().contains("disk `sdb`"), "{found}");
    let (_, facts) = with("install", json!([]));
    laid_out(&document(sections.clone()), &facts);
    // Without a config drive of its own, the system takes the other one.
    let (_, facts) = with("CONFIG-2", json!([]));
    sections.as_object_mut().expect("sections").remove("config_drive");
    laid_out(&document(sections), &facts);
}

#[test]
fn label_of_retained_file_system_is_not_reused() {
    let facts = machine([used()]);
    let with = |label: &str| {
        let mut sections = keeping(2, json!({}));
        let fs = json!({"fs": {"id": "new", "on": "last", "kind": "ext4", "label": label}});
        sections["storage"].as_array_mut().expect("a list").push(fs);
        // It is retained without its name.
        sections["storage"][4]["fs"]["retain"] = json!({});
        sections
    };
    laid_out(&document(with("fs1")), &facts);
    refused(with("fs2"), &facts, Code::Duplicate, "storage.new");
    let mut said = with("other");
    said["storage"][4]["fs"]["label"] = json!("fs2");
    laid_out(&document(said), &facts);
}

#[test]
fn clone_of_an_earlier_partition_is_refused() {
    let sections = one_part(json!([]));
    let facts = machine([disk("sda", 4 * GIB)]);
    let mut clone = after(&laid_out(&document(sections.clone()), &facts), &facts).disks.remove(0);
    (clone.kernel_name, clone.serial) = ("sdb".to_owned(), Some("S-sdb".to_owned()));
    let facts = machine([disk("sda", 4 * GIB), clone]);
    refused(sections, &facts, Code::Duplicate, "storage.root");
}

#[test]
fn root_move_to_another_disk_is_refused() {
    let with = |serial: &str, policy: Value| {
        json!({
            "node": {"id": "n1", "last_root": {"serial": serial}},
            "policy": policy,
            "storage": [part("root", "1 GiB"),
                {"fs": {"id": "fs", "on": "root", "kind": "ext4", "mount": "/"}}],
        })
    };
    let facts = machine([disk("sda", 4 * GIB), disk("sdb", 4 * GIB)]);
    laid_out(&document(with("S-sda", json!({}))), &facts);
    refused(with("S-sdb", json!({})), &facts, Code::RootMoved, "node.last_root");
    laid_out(&document(with("S-sdb", json!({"allow_root_change": true}))), &facts);
}

#[test]
fn one_of_several_root_disks_is_enough() {
    let with = |last: Value| {
        json!({
            "node": {"id": "n1", "last_root": last},
            "storage": [part("root", "1 GiB"),
                {"fs": {"id": "fs", "on": "root", "kind": "ext4", "mount": "/"}}],
        })
    };
    let facts = machine([disk("sda", 4 * GIB), disk("sdb", 4 * GIB)]);
    // The other half of the mirror broke, and is gone.
    let mirror = json!([{"serial": "S-gone"}, {"serial": "S-sda"}]);
    laid_out(&document(with(mirror)), &facts);
    let others = json!([{"serial": "S-sdb"}, {"serial": "S-gone"}]);
    let found = refused(with(others), &facts, Code::RootMoved, "node.last_root");
    let hint = found.diagnostic.hint.clone().unwrap_or_default();
    assert!(hint.contains("--allow-root-change") && hint.contains("policy."), "{found}");
}

#[test]
fn kept_part_that_differs_is_refused() {
    let facts = machine([used()]);
    let place = "storage.kept.retain";
    refused(keeping(9, json!({})), &facts, Code::NotAsRetained, place);
    refused(keeping(2, json!({"name": "other"})), &facts, Code::NotAsRetained, place);
    let mut larger = keeping(2, json!({}));
    larger["storage"][0]["part"]["size"] = json!("1025 MiB");
    laid_out(&document(larger.clone()), &facts);
    larger["storage"][0]["part"]["size"] = json!("1026 MiB");
    refused(larger.clone(), &facts, Code::NotAsRetained, place);
    larger["storage"][0]["part"]["retain"]["tolerance"] = json!("2 MiB");
    laid_out(&document(larger), &facts);
    // The partition matches, and its contents do not.
    refused(keeping(3, json!({})), &facts, Code::NotAsRetained, "storage.kept-fs.retain");
    let mut damaged = used();
    damaged.table.as_mut().unwrap().defects.push("its copy is gone".to_owned());
    refused(keeping(2, json!({})), &machine([damaged]), Code::NotAsRetained, place);
}

#[test]
fn too_small_file_system_is_refused() {
    let facts = machine([disk("sda", 4 * GIB)]);
    for (kind, least) in [("xfs", 300), ("btrfs", 109), ("ext4", 1), ("vfat", 1), ("swap", 1)] {
        let with = |size: u64| {
            json!({"storage": [part("a", &format!("{size} MiB")),
                {"fs": {"id": "x", "on": "a", "kind": kind}}]})
        };
        laid_out(&document(with(least)), &facts);
        if least > 1 {
            refused(with(least - 1), &facts, Code::NoRoom, "storage.x");
        }
    }
    // File systems of images have a size already.
    let mut brought = json!({"storage": [part("a", "64 MiB"),
        {"fs": {"id": "x", "on": "a", "kind": "xfs"}}]});
    brought["images"] = json!({"i": {"sources": ["https://h/i"], "target": "x"}});
    laid_out(&document(brought), &facts);
}

#[test]
fn too_large_layout_is_refused_with_the_free_space() {
    let facts = machine([disk("sda", 1024 * MIB)]);
    let sections = json!({"storage": [part("a", "600 MiB"), part("b", "600 MiB")]});
    let found = refused(sections, &facts, Code::NoRoom, "storage.b.size");
    assert!(found.diagnostic.message.contains("422 MiB"), "{found}");
    let sections = json!({"storage": [part("a", "1022 MiB"), part("b", "rest")]});
    refused(sections, &facts, Code::NoRoom, "storage.b.size");
    let tiny = machine([disk("sda", MIB)]);
    refused(json!({"storage": [part("a", "1%")]}), &tiny, Code::NoRoom, "storage.a.size");
    let group = |size: &str| {
        json!({"storage": [
            part("a", "100 MiB"), {"pv": {"id": "p", "on": "a"}}, {"vg": {"id": "v", "on": ["p"]}},
            {"lv": {"id": "l", "on": "v", "size": size}},
        ]})
    };
    laid_out(&document(group("96 MiB")), &facts);
    refused(group("97 MiB"), &facts, Code::NoRoom, "storage.l.size");
}
