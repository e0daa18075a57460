//! Installs the programs that tests, demo and benchmarks need, on Debian and derivatives.
//!
//! Does nothing if all programs are present. Services of the packages are neither started nor left
//! enabled, because the tests start their own servers; a service that ran before continues. Programs
//! for virtual machines are unpacked under `target/guest`, and clients to test against under
//! `target/cloud-init`; neither is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use hoist_machine::{cloud_init, guest};

use crate::{apt, run_command, say};

/// A required file and its Debian package.
struct Need {
    file: &'static str,
    package: &'static str,
    /// Directories to search besides `PATH`; `*` stands for any directory.
    elsewhere: &'static [&'static str],
}

const POSTGRES: &[&str] = &["/usr/lib/postgresql/*/bin"];

const SBIN: &[&str] = &["/usr/sbin", "/sbin"];

/// Programs that only the tests use.
const TEST: [Need; 32] = [
    Need { file: "etcd", package: "etcd-server", elsewhere: &["/usr/bin"] },
    Need { file: "postgres", package: "postgresql", elsewhere: POSTGRES },
    Need { file: "initdb", package: "postgresql", elsewhere: POSTGRES },
    Need { file: "pg_isready", package: "postgresql", elsewhere: POSTGRES },
    // Runs PostgreSQL as another user when the tests run as root.
    Need { file: "setpriv", package: "util-linux", elsewhere: &[] },
    // Ends controllers as an operator would.
    Need { file: "kill", package: "procps", elsewhere: &[] },
    // Lists the files for `cargo xtask tidy`.
    Need { file: "git", package: "git", elsewhere: &[] },
    // Deployment to machines without an agent; differences in dry runs.
    Need { file: "sshd", package: "openssh-server", elsewhere: &["/usr/sbin"] },
    Need { file: "ssh", package: "openssh-client", elsewhere: &[] },
    Need { file: "ssh-keygen", package: "openssh-client", elsewhere: &[] },
    Need { file: "sudo", package: "sudo", elsewhere: &[] },
    Need { file: "patch", package: "patch", elsewhere: &[] },
    Need { file: "puppet", package: "puppet-agent", elsewhere: &["/opt/puppetlabs/bin"] },
    Need { file: "ansible-playbook", package: "ansible-core", elsewhere: &[] },
    // A second parser of the task files that imports write.
    Need {
        file: "yaml/__init__.py",
        package: "python3-yaml",
        elsewhere: &["/usr/lib/python3/dist-packages"],
    },
    // The reader of the DHCP examples.
    Need { file: "dnsmasq", package: "dnsmasq-base", elsewhere: SBIN },
    // Disks, and independent tools that check our disks.
    Need { file: "losetup", package: "mount", elsewhere: SBIN },
    Need { file: "partx", package: "util-linux", elsewhere: SBIN },
    Need { file: "sgdisk", package: "gdisk", elsewhere: SBIN },
    Need { file: "qemu-img", package: "qemu-utils", elsewhere: &[] },
    Need { file: "blkid", package: "util-linux", elsewhere: SBIN },
    Need { file: "mkfs.xfs", package: "xfsprogs", elsewhere: SBIN },
    Need { file: "mkfs.btrfs", package: "btrfs-progs", elsewhere: SBIN },
    Need { file: "mkfs.ntfs", package: "ntfs-3g", elsewhere: SBIN },
    Need { file: "mksquashfs", package: "squashfs-tools", elsewhere: &[] },
    Need { file: "mkfs.erofs", package: "erofs-utils", elsewhere: &[] },
    Need { file: "cryptsetup", package: "cryptsetup-bin", elsewhere: SBIN },
    // Disk stacks in virtual machines.
    Need { file: "mdadm", package: "mdadm", elsewhere: SBIN },
    Need { file: "lvm", package: "lvm2", elsewhere: SBIN },
    // Unpacks archives of plug-ins.
    Need { file: "cpio", package: "cpio", elsewhere: &[] },
    // Independent tools that check the firmware programs that we build.
    Need { file: "objcopy", package: "binutils", elsewhere: &[] },
    Need { file: "strip", package: "binutils", elsewhere: &[] },
];

