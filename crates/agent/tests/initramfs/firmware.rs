//! Boot entries that the agent writes, read back from the firmware's chip without the machine.

use std::collections::BTreeMap;
use std::process::Command;

use hoist_machine::{Drive, Firmware, StandaloneMachine, variables};
use hoist_provision::boot_entries::{DevicePathNode, Entry, LoadOption};
use hoist_provision::digest::Digest;
use uuid::Uuid;

use crate::script::Scenario;
use crate::{MIB, run};

/// Any content would do: no machine starts it here.
const PROGRAM: &[u8] = b"not started in this test";

/// A network card that is asked by IPv4.
fn network() -> Vec<u8> {
    let path = vec![
        DevicePathNode {
            kind: 3,
            sub: 11,
            data: [&[0x52, 0x54, 0, 0, 0, 1][..], &[0; 27]].concat(),
        },
        DevicePathNode { kind: 3, sub: 12, data: vec![0; 23] },
    ];
    LoadOption { attributes: 1, label: "PXE".to_owned(), path, data: Vec::new() }.encode()
}

/// A system on a partition that is gone.
fn phantom(label: &str, number: u128) -> Vec<u8> {
    let partuuid = Uuid::from_u128(number);
    let file = "/EFI/debian/shimx64.efi".to_owned();
    let entry = Entry { partuuid, number: 1, start: 2048, sectors: 8, file, arguments: None };
    LoadOption { label: label.to_owned(), ..entry.option() }.encode()
}

