//! A machine starts again when a document that is applied by hand says so, and not before.

use hoist_machine::{Drive, Firmware, StandaloneMachine};

use crate::MIB;
use crate::script::Scenario;

#[test]
fn machine_restarts_after_all_other_steps() {
    let mut scenario = Scenario::new();
    let disk = scenario.disk("disk.img", 16 * MIB, 0);
    scenario.file(
        "node.yaml",
        "api: hoist/v1
txn: 8d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e32
sections:
  node: {id: n1}
  disks:
    os: {match: {serial: HOIST1}}
  storage:
    - part: {id: data, on: os, size: rest, name: written}
  flow: {actions: [disks, reboot]}
",
    );
    let device = "nvme,serial=HOIST1".to_owned();
    let drives = vec![Drive { image: disk.clone(), device, keeps: true }];
    let machine = StandaloneMachine { drives, ..StandaloneMachine::new(Firmware::Bios) };
    let script = "disks 1\n\
        try look hoist-agent plan -f /node.yaml\n\
        try restart hoist-agent apply -f /node.yaml\n";
    let said = scenario.run_until_off(machine, script);
    let (code, plan) = said.of("look");
    assert_eq!(code, 20, "{plan}");
    assert!(plan.ends_with("afterwards: restart the machine"), "{plan}");
    assert!(!said.0.contains("hoist-test: restart ended"), "the machine went on:\n{}", said.0);
    let name: Vec<u8> = "written".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let now = fs_err::read(disk).expect("it is there");
    assert!(now[..40 * 512].windows(name.len()).any(|bytes| bytes == name), "it has its table");
}
