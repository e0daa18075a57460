use super::*;
use hoist_provision::document::{FsKind, Wipe};

fn input(policy: &str, volumes: Value) -> Value {
    json!({
        "partitions_policy": policy,
        "deploy_data": {"kernel_params": "console=ttyS0"},
        "images": [],
        "partitions": [{
            "type": "disk", "id": {"type": "path", "value": "disk/by-id/ata-sda"},
            "size": "1 GiB", "volumes": volumes,
        }],
    })
}

fn part(mount: &str, size: &str) -> Value {
    json!({"type": "partition", "mount": mount, "file_system": "ext4", "size": size})
}

const SYSTEM: &str = "http://repo.example/db.raw";

fn with_image(mut input: Value) -> Value {
    input["images"] =
        json!([{"name": "db", "image_pull_url": SYSTEM, "target": "/", "boot": true}]);
    input
}

#[test]
fn whole_document_gives_the_layout_of_bareon() {
    let text = r#"{"partitions_policy":"clean",
 "deploy_data":{"kernel_params":"console=ttyS0"},
 "images":[{"name":"db","image_pull_url":"http://repo.example/db.raw","target":"/","boot":true}],
 "partitions":[
  {"type":"disk","id":{"type":"path","value":"disk/by-id/wwn-0x5000c500aaaa0001"},"size":"100 GiB","volumes":[
    {"type":"partition","mount":"/","file_system":"ext4","size":"20 GiB","images":["db"],"keep_data":false},
    {"type":"pv","vg":"data","size":"remaining"}]},
  {"type":"vg","id":"data","volumes":[
    {"type":"lv","name":"pg","mount":"/var/lib/pg","file_system":"xfs","size":"80%","keep_data":true}]}]}"#;
    let document = Ironic.parse(text.as_bytes(), &options()).expect("a document");
    let mut facts = machine(&[("sda", 102_400)]);
    facts.disks[0].wwn = Some("0x5000c500aaaa0001".to_owned());
    let rest = 102_400 - 1 - 24 - 20_480 - 1;
    assert_eq!(laid_out(&document, &facts), [(1, 24), (25, 20_480), (20_505, rest)]);
    let layout = layout::plan(&document, &facts).expect("a plan");
    let lv = layout.stack.iter().find(|plan| plan.kind == "lv").expect("a volume");
    let group = (rest - 1) / 4 * 4;
    assert_eq!(lv.size / MIB, group * 8 / 10 / 4 * 4);
    assert!(document.sections.boot.is_none(), "no boot files are named");
    let (_, image) = document.sections.images.iter().next().expect("an image");
    assert_eq!(
        (image.sources.as_slice(), &image.target),
        (&[SYSTEM.to_owned()][..], &mounted(&document, "/").id)
    );
    // Something on the disk shall be kept, so nothing on it is destroyed without leave.
    assert_eq!(document.sections.disks.iter().next().expect("a disk").1.wipe, Wipe::default());
}

#[test]
fn volumes_after_remaining_are_kept() {
    let volumes = json!([part("/boot", "100"), part("/", "remaining"), part("/var", "200")]);
    let document = parsed(&Ironic, &input("clean", volumes));
    let places = laid_out(&document, &machine(&[("sda", 1024)]));
    assert_eq!(places, [(1, 24), (25, 100), (125, 698), (823, 200)]);
    let two = json!([part("/", "remaining"), part("/var", "remaining")]);
    refused(&Ironic, &input("clean", two), Code::Twice);
}

#[test]
fn shares_leave_room_for_the_loader() {
    let facts = machine(&[("sda", 1024)]);
    let places = |first: &str, second: &str| {
        let volumes = json!([part("/", first), part("/var", second)]);
        layout::plan(&parsed(&Ironic, &input("clean", volumes)), &facts).map(|layout| {
            let Work::Table(table) = &layout.disks[0].work else { panic!("a table") };
            table.partitions.iter().map(|part| part.len / MIB).collect::<Vec<_>>()
        })
    };
    assert_eq!(places("20%", "80%"), Ok(vec![24, 204, 794]));
    assert_eq!(places("1%", "98%"), Ok(vec![24, 10, 988]));
    assert_eq!(places("40%", "40%"), Ok(vec![24, 408, 408]));
    assert_eq!(places("600", "50%").expect_err("too much")[0].code, Code::NoRoom);
}

