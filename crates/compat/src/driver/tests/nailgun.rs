use super::*;
use hoist_provision::document::{Boot, Compression, FsKind};

/// A disk with these volumes, of 100 GiB.
fn disk(name: &str, volumes: Value) -> Value {
    json!({
        "type": "disk", "id": name, "name": name, "size": 102_400,
        "extra": [format!("disk/by-id/ata-{name}")], "free_space": 0, "volumes": volumes,
    })
}

fn input(spaces: Value) -> Value {
    json!({
        "profile": "ubuntu_1404_x86_64",
        "ks_meta": {
            "master_ip": "10.20.0.2",
            "pm_data": {"ks_spaces": spaces, "kernel_params": "console=ttyS0,9600 quiet"},
        },
    })
}

fn root(size: i64) -> Value {
    json!({"type": "partition", "mount": "/", "size": size, "file_system": "ext4", "name": "Root"})
}

const ADDED: [u64; 2] = [24, 200];

#[test]
fn every_disk_has_room_for_grub_and_for_uefi_later() {
    let spaces = json!([
        disk("sda", json!([root(10_000)])),
        disk("sdb", json!([{"type": "partition", "mount": "/srv", "size": 500}])),
    ]);
    let document = parsed(&Nailgun, &input(spaces));
    let expected = [
        (24, PartRole::BiosBoot),
        (200, PartRole::Data),
        (10_000, PartRole::Data),
        (20, PartRole::ConfigDrive),
    ];
    assert_eq!(parts(&document, "sda"), expected);
    assert_eq!(sizes(&document, "sdb"), [24, 200, 500]);
    // Bareon begins at the first MiB, too.
    let facts = machine(&[("sda", 102_400), ("sdb", 102_400)]);
    assert_eq!(laid_out(&document, &facts), [(1, 24), (25, 200), (225, 10_000), (10_225, 20)]);
}

#[test]
fn boot_section_has_the_kernel_arguments_of_the_input() {
    let text = input(json!([disk("sda", json!([root(10_000)]))])).to_string();
    let document = Nailgun.parse(text.as_bytes(), &options()).expect("a document");
    assert!(document.sections.boot.is_none(), "no boot files are named");
    let boot = Boot { kernel_args: vec!["panic=5".to_owned()], ..Boot::default() };
    let with_boot = Options { boot: Some(boot), ..options() };
    let document = Nailgun.parse(text.as_bytes(), &with_boot).expect("a document");
    let boot = document.sections.boot.expect("boot");
    assert_eq!(boot.kernel_args, ["console=ttyS0,9600", "quiet", "panic=5"]);
}

#[test]
fn config_drive_is_on_the_disk_of_root_or_of_group_os() {
    let os = json!({"type": "pv", "vg": "os", "size": 5000, "lvm_meta_size": 64});
    let lv =
        json!({"type": "lv", "name": "root", "size": 4000, "mount": "/", "file_system": "ext4"});
    let spaces = json!([
        disk("sda", json!([{"type": "partition", "mount": "/srv", "size": 500}])),
        disk("sdb", json!([os])),
        {"type": "vg", "id": "os", "volumes": [lv]},
    ]);
    let document = parsed(&Nailgun, &input(spaces));
    assert_eq!(sizes(&document, "sda"), [24, 200, 500]);
    assert_eq!(parts(&document, "sdb").last(), Some(&(20, PartRole::ConfigDrive)));
    let nowhere =
        json!([disk("sda", json!([{"type": "partition", "mount": "/srv", "size": 500}]))]);
    refused(&Nailgun, &input(nowhere), Code::Missing);
}

