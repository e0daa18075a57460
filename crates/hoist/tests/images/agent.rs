//! `hoist agent image`, from the outside, with the kernel that `make setup-test` has unpacked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hoist_model::Exit;
use hoist_testkit::controller_process::{Controller, hoist};
use hoist_testkit::machine::disk::Disk;
use hoist_testkit::machine::{Firmware, HOST, Hardware, Machine, Permit, guest};
use serde_json::Value;

/// Any program will do; a level that does not take a minute.
const OTHER: [&str; 6] = ["--agent", "/bin/true", "--level", "1", "--tools", "mke2fs"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn words(out: &Path, more: &[&str]) -> Vec<String> {
    let kernel = guest::kernel().expect("set up");
    let modules = guest::modules().expect("set up");
    let named = ["--kernel", text(&kernel), "--modules", text(&modules), "--out", text(out)];
    let all = [&["agent", "image", "-o", "json"][..], &named, &OTHER, more].concat();
    all.into_iter().map(str::to_owned).collect()
}

#[test]
fn agent_image_is_built_and_uploaded() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("agent");
    let controller = Controller::start(&dir.path().join("data"), &[]);
    let run = |more: &[&str]| {
        let words = words(&out, more);
        controller.hoist(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let dry = run(&["--dry-run"]);
    assert_eq!(dry.status.code(), Some(i32::from(Exit::WouldChange.code())), "{dry:?}");
    assert!(!out.exists());
    let planned: Value = serde_json::from_slice(&dry.stdout).unwrap();

    let made = run(&["--add"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    // The same input gave the same bytes.
    let mut values = serde_json::Deserializer::from_slice(&made.stdout).into_iter::<Value>();
    let made = values.next().unwrap().unwrap();
    assert_eq!(made, planned);
    let names: Vec<&str> = made["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|file| file["artifact"].as_str())
        .collect();
    assert_eq!(names, ["agent-x86_64-kernel", "agent-x86_64-initrd"]);
    let parts: Vec<&str> =
        made["parts"].as_array().unwrap().iter().filter_map(|part| part["part"].as_str()).collect();
    assert_eq!(parts, ["agent", "tools", "modules"]);
    let listed = controller.does(&["artifact", "list", "-o", "name"]);
    assert!(names.iter().all(|name| listed.contains(name)), "{listed}");
    let artifacts: Value =
        serde_json::from_str(&controller.does(&["artifact", "list", "-o", "json"])).unwrap();
    let provides = |name: &str| -> Vec<String> {
        let mut all = artifacts.as_array().unwrap().iter();
        let artifact = all.find(|artifact| artifact["name"] == name).unwrap();
        serde_json::from_value(artifact["provides"].clone()).unwrap_or_default()
    };
    let tools = provides("agent-x86_64-initrd");
    let expected = ["e2fsck", "mke2fs", "mkswap", "resize2fs"].map(|tool| format!("tool:{tool}"));
    assert!(expected.iter().all(|tool| tools.contains(tool)), "{tools:?}");
    let named = made["tools"].as_array().unwrap().iter().filter_map(Value::as_str);
    assert_eq!(tools, named.map(|tool| format!("tool:{tool}")).collect::<Vec<_>>());
    assert!(provides("agent-x86_64-kernel").is_empty(), "a kernel has no programs");
    let size = fs_err::metadata(out.join("agent.cpio.zst")).unwrap().len();
    assert_eq!(made["files"][1]["size"], size);

    let refused = run(&["--with", "no_such_driver"]);
    assert_eq!(refused.status.code(), Some(i32::from(Exit::Usage.code())), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no driver `no_such_driver`"));
}

/// `apt-cache` that knows one package without a version, as Debian has them for its newest kernel.
const APT_CACHE: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "depends --important linux-image-test" ] || exit 100
printf 'linux-image-test\n  Depends: linux-image-6.1.0-9-test\n'
"#;

/// `apt-get` that has the packages as files.
const APT_GET: &str = r#"#!/bin/sh
[ "$1 $2" = "download -q" ] || exit 100
for package in "$PACKAGES/${3}"_*.deb; do
    [ -f "$package" ] && cp "$package" . && exit 0
done
echo "E: Unable to locate package $3" >&2
exit 100
"#;

/// Packs a package of this content for `apt-get`.
fn package(packages: &Path, name: &str, tree: &Path) {
    let control = tree.join("DEBIAN/control");
    fs_err::create_dir_all(tree.join("DEBIAN")).expect("created");
    let text = "Version: 1\nArchitecture: all\nMaintainer: test\nDescription: test\n";
    fs_err::write(control, format!("Package: {name}\n{text}")).expect("written");
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Znone", "--build"]).arg(tree);
    let packed =
        pack.arg(packages.join(format!("{name}_1_all.deb"))).output().expect("dpkg-deb starts");
    assert!(packed.status.success(), "{packed:?}");
}

#[test]
fn agent_image_is_built_from_packages() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (name, script) in [("apt-cache", APT_CACHE), ("apt-get", APT_GET)] {
        fs_err::create_dir_all(path("bin")).unwrap();
        fs_err::write(path("bin").join(name), script).unwrap();
        fs_err::set_permissions(path("bin").join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    fs_err::create_dir(path("packages")).unwrap();
    // The kernel of setup, with its drivers, as a package.
    let kernel = path("kernel");
    fs_err::create_dir_all(kernel.join("lib/modules")).unwrap();
    fs_err::create_dir(kernel.join("boot")).unwrap();
    let modules = guest::modules().expect("set up");
    let release = modules.file_name().unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(&modules).arg(kernel.join("lib/modules")).status();
    assert!(copied.unwrap().success());
    let file = format!("boot/vmlinuz-{}", release.to_str().unwrap());
    fs_err::copy(guest::kernel().expect("set up"), kernel.join(file)).unwrap();
    package(&path("packages"), "linux-image-6.1.0-9-test", &kernel);
    // Firmware where older and newer packages of Debian have it, and a package without any.
    for (name, place) in [("firmware-old", "lib/firmware"), ("firmware-new", "usr/lib/firmware")] {
        fs_err::create_dir_all(path(name).join(place)).unwrap();
        fs_err::write(path(name).join(place).join("unused.bin"), "x").unwrap();
        package(&path("packages"), name, &path(name));
    }
    package(&path("packages"), "no-firmware", &path("empty"));

    fs_err::write(path("ca.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hoist"));
        command.args(["agent", "image", "-o", "json", "--out"]).arg(path("out")).args(OTHER);
        command.arg("--ca").arg(path("ca.pem")).args(more).env("HOIST_DATA_DIR", path("data"));
        let others = std::env::var_os("PATH").unwrap_or_default();
        let places = std::iter::once(path("bin")).chain(std::env::split_paths(&others));
        command.env("PATH", std::env::join_paths(places).unwrap());
        command.env("PACKAGES", path("packages")).output().unwrap()
    };
    let firmware = ["--package", "linux-image-test", "--firmware", "firmware-old,firmware-new"];
    let made = run(&firmware);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let index: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(index["release"], *release.to_str().unwrap());
    let parts: Vec<&str> = index["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["part"].as_str())
        .collect();
    assert!(parts.contains(&"modules"), "{parts:?}");
    let told = String::from_utf8_lossy(&made.stderr);
    assert!(told.contains("no driver of the image asks for a file of this firmware"), "{told}");
    let written = fs_err::read(path("out/kernel")).unwrap();
    assert!(written == fs_err::read(guest::kernel().expect("set up")).unwrap());

    for (words, reason) in [
        (["--package", "linux-image-gone"], "`apt-cache` failed"),
        (["--package", "linux-image-6.1.0-9-test"], "`apt-cache` failed"),
        (["--firmware", "firmware-gone"], "Unable to locate package firmware-gone"),
        (["--firmware", "no-firmware"], "firmware in package `no-firmware`"),
    ] {
        let words = if words[0] == "--firmware" {
            [&firmware[..2], &words].concat()
        } else {
            words.to_vec()
        };
        let refused = run(&words);
        assert_ne!(refused.status.code(), Some(0), "{words:?}");
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(told.contains(reason), "{words:?}: {told}");
    }
}

#[test]
fn agent_image_without_an_authority_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let words = words(&dir.path().join("agent"), &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = hoist(&dir.path().join("data"), &words);
    assert_eq!(refused.status.code(), Some(i32::from(Exit::Usage.code())), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("give it with `--ca FILE`"));
}

/// Emulated machines on a busy host.
const DEADLINE: Duration = Duration::from_mins(3);

const MAC: &str = "52:54:00:00:00:01";

/// A plug-in that claims a partition, and writes into it how far the disk is read ahead.
const WITNESS: &str = r#"#!/bin/sh
IFS= read -r request
ok() { printf '{"t":"result","ok":true%s}\n' "$1"; exit 0; }
case $request in
*'"verb":"describe"'*) ok ',"description":{"proto":[1],"name":"witness","version":"1","reads":["witness.example/it@1"],"contributes":["claims"],"tools":["cat"]}' ;;
*'"verb":"contribute"'*) ok ',"contributions":[{"section":"claims","id":"witness","value":{"role":"data","size":"1MiB","placement":{"disk":"os"},"order":"last"}}]' ;;
*'"verb":"plan"'*) ok ',"steps":[{"call":{"action":"witness","input":{"devices":{"part":"witness"}}}}]' ;;
*'"verb":"validate"'*) ok ',"diagnostics":[]' ;;
*'"verb":"run"'*)
    printf 'read ahead: %s KiB;' "$(cat /sys/block/nvme0n1/queue/read_ahead_kb)" >&3
    [ ! -e /dev/nvme0n1 ] && printf ' no disk of its own;' >&3
    ok ',"changed":true' ;;
*) printf '{"t":"result","ok":false,"error":"unsupported"}\n' ;;
esac
"#;

