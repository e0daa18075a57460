//! UEFI boot variables: the boot entries and their order.
//!
//! [`decide`] is a function of the current variables and the desired entry; it writes nothing.
//! Foreign entries are never changed or removed; only references to missing entries are left out of
//! the order.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::document::BootOrder;

/// The firmware tries it.
const ACTIVE: u32 = 1;
/// The description of hoist's entries.
pub const LABEL: &str = "hoist";

/// A node of a device path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePathNode {
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

/// One boot entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOption {
    pub attributes: u32,
    pub label: String,
    pub path: Vec<DevicePathNode>,
    /// Optional data for the booted program.
    pub data: Vec<u8>,
}

impl LoadOption {
    pub fn encode(&self) -> Vec<u8> {
        let mut path = Vec::new();
        let end = DevicePathNode { kind: END.0, sub: END.1, data: Vec::new() };
        for DevicePathNode { kind, sub, data } in self.path.iter().chain([&end]) {
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

    /// `None` for entries that cannot be parsed: firmware writes invalid ones too.
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
            path.push(DevicePathNode { kind, sub, data });
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
        let is_drive = |node: &&DevicePathNode| (node.kind, node.sub) == (MEDIA, HARD_DRIVE);
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
    /// Arguments of the booted program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

impl Entry {
    pub fn option(&self) -> LoadOption {
        let mut drive = self.number.to_le_bytes().to_vec();
        drive.extend(self.start.to_le_bytes());
        drive.extend(self.sectors.to_le_bytes());
        drive.extend(self.partuuid.to_bytes_le());
        // The partition format is GPT, and the signature is a GUID.
        drive.extend([2, 2]);
        let path = vec![
            DevicePathNode { kind: MEDIA, sub: HARD_DRIVE, data: drive },
            DevicePathNode {
                kind: MEDIA,
                sub: FILE_PATH,
                data: utf16(&self.file.replace('/', "\\")),
            },
        ];
        let data = self.arguments.as_deref().map(utf16).unwrap_or_default();
        LoadOption { attributes: ACTIVE, label: LABEL.to_owned(), path, data }
    }
}

/// The boot variables of the firmware.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    pub entries: BTreeMap<u16, Vec<u8>>,
    pub order: Vec<u16>,
}

/// Changes of the boot variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// The entry to write under this number, unless it is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<(u16, Entry)>,
    /// The entries of further boot volumes, which start the same system when the first is lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_copies: Vec<(u16, Entry)>,
    /// Entries of hoist whose partitions do not exist any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<u16>,
    #[serde(default)]
    pub before: Vec<u16>,
    pub order: Vec<u16>,
}

impl Changes {
    /// All entries to write, with their numbers.
    pub fn entries(&self) -> impl Iterator<Item = &(u16, Entry)> {
        self.set.iter().chain(&self.set_copies)
    }
}

/// As [`decide_all`], for one entry.
pub fn decide(
    now: &Variables,
    wanted: &Entry,
    order: BootOrder,
    is_there: impl Fn(Uuid) -> bool,
) -> Option<Changes> {
    decide_all(now, std::slice::from_ref(wanted), order, is_there)
}

/// The changes that make each entry exist once, at their place in the order. `None` if nothing has
/// to change. `is_there` tells which partitions the machine has.
pub fn decide_all(
    now: &Variables,
    wanted: &[Entry],
    order: BootOrder,
    is_there: impl Fn(Uuid) -> bool,
) -> Option<Changes> {
    if order == BootOrder::Leave || wanted.is_empty() {
        return None;
    }
    let decoded: BTreeMap<u16, LoadOption> = now
        .entries
        .iter()
        .filter_map(|(number, bytes)| Some((*number, LoadOption::decode(bytes)?)))
        .collect();
    // Of an earlier installation, or of this one with other arguments.
    let is_old = |option: &LoadOption| {
        let is_wanted = |partuuid| wanted.iter().any(|entry| entry.partuuid == partuuid);
        let old = |partuuid| is_wanted(partuuid) || !is_there(partuuid);
        option.label == LABEL && option.partuuid().is_some_and(old)
    };
    let old: BTreeSet<u16> =
        decoded.iter().filter(|(_, option)| is_old(option)).map(|(number, _)| *number).collect();
    let (ours, mut set) = numbers(now, wanted, &old)?;
    let mut seen: BTreeSet<u16> = ours.iter().copied().collect();
    let remove: Vec<u16> = old.into_iter().filter(|number| !seen.contains(number)).collect();
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
        others = [first, ours, rest].concat();
    } else {
        others = [ours, others].concat();
    }
    let is_done = set.is_empty() && remove.is_empty() && others == now.order;
    let before = now.order.clone();
    let first = (!set.is_empty()).then(|| set.remove(0));
    let changes = Changes { set: first, set_copies: set, remove, before, order: others };
    (!is_done).then_some(changes)
}

/// Entries with the numbers of their variables.
type NumberedEntries = Vec<(u16, Entry)>;

/// The number of each entry, and the entries to write: an entry keeps its number, and takes that of
/// an old one before a free one.
fn numbers(
    now: &Variables,
    wanted: &[Entry],
    old: &BTreeSet<u16>,
) -> Option<(Vec<u16>, NumberedEntries)> {
    let same = |entry: &Entry| {
        let bytes = entry.option().encode();
        old.iter().copied().find(|number| now.entries.get(number) == Some(&bytes))
    };
    let kept: Vec<Option<u16>> = wanted.iter().map(same).collect();
    let mut taken: BTreeSet<u16> = kept.iter().flatten().copied().collect();
    let mut ours = Vec::new();
    let mut set = Vec::new();
    for (entry, kept) in wanted.iter().zip(kept) {
        let number = if let Some(number) = kept {
            number
        } else {
            let reused = old.iter().copied().find(|number| !taken.contains(number));
            let is_free = |n: &u16| !now.entries.contains_key(n) && !taken.contains(n);
            let number = reused.or_else(|| (0..=u16::MAX).find(is_free))?;
            set.push((number, entry.clone()));
            number
        };
        taken.insert(number);
        ours.push(number);
    }
    Some((ours, set))
}

#[cfg(test)]
mod tests;
