//! Changes to whole file systems and disks: grow, erase, restore. As root, on loop devices.

use std::path::{Path, PathBuf};
use std::process::Command;

use hoist_device::kernel;
use hoist_testkit::loop_disk::{LoopDisk, run};
use serde_json::Value;

const MIB: u64 = 1 << 20;

struct Bench {
    disk: LoopDisk,
    dir: tempfile::TempDir,
    tag: u32,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A loop device that is used again would still have them.
        let _ = kernel::set_partitions(self.disk.path(), &[]);
    }
}

impl Bench {
    fn new(size: u64, sector: u32, tag: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { disk: LoopDisk::new(size, sector), dir, tag }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn document(&self, sections: &str) -> PathBuf {
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let text = format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-{:04x}-{:012x}\nsections:\n  node: {{id: n1}}\n  \
             policy: {{allow_kernel_names: true}}\n  \
             disks: {{os: {{match: {{kernel_name: {name}}}, wipe: any}}}}\n{sections}",
            self.tag,
            std::process::id()
        );
        let path = self.path("node.yaml");
        fs_err::write(&path, text).expect("it is written");
        path
    }

    fn node(&self) -> PathBuf {
        PathBuf::from(format!("{}p1", self.disk.path().display()))
    }
}

fn agent(verb: &str, document: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
    let output = agent.arg(verb).arg("-f").arg(document).args(more).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// As its own tools know it.
fn size_of(kind: &str, node: &Path) -> u64 {
    let (tool, keys): (&[&str], &[&str]) = match kind {
        "ext4" => (&["dumpe2fs", "-h"], &["Block count:", "Block size:"]),
        "xfs" => (&["xfs_db", "-r", "-c", "sb 0", "-c", "p"], &["dblocks =", "blocksize ="]),
        _ => (&["btrfs", "inspect-internal", "dump-super"], &["total_bytes"]),
    };
    let said = run(Command::new(tool[0]).args(&tool[1..]).arg(node));
    let number = |key: &&str| {
        let found =
            said.lines().find_map(|line| line.strip_prefix(*key)?.trim().parse::<u64>().ok());
        found.unwrap_or_else(|| panic!("no `{key}` in {said}"))
    };
    keys.iter().map(number).product()
}

#[test]
fn file_system_image_is_grown_to_its_partition_once() {
    let kinds: [(&str, &[&str], u64, &[&str]); 3] = [
        ("ext4", &["mke2fs", "-q", "-t", "ext4"], 16, &["e2fsck", "-fn"]),
        ("xfs", &["mkfs.xfs", "-q"], 320, &["xfs_repair", "-n"]),
        ("btrfs", &["mkfs.btrfs", "-q"], 200, &["btrfs", "check"]),
    ];
    for (tag, (kind, make, size, check)) in (1..).zip(kinds) {
        let sector = if kind == "ext4" { 4096 } else { 512 };
        let bench = Bench::new((size + 100) * MIB, sector, tag);
        let image = bench.path("root.img");
        let file = fs_err::File::create(&image).expect("created");
        file.set_len(size * MIB).expect("it has a size");
        run(Command::new(make[0]).args(&make[1..]).arg(&image));
        let document = bench.document(&format!(
            "  storage:\n  - part: {{id: root, on: os, size: rest}}\n  \
             - fs: {{id: root-fs, on: root, kind: {kind}}}\n  images: {{root: {{sources: \
             ['file://{}'], target: root-fs, grow: true}}}}\n",
            image.display()
        ));
        let (code, out, err) = agent("plan", &document, &[]);
        assert_eq!(code, Some(20), "{err}");
        assert!(out.contains(&format!("grow {kind} root-fs in root")), "{out}");
        let (code, _, err) = agent("apply", &document, &[]);
        assert_eq!(code, Some(0), "{kind}: {err}");
        run(Command::new(check[0]).args(&check[1..]).arg(bench.node()));
        let large = size_of(kind, &bench.node());
        assert!(large > (size + 60) * MIB, "{kind} has {large}");
        let (code, out, err) = agent("apply", &document, &[]);
        assert_eq!((code, out.contains("nothing to do")), (Some(0), true), "{out}{err}");
    }
}

#[test]
fn growing_without_a_file_system_is_refused() {
    let bench = Bench::new(64 * MIB, 512, 7);
    let document = bench.document(
        "  storage:\n  - part: {id: root, on: os, size: rest}\n  images: {root: {sources: \
         ['file:///nowhere'], target: root, grow: true}}\n",
    );
    let (code, _, err) = agent("plan", &document, &[]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("images.root.grow"), "{err}");
}

#[test]
fn erased_disk_is_reported_as_json() {
    for (sector, method) in [(512, "overwrite"), (4096, "block")] {
        let bench = Bench::new(24 * MIB, sector, 8 + sector);
        run(Command::new("mke2fs").args(["-q", "-F"]).arg(bench.disk.path()));
        let document = bench.document(&format!("  erase: {{disks: [os], method: {method}}}\n"));
        let (code, out, err) = agent("plan", &document, &[]);
        assert_eq!(code, Some(20), "{err}");
        assert!(out.contains(&format!("erase os by {method}")), "{out}");
        let (code, out, err) = agent("apply", &document, &["-o", "json"]);
        assert_eq!(code, Some(0), "{err}");
        let said: Value = serde_json::from_str(&out).expect("json");
        let report = &said["erased"][0];
        assert_eq!((&report["disk"], &report["method"]), (&"os".into(), &method.into()));
        assert_eq!(report["samples"], 64);
        assert!(bench.disk.bytes().iter().all(|byte| *byte == 0));
        let (code, out, err) = agent("undo", &document, &[]);
        let said = "nothing to undo: no disk belongs to this transaction";
        assert_eq!((code, out.trim()), (Some(0), said), "{err}");
    }
}

#[test]
fn undo_restores_a_disk_or_names_the_loss() {
    for sector in [512, 4096] {
        let bench = Bench::new(24 * MIB, sector, 40 + sector);
        let before = bench.disk.bytes();
        let document = bench.document("  storage:\n  - part: {id: a, on: os, size: rest}\n");
        assert_eq!(agent("apply", &document, &[]).0, Some(0));
        let (code, out, err) = agent("undo", &document, &["--dry-run"]);
        assert_eq!((code, out.trim()), (Some(0), "can be restored: os"), "{err}");
        let (code, out, err) = agent("undo", &document, &["-o", "json"]);
        assert_eq!(code, Some(0), "{err}");
        let said: Value = serde_json::from_str(&out).expect("json");
        assert_eq!((&said["disks"][0], &said["changed"]), (&"os".into(), &true.into()));
        let after = bench.disk.bytes();
        let last = before.len() - (1 << 20);
        assert!(before[..1 << 20] == after[..1 << 20] && before[last..] == after[last..]);
        run(Command::new("sgdisk").args(["-n", "1:0:+8M"]).arg(bench.disk.path()));
        assert_eq!(agent("apply", &document, &[]).0, Some(0));
        let (code, _, err) = agent("undo", &document, &[]);
        assert_eq!(code, Some(3), "{err}");
        assert!(err.contains("[cannot-undo]") && err.contains("partition 1"), "{err}");
    }
}
