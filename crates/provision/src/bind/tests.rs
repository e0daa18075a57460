//! Which disk of a machine is bound to which match, and refusals.
#![expect(clippy::needless_pass_by_value, reason = "literals read better by value")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::document::Entries;

fn disk(name: &str) -> DiskFacts {
    DiskFacts {
        kernel_name: name.to_owned(),
        size: 1 << 40,
        logical_sector: 512,
        physical_sector: 4096,
        wwn: Some(format!("0x5000c500{name}")),
        serial: Some(format!("S-{name}")),
        model: Some("Model A".to_owned()),
        by_path: Some(format!("pci-{name}")),
        bus: Some(Bus::Sas),
        ..DiskFacts::default()
    }
}

#[test]
fn stable_disk_id_is_the_first_unique_maker_id() {
    let of = |disk: DiskFacts| serde_json::to_value(lasting_of(&disk)).expect("plain");
    let bare = DiskFacts { wwn: None, ..disk("sda") };
    assert_eq!(of(disk("sda")), json!({"wwn": "0x5000c500sda"}));
    let eui = DiskFacts { eui: Some("0025".to_owned()), ..bare.clone() };
    assert_eq!(of(eui), json!({"eui": "0025"}));
    assert_eq!(of(bare.clone()), json!({"serial": "S-sda", "model": "Model A"}));
    assert_eq!(of(DiskFacts { serial: Some(" ".to_owned()), ..bare }), Value::Null);
}

fn machine(disks: impl IntoIterator<Item = DiskFacts>) -> Facts {
    Facts { disks: disks.into_iter().collect(), ..Facts::default() }
}

/// The binding of the only disk of a document.
fn bound(matches: Value, facts: &Facts) -> Result<String, ProvisionDiagnostic> {
    bound_by(matches, &json!({}), facts)
}

fn bound_by(matches: Value, policy: &Value, facts: &Facts) -> Result<String, ProvisionDiagnostic> {
    let document = document(json!({"os": {"match": matches}}), policy);
    let mut found = match bind(&document, facts) {
        Ok(bound) => return Ok(bound.values().next().expect("one").kernel_name.clone()),
        Err(found) => found,
    };
    assert_eq!(found.len(), 1, "{found:#?}");
    Err(found.remove(0))
}

fn document(disks: Value, policy: &Value) -> Document {
    let document = json!({
        "api": "hoist/v1",
        "txn": "00000000-0000-0000-0000-000000000001",
        "sections": {"disks": disks, "policy": policy},
    });
    serde_json::from_value(document).expect("a document")
}

fn refused(matches: Value, facts: &Facts, code: Code) -> ProvisionDiagnostic {
    let found = bound(matches, facts).expect_err("refused");
    assert_eq!(found.code, code, "{found}");
    found
}

#[test]
fn disk_is_bound_if_all_attributes_match() {
    let facts = machine([disk("sda"), disk("sdb")]);
    for matches in [
        json!({"wwn": "0x5000c500sdb"}),
        json!({"wwn": "naa.5000C500SDB"}),
        json!({"serial": " S-sdb "}),
        json!({"by_path": "/dev/disk/by-path/pci-sdb"}),
        json!({"by_path": "pci-sdb"}),
        json!({"wwn": "wwn-0x5000c500sdb", "model": "Model_A", "kernel_name": "/dev/sdb"}),
        json!({"links": ["by-id/gone", "disk/by-id/wwn-0x5000c500sdb"]}),
        json!({"serial": "S-sdb", "size": {"min": "1 TiB", "max": "1 TiB"}}),
    ] {
        assert_eq!(bound(matches.clone(), &facts), Ok("sdb".to_owned()), "{matches}");
    }
}