/// Programs of the example deployment and of the example plug-ins.
const EXAMPLES: [Need; 2] = [
    Need { file: "python3", package: "python3", elsewhere: &[] },
    // `python3-minimal` has the program without the library.
    Need { file: "sqlite3/__init__.py", package: "python3", elsewhere: &["/usr/lib/*/"] },
];

/// Programs that `hoist agent image` puts into every image, and the decompressor for modules of
/// newer kernels.
const AGENT: [Need; 4] = [
    Need { file: "mke2fs", package: "e2fsprogs", elsewhere: SBIN },
    Need { file: "mkswap", package: "util-linux", elsewhere: SBIN },
    Need { file: "mkfs.vfat", package: "dosfstools", elsewhere: SBIN },
    Need { file: "xz", package: "xz-utils", elsewhere: &[] },
];

/// Virtual machines that boot from the network.
const MACHINES: [Need; 4] = [
    Need { file: "qemu-system-x86_64", package: "qemu-system-x86", elsewhere: &[] },
    Need { file: "efi-virtio.rom", package: "ipxe-qemu", elsewhere: &["/usr/lib/ipxe/qemu"] },
    Need { file: "bios-256k.bin", package: "seabios", elsewhere: &["/usr/share/seabios"] },
    Need { file: "OVMF_VARS_4M.fd", package: "ovmf", elsewhere: &["/usr/share/OVMF"] },
];

/// Tools for system images and boot loaders.
const IMAGES: [Need; 5] = [
    Need { file: "mke2fs", package: "e2fsprogs", elsewhere: SBIN },
    Need {
        file: "systemd-bootx64.efi",
        package: "systemd-boot-efi",
        elsewhere: &["/usr/lib/systemd/boot/efi"],
    },
    Need { file: "grub-mkimage", package: "grub-common", elsewhere: &[] },
    Need { file: "boot.img", package: "grub-pc-bin", elsewhere: &["/usr/lib/grub/i386-pc"] },
    Need {
        file: "moddep.lst",
        package: "grub-efi-amd64-bin",
        elsewhere: &["/usr/lib/grub/x86_64-efi"],
    },
];

/// Debian trees with the real cloud-init, and the namespaces it runs in.
const CLIENTS: [Need; 3] = [
    Need { file: "mmdebstrap", package: "mmdebstrap", elsewhere: &[] },
    Need { file: "unshare", package: "util-linux", elsewhere: &[] },
    Need { file: "ip", package: "iproute2", elsewhere: &["/usr/sbin", "/sbin"] },
];

/// The peers in the benchmarks.
const BENCH: [Need; 10] = [
    Need { file: "nginx", package: "nginx-light", elsewhere: &["/usr/sbin"] },
    Need { file: "wrk", package: "wrk", elsewhere: &[] },
    Need { file: "taskset", package: "util-linux", elsewhere: &[] },
    Need { file: "valgrind", package: "valgrind", elsewhere: &[] },
    Need { file: "etcd", package: "etcd-server", elsewhere: &["/usr/bin"] },
    Need { file: "zstd", package: "zstd", elsewhere: &[] },
    Need { file: "losetup", package: "mount", elsewhere: SBIN },
    Need { file: "sshd", package: "openssh-server", elsewhere: &["/usr/sbin"] },
    Need { file: "ssh", package: "openssh-client", elsewhere: &[] },
    // Required by `python3 -m venv`.
    Need { file: "ensurepip/__main__.py", package: "python3-venv", elsewhere: &["/usr/lib/*/"] },
];

/// A package that depends on the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";

/// Units that those packages would start and enable.
const SERVICES: [&str; 11] = [
    "blk-availability.service",
    "dm-event.socket",
    "etcd.service",
    "lvm2-lvmpolld.socket",
    "lvm2-monitor.service",
    "mdadm-shutdown.service",
    "mdcheck_start.timer",
    "mdmonitor-oneshot.timer",
    "nginx.service",
    "postgresql.service",
    "ssh.service",
];

