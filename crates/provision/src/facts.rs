//! Facts of a machine, as values. No fact is trusted to be unique or complete: firmware reports
//! wrong serial numbers, and two disks may have one WWN.
//!
//! Does not belong here: reading them from a machine (`hoist-device`).

use std::fmt;
use std::ops::Range;

use hoist_model::document::read_one;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::unreadable;

/// Largest text of facts. Agents send at most 768 KiB of them, without blanks.
pub const MAX_FACTS: usize = 4 * 1024 * 1024;

/// All facts of one machine.
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

impl Facts {
    /// Reads facts as `hoist-agent facts -o json` prints them, or in the object that `hoist
    /// provision facts` prints around them.
    pub fn read(source: &str, text: &[u8]) -> Result<Self, Vec<ProvisionDiagnostic>> {
        #[derive(Deserialize)]
        struct NodeFacts {
            facts: Facts,
        }
        if text.len() > MAX_FACTS {
            let what = format!("{} bytes are more than the limit of {MAX_FACTS}", text.len());
            return Err(vec![ProvisionDiagnostic::new(Code::TooLarge, source, what)]);
        }
        let of_node = read_one::<Value>(source, text).is_ok_and(|tree| tree.get("facts").is_some());
        let facts = if of_node {
            read_one(source, text).map(|NodeFacts { facts }| facts)
        } else {
            read_one(source, text)
        };
        facts.map_err(|errors| errors.into_iter().map(unreadable).collect())
    }
}

/// The firmware that booted the machine. The installed system is booted by the same firmware.
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
    /// The bus address, as `0000:05:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// One disk, whole.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskFacts {
    /// The current kernel name (`nvme0n1`). After a reboot the name may belong to another disk.
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
    /// Whether the disk can zero its blocks without being sent zeros.
    #[serde(default)]
    pub can_zero: bool,
    /// Commands by which the disk erases itself, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erase: Vec<EraseCommand>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Bus>,
    #[serde(default)]
    pub removable: bool,
    #[serde(default)]
    pub read_only: bool,
    /// Whether the running system was booted from the disk.
    #[serde(default)]
    pub is_boot_medium: bool,
    /// Whether the disk holds no data of its own: a virtual medium of a management controller, a
    /// RAM disk, an optical drive. A loop device is not virtual: its file holds the data.
    #[serde(default)]
    pub is_virtual: bool,
    /// Device-mapper maps that have the disk as one of several paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub multipath_maps: Vec<String>,
    /// Reasons why the disk, or a part of it, must not be written now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<Busy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableFacts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
    /// The reason why the contents are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// A command by which a disk makes all of its data unreadable, including its spare blocks. The
/// strongest is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseCommand {
    /// Sanitize: the disk discards its encryption key.
    SanitizeCrypto,
    /// Sanitize: the disk erases all of its blocks.
    SanitizeBlock,
    /// Sanitize: the disk overwrites all of its blocks.
    SanitizeOverwrite,
    /// Format: the disk discards its encryption key.
    FormatCrypto,
    /// Format: the disk discards its data in a way of its own.
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

/// A use of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Busy {
    /// The kernel name of the used disk or partition.
    pub device: String,
    pub reason: BusyReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyReason {
    /// Mounted at this path.
    Mount(String),
    Swap,
    /// An open holder, by kernel name: an MD array, a device-mapper map.
    Holder(String),
}

/// The partition table of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFacts {
    pub kind: TableKind,
    /// The disk's own GUID (GPT), or its signature as text (MBR).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default)]
    pub partitions: Vec<PartitionFacts>,
    /// Defects of the table: a damaged or misplaced copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defects: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableKind {
    Gpt,
    Mbr,
}

/// An existing partition. All numbers are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionFacts {
    pub number: u32,
    pub start: u64,
    pub len: u64,
    /// `None` in an MBR table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_guid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<Uuid>,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub attributes: u64,
    /// The kernel name, if the kernel knows the partition. It is read from the kernel, never
    /// derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
}

impl PartitionFacts {
    /// The range of the partition, limited to the largest number: a table may contain any value.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.len)
    }
}

/// A signature on a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub kind: SignatureKind,
    /// The offset of the magic from the start of the disk.
    pub offset: u64,
    #[serde(rename = "where")]
    pub place: SignaturePlace,
    /// The label of a file system, the name of an LVM volume group or of an MD array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The UUID as the tools of that kind write it. All members of an LVM volume group, an MD
    /// array, a ZFS pool or a bcache set share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The number of devices of the array or group, if the signature records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// The node and the transaction, if hoist wrote the signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Ours>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    pub node: String,
    pub txn: Uuid,
    /// The whole disk came as an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_image: bool,
    /// The disk holds the installed system.
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