#[test]
fn links_are_resolved_without_udev() {
    let facts = machine([
        DiskFacts { model: Some("WDC WD40EFRX-68W".to_owned()), ..disk("sda") },
        DiskFacts { model: Some("SAMSUNG MZ".to_owned()), ..disk("sdb") },
        DiskFacts { eui: Some("eui.0025385b71b0f5a2".to_owned()), ..disk("nvme0n1") },
        DiskFacts {
            model: Some("HGST/HUS".to_owned()),
            serial: Some("S/N 7".to_owned()),
            ..disk("sdc")
        },
    ]);
    for (link, name) in [
        ("by-id/ata-WDC_WD40EFRX-68WT0N0_S-sda", "sda"),
        ("disk/by-id/scsi-SATA_SAMSUNG_MZ_S-sdb", "sdb"),
        ("by-id/virtio-S-sdb", "sdb"),
        ("by-id/scsi-35000c500sdb", "sdb"),
        ("by-id/nvme-eui.0025385b71b0f5a2", "nvme0n1"),
        ("by-id/nvme-Model_A_S-nvme0n1_1", "nvme0n1"),
        ("by-id/scsi-0VENDOR_SAMSUNG_MZ_S-sdb", "sdb"),
        ("by-id/scsi-1ATA_SAMSUNG_MZ_S-sdb", "sdb"),
        ("by-id/ata-HGST_HUS_S_N_7", "sdc"),
        ("by-path/pci-sda", "sda"),
    ] {
        let found = bound(json!({"links": [link]}), &facts);
        assert_eq!(found, Ok(name.to_owned()), "{link}");
    }
    for link in [
        "by-id/ata-OTHER_MODEL_S-sda",
        "by-id/ata-SAMSUNG_MZ_xS-sdb",
        "by-id/ata-SAMSUNG_MZ_S-sdd",
        "by-id/nvme-Model_A_S-nvme0n1_2",
        "by-id/wwn-",
        "by-id/ata-",
        "by-label/S-sda",
    ] {
        refused(json!({"links": [link]}), &facts, Code::NoDisk);
    }
}

#[test]
fn paths_are_compared_in_every_spelling_of_udev() {
    let at = |name: &str, path: &str, links: &[&str]| DiskFacts {
        by_path: Some(path.to_owned()),
        links: links.iter().map(|link| (*link).to_owned()).collect(),
        ..disk(name)
    };
    let facts = machine([
        at("sda", "pci-0000:00:1f.2-ata-1", &[]),
        at("sdb", "pci-0000:00:1f.2-ata-2.0", &[]),
        at("sdc", "pci-0000:00:1f.2-ata-2.1", &[]),
        at(
            "sdd",
            "pci-0000:03:00.0-sas-phy4-lun-0",
            &["by-path/pci-0000:03:00.0-sas-0x5000c50012345678-lun-0"],
        ),
        at("vda", "pci-0000:00:05.0", &[]),
    ]);
    for (path, name) in [
        ("pci-0000:00:1f.2-ata-1.0", "sda"),
        ("pci-0000:00:1f.2-ata-2", "sdb"),
        ("pci-0000:00:1f.2-ata-2.1", "sdc"),
        ("pci-0000:03:00.0-sas-phy4-lun-0", "sdd"),
        ("pci-0000:03:00.0-sas-0x5000c50012345678-lun-0", "sdd"),
        ("virtio-pci-0000:00:05.0", "vda"),
    ] {
        assert_eq!(bound(json!({"by_path": path}), &facts), Ok(name.to_owned()), "{path}");
        let link = format!("/dev/disk/by-path/{path}");
        assert_eq!(bound(json!({"links": [link]}), &facts), Ok(name.to_owned()), "{path}");
    }
    for path in ["pci-0000:00:1f.2-ata-1.1", "pci-0000:00:1f.2-ata-3", "", "by-path/"] {
        refused(json!({"by_path": path}), &facts, Code::NoDisk);
    }
}