/// The policy program that packages run before they start a service; exit code 101 forbids it.
const POLICY: &str = "/usr/sbin/policy-rc.d";

pub(crate) fn test() -> Result<()> {
    let needs = TEST.iter().chain(&CLIENTS).chain(&MACHINES).chain(&IMAGES);
    let needs = needs.chain(&AGENT).chain(&EXAMPLES);
    ensure("setup-test", needs, Guest::Needed)?;
    // In sequence: each unpacks and configures several hundred packages.
    for release in cloud_init::RELEASES.into_iter().filter(|name| !cloud_init::is_complete(name)) {
        say(format!("setup-test: making a tree with the cloud-init of {release}"));
        make_tree(release)?;
    }
    Ok(())
}

pub(crate) fn demo() -> Result<()> {
    let needs = MACHINES.iter().chain(&IMAGES).chain(&AGENT).chain(&EXAMPLES);
    ensure("setup-demo", needs, Guest::Needed)
}

/// Programs for making and entering the trees of [`crate::bare`].
pub(crate) fn bare() -> Result<()> {
    ensure("setup-bare", &CLIENTS, Guest::NotNeeded)
}

pub(crate) fn bench() -> Result<()> {
    ensure("setup-bench", &BENCH, Guest::NotNeeded)?;
    let peers = Path::new("target").join("peers");
    fs_err::create_dir_all(&peers)?;
    say("setup-bench: building steno");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--manifest-path",
        "bench/peers/steno/Cargo.toml",
    ]);
    run_command(cargo.arg("--target-dir").arg(peers.join("steno")))?;
    let python = peers.join("python");
    if !python.join("bin/ansible-playbook").exists() {
        say("setup-bench: installing TaskFlow and Ansible for Python");
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
        let mut pip = Command::new(python.join("bin/pip"));
        pip.args(["install", "--quiet", "--requirement", "bench/peers/python/requirements.txt"]);
        run_command(&mut pip)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    Needed,
    NotNeeded,
}

fn ensure(job: &str, needs: impl IntoIterator<Item = &'static Need>, guest: Guest) -> Result<()> {
    let needs: Vec<&Need> = needs.into_iter().collect();
    let missing: Vec<&Need> = needs.iter().copied().filter(|need| !need.is_met()).collect();
    let unpack = guest == Guest::Needed && !guest::is_complete();
    if missing.is_empty() && !unpack {
        say(format!("{job}: everything is there"));
        return Ok(());
    }
    if !missing.is_empty() {
        let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        packages.sort_unstable();
        packages.dedup();
        let files: Vec<&str> = missing.iter().map(|need| need.file).collect();
        say(format!("{job}: missing {}; installing {}", files.join(", "), packages.join(" ")));
        install(&packages)?;
        if let Some(need) = needs.iter().find(|need| !need.is_met()) {
            bail!("`{}` is still missing after installing `{}`", need.file, need.package);
        }
    }
    if unpack {
        say(format!("{job}: unpacking a kernel and busybox for virtual machines"));
        unpack_guest()?;
    }
    Ok(())
}

/// Downloads and unpacks the files that [`guest`] boots. After an interruption it starts over.
fn unpack_guest() -> Result<()> {
    let kernel = newest_kernel()?;
    let place = guest::packages();
    let partial = place.with_extension("partial");
    if partial.exists() {
        fs_err::remove_dir_all(&partial)?;
    }
    fs_err::create_dir_all(&partial)?;
    // For every user: `apt-get download` needs no rights, and apt cannot switch to its own user
    // without them.
    let mut download = Command::new("apt-get");
    download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", &kernel, BUSYBOX]);
    run_command(download.current_dir(&partial))?;
    for entry in fs_err::read_dir(&partial)? {
        let package = entry?.path();
        run_command(Command::new("dpkg").arg("--extract").arg(&package).arg(&partial))?;
        fs_err::remove_file(&package)?;
    }
    if place.exists() {
        fs_err::remove_dir_all(&place)?;
    }
    fs_err::rename(&partial, &place)?;
    ensure!(guest::is_complete(), "`{kernel}` and `{BUSYBOX}` do not hold what they used to");
    Ok(())
}

