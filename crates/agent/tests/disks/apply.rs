//! The walk-through of docs/provision/agent.md, and refusals. As root, on loop devices.

mod bad_input;
mod boot;
mod config_drive;
mod files;
mod foreign;
mod plugins;
mod repeated;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use hoist_device::images::pack;
use hoist_device::kernel;
use hoist_testkit::loop_disk::{LoopDisk, run};
use sha2::{Digest, Sha256};

const MIB: u64 = 1 << 20;
const DOCUMENT: &str = include_str!("../../../../docs/provision/agent.md");

/// The transaction of the document, but for what tells one bench from another.
const TXN: &str = "5d1b6d5e-6f3a-4a7e-9d0c-";

struct Bench {
    disk: LoopDisk,
    dir: tempfile::TempDir,
    /// Two disks of one machine must not have one name, and tests run side by side.
    tag: u64,
}

static BENCHES: AtomicU64 = AtomicU64::new(0);

struct ProcessEnd {
    code: i32,
    out: String,
    err: String,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A loop device that is used again would still have them.
        let _ = kernel::set_partitions(self.disk.path(), &[]);
    }
}

impl Bench {
    /// A disk full of old bytes, and an image for it.
    fn new(sector: u32) -> Self {
        Self::sized(sector, 128)
    }

    fn sized(sector: u32, mib: u64) -> Self {
        let disk = LoopDisk::new(mib * MIB, sector);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let number = BENCHES.fetch_add(1, Ordering::Relaxed);
        let bench = Self { disk, dir, tag: u64::from(std::process::id()) << 8 | number };
        let image = bench.path("root.img");
        fs_err::File::create(&image).and_then(|file| file.set_len(16 * MIB)).expect("created");
        run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-L", "installed"]).arg(&image));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pack_image(&self) {
        let image = fs_err::read(self.path("root.img")).expect("it is there");
        let packed = zstd::encode_all(&image[..], 1).expect("it is packed");
        fs_err::write(self.path("root.img.zst"), packed).expect("it is written");
    }

    /// The document of the walk-through, for this disk, with changes.
    fn document(&self, changes: &[(&str, &str)]) -> PathBuf {
        let (_, text) = DOCUMENT.split_once("```yaml\n").expect("a document");
        let (text, _) = text.split_once("```").expect("its end");
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let images = format!("file://{}/", self.dir.path().display());
        let mut text = text.replace("loop7", &name).replace("file:///srv/images/", &images);
        let own = [
            ("2f6b1c0a9e31", format!("{:012x}", self.tag)),
            ("HOIST-ESP", self.label('E')),
            ("hoist-swap", self.label('s')),
            ("hoist-data", self.label('d')),
        ];
        for (from, to) in
            own.iter().map(|(from, to)| (*from, to.as_str())).chain(changes.iter().copied())
        {
            assert!(text.contains(from), "`{from}` is in the document");
            text = text.replace(from, to);
        }
        let path = self.path("node.yaml");
        fs_err::write(&path, text).expect("it is written");
        path
    }

    fn label(&self, letter: char) -> String {
        format!("{letter}{:X}", self.tag)
    }

    fn node(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("{}p{number}", self.disk.path().display()))
    }

    /// Fills a partition with zeros.
    fn clear(&self, number: u32) {
        let size = fs_err::read(self.node(number)).expect("it is read").len();
        fs_err::write(self.node(number), vec![0; size]).expect("it is written");
    }

    fn digest(&self) -> Vec<u8> {
        Sha256::digest(self.disk.bytes()).to_vec()
    }
}

fn agent(verb: &str, document: &Path, more: &[&str]) -> ProcessEnd {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
    let output = agent.arg(verb).arg("-f").arg(document).args(more).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it ends by itself");
    ProcessEnd { code, out: text(&output.stdout), err: text(&output.stderr) }
}

fn hash(planned: &ProcessEnd) -> String {
    let last = planned.out.lines().last().expect("a last line");
    last.strip_prefix("plan ").expect("the hash").to_owned()
}

/// What blkid finds by looking at the device.
fn blkid(node: &Path, tag: &str) -> String {
    let found = run(Command::new("blkid").args(["-p", "-o", "value", "-s", tag]).arg(node));
    found.trim().to_owned()
}

