//! The agent as the first program of a virtual machine with an empty disk: real kernel, real
//! drivers, a job over HTTPS. Tests inspect the results from outside.

mod erased;
mod firmware;
mod kexec;
mod no_zeros;
mod power_cut;
mod restart;
mod script;
mod stacks;
mod wrong_disk;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hoist_device::images::pack;
use hoist_initramfs::agent::{Image, Recipe, build, drivers};
use hoist_machine::disk::Disk;
use hoist_machine::{Firmware, HOST, Hardware, Kernel, Machine, Permit, guest, quick_dir};
use hoist_provision::digest;
use hoist_testkit::agent_controller::AgentController;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DEADLINE: Duration = Duration::from_mins(2);

/// The level of images that are only booted.
const FASTEST: i32 = 1;
/// The default level of zstd.
const DEFAULT_LEVEL: i32 = 3;

const MAC: &str = "52:54:00:00:00:01";
pub(crate) const TXN: &str = "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e31";
pub(crate) const NODE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

/// A machine, its controller, and its disk.
pub(crate) struct Bench {
    pub(crate) server: AgentController,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) firmware: Firmware,
    _permit: Permit,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_disk(192)
    }

    pub(crate) fn with_disk(mib: u64) -> Self {
        let permit = Permit::wait().expect("a permit");
        let dir = tempfile::tempdir_in(quick_dir()).expect("a temporary directory");
        let server = AgentController::start(&dir.path().join("ca.pem"));
        let bench = Self { server, dir, firmware: Firmware::Bios, _permit: permit };
        bench.add_disk("disk.img", mib);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An empty disk of so many MiB.
    pub(crate) fn add_disk(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.path(name);
        fs_err::File::create(&path).and_then(|file| file.set_len(mib * MIB)).expect("created");
        path
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.path("disk.img")
    }

    pub(crate) fn power_on(&self) -> Machine {
        self.power_on_at(None)
    }

    /// With a clock that shows another time.
    fn power_on_at(&self, clock: Option<&str>) -> Machine {
        let disk = Disk::Nvme { image: self.disk(), serial: "HOIST1".to_owned() };
        self.power_on_with(&image(), disk, clock)
    }

    /// With this image, to which only the authority comes, and these disks.
    pub(crate) fn power_on_with(&self, image: &[u8], disk: Disk, clock: Option<&str>) -> Machine {
        let initrd = self.path("agent.cpio");
        if !initrd.exists() {
            let authority = fs_err::read(self.path("ca.pem")).expect("written");
            let mut tree = hoist_initramfs::Tree::new();
            tree.file(hoist_initramfs::agent::AUTHORITY, authority).expect("a path");
            let image = [image, &tree.archive()].concat();
            fs_err::write(&initrd, image).expect("written");
        }
        let port = self.server.port;
        let command_line = format!(
            "console=ttyS0 loglevel=5 panic=-1 hoist.server=https://{HOST}:{port} \
             hoist.node={NODE} \
             hoist.token=token ip=10.0.2.15::{HOST}:255.255.255.0:::none \
             BOOTIF=01-{}",
            MAC.replace(':', "-")
        );
        let hardware = Hardware {
            firmware: self.firmware,
            mac: MAC.to_owned(),
            boot_url: String::new(),
            disk: Some(disk),
            variables: None,
        };
        let kernel = guest::kernel().expect("set up");
        let kernel = Kernel { kernel, initrd, command_line, clock: clock.map(str::to_owned) };
        Machine::power_on_with(hardware, kernel).expect("a machine")
    }

    /// An ext4 of so many MiB with something in it, in chunks, and the document that installs it.
    pub(crate) fn set_image_job(&self, mib: u64, noise: u64) -> Vec<u8> {
        let content = self.path("content");
        fs_err::create_dir_all(content.join("etc")).expect("created");
        fs_err::write(content.join("etc/marker"), "installed by hoist\n").expect("written");
        fs_err::write(content.join("noise"), random(noise)).expect("written");
        let image = self.path("root.img");
        fs_err::File::create(&image).and_then(|file| file.set_len(mib * MIB)).expect("created");
        run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&content).arg(&image));
        let bytes = fs_err::read(&image).expect("made");
        let mut packed = Vec::new();
        let manifest = pack(&mut &bytes[..], &mut packed, 1).expect("packed");
        let manifest = serde_json::to_vec(&manifest).expect("plain values");
        let digest = digest::Digest::of(&manifest).to_string();
        let source = self.server.file(HOST, "root.img.zst", packed);
        let manifest = self.server.file(HOST, "root.json", manifest);
        let image = json!({
            "sources": [source], "manifest": manifest, "digest": digest, "target": "root-fs",
            "compression": "zstd",
        });
        self.server.set_job(document(&image, mib));
        bytes
    }

    /// Where the partition with this number begins, and how long it is, in bytes.
    pub(crate) fn partition(&self, number: u32) -> (u64, u64) {
        let shown = run(Command::new("sgdisk").args(["-i", &number.to_string()]).arg(self.disk()));
        let value = |name: &str| -> u64 {
            let line = shown.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.split_whitespace().next().and_then(|word| word.parse().ok()).expect(name)
        };
        (value("First sector:") * 512, value("Partition size:") * 512)
    }

    /// The disk is whole, and this image is where it shall be.
    pub(crate) fn assert_installed(&self, image: &[u8]) {
        let verified = run(Command::new("sgdisk").arg("-v").arg(self.disk()));
        assert!(verified.contains("No problems found"), "{verified}");
        let (start, length) = self.partition(2);
        assert!(length >= image.len() as u64, "{length}");
        let disk = fs_err::read(self.disk()).expect("there");
        let start = usize::try_from(start).expect("small");
        assert!(disk[start..start + image.len()] == *image, "the image is as it was made");
        let root = self.path("root.out");
        fs_err::write(&root, &disk[start..start + image.len()]).expect("written");
        run(Command::new("e2fsck").arg("-fn").arg(&root));
    }
}

