//! Disks that say they are one and the same, and change their places between plan and apply: nothing
//! is written to any of them.

use hoist_machine::{Drive, Firmware, StandaloneMachine};

use crate::MIB;
use crate::script::{Said, Scenario, digest};

/// Of NVMe disks with one serial number, and so with one WWN: their sizes, the last two of them twins.
const NVME: [(&str, u64); 4] = [("a", 16), ("b", 20), ("c", 24), ("d", 24)];
/// Of SCSI disks with one WWN.
const SCSI: [&str; 2] = ["x", "y"];

const SERIAL: &str = "SAME";
const WWN: &str = "0x5000c50000000001";

/// Names the SCSI disks by their places: the kernel names them as its probes happen to end.
const SCSI_IN_ORDER: &str = r#"
disks 6
for disk in /sys/block/sd*; do echo 1 > $disk/device/delete; done
for id in 0 1; do
    for host in /sys/class/scsi_host/*; do echo "0 $id 0" > $host/scan; done
    disks $((5 + id))
done
"#;

/// These disks in these places.
fn machine(scenario: &Scenario, nvme: [usize; 4], scsi: [usize; 2]) -> StandaloneMachine {
    let mut machine = StandaloneMachine::new(Firmware::Bios);
    let drive =
        |name: &str, device: String| Drive { image: scenario.path(name), device, keeps: true };
    for (place, at) in nvme.into_iter().enumerate() {
        // Each in a subsystem of its own, or the kernel takes only the first of them.
        machine.devices.push(format!("nvme-subsys,id=s{place},nqn=nqn{at}"));
        let controller = format!("nvme,id=c{place},serial={SERIAL},subsys=s{place}");
        machine.devices.push(format!("{controller},addr={}", place + 4));
        machine.drives.push(drive(NVME[at].0, format!("nvme-ns,bus=c{place}")));
    }
    machine.devices.push("virtio-scsi-pci,id=scsi".to_owned());
    for (place, at) in scsi.into_iter().enumerate() {
        let device = format!("scsi-hd,bus=scsi.0,scsi-id={place},serial=S{at},wwn={WWN}");
        machine.drives.push(drive(SCSI[at], device));
    }
    machine
}

fn document(matches: &str) -> String {
    format!(
        "api: hoist/v1
txn: 9d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e31
sections:
  node: {{id: n1}}
  policy: {{allow_kernel_names: true}}
  disks: {{os: {{match: {matches}, wipe: any}}}}
  storage:
    - part: {{id: root, on: os, size: rest}}
    - fs: {{id: root-fs, on: root, kind: ext4}}
"
    )
}

fn assert_refused(said: &Said, name: &str, why: &str) {
    let (code, text) = said.of(name);
    assert!(code == 3 && text.contains(why), "{name} ended with {code}\n{text}");
}

#[test]
fn swapped_identical_disks_are_refused() {
    let mut scenario = Scenario::new();
    let disks: Vec<_> = NVME.into_iter().chain(SCSI.map(|name| (name, 16))).collect();
    for (name, size) in &disks {
        scenario.disk(name, size * MIB, 0);
    }
    let before: Vec<_> = disks.iter().map(|(name, _)| digest(&scenario.path(name))).collect();
    let scsi = format!("{{wwn: '{WWN}'}}");
    for (name, matches) in [
        ("serial", "{serial: SAME}"),
        ("scsi-wwn", &scsi),
        ("twin", "{kernel_name: nvme2n1}"),
        ("nvme-name", "{kernel_name: nvme0n1}"),
        ("scsi-name", "{kernel_name: sda}"),
        ("scsi-place", "{hctl: '0:0:0:0'}"),
    ] {
        scenario.file(&format!("{name}.yaml"), document(matches));
    }
    let plan = |name: &str| format!("try {name} hoist-agent plan -f /{name}.yaml\n");
    let all = ["serial", "scsi-wwn", "twin", "nvme-name", "scsi-name", "scsi-place"];
    let script = format!("{SCSI_IN_ORDER}{}", all.map(plan).concat());
    let said = scenario.run(machine(&scenario, [0, 1, 2, 3], [0, 1]), &script);
    assert_refused(&said, "serial", "[several-disks]");
    assert_refused(&said, "scsi-wwn", "it is `sda` as well as `sdb`");
    assert_refused(&said, "twin", "disks `nvme2n1` and `nvme3n1` may be one and the same");

    // The plans are reviewed, the machine is opened, and the disks come back at other places.
    let seen = ["nvme-name", "scsi-name", "scsi-place"];
    let apply = |name: &str| {
        let plan = said.plan(name);
        format!("try {name} hoist-agent apply -f /{name}.yaml --plan {plan}\n")
    };
    let script = format!("{SCSI_IN_ORDER}{}", seen.map(apply).concat());
    let said = scenario.run(machine(&scenario, [1, 0, 2, 3], [1, 0]), &script);
    for name in seen {
        assert_refused(&said, name, "review the new plan, nothing was written");
    }
    let after: Vec<_> = disks.iter().map(|(name, _)| digest(&scenario.path(name))).collect();
    assert!(before == after, "a disk was written to");
}
