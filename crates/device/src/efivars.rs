//! Reading and writing the variables of UEFI firmware, through the files of efivarfs.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hoist_provision::boot_entries::{Changes, Variables};

/// Vendor GUID of the global variables of the UEFI specification.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Non-volatile, and accessible to boot services and at run time.
const ATTRIBUTES: u32 = 7;
/// Largest variable that is read, in bytes.
const MAX_VARIABLE: u64 = 64 * 1024;

/// The directory of efivarfs.
#[derive(Debug, Clone)]
pub struct Efivars(PathBuf);

/// A firmware variable could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("firmware variable `{name}` cannot be {what}")]
pub struct VariableError {
    name: String,
    what: &'static str,
    source: io::Error,
}

impl Efivars {
    pub fn at(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}-{GLOBAL}"))
    }

    /// `None` if the directory is missing or nothing is mounted there.
    pub fn read(&self) -> Result<Option<Variables>, VariableError> {
        let failed = |name: &str| {
            let name = name.to_owned();
            move |source| VariableError { name, what: "read", source }
        };
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("")(error)),
        };
        let mut all = Variables::default();
        let mut is_mounted = false;
        for entry in entries {
            let name = entry.map_err(failed(""))?.file_name().to_string_lossy().into_owned();
            is_mounted = true;
            let Some(name) = name.strip_suffix(GLOBAL).and_then(|name| name.strip_suffix('-'))
            else {
                continue;
            };
            if name == "BootOrder" {
                let bytes = self.value(name).map_err(failed(name))?;
                let order = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
                all.order = order.collect();
            } else if let Some(number) = entry_number(name) {
                all.entries.insert(number, self.value(name).map_err(failed(name))?);
            }
        }
        Ok(is_mounted.then_some(all))
    }

    fn value(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(self.file(name))?;
        file.take(MAX_VARIABLE).read_to_end(&mut bytes)?;
        // The first four bytes are the attributes.
        Ok(bytes.split_off(bytes.len().min(4)))
    }

    /// The order must be written after the entries it names and before other entries are removed.
    pub fn change(&self, changes: &Changes) -> Result<(), VariableError> {
        for (number, entry) in changes.entries() {
            self.put(&entry_name(*number), &entry.option().encode())?;
        }
        let order: Vec<u8> = changes.order.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.put("BootOrder", &order)?;
        for number in &changes.remove {
            let name = entry_name(*number);
            let removed = std::fs::remove_file(self.file(&name));
            removed.map_err(|source| VariableError { name, what: "removed", source })?;
        }
        Ok(())
    }

    /// Writes a variable with a single call, because every call replaces the whole variable.
    fn put(&self, name: &str, value: &[u8]) -> Result<(), VariableError> {
        let bytes = [&ATTRIBUTES.to_le_bytes(), value].concat();
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(self.file(name));
        let written = file.and_then(|mut file| file.write_all(&bytes));
        written.map_err(|source| VariableError { name: name.to_owned(), what: "written", source })
    }
}

fn entry_name(number: u16) -> String {
    format!("Boot{number:04X}")
}

fn entry_number(name: &str) -> Option<u16> {
    let digits = name.strip_prefix("Boot").filter(|digits| digits.len() == 4)?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use hoist_provision::boot_entries::{DevicePathNode, Entry, LoadOption, decide};
    use hoist_provision::document::BootOrder;
    use uuid::Uuid;

    use super::*;

    const HERE: Uuid = Uuid::from_u128(0x1111);
    const GONE: Uuid = Uuid::from_u128(0x2222);

    fn entry(partuuid: Uuid) -> Entry {
        let file = "/EFI/BOOT/BOOTX64.EFI".to_owned();
        Entry { partuuid, number: 2, start: 2048, sectors: 131_072, file, arguments: None }
    }

    fn network() -> Vec<u8> {
        let mac = DevicePathNode { kind: 3, sub: 11, data: vec![0; 33] };
        LoadOption { attributes: 1, label: "PXE".to_owned(), path: vec![mac], data: vec![] }
            .encode()
    }

    /// The variables after the changes.
    fn applied(now: &Variables, changes: &Changes) -> Variables {
        let mut after = now.clone();
        for (number, entry) in changes.entries() {
            after.entries.insert(*number, entry.option().encode());
        }
        changes.remove.iter().for_each(|number| drop(after.entries.remove(number)));
        after.order.clone_from(&changes.order);
        after
    }

    #[test]
    fn firmware_variables_round_trip_with_attributes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let vars = Efivars::at(dir.path());
        assert_eq!(vars.read().expect("it can be read"), None, "nothing is mounted there");
        assert_eq!(Efivars::at(&dir.path().join("no")).read().expect("it can be read"), None);
        let put = |name: &str, bytes: &[u8]| {
            let bytes = [&[7, 0, 0, 0], bytes].concat();
            fs_err::write(dir.path().join(format!("{name}-{GLOBAL}")), bytes)
                .expect("it is written");
        };
        put("BootOrder", &[1, 0]);
        put("Boot0001", &network());
        put("Boot0A00", &entry(GONE).option().encode());
        put("BootCurrent", &[1, 0]);
        put("BootNext", &[1, 0]);
        put("Boot00zz", b"?");
        let now = vars.read().expect("it can be read").expect("there are some");
        assert_eq!(now.order, [1]);
        assert_eq!(now.entries.keys().copied().collect::<Vec<_>>(), [1, 0xA00]);
        let mut changes = decide(&now, &entry(HERE), BootOrder::NetworkFirst, |one| one == HERE)
            .expect("changes");
        assert_eq!(changes.order, [1, 0xA00]);
        changes.remove = vec![1];
        vars.change(&changes).expect("it is written");
        assert_eq!(vars.read().expect("it can be read"), Some(applied(&now, &changes)));
        let wrong =
            vars.change(&Changes { remove: vec![0xBEEF], ..changes }).expect_err("no such one");
        assert!(wrong.to_string().contains("`BootBEEF`"), "{wrong}");
    }
}