fn document(image: &Value, mib: u64) -> Value {
    json!({
        "api": "hoist/v1",
        "txn": TXN,
        "sections": {
            "node": {"id": NODE},
            "disks": {"os": {"match": {"serial": "HOIST1"}}},
            "storage": [
                {"part": {"id": "swap", "on": "os", "size": "8 MiB"}},
                {"fs": {"id": "swap-fs", "on": "swap", "kind": "swap", "label": "hoist-swap"}},
                {"part": {"id": "root", "on": "os", "size": format!("{} MiB", mib + 8)}},
                {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
                {"part": {"id": "data", "on": "os", "size": "rest"}},
                {"fs": {"id": "data-fs", "on": "data", "kind": "ext4", "mount": "/srv"}},
            ],
            "images": {"root": image},
        },
    })
}

/// Bytes that do not pack, the same every time.
pub(crate) fn random(length: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(next).collect()
}

/// The image without an authority, made once.
fn image() -> Arc<Vec<u8>> {
    static IMAGE: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    IMAGE.get_or_init(|| Arc::new(image_with(&["mke2fs", "mkswap"], &[]))).clone()
}

/// With these tools, and drivers for these things.
pub(crate) fn image_with(tools: &[&str], with: &[&str]) -> Vec<u8> {
    made_with(tools, with, FASTEST).bytes
}

fn made_with(tools: &[&str], with: &[&str], level: i32) -> Image {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let agent = dir.path().join("hoist-agent");
    // What only debuggers read would take longer to unpack than everything else.
    let built = Path::new(env!("CARGO_BIN_EXE_hoist-agent"));
    run(Command::new("strip").arg("-o").arg(&agent).arg(built));
    let recipe = Recipe {
        agent,
        modules: guest::modules().expect("set up"),
        more_modules: with.iter().flat_map(|word| drivers(word)).collect(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        firmware: Vec::new(),
        authority: None,
        archives: Vec::new(),
        level,
    };
    build(&recipe).expect("an image")
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

/// A thousand machines fetch the image at once. The promised size is 12 MB, for an optimised agent
/// that `hoist agent image` packs with level 19. The agent of the tests is not optimised and packed
/// with zstd's default level, so it may be larger.
#[test]
fn image_without_drivers_stays_small() {
    let image = made_with(&[], &[], DEFAULT_LEVEL);
    let parts = image.parts.iter().filter(|part| part.name != "modules");
    let size: u64 = parts.map(|part| part.packed).sum();
    assert!(size < 15_000_000, "{size} bytes: {:?}", image.parts);
}

#[test]
fn empty_disk_becomes_the_system_of_the_job() {
    let bench = Bench::new();
    let mut machine = bench.power_on();
    // There is no job: it says so, with the remedy, and asks again.
    machine
        .wait_for("no provisioning job for `n1`; hoist provision start node:n1", DEADLINE)
        .expect("it says so");
    let image = bench.set_image_job(16, 4 * MIB);
    // Words that are lost are said again.
    bench.server.be_away(2);
    machine.wait_for("restarting the machine", DEADLINE).expect("it says so");
    machine.wait_until_off(DEADLINE).expect("it goes off");
    bench.assert_installed(&image);

    let reports = bench.server.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!((&reports[0]["outcome"], &reports[0]["changed"]), (&json!("done"), &json!(true)));
    let facts = &bench.server.job_requests()[0]["facts"];
    assert_eq!(facts["nics"][0]["mac"], MAC, "{facts}");
    assert_eq!(facts["nics"][0]["driver"], "virtio_net", "{facts}");
    assert_eq!(facts["disks"][0]["serial"], "HOIST1", "{facts}");
    assert_eq!(facts["cpu"]["arch"], "x86_64", "{facts}");
    let told = bench.server.events();
    let numbers: Vec<u64> = told.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=told.len() as u64).collect::<Vec<_>>());
    let phases = |step: &str| -> Vec<&str> {
        let of_step = told.iter().filter(|event| event["step"] == step);
        of_step.filter_map(|event| event["phase"].as_str()).collect()
    };
    assert_eq!(phases("wipe os"), ["started", "done"], "{told:?}");
    let end = told.iter().rev().find(|event| event["phase"] == "progress").expect("progress");
    assert_eq!((&end["action"], &end["done"]), (&json!("images"), &json!(16 * MIB)), "{end}");

    // Started once more, it finds everything done, says so, and writes nothing. That its battery was
    // empty meanwhile is no harm.
    let before = Sha256::digest(fs_err::read(bench.disk()).expect("it can be read"));
    bench.server.answer("continue", "power_off");
    let mut machine = bench.power_on_at(Some("2001-01-01"));
    machine.wait_for("clock: set to 20", DEADLINE).expect("it says so");
    machine.wait_for("powering off the machine", DEADLINE).expect("it says so");
    machine.wait_until_off(DEADLINE).expect("it goes off");
    let again = bench.server.reports().pop().expect("a report");
    assert_eq!((&again["outcome"], &again["changed"]), (&json!("done"), &json!(false)), "{again}");
    assert_eq!(Sha256::digest(fs_err::read(bench.disk()).expect("it can be read")), before);
}
