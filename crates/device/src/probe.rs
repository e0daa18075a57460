//! Hardware of the running machine, read from `/sys`, `/proc` and the devices. udev is never used:
//! an initramfs may have none, and elsewhere its database may be outdated.

mod disks;
mod path;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hoist_provision::facts::{CpuFacts, DmiFacts, Facts, Firmware, NicFacts};

use super::efivars::Efivars;

pub(crate) use disks::parse_mount;

/// Bytes of a value below `/sys`; longer values are truncated.
const MAX_VALUE: usize = 4096;

/// A machine whose files are below a directory; `/` for the running machine.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

/// The facts of a machine, and the disks that could not be probed.
#[derive(Debug, Default)]
pub struct ProbeResult {
    /// Includes disks that could not be read, so that no other disk is bound in their place. They
    /// are never written.
    pub facts: Facts,
    pub failures: Vec<Failure>,
}

/// A disk that could not be probed.
#[derive(Debug, thiserror::Error)]
#[error("disk `{disk}` cannot be probed and is not used: {reason}")]
pub struct Failure {
    pub disk: String,
    pub reason: String,
}

impl Machine {
    pub fn here() -> Self {
        Self::at(Path::new("/"))
    }

    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn probe(&self) -> ProbeResult {
        let (disks, failures) = self.disks();
        let facts = Facts {
            firmware: self.firmware(),
            disks,
            nics: self.nics(),
            cpu: self.cpu(),
            memory: self.memory(),
            dmi: self.dmi(),
        };
        ProbeResult { facts, failures }
    }

    /// The device node of a disk.
    pub fn device(&self, kernel_name: &str) -> PathBuf {
        // A `!` below /sys is a directory below /dev.
        self.root.join("dev").join(kernel_name.replace('!', "/"))
    }

    /// The firmware variables, on UEFI machines.
    pub fn efivars(&self) -> Efivars {
        Efivars::at(&self.path("sys/firmware/efi/efivars"))
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn text(&self, below: &str) -> Option<String> {
        text(&self.path(below))
    }

    fn firmware(&self) -> Firmware {
        if self.path("sys/firmware/efi").exists() { Firmware::Uefi } else { Firmware::Bios }
    }

    fn memory(&self) -> u64 {
        let info = self.text("proc/meminfo").unwrap_or_default();
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    fn cpu(&self) -> CpuFacts {
        let info = std::fs::read_to_string(self.path("proc/cpuinfo")).unwrap_or_default();
        let values = |key: &'static str| {
            info.lines().filter_map(move |line| {
                let (found, value) = line.split_once(':')?;
                (found.trim() == key).then(|| value.trim())
            })
        };
        let sockets: BTreeSet<&str> = values("physical id").collect();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        CpuFacts {
            arch: rustix::system::uname().machine().to_string_lossy().into_owned(),
            model: values("model name").next().unwrap_or_default().to_owned(),
            sockets: count(sockets.len().max(1)),
            threads: count(values("processor").count()),
        }
    }

    fn dmi(&self) -> DmiFacts {
        let value = |name: &str| self.text(&format!("sys/class/dmi/id/{name}"));
        DmiFacts {
            vendor: value("sys_vendor"),
            product: value("product_name"),
            serial: value("product_serial"),
            uuid: value("product_uuid").map(|uuid| uuid.to_lowercase()),
            bios_version: value("bios_version"),
        }
    }

    /// Network interfaces with hardware.
    fn nics(&self) -> Vec<NicFacts> {
        let names = entries(&self.path("sys/class/net"));
        names.iter().filter_map(|name| self.nic(name)).collect()
    }

    fn nic(&self, name: &str) -> Option<NicFacts> {
        let value = |file: &str| self.text(&format!("sys/class/net/{name}/{file}"));
        let device = std::fs::canonicalize(self.path(&format!("sys/class/net/{name}/device")));
        let device = device.ok()?;
        let driver = std::fs::canonicalize(device.join("driver")).ok();
        Some(NicFacts {
            name: name.to_owned(),
            mac: value("address")?.to_lowercase(),
            has_carrier: value("carrier").as_deref() == Some("1"),
            // An interface without a link reports -1.
            speed: value("speed").and_then(|speed| speed.parse().ok()),
            driver: driver.as_deref().and_then(name_of),
            path: pci_address(&device),
        })
    }
}

/// The trimmed contents of a file; `None` if it is empty.
fn text(path: &Path) -> Option<String> {
    let mut bytes = std::fs::read(path).ok()?;
    bytes.truncate(MAX_VALUE);
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
        .filter(|text| !text.is_empty())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// The names in a directory, in order.
fn entries(path: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let names =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The last PCI address in a path, such as `0000:05:00.0`.
fn pci_address(path: &Path) -> Option<String> {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.into_iter().rev().find(|part| is_pci_address(part)).map(std::borrow::Cow::into_owned)
}

fn is_pci_address(text: &str) -> bool {
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((place, function)) = text.rsplit_once('.') else { return false };
    let parts: Vec<&str> = place.split(':').collect();
    matches!(parts[..], [domain, bus, device] if is_hex(domain, 4) && is_hex(bus, 2) && is_hex(device, 2))
        && is_hex(function, 1)
}