#[test]
fn boot_is_on_one_disk_only_and_on_nvme_last() {
    let boot = json!({"type": "raid", "mount": "/boot", "size": 200});
    let more = |name: &str| {
        disk(name, json!([boot, {"type": "partition", "mount": format!("/{name}"), "size": 500}]))
    };
    let document = parsed(
        &Nailgun,
        &input(json!([more("nvme0n1"), disk("sda", json!([boot, root(1000)])), more("sdb"),])),
    );
    assert_eq!(sizes(&document, "nvme0n1"), [24, 200, 500]);
    assert_eq!(sizes(&document, "sda"), [24, 200, 200, 1000, 20]);
    assert_eq!(sizes(&document, "sdb"), [24, 200, 500]);
    assert_eq!(mounted(&document, "/boot").kind, FsKind::Ext2);
    let marked = {
        let mut spaces = json!([disk("sda", json!([boot, root(1000)])), more("sdb")]);
        spaces[1]["bootable"] = json!(true);
        spaces
    };
    let document = parsed(&Nailgun, &input(marked));
    assert_eq!(sizes(&document, "sdb"), [24, 200, 200, 500]);
    let nvme = json!([disk("nvme0n1", json!([boot, root(1000)]))]);
    let document = parsed(&Nailgun, &input(nvme));
    assert_eq!(sizes(&document, "nvme0n1"), [24, 200, 200, 1000, 20]);
    let mut both = json!([disk("sda", json!([boot, root(1000)])), more("sdb")]);
    both[0]["bootable"] = json!(true);
    both[1]["bootable"] = json!(true);
    refused(&Nailgun, &input(both), Code::Contradiction);
}

