//! Disks and their users.

use std::path::{Path, PathBuf};

use hoist_diagnostic::chain;
use hoist_provision::facts::{Bus, Busy, BusyReason, DiskFacts, Signature, TableFacts};
use hoist_provision::partition_table as table;

use super::path::by_path;
use super::{Failure, Machine, entries, name_of, number, text};
use crate::disk::OpenError;
use crate::{ReadIo, nvme, signature};

/// Prefixes of devices that are made of disks or of memory.
const DERIVED: [&str; 5] = ["dm-", "md", "ram", "zram", "drbd"];

/// Mount points that show that the running system uses a disk.
const SYSTEM: [&str; 5] = ["/", "/usr", "/boot", "/boot/efi", "/efi"];

/// Most levels of stacked devices.
const MAX_STACK: usize = 16;

impl Machine {
    pub(super) fn disks(&self) -> (Vec<DiskFacts>, Vec<Failure>) {
        let users = Users::of(self);
        let mut disks = Vec::new();
        let mut failures = Vec::new();
        for name in entries(&self.path("sys/block")) {
            let is_derived = DERIVED.iter().any(|prefix| name.starts_with(prefix));
            let sys = self.path("sys/block").join(&name);
            let is_hidden = number(&sys.join("hidden")) == Some(1);
            let size = number(&sys.join("size")).unwrap_or_default() * 512;
            if is_derived || is_hidden || size == 0 {
                continue;
            }
            let disk = self.disk(&name, &sys, size, &users);
            failures.extend(disk.unreadable.clone().map(|reason| Failure { disk: name, reason }));
            disks.push(disk);
        }
        (disks, failures)
    }

    fn disk(&self, name: &str, sys: &Path, size: u64, users: &Users) -> DiskFacts {
        let device = std::fs::canonicalize(sys.join("device")).ok();
        let place = std::fs::canonicalize(sys).unwrap_or_else(|_| sys.to_owned());
        let value = |below: &str| text(&sys.join(below));
        let is_set = |below: &str| number(&sys.join(below)) == Some(1);
        let sector = |below: &str| number(&sys.join(below)).and_then(|n| u32::try_from(n).ok());
        let logical_sector = sector("queue/logical_block_size").unwrap_or(512);
        let wwn = value("wwid").or_else(|| value("device/wwid"));
        let hctl = device.as_deref().and_then(name_of).filter(|name| is_hctl(name));
        let bus = bus(name, &place, hctl.is_some());
        let model = value("device/model").or_else(|| value("device/name"));
        let is_optical = name.starts_with("sr");
        let shows = model.as_deref().is_some_and(|model| model.to_lowercase().contains("virtual"));
        let users = users.below(sys, name);
        let content = if is_optical {
            Ok((None, Vec::new()))
        } else {
            self.content(name, sys, logical_sector)
        };
        let mut paths = by_path(name, &place, bus, hctl.as_deref()).into_iter();
        let by_path = paths.next();
        let mut links = self.links(name);
        let others = paths.map(|path| format!("by-path/{path}"));
        links.extend(others.filter(|path| !links.contains(path)).collect::<Vec<_>>());
        let unreadable = content.as_ref().err().map(ToString::to_string);
        let (table, signatures) = content.unwrap_or_default();
        DiskFacts {
            kernel_name: name.to_owned(),
            size,
            logical_sector,
            physical_sector: sector("queue/physical_block_size").unwrap_or(logical_sector),
            eui: wwn.clone().filter(|wwn| wwn.starts_with("eui.")),
            wwn,
            serial: serial(sys),
            model,
            by_path,
            links,
            hctl,
            rotational: is_set("queue/rotational"),
            can_zero: number(&sys.join("queue/write_zeroes_max_bytes"))
                .is_some_and(|most| most > 0),
            erase: if bus == Some(Bus::Nvme) {
                nvme::supported_commands(&self.device(name))
            } else {
                Vec::new()
            },
            bus,
            removable: is_set("removable"),
            read_only: is_set("ro"),
            is_boot_medium: users.is_system,
            // Hypervisors report real disks as virtual, too. A management controller attaches its
            // media by USB.
            is_virtual: is_optical || (bus == Some(Bus::Usb) && shows),
            multipath_maps: users.multipath_maps,
            busy: users.busy,
            table,
            signatures,
            unreadable,
        }
    }

