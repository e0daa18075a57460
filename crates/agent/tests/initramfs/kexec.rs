//! The installed system is started by the agent, and not by firmware: the machine ends when it is
//! reset, and there is nothing on its disk that its firmware could start.

use std::process::Command;

use hoist_machine::{Firmware, HOST, guest};
use hoist_provision::digest::Digest;
use serde_json::{Value, json};

use crate::{Bench, DEADLINE, NODE, TXN, run};

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
echo "hoist-test: started with $(/bin/busybox cat /proc/cmdline)"
/bin/busybox poweroff -f
"#;

fn fetched(bench: &Bench, name: &str, bytes: Vec<u8>) -> Value {
    let digest = Digest::of(&bytes).to_string();
    json!({"sources": [bench.server.file(HOST, name, bytes)], "digest": digest})
}

fn root(bench: &Bench) -> Vec<u8> {
    let tree = bench.path("tree");
    for dir in ["bin", "dev", "proc", "sbin"] {
        fs_err::create_dir_all(tree.join(dir)).expect("made");
    }
    fs_err::copy(guest::busybox().expect("set up"), tree.join("bin/busybox")).expect("copied");
    let init = tree.join("sbin/init");
    fs_err::write(&init, INIT).expect("written");
    run(Command::new("chmod").arg("0755").arg(&init));
    let image = bench.path("kexec.img");
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&tree).arg(&image).arg("8M"));
    fs_err::read(&image).expect("made")
}

fn job(bench: &Bench, boot: &Value) -> Value {
    let image = fetched(bench, "kexec.img", root(bench));
    json!({"api": "hoist/v1", "txn": TXN, "sections": {
        "node": {"id": NODE},
        "disks": {"os": {"match": {"serial": "HOIST1"}}},
        "storage": [
            {"part": {"id": "root", "on": "os", "size": "16 MiB"}},
            {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
        ],
        "images": {"root": {
            "sources": image["sources"], "digest": image["digest"], "target": "root-fs",
            "size": "8 MiB",
        }},
        "boot": boot,
        "flow": {"end": "kexec"},
    }})
}

const ARGUMENTS: [&str; 5] =
    ["console=ttyS0", "quiet", "panic=-1", "no_timer_check", "hoist.test=kexec"];

#[test]
fn installed_system_is_started_by_kexec() {
    let mut bench = Bench::with_disk(96);
    bench.firmware = Firmware::Uefi;
    let kernel = fs_err::read(guest::kernel().expect("set up")).expect("there");
    let boot = json!({
        "firmware": "uefi", "loader": "systemd_boot", "kernel_args": ARGUMENTS,
        "esp_size": "40 MiB",
        "files": {
            "kernel": fetched(&bench, "linux", kernel),
            "loader": fetched(&bench, "loader.efi", b"nobody starts this".to_vec()),
        },
    });
    bench.server.set_job(job(&bench, &boot));
    bench.server.answer("continue", "kexec");
    let mut machine = bench.power_on();
    machine.wait_for("starting the installed system", DEADLINE).expect("it says so");
    assert_eq!(bench.server.reports()[0]["outcome"], "done", "the controller knows before");
    let words = machine.wait_for("hoist-test: started with", DEADLINE).expect("it is started");
    assert!(words.contains("root=PARTUUID=") && words.contains("hoist.test=kexec"), "{words}");
    machine.wait_until_off(DEADLINE).expect("it goes off");
}

/// Kernel and initramfs in one file, as it is made for machines that UEFI starts.
fn uki(bench: &Bench) -> Vec<u8> {
    let initrd = bench.path("uki.initrd");
    let image = bench.path("uki.efi");
    fs_err::write(&initrd, guest::initrd(guest::TEST_INIT).expect("set up")).expect("written");
    let kernel = guest::kernel().expect("set up");
    let mut objcopy = Command::new("objcopy");
    for (name, file, at) in [(".linux", &kernel, 0x200_0000), (".initrd", &initrd, 0x400_0000)] {
        objcopy.arg("--add-section").arg(format!("{name}={}", file.display()));
        objcopy.arg("--change-section-vma").arg(format!("{name}={at:#x}"));
    }
    run(objcopy.arg("/usr/lib/systemd/boot/efi/linuxx64.efi.stub").arg(&image));
    fs_err::read(&image).expect("made")
}

#[test]
fn unified_kernel_image_is_started_by_kexec() {
    let mut bench = Bench::with_disk(96);
    bench.firmware = Firmware::Uefi;
    let boot = json!({
        "firmware": "uefi", "loader": "uki", "kernel_args": ARGUMENTS, "esp_size": "40 MiB",
        "files": {"uki": fetched(&bench, "uki.efi", uki(&bench))},
    });
    bench.server.set_job(job(&bench, &boot));
    bench.server.answer("continue", "kexec");
    let mut machine = bench.power_on();
    // The first output of the new kernel's initramfs.
    let words = machine.wait_for("hoist-test: kernel command line", DEADLINE);
    assert!(words.expect("it is started").contains("hoist.test=kexec"));
    machine.wait_until_off(DEADLINE).expect("it goes off");
}

#[test]
fn kernel_that_cannot_be_kexeced_is_booted_by_firmware() {
    let mut bench = Bench::with_disk(96);
    bench.firmware = Firmware::Uefi;
    let boot = json!({
        "firmware": "uefi", "loader": "systemd_boot", "esp_size": "40 MiB",
        "files": {
            "kernel": fetched(&bench, "linux", b"this is no kernel".to_vec()),
            "loader": fetched(&bench, "loader.efi", b"nobody starts this".to_vec()),
        },
    });
    bench.server.set_job(job(&bench, &boot));
    bench.server.answer("continue", "kexec");
    let mut machine = bench.power_on();
    let why = "kexec failed: the running kernel rejects the installed kernel";
    machine.wait_for(why, DEADLINE).expect("it says why");
    machine.wait_for("restarting the machine", DEADLINE).expect("it says so");
    machine.wait_until_off(DEADLINE).expect("it is reset");
}