#[test]
fn empty_volumes_and_boot_only_disks_are_skipped() {
    let spaces = json!([
        disk("sda", json!([root(1000), {"type": "partition", "mount": "/empty", "size": 0}])),
        disk(
            "sdb",
            json!([
                {"type": "boot", "size": 300},
                {"type": "lvm_meta_pool", "size": 64},
                {"type": "partition", "mount": "/boot", "size": 200},
                {"type": "pv", "vg": "os", "size": 0},
            ])
        ),
    ]);
    let mut spaces = spaces;
    spaces[0]["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "partition", "mount": "/boot", "size": 200, "file_system": "ext2"}));
    let document = parsed(&Nailgun, &input(spaces));
    assert_eq!(sizes(&document, "sda"), [24, 200, 1000, 200, 20]);
    let disks: Vec<_> = document.sections.disks.0.keys().map(ToString::to_string).collect();
    assert_eq!(disks, ["sda"]);
}

#[test]
fn journals_of_ceph_share_their_volume() {
    let osd = |name: &str| disk(name, json!([{"type": "partition", "name": "ceph", "size": 5000}]));
    let journal = |size: i64| {
        json!({"type": "partition", "name": "cephjournal", "size": size,
            "partition_guid": "45b0969e-9b03-4f30-b4c6-b4b80ceff106"})
    };
    // One volume for three: each has a third, and none more than 10 GiB.
    for (size, each) in [(20_480, 6826), (60_000, 10_240)] {
        let spaces = json!([
            disk("sda", json!([root(1000), journal(size)])),
            osd("sdb"),
            osd("sdc"),
            osd("sdd"),
        ]);
        let document = parsed(&Nailgun, &input(spaces));
        let expected = [&ADDED[..], &[1000, each, each, each, 20]].concat();
        assert_eq!(sizes(&document, "sda"), expected);
        let guids = document
            .sections
            .storage
            .iter()
            .filter(|node| matches!(node, StorageNode::Part(part) if part.type_guid.is_some()));
        assert_eq!(guids.count(), 3);
    }
    // Five on two devices are three and two.
    let osds = ["sdc", "sdd", "sde", "sdf", "sdg"].map(osd);
    let mut spaces =
        vec![disk("sda", json!([root(1000), journal(900)])), disk("sdb", json!([journal(900)]))];
    spaces.extend(osds);
    let document = parsed(&Nailgun, &input(json!(spaces)));
    assert_eq!(sizes(&document, "sda"), [24, 200, 1000, 300, 300, 300, 20]);
    assert_eq!(sizes(&document, "sdb"), [24, 200, 300, 300]);
}

#[test]
fn volume_groups_have_room_for_the_volumes_of_bareon() {
    let pv = |size: i64| json!({"type": "pv", "vg": "os", "size": size, "lvm_meta_size": 64});
    let lv = |name: &str, size: i64, mount: &str, kind: &str| json!({"type": "lv", "name": name, "size": size, "mount": mount, "file_system": kind});
    let spaces = json!([
        disk("sda", json!([pv(5000)])), disk("sdb", json!([pv(5000)])),
        {"type": "vg", "id": "os", "volumes": [
            // All that the two have beside their notes.
            lv("root", 7872, "/", "ext4"), lv("swap", 2000, "swap", "swap"), lv("none", 0, "/x", "xfs"),
        ]},
    ]);
    let document = parsed(&Nailgun, &input(spaces));
    let facts = machine(&[("sda", 102_400), ("sdb", 102_400)]);
    let layout = layout::plan(&document, &facts).unwrap_or_else(|found| panic!("{found:#?}"));
    let of = |id: &str| layout.stack.iter().find(|plan| plan.id.as_str() == id).expect(id).size;
    assert_eq!((of("lv-os-root") / MIB, of("lv-os-swap") / MIB), (7872, 2000));
    assert_eq!(mounted(&document, "/").kind, FsKind::Ext4);
    let swaps = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    assert_eq!(swaps.filter(|fs| fs.kind == FsKind::Swap && fs.mount.is_none()).count(), 1);
}

#[test]
fn mount_point_on_two_disks_is_mirrored() {
    let raid = json!({"type": "raid", "mount": "/", "size": 1000, "file_system": "ext4"});
    let spaces = json!([disk("sda", json!([raid])), disk("sdb", json!([raid]))]);
    let document = parsed(&Nailgun, &input(spaces));
    let md = document.storage(&mounted(&document, "/").on).expect("an array");
    assert_eq!((md.kind(), md.on().len()), ("md", 2));
    // With one leg there is nothing to mirror.
    let document = parsed(&Nailgun, &input(json!([disk("sda", json!([raid]))])));
    let part = document.storage(&mounted(&document, "/").on).expect("a partition");
    assert_eq!(part.kind(), "part");
}

#[test]
fn group_without_volumes_is_left_out() {
    let empty = |size: i64| {
        json!([
            disk("sda", json!([root(1000), {"type": "pv", "vg": "image", "size": 0}])),
            {"type": "vg", "id": "image", "volumes": [
                {"type": "lv", "name": "glance", "size": size, "mount": "/g", "file_system": "xfs"}]},
        ])
    };
    let document = parsed(&Nailgun, &input(empty(0)));
    let mut kinds = document.sections.storage.iter().map(StorageNode::kind);
    assert!(kinds.all(|kind| ["part", "fs"].contains(&kind)));
    refused(&Nailgun, &input(empty(500)), Code::NoSuchThing);
}

#[test]
fn partitions_of_disks_with_long_links_have_short_names() {
    let name = "ata-WDC_WD40EFRX-68WT0N0_WD-WCC4E0123456";
    let spaces = json!([disk(name, json!([root(1000)]))]);
    let document = parsed(&Nailgun, &input(spaces));
    let facts = machine(&[(name, 102_400)]);
    let layout = layout::plan(&document, &facts).unwrap_or_else(|found| panic!("{found:#?}"));
    let Work::Table(table) = &layout.disks[0].work else { panic!("a table") };
    let names: Vec<_> = table.partitions.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["bios-boot", "uefi-later", "root", "config-drive"]);
}

#[test]
fn unique_link_binds_a_disk_with_another_name() {
    let mut space = disk("sda", json!([root(1000)]));
    space["name"] = json!("sdc");
    space["id"] = json!("disk/by-path/pci-0000:00:1f.2-scsi-0:0:0:0");
    let document = parsed(&Nailgun, &input(json!([space])));
    let layout = layout::plan(&document, &machine(&[("sdc", 500), ("sda", 102_400)]));
    assert_eq!(layout.expect("it is known by its link").disks[0].kernel_name, "sda");
}