#[test]
fn sizes_have_units_and_are_mebibytes_without() {
    for (text, bytes) in [
        ("100", 100 * MIB),
        ("1.5", 3 * MIB / 2),
        ("100 MiB", 100 * MIB),
        ("100MiB", 100 * MIB),
        ("2048s", MIB),
        ("1048576 B", MIB),
        ("1 MB", 1_000_000),
        ("1 KB", 1000),
        ("1 TiB", 1 << 40),
        ("1 PB", 1_000_000_000_000_000),
    ] {
        let document = parsed(&Ironic, &input("clean", json!([part("/", text)])));
        let Some(StorageNode::Part(part)) = document.sections.storage.get(1) else {
            panic!("{text}")
        };
        assert_eq!(part.size, Size::Exact(hoist_provision::document::Bytes(bytes)), "{text}");
    }
    for text in ["", "0", "-1", "x", "1 mib", "1 YiB", "99999999999999999999", "1 ZB", "rest of it"]
    {
        refused(&Ironic, &input("clean", json!([part("/", text)])), Code::BadValue);
    }
    let share = parsed(&Ironic, &input("clean", json!([part("/", "50%")])));
    let Some(StorageNode::Part(part)) = share.sections.storage.get(1) else { panic!("a part") };
    assert_eq!(part.size.to_string(), "50%");
}

#[test]
fn disks_are_known_by_path_by_scsi_address_or_by_name() {
    let facts = machine(&[("sda", 1024), ("sdbb", 1024)]);
    let of = |kind: &str, value: &str, options: &Options| {
        let mut input = input("clean", json!([part("/", "100")]));
        input["partitions"][0]["id"] = json!({"type": kind, "value": value});
        let document = Ironic.parse(input.to_string().as_bytes(), options).expect("a document");
        let layout = layout::plan(&document, &facts).map_err(|found| found[0].code)?;
        Ok(layout.disks[0].kernel_name.clone())
    };
    for (kind, value) in [
        ("path", "disk/by-id/ata-sdbb"),
        ("path", "/dev/disk/by-id/ata-sdbb"),
        ("path", "disk/by-path/pci-sdbb"),
        ("scsi", "0:0:4:0"),
    ] {
        assert_eq!(of(kind, value, &options()), Ok("sdbb".to_owned()), "{value}");
    }
    assert_eq!(of("name", "sdbb", &options()), Err(Code::WeakMatch));
    assert_eq!(of("path", "sdbb", &options()), Err(Code::WeakMatch));
    let allowed = Options { allow_kernel_names: true, ..options() };
    assert_eq!(of("name", "sdbb", &allowed), Ok("sdbb".to_owned()));
    let mut odd = input("clean", json!([]));
    odd["partitions"][0]["id"] = json!({"type": "label", "value": "x"});
    refused(&Ironic, &odd, Code::Unreadable);
}

#[test]
fn clean_destroys_content_on_named_disks_only() {
    let document = parsed(&Ironic, &input("clean", json!([part("/", "100")])));
    assert_eq!(document.sections.policy.tables, Tables::Make);
    assert_eq!(document.sections.disks.iter().next().expect("a disk").1.wipe, Wipe::ANY);
}

#[test]
fn verify_is_the_default_and_writes_no_system() {
    let mut new = part("/new", "200");
    new["keep_data"] = json!(false);
    let mut verified = with_image(input("verify", json!([part("/", "100"), new])));
    verified.as_object_mut().unwrap().remove("partitions_policy");
    let document = parsed(&Ironic, &verified);
    assert_eq!(document.sections.policy.tables, Tables::Adopt);
    assert!(document.sections.images.is_empty());
    // Volumes are kept by default.
    assert!(mounted(&document, "/").retain.is_some());
    assert!(mounted(&document, "/new").retain.is_none());
    let found = layout::plan(&document, &machine(&[("sda", 1024)])).expect_err("an empty disk");
    assert_eq!(found[0].code, Code::NotAsRetained);
    let mut odd = verified;
    odd["partitions_policy"] = json!("purge");
    refused(&Ironic, &odd, Code::Unreadable);
}