#[test]
fn unique_link_decides_over_names_that_change() {
    let first = |more: Value| {
        let mut wanted = json!({"links": ["by-id/wwn-0x5000c500sdb"], "links_first": true});
        for (name, value) in more.as_object().expect("an object") {
            wanted[name] = value.clone();
        }
        wanted
    };
    let facts = machine([disk("sda"), disk("sdb")]);
    for more in [
        json!({"kernel_name": "sda"}),
        json!({"kernel_name": "sdx", "by_path": "pci-gone"}),
        json!({"by_path": "pci-sdb"}),
    ] {
        assert_eq!(bound(first(more.clone()), &facts), Ok("sdb".to_owned()), "{more}");
    }
    // The path is another disk's: which one is meant?
    refused(first(json!({"by_path": "pci-sda"})), &facts, Code::NoDisk);
    refused(first(json!({"serial": "S-sda"})), &facts, Code::NoDisk);
    let twin = DiskFacts { wwn: disk("sdb").wwn, ..disk("sda") };
    let twins = machine([twin, disk("sdb")]);
    refused(first(json!({"by_path": "pci-sdb", "kernel_name": "sda"})), &twins, Code::NoDisk);
    refused(first(json!({})), &twins, Code::SeveralDisks);
    refused(first(json!({"kernel_name": "sdb"})), &twins, Code::WeakMatch);
}

#[test]
fn kernel_name_does_not_choose_among_equal_disks() {
    let facts = machine([disk("sda"), disk("sdb")]);
    for alike in [json!({"bus": "sas"}), json!({"rotational": false, "model": "Model A"})] {
        let mut wanted = alike;
        wanted["kernel_name"] = json!("sdb");
        let found = bound(wanted.clone(), &facts).expect_err("it is a choice");
        assert_eq!(found.code, Code::WeakMatch, "{found}");
        assert_eq!(found.evidence.len(), 2, "{found}");
        let allowed = json!({"allow_kernel_names": true});
        assert_eq!(bound_by(wanted.clone(), &allowed, &facts), Ok("sdb".to_owned()));
        wanted["serial"] = json!("S-sdb");
        assert_eq!(bound(wanted, &facts), Ok("sdb".to_owned()));
    }
}

#[test]
fn unreadable_disk_is_not_replaced_by_another() {
    let mut broken = disk("sda");
    broken.unreadable = Some("input/output error".to_owned());
    let facts = machine([broken, disk("sdb")]);
    let found = bound(json!({"bus": "sas"}), &facts).expect_err("it might be either");
    assert_eq!(found.code, Code::SeveralDisks, "{found}");
    let found = bound(json!({"serial": "S-sda"}), &facts).expect_err("nobody knows it");
    assert_eq!(found.code, Code::NoDisk, "{found}");
    assert!(found.diagnostic.message.contains("input/output error"), "{found}");
    assert_eq!(bound(json!({"serial": "S-sdb"}), &facts), Ok("sdb".to_owned()));
}

#[test]
fn one_mismatching_attribute_refuses_the_disk() {
    let facts = machine([disk("sda"), disk("sdb")]);
    let found =
        refused(json!({"wwn": "0x5000c500sdb", "kernel_name": "sda"}), &facts, Code::NoDisk);
    assert_eq!(found.evidence, ["`sda` differs in wwn", "`sdb` differs in kernel_name"]);
    refused(json!({"serial": "S-sdb", "size": {"max": "1 GiB"}}), &facts, Code::NoDisk);
    refused(json!({"serial": "S-sdb", "bus": "nvme"}), &facts, Code::NoDisk);
    refused(json!({"eui": "1"}), &machine([]), Code::NoDisk);
}

#[test]
fn duplicate_wwn_names_both_disks() {
    let mut twin = disk("sdb");
    twin.wwn = disk("sda").wwn;
    let facts = machine([disk("sda"), twin]);
    let found = refused(json!({"wwn": "0x5000c500sda"}), &facts, Code::SeveralDisks);
    assert!(found.diagnostic.message.contains("`sda` as well as `sdb`"), "{found}");
    assert_eq!(found.evidence.len(), 2);
    let told_apart = json!({"wwn": "0x5000c500sda", "serial": "S-sdb"});
    assert_eq!(bound(told_apart, &facts), Ok("sdb".to_owned()));
}

