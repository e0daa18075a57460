//! What firmware of the UEFI kind remembers: what it can boot, and in which order it tries.
//!
//! Deciding is apart from writing: [`decide`] is a function of what is there and what is wanted.
//! Entries of others are never changed or removed; only what their order says of entries that are not
//! there is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::document::BootOrder;

/// Whose variables they are: those of the specification.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Kept over power cuts, and seen before and while a system runs.
const ATTRIBUTES: u32 = 7;
/// The firmware tries it.
const ACTIVE: u32 = 1;
/// What our entries are called.
pub const LABEL: &str = "hoist";
/// Largest variable that is read.
const MAX_VARIABLE: u64 = 64 * 1024;

/// A step on the way to something that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: u8,
    pub sub: u8,
    pub data: Vec<u8>,
}

const MEDIA: u8 = 4;
const HARD_DRIVE: u8 = 1;
const FILE_PATH: u8 = 4;
const MESSAGING: u8 = 3;
/// Of messages: MAC, IPv4, IPv6, URI.
const NETWORK: [u8; 4] = [11, 12, 13, 24];
const END: (u8, u8) = (0x7f, 0xff);

/// One thing that firmware can boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOption {
    pub attributes: u32,
    pub label: String,
    pub path: Vec<Node>,
    /// For what is booted.
    pub data: Vec<u8>,
}

impl LoadOption {
    pub fn encode(&self) -> Vec<u8> {
        let mut path = Vec::new();
        let end = Node { kind: END.0, sub: END.1, data: Vec::new() };
        for Node { kind, sub, data } in self.path.iter().chain([&end]) {
            let length = u16::try_from(data.len() + 4).expect("paths are short");
            path.extend([*kind, *sub]);
            path.extend(length.to_le_bytes());
            path.extend(data);
        }
        let mut bytes = self.attributes.to_le_bytes().to_vec();
        bytes.extend(u16::try_from(path.len()).expect("paths are short").to_le_bytes());
        bytes.extend(utf16(&self.label));
        bytes.extend(path);
        bytes.extend(&self.data);
        bytes
    }

    /// Firmware writes odd things: what makes no sense is nothing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let attributes = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let length = usize::from(u16::from_le_bytes(bytes.get(4..6)?.try_into().ok()?));
        let units = bytes.get(6..)?.chunks_exact(2);
        let units = units.map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        let label: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
        let start = 6 + 2 * (label.len() + 1);
        let mut rest = bytes.get(start..start.checked_add(length)?)?;
        let mut path = Vec::new();
        while let [kind, sub, low, high, ..] = *rest {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let data = rest.get(4..length)?.to_vec();
            rest = &rest[length..];
            if (kind, sub) == END {
                break;
            }
            path.push(Node { kind, sub, data });
        }
        let label = String::from_utf16_lossy(&label);
        let data = bytes.get(start + length..)?.to_vec();
        Some(Self { attributes, label, path, data })
    }

    pub fn is_network(&self) -> bool {
        self.path.iter().any(|node| node.kind == MESSAGING && NETWORK.contains(&node.sub))
    }

    /// The partition that it is on, if it is on one.
    pub fn partuuid(&self) -> Option<Uuid> {
        let is_drive = |node: &&Node| (node.kind, node.sub) == (MEDIA, HARD_DRIVE);
        let drive = self.path.iter().find(is_drive)?;
        Uuid::from_slice_le(drive.data.get(20..36)?).ok()
    }
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// An entry of ours: a file on a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub partuuid: Uuid,
    /// Of the partition in its table.
    pub number: u32,
    /// In sectors of the disk.
    pub start: u64,
    pub sectors: u64,
    /// With slashes.
    pub file: String,
    /// What it is started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

