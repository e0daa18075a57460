//! Plans for machines that are elsewhere: `plan --facts`. Neither disks nor root are needed.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

struct ProcessEnd {
    code: i32,
    out: String,
    err: String,
}

/// Plans a document for a machine with these facts.
fn plan(document: &Value, facts: &str, more: &[&str]) -> ProcessEnd {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs_err::write(&path, text).expect("it is written");
        path
    };
    let document = write("doc.json", &document.to_string());
    let facts = write("facts.json", facts);
    plan_files(&document, &facts, more)
}

fn plan_files(document: &Path, facts: &Path, more: &[&str]) -> ProcessEnd {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
    agent.arg("plan").arg("-f").arg(document).arg("--facts").arg(facts).args(more);
    let output = agent.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it ends by itself");
    ProcessEnd { code, out: text(&output.stdout), err: text(&output.stderr) }
}

const GIB: u64 = 1 << 30;

fn disk(name: &str, more: &Value) -> Value {
    let mut disk = json!({
        "kernel_name": name, "size": 200 * GIB, "logical_sector": 512, "physical_sector": 512,
        "serial": format!("S-{name}"), "model": "Model A", "bus": "sas",
    });
    for (name, value) in more.as_object().expect("an object") {
        disk[name] = value.clone();
    }
    disk
}

fn machine(firmware: &str, disks: &Value) -> String {
    json!({"firmware": firmware, "disks": disks}).to_string()
}

fn native() -> Value {
    json!({"api": "hoist/v1", "txn": "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e31", "sections": {
        "node": {"id": "n1"},
        "disks": {"os": {"match": {"serial": "S-sda"}}},
        "storage": [
            {"part": {"id": "root", "on": "os", "size": "100%"}},
            {"fs": {"id": "root-fs", "on": "root", "kind": "xfs", "mount": "/"}},
        ],
        "images": {"root": {"sources": ["https://images.example/root.img"], "target": "root-fs",
            "grow": true}},
        "boot": {"loader": "systemd_boot", "files": {
            "loader": {"sources": ["https://images.example/loader"],
                "digest": format!("sha256:{}", "0".repeat(64))},
            "kernel": {"sources": ["https://images.example/kernel"],
                "digest": format!("sha256:{}", "1".repeat(64))},
        }},
    }})
}