#[test]
fn contradicting_path_and_name_match_no_disk() {
    // Two drives with one WWN, of which the name says one and the path the other.
    let nvme = |name: &str, path: &str| DiskFacts {
        wwn: Some("eui.0025385000000001".to_owned()),
        by_path: Some(path.to_owned()),
        ..disk(name)
    };
    let facts = machine([
        nvme("nvme0n1", "pci-0000:04:00.0-nvme-1"),
        nvme("nvme1n1", "pci-0000:05:00.0-nvme-1"),
    ]);
    let matches = json!({"by_path": "pci-0000:05:00.0-nvme-1", "kernel_name": "nvme0n1"});
    refused(matches, &facts, Code::NoDisk);
}

#[test]
fn kernel_name_alone_needs_the_policy() {
    let facts = machine([disk("sda")]);
    refused(json!({"kernel_name": "sda"}), &facts, Code::WeakMatch);
    let allowed = json!({"allow_kernel_names": true});
    assert_eq!(bound_by(json!({"kernel_name": "sda"}), &allowed, &facts), Ok("sda".to_owned()));
}

#[test]
fn unwritable_disk_is_an_error_and_not_skipped() {
    let removable = DiskFacts { removable: true, ..disk("sdb") };
    let facts = machine([disk("sda"), removable]);
    refused(json!({"model": "Model A"}), &facts, Code::SeveralDisks);
    refused(json!({"bus": "sas", "rotational": false}), &facts, Code::SeveralDisks);
}

#[test]
fn boot_removable_read_only_and_virtual_disks_are_never_bound() {
    let of = |change: fn(&mut DiskFacts)| {
        let mut disk = disk("sda");
        change(&mut disk);
        machine([disk])
    };
    for facts in [
        of(|disk| disk.is_boot_medium = true),
        of(|disk| disk.removable = true),
        of(|disk| disk.read_only = true),
        of(|disk| disk.is_virtual = true),
        of(|disk| disk.bus = Some(Bus::Usb)),
    ] {
        refused(json!({"serial": "S-sda"}), &facts, Code::NeverTarget);
        let allowed = json!({"allow_kernel_names": true, "allow_root_change": true});
        let found = bound_by(json!({"kernel_name": "sda"}), &allowed, &facts);
        assert_eq!(found.expect_err("never").code, Code::NeverTarget);
    }
    let usb = of(|disk| disk.bus = Some(Bus::Usb));
    assert_eq!(bound(json!({"serial": "S-sda", "bus": "usb"}), &usb), Ok("sda".to_owned()));
    let odd = of(|disk| disk.logical_sector = 520);
    refused(json!({"serial": "S-sda"}), &odd, Code::Firmware);
}

#[test]
fn paths_of_multipath_are_no_targets() {
    let leg = DiskFacts { multipath_maps: vec!["mpatha".to_owned()], ..disk("sda") };
    refused(json!({"serial": "S-sda"}), &machine([leg]), Code::MultipathLeg);
    let one = disk("sda");
    let other = DiskFacts {
        kernel_name: "sdb".to_owned(),
        by_path: Some("pci-other".to_owned()),
        ..disk("sda")
    };
    let facts = machine([one, other]);
    let found = refused(json!({"by_path": "pci-other"}), &facts, Code::MultipathLeg);
    assert!(found.diagnostic.message.contains("`sdb` and `sda`"), "{found}");
}

