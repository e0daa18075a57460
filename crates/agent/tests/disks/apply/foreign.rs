//! Disks of others: refused as they are, and taken when everything on them is named.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::{Bench, MIB, agent};
use hoist_testkit::loop_disk::run;

const SIZE: u64 = 16 * MIB;

/// A disk that another program formatted, and the values of `wipe` that release it.
struct Fixture {
    name: &'static str,
    kinds: &'static str,
    make: fn(&Path),
}

/// Writes a signature at an offset.
fn plant(disk: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(disk).expect("it is there");
    file.write_all_at(bytes, at).expect("it is written");
    file.sync_all().expect("it is written");
}

/// A superblock of MD with the fields that probes read.
fn md(version: u32) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    block[4..8].copy_from_slice(&version.to_le_bytes());
    block[16..32].copy_from_slice(&[7; 16]);
    block
}

fn partition_of_type(disk: &Path, guid: &str) {
    let kind = format!("1:{guid}");
    run(Command::new("sgdisk").args(["-n", "1:2048:+8M", "-t", &kind]).arg(disk));
}

const FIXTURES: [Fixture; 20] = [
    Fixture {
        name: "ext4",
        kinds: "ext",
        make: |disk| drop(run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(disk))),
    },
    Fixture { name: "xfs", kinds: "xfs", make: |disk| plant(disk, 0, b"XFSB") },
    Fixture {
        name: "LVM",
        kinds: "lvm",
        make: |disk| plant(disk, 512, b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001"),
    },
    Fixture { name: "MD 0.90", kinds: "md", make: |disk| plant(disk, SIZE - 64 * 1024, &md(0)) },
    Fixture { name: "MD 1.0", kinds: "md", make: |disk| plant(disk, SIZE - 8192, &md(1)) },
    Fixture { name: "MD 1.2", kinds: "md", make: |disk| plant(disk, 4096, &md(1)) },
    Fixture { name: "LUKS", kinds: "luks", make: |disk| plant(disk, 0, b"LUKS\xba\xbe\0\x02") },
    Fixture {
        name: "swap",
        kinds: "swap",
        make: |disk| drop(run(Command::new("mkswap").arg("-q").arg(disk))),
    },
    Fixture {
        name: "a label of ZFS",
        kinds: "zfs",
        make: |disk| plant(disk, 128 * 1024, &0x00ba_b10c_u64.to_le_bytes()),
    },
    Fixture {
        name: "a partition of VMFS",
        kinds: "gpt, vmfs",
        make: |disk| partition_of_type(disk, "AA31E02A-400F-11DB-9590-000C2911D1B8"),
    },
    Fixture {
        name: "a partition of GPFS",
        kinds: "gpfs, gpt",
        make: |disk| partition_of_type(disk, "37AFFC90-EF7D-4E96-91C3-2D7AE055B174"),
    },
    Fixture {
        name: "NTFS",
        kinds: "ntfs",
        make: |disk| drop(run(Command::new("mkfs.ntfs").args(["-F", "-Q", "-q"]).arg(disk))),
    },
    Fixture {
        name: "ISO 9660",
        kinds: "iso9660",
        make: |disk| plant(disk, 0x8000, b"\x01CD001\x01"),
    },
    Fixture {
        name: "ReiserFS",
        kinds: "reiserfs",
        make: |disk| plant(disk, 0x1_0034, b"ReIsEr2Fs"),
    },
    Fixture {
        name: "Oracle ASM",
        kinds: "oracleasm",
        make: |disk| plant(disk, 32, b"ORCLDISKDATA1"),
    },
    Fixture { name: "VDO", kinds: "vdo", make: |disk| plant(disk, 0, b"dmvdo001") },
    Fixture {
        name: "BitLocker",
        kinds: "bitlocker",
        make: |disk| plant(disk, 0, b"\xeb\x58\x90-FVE-FS-"),
    },
    Fixture {
        name: "data at its end",
        kinds: "unknown",
        make: |disk| plant(disk, SIZE - MIB, b"data of a program"),
    },
    Fixture {
        name: "random bytes",
        kinds: "unknown",
        make: |disk| {
            let noise: Vec<u8> =
                (0_u32..1 << 20).map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes()[0]).collect();
            plant(disk, 0, &noise);
        },
    },
    Fixture {
        name: "a partition with a database",
        kinds: "gpt, unknown",
        make: |disk| {
            run(Command::new("sgdisk").args(["-n", "1:2048:+8M"]).arg(disk));
            plant(disk, 2 * MIB, b"data of a program");
        },
    },
];

#[test]
fn foreign_disk_is_taken_only_when_all_its_content_is_named() {
    let bench = Bench::sized(512, SIZE / MIB);
    let disk = bench.disk.path();
    let name = disk.file_name().expect("a name").to_string_lossy().into_owned();
    let path = bench.path("foreign.yaml");
    let empty = vec![0; usize::try_from(SIZE).expect("it is small")];
    for Fixture { name: what, kinds, make } in FIXTURES {
        plant(disk, 0, &empty);
        make(disk);
        let document = |wipe: &str| {
            let text = format!(
                "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-{:012x}\nsections:\n  \
                 node: {{id: n1}}\n  policy: {{allow_kernel_names: true}}\n  disks:\n    \
                 os: {{match: {{kernel_name: {name}}}, wipe: [{wipe}]}}\n  storage:\n    \
                 - part: {{id: data, on: os, size: rest}}\n",
                bench.tag
            );
            fs_err::write(&path, text).expect("it is written");
            &path
        };
        let before = bench.disk.bytes();
        let hint = format!("say `wipe: [{kinds}]` of the disk");
        let refused = agent("apply", document(""), &[]);
        assert_eq!(refused.code, 3, "{what}: {}", refused.err);
        assert!(refused.err.contains("[foreign-data]"), "{what}: {}", refused.err);
        assert!(refused.err.contains(&hint), "{what}: {}", refused.err);
        assert_eq!(refused.err.contains("unknown data"), kinds.contains("unknown"), "{what}");
        // All but one is not enough.
        if let Some((first, _)) = kinds.split_once(", ") {
            let refused = agent("apply", document(first), &[]);
            assert_eq!(refused.code, 3, "{what}: {}", refused.err);
        }
        assert!(before == bench.disk.bytes(), "{what}");
        let allowed = agent("plan", document(kinds), &[]);
        assert_eq!(allowed.code, 20, "{what}: {}", allowed.err);
        assert!(allowed.out.contains("! destroys "), "{what}: {}", allowed.out);
    }
}