/// Kinds of signatures, with the names that `wipe` uses.
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
    Reiserfs,
    Jfs,
    Nilfs2,
    Udf,
    Minix,
    Ufs,
    Apfs,
    Bcachefs,
    Bitlocker,
    Lvm1,
    Oracleasm,
    Stratis,
    Vdo,
    /// The hoist metadata area: marker and journal.
    Hoist,
    /// Data without a known signature, in an area that would be wiped.
    Unknown,
}

impl SignatureKind {
    pub const ALL: [Self; 39] = [
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
        Self::Reiserfs,
        Self::Jfs,
        Self::Nilfs2,
        Self::Udf,
        Self::Minix,
        Self::Ufs,
        Self::Apfs,
        Self::Bcachefs,
        Self::Bitlocker,
        Self::Lvm1,
        Self::Oracleasm,
        Self::Stratis,
        Self::Vdo,
        Self::Hoist,
        Self::Unknown,
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
            Self::Reiserfs => "reiserfs",
            Self::Jfs => "jfs",
            Self::Nilfs2 => "nilfs2",
            Self::Udf => "udf",
            Self::Minix => "minix",
            Self::Ufs => "ufs",
            Self::Apfs => "apfs",
            Self::Bcachefs => "bcachefs",
            Self::Bitlocker => "bitlocker",
            Self::Lvm1 => "lvm1",
            Self::Oracleasm => "oracleasm",
            Self::Stratis => "stratis",
            Self::Vdo => "vdo",
            Self::Hoist => "hoist",
            Self::Unknown => "unknown",
        }
    }

    /// The name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Unknown => "unknown data",
            known => known.as_str(),
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn facts_are_read_as_agent_and_controller_print_them() {
        let disk =
            DiskFacts { kernel_name: "sda".to_owned(), size: 8 << 30, ..DiskFacts::default() };
        let facts = Facts { disks: vec![disk], firmware: Firmware::Uefi, ..Facts::default() };
        let of_agent = serde_json::to_string_pretty(&facts).expect("plain");
        let of_controller =
            serde_json::json!({"node": "n1", "id": "x", "at": "y", "facts": facts}).to_string();
        for text in [of_agent, of_controller] {
            assert_eq!(Facts::read("f.json", text.as_bytes()).as_ref(), Ok(&facts), "{text}");
        }
    }

    #[test]
    fn wrong_facts_are_refused_with_their_place() {
        let cases = [
            ("{\n  \"disks\": [{\"kernel_name\": \"sda\", \"size\": \"8G\"}]}", "f.json:2:"),
            ("{\n\n  \"colour\": 1}", "f.json:3:"),
            ("{\"facts\": {\n  \"memory\": -1}}", "f.json:2:"),
            ("{\"disks\": [", "f.json:1:"),
        ];
        for (text, place) in cases {
            let found = Facts::read("f.json", text.as_bytes()).expect_err("refused");
            assert_eq!(found[0].code, Code::Unreadable, "{}", found[0]);
            assert!(found[0].diagnostic.at.starts_with(place), "{}", found[0]);
        }
        let most = Facts::read("f.json", &vec![b' '; MAX_FACTS]).expect_err("nothing in it");
        assert_eq!(most[0].code, Code::Unreadable, "{}", most[0]);
        let large = Facts::read("f.json", &vec![b' '; MAX_FACTS + 1]).expect_err("too large");
        assert_eq!(large[0].code, Code::TooLarge, "{}", large[0]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_of_facts_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            number: i64,
            text in ".{0,12}",
        ) {
            let _ = Facts::read("f", &bytes);
            let facts = serde_json::json!({"firmware": text, "disks": [
                {"kernel_name": text, "size": number, "logical_sector": number, "links": [text]},
            ]});
            let _ = Facts::read("f", facts.to_string().as_bytes());
        }
    }

    #[test]
    fn every_signature_kind_has_one_name() {
        for kind in SignatureKind::ALL {
            let written = serde_json::to_value(kind).expect("a word");
            assert_eq!(written, kind.as_str());
        }
        for command in EraseCommand::ALL {
            assert_eq!(serde_json::to_value(command).expect("a word"), command.as_str());
        }
    }
}
