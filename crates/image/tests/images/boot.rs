//! Images boot in virtual machines, each with its own loader.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hoist_machine::scratch::{Scratch, program};
use hoist_machine::{Firmware, NvmeDisk, Permit, boot_from_disk, console, variables};
use hoist_testkit::eventually_within;
use serde_json::json;

use crate::bench::{Bench, tiny};

const DEADLINE: Duration = Duration::from_mins(2);

/// The words that lead to the whole device, and then off.
const WORDS: [&str; 5] =
    ["console=ttyS0", "quiet", "no_timer_check", "root=/dev/nvme0n1", "hoist.then=poweroff"];

/// Runs a machine until it powers itself off, and returns its console output.
fn said(hardware: &[String]) -> String {
    let _permit = Permit::wait().expect("a permit");
    let scratch = Scratch::new();
    let said = scratch.dir().join("console");
    let qemu = program("qemu-system-x86_64", &[], "qemu-system-x86");
    let mut command = Command::new(qemu);
    command.args(["-accel", "tcg", "-m", "512", "-nographic", "-nodefaults", "-no-reboot"]);
    command.args(["-monitor", "none", "-serial", &format!("file:{}", said.display())]);
    let mut machine = scratch.spawn("machine", command.args(hardware));
    let output = || {
        let console = fs_err::read(&said).unwrap_or_default();
        format!("{}{}", console::plain(&console), scratch.log("machine"))
    };
    eventually_within(DEADLINE, "machine powers off", || {
        machine.try_wait().expect("the machine is our child").ok_or_else(output)
    });
    scratch.forget("machine");
    output()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// A file as a whole NVMe device.
fn nvme(file: &Path, id: &str) -> Vec<String> {
    let drive = format!("if=none,id={id},format=raw,file={}", file.display());
    words(&["-drive", &drive, "-device", &format!("nvme,drive={id},serial={id}")])
}

/// A directory as the disk that UEFI boots from.
fn firmware_disk(directory: &Path) -> Vec<String> {
    let drive = format!("if=none,id=esp,format=raw,readonly=on,file=fat:{}", directory.display());
    let device = "virtio-blk-pci,drive=esp,bootindex=0";
    let mut words = words(&["-drive", &drive, "-device", device]);
    let chip = directory.with_extension("variables");
    words.extend(variables::flash(&chip).expect("firmware that remembers"));
    words
}

#[test]
fn tiny_system_boots_and_finds_its_config_drive() {
    let bench = Bench::new(&tiny(&json!({"disk": {"size": "48 MiB", "loaders": []}}), &[]));
    bench.built();
    let drive = bench.path("drive");
    fs_err::File::create(&drive).and_then(|file| file.set_len(4 << 20)).expect("created");
    let made = Command::new("/usr/sbin/mkfs.vfat").args(["-n", "CONFIG-2"]).arg(&drive).output();
    assert!(made.expect("this test needs package `dosfstools`").status.success());
    let kernel = bench.file("kernel").display().to_string();
    let mut hardware = words(&["-kernel", &kernel, "-append", &WORDS.join(" ")]);
    hardware.extend(nvme(&bench.root(), "root").into_iter().chain(nvme(&drive, "config")));
    let said = said(&hardware);
    assert!(said.contains("hoist-tiny: this is tiny, root=/dev/nvme0n1"), "{said}");
    assert!(!said.contains("no config drive") && !said.contains("cannot"), "{said}");
    assert!(said.contains("hoist-tiny: up"), "{said}");
}

#[test]
fn a_live_image_boots_without_a_disk() {
    let bench = Bench::new(&tiny(&json!({"live": {"format": "cpio"}}), &[]));
    bench.built();
    let [kernel, live] =
        ["kernel", "live.cpio.zst"].map(|name| bench.file(name).display().to_string());
    let append = "console=ttyS0 quiet no_timer_check hoist.then=poweroff";
    let said = said(&words(&["-kernel", &kernel, "-initrd", &live, "-append", append]));
    assert!(said.contains("hoist-tiny: up"), "{said}");
}

#[test]
fn uefi_boots_the_unified_kernel_image_and_grub() {
    let loaders = ["uki", "grub"];
    let outputs = json!({"disk": {"size": "48 MiB", "loaders": loaders}});
    let bench = Bench::new(&tiny(&outputs, &WORDS));
    bench.built();
    let root = bench.root();
    for loader in ["uki.efi", "grub.efi"] {
        let esp = bench.path(&format!("esp-{loader}"));
        let put = |from: &str, to: &str| {
            let to = esp.join(to);
            fs_err::create_dir_all(to.parent().expect("a directory")).expect("created");
            fs_err::copy(bench.file(from), to).expect("copied");
        };
        put(loader, "EFI/BOOT/BOOTX64.EFI");
        if loader == "grub.efi" {
            put("kernel", "hoist/kernel");
            let config = format!("linux /hoist/kernel {}\nboot\n", WORDS.join(" "));
            fs_err::write(esp.join("hoist/grub.cfg"), config).expect("written");
        }
        let mut hardware = firmware_disk(&esp);
        hardware.extend(nvme(&root, "root"));
        let said = said(&hardware);
        assert!(said.contains("root=/dev/nvme0n1"), "{loader}: {said}");
        assert!(said.contains("hoist-tiny: up"), "{loader}: {said}");
    }
}

#[test]
fn a_whole_disk_boots_with_bios_and_with_uefi() {
    let outputs = json!({
        "disk": {"size": "48 MiB", "loaders": ["systemd_boot", "grub"]},
        "whole_disk": {"size": "128 MiB", "esp_size": "64 MiB"},
    });
    let words = ["console=ttyS0", "quiet", "no_timer_check", "hoist.then=poweroff"];
    let bench = Bench::new(&tiny(&outputs, &words));
    let index = bench.built();
    let image = bench.disk();
    let checked = Command::new("/usr/sbin/sgdisk").arg("-v").arg(&image).output();
    let checked = checked.expect("this test needs package `gdisk`").stdout;
    let checked = String::from_utf8_lossy(&checked);
    assert!(checked.contains("No problems found"), "{checked}");
    let _permit = Permit::wait().expect("a permit");
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let disk = NvmeDisk { image: image.clone(), sector: 512 };
        let said = boot_from_disk(firmware, &disk, DEADLINE).expect("it ends");
        assert!(said.contains("hoist-tiny: this is tiny, root=PARTUUID="), "{firmware:?}: {said}");
        assert!(said.contains("hoist-tiny: up"), "{firmware:?}: {said}");
    }
    // Partitions, volumes and their content follow from the document, too.
    assert_eq!(Bench::new(&tiny(&outputs, &words)).built(), index);
}
