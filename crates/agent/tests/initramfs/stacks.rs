//! Arrays, volumes and encrypted devices, made of real disks by a real kernel, made again over old
//! ones, and never touched where they reach to a disk that the document does not name.

use std::path::Path;

use hoist_initramfs::Tree;
use hoist_machine::disk::Disk;
use hoist_machine::{Firmware, Hardware, Kernel, Machine, Permit, guest, quick_dir};
use serde_json::{Value, json};

use crate::{Bench, DEADLINE, MIB, NODE, TXN, image_with, run};

const OTHER_TXN: &str = "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e32";

/// Runs in the guest in place of the agent's own first program.
const SCRIPT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
say() { echo "hoist-test: $*"; }
agent() {
    name=$1; shift
    hoist-agent "$@" >/tmp/out 2>&1
    code=$?
    say "$name: $code"
    sed "s/^/  $name| /" /tmp/out
}
. /test/steps
say "done"
poweroff -f
"#;

/// A machine with two disks of the document and one that the document does not name.
fn run_in_guest(steps: &str, documents: &[(&str, &Value)]) -> String {
    let _permit = Permit::wait().expect("a permit");
    let dir = tempfile::tempdir_in(quick_dir()).expect("a temporary directory");
    let mut tree = Tree::new();
    let busybox = fs_err::read(guest::busybox().expect("set up")).expect("it is there");
    tree.program("bin/busybox", busybox).expect("a path");
    tree.program("test/init", SCRIPT.as_bytes().to_vec()).expect("a path");
    tree.file("test/steps", steps.as_bytes().to_vec()).expect("a path");
    for (name, document) in documents {
        let text = serde_json::to_vec(document).expect("a plain value");
        tree.file(&format!("test/{name}"), text).expect("a path");
    }
    tree.file("test/image.zst", packed_image(dir.path())).expect("a path");
    let tools = ["mke2fs", "mkswap", "mdadm", "lvm", "e2fsck", "resize2fs"];
    let image = image_with(&tools, &["md", "dm"]);
    let initrd = dir.path().join("agent.cpio");
    fs_err::write(&initrd, [&image[..], &tree.archive()].concat()).expect("written");
    let disks = [("A", 160), ("B", 128), ("C", 32)].map(|(serial, mib)| {
        let path = dir.path().join(serial);
        fs_err::File::create(&path).and_then(|file| file.set_len(mib * MIB)).expect("created");
        (path, serial.to_owned())
    });
    let hardware = Hardware {
        firmware: Firmware::Bios,
        mac: "52:54:00:00:00:02".to_owned(),
        boot_url: String::new(),
        disk: Some(Disk::Nvmes(disks.to_vec())),
        variables: None,
    };
    let command_line = "console=ttyS0 loglevel=5 panic=-1 rdinit=/test/init".to_owned();
    let kernel = guest::kernel().expect("set up");
    let kernel = Kernel { kernel, initrd, command_line, clock: None };
    let mut machine = Machine::power_on_with(hardware, kernel).expect("a machine");
    let ended = machine.wait_for("hoist-test: done", DEADLINE);
    let console = machine.console().expect("it can be read");
    ended.unwrap_or_else(|error| panic!("{error:#}\n{console}"));
    machine.wait_until_off(DEADLINE).expect("it goes off");
    console
}

/// An array of two disks with volumes on it, beside a partition of its own.
fn stacked(txn: &str, node: &str, wipe: &Value, level: &str, text: &str) -> Value {
    let volume = if level == "raid1" { "40 MiB" } else { "24 MiB" };
    json!({
        "api": "hoist/v1",
        "txn": txn,
        "sections": {
            "node": {"id": node},
            "disks": {
                "left": {"match": {"serial": "A"}, "wipe": wipe},
                "right": {"match": {"serial": "B"}, "wipe": wipe},
            },
            "storage": [
                {"part": {"id": "root", "on": "left", "size": "16 MiB"}},
                {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
                {"part": {"id": "left-leg", "on": "left", "size": "rest"}},
                {"part": {"id": "right-leg", "on": "right", "size": "rest"}},
                {"md": {"id": "mirror", "on": ["left-leg", "right-leg"], "level": level}},
                {"pv": {"id": "pv", "on": "mirror"}},
                {"vg": {"id": "group", "on": ["pv"], "name": "data-1"}},
                {"lv": {"id": "volume", "on": "group", "size": volume, "name": "pg"}},
                {"lv": {"id": "grown", "on": "group", "size": "16 MiB"}},
                {"lv": {"id": "other", "on": "group", "size": "rest"}},
                {"fs": {"id": "volume-fs", "on": "volume", "kind": "ext4", "mount": "/srv"}},
                {"fs": {"id": "grown-fs", "on": "grown", "kind": "ext4", "mount": "/opt"}},
                {"fs": {"id": "swap", "on": "other", "kind": "swap"}},
            ],
            "images": {
                "grown": {"sources": ["file:///test/image.zst"], "target": "grown-fs", "grow": true},
            },
            "files": [
                {"on": "volume-fs", "path": "/etc/what", "content": {"text": text}},
                {"on": "root-fs", "path": "/etc/fstab", "content": "fstab"},
            ],
        },
    })
}

/// An ext4 of 8 MiB.
fn packed_image(dir: &Path) -> Vec<u8> {
    let path = dir.join("image");
    fs_err::File::create(&path).and_then(|file| file.set_len(8 * MIB)).expect("created");
    run(std::process::Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&path));
    zstd::encode_all(&fs_err::read(&path).expect("made")[..], 1).expect("packed")
}

