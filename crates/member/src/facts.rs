//! Hardware and host, as far as the controller and the checks before a join want them.
//!
//! A value that the kernel does not tell is 0: the controller then gives the node a role without
//! that need.

use std::path::{Path, PathBuf};

use hoist_api::cluster::JoinFacts;
use hoist_cluster::resources::Resources;
use jiff::Timestamp;

const GIB: u64 = 1 << 30;
/// PCI classes of accelerators, without the programming interface: 3D controllers and processing
/// accelerators.
const ACCELERATORS: [&str; 2] = ["0x0302", "0x1200"];

/// The file systems to read; tests have directories of their own.
#[derive(Debug, Clone)]
pub struct FactSource {
    proc: PathBuf,
    sys: PathBuf,
}

impl Default for FactSource {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

/// Free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    pub total: u64,
    pub free: u64,
    /// `None` without a limit.
    pub free_inodes: Option<u64>,
}

/// The space of the file system of a path, or of the directory in which the path will be made.
pub fn disk_space(path: &Path) -> std::io::Result<DiskSpace> {
    let path = std::path::absolute(path)?;
    let present = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&path);
    let space = rustix::fs::statvfs(present)?;
    let free_inodes = (space.f_files > 0).then_some(space.f_favail);
    Ok(DiskSpace {
        total: space.f_blocks.saturating_mul(space.f_frsize),
        free: space.f_bavail.saturating_mul(space.f_frsize),
        free_inodes,
    })
}

impl FactSource {
    /// `data` is a path on the disk that may hold data of the cluster.
    pub fn resources(&self, data: &Path) -> Resources {
        Resources {
            cores: self.cores(),
            memory_gib: self.memory_bytes() / GIB,
            disk_gib: disk_space(data).map_or(0, |space| space.total / GIB),
            network_mbps: self.network_mbps(),
            gpus: self.gpus(),
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        let text = self.text(&self.proc.join("meminfo"));
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kibibytes =
            total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
        kibibytes.map_or(0, |kibibytes: u64| kibibytes * 1024)
    }

    pub fn host_name(&self) -> String {
        self.text(&self.proc.join("sys/kernel/hostname")).trim().to_owned()
    }

    /// As the request to join has them.
    pub fn join_facts(&self, data: &Path, preferred: Option<&str>, now: Timestamp) -> JoinFacts {
        JoinFacts {
            hostname: self.host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            resources: self.resources(data),
            preferred: preferred.map(str::to_owned),
            now,
            installed_as: None,
        }
    }

    fn cores(&self) -> u64 {
        let online = self.text(&self.sys.join("devices/system/cpu/online"));
        online.trim().split(',').filter_map(range_size).sum()
    }

    /// The fastest link of a real device.
    fn network_mbps(&self) -> u64 {
        let speed = |dir: PathBuf| {
            dir.join("device").exists().then(|| self.text(&dir.join("speed")))?.trim().parse().ok()
        };
        self.entries("class/net").into_iter().filter_map(speed).max().unwrap_or(0)
    }

    fn gpus(&self) -> u64 {
        let is_accelerator = |dir: &PathBuf| {
            let class = self.text(&dir.join("class"));
            ACCELERATORS.iter().any(|accelerator| class.starts_with(accelerator))
        };
        self.entries("bus/pci/devices").iter().filter(|dir| is_accelerator(dir)).count() as u64
    }

    fn entries(&self, below: &str) -> Vec<PathBuf> {
        let entries = fs_err::read_dir(self.sys.join(below)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    }

    #[expect(clippy::unused_self, reason = "reads only below the directories of this source")]
    fn text(&self, path: &Path) -> String {
        fs_err::read_to_string(path).unwrap_or_default()
    }
}

/// The size of `3` or `0-7`.
fn range_size(range: &str) -> Option<u64> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let first: u64 = first.parse().ok()?;
    let last: u64 = last.parse().ok()?;
    Some(last.checked_sub(first)? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let source = FactSource { proc: dir.path().join("proc"), sys: dir.path().join("sys") };
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        write("proc/sys/kernel/hostname", "web-1\n");
        write("sys/devices/system/cpu/online", "0-3,6\n");
        write("sys/class/net/lo/speed", "100000\n");
        write("sys/class/net/eth0/speed", "10000\n");
        write("sys/class/net/eth0/device/vendor", "x");
        write("sys/class/net/eth1/speed", "-1\n");
        write("sys/class/net/eth1/device/vendor", "x");
        write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        write("sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n");
        let facts = source.join_facts(dir.path(), Some("edge"), Timestamp::UNIX_EPOCH);
        let resources = facts.resources;
        assert_eq!((resources.cores, resources.memory_gib), (5, 16));
        assert_eq!((resources.network_mbps, resources.gpus), (10_000, 1));
        assert_eq!((facts.hostname.as_str(), facts.preferred.as_deref()), ("web-1", Some("edge")));
    }

    #[test]
    fn missing_directory_has_the_space_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let total = |path: &Path| disk_space(path).unwrap().total;
        assert_eq!(total(&dir.path().join("a/b")), total(dir.path()));
        assert!(disk_space(Path::new("not-made-yet")).unwrap().total > 0);
    }

    #[test]
    fn missing_facts_are_zero() {
        let nothing = PathBuf::from("/nonexistent");
        let source = FactSource { proc: nothing.clone(), sys: nothing.clone() };
        let resources = Resources { disk_gib: 0, ..source.resources(&nothing) };
        assert_eq!(resources, Resources::default());
        assert_eq!(source.host_name(), "");
        assert!(FactSource::default().resources(Path::new("/")).cores > 0);
    }
}