    fn content(
        &self,
        name: &str,
        sys: &Path,
        sector: u32,
    ) -> Result<(Option<TableFacts>, Vec<Signature>), ContentError> {
        let io = ReadIo::open(&self.device(name), sector).map_err(ContentError::Open)?;
        let mut found = table::read(&io, sector).map_err(ContentError::Read)?.facts();
        for partition in found.iter_mut().flat_map(|table| &mut table.partitions) {
            let is_it = |known: &String| {
                let known = sys.join(known);
                number(&known.join("partition")) == Some(partition.number.into())
                    && number(&known.join("start")) == Some(partition.start / 512)
            };
            partition.kernel_name = entries(sys).into_iter().find(is_it);
        }
        Ok((found, signature::find(&io, sector).map_err(ContentError::Read)?))
    }

    /// The links of udev, if it runs.
    fn links(&self, name: &str) -> Vec<String> {
        let mut links = Vec::new();
        let all = self.path("dev/disk");
        for kind in entries(&all) {
            for link in entries(&all.join(&kind)) {
                let target = std::fs::read_link(all.join(&kind).join(&link)).ok();
                if target.as_deref().and_then(name_of).as_deref() == Some(name) {
                    links.push(format!("{kind}/{link}"));
                }
            }
        }
        links
    }
}

/// Why the content of a disk is unknown.
#[derive(Debug, thiserror::Error)]
enum ContentError {
    #[error("{}", chain(.0))]
    Open(OpenError),
    #[error("{0}")]
    Read(std::io::Error),
}

fn serial(sys: &Path) -> Option<String> {
    let plain = ["serial", "device/serial"].into_iter().find_map(|file| text(&sys.join(file)));
    plain.or_else(|| {
        // A SCSI VPD page: a header of four bytes, then the serial number.
        let page = std::fs::read(sys.join("device/vpd_pg80")).ok()?;
        let serial = String::from_utf8_lossy(page.get(4..)?).trim().to_owned();
        Some(serial).filter(|serial| !serial.is_empty())
    })
}

fn is_hctl(name: &str) -> bool {
    let parts: Vec<&str> = name.split(':').collect();
    parts.len() == 4 && parts.iter().all(|part| part.parse::<u64>().is_ok())
}

fn bus(name: &str, place: &Path, is_scsi: bool) -> Option<Bus> {
    let goes_through =
        |start: &str| place.iter().any(|part| part.to_string_lossy().starts_with(start));
    if name.starts_with("loop") {
        Some(Bus::Loop)
    } else if name.starts_with("nvme") {
        Some(Bus::Nvme)
    } else if name.starts_with("mmcblk") {
        Some(Bus::Mmc)
    } else if goes_through("vbd-") {
        Some(Bus::Xen)
    } else if goes_through("usb") {
        Some(Bus::Usb)
    } else if goes_through("ata") {
        Some(Bus::Ata)
    } else if goes_through("end_device-") {
        Some(Bus::Sas)
    } else if goes_through("virtio") {
        Some(Bus::Virtio)
    } else {
        is_scsi.then_some(Bus::Scsi)
    }
}

/// Mounts and swap, by device number or name.
struct Users {
    mounts: Vec<Mount>,
    swaps: Vec<String>,
    block: PathBuf,
}

pub(crate) struct Mount {
    pub(crate) device: String,
    pub(crate) source: String,
    pub(crate) at: String,
}

#[derive(Default)]
struct DiskUse {
    busy: Vec<Busy>,
    multipath_maps: Vec<String>,
    is_system: bool,
}

