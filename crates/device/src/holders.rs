//! Holders: the devices that the kernel assembled on top of other devices. These are MD arrays and
//! device-mapper maps (LVM volumes and opened LUKS containers). This module lists and stops them.
//! The data on the devices below is never changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::ioctl;

/// The kernel lists all block devices here.
const SYS: &str = "/sys/class/block";

/// Another process, such as udev, may still have a new or changed device open.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A device that is assembled from other devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub kernel_name: String,
    pub kind: Kind,
    /// Kernel names of the devices directly below this one.
    pub below: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Array,
    /// A device-mapper map. The UUID starts with the subsystem that owns the map.
    Map {
        name: String,
        uuid: String,
    },
    Other,
}

/// The reason why a stack of devices cannot be stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HolderError {
    #[error("cannot list the holders of `{name}`")]
    List { name: String, source: io::Error },
    #[error("`{name}` also uses `{other}`, which is not a disk of this run; nothing was stopped")]
    Shared { name: String, other: String },
    #[error("`{name}` is neither an array nor a map; stop it manually, nothing was stopped")]
    Unknown { name: String },
    #[error("cannot stop `{name}`")]
    Stop { name: String, source: io::Error },
}

/// All holders of these devices and of their partitions. Each holder comes before the devices below
/// it.
pub fn holders_of(devices: &[String]) -> Result<Vec<Holder>, HolderError> {
    holders_in(Path::new(SYS), devices)
}

fn holders_in(sys: &Path, devices: &[String]) -> Result<Vec<Holder>, HolderError> {
    let mut waiting: Vec<String> = devices.to_vec();
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(name) = waiting.pop() {
        let look = |source| HolderError::List { name: name.clone(), source };
        for holder in direct_holders(sys, &name).map_err(look)? {
            if names.insert(holder.clone()) {
                found.push(described(sys, &holder).map_err(look)?);
                waiting.push(holder);
            }
        }
    }
    Ok(topmost_first(found))
}

/// The direct holders of a device and of its partitions.
fn direct_holders(sys: &Path, name: &str) -> io::Result<Vec<String>> {
    let mut all = entries(&sys.join(name).join("holders"))?;
    for part in partitions(sys, name)? {
        all.extend(entries(&sys.join(part).join("holders"))?);
    }
    Ok(all)
}

fn partitions(sys: &Path, name: &str) -> io::Result<Vec<String>> {
    let mut names = entries(&sys.join(name))?;
    names.retain(|part| sys.join(name).join(part).join("partition").exists());
    Ok(names)
}

fn described(sys: &Path, name: &str) -> io::Result<Holder> {
    let dir = sys.join(name);
    let value = |below: &str| {
        let text = std::fs::read_to_string(dir.join(below)).ok()?;
        Some(text.trim_end_matches('\n').to_owned())
    };
    let kind = if dir.join("md").is_dir() {
        Kind::Array
    } else if let Some(name) = value("dm/name") {
        Kind::Map { name, uuid: value("dm/uuid").unwrap_or_default() }
    } else {
        Kind::Other
    };
    let mut below = entries(&dir.join("slaves"))?;
    // An array of firmware RAID and its container have the same disks.
    below.extend(value("md/metadata_version").as_deref().and_then(container));
    Ok(Holder { kernel_name: name.to_owned(), kind, below })
}

/// The container of an array of firmware RAID, from `external:/md127/0`, or `external:-md127/0` while
/// the array is read-only. A container has `external:imsm` or `external:ddf`.
fn container(version: &str) -> Option<String> {
    let member = version.strip_prefix("external:")?.strip_prefix(['/', '-'])?;
    Some(member.split_once('/')?.0.to_owned())
}

/// The names in a directory, in order. A missing directory has none.
fn entries(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

fn topmost_first(mut rest: Vec<Holder>) -> Vec<Holder> {
    rest.sort_by(|a, b| a.kernel_name.cmp(&b.kernel_name));
    let mut ordered = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let carries = |one: &Holder| {
            rest.iter().any(|other| other.below.iter().any(|below| is_of(below, &one.kernel_name)))
        };
        let top = rest.iter().position(|one| !carries(one)).unwrap_or(0);
        ordered.push(rest.remove(top));
    }
    ordered
}

/// Whether `name` is `device` or one of its partitions.
fn is_of(name: &str, device: &str) -> bool {
    let number = name.strip_prefix(device).map(|rest| rest.strip_prefix('p').unwrap_or(rest));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        && (name == device || name[device.len()..].starts_with('p') || !ends_in_digit(device))
}