#[test]
fn legacy_policy_keeps_all_if_anything_is_kept() {
    let unkept = |mount: &str| {
        let mut part = part(mount, "100");
        part["keep_data"] = json!(false);
        part
    };
    let document =
        parsed(&Ironic, &input("nailgun_legacy", json!([unkept("/"), part("/x", "100")])));
    assert_eq!(document.sections.policy.tables, Tables::Adopt);
    let document = parsed(&Ironic, &input("nailgun_legacy", json!([unkept("/")])));
    assert_eq!(document.sections.policy.tables, Tables::Make);
    let over = with_image(input("nailgun_legacy", json!([part("/", "100")])));
    refused(&Ironic, &over, Code::Contradiction);
}

#[test]
fn image_over_kept_content_is_refused() {
    let mut kept = part("/", "100");
    kept["keep_data"] = json!(true);
    refused(&Ironic, &with_image(input("clean", json!([kept]))), Code::Contradiction);
    parsed(&Ironic, &with_image(input("clean", json!([part("/", "100")]))));
}

#[test]
fn file_systems_carry_their_options_and_labels() {
    let volume = json!({"type": "partition", "mount": "/srv", "file_system": "XFS", "size": "100",
        "fstab_options": "noatime,nodiratime", "fstab_enabled": false, "disk_label": "two words"});
    let document = parsed(&Ironic, &input("clean", json!([part("/", "100"), volume])));
    let fs = mounted(&document, "/srv");
    assert_eq!((fs.kind, fs.no_fstab, fs.label.as_deref()), (FsKind::Xfs, true, Some("two words")));
    assert_eq!(fs.options, ["noatime", "nodiratime"]);
}

#[test]
fn arrays_groups_and_pools_are_put_together() {
    let raid = json!({"type": "raid", "mount": "/", "file_system": "ext4", "size": "100"});
    let mut document = input("clean", json!([raid, {"type": "lvm_meta_pool", "size": "64"}]));
    let mut other = document["partitions"][0].clone();
    other["id"]["value"] = json!("disk/by-id/ata-sdb");
    document["partitions"].as_array_mut().unwrap().push(other);
    let document = parsed(&Ironic, &document);
    let md = document.storage(&mounted(&document, "/").on).expect("an array");
    assert_eq!((md.kind(), md.on().len()), ("md", 2));
    let pv = json!({"type": "pv", "vg": "data", "size": "500", "lvm_meta_size": "64 MiB"});
    refused(&Ironic, &input("clean", json!([pv])), Code::NoSuchThing);
    let mut empty = input("clean", json!([part("/", "100")]));
    empty["partitions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "vg", "id": "x", "volumes": []}));
    refused(&Ironic, &empty, Code::NoSuchThing);
}

#[test]
fn unsupported_bareon_features_are_refused_with_a_reason() {
    let mut several = input("clean", json!([]));
    several["images"] = json!([
        {"name": "a", "image_pull_url": SYSTEM, "target": "/"},
        {"name": "b", "image_pull_url": SYSTEM, "target": "/"},
    ]);
    let bound = |name: &str| {
        let mut part = part("/", "100");
        part["images"] = json!([name]);
        part
    };
    several["partitions"][0]["volumes"] = json!([bound("a"), bound("b")]);
    let found = Ironic.parse(several.to_string().as_bytes(), &options()).expect_err("two systems");
    assert_eq!(found[0].code, Code::Unsupported);
    several["partitions"][0]["volumes"] = json!([bound("c")]);
    let found = Ironic.parse(several.to_string().as_bytes(), &options()).expect_err("no such");
    assert_eq!(found[0].code, Code::NoSuchThing);
    let mut rsync = with_image(input("clean", json!([part("/", "100")])));
    rsync["image_deploy_flags"] = json!({"rsync_flags": "--dry-run"});
    refused(&Ironic, &rsync, Code::Unsupported);
    let mut tree = with_image(input("clean", json!([part("/", "100")])));
    tree["images"][0]["image_pull_url"] = json!("repo.example::images/db/");
    refused(&Ironic, &tree, Code::Unsupported);
    let mut diskless = input("clean", json!([]));
    diskless["partitions"] = json!([]);
    refused(&Ironic, &diskless, Code::Missing);
    let mut imageless = input("clean", json!([]));
    imageless.as_object_mut().unwrap().remove("images");
    refused(&Ironic, &imageless, Code::Unreadable);
}