#[test]
fn applied_disk_passes_other_tools_and_second_apply_is_empty() {
    for sector in [512, 4096] {
        let bench = Bench::new(sector);
        bench.pack_image();
        let document = bench.document(&[]);
        let before = bench.digest();
        let planned = agent("plan", &document, &[]);
        assert_eq!(planned.code, 20, "{}", planned.err);
        assert!(before == bench.digest(), "planning writes nothing");
        let total = planned.out.lines().rev().nth(1).expect("a line before the hash");
        assert_eq!(total, "writes 49 MiB at most, without 4 steps of unknown size");
        let applied = agent("apply", &document, &["--plan", &hash(&planned)]);
        assert_eq!(applied.code, 0, "{}", applied.err);

        let checked = run(Command::new("sgdisk").arg("-v").arg(bench.disk.path()));
        assert!(checked.contains("No problems found"), "{checked}");
        let nodes = [(1, "vfat", 'E'), (3, "swap", 's'), (4, "ext4", 'd')];
        for (number, kind, letter) in nodes {
            let node = bench.node(number);
            let found = (blkid(&node, "TYPE"), blkid(&node, "LABEL"));
            assert_eq!(found, (kind.to_owned(), bench.label(letter)));
        }
        for number in [2, 4] {
            run(Command::new("e2fsck").arg("-fn").arg(bench.node(number)));
        }
        assert_eq!(blkid(&bench.node(2), "LABEL"), "installed");
        let written = fs_err::read(bench.node(2)).expect("it is read");
        let image = fs_err::read(bench.path("root.img")).expect("it is there");
        assert!(written[..image.len()] == image[..], "sectors of {sector}");

        let mut facts = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
        facts.args(["facts", "-o", "json"]);
        let facts: serde_json::Value =
            serde_json::from_slice(&facts.output().expect("it starts").stdout).expect("JSON");
        let name = bench.disk.path().file_name().expect("a name").to_string_lossy();
        let disks = facts["disks"].as_array().expect("a list");
        let disk = disks.iter().find(|disk| disk["kernel_name"] == *name).expect("it is there");
        let mut found = disk["signatures"].as_array().expect("a list").iter();
        assert!(found.any(|found| found["ours"]["has_root"] == true), "{disk}");

        let before = bench.digest();
        let again = agent("apply", &document, &[]);
        assert_eq!(again.code, 0, "{}", again.err);
        assert!(again.out.contains("nothing to do"), "{}", again.out);
        assert_eq!(agent("plan", &document, &[]).code, 0);
        assert_eq!(agent("verify", &document, &[]).code, 0);
        assert!(before == bench.digest(), "looking writes nothing");
    }
}

#[test]
fn apply_remakes_only_parts_destroyed_since() {
    let bench = Bench::new(512);
    bench.pack_image();
    let document = bench.document(&[]);
    assert_eq!(agent("apply", &document, &[]).code, 0);
    let kept = fs_err::read(bench.node(4)).expect("it is read");
    bench.clear(3);
    assert_eq!(agent("verify", &document, &[]).code, 1);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert!(applied.err.contains("make swap") && !applied.err.contains("make ext4"));
    assert!(!applied.err.contains("write image"), "{}", applied.err);
    assert_eq!(blkid(&bench.node(3), "TYPE"), "swap");
    assert!(fs_err::read(bench.node(4)).expect("it is read") == kept);
    assert_eq!(agent("verify", &document, &[]).code, 0, "the receipt of the image is still there");
}