impl Entry {
    pub fn option(&self) -> LoadOption {
        let mut drive = self.number.to_le_bytes().to_vec();
        drive.extend(self.start.to_le_bytes());
        drive.extend(self.sectors.to_le_bytes());
        drive.extend(self.partuuid.to_bytes_le());
        // A GPT, and what was just written is a GUID.
        drive.extend([2, 2]);
        let path = vec![
            Node { kind: MEDIA, sub: HARD_DRIVE, data: drive },
            Node { kind: MEDIA, sub: FILE_PATH, data: utf16(&self.file.replace('/', "\\")) },
        ];
        let data = self.arguments.as_deref().map(utf16).unwrap_or_default();
        LoadOption { attributes: ACTIVE, label: LABEL.to_owned(), path, data }
    }
}

/// What firmware remembers of booting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    pub entries: BTreeMap<u16, Vec<u8>>,
    pub order: Vec<u16>,
}

/// What is to be done to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// This becomes that, unless it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<(u16, Entry)>,
    /// Ours, to partitions that are not there any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<u16>,
    #[serde(default)]
    pub before: Vec<u16>,
    pub order: Vec<u16>,
}

/// What has to change so that the entry is there, once, and tried when it shall be. Nothing, if it is
/// so. `is_there` tells which partitions the machine has.
pub fn decide(
    now: &Variables,
    wanted: &Entry,
    order: BootOrder,
    is_there: impl Fn(Uuid) -> bool,
) -> Option<Changes> {
    if order == BootOrder::Leave {
        return None;
    }
    let bytes = wanted.option().encode();
    let decoded: BTreeMap<u16, LoadOption> = now
        .entries
        .iter()
        .filter_map(|(number, bytes)| Some((*number, LoadOption::decode(bytes)?)))
        .collect();
    // Of an earlier installation, or of this one with other arguments.
    let is_old = |option: &LoadOption| {
        let old = |partuuid| partuuid == wanted.partuuid || !is_there(partuuid);
        option.label == LABEL && option.partuuid().is_some_and(old)
    };
    let old: BTreeSet<u16> =
        decoded.iter().filter(|(_, option)| is_old(option)).map(|(number, _)| *number).collect();
    let same = old.iter().find(|number| now.entries.get(number) == Some(&bytes)).copied();
    let free = || (0..=u16::MAX).find(|number| !now.entries.contains_key(number));
    let ours = same.or_else(|| old.first().copied()).or_else(free)?;
    let set = same.is_none().then(|| (ours, wanted.clone()));
    let remove: Vec<u16> = old.into_iter().filter(|number| *number != ours).collect();
    let mut seen = BTreeSet::from([ours]);
    let mut others: Vec<u16> = now
        .order
        .iter()
        .copied()
        .filter(|number| now.entries.contains_key(number) && !remove.contains(number))
        .filter(|number| seen.insert(*number))
        .collect();
    if order == BootOrder::NetworkFirst {
        let is_network = |number: &u16| decoded.get(number).is_some_and(LoadOption::is_network);
        let (first, rest): (Vec<u16>, Vec<u16>) = others.into_iter().partition(is_network);
        others = [first, vec![ours], rest].concat();
    } else {
        others.insert(0, ours);
    }
    let is_done = set.is_none() && remove.is_empty() && others == now.order;
    let before = now.order.clone();
    (!is_done).then_some(Changes { set, remove, before, order: others })
}

/// The directory that they are files of.
#[derive(Debug, Clone)]
pub struct Efivars(PathBuf);

/// Why they are not what they should be.
#[derive(Debug, thiserror::Error)]
#[error("the firmware's variable `{name}` cannot be {what}")]
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

    /// Nothing, where there is no such directory or it is not mounted.
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
        let (mut all, mut is_mounted) = (Variables::default(), false);
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
        // First come the attributes.
        Ok(bytes.split_off(bytes.len().min(4)))
    }

    /// The order comes when what it names is there, and before what it does not name is taken away.
    pub fn change(&self, changes: &Changes) -> Result<(), VariableError> {
        if let Some((number, entry)) = &changes.set {
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

    /// All of it in one call: each is a change of the variable.
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
mod tests;
