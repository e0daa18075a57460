//! What a machine has, as somebody found it: values only. Nothing here is trusted to be unique or
//! complete; firmware lies about serial numbers, and two disks may have one WWN.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// All that is known of one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    #[serde(default)]
    pub firmware: Firmware,
    #[serde(default)]
    pub disks: Vec<DiskFacts>,
    #[serde(default)]
    pub nics: Vec<NicFacts>,
    #[serde(default)]
    pub cpu: CpuFacts,
    /// Bytes of memory.
    #[serde(default)]
    pub memory: u64,
    #[serde(default)]
    pub dmi: DmiFacts,
}

/// How the machine was started, which is how it will look for a system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    #[default]
    Bios,
    Uefi,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuFacts {
    /// As `uname -m` has it.
    pub arch: String,
    pub model: String,
    pub sockets: u32,
    /// Hardware threads.
    pub threads: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmiFacts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bios_version: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicFacts {
    pub name: String,
    /// Lower case with colons.
    pub mac: String,
    #[serde(default)]
    pub has_carrier: bool,
    /// Mbit/s, where the link says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Where it is on the bus, as `0000:05:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// One disk, whole.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskFacts {
    /// What the kernel calls it now (`nvme0n1`); another time it may be another disk.
    pub kernel_name: String,
    /// Bytes.
    pub size: u64,
    pub logical_sector: u32,
    pub physical_sector: u32,
    /// `0x5000c500aaaa0001`, `naa.…` and `wwn-…` alike: as the kernel shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eui: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// As below `/dev/disk/by-path`: `pci-0000:05:00.0-nvme-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<String>,
    /// Other links below `/dev/disk`, as `by-id/nvme-…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// `host:channel:target:lun` of SCSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    #[serde(default)]
    pub rotational: bool,
    /// It can make its blocks zero by itself, without being sent zeros.
    #[serde(default)]
    pub can_zero: bool,
    /// Commands by which it erases itself, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erase: Vec<EraseCommand>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Bus>,
    #[serde(default)]
    pub removable: bool,
    #[serde(default)]
    pub read_only: bool,
    /// What runs now was started from it.
    #[serde(default)]
    pub is_boot_medium: bool,
    /// A medium that a management controller shows, a RAM disk, an optical drive: nothing that holds
    /// data of its own. A loop device is not one of these, it is its file.
    #[serde(default)]
    pub is_virtual: bool,
    /// Device-mapper maps that have it as one of several paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub multipath_maps: Vec<String>,
    /// Why it, or a part of it, must not be written to now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<Busy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableFacts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
    /// Why nobody knows what is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// A command by which a disk makes all of its own data unreadable, also what it keeps where nobody can
/// read it. The strongest is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseCommand {
    /// It forgets the key with which everything was encrypted.
    SanitizeCrypto,
    /// It erases all of its blocks.
    SanitizeBlock,
    /// It writes over all of its blocks.
    SanitizeOverwrite,
    /// It formats itself, and forgets the key.
    FormatCrypto,
    /// It formats itself, and what was on it is gone, in whatever way.
    FormatUserData,
}

impl EraseCommand {
    pub const ALL: [Self; 5] = [
        Self::SanitizeCrypto,
        Self::SanitizeBlock,
        Self::SanitizeOverwrite,
        Self::FormatCrypto,
        Self::FormatUserData,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::SanitizeCrypto => "sanitize_crypto",
            Self::SanitizeBlock => "sanitize_block",
            Self::SanitizeOverwrite => "sanitize_overwrite",
            Self::FormatCrypto => "format_crypto",
            Self::FormatUserData => "format_user_data",
        }
    }
}

impl fmt::Display for EraseCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a disk is connected.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Bus {
    Ata,
    Loop,
    Mmc,
    Nvme,
    Sas,
    Scsi,
    Usb,
    Virtio,
    Xen,
}

/// Somebody uses a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Busy {
    /// The disk or the partition of it that is used, by its kernel name.
    pub device: String,
    pub reason: BusyReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyReason {
    /// Mounted there.
    Mount(String),
    Swap,
    /// The device above it that is open: an MD array, a device-mapper map, by its kernel name.
    Holder(String),
}

