//! Whole images, built with the real program and inspected by other programs.

use std::path::Path;
use std::process::Command;

use hoist_model::{Digest, Exit, ImageIndex};
use hoist_testkit::eventually;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bench::{Bench, tiny};

fn disk() -> Value {
    json!({"disk": {"size": "48 MiB", "label": "tiny"}})
}

fn said_by(command: &mut Command) -> String {
    let output = command.output().expect("it is installed");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("the clock is set").as_secs()
}

fn debugfs(image: &Path, request: &str) -> String {
    said_by(Command::new("/usr/sbin/debugfs").args(["-R", request]).arg(image))
}

#[test]
fn same_document_gives_the_same_bytes_anywhere_and_anytime() {
    let outputs = json!({"disk": {"size": "48 MiB"}, "live": {"format": "squashfs"}});
    let one = Bench::new(&tiny(&outputs, &["console=ttyS0"])).built();
    // Change times of the trees have seconds, so the second build must start in another one.
    let second = seconds();
    eventually("clock shows another second", || seconds() > second);
    let mut bench = Bench::new(&tiny(&outputs, &["console=ttyS0"]));
    (bench.mask, bench.from) = ("077".to_owned(), bench.path(""));
    assert_eq!(one, bench.built());
    // And again over the one that is there.
    assert_eq!(one, bench.built());
    let other = Bench::new(&tiny(&outputs, &["console=ttyS1"])).built();
    let digest = |index: &ImageIndex, file: &str| {
        index.files.iter().find(|entry| entry.file == file).map(|entry| entry.sha256)
    };
    assert_ne!(digest(&one, "uki.efi"), digest(&other, "uki.efi"));
    assert_eq!(digest(&one, "kernel"), digest(&other, "kernel"));
}

#[test]
fn the_file_system_is_whole_and_holds_what_was_put_in() {
    let bench = Bench::new(&tiny(&disk(), &[]));
    let index = bench.built();
    let names: Vec<&str> = index.files.iter().map(|entry| entry.artifact.as_str()).collect();
    assert_eq!(
        names,
        [
            "os-tiny-root",
            "os-tiny-manifest",
            "os-tiny-systemd-boot.efi",
            "os-tiny-uki.efi",
            "os-tiny-grub.efi",
            "os-tiny-grub-boot",
            "os-tiny-grub-core",
            "os-tiny-kernel"
        ]
    );
    let root = bench.root();
    assert_eq!(fs_err::metadata(&root).expect("there").len(), 48 << 20);
    // Without the manifest it unpacks to the same bytes, which the index declares.
    let packed = fs_err::read(bench.file("root.ext4.zst")).expect("packed");
    let stream = zstd::decode_all(&packed[..]).expect("a complete stream");
    assert!(stream == fs_err::read(&root).expect("there"));
    let unpacked = index.files[0].unpacked.as_ref().expect("it is an image");
    assert_eq!(unpacked.sha256, Digest::from_bytes(Sha256::digest(&stream).into()));
    assert_eq!(unpacked.size, stream.len() as u64);
    said_by(Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(&root));
    let motd = debugfs(&root, "stat /etc/motd");
    for wanted in ["Mode:  0600", "User:     0", "ctime: 0x6955b900", "mtime: 0x6955b900"] {
        assert!(motd.contains(wanted), "{wanted}: {motd}");
    }
    assert_eq!(debugfs(&root, "cat /etc/motd"), "hello\n");
    let label = said_by(Command::new("/usr/sbin/blkid").args(["-p", "-o", "export"]).arg(&root));
    assert!(label.contains("LABEL=tiny") && label.contains("TYPE=ext4"), "{label}");
    // Only modules that are not built into the kernel are files.
    let modules = debugfs(&root, "ls /lib/hoist/modules");
    assert!(modules.contains("-vfat.ko") && !modules.contains("ext4.ko"), "{modules}");
}

#[test]
fn a_dry_run_makes_nothing_and_says_what_it_would_make() {
    let bench = Bench::new(&tiny(&disk(), &[]));
    bench.ends(Exit::WouldChange, &["--dry-run"]);
    assert!(!bench.path("out").exists() && !bench.path("out.partial").exists());
}

#[test]
fn existing_output_is_not_overwritten() {
    let bench = Bench::new(&tiny(&disk(), &[]));
    fs_err::create_dir(bench.path("out")).expect("created");
    fs_err::write(bench.path("out/precious"), "x").expect("written");
    let said = bench.ends(Exit::Refused, &[]);
    assert!(said.contains("exists and is no image"), "{said}");
    assert_eq!(fs_err::read_to_string(bench.path("out/precious")).expect("there"), "x");
}