fn ends_in_digit(name: &str) -> bool {
    name.ends_with(|last: char| last.is_ascii_digit())
}

/// The first holder that also uses a device outside `devices`. Such a holder must not be stopped.
pub fn reaches_out(found: &[Holder], devices: &[String]) -> Option<HolderError> {
    let ours: Vec<&String> =
        devices.iter().chain(found.iter().map(|one| &one.kernel_name)).collect();
    found.iter().find_map(|one| {
        let other =
            one.below.iter().find(|below| !ours.iter().any(|device| is_of(below, device)))?;
        Some(HolderError::Shared { name: one.kernel_name.clone(), other: other.clone() })
    })
}

/// Stops all holders of these devices, from the top down. Every device below a holder must be in
/// `bound`.
pub fn stop_all(devices: &[String], bound: &[String]) -> Result<(), HolderError> {
    stop_found(&holders_of(devices)?, bound, stop)
}

/// Stops all holders or none. Holders that cannot be stopped are detected before the first one is
/// stopped.
fn stop_found(
    found: &[Holder],
    bound: &[String],
    stop: impl FnMut(&Holder) -> Result<(), HolderError>,
) -> Result<(), HolderError> {
    if let Some(error) = reaches_out(found, bound) {
        return Err(error);
    }
    if let Some(one) = found.iter().find(|one| one.kind == Kind::Other) {
        return Err(HolderError::Unknown { name: one.kernel_name.clone() });
    }
    found.iter().try_for_each(stop)
}

fn stop(one: &Holder) -> Result<(), HolderError> {
    let name = &one.kernel_name;
    for left in (0..TRIES).rev() {
        let stopped = match &one.kind {
            Kind::Array => {
                File::open(Path::new("/dev").join(name)).and_then(|file| ioctl::stop_array(&file))
            }
            Kind::Map { name, .. } => ioctl::remove_map(name),
            Kind::Other => return Err(HolderError::Unknown { name: name.clone() }),
        };
        match stopped {
            Ok(()) => break,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && left > 0 => {
                std::thread::sleep(PAUSE);
            }
            Err(source) => return Err(HolderError::Stop { name: name.clone(), source }),
        }
    }
    if let Kind::Map { name, .. } = &one.kind {
        forget(name);
    }
    Ok(())
}

/// Removes the device nodes of a map. Without udev, the program that created the map also created
/// its nodes, and no other program removes them.
fn forget(map: &str) {
    let node = Path::new("/dev/mapper").join(map);
    let is_node = std::fs::symlink_metadata(&node).is_ok_and(|it| it.file_type().is_block_device());
    if !is_node {
        return;
    }
    let _ = std::fs::remove_file(&node);
    if let Some((group, volume)) = group_and_volume(map) {
        let dir = Path::new("/dev").join(group);
        let link = dir.join(volume);
        if std::fs::read_link(&link).is_ok_and(|target| target == node) {
            let _ = std::fs::remove_file(link);
            // Removes the directory of the group after its last node.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn group_and_volume(map: &str) -> Option<(String, String)> {
    let bytes = map.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'-', Some(b'-')) => at += 2,
            (b'-', _) => {
                let plain = |text: &str| text.replace("--", "-");
                return Some((plain(&map[..at]), plain(&map[at + 1..])));
            }
            _ => at += 1,
        }
    }
    None
}

