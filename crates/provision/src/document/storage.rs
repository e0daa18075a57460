//! Storage nodes of the document: partitions on disks, arrays and volume groups on partitions, file
//! systems on any of them.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Bytes, Id, SecretRef, Size};
use crate::facts::SignatureKind;

/// One node. Partitions of a disk and volumes of a group come in the order in which they are
/// written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageNode {
    Part(Part),
    Md(Md),
    Pv(Pv),
    Vg(Vg),
    Lv(Lv),
    Luks(Luks),
    Fs(Fs),
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub id: Id,
    /// The disk, by its id.
    pub on: Id,
    pub size: Size,
    /// The role, which decides the partition type.
    #[serde(default)]
    pub role: PartRole,
    /// A partition type in place of the type of the role.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "uuid"))]
    pub type_guid: Option<Uuid>,
    /// The name in the table; by default the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// The node exists, and stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<PartRetain>,
}

/// The role of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartRole {
    #[default]
    Data,
    Root,
    /// The EFI system partition.
    Esp,
    /// The partition for the core of GRUB on a disk that BIOS boots.
    BiosBoot,
    /// Kernels apart from the ESP and from the root.
    Boot,
    Home,
    Srv,
    Var,
    Tmp,
    Swap,
    Lvm,
    Raid,
    Luks,
    ConfigDrive,
}

/// Attribute bits of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// The machine does not work without it.
    Required,
    NoBlockIo,
    LegacyBoot,
    ReadOnly,
    NoAuto,
    GrowFs,
}

/// The identity of a retained partition: its PARTUUID, or its name together with its type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRetain {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "uuid"))]
    pub partuuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "uuid"))]
    pub type_guid: Option<Uuid>,
    /// The tolerance between the existing and the declared size; by default 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<Bytes>,
}

/// An array of Linux's MD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Md {
    pub id: Id,
    pub on: Vec<Id>,
    pub level: MdLevel,
    /// The number of spares: the last devices of `on`.
    #[serde(default)]
    pub spares: u32,
    /// The name of the array; by default the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MdLevel {
    Raid0,
    Raid1,
    Raid5,
    Raid6,
    Raid10,
}

/// A physical volume of LVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pv {
    pub id: Id,
    pub on: Id,
    /// Room for LVM metadata; by default 1 MiB including alignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_size: Option<Bytes>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
}

/// A volume group of LVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vg {
    pub id: Id,
    pub on: Vec<Id>,
    /// The name; by default the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
}

/// A logical volume of LVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lv {
    pub id: Id,
    pub on: Id,
    pub size: Size,
    /// The name; by default the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
}

/// An encrypted device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Luks {
    pub id: Id,
    pub on: Id,
    pub key: SecretRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
}

/// A file system, or swap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fs {
    pub id: Id,
    pub on: Id,
    pub kind: FsKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The mount point in the installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
    /// Mount options, as in fstab.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Whether the file system is left out of fstab.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_fstab: bool,
    /// The node exists, and stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<FsRetain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FsKind {
    Ext2,
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
    Vfat,
    Swap,
}

impl FsKind {
    /// The signature of this kind on a disk.
    pub fn signature(self) -> SignatureKind {
        match self {
            Self::Ext2 | Self::Ext3 | Self::Ext4 => SignatureKind::Ext,
            Self::Xfs => SignatureKind::Xfs,
            Self::Btrfs => SignatureKind::Btrfs,
            Self::Vfat => SignatureKind::Vfat,
            Self::Swap => SignatureKind::Swap,
        }
    }
}

/// The identity of a retained file system: its UUID or its label. Without both, the kind alone
/// counts, if the identity of the node below is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FsRetain {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl StorageNode {
    pub fn id(&self) -> &Id {
        match self {
            Self::Part(Part { id, .. })
            | Self::Md(Md { id, .. })
            | Self::Pv(Pv { id, .. })
            | Self::Vg(Vg { id, .. })
            | Self::Lv(Lv { id, .. })
            | Self::Luks(Luks { id, .. })
            | Self::Fs(Fs { id, .. }) => id,
        }
    }

    /// The ids of the nodes below. A partition lies on a disk, every other node on storage nodes.
    pub fn on(&self) -> &[Id] {
        match self {
            Self::Part(Part { on, .. })
            | Self::Pv(Pv { on, .. })
            | Self::Lv(Lv { on, .. })
            | Self::Luks(Luks { on, .. })
            | Self::Fs(Fs { on, .. }) => std::slice::from_ref(on),
            Self::Md(Md { on, .. }) | Self::Vg(Vg { on, .. }) => on,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Part(_) => "part",
            Self::Md(_) => "md",
            Self::Pv(_) => "pv",
            Self::Vg(_) => "vg",
            Self::Lv(_) => "lv",
            Self::Luks(_) => "luks",
            Self::Fs(_) => "fs",
        }
    }

    pub fn is_retained(&self) -> bool {
        match self {
            Self::Part(part) => part.retain.is_some(),
            Self::Md(Md { retain, .. })
            | Self::Pv(Pv { retain, .. })
            | Self::Vg(Vg { retain, .. })
            | Self::Lv(Lv { retain, .. })
            | Self::Luks(Luks { retain, .. }) => *retain,
            Self::Fs(fs) => fs.retain.is_some(),
        }
    }

    pub fn as_fs(&self) -> Option<&Fs> {
        match self {
            Self::Fs(fs) => Some(fs),
            _ => None,
        }
    }
}

impl Part {
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }

    pub fn attribute_bits(&self) -> u64 {
        self.attributes.iter().fold(0, |bits, attribute| bits | 1 << attribute.bit())
    }
}

impl Md {
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }
}

impl Vg {
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }
}

impl Lv {
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }
}

impl Attribute {
    /// The last three are those of the Discoverable Partitions Specification.
    fn bit(self) -> u32 {
        match self {
            Self::Required => 0,
            Self::NoBlockIo => 1,
            Self::LegacyBoot => 2,
            Self::GrowFs => 59,
            Self::ReadOnly => 60,
            Self::NoAuto => 63,
        }
    }
}

impl MdLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
            Self::Raid10 => "raid10",
        }
    }

    /// Fewest devices of an array, without spares.
    pub fn least(self) -> usize {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid5 => 3,
            Self::Raid6 => 4,
        }
    }
}

impl FsKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
            Self::Swap => "swap",
        }
    }

    /// Longest label in bytes.
    pub fn max_label(self) -> usize {
        match self {
            Self::Ext2 | Self::Ext3 | Self::Ext4 => 16,
            Self::Xfs => 12,
            Self::Btrfs => 255,
            Self::Vfat => 11,
            Self::Swap => 15,
        }
    }
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The nodes, each behind the nodes that it lies on, otherwise in the written order. `None` if
/// nodes lie on each other in a circle.
pub fn in_order(nodes: &[StorageNode]) -> Option<Vec<&StorageNode>> {
    let known: BTreeSet<&Id> = nodes.iter().map(StorageNode::id).collect();
    let mut done = BTreeSet::new();
    let mut ordered = Vec::with_capacity(nodes.len());
    let mut waiting: Vec<&StorageNode> = nodes.iter().collect();
    while !waiting.is_empty() {
        let is_ready = |node: &&StorageNode| {
            node.on().iter().all(|on| done.contains(on) || !known.contains(on))
        };
        let (ready, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_ready);
        if ready.is_empty() {
            return None;
        }
        done.extend(ready.iter().map(|node| node.id()));
        ordered.extend(ready);
        waiting = later;
    }
    Some(ordered)
}
