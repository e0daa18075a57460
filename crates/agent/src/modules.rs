//! Drivers of a small system that has no udev: those that the hardware asks for, from the directory
//! that `hoist agent image` has filled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A bus that brings other buses, that bring others; more rounds than any hardware needs.
const ROUNDS: usize = 8;

/// Directories below each other in `/sys/devices`.
const MAX_DEPTH: usize = 24;

/// The image's index of kernel modules.
#[derive(Debug, Default)]
struct Catalog {
    dir: PathBuf,
    /// Modules that must be loaded first, in that order.
    needs: BTreeMap<String, Vec<String>>,
    /// Patterns and the modules that they stand for.
    aliases: Vec<(String, String)>,
}

impl Catalog {
    fn here() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let dir = Path::new("/lib/modules").join(release);
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let needs = needs(&text("modules.dep"));
        let aliases = aliases(&text("modules.alias"));
        Self { dir, needs, aliases }
    }

    /// The modules that a name or the description of a device stands for.
    fn find(&self, wanted: &str) -> Vec<String> {
        let plain = wanted.replace('-', "_");
        if self.needs.contains_key(&plain) {
            return vec![plain];
        }
        let fits = self.aliases.iter().filter(|(pattern, _)| matches(pattern, wanted));
        fits.map(|(_, module)| module.clone()).collect()
    }

    fn load(&self, module: &str) -> io::Result<()> {
        for name in self.needs.get(module).into_iter().flatten().map(String::as_str).chain([module])
        {
            let file = File::open(self.dir.join(format!("{name}.ko")))?;
            match rustix::system::finit_module(&file, c"", 0) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Loads the drivers of all present hardware until no new device appears. Returns one message for
/// each driver that failed to load.
pub(crate) fn load_for_hardware() -> Vec<String> {
    let catalog = Catalog::here();
    let mut tried = BTreeSet::new();
    let mut failures = Vec::new();
    for _ in 0..ROUNDS {
        let mut asked = BTreeSet::new();
        collect(Path::new("/sys/devices"), MAX_DEPTH, &mut asked);
        let modules: BTreeSet<String> =
            asked.iter().flat_map(|modalias| catalog.find(modalias)).collect();
        let fresh: Vec<&String> = modules.difference(&tried).collect();
        if fresh.is_empty() {
            break;
        }
        for module in fresh {
            if let Err(error) = catalog.load(module) {
                failures.push(format!("cannot load driver `{module}`: {error}"));
            }
        }
        tried.extend(modules);
    }
    failures
}

/// Serves the kernel's call `/sbin/modprobe -q -- NAME`.
pub(crate) fn load_by_name(name: &str) -> io::Result<()> {
    let catalog = Catalog::here();
    let found = catalog.find(name);
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("kernel module `{name}` does not exist"),
        ));
    }
    found.iter().try_for_each(|module| catalog.load(module))
}

/// Collects the module alias of every device below a directory.
fn collect(dir: &Path, depth: usize, into: &mut BTreeSet<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        // Links lead to where we come by anyway.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            collect(&entry.path(), depth, into);
        } else if entry.file_name() == "modalias"
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            into.insert(text.trim().to_owned());
        }
    }
}

/// `virtio_net.ko: net_failover.ko failover.ko`, nearest first.
fn needs(text: &str) -> BTreeMap<String, Vec<String>> {
    let name = |file: &str| file.trim().trim_end_matches(".ko").to_owned();
    let line = |line: &str| {
        let (module, needs) = line.split_once(':')?;
        Some((name(module), needs.split_ascii_whitespace().rev().map(name).collect()))
    };
    text.lines().filter_map(line).collect()
}

/// `alias virtio:d00000001v* virtio_net`.
fn aliases(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (pattern, module) = line.strip_prefix("alias ")?.rsplit_once(' ')?;
        Some((pattern.to_owned(), module.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Whether a text matches a pattern of `*`, `?` and `[…]`.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    let text = text.as_bytes();
    let mut p = 0;
    let mut t = 0;
    // Where the last `*` was, and how much it stood for.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match one(&pattern[p..], text[t]) {
            Some(length) if length > 0 => (p, t) = (p + length, t + 1),
            Some(_) => {
                star = Some((p + 1, t));
                p += 1;
            }
            None => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, t) = (*after, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How much of the pattern this byte takes: nothing for `*`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'*' => Some(0),
        b'?' => Some(1),
        b'[' => {
            let end = pattern.iter().position(|byte| *byte == b']')?;
            let set = &pattern[1..end];
            let in_range = set.windows(3).any(|w| w[1] == b'-' && (w[0]..=w[2]).contains(&byte));
            (in_range || set.contains(&byte)).then_some(end + 1)
        }
        other => (*other == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_matched_to_its_driver() {
        let nvme = "pci:v*d*sv*sd*bc01sc08i02*";
        assert!(matches(nvme, "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02"));
        assert!(!matches(nvme, "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc06i01"));
        assert!(matches("virtio:d00000001v*", "virtio:d00000001v00001AF4"));
        assert!(matches("acpi*:PNP0C0[A-C]:*", "acpi:PNP0C0B:"));
        assert!(!matches("acpi*:PNP0C0[A-C]:*", "acpi:PNP0C0D:"));
        assert!(matches("a?c", "abc") && !matches("a?c", "ac") && matches("*", ""));
        assert!(!matches("a[b", "ab"));
    }

    #[test]
    fn module_index_of_an_image_is_parsed() {
        let catalog = Catalog {
            needs: needs("failover.ko:\nvirtio_net.ko: net_failover.ko failover.ko\n"),
            aliases: aliases("alias virtio:d00000001v* virtio_net\nalias fs-vfat vfat\n"),
            ..Catalog::default()
        };
        assert_eq!(catalog.needs["virtio_net"], ["failover", "net_failover"]);
        assert_eq!(catalog.find("virtio:d00000001v00001AF4"), ["virtio_net"]);
        assert_eq!(catalog.find("fs-vfat"), ["vfat"]);
        assert_eq!(catalog.find("virtio-net"), ["virtio_net"]);
        assert!(catalog.find("fs-nothing").is_empty());
    }
}