#[test]
fn foreign_data_is_refused_and_stays_byte_for_byte() {
    let bench = Bench::new(512);
    bench.pack_image();
    run(Command::new("mke2fs").args(["-q", "-F"]).arg(bench.disk.path()));
    let before = bench.digest();
    let refused = agent("apply", &bench.document(&[]), &[]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("[foreign-data]"), "{}", refused.err);
    assert!(before == bench.digest());
    let named = bench.document(&[("}}\n  storage", "}, wipe: [ext]}\n  storage")]);
    let applied = agent("apply", &named, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
}

#[test]
fn plan_of_changed_facts_is_not_carried_out() {
    let bench = Bench::new(4096);
    bench.pack_image();
    let document = bench.document(&[("}}\n  storage", "}, wipe: any}\n  storage")]);
    let planned = hash(&agent("plan", &document, &[]));
    run(Command::new("mke2fs").args(["-q", "-F"]).arg(bench.disk.path()));
    let before = bench.digest();
    let refused = agent("apply", &document, &["--plan", &planned]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains(&planned), "{}", refused.err);
    assert!(before == bench.digest());
}

#[test]
fn too_large_image_is_refused_before_any_write() {
    let bench = Bench::new(512);
    let image = fs_err::File::open(bench.path("root.img")).expect("it is there");
    let packed = fs_err::File::create(bench.path("root.img.zst")).expect("created");
    let manifest = pack(image, packed, 1).expect("it is packed");
    let manifest = serde_json::to_vec(&manifest).expect("a plain value");
    fs_err::write(bench.path("root.json"), manifest).expect("it is written");
    let url = format!("manifest: 'file://{}'}}", bench.path("root.json").display());
    let before = bench.digest();
    // The size of the second image is known only from the list of its chunks.
    let known = [("size: 16 MiB}", "size: 21 MiB}")];
    let listed = [("size: 16 MiB}", url.as_str()), ("size: 20 MiB", "size: 12 MiB")];
    // Nor of the third, which comes as it is, but its length.
    let plain = format!("{}'", bench.path("root.img.zst").display());
    let raw = format!("{}'", bench.path("root.img").display());
    let plain = [(plain.as_str(), raw.as_str()), (", size: 16 MiB}", "}"), listed[1]];
    for changes in [&known[..], &listed, &plain] {
        let refused = agent("apply", &bench.document(changes), &[]);
        assert_eq!(refused.code, 3, "{}", refused.err);
        assert!(refused.err.contains("[image-too-large]"), "{}", refused.err);
        assert!(before == bench.digest());
    }
    let applied = agent("apply", &bench.document(&[("size: 16 MiB}", &url)]), &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert_eq!(blkid(&bench.node(2), "LABEL"), "installed");
}

#[test]
fn failed_run_resumes_at_its_step() {
    let bench = Bench::new(512);
    bench.pack_image();
    let image = bench.path("root.img.zst");
    let whole = fs_err::read(&image).expect("it is there");
    fs_err::write(&image, &whole[..whole.len() / 2]).expect("it is written");
    let document = bench.document(&[]);
    let failed = agent("apply", &document, &[]);
    assert_eq!(failed.code, 1, "{}", failed.err);
    for said in ["write image root", "it is damaged or truncated", "[damaged]", "apply the same"] {
        assert!(failed.err.contains(said), "{}", failed.err);
    }
    let table = run(Command::new("sgdisk").args(["-i", "1"]).arg(bench.disk.path()));
    let txn = format!("{TXN}{:012x}", bench.tag);
    assert!(table.contains(&txn), "it says who is at work: {table}");
    bench.pack_image();
    let resumed = agent("apply", &document, &[]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert!(resumed.out.contains("resumed an interrupted run"), "{}", resumed.out);
    assert!(!resumed.err.contains("make "), "what was done stays: {}", resumed.err);
    run(Command::new("e2fsck").arg("-fn").arg(bench.node(4)));
    assert_eq!(agent("verify", &document, &[]).code, 0);
}

#[test]
fn images_alone_use_existing_partitions() {
    let bench = Bench::new(512);
    bench.pack_image();
    let document = bench.document(&[]);
    let before = bench.digest();
    let refused = agent("apply", &document, &["--only", "images"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("needs: disks"), "{}", refused.err);
    assert!(before == bench.digest());
    assert_eq!(agent("apply", &document, &["--only", "disks"]).code, 0);
    let swap = fs_err::read(bench.node(3)).expect("it is read");
    let applied = agent("apply", &document, &["--only", "images"]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert_eq!(blkid(&bench.node(2), "LABEL"), "installed");
    assert!(fs_err::read(bench.node(3)).expect("it is read") == swap);
}

#[test]
fn document_with_missing_references_is_invalid() {
    let bench = Bench::new(512);
    let before = bench.digest();
    for (changes, code) in [
        (("  images:", "  flow: {actions: [disks, polish]}\n  images:"), "[unsupported]"),
        (("  images:", "  boot: {firmware: uefi}\n  images:"), "[missing]"),
        (("kind: vfat", "kind: fat64"), "[unreadable]"),
    ] {
        let invalid = agent("plan", &bench.document(&[changes]), &[]);
        assert_eq!(invalid.code, 2, "{}", invalid.err);
        assert!(invalid.err.contains(code), "{}", invalid.err);
        let invalid = agent("plan", &bench.document(&[changes]), &["-o", "json"]);
        let said: serde_json::Value = serde_json::from_str(&invalid.out).expect("it is JSON");
        let code = code.trim_matches(['[', ']']);
        let mut problems = said["problems"].as_array().expect("a list").iter();
        let problem = problems.find(|problem| problem["code"] == code);
        let problem = problem.unwrap_or_else(|| panic!("`{code}` is not in {said}"));
        assert!(problem["class"] == "input" && problem["at"].is_string(), "{said}");
    }
    assert!(before == bench.digest());
}