#[test]
fn file_systems_default_to_xfs_and_may_be_none() {
    let spaces = json!([disk(
        "sda",
        json!([
            root(1000),
            {"type": "partition", "mount": "/a", "size": 500, "disk_label": "a-label"},
            {"type": "partition", "mount": "none", "size": 500, "file_system": "none"},
            {"type": "partition", "mount": "none", "size": 500, "file_system": "ext3"},
        ])
    )]);
    let document = parsed(&Nailgun, &input(spaces));
    let fs = mounted(&document, "/a");
    assert_eq!((fs.kind, fs.label.as_deref()), (FsKind::Xfs, Some("a-label")));
    let count = document.sections.storage.iter().filter_map(StorageNode::as_fs).count();
    assert_eq!(count, 3);
    let odd = json!([disk(
        "sda",
        json!([root(1000),
        {"type": "partition", "mount": "/b", "size": 500, "file_system": "reiserfs"}])
    )]);
    refused(&Nailgun, &input(odd), Code::Unsupported);
}

#[test]
fn images_are_written_where_they_are_mounted() {
    let mut with = input(json!([disk("sda", json!([root(1000)]))]));
    with["ks_meta"]["image_data"] = json!({
        "/": {"uri": "http://10.20.0.2/root.img.gz", "format": "ext4", "container": "gzip"},
    });
    let document = parsed(&Nailgun, &with);
    let (_, image) = document.sections.images.iter().next().expect("an image");
    assert_eq!(image.target, mounted(&document, "/").id);
    assert_eq!((image.compression, image.grow), (Compression::Gzip, true));
    // https is as good.
    with["ks_meta"]["image_data"]["/"]["uri"] = json!("https://10.20.0.2/root.img.gz");
    parsed(&Nailgun, &with);
    with["ks_meta"]["image_data"]["/"]["container"] = json!("tar");
    refused(&Nailgun, &with, Code::Unsupported);
    with["ks_meta"]["image_data"] = json!({"/var": {"uri": "http://h/i", "container": "raw"}});
    refused(&Nailgun, &with, Code::NoSuchThing);
}

#[test]
fn kept_data_keeps_all_tables() {
    let mut spaces = json!([disk(
        "sda",
        json!([root(1000), {"type": "partition", "mount": "/keep", "size": 500, "keep_data": true}])
    ),]);
    let document = parsed(&Nailgun, &input(spaces.clone()));
    assert_eq!(document.sections.policy.tables, Tables::Adopt);
    assert!(mounted(&document, "/keep").retain.is_some());
    assert!(mounted(&document, "/").retain.is_none());
    spaces[0]["volumes"][1]["keep_data"] = json!(false);
    let document = parsed(&Nailgun, &input(spaces));
    assert_eq!(document.sections.policy.tables, Tables::Make);
}

#[test]
fn kept_physical_volume_keeps_its_volume_group() {
    let spaces = json!([
        disk("sda", json!([root(1000), {"type": "pv", "vg": "data", "size": 5000, "keep_data": true}])),
        {"type": "vg", "id": "data", "volumes": [
            {"type": "lv", "name": "x", "size": 1000, "mount": "/x", "file_system": "xfs"}]},
    ]);
    let document = parsed(&Nailgun, &input(spaces));
    assert!(mounted(&document, "/x").retain.is_some());
}

#[test]
fn image_over_kept_content_is_refused() {
    let mut kept = root(1000);
    kept["keep_data"] = json!(true);
    let mut with = input(json!([disk("sda", json!([kept]))]));
    with["ks_meta"]["image_data"] = json!({"/": {"uri": "http://h/i", "container": "raw"}});
    refused(&Nailgun, &with, Code::Contradiction);
}

