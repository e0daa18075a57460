//! Inputs of each driver: the resulting documents, and the refusals.
#![expect(clippy::needless_pass_by_value, reason = "literals read better by value")]

mod curtin;
mod ironic;
mod nailgun;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::size::MIB;
use hoist_provision::document::{
    Document, Fs, MAX_BYTES, PartRole, Size, StorageNode, Tables, Wipe,
};
use hoist_provision::driver::{Confidence, DataDriver, Drivers, Native, Options};
use hoist_provision::facts::{DiskFacts, Facts};
use hoist_provision::layout::{self, Work};
use uuid::Uuid;

const DRIVERS: Drivers = Drivers::new(&[&Native, &Ironic, &Nailgun, &Curtin]);

fn options() -> Options {
    Options {
        txn: Uuid::from_u128(1),
        node: "n1".to_owned(),
        allow_kernel_names: false,
        wipe: Wipe::default(),
        boot: None,
    }
}

fn parsed(driver: &dyn DataDriver, input: &Value) -> Document {
    let found = driver.parse(input.to_string().as_bytes(), &options());
    found.unwrap_or_else(|found| panic!("{found:#?}"))
}

fn refused(driver: &dyn DataDriver, input: &Value, code: Code) -> ProvisionDiagnostic {
    let mut found = driver.parse(input.to_string().as_bytes(), &options()).expect_err("refused");
    assert_eq!(found.len(), 1, "{found:#?}");
    let found = found.remove(0);
    assert_eq!(found.code, code, "{found}");
    found
}

/// Partitions of a disk in the order of the document: how large in MiB, and what for.
fn parts(document: &Document, disk: &str) -> Vec<(u64, PartRole)> {
    let of = |node: &StorageNode| match node {
        StorageNode::Part(part) if part.on.as_str() == disk => {
            let Size::Exact(bytes) = part.size else { panic!("{} is not exact", part.id) };
            Some((bytes.0 / MIB, part.role))
        }
        _ => None,
    };
    document.sections.storage.iter().filter_map(of).collect()
}

fn sizes(document: &Document, disk: &str) -> Vec<u64> {
    parts(document, disk).into_iter().map(|(size, _)| size).collect()
}

fn mounted<'a>(document: &'a Document, mount: &str) -> &'a Fs {
    let mut all = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    all.find(|fs| fs.mount.as_deref() == Some(mount)).unwrap_or_else(|| panic!("{mount}"))
}

/// A machine with disks of these names, links as udev would make them, and sizes in MiB.
fn machine(disks: &[(&str, u64)]) -> Facts {
    let disk = |(name, size): &(&str, u64)| DiskFacts {
        kernel_name: (*name).to_owned(),
        size: size * MIB,
        logical_sector: 512,
        serial: Some(format!("S-{name}")),
        by_path: Some(format!("pci-{name}")),
        hctl: Some(format!("0:0:{}:0", name.len())),
        links: vec![format!("by-id/ata-{name}")],
        ..DiskFacts::default()
    };
    Facts { disks: disks.iter().map(disk).collect(), ..Facts::default() }
}

/// Where every partition comes to lie, in MiB, in the order of the first disk's table.
fn laid_out(document: &Document, facts: &Facts) -> Vec<(u64, u64)> {
    let layout = layout::plan(document, facts).unwrap_or_else(|found| panic!("{found:#?}"));
    let Work::Table(table) = &layout.disks[0].work else { panic!("a table") };
    let mut places: Vec<_> =
        table.partitions.iter().map(|part| (part.start / MIB, part.len / MIB)).collect();
    places.sort_unstable();
    places
}

#[test]
fn driver_is_chosen_by_the_shape_of_the_input() {
    let name = |input: &Value| {
        DRIVERS
            .choose(input.to_string().as_bytes())
            .map(|driver| driver.describe().name)
            .map_err(|e| e.code)
    };
    let native = json!({"api": "hoist/v1", "txn": Uuid::nil(), "sections": {}});
    assert_eq!(name(&native), Ok("hoist"));
    assert_eq!(name(&json!({"images": [], "partitions": []})), Ok("bareon-ironic"));
    assert_eq!(name(&json!({"ks_meta": {"pm_data": {"ks_spaces": []}}})), Ok("nailgun"));
    let curtin = json!({"storage": {"version": 1, "config": []}});
    assert_eq!(name(&curtin), Ok("curtin"));
    assert_eq!(name(&json!({"something": "else"})), Err(Code::Unreadable));
    assert_eq!(DRIVERS.choose(b"\xff").map(|_| ()).map_err(|e| e.code), Err(Code::Unreadable));
    for driver in DRIVERS.iter() {
        let name = driver.describe().name;
        assert_eq!(DRIVERS.by_name(name).map(|driver| driver.describe().name), Some(name));
    }
    assert!(DRIVERS.by_name("swift").is_none());
}