#[test]
fn unstable_disk_number_does_not_identify_a_disk() {
    let nvme = |at: u8, wwn: &str| DiskFacts {
        wwn: Some(wwn.to_owned()),
        serial: Some("SAME".to_owned()),
        by_path: Some(format!("pci-0000:00:0{at}.0-nvme-1")),
        ..disk(&format!("nvme{at}n1"))
    };
    let made_up = "nvme.1b36-53414d45-51454d55-00000001";
    let facts = machine([nvme(4, "uuid.1"), nvme(5, made_up), nvme(6, made_up)]);
    refused(json!({"wwn": "uuid.1"}), &facts, Code::MultipathLeg);
    let spaces = machine([
        nvme(4, "eui.1"),
        DiskFacts {
            by_path: Some("pci-0000:00:04.0-nvme-2".to_owned()),
            ..nvme(5, "nvme.1b36-53414d45-51454d55-00000002")
        },
    ]);
    assert_eq!(bound(json!({"wwn": "eui.1"}), &spaces), Ok("nvme4n1".to_owned()));
}

#[test]
fn two_document_disks_bind_to_distinct_disks() {
    let disks =
        json!({"a": {"match": {"serial": "S-sda"}}, "b": {"match": {"by_path": "pci-sda"}}});
    let document = document(disks, &json!({}));
    let facts = machine([disk("sda")]);
    let found = bind(&document, &facts).expect_err("one disk");
    assert_eq!((found.len(), found[0].code), (1, Code::Twice));
}

/// Disks that share many attributes, as in a purchase of one model.
fn any_disk() -> impl Strategy<Value = DiskFacts> {
    let flags = (any::<[bool; 5]>(), 0..3_u8, 0..3_u8, 0..2_u8);
    flags.prop_map(|([removable, read_only, boot, is_virtual, leg], wwn, serial, path)| DiskFacts {
        wwn: (wwn > 0).then(|| wwn.to_string()),
        serial: (serial > 0).then(|| serial.to_string()),
        by_path: Some(path.to_string()),
        removable,
        read_only,
        is_boot_medium: boot,
        is_virtual,
        multipath_maps: if leg { vec!["m".to_owned()] } else { Vec::new() },
        ..disk("x")
    })
}

proptest! {
    #[test]
    fn bound_disk_matches_uniquely_and_is_writable(
        disks in proptest::collection::vec(any_disk(), 0..6),
        wwn in proptest::option::of(0..3_u8),
        serial in proptest::option::of(0..3_u8),
        path in proptest::option::of(0..2_u8),
        turn in 0..6_usize,
    ) {
        let named = |(at, disk): (usize, DiskFacts)| DiskFacts { kernel_name: format!("sd{at}"), ..disk };
        let mut facts = machine(disks.into_iter().enumerate().map(named));
        let text = |value: Option<u8>| value.map(|value| value.to_string());
        let matches = DiskMatch {
            wwn: text(wwn), serial: text(serial), by_path: text(path), ..DiskMatch::default()
        };
        let mut document = document(json!({}), &json!({}));
        let id: Id = "os".parse().expect("an id");
        let disk = crate::document::Disk { matches: matches.clone(), wipe: crate::document::Wipe::default() };
        document.sections.disks = Entries([(id.clone(), disk)].into());
        let agreeing: Vec<_> = facts.disks.iter().filter(|disk| {
            (wwn.is_none() || disk.wwn == matches.wwn)
                && (serial.is_none() || disk.serial == matches.serial)
                && (path.is_none() || disk.by_path == matches.by_path)
        }).map(|disk| disk.kernel_name.clone()).collect();
        let first = bind(&document, &facts).map(|bound| bound[&id].clone());
        if let Ok(disk) = &first {
            prop_assert_eq!(&agreeing, &vec![disk.kernel_name.clone()]);
            prop_assert!(!disk.removable && !disk.read_only && !disk.is_boot_medium && !disk.is_virtual);
            prop_assert!(disk.multipath_maps.is_empty());
        }
        // The order in which disks are found says nothing.
        let turn = turn % facts.disks.len().max(1);
        facts.disks.rotate_left(turn);
        let second = bind(&document, &facts).map(|bound| bound[&id].clone());
        prop_assert_eq!(first.ok(), second.ok());
    }
}