/// The partition table that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFacts {
    pub kind: TableKind,
    /// The disk's own GUID (GPT), or its signature as text (MBR).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default)]
    pub partitions: Vec<PartitionFacts>,
    /// What is wrong with it, where something is: a copy that is damaged or misplaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableKind {
    Gpt,
    Mbr,
}

/// One partition that is there. Numbers of bytes, whatever the sector size is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionFacts {
    pub number: u32,
    pub start: u64,
    pub len: u64,
    /// Of an MBR table there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_guid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<Uuid>,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub attributes: u64,
    /// What the kernel calls it, where it knows it: it is asked for, never made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
}

impl PartitionFacts {
    /// A table may say anything; what it says beyond the largest number is not.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.len)
    }
}

/// Something on a disk that says what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub kind: SignatureKind,
    /// Of its magic, from the start of the disk.
    pub offset: u64,
    #[serde(rename = "where")]
    pub place: SignaturePlace,
    /// Of the file system; of LVM the volume group's name; of MD the array's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// As the tools of that kind write it. Of LVM the volume group's, of MD the array's, of ZFS the
    /// pool's, of bcache the set's: what all members have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How many devices its array or group has, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// Hoist put it there, for this node: who, and in which transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Ours>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    pub node: String,
    pub txn: Uuid,
    /// All of the disk came as an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_image: bool,
    /// It has the system that the machine starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_root: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignaturePlace {
    Disk,
    /// In the partition of this number.
    Partition(u32),
}

/// Kinds of things that a disk may hold, in the words that `wipe` has.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SignatureKind {
    Gpt,
    Mbr,
    Ext,
    Xfs,
    Btrfs,
    Vfat,
    Exfat,
    Ntfs,
    Iso9660,
    Squashfs,
    Erofs,
    F2fs,
    Swap,
    Lvm,
    Md,
    Luks,
    Zfs,
    Bcache,
    Ceph,
    Vmfs,
    Gpfs,
    Gfs2,
    Ocfs2,
    Drbd,
    /// What hoist itself writes: its marker and its journal.
    Hoist,
}

impl SignatureKind {
    pub const ALL: [Self; 25] = [
        Self::Gpt,
        Self::Mbr,
        Self::Ext,
        Self::Xfs,
        Self::Btrfs,
        Self::Vfat,
        Self::Exfat,
        Self::Ntfs,
        Self::Iso9660,
        Self::Squashfs,
        Self::Erofs,
        Self::F2fs,
        Self::Swap,
        Self::Lvm,
        Self::Md,
        Self::Luks,
        Self::Zfs,
        Self::Bcache,
        Self::Ceph,
        Self::Vmfs,
        Self::Gpfs,
        Self::Gfs2,
        Self::Ocfs2,
        Self::Drbd,
        Self::Hoist,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Mbr => "mbr",
            Self::Ext => "ext",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
            Self::Exfat => "exfat",
            Self::Ntfs => "ntfs",
            Self::Iso9660 => "iso9660",
            Self::Squashfs => "squashfs",
            Self::Erofs => "erofs",
            Self::F2fs => "f2fs",
            Self::Swap => "swap",
            Self::Lvm => "lvm",
            Self::Md => "md",
            Self::Luks => "luks",
            Self::Zfs => "zfs",
            Self::Bcache => "bcache",
            Self::Ceph => "ceph",
            Self::Vmfs => "vmfs",
            Self::Gpfs => "gpfs",
            Self::Gfs2 => "gfs2",
            Self::Ocfs2 => "ocfs2",
            Self::Drbd => "drbd",
            Self::Hoist => "hoist",
        }
    }
}

impl fmt::Display for SignatureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, reason } = self;
        match reason {
            BusyReason::Mount(at) => write!(f, "`{device}` is mounted at `{at}`"),
            BusyReason::Swap => write!(f, "`{device}` is swapped to"),
            BusyReason::Holder(holder) => write!(f, "`{holder}` is open above `{device}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_thing_has_one_word_everywhere() {
        for kind in SignatureKind::ALL {
            let written = serde_json::to_value(kind).expect("a word");
            assert_eq!(written, kind.as_str());
        }
        for command in EraseCommand::ALL {
            assert_eq!(serde_json::to_value(command).expect("a word"), command.as_str());
        }
    }
}