fn exits(console: &str) -> Vec<String> {
    // The firmware may not have ended its last line.
    let lines = console.lines().filter_map(|line| line.trim().split_once("hoist-test: "));
    lines.map(|(_, said)| said.to_owned()).collect()
}

#[test]
fn mirrors_and_volumes_are_remade_only_on_named_disks() {
    let first = stacked(TXN, "n1", &json!([]), "raid1", "first\n");
    // A document of another node: all content of the disks is foreign.
    let foreign = stacked(OTHER_TXN, "n2", &json!([]), "raid0", "second\n");
    let wipe = json!(["gpt", "ext", "md", "lvm", "hoist"]);
    let second = stacked(OTHER_TXN, "n2", &wipe, "raid0", "second\n");
    let third = stacked(TXN, "n3", &json!("any"), "raid1", "third\n");
    let steps = r#"
# Killed while volumes are there: what it had put together stays behind.
hoist-agent apply -f /test/first >/dev/null 2>&1 &
while [ ! -e /sys/block/dm-0 ]; do sleep 0.05; done
kill -9 $!
wait
say "left behind: $(ls /sys/block | grep -c -e md -e dm-)"
agent first apply -f /test/first
agent again apply -f /test/first
agent verify verify -f /test/first
agent only apply -f /test/first --only files,images
say "holders: $(ls /sys/block/nvme*n1/nvme*n1p*/holders | grep -c md)"
# As the installed system would, by itself.
together() {
    mdadm --assemble --scan --run >/dev/null 2>&1
    md=$(ls /sys/block | grep md | head -1)
    say "array: $(cat /sys/block/$md/md/raid_disks) $(cat /sys/block/$md/md/array_state)"
    DM_DISABLE_UDEV=1 lvm vgchange -ay data-1 >/dev/null 2>&1
    mkdir -p /mnt && mount -t ext4 /dev/mapper/data--1-pg /mnt
}
together
say "holds: $(cat /mnt/etc/what)"
mkdir -p /opt && mount -t ext4 /dev/mapper/data--1-grown /opt
say "grown: $(df -m /opt | tail -1 | awk '{print ($(NF - 4) > 8)}')"
umount /opt
agent mounted plan -f /test/second
umount /mnt
agent assembled apply -f /test/first
agent foreign plan -f /test/foreign
agent taken plan -f /test/second
agent second apply -f /test/second
agent second-again apply -f /test/second
together
say "holds: $(cat /mnt/etc/what)"
say "fstab: $(mkdir -p /root-fs; mount -t ext4 /dev/nvme0n1p1 /root-fs; grep -c '^UUID=' /root-fs/etc/fstab) $(grep -o '^/dev/.* /opt' /root-fs/etc/fstab)"
umount /root-fs
umount /mnt
lvm vgchange -an data-1 >/dev/null 2>&1
mdadm --stop --scan >/dev/null 2>&1
# A leg on a disk that no document names.
mdadm --create /dev/md9 --run --level=1 --raid-devices=2 --metadata=1.2 /dev/nvme0n1p2 /dev/nvme2n1 >/dev/null 2>&1
say "md9: $(cat /sys/block/md9/md/array_state)"
mdadm --wait /dev/md9 >/dev/null 2>&1
mdadm --stop /dev/md9 >/dev/null 2>&1
before=$(sha256sum </dev/nvme2n1)
agent shared apply -f /test/third
after=$(sha256sum </dev/nvme2n1)
[ "$before" = "$after" ] && say "unnamed: as it was" || say "unnamed: CHANGED"
"#;
    let documents =
        [("first", &first), ("foreign", &foreign), ("second", &second), ("third", &third)];
    let console = run_in_guest(steps, &documents);
    let mut said = exits(&console);
    let left = said.remove(0);
    assert!(left.starts_with("left behind: ") && left != "left behind: 0", "{console}");
    let wanted = [
        "first: 0",
        "again: 0",
        "verify: 0",
        "only: 0",
        "holders: 0",
        "array: 2 clean",
        "holds: first",
        "grown: 1",
        "mounted: 3",
        "assembled: 0",
        "foreign: 3",
        "taken: 20",
        "second: 0",
        "second-again: 0",
        "array: 2 clean",
        "holds: second",
        "fstab: 3 /dev/mapper/data--1-grown /opt",
    ];
    assert_eq!(said[..wanted.len()], wanted, "{console}");
    for text in [
        "first| done; resumed an interrupted run",
        "again| nothing to do",
        "only| nothing to do",
        "assembled| nothing to do",
        "mounted| ",
        "foreign| ",
        "taken|   ! takes md",
        "second-again| nothing to do",
        "shared| ",
    ] {
        assert!(console.contains(text), "no `{text}` in {console}");
    }
    assert!(console.contains("[shared-stack]"), "{console}");
    assert_eq!(said[said.len() - 3..], ["shared: 3", "unnamed: as it was", "done"], "{console}");
}