#[test]
fn plan_for_facts_says_that_it_cannot_be_applied() {
    let facts = machine("uefi", &json!([disk("sda", &json!({}))]));
    let planned = plan(&native(), &facts, &[]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    let first = planned.out.lines().next().expect("a line");
    assert!(first.starts_with("plan for the facts in `"), "{first}");
    assert!(first.ends_with("facts.json`, not for this machine: it cannot be applied"), "{first}");
    let last = planned.out.lines().last().expect("a line");
    assert_eq!(last, "no hash: this plan cannot be applied");
    assert!(planned.out.contains("grow xfs root-fs"), "{}", planned.out);
    assert!(planned.out.contains("tell the firmware what to start"), "{}", planned.out);

    let of_controller = json!({"node": "n1", "id": "x", "at": "y",
        "facts": serde_json::from_str::<Value>(&facts).expect("JSON")});
    let planned = plan(&native(), &of_controller.to_string(), &["-o", "json"]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    let shown: Value = serde_json::from_str(&planned.out).expect("JSON");
    assert!(shown["facts"].as_str().is_some_and(|file| file.ends_with("facts.json")), "{shown}");
    assert!(shown.get("hash").is_none(), "{shown}");
}

#[test]
fn wrong_facts_are_refused_with_their_place() {
    let planned = plan(&native(), "{\"disks\": [\n{\"kernel_name\": 7}]}", &[]);
    assert_eq!(planned.code, 2, "{}", planned.err);
    assert!(planned.err.contains("facts.json:2:"), "{}", planned.err);
    let planned = plan(&native(), &native().to_string(), &[]);
    assert_eq!(planned.code, 2, "{}", planned.err);
    assert!(planned.err.contains("unknown field `api`"), "{}", planned.err);
    let planned = plan(&native(), &" ".repeat((4 << 20) + 1), &[]);
    assert!(planned.code == 2 && planned.err.contains("[too-large]"), "{}", planned.err);
    let missing = plan_files(Path::new("-"), Path::new("-"), &[]);
    assert!(missing.code == 2 && missing.err.contains("standard input"), "{}", missing.err);
    // Foreign data is as safe as on this machine.
    let content = json!({"signatures": [{"kind": "xfs", "offset": 0, "where": "disk"}]});
    let facts = machine("uefi", &json!([disk("sda", &content)]));
    let refused = plan(&native(), &facts, &[]);
    assert!(refused.code == 3 && refused.err.contains("[foreign-data]"), "{}", refused.err);
}

/// A document of nailgun whose disks are named by long links, as Fuel makes them.
fn nailgun(spaces: &Value) -> Value {
    json!({"ks_meta": {
        "pm_data": {"ks_spaces": spaces, "kernel_params": "console=ttyS0"},
        "image_data": {"/": {"uri": "http://10.20.0.2:8080/root.img.gz", "container": "gzip"}},
    }})
}

fn space(name: &str, extra: &Value, volumes: &Value) -> Value {
    json!({"type": "disk", "id": format!("disk/by-path/pci-0000:00:1f.2-scsi-{name}"),
        "name": name, "size": 190_000, "free_space": 0, "extra": extra, "volumes": volumes})
}

#[test]
fn documents_of_bareon_plan_as_they_are() {
    let long = "disk/by-id/ata-WDC_WD40EFRX-68WT0N0_WD-WCC4E0123456";
    let wd = json!({"model": "WDC WD40EFRX-68W", "serial": "WD-WCC4E0123456"});
    let boot = json!({"type": "raid", "mount": "/boot", "size": 200, "file_system": "ext2"});
    let root = json!({"type": "partition", "mount": "/", "size": 20_000, "file_system": "ext4"});
    let mirror = json!({"type": "raid", "mount": "/", "size": 20_000, "file_system": "ext4"});
    let empty = json!({"type": "pv", "vg": "image", "size": 0});
    let unused = json!({"type": "vg", "id": "image", "volumes": [
        {"type": "lv", "name": "glance", "size": 0, "mount": "/g", "file_system": "xfs"}]});
    let ironic = |id: &str, volumes: Value| {
        json!({
            "partitions_policy": "clean", "deploy_data": {"kernel_params": "console=ttyS0"},
            "images": [{"name": "db", "image_pull_url": "http://repo.example/db.raw",
                "target": "/", "boot": true}],
            "partitions": [{"type": "disk", "id": {"type": "path", "value": id},
                "size": "100 GiB", "volumes": volumes}],
        })
    };
    let share = |mount: &str, size: &str| json!({"type": "partition", "mount": mount, "file_system": "ext4", "size": size});
    let sas = "disk/by-path/pci-0000:03:00.0-sas-0x5000c50012345678-lun-0";
    let at_phy = json!({"by_path": "pci-0000:03:00.0-sas-phy4-lun-0",
        "links": ["by-path/pci-0000:03:00.0-sas-0x5000c50012345678-lun-0"]});
    let nvme = json!({"by_path": "pci-0000:05:00.0-nvme-1", "bus": "nvme"});
    let volumes = json!([
        {"type": "partition", "mount": "/", "file_system": "ext4", "size": "20 GiB",
            "images": ["db"], "keep_data": false},
        {"type": "pv", "vg": "data", "size": "remaining"},
    ]);
    let mut kept = ironic("disk/by-id/wwn-0x5000c500aaaa0001", volumes);
    let volumes = json!([{"type": "lv", "name": "pg", "mount": "/var/lib/pg", "size": "80%",
        "file_system": "xfs", "keep_data": true}]);
    let group = json!({"type": "vg", "id": "data", "volumes": volumes});
    kept["partitions"].as_array_mut().expect("a list").push(group);
    let cases = [
        ("volumes", kept, json!([disk("sda", &json!({"wwn": "naa.5000c500aaaa0001"}))])),
        (
            "another name, a long link, an empty group",
            nailgun(&json!([space("sda", &json!([long]), &json!([boot, root, empty])), unused])),
            json!([disk("sda", &json!({})), disk("sdb", &wd)]),
        ),
        (
            "/boot on NVMe",
            nailgun(&json!([space(
                "nvme0n1",
                &json!(["disk/by-id/nvme-Model_A_S-nvme0n1"]),
                &json!([boot, root])
            )])),
            json!([disk("nvme0n1", &nvme)]),
        ),
        (
            "a mirror of one device",
            nailgun(&json!([space("sda", &json!(["by-id/scsi-S_S-sda"]), &json!([mirror]))])),
            json!([disk("sda", &json!({"model": "S"}))]),
        ),
        (
            "shares of a SAS disk",
            ironic(sas, json!([share("/", "20%"), share("/var", "80%")])),
            json!([disk("sda", &at_phy)]),
        ),
        (
            "a port of ATA as udev writes it",
            ironic("disk/by-path/pci-0000:00:1f.2-ata-1.0", json!([share("/", "remaining")])),
            json!([disk("sda", &json!({"by_path": "pci-0000:00:1f.2-ata-1"}))]),
        ),
    ];
    for firmware in ["bios", "uefi"] {
        for (what, document, disks) in &cases {
            let planned = plan(document, &machine(firmware, disks), &["--node", "n1"]);
            assert_eq!(planned.code, 20, "{what}: {}", planned.err);
            assert!(planned.out.contains("write image image-root"), "{what}: {}", planned.out);
            let warning = "warning: nothing will start the installed system";
            assert!(planned.err.contains(warning), "{what}: {}", planned.err);
        }
    }
}

#[test]
fn array_of_firmware_raid_is_refused_and_its_disks_are_named() {
    let root = json!({"type": "partition", "mount": "/", "size": 20_000, "file_system": "ext4"});
    let mut array = space("md126", &json!([]), &json!([root]));
    array["id"] = json!("disk/by-id/md-uuid-4a3b2c1d:00000000:00000000:00000000");
    let leg = json!({"signatures": [
        {"kind": "md", "offset": 200 * GIB - 1024, "where": "disk", "uuid": "4a3b2c1d"}]});
    let facts = machine("uefi", &json!([disk("sda", &leg), disk("sdb", &leg)]));
    let refused = plan(&nailgun(&json!([array])), &facts, &["--node", "n1"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    for text in ["turn firmware RAID off", "`sda` differs in", "`sdb` differs in"] {
        assert!(refused.err.contains(text), "{text}: {}", refused.err);
    }
    // Its disks are written only if all of them are named with `wipe`.
    let mut document = native();
    let refused = plan(&document, &facts, &[]);
    assert!(refused.code == 3 && refused.err.contains("[foreign-data]"), "{}", refused.err);
    let disks = &mut document["sections"]["disks"];
    disks["os"]["wipe"] = json!(["md"]);
    let refused = plan(&document, &facts, &[]);
    assert!(refused.code == 3 && refused.err.contains("[shared-stack]"), "{}", refused.err);
    let disks = &mut document["sections"]["disks"];
    disks["other"] = json!({"match": {"serial": "S-sdb"}, "wipe": ["md"]});
    let planned = plan(&document, &facts, &[]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    assert_eq!(planned.out.matches("! destroys md").count(), 2, "{}", planned.out);
}

#[test]
fn boot_files_are_added_to_a_foreign_document() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("boot.yaml");
    let boot = &native()["sections"]["boot"];
    fs_err::write(&file, boot.to_string()).expect("it is written");
    let root = json!({"type": "partition", "mount": "/", "size": 20_000, "file_system": "ext4"});
    let document = nailgun(&json!([space("sda", &json!(["by-id/ata-S-sda"]), &json!([root]))]));
    let facts = machine("uefi", &json!([disk("sda", &json!({"model": ""}))]));
    let file = file.to_string_lossy();
    let planned = plan(&document, &facts, &["--boot", &file]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    assert!(!planned.err.contains("warning: nothing will start"), "{}", planned.err);
    let arguments = "| options root=PARTUUID=";
    let line = planned.out.lines().find(|line| line.contains(arguments)).expect("the entry");
    assert!(line.ends_with(" rootfstype=ext4 console=ttyS0"), "{line}");
}
