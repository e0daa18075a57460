use super::*;
use hoist_provision::document::MdLevel;

fn config(entries: Value) -> Value {
    json!({"storage": {"version": 1, "config": entries}})
}

/// Two disks, a mirror of the system, and a group with an encrypted volume.
fn whole() -> Value {
    let disk = |id: &str, serial: &str| {
        json!({"id": id, "type": "disk", "ptable": "gpt", "serial": serial, "wipe": "superblock-recursive",
               "grub_device": true, "preserve": false})
    };
    let part = |id: &str, disk: &str, number: u32, size: Value, flag: Option<&str>| json!({"id": id, "type": "partition", "device": disk, "number": number, "size": size, "flag": flag});
    config(json!([
        disk("a", "S-sda"),
        part("a1", "a", 1, json!("512M"), Some("boot")),
        part("a2", "a", 2, json!("4GB"), None),
        part("a3", "a", 3, json!(-1), None),
        disk("b", "S-sdb"),
        part("b1", "b", 1, json!(4_294_967_296_u64), None),
        {"id": "md", "type": "raid", "name": "md0", "raidlevel": 1, "devices": ["a2", "b1"]},
        {"id": "vg", "type": "lvm_volgroup", "name": "data", "devices": ["a3"]},
        {"id": "lv", "type": "lvm_partition", "name": "pg", "volgroup": "vg", "size": "1G"},
        {"id": "crypt", "type": "dm_crypt", "volume": "lv", "keyfile": "secret://pg", "dm_name": "pg"},
        {"id": "esp-fs", "type": "format", "fstype": "fat32", "volume": "a1"},
        {"id": "root-fs", "type": "format", "fstype": "ext4", "volume": "md", "label": "root"},
        {"id": "pg-fs", "type": "format", "fstype": "xfs", "volume": "crypt"},
        {"id": "m1", "type": "mount", "device": "root-fs", "path": "/", "options": "noatime"},
        {"id": "m2", "type": "mount", "device": "esp-fs", "path": "/boot/efi"},
        {"id": "m3", "type": "mount", "device": "pg-fs", "path": "/srv/pg"},
    ]))
}

#[test]
fn configuration_becomes_a_document() {
    let document = parsed(&Curtin, &whole());
    let disks = &document.sections.disks.0;
    assert_eq!(disks.len(), 2);
    assert!(disks.values().all(|disk| disk.wipe == Wipe::ANY), "as `wipe` says");
    let roles = |disk: &str| -> Vec<_> {
        let of = |node: &StorageNode| match node {
            StorageNode::Part(part) if part.on.as_str() == disk => Some((part.size, part.role)),
            _ => None,
        };
        document.sections.storage.iter().filter_map(of).collect()
    };
    let exact = |mib: u64| Size::Exact(hoist_provision::document::Bytes(mib * MIB));
    assert_eq!(
        roles("a"),
        [(exact(512), PartRole::Esp), (exact(4096), PartRole::Raid), (Size::Rest, PartRole::Lvm)]
    );
    assert_eq!(roles("b"), [(exact(4096), PartRole::Raid)]);
    let md = document.sections.storage.iter().find_map(|node| match node {
        StorageNode::Md(md) => Some(md),
        _ => None,
    });
    assert_eq!(md.map(|md| (md.level, md.on.len())), Some((MdLevel::Raid1, 2)));
    let root = mounted(&document, "/");
    assert_eq!((root.on.as_str(), root.label.as_deref()), ("md", Some("root")));
    assert_eq!(root.options, ["noatime"]);
    assert_eq!(mounted(&document, "/srv/pg").on.as_str(), "crypt");
    assert_eq!(mounted(&document, "/boot/efi").kind, hoist_provision::document::FsKind::Vfat);
    layout::plan(&document, &machine(&[("sda", 10_000), ("sdb", 10_000)])).expect("it fits");
}

#[test]
fn unknown_or_preserved_items_are_refused_by_name() {
    let with = |at: usize, field: &str, value: Value| {
        let mut input = whole();
        input["storage"]["config"][at][field] = value;
        input
    };
    let places = [
        (with(0, "preserve", json!(true)), Code::Unsupported, "config[0].preserve"),
        (with(0, "wipe", json!("zero")), Code::Unsupported, "config[0].wipe"),
        (with(0, "ptable", json!("msdos")), Code::Unsupported, "config[0].ptable"),
        (with(1, "flag", json!("prep")), Code::Unsupported, "config[1].flag"),
        (with(1, "number", json!(2)), Code::Unsupported, "config[1].number"),
        (with(1, "size", json!("many")), Code::BadValue, "config[1].size"),
        (with(1, "size", json!("99999999T")), Code::BadValue, "config[1].size"),
        (with(6, "raidlevel", json!("container")), Code::Unsupported, "config[6].raidlevel"),
        (with(14, "device", json!("nobody")), Code::NoSuchThing, "config[14].device"),
    ];
    for (input, code, place) in places {
        let found = refused(&Curtin, &input, code);
        assert_eq!(found.diagnostic.at, format!("storage.{place}"), "{found}");
    }
    for (input, word) in [
        (with(0, "multipath", json!("m")), "multipath"),
        (with(1, "offset", json!(1)), "offset"),
        (with(0, "type", json!("bcache")), "bcache"),
        (json!({"storage": {"version": 1, "config": []}, "grub": {}}), "grub"),
    ] {
        let found = refused(&Curtin, &input, Code::Unreadable);
        assert!(found.to_string().contains(word), "{found}");
    }
    let newer = json!({"storage": {"version": 2, "config": []}});
    assert!(refused(&Curtin, &newer, Code::Unsupported).to_string().contains("version 2"));
}

#[test]
fn encryption_key_is_refused_and_not_repeated() {
    let mut input = whole();
    input["storage"]["config"][9]["key"] = json!("correct horse");
    let found = refused(&Curtin, &input, Code::Unsupported);
    assert!(!format!("{found:?}").contains("horse"), "{found}");
    let mut input = whole();
    input["storage"]["config"][9]["keyfile"] = json!("/srv/horse");
    let found = refused(&Curtin, &input, Code::Unsupported);
    assert!(!format!("{found:?}").contains("horse"), "{found}");
}