#[test]
fn disk_with_contradicting_path_and_name_is_refused() {
    // Both drives have one WWN; the path says the second, the name the first.
    let nvme = |name: &str, path: &str| DiskFacts {
        kernel_name: name.to_owned(),
        by_path: Some(path.to_owned()),
        links: vec!["by-id/wwn-eui.0025385000000001".to_owned()],
        wwn: Some("eui.0025385000000001".to_owned()),
        serial: Some(format!("S-{name}")),
        size: 102_400 * MIB,
        logical_sector: 512,
        ..DiskFacts::default()
    };
    let facts = Facts {
        disks: vec![
            nvme("nvme0n1", "pci-0000:04:00.0-nvme-1"),
            nvme("nvme1n1", "pci-0000:05:00.0-nvme-1"),
        ],
        ..Facts::default()
    };
    for extra in [json!([]), json!(["disk/by-id/wwn-eui.0025385000000001"])] {
        let mut space = disk("nvme0n1", json!([root(1000)]));
        space["id"] = json!("disk/by-path/pci-0000:05:00.0-nvme-1");
        space["extra"] = extra;
        let document = parsed(&Nailgun, &input(json!([space.clone()])));
        let found = layout::plan(&document, &facts).expect_err("the wrong disk");
        assert_eq!(found[0].code, Code::NoDisk, "{}", found[0]);
        // Where both say the same, it is that one.
        space["name"] = json!("nvme1n1");
        let document = parsed(&Nailgun, &input(json!([space])));
        let layout = layout::plan(&document, &facts).expect("the right disk");
        assert_eq!(layout.disks[0].kernel_name, "nvme1n1");
    }
}

#[test]
fn disk_matched_by_name_alone_needs_permission() {
    let mut space = disk("sda", json!([root(1000)]));
    space["extra"] = json!([]);
    let text = input(json!([space])).to_string();
    let facts = machine(&[("sda", 102_400)]);
    let document = Nailgun.parse(text.as_bytes(), &options()).expect("a document");
    assert_eq!(layout::plan(&document, &facts).expect_err("weak")[0].code, Code::WeakMatch);
    let allowed = Options { allow_kernel_names: true, ..options() };
    let document = Nailgun.parse(text.as_bytes(), &allowed).expect("a document");
    layout::plan(&document, &facts).expect("allowed");
}

#[test]
fn disk_content_is_destroyed_only_with_permission() {
    let text = input(json!([disk("sda", json!([root(1000)]))])).to_string();
    let wiping = Options { wipe: Wipe::ANY, ..options() };
    for (options, wipe) in [(options(), Wipe::default()), (wiping, Wipe::ANY)] {
        let document = Nailgun.parse(text.as_bytes(), &options).expect("a document");
        assert_eq!(document.sections.disks.iter().next().expect("a disk").1.wipe, wipe);
    }
}

#[test]
fn all_type_errors_are_reported_with_their_paths() {
    let wrong = |field: &str| {
        let mut space = disk("sda", json!([root(1000)]));
        space[field] = json!({"not": "this"});
        space
    };
    let spaces = [wrong("size"), disk("sdb", json!([])), wrong("name"), wrong("volumes")];
    let mut input = input(json!(spaces));
    input["ks_meta"]["pm_data"]["kernel_params"] = json!(["quiet"]);
    let text = input.to_string();
    let found = Nailgun.parse(text.as_bytes(), &options()).expect_err("it has errors");
    let said: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 4, "{said:#?}");
    for place in ["ks_spaces[0]", "ks_spaces[2]", "ks_spaces[3]", "pm_data.kernel_params"] {
        assert!(said.iter().any(|said| said.contains(place)), "{place}: {said:#?}");
    }
}

