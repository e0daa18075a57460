//! A disk that cannot make zeros by itself, and was full of other things: holes of images are zeros
//! there, too.

use hoist_device::images::pack;
use hoist_machine::{Drive, Firmware, StandaloneMachine};
use hoist_provision::digest;

use crate::script::Scenario;
use crate::{MIB, random};

/// Two MiB that are full, a hole, something in the middle of nothing, and another hole.
fn with_holes() -> Vec<u8> {
    let mib = usize::try_from(MIB).expect("small");
    let mut image = vec![0; 6 * mib];
    image[..mib].copy_from_slice(&random(MIB));
    image[3 * mib + 100..3 * mib + 600].copy_from_slice(&random(500));
    image
}

#[test]
fn holes_are_zeros_on_a_disk_without_zeroing() {
    let mut scenario = Scenario::new();
    let disk = scenario.disk("disk.img", 16 * MIB, 0xff);
    let image = with_holes();
    let mut packed = Vec::new();
    let list = pack(&mut &image[..], &mut packed, 1).expect("packed");
    let list = serde_json::to_vec(&list).expect("plain values");
    let digest = digest::Digest::of(&list);
    scenario.file("chunks.zst", packed);
    scenario.file("chunks.json", list);
    scenario.file("stream.zst", zstd::encode_all(&image[..], 1).expect("packed"));
    scenario.file(
        "node.yaml",
        format!(
            "api: hoist/v1
txn: 8d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e31
sections:
  node: {{id: n1}}
  disks:
    os: {{match: {{serial: HOIST1}}}}
  storage:
    - part: {{id: a, on: os, size: 6 MiB}}
    - part: {{id: b, on: os, size: 6 MiB}}
  images:
    a:
      sources: ['file:///chunks.zst']
      manifest: file:///chunks.json
      digest: '{digest}'
      compression: zstd
      target: a
    b: {{sources: ['file:///stream.zst'], target: b, size: 6 MiB}}
"
        ),
    );
    let device = "virtio-blk-pci,serial=HOIST1,write-zeroes=off,discard=off".to_owned();
    let drives = vec![Drive { image: disk.clone(), device, keeps: true }];
    let machine = StandaloneMachine { drives, ..StandaloneMachine::new(Firmware::Bios) };
    let script = "disks 1\n\
        try zeroing cat /sys/block/vda/queue/write_zeroes_max_bytes\n\
        try discard cat /sys/block/vda/queue/discard_max_bytes\n\
        try facts hoist-agent facts -o json\n\
        try apply hoist-agent apply -f /node.yaml\n\
        try again hoist-agent plan -f /node.yaml\n";
    let said = scenario.run(machine, script);
    assert_eq!((said.of("zeroing"), said.of("discard")), ((0, "0"), (0, "0")), "{}", said.0);
    assert!(said.of("facts").1.contains("\"can_zero\": false"), "{}", said.0);
    assert_eq!((said.of("apply").0, said.of("again").0), (0, 0), "{}", said.0);

    let now = fs_err::read(&disk).expect("it is there");
    let mib = usize::try_from(MIB).expect("small");
    for start in [mib, 7 * mib] {
        let written = &now[start..start + image.len()];
        let wrong = written.iter().zip(&image).position(|(is, wanted)| is != wanted);
        assert_eq!(wrong, None, "of the image at {start}");
    }
}