/// After an interruption it starts over.
fn make_tree(release: &str) -> Result<()> {
    let place = cloud_init::tree(release);
    let partial = place.with_extension("partial");
    for old in [&place, &partial] {
        run_command(as_root("rm").args(["-rf", "--one-file-system"]).arg(old))?;
    }
    let above = place.parent().context("a tree is in a directory")?;
    fs_err::create_dir_all(above)?;
    let packages = format!("--include={}", cloud_init::PACKAGES.join(","));
    let mut make = as_root("mmdebstrap");
    make.args(["--quiet", "--variant=minbase", &packages]);
    make.args(apt::options()?.iter().map(|option| format!("--aptopt={option}")));
    make.arg(release).arg(&partial).arg(apt::mirror()?);
    run_command(&mut make)?;
    run_command(as_root("mv").arg(&partial).arg(&place))?;
    ensure!(cloud_init::is_complete(release), "the tree of {release} has no cloud-init");
    Ok(())
}

fn newest_kernel() -> Result<String> {
    let hint = || format!("no package `{KERNEL}`; the virtual machines need Debian for amd64");
    if !is_program("apt-get") {
        bail!("apt-get is not installed; {}", hint());
    }
    if let Some(kernel) = dependency(KERNEL)? {
        return Ok(kernel);
    }
    // A new system has no package lists yet.
    run_command(as_root("apt-get").args(["update", "-qq"]))?;
    dependency(KERNEL)?.with_context(hint)
}

/// The first package that this one depends on, as far as apt knows.
fn dependency(package: &str) -> Result<Option<String>> {
    let output = Command::new("apt-cache").args(["depends", "--important", package]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(found.map(|name| name.trim().to_owned()))
}

impl Need {
    fn is_met(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let elsewhere = self.elsewhere.iter().flat_map(|pattern| directories(pattern));
        std::env::split_paths(&path).chain(elsewhere).any(|dir| dir.join(self.file).is_file())
    }
}

/// The directories a pattern with at most one `*` stands for.
fn directories(pattern: &str) -> Vec<PathBuf> {
    let Some((above, below)) = pattern.split_once("*/") else { return vec![pattern.into()] };
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(below)).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    if !is_program("apt-get") {
        bail!("apt-get is not installed; install these by hand: {}", packages.join(" "));
    }
    let quiet: Vec<&str> = SERVICES.into_iter().filter(|unit| !is("is-active", unit)).collect();
    let dull: Vec<&str> = SERVICES.into_iter().filter(|unit| !is("is-enabled", unit)).collect();

    // A foreign policy stays; then services may start, and are stopped below.
    let ours = !Path::new(POLICY).exists();
    if ours {
        let script = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
        run_command(as_root("sh").args(["-c", &script]))?;
    }
    let installed = update_and_install(packages);
    if ours {
        run_command(as_root("rm").arg(POLICY))?;
    }
    installed?;

    if is_program("systemctl") {
        for unit in dull.iter().filter(|unit| is("is-enabled", unit)) {
            run_command(as_root("systemctl").args(["disable", "--quiet", unit]))?;
        }
        for unit in quiet.iter().filter(|unit| is("is-active", unit)) {
            run_command(as_root("systemctl").args(["stop", unit]))?;
        }
    }
    Ok(())
}

fn update_and_install(packages: &[&str]) -> Result<()> {
    run_command(as_root("apt-get").args(["update", "-qq"]))?;
    let mut install = as_root("env");
    install.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y"]);
    // Standard output has hundreds of lines about unpacking; errors go to standard error.
    run_command(install.arg("--no-install-recommends").args(packages).stdout(Stdio::null()))
}

/// A query such as `systemctl is-active`; without systemd the answer is no.
fn is(question: &str, unit: &str) -> bool {
    let mut command = Command::new("systemctl");
    command.args([question, "--quiet", unit]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub(crate) fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    }
}

fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
