//! A small Linux to boot: Debian's cloud kernel, a static busybox and a script as init.
//!
//! `make setup-test` and `make setup-demo` unpack the packages under `target/guest`; nothing of it
//! is installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use hoist_initramfs::Tree;

/// Modules that make a virtio network card work. Modules that are built into the kernel have no
/// file and are skipped.
const NETWORK: [&str; 8] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

/// Brings the network card up, by DHCP. Part of every initial RAM disk.
const NETWORK_UP: &str = r#"#!/bin/busybox sh
# Some releases compress them, and busybox loads only what is not.
for module in /modules/*.xz; do [ ! -e "$module" ] || unxz "$module"; done
# Kernels differ in which of two modules needs the other: those that fail are tried again.
left=$(ls /modules)
for round in 1 2 3; do
    failed=
    for module in $left; do insmod "/modules/$module" 2>/dev/null || failed="$failed $module"; done
    left=$failed
done
[ -z "$left" ] || echo "modules that do not load:$left"
ip link set eth0 up && udhcpc -q -n -t 10 -T 1 -i eth0 -s /bin/lease >/dev/null
"#;

/// What busybox's DHCP client runs with its lease.
const LEASE: &str = r#"#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface" && ip route add default via "$router"
"#;

/// Says how it was booted. Where the command line has `hoist.test.fetch=URL`, fetches that, and with
/// `hoist.test.report=URL` reports there as cloud-init's phone-home does. Then powers off, or starts
/// again with `hoist.test.then=reboot`.
pub const TEST_INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
say() { echo "hoist-test: $*"; }
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }

say "kernel command line: $(cat /proc/cmdline)"
url=$(word hoist.test.fetch)
if [ -n "$url" ]; then
    network-up
    if answer=$(wget -q -O - "$url"); then say "fetched: $answer"; else say "cannot fetch $url"; fi
fi
url=$(word hoist.test.report)
if [ -n "$url" ]; then
    network-up
    if wget -q -O - --post-data "hostname=$(hostname)" "$url"; then say "reported"; else say "cannot report to $url"; fi
fi
say "done"
[ "$(word hoist.test.then)" = reboot ] && reboot -f
poweroff -f
"#;

/// Where what guests need is kept between runs.
pub fn directory() -> PathBuf {
    target().join("guest")
}

/// Where everything that is made goes.
pub fn target() -> PathBuf {
    // This crate is two directories below the root. No `..`: people are shown these paths.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let of_root = || root.unwrap_or(Path::new("/")).join("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(of_root, PathBuf::from)
}

/// The unpacked packages, `linux-image-*-cloud-amd64` and `busybox-static`.
pub fn packages() -> PathBuf {
    directory().join("packages")
}

/// Whether setup has unpacked them.
pub fn is_complete() -> bool {
    kernel().is_ok() && busybox().is_ok()
}

/// The kernel's file.
pub fn kernel() -> Result<PathBuf> {
    find(&packages().join("boot"), &|name| name.starts_with("vmlinuz-")).with_context(missing)
}

/// The directory of its modules.
pub fn modules() -> Result<PathBuf> {
    let list = find(&packages().join("lib/modules"), &|name| name == "modules.builtin");
    list.and_then(|list| Some(list.parent()?.to_owned())).with_context(missing)
}

/// An initial RAM disk that runs `init`, a script that begins with `#!/bin/busybox sh`. It has
/// busybox, and `network-up` to reach [`crate::HOST`].
pub fn initrd(init: &str) -> Result<Vec<u8>> {
    let mut tree = Tree::new();
    for name in ["bin", "dev", "modules", "proc", "sys"] {
        tree.directory(name)?;
    }
    tree.program("bin/busybox", fs::read(busybox()?)?)?;
    for (number, name) in NETWORK.into_iter().enumerate() {
        for end in ["ko", "ko.xz"] {
            let file = format!("{name}.{end}");
            if let Some(path) = find(&packages(), &|name| name == file) {
                tree.program(&format!("modules/{number}-{file}"), fs::read(path)?)?;
            }
        }
    }
    for (name, script) in [("lease", LEASE), ("network-up", NETWORK_UP)] {
        tree.program(&format!("bin/{name}"), script.as_bytes().to_vec())?;
    }
    tree.program("init", init.as_bytes().to_vec())?;
    Ok(tree.archive())
}

/// A static busybox.
pub fn busybox() -> Result<PathBuf> {
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| packages().join(place));
    places.into_iter().find(|place| place.is_file()).with_context(missing)
}

/// A file of the packages, by its name.
pub fn find_file(name: &str) -> Result<PathBuf> {
    find(&packages(), &|known| known == name).with_context(missing)
}

fn missing() -> String {
    format!(
        "no guest kernel and busybox in {}; run `make setup-test` or `make setup-demo`",
        packages().display()
    )
}

/// A file below `dir` with a name of this kind.
fn find(dir: &Path, is_it: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.into_iter().find_map(|path| {
        if path.is_symlink() {
            None
        } else if path.is_dir() {
            find(&path, is_it)
        } else {
            is_it(path.file_name()?.to_str()?).then_some(path)
        }
    })
}