impl Users {
    fn of(machine: &Machine) -> Self {
        let mounts = std::fs::read_to_string(machine.path("proc/self/mountinfo"));
        let mounts = mounts.unwrap_or_default().lines().filter_map(parse_mount).collect();
        let swaps = std::fs::read_to_string(machine.path("proc/swaps")).unwrap_or_default();
        let swaps = swaps.lines().skip(1).filter_map(|line| {
            let path = unescape(line.split_whitespace().next()?);
            // A swap file is on a mounted file system, which is listed anyway.
            let is_device = path.starts_with("/dev/");
            is_device.then(|| name_of(Path::new(&path))).flatten()
        });
        Self { mounts, swaps: swaps.collect(), block: machine.path("sys/class/block") }
    }

    /// The users of a disk and its partitions.
    fn below(&self, sys: &Path, name: &str) -> DiskUse {
        let mut used = DiskUse::default();
        self.add_users(sys, name, &mut used);
        for partition in
            entries(sys).into_iter().filter(|name| sys.join(name).join("partition").exists())
        {
            self.add_users(&sys.join(&partition), &partition, &mut used);
        }
        used
    }

    fn add_users(&self, sys: &Path, name: &str, used: &mut DiskUse) {
        for reason in self.uses(sys, name) {
            used.is_system |=
                matches!(&reason, BusyReason::Mount(at) if SYSTEM.contains(&at.as_str()));
            used.busy.push(Busy { device: name.to_owned(), reason });
        }
        for holder in entries(&sys.join("holders")) {
            let map = self.block.join(&holder).join("dm");
            let is_multipath =
                text(&map.join("uuid")).is_some_and(|uuid| uuid.starts_with("mpath-"));
            if is_multipath {
                used.multipath_maps.push(text(&map.join("name")).unwrap_or_else(|| holder.clone()));
            }
        }
        // A user of a holder also uses the device.
        for holder in self.holders(sys) {
            let reasons = self.uses(&self.block.join(&holder), &holder);
            let own = std::iter::once(BusyReason::Holder(holder));
            for reason in own.chain(reasons) {
                used.is_system |=
                    matches!(&reason, BusyReason::Mount(at) if SYSTEM.contains(&at.as_str()));
                used.busy.push(Busy { device: name.to_owned(), reason });
            }
        }
    }

    fn uses(&self, sys: &Path, name: &str) -> Vec<BusyReason> {
        let mounts = self.mounts_of(sys, name).map(|mount| BusyReason::Mount(mount.at.clone()));
        let is_swap = self.swaps.iter().any(|swap| swap == name);
        mounts.chain(is_swap.then_some(BusyReason::Swap)).collect()
    }

    /// All holders of a device, the nearest first.
    fn holders(&self, sys: &Path) -> Vec<String> {
        let mut all = Vec::<String>::new();
        let mut dirs = vec![sys.to_owned()];
        for _ in 0..MAX_STACK {
            let holders = dirs.iter().flat_map(|dir| entries(&dir.join("holders")));
            let fresh: Vec<String> = holders.filter(|holder| !all.contains(holder)).collect();
            dirs = fresh.iter().map(|holder| self.block.join(holder)).collect();
            for holder in fresh {
                if !all.contains(&holder) {
                    all.push(holder);
                }
            }
        }
        all
    }

    fn mounts_of<'a>(&'a self, sys: &Path, name: &'a str) -> impl Iterator<Item = &'a Mount> {
        let number = text(&sys.join("dev"));
        // A file system on several devices has a device number of its own.
        self.mounts.iter().filter(move |mount| {
            number.as_ref() == Some(&mount.device)
                || mount.source.strip_prefix("/dev/").is_some_and(|source| source == name)
        })
    }
}

/// Parses a line of `mountinfo`: `36 35 98:0 / /mnt rw,noatime shared:1 - ext3 /dev/root rw`
pub(crate) fn parse_mount(line: &str) -> Option<Mount> {
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let device = before.next()?;
    let at = before.nth(1)?;
    let source = behind.split(' ').nth(1)?;
    Some(Mount { device: device.to_owned(), source: unescape(source), at: unescape(at) })
}

/// The kernel writes blanks as `\040`.
fn unescape(text: &str) -> String {
    let mut pieces = text.split('\\');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let code = piece.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&piece.as_bytes()[3..]);
            }
            None => bytes.extend([b"\\".as_slice(), piece.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
