//! Real firmware boots provisioned disks and nothing else: loader, kernel and system must find each
//! other on the disk. As root, on loop devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hoist_device::kernel;
use hoist_machine::{Firmware, NvmeDisk, Permit, boot_from_disk, guest};
use hoist_provision::digest::Digest;
use hoist_testkit::loop_disk::{LoopDisk, run};

const MIB: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_mins(2);

/// The first process of the system: prints the state of the machine, and powers off.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
[ -c /dev/null ] || mount -t devtmpfs devtmpfs /dev
say() { echo "hoist-test: $*"; }
for module in /modules/*; do insmod "$module" || say "$module does not load"; done
say "words: $(cat /proc/cmdline)"
say "root: $(awk '$2 == "/" {print $3}' /proc/mounts)"
drive=$(findfs LABEL=CONFIG-2) && mkdir -p /run/drive && mount -o ro "$drive" /run/drive
say "drive: $(cat /run/drive/openstack/latest/meta_data.json)"
mount -a || say "not everything of fstab is mounted"
say "fstab: $(awk '$2 == "/srv" {print $1, $3}' /proc/mounts)"
say "done"
poweroff -f
"#;

/// The modules with which the kernel reads FAT.
const MODULES: [&str; 4] = ["fat.ko", "vfat.ko", "nls_cp437.ko", "nls_ascii.ko"];

/// The modules of the core image of GRUB.
const GRUB_MODULES: [&str; 9] = [
    "part_gpt",
    "fat",
    "search",
    "search_fs_file",
    "configfile",
    "normal",
    "linux",
    "boot",
    "minicmd",
];
const GRUB_CONFIG: &str = "search --no-floppy --file --set=root /hoist/grub.cfg\n\
    configfile ($root)/hoist/grub.cfg\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loader {
    SystemdBoot,
    Uki,
    Grub,
}

struct Case {
    firmware: Firmware,
    loader: Loader,
    sector: u32,
    /// Both kinds of firmware are to start it.
    is_for_both: bool,
}

impl Case {
    const fn new(firmware: Firmware, loader: Loader, sector: u32) -> Self {
        Self { firmware, loader, sector, is_for_both: false }
    }
}

struct Bench {
    disk: LoopDisk,
    dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A loop device that is used again would still have them.
        let _ = kernel::set_partitions(self.disk.path(), &[]);
    }
}

impl Bench {
    fn new(sector: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { disk: LoopDisk::new(112 * MIB, sector), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file as the document names it.
    fn fetched(path: &Path) -> String {
        let digest = Digest::of(&fs_err::read(path).expect("it is there"));
        format!("{{sources: ['file://{}'], digest: '{digest}'}}", path.display())
    }

    fn root_image(&self) -> PathBuf {
        let tree = self.path("tree");
        for dir in ["bin", "dev", "etc", "modules", "proc", "run", "sbin", "srv", "sys"] {
            fs_err::create_dir_all(tree.join(dir)).expect("made");
        }
        let copy = |from: &Path, to: &str| fs_err::copy(from, tree.join(to)).expect("copied");
        copy(&guest::busybox().expect("set up"), "bin/busybox");
        for (number, name) in MODULES.into_iter().enumerate() {
            let module = guest::find_file(name).expect("set up");
            copy(&module, &format!("modules/{number}-{name}"));
        }
        let init = tree.join("sbin/init");
        fs_err::write(&init, INIT).expect("it is written");
        run(Command::new("chmod").arg("0755").arg(&init));
        let image = self.path("root.img");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-b", "4096", "-d"]).arg(&tree).arg(&image).arg("16M");
        run(&mut mke2fs);
        image
    }

    fn grub(&self, platform: &str, more: &[&str]) -> PathBuf {
        let config = self.path("grub.cfg");
        let image = self.path(platform);
        fs_err::write(&config, GRUB_CONFIG).expect("it is written");
        let mut mkimage = Command::new("grub-mkimage");
        mkimage.args(["-O", platform, "-p", "/hoist", "-c"]).arg(&config).arg("-o").arg(&image);
        run(mkimage.args(GRUB_MODULES).args(more));
        image
    }

    /// A unified kernel image, which finds its root by the name of the partition.
    fn uki(&self) -> PathBuf {
        let words = self.path("cmdline");
        let image = self.path("uki.efi");
        let text =
            "root=PARTLABEL=root rootfstype=ext4 rw console=ttyS0 quiet panic=-1 no_timer_check";
        fs_err::write(&words, text).expect("it is written");
        let mut objcopy = Command::new("objcopy");
        let kernel = guest::kernel().expect("set up");
        for (name, file, at) in [(".cmdline", &words, 0x3_0000), (".linux", &kernel, 0x200_0000)] {
            objcopy.arg("--add-section").arg(format!("{name}={}", file.display()));
            objcopy.arg("--change-section-vma").arg(format!("{name}={at:#x}"));
        }
        run(objcopy.arg("/usr/lib/systemd/boot/efi/linuxx64.efi.stub").arg(&image));
        image
    }

    /// As others find it in the table.
    fn partuuid(&self, name: &str) -> String {
        let of = |number: u32| {
            let mut sgdisk = Command::new("sgdisk");
            run(sgdisk.args(["-i", &number.to_string()]).arg(self.disk.path()))
        };
        let named = format!("Partition name: '{name}'");
        let shown = (1..=5).map(of).find(|shown| shown.contains(&named)).expect("it is there");
        let line = shown.lines().find_map(|line| line.strip_prefix("Partition unique GUID: "));
        line.expect("a PARTUUID").to_lowercase()
    }

    fn boot_files(&self, case: &Case) -> Vec<(&'static str, PathBuf)> {
        let mut files = Vec::new();
        let is_bios = case.firmware == Firmware::Bios;
        match case.loader {
            _ if is_bios => {}
            Loader::SystemdBoot => {
                files.push(("loader", "/usr/lib/systemd/boot/efi/systemd-bootx64.efi".into()));
            }
            Loader::Uki => files.push(("uki", self.uki())),
            Loader::Grub => files.push(("loader", self.grub("x86_64-efi", &[]))),
        }
        if is_bios || case.is_for_both {
            files.push(("grub_boot", "/usr/lib/grub/i386-pc/boot.img".into()));
            files.push(("grub_core", self.grub("i386-pc", &["biosdisk"])));
        }
        if case.loader != Loader::Uki || case.is_for_both {
            files.push(("kernel", guest::kernel().expect("set up")));
        }
        files
    }

    fn document(&self, case: &Case) -> PathBuf {
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let number = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let loader = match case.loader {
            Loader::SystemdBoot => "systemd_boot",
            Loader::Uki => "uki",
            Loader::Grub => "grub",
        };
        let (firmware, role) = match case.firmware {
            _ if case.is_for_both => ("both", "esp"),
            Firmware::Bios => ("bios", "boot"),
            Firmware::Uefi => ("uefi", "esp"),
        };
        let files = self.boot_files(case);
        let files = files.iter().map(|(name, path)| format!("{name}: {}", Self::fetched(path)));
        let files = files.collect::<Vec<_>>().join("\n      ");
        let image = self.root_image();
        let text = format!(
            "api: hoist/v1
txn: 7d1b6d5e-6f3a-4a7e-9d0c-{number:0>12}
sections:
  node: {{id: n1}}
  policy: {{allow_kernel_names: true}}
  disks:
    os: {{match: {{kernel_name: {name}}}}}
  storage:
    - part: {{id: boot, on: os, size: 32 MiB, role: {role}}}
    - fs: {{id: boot-fs, on: boot, kind: vfat, label: B{number}}}
    - part: {{id: root, on: os, size: 32 MiB}}
    - fs: {{id: root-fs, on: root, kind: ext4, mount: /}}
    - part: {{id: data, on: os, size: rest}}
    - fs: {{id: data-fs, on: data, kind: ext4, mount: /srv, label: d{number}}}
  images:
    root: {{sources: ['file://{image}'], target: root-fs, size: 16 MiB}}
  config_drive:
    files:
      openstack/latest/meta_data.json: {{text: '{{\"name\": \"found\"}}'}}
  files:
    - {{on: root-fs, path: /etc/fstab, content: fstab}}
  boot:
    firmware: {firmware}
    loader: {loader}
    kernel_args: [rw, console=ttyS0, quiet, panic=-1, no_timer_check]
    files:
      {files}
",
            image = image.display()
        );
        let path = self.path("node.yaml");
        fs_err::write(&path, text).expect("it is written");
        path
    }
}

fn agent(verb: &str, document: &Path) -> (i32, String) {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
    let output = agent.arg(verb).arg("-f").arg(document).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ends by itself"), String::from_utf8_lossy(&said).into_owned())
}

fn boots(case: &Case) {
    let bench = Bench::new(case.sector);
    let document = bench.document(case);
    let (code, said) = agent("apply", &document);
    assert_eq!(code, 0, "{said}");
    let (code, said) = agent("plan", &document);
    assert_eq!(code, 0, "nothing is left to do: {said}");

    let firmwares: &[Firmware] =
        if case.is_for_both { &[Firmware::Bios, Firmware::Uefi] } else { &[case.firmware] };
    let partuuid = bench.partuuid("root");
    for firmware in firmwares {
        let _permit = Permit::wait().expect("a permit");
        let disk = NvmeDisk { image: bench.disk.file(), sector: case.sector };
        let said = boot_from_disk(*firmware, &disk, DEADLINE).expect("it boots");
        let says = |text: &str| assert!(said.contains(text), "`{text}` is not in\n{said}");
        says("hoist-test: root: ext4");
        says("hoist-test: drive: {\"name\": \"found\"}");
        says("hoist-test: fstab: /dev/nvme0n1p");
        says("hoist-test: done");
        if case.loader != Loader::Uki {
            says(&format!("root=PARTUUID={partuuid} rootfstype=ext4 rw console=ttyS0"));
        }
    }
}

#[test]
fn bios_boots_a_disk_provisioned_with_grub() {
    boots(&Case::new(Firmware::Bios, Loader::Grub, 512));
}

#[test]
fn uefi_boots_a_disk_provisioned_with_systemd_boot() {
    boots(&Case::new(Firmware::Uefi, Loader::SystemdBoot, 512));
}

#[test]
fn uefi_starts_a_unified_kernel_from_a_disk_of_large_sectors() {
    boots(&Case::new(Firmware::Uefi, Loader::Uki, 4096));
}

#[test]
#[ignore = "wide: `make test-full`"]
fn remaining_boot_paths_work() {
    for (loader, sector) in
        [(Loader::Uki, 512), (Loader::Grub, 512), (Loader::Grub, 4096), (Loader::SystemdBoot, 4096)]
    {
        boots(&Case::new(Firmware::Uefi, loader, sector));
    }
    for loader in [Loader::SystemdBoot, Loader::Grub] {
        boots(&Case { is_for_both: true, ..Case::new(Firmware::Uefi, loader, 512) });
    }
}