#[test]
fn fields_required_by_the_schema_are_required() {
    for missing in ["id", "name", "size", "extra", "free_space", "volumes"] {
        let mut space = disk("sda", json!([root(1000)]));
        space.as_object_mut().unwrap().remove(missing);
        let found = refused(&Nailgun, &input(json!([space])), Code::Unreadable);
        assert!(found.diagnostic.message.contains(missing), "{found}");
    }
    for bad in [
        json!({"ks_meta": {"pm_data": {}}}),
        json!({"ks_meta": {"pm_data": {"ks_spaces": {}}}}),
        input(json!([{"type": "tape", "id": "x", "volumes": []}])),
        input(json!([disk("sda", json!([{"type": "partition", "size": "1000"}]))])),
    ] {
        refused(&Nailgun, &bad, Code::Unreadable);
    }
    let volume = |volume: Value| input(json!([disk("sda", json!([root(1000), volume]))]));
    refused(&Nailgun, &volume(json!({"type": "pv", "size": 500})), Code::Missing);
    refused(&Nailgun, &volume(json!({"type": "lvm", "size": 500})), Code::BadValue);
    let little = json!({"type": "pv", "size": 500, "vg": "os", "lvm_meta_size": 9});
    refused(&Nailgun, &volume(little), Code::BadValue);
}

#[test]
fn labels_with_blanks_and_bars_stay_one_label() {
    let mut labelled = root(1000);
    labelled["disk_label"] = json!("two | words");
    let document = parsed(&Nailgun, &input(json!([disk("sda", json!([labelled]))])));
    assert_eq!(mounted(&document, "/").label.as_deref(), Some("two | words"));
}

#[test]
fn whole_document_gives_the_layout_of_bareon() {
    let boot = [
        json!({"type": "boot", "size": 300}),
        json!({"type": "raid", "mount": "/boot", "size": 200}),
    ];
    let pv = |group: &str, size: i64| json!({"type": "pv", "vg": group, "size": size, "lvm_meta_size": 64});
    let lv = |name: &str, mount: &str, kind: &str, size: i64| json!({"type": "lv", "name": name, "mount": mount, "file_system": kind, "size": size});
    let more = |name: &str| {
        let meta = json!({"type": "lvm_meta_pool", "size": 64});
        disk(name, json!([boot[0], boot[1], meta, pv("os", 0), pv("image", 64_971)]))
    };
    let spaces = json!([
        disk("sda", json!([
            boot[0], boot[1],
            {"type": "partition", "mount": "/tmp", "size": 200, "file_system": "ext2", "name": "TMP",
             "partition_guid": "0fc63daf-8483-4772-8e79-3d69d8477de4"},
            {"type": "lvm_meta_pool", "size": 0}, pv("os", 19_438), pv("image", 45_597),
        ])),
        more("sdb"), more("sdc"),
        {"type": "vg", "id": "os", "min_size": 19_374, "label": "Base System", "volumes": [
            lv("root", "/", "ext4", 15_360), lv("swap", "swap", "swap", 4014),
        ]},
        {"type": "vg", "id": "image", "min_size": 5120, "label": "Image Storage", "volumes": [
            lv("glance", "/var/lib/glance", "xfs", 175_347),
        ]},
    ]);
    let document = parsed(&Nailgun, &input(spaces));
    let facts = machine(&[("sda", 65_535 + 24 + 200), ("sdb", 65_535), ("sdc", 65_535)]);
    let layout = layout::plan(&document, &facts).unwrap_or_else(|found| panic!("{found:#?}"));
    let table = |at: usize| -> Vec<(u64, u64)> {
        let Work::Table(table) = &layout.disks[at].work else { panic!("a table") };
        table.partitions.iter().map(|part| (part.start / MIB, part.range().end / MIB)).collect()
    };
    let sda = [
        (1, 25),
        (25, 225),
        (225, 425),
        (425, 625),
        (625, 20_063),
        (20_063, 65_660),
        (65_660, 65_680),
    ];
    assert_eq!(table(0), sda);
    assert_eq!(table(1), [(1, 25), (25, 225), (225, 65_196)]);
    assert_eq!(table(2), table(1));
    let size = |id: &str| layout.stack.iter().find(|plan| plan.id.as_str() == id).expect(id).size;
    // In whole extents, as LVM gives them.
    assert_eq!(size("lv-os-root") / MIB, 15_360);
    assert_eq!(size("lv-os-swap") / MIB, 4016);
    assert_eq!(size("lv-image-glance") / MIB, 175_348);
}
