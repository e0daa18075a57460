//! The users of a disk that cannot be opened exclusively, as text for an operator: mounts, swap,
//! arrays and maps, and processes. Only reads `/proc` and `/sys`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs::{read_dir, read_link, read_to_string};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::probe::parse_mount;

/// Most users that are named.
const MAX: usize = 8;

/// The users of a disk and of its partitions, as far as they can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskUsers(Vec<String>);

impl Display for DiskUsers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.0.join(", "))
    }
}

/// Names by device number, `8:1`: the disk and its partitions.
type Devices = BTreeMap<String, String>;

pub(crate) fn of(path: &Path) -> DiskUsers {
    let devices = devices(path).unwrap_or_default();
    let mut users = BTreeSet::new();
    users.extend(holders(&devices));
    users.extend(swaps(&devices));
    // A new namespace begins with a copy of all mounts: each place is named once, ours first.
    let mut places = BTreeSet::from_iter(mounts(Path::new("/proc/self"), &devices));
    users.extend(places.iter().cloned());
    let mut namespaces = BTreeSet::from_iter(read_link("/proc/self/ns/mnt").ok());
    for process in processes() {
        let name = describe(&process);
        let is_open = opened(&process, &devices);
        users.extend(is_open.map(|device| format!("{name} has `{device}` open")));
        let Ok(namespace) = read_link(process.join("ns/mnt")) else { continue };
        if namespaces.insert(namespace) {
            let others = mounts(&process, &devices).into_iter();
            let new = others.filter(|place| places.insert(place.clone()));
            users.extend(new.map(|place| format!("{place}, as {name} sees it")));
        }
    }
    DiskUsers(users.into_iter().take(MAX).collect())
}

fn devices(path: &Path) -> Option<Devices> {
    let metadata =
        std::fs::metadata(path).ok().filter(|file| file.file_type().is_block_device())?;
    let dir = std::fs::canonicalize(format!("/sys/dev/block/{}", number(metadata.rdev()))).ok()?;
    let parts = entries(&dir).into_iter().filter(|part| part.join("partition").exists());
    let named = |dir: PathBuf| {
        let number = read_to_string(dir.join("dev")).ok()?;
        Some((number.trim().to_owned(), dir.file_name()?.to_string_lossy().into_owned()))
    };
    Some(parts.chain([dir.clone()]).filter_map(named).collect())
}

fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn holders(devices: &Devices) -> Vec<String> {
    let mut found = Vec::new();
    for device in devices.values() {
        for holder in entries(&Path::new("/sys/class/block").join(device).join("holders")) {
            let Some(kernel_name) = holder.file_name() else { continue };
            let map = read_to_string(holder.join("dm/name"));
            let map = map.map(|name| format!(" (`{}`)", name.trim())).unwrap_or_default();
            let kernel_name = kernel_name.to_string_lossy();
            found.push(format!("`{kernel_name}`{map} is assembled on `{device}`"));
        }
    }
    found
}

fn swaps(devices: &Devices) -> Vec<String> {
    let swaps = read_to_string("/proc/swaps").unwrap_or_default();
    let paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let devices = paths.filter_map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        metadata.file_type().is_block_device().then(|| devices.get(&number(metadata.rdev())))?
    });
    devices.map(|device| format!("`{device}` is swapped to")).collect()
}

fn processes() -> Vec<PathBuf> {
    let is_process = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    entries(Path::new("/proc")).into_iter().filter(is_process).collect()
}

fn describe(process: &Path) -> String {
    let id = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match read_to_string(process.join("comm")) {
        Ok(name) => format!("process {id} (`{}`)", name.trim()),
        Err(_) => format!("process {id}"),
    }
}

/// The first device that a process has open.
fn opened<'d>(process: &Path, devices: &'d Devices) -> Option<&'d String> {
    entries(&process.join("fd")).iter().find_map(|file| {
        let file = std::fs::metadata(file).ok()?;
        file.file_type().is_block_device().then(|| devices.get(&number(file.rdev())))?
    })
}

/// The mounts in the namespace of a process.
fn mounts(process: &Path, devices: &Devices) -> Vec<String> {
    let table = read_to_string(process.join("mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for mount in table.lines().filter_map(parse_mount) {
        // A file system on several devices has a device number of its own.
        let by_name = || {
            let source = mount.source.strip_prefix("/dev/")?;
            devices.values().find(|name| *name == source)
        };
        let Some(device) = devices.get(&mount.device).or_else(by_name) else { continue };
        found.push(format!("`{device}` is mounted at `{}`", mount.at));
    }
    found
}