/// The device node of a kernel name.
pub fn node(kernel_name: &str) -> PathBuf {
    Path::new("/dev").join(kernel_name.replace('!', "/"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    use hoist_provision::steps::stack::map_of;

    use super::*;

    /// A fake `/sys/class/block` with these devices and the devices below each.
    fn sys(devices: &[(&str, &[&str])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, below) in devices {
            let own = dir.path().join(name);
            fs_err::create_dir_all(own.join("holders")).expect("made");
            fs_err::create_dir_all(own.join("slaves")).expect("made");
            if name.starts_with("md") {
                fs_err::create_dir_all(own.join("md")).expect("made");
            } else if name.starts_with("dm-") {
                fs_err::create_dir_all(own.join("dm")).expect("made");
                fs_err::write(own.join("dm/name"), format!("map-{name}\n")).expect("written");
                fs_err::write(own.join("dm/uuid"), "LVM-x\n").expect("written");
            }
            for below in *below {
                symlink("x", own.join("slaves").join(below)).expect("linked");
                symlink("x", dir.path().join(below).join("holders").join(name)).expect("linked");
            }
        }
        dir
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn holders_come_top_first_and_once() {
        let sys = sys(&[
            ("sda2", &[]),
            ("sdb2", &[]),
            ("md127", &["sda2", "sdb2"]),
            ("dm-0", &["md127"]),
            ("dm-1", &["md127"]),
            ("dm-2", &["dm-0"]),
        ]);
        let legs = owned(&["sda2", "sdb2"]);
        let found = holders_in(sys.path(), &legs).expect("it can be read");
        let names: Vec<_> = found.iter().map(|one| one.kernel_name.as_str()).collect();
        assert_eq!(names, ["dm-1", "dm-2", "dm-0", "md127"]);
        let map = Kind::Map { name: "map-dm-1".to_owned(), uuid: "LVM-x".to_owned() };
        assert_eq!((&found[0].kind, &found[3].kind), (&map, &Kind::Array));
        assert!(reaches_out(&found, &legs).is_none());
        // The other leg is not a disk of this run.
        let found = holders_in(sys.path(), &legs[..1]).expect("it can be read");
        let said = reaches_out(&found, &legs[..1]).expect("it does").to_string();
        assert!(said.starts_with("`md127` also uses `sdb2`"), "{said}");
    }

    #[test]
    fn array_of_firmware_raid_comes_before_its_container() {
        let disks: &[&str] = &["sda", "sdb"];
        let sys = sys(&[("sda", &[]), ("sdb", &[]), ("md0", disks), ("md126", disks)]);
        let devices = owned(disks);
        for member in ["external:/md0/0", "external:-md0/0"] {
            let write = |name: &str, version: &str| {
                let file = sys.path().join(name).join("md/metadata_version");
                fs_err::write(file, format!("{version}\n")).expect("written");
            };
            write("md0", "external:imsm");
            write("md126", member);
            let found = holders_in(sys.path(), &devices).expect("it can be read");
            let names: Vec<_> = found.iter().map(|one| one.kernel_name.as_str()).collect();
            assert_eq!(names, ["md126", "md0"], "{member}");
            assert!(reaches_out(&found, &devices).is_none());
        }
        for version in ["1.2", "external:imsm", "external:", "external:/md0"] {
            assert_eq!(container(version), None);
        }
    }

    #[test]
    fn holder_that_cannot_be_stopped_stops_nothing() {
        let sys = sys(&[("sda2", &[]), ("bcache0", &["sda2"]), ("dm-0", &["bcache0"])]);
        let legs = owned(&["sda2"]);
        let found = holders_in(sys.path(), &legs).expect("it can be read");
        let mut stopped = Vec::new();
        let ended = stop_found(&found, &legs, |one| {
            stopped.push(one.kernel_name.clone());
            Ok(())
        });
        assert_eq!(stopped, [""; 0]);
        let said = ended.expect_err("it is no map").to_string();
        assert!(said.contains("`bcache0`") && said.contains("nothing was stopped"), "{said}");
    }

    proptest! {
        /// A holder must be stopped before the devices below it.
        #[test]
        fn holder_order_is_topological(links in collection::vec((1_usize..12, 0_usize..12), 0..40)) {
            let name = |number: usize| format!("dm-{number}");
            let one = |number: usize| Holder {
                kernel_name: name(number),
                kind: Kind::Other,
                // Links go only to smaller numbers, so that there are no cycles.
                below: links
                    .iter()
                    .filter(|(top, below)| *top == number && below < top)
                    .map(|(_, below)| name(*below))
                    .collect(),
            };
            let ordered = topmost_first((0..12).map(one).collect());
            prop_assert_eq!(ordered.len(), 12);
            for (at, one) in ordered.iter().enumerate() {
                let later = &ordered[at..];
                prop_assert!(!later.iter().any(|above| above.below.contains(&one.kernel_name)));
            }
        }

        #[test]
        fn group_and_volume_are_parsed_from_any_map_name(
            group in "[a-z0-9._+][a-z0-9._+-]{0,8}", volume in "[a-z0-9._+][a-z0-9._+-]{0,8}",
        ) {
            let map = map_of(&group, &volume);
            prop_assert_eq!(group_and_volume(&map), Some((group, volume)));
        }
    }

    #[test]
    fn partition_names_are_matched_to_their_disk() {
        assert!(is_of("sda2", "sda") && is_of("nvme0n1p2", "nvme0n1") && is_of("md127", "md127"));
        assert!(is_of("md127p1", "md127") && !is_of("md1", "md127") && !is_of("sdaa2", "sda"));
        assert!(!is_of("dm-10", "dm-1") && !is_of("nvme0n10", "nvme0n1"));
    }

    #[test]
    fn map_names_double_inner_hyphens() {
        assert_eq!(map_of("data", "pg-x"), "data-pg--x");
        assert_eq!(group_and_volume("hoist"), None);
    }
}