#[test]
#[ignore = "what it costs to try keys is meant for real machines"]
fn luks_volume_is_made_without_storing_its_key() {
    let bench = Bench::new();
    let document = json!({
        "api": "hoist/v1",
        "txn": TXN,
        "sections": {
            "node": {"id": NODE},
            "disks": {"os": {"match": {"serial": "HOIST1"}}},
            "storage": [
                {"part": {"id": "leg", "on": "os", "size": "rest"}},
                {"pv": {"id": "pv", "on": "leg"}},
                {"vg": {"id": "data", "on": ["pv"]}},
                {"lv": {"id": "plain", "on": "data", "size": "24 MiB"}},
                {"lv": {"id": "secret", "on": "data", "size": "60 MiB"}},
                {"luks": {"id": "sealed", "on": "secret", "key": "secret://disks/data"}},
                {"fs": {"id": "sealed-fs", "on": "sealed", "kind": "ext4", "mount": "/srv"}},
            ],
            "files": [{"on": "sealed-fs", "path": "/what", "content": {"text": "sealed"}}],
        },
    });
    bench.server.set_job(document);
    bench.server.tell(json!({"disks/data": "correct horse battery staple"}));
    let image = image_with(&["mke2fs", "lvm", "cryptsetup"], &["dm", "crypt"]);
    let disk = || Disk::Nvme { image: bench.disk(), serial: "HOIST1".to_owned() };
    let mut machine = bench.power_on_with(&image, disk(), None);
    machine.wait_until_off(DEADLINE).expect("it goes off");
    let report = bench.server.reports().pop().expect("a report");
    let console = machine.console().expect("it can be read");
    assert_eq!(report["outcome"], json!("done"), "{report}\n{console}");
    assert!(!console.contains("correct horse"), "{console}");
    let bytes = fs_err::read(bench.disk()).expect("it can be read");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"LUKS\xba\xbe") && !has(b"correct horse") && !has(b"/srv\0"));
    opens(&bench.disk(), &bytes);

    bench.server.answer("continue", "power_off");
    let mut machine = bench.power_on_with(&image, disk(), None);
    machine.wait_until_off(DEADLINE).expect("it goes off");
    let again = bench.server.reports().pop().expect("a report");
    assert_eq!((&again["outcome"], &again["changed"]), (&json!("done"), &json!(false)), "{again}");
}

/// Checks the key with cryptsetup on a copy of the LUKS header.
fn opens(disk: &Path, bytes: &[u8]) {
    let at = bytes.windows(6).position(|window| window == b"LUKS\xba\xbe").expect("it is there");
    let header = disk.with_extension("luks");
    fs_err::write(&header, &bytes[at..at + 60 * (1 << 20)]).expect("written");
    let mut test = std::process::Command::new("cryptsetup");
    test.args(["open", "--test-passphrase", "--key-file=-"]).arg(&header);
    test.stdin(std::process::Stdio::piped());
    let mut test = test.spawn().expect("it starts");
    let mut input = test.stdin.take().expect("it is asked for");
    std::io::Write::write_all(&mut input, b"correct horse battery staple").expect("it reads");
    drop(input);
    assert!(test.wait().expect("it ends").success());
}