const PROFILE: &str = "
api: hoist/v1
kind: ProvisionProfile
name: tuned
spec:
  selector: node:n1
  agent_params: console=ttyS0 no_timer_check
  document:
    disks:
      os: {match: {serial: HOIST1}}
    storage:
      - part: {id: data, on: os, size: 8 MiB}
    tuning.example/readahead@1: {disk: os, kib: 640}
    witness.example/it@1: {}
    flow: {end: power_off}
";

/// A program of another package: built with the workspace, and not when only this one is tested.
fn agent(dir: &Path) -> PathBuf {
    let hoist = Path::new(env!("CARGO_BIN_EXE_hoist"));
    let agent = hoist.with_file_name("hoist-agent");
    if !agent.is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--locked", "-p", "hoist-agent"]);
        let target = hoist.parent().and_then(Path::parent).expect("in the target directory");
        let built = cargo.arg("--target-dir").arg(target).status().expect("cargo starts");
        assert!(built.success(), "hoist-agent was not built");
    }
    // What only debuggers read would take longer to fetch than everything else.
    let small = dir.join("hoist-agent");
    let stripped = Command::new("strip").arg("-o").arg(&small).arg(&agent).status();
    assert!(stripped.expect("binutils are there").success());
    small
}

#[test]
fn archived_plug_ins_work_in_the_machine_that_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs_err::write(path("hoist.toml"), format!("names = [\"{HOST}\"]\n")).unwrap();
    let config =
        ["--tls-listen", "127.0.0.1:0", "--config", text(&path("hoist.toml"))].map(str::to_owned);
    let controller = Controller::start(&path("data"), &config.each_ref().map(String::as_str));

    let plugins = path("plugins");
    fs_err::create_dir(&plugins).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins");
    let example = "hoist-action-readahead";
    fs_err::copy(examples.join(example), plugins.join(example)).unwrap();
    let witness = plugins.join("hoist-action-witness");
    fs_err::write(&witness, WITNESS).unwrap();
    fs_err::set_permissions(&witness, PermissionsExt::from_mode(0o755)).unwrap();
    let kernel = guest::kernel().expect("set up");
    let modules = guest::modules().expect("set up");
    let out = path("agent");
    let agent = agent(dir.path());
    let image = ["--kernel", text(&kernel), "--modules", text(&modules), "--out", text(&out)];
    let how = ["--agent", text(&agent), "--level", "1", "--add"];
    controller.does(&[&["agent", "image"][..], &image, &how].concat());
    let archive = path("plugins.cpio");
    let name = "plugins-of-n1";
    let pack = ["plugin", "pack", text(&plugins), "--out", text(&archive), "--add", "--name", name];
    controller.does(&pack);
    controller.does(&["node", "add", "n1", "--mac", MAC]);
    fs_err::write(path("profile.yaml"), PROFILE).unwrap();
    controller.does(&["apply", "-f", text(&path("profile.yaml"))]);
    controller.does(&["provision", "start", "node:n1"]);
    assert!(controller.does(&["boot", "explain", "n1"]).contains(name));

    let _permit = Permit::wait().expect("a permit");
    let disk = path("disk.img");
    fs_err::File::create(&disk).and_then(|file| file.set_len(32 << 20)).unwrap();
    let boot_url = format!("http://{HOST}:{}/boot/v1/bootscript?mac={MAC}", controller.port());
    let hardware = Hardware {
        firmware: Firmware::Bios,
        mac: MAC.to_owned(),
        boot_url,
        disk: Some(Disk::Nvme { image: disk.clone(), serial: "HOIST1".to_owned() }),
        variables: None,
    };
    let mut machine = Machine::power_on(hardware).expect("a machine");
    machine.wait_for("report acknowledged by the controller: done", DEADLINE).expect("it is done");
    drop(machine);
    let bytes = fs_err::read(&disk).unwrap();
    let said = b"read ahead: 640 KiB; no disk of its own;";
    assert!(bytes.windows(said.len()).any(|window| window == said), "both did their work");
    let status = controller.does(&["provision", "status", "n1"]);
    assert!(status.contains("done"), "{status}");
}