#[test]
fn faults_are_told_with_their_places_and_leave_no_image() {
    let with = |pointer: &str, value: Value| {
        let mut document = tiny(&disk(), &[]);
        *document.pointer_mut(pointer).expect("there") = value;
        Bench::new(&document)
    };
    for (bench, exit, what) in [
        (with("/spec/outputs/disk/size", json!("1 MiB")), Exit::Usage, "outputs.disk.size: "),
        (with("/spec/outputs/disk/size", json!("8 MiB")), Exit::Failed, "mke2fs"),
        (with("/spec/files/0", json!({"path": "/x", "file": "none"})), Exit::Failed, "files[0]: "),
        (
            with("/spec/files/0", json!({"path": "/x", "file": "."})),
            Exit::Failed,
            "not a regular file",
        ),
        (with("/spec/builder/tiny/kernel", json!({"file": "none"})), Exit::Failed, "tiny.kernel: "),
        (with("/spec/builder/tiny/modules", json!(["nope"])), Exit::Failed, "module nope"),
    ] {
        let said = bench.ends(exit, &[]);
        assert!(said.contains(what), "{what}: {said}");
        assert!(!bench.path("out").exists());
    }
}

/// Some minutes and some hundred megabytes from Debian.
#[test]
#[ignore = "fetches a distribution twice"]
fn a_debian_is_the_same_every_time_and_has_its_kernel() {
    let document = json!({
        "builder": {"debian": {
            "suite": "bookworm",
            "variant": "essential",
            "packages": ["linux-image-cloud-amd64"],
            "run": [["sh", "-c", "test -e /proc/self && echo here > /etc/motd"]],
        }},
        "files": [{"path": "/etc/issue", "text": "deb\n"}],
        "outputs": {"disk": {"size": "1 GiB", "loaders": ["systemd_boot"]}},
    });
    let bench = Bench::new(&document);
    let index = bench.built();
    let has = |name: &str| index.files.iter().any(|entry| entry.artifact.ends_with(name));
    assert!(has("-kernel") && has("-initrd") && has("-root"), "{index:?}");
    assert!(index.made_from.iter().any(|package| package.starts_with("linux-image-6")));
    let root = bench.root();
    said_by(Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(&root));
    assert_eq!(debugfs(&root, "cat /etc/motd"), "here\n");
    assert_eq!(debugfs(&root, "cat /etc/issue"), "deb\n");
    // Nothing of the machine that it was made on.
    let names = debugfs(&root, "ls /etc");
    assert!(!names.contains("hostname") && !names.contains("resolv.conf"), "{names}");
    let mut other = Bench::new(&document);
    other.mask = "077".to_owned();
    assert_eq!(other.built(), index);
}

/// The program that would fetch says from where, and does nothing.
#[test]
fn packages_come_from_the_named_mirror_or_from_that_of_apt() {
    use std::os::unix::fs::PermissionsExt;
    let programs = [
        ("apt-get", "echo http://mirror.example/debian/"),
        ("mmdebstrap", "for last; do :; done; echo \"from $last\" >&2; exit 1"),
    ];
    for (named, expected) in [
        (json!({}), "from http://mirror.example/debian"),
        (json!({"mirror": "http://other.example/debian"}), "from http://other.example/debian"),
    ] {
        let mut debian = json!({"suite": "bookworm"});
        debian.as_object_mut().expect("an object").extend(named.as_object().cloned().expect("one"));
        let mut bench = Bench::new(&json!({"builder": {"debian": debian}, "outputs": disk()}));
        fs_err::create_dir(bench.path("bin")).expect("created");
        for (name, script) in programs {
            let file = bench.path("bin").join(name);
            fs_err::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
            fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
        }
        bench.programs = Some(bench.path("bin"));
        let said = bench.ends(Exit::Failed, &[]);
        let from_mmdebstrap = said.lines().find(|line| line.contains("`mmdebstrap` failed"));
        assert!(from_mmdebstrap.is_some_and(|line| line.ends_with(expected)), "{said}");
    }
}

#[test]
fn a_plug_in_fills_the_tree() {
    use std::os::unix::fs::PermissionsExt;
    let document = json!({
        "builder": {"plugin": {"name": "motd", "input": {"path": "motd", "text": "by a plug-in"}}},
        "outputs": {"live": {"format": "cpio"}},
    });
    let bench = Bench::new(&document);
    let plugins = bench.path("plugins");
    fs_err::create_dir(&plugins).expect("created");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins/hoist-action-motd");
    let plugin = plugins.join("hoist-action-motd");
    fs_err::copy(example, &plugin).expect("copied");
    fs_err::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).expect("its own");
    let plugins = plugins.display().to_string();
    let index = bench.built_with(&["--plugins", &plugins]);
    let mut other = Bench::new(&document);
    other.mask = "077".to_owned();
    assert_eq!(index, other.built_with(&["--plugins", &plugins]), "whoever builds it");
    let packed = fs_err::read(bench.file("live.cpio.zst")).expect("made");
    let archive = zstd::decode_all(&packed[..]).expect("a frame");
    let archive = String::from_utf8_lossy(&archive);
    assert!(archive.contains("motd\0") && archive.contains("by a plug-in\n"), "{archive}");

    let said = Bench::new(&document).ends(Exit::Failed, &["--plugins", "nowhere"]);
    assert!(said.contains("builder.plugin: ") && said.contains("--plugins"), "{said}");
    let mut wrong = document.clone();
    wrong["builder"]["plugin"]["input"] = json!({"pfad": "x"});
    let said = Bench::new(&wrong).ends(Exit::Failed, &["--plugins", &plugins]);
    assert!(said.contains("input.pfad: unknown field"), "{said}");
}