#[test]
fn bareon_drivers_read_yaml() {
    let yaml = b"images: []\npartitions_policy: clean\npartitions:\n  - type: disk\n    id: {type: scsi, value: '0:0:3:0'}\n    size: 1 GiB\n    volumes: []\n";
    assert_eq!(DRIVERS.choose(yaml).expect("ironic").describe().name, "bareon-ironic");
    let document = Ironic.parse(yaml, &options()).expect("a document");
    assert_eq!(document.sections.disks.0.len(), 1);
}

#[test]
fn oversized_input_is_refused_unread() {
    let large = vec![b' '; MAX_BYTES + 1];
    for driver in DRIVERS.iter() {
        assert_eq!(driver.sniff(&large), Confidence::No);
        let found = driver.parse(&large, &options()).expect_err("too large");
        assert_eq!(found[0].code, Code::TooLarge);
    }
}

/// Their volumes are all called alike, so each would be compared with all others.
#[test]
fn input_beyond_the_document_limits_is_refused_at_once() {
    let volumes = vec![json!({"type": "lv", "name": "x", "size": "1"}); 60_000];
    let group = json!({"type": "vg", "id": "v", "volumes": volumes});
    let ironic = json!({"images": [], "partitions": [group]});
    let volumes = vec![json!({"type": "lv", "name": "x", "size": 1}); 60_000];
    let group = json!({"type": "vg", "id": "v", "volumes": volumes});
    let nailgun = json!({"ks_meta": {"pm_data": {"ks_spaces": [group]}}});
    let part = json!({"type": "partition", "id": "p", "device": "d", "size": "1G"});
    let devices = vec!["p"; 200_000];
    let group = json!({"type": "lvm_volgroup", "id": "v", "name": "v", "devices": devices});
    let disk = json!({"type": "disk", "id": "d", "serial": "S"});
    let curtin = json!({"storage": {"version": 1, "config": [disk, part, group]}});
    for (driver, input) in
        [(&Ironic as &dyn DataDriver, ironic), (&Nailgun, nailgun), (&Curtin, curtin)]
    {
        refused(driver, &input, Code::TooLarge);
    }
}

proptest! {
    #[test]
    fn drivers_do_not_panic_on_any_input(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        size in "(-?[0-9]{0,22}\\.?[0-9]{0,3} ?(MiB|s|%|ZB|remaining|))|.{0,8}",
        text in ".{0,12}",
        number: i64,
    ) {
        let ironic = json!({
            "images": [{"name": text, "image_pull_url": text, "target": "/"}],
            "partitions": [
                {"type": "disk", "id": {"type": "path", "value": text}, "size": size, "volumes": [
                    {"type": "partition", "size": size, "mount": text, "file_system": text},
                    {"type": "pv", "size": size, "vg": text, "lvm_meta_size": size},
                    {"type": "raid", "size": size, "mount": text},
                ]},
                {"type": "vg", "id": text, "volumes": [{"type": "lv", "name": text, "size": size}]},
            ],
        });
        let nailgun = json!({"ks_meta": {"pm_data": {"kernel_params": text, "ks_spaces": [
            {"type": "disk", "id": text, "name": text, "size": number, "extra": [text],
             "free_space": number, "volumes": [
                {"type": "partition", "size": number, "mount": text, "file_system": text},
                {"type": "partition", "size": number, "name": "cephjournal", "partition_guid": text},
                {"type": "partition", "size": 1, "name": "ceph"},
                {"type": "pv", "size": number, "vg": text, "lvm_meta_size": number},
            ]},
            {"type": "vg", "id": text, "volumes": [{"type": "lv", "name": text, "size": number}]},
        ]}}});
        let curtin = json!({"storage": {"version": 1, "config": [
            {"type": "disk", "id": text, "serial": text, "wwn": text, "path": text},
            {"type": "partition", "id": "p", "device": text, "size": size, "flag": text},
            {"type": "partition", "id": "q", "device": text, "size": number},
            {"type": "raid", "id": "r", "name": text, "raidlevel": number, "devices": ["p", "q"]},
            {"type": "lvm_volgroup", "id": "g", "name": text, "devices": ["r"]},
            {"type": "lvm_partition", "id": "l", "name": text, "volgroup": "g", "size": size},
            {"type": "dm_crypt", "id": "c", "volume": "l", "keyfile": text},
            {"type": "format", "id": "f", "fstype": "ext4", "volume": "l", "label": text},
            {"type": "mount", "id": "m", "device": "f", "path": text},
        ]}});
        let others = [ironic, nailgun, curtin].map(|input| input.to_string().into_bytes());
        for driver in DRIVERS.iter() {
            for input in others.clone().into_iter().chain([bytes.clone()]) {
                let _ = driver.sniff(&input);
                if let Ok(document) = driver.parse(&input, &options()) {
                    // Every document of a driver must survive a round trip.
                    let text = serde_json::to_vec(&document).expect("plain values");
                    prop_assert_eq!(hoist_provision::document::read("again", &text).expect("the same"), document);
                }
            }
        }
    }
}