fn order(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The boot order as numbers and names, without the entries that this firmware adds by itself.
fn tried(all: &BTreeMap<String, Vec<u8>>) -> Vec<(u16, String)> {
    let numbers = all["BootOrder"].chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let named = numbers.map(|number| {
        let entry = all.get(&format!("Boot{number:04X}")).map(|bytes| LoadOption::decode(bytes));
        (number, entry.flatten().map_or("nothing".to_owned(), |entry| entry.label))
    });
    named.filter(|(_, label)| label != "UiApp").collect()
}

fn document(order: &str) -> String {
    let digest = Digest::of(PROGRAM);
    format!(
        "api: hoist/v1
txn: 6d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e31
sections:
  node: {{id: n1}}
  disks:
    os: {{match: {{serial: HOIST1}}}}
  storage:
    - part: {{id: esp, on: os, size: 32 MiB, role: esp}}
    - fs: {{id: esp-fs, on: esp, kind: vfat, label: ESP}}
    - part: {{id: root, on: os, size: rest}}
    - fs: {{id: root-fs, on: root, kind: ext4, mount: /}}
  boot:
    firmware: uefi
    loader: uki
    order: {order}
    kernel_args: [quiet]
    files:
      uki: {{sources: ['file:///program.efi'], digest: '{digest}'}}
"
    )
}

#[test]
fn firmware_keeps_the_boot_order_and_drops_missing_entries() {
    let mut scenario = Scenario::new();
    let disk = scenario.disk("disk.img", 64 * MIB, 0);
    let chip = scenario.path("vars.fd");
    variables::forget_all(&chip).expect("firmware that remembers");
    let before = [
        ("Boot0000", network()),
        ("Boot0001", phantom("debian", 1)),
        ("Boot0002", phantom("hoist", 2)),
        ("Boot0003", phantom("hoist", 3)),
        // The last one leads nowhere.
        ("BootOrder", order(&[0, 2, 3, 1, 0x77])),
    ];
    variables::add(&chip, &before).expect("there is room");
    scenario.file("program.efi", PROGRAM);
    scenario.file("disk_first.yaml", document("disk_first"));
    scenario.file("network_first.yaml", document("network_first"));
    scenario.file("leave.yaml", document("leave"));
    let machine = StandaloneMachine {
        variables: Some(chip.clone()),
        drives: vec![Drive {
            image: disk.clone(),
            device: "nvme,serial=HOIST1".to_owned(),
            keeps: true,
        }],
        ..StandaloneMachine::new(Firmware::Uefi)
    };

    let script = "disks 1\n\
        try apply hoist-agent apply -f /disk_first.yaml\n\
        try again hoist-agent plan -f /disk_first.yaml\n";
    let said = scenario.run(machine.clone(), script);
    assert_eq!(said.of("apply").0, 0, "{}", said.0);
    assert_eq!(said.of("again").0, 0, "{}", said.0);
    let all = variables::read(&chip).expect("a chip");
    let named = |number, name: &str| (number, name.to_owned());
    assert_eq!(tried(&all), [named(2, "hoist"), named(0, "PXE"), named(1, "debian")]);
    assert!(!all.contains_key("Boot0003"), "{all:?}");
    // Those of others are as they were, wherever they lead.
    assert_eq!((&all["Boot0000"], &all["Boot0001"]), (&before[0].1, &before[1].1));
    // The id of the partition as another tool reads it.
    let shown = run(Command::new("sgdisk").args(["-i", "1"]).arg(&disk));
    let partuuid = shown.lines().find_map(|line| line.strip_prefix("Partition unique GUID: "));
    let partuuid = Uuid::parse_str(partuuid.expect("a PARTUUID").trim()).expect("a PARTUUID");
    let file: Vec<u8> =
        r"\EFI\BOOT\BOOTX64.EFI".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let ours = &all["Boot0002"];
    let has = |part: &[u8]| ours.windows(part.len()).any(|window| window == part);
    assert!(has(&partuuid.to_bytes_le()) && has(&file), "{ours:?}");

    let script = "disks 1\n\
        try apply hoist-agent apply -f /network_first.yaml\n\
        try again hoist-agent plan -f /network_first.yaml\n\
        try leave hoist-agent plan -f /leave.yaml\n";
    let said = scenario.run(machine, script);
    assert_eq!(said.of("apply").0, 0, "{}", said.0);
    assert_eq!((said.of("again").0, said.of("leave").0), (0, 0), "{}", said.0);
    let now = variables::read(&chip).expect("a chip");
    assert_eq!(tried(&now), [named(0, "PXE"), named(2, "hoist"), named(1, "debian")]);
    assert_eq!(now["Boot0002"], all["Boot0002"]);
}

#[test]
fn reinstalled_machine_has_one_boot_entry_at_once() {
    let mut scenario = Scenario::new();
    let disk = scenario.disk("disk.img", 64 * MIB, 0);
    let chip = scenario.path("vars.fd");
    scenario.file("program.efi", PROGRAM);
    let first = document("disk_first");
    let second = first.replace("txn: 6d1b6d5e", "txn: 7e2c7e6f");
    assert_ne!(first, second);
    scenario.file("first.yaml", first);
    scenario.file("second.yaml", second);
    let machine = StandaloneMachine {
        variables: Some(chip.clone()),
        drives: vec![Drive {
            image: disk.clone(),
            device: "nvme,serial=HOIST1".to_owned(),
            keeps: true,
        }],
        ..StandaloneMachine::new(Firmware::Uefi)
    };
    for document in ["first", "second"] {
        let script = format!("disks 1\ntry apply hoist-agent apply -f /{document}.yaml\n");
        let said = scenario.run(machine.clone(), &script);
        assert_eq!(said.of("apply").0, 0, "{document}: {}", said.0);
        let all = variables::read(&chip).expect("a chip");
        let ours = all.iter().filter(|(name, _)| name.starts_with("Boot0"));
        let ours = ours.filter_map(|(_, bytes)| LoadOption::decode(bytes));
        let ours: Vec<_> = ours.filter(|entry| entry.label == "hoist").collect();
        let [entry] = &ours[..] else { panic!("{document}: {ours:?}") };
        let shown = run(Command::new("sgdisk").args(["-i", "1"]).arg(&disk));
        let partuuid = shown.lines().find_map(|line| line.strip_prefix("Partition unique GUID: "));
        let partuuid = Uuid::parse_str(partuuid.expect("a PARTUUID").trim()).expect("a PARTUUID");
        assert_eq!(entry.partuuid(), Some(partuuid), "{document}");
        assert_eq!(tried(&all).first().map(|(_, label)| label.as_str()), Some("hoist"));
    }
}
