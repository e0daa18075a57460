//! The sections of hoist's own, except the storage nodes.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Bytes, Id, SecretRef};
use crate::facts::{Bus, SignatureKind};

/// The identity of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// The id in the inventory. Markers on disks carry it.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The generation of the node at the start of its run. Markers on disks carry it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The disks of the last root file system. Another disk needs `policy.allow_root_change`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_root: Option<LastRoot>,
}

/// The last disks of the root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LastRoot {
    Disk(Box<DiskMatch>),
    /// The disks of a mirror or a volume group. One of them is enough to find the root again.
    Disks(Vec<DiskMatch>),
}

impl LastRoot {
    pub fn disks(&self) -> &[DiskMatch] {
        match self {
            Self::Disk(disk) => std::slice::from_ref(disk),
            Self::Disks(disks) => disks,
        }
    }
}

/// A disk that may be written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    #[serde(rename = "match")]
    pub matches: DiskMatch,
    /// The foreign data that may be destroyed.
    #[serde(default, skip_serializing_if = "Wipe::is_nothing")]
    pub wipe: Wipe,
}

/// The identity of a disk. Every given attribute must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskMatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eui: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// As below `/dev/disk/by-path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<String>,
    /// Names below `/dev/disk`, of which at least one leads to it: `by-id/ata-…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// If the `links` below `by-id` lead to exactly one disk, they decide: `kernel_name` need not
    /// agree, and `by_path` only if another disk has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub links_first: bool,
    /// `host:channel:target:lun` of SCSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeRange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Bus>,
    /// The kernel name, which may change. Alone only with `policy.allow_kernel_names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
}

/// A range of sizes, including both ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SizeRange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Bytes>,
}

/// The foreign data on a disk that may be destroyed: a list of kinds, or `any`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Wipe {
    Kinds(Vec<SignatureKind>),
    Any(Any),
}

/// The word `any`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Any {
    Any,
}

impl Default for Wipe {
    fn default() -> Self {
        Self::Kinds(Vec::new())
    }
}

impl Wipe {
    pub const ANY: Self = Self::Any(Any::Any);

    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Kinds(kinds) if kinds.is_empty())
    }

    pub fn covers(&self, kind: SignatureKind) -> bool {
        match self {
            Self::Kinds(kinds) => kinds.contains(&kind),
            Self::Any(_) => true,
        }
    }
}

impl<'de> Deserialize<'de> for Wipe {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AnyOrKinds;
        impl<'de> Visitor<'de> for AnyOrKinds {
            type Value = Wipe;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of kinds such as `[gpt, ext]`, or `any`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Wipe, E> {
                if text == "any" {
                    return Ok(Wipe::ANY);
                }
                Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Wipe, A::Error> {
                let mut kinds = Vec::new();
                while let Some(kind) = seq.next_element()? {
                    kinds.push(kind);
                }
                Ok(Wipe::Kinds(kinds))
            }
        }
        d.deserialize_any(AnyOrKinds)
    }
}

impl JsonSchema for Wipe {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Wipe".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let kinds = generator.subschema_for::<Vec<SignatureKind>>();
        schemars::json_schema!({
            "description": "The foreign data on a disk that may be destroyed: a list of kinds, or `any`.",
            "anyOf": [{"const": "any"}, kinds],
        })
    }
}

/// An image and its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// URLs; the first that answers is used. Without a source, an action makes the content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The action that makes the content, without sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// The target: a file system, a partition, a volume or a whole disk.
    pub target: Id,
    #[serde(default)]
    pub format: ImageFormat,
    #[serde(default)]
    pub compression: Compression,
    /// The unpacked size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// The digest of the fetched bytes: `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The digest of the unpacked bytes: `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked_digest: Option<String>,
    /// The URL of its chunk manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The sector size of an image of a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector_size: Option<u32>,
    /// The partition table in an image of a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<ImageTable>,
    /// Whether the file system is grown to the size of its target.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grow: bool,
    /// The bearer token for its sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    #[default]
    Raw,
    Qcow2,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Detected from the first bytes.
    #[default]
    Detect,
    None,
    Gzip,
    Zstd,
    Xz,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageTable {
    Gpt,
    Mbr,
}

/// A small volume with the identity of the installed system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigDrive {
    /// Files by their paths in the volume.
    #[serde(default)]
    pub files: BTreeMap<String, Content>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Text(String),
    Secret(SecretRef),
    /// The fstab of the document. Only in `files`.
    Fstab,
    /// The crypttab of the document; keys are asked for at boot. Only in `files`.
    Crypttab,
}

/// How the machine boots the installed system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// The firmware of the current boot, by default.
    #[serde(default)]
    pub firmware: BootFirmware,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<BootLoader>,
    /// Kernel arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_size: Option<Bytes>,
    #[serde(default)]
    pub order: BootOrder,
    /// The boot files.
    #[serde(default, skip_serializing_if = "BootFiles::is_empty")]
    pub files: BootFiles,
}

/// The boot files of a machine, with their sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootFiles {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<FetchedFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<FetchedFile>,
    /// The loader for UEFI: systemd-boot, or an image of GRUB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<FetchedFile>,
    /// A unified kernel image: kernel, initramfs and command line in one file for UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uki: Option<FetchedFile>,
    /// GRUB's `boot.img`, for BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_boot: Option<FetchedFile>,
    /// GRUB's `core.img`, for BIOS. It looks for `/hoist/grub.cfg` by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_core: Option<FetchedFile>,
}

impl BootFiles {
    /// All by their names in the document.
    pub fn named(&self) -> [(&'static str, Option<&FetchedFile>); 6] {
        [
            ("kernel", self.kernel.as_ref()),
            ("initrd", self.initrd.as_ref()),
            ("loader", self.loader.as_ref()),
            ("uki", self.uki.as_ref()),
            ("grub_boot", self.grub_boot.as_ref()),
            ("grub_core", self.grub_core.as_ref()),
        ]
    }

    pub fn is_empty(&self) -> bool {
        self.named().iter().all(|(_, file)| file.is_none())
    }
}

/// A file that is fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchedFile {
    /// URLs; the first that answers is used.
    pub sources: Vec<String>,
    /// The digest of the fetched bytes: `sha256:…`. A file without a digest is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BootFirmware {
    #[default]
    AsStarted,
    Bios,
    Uefi,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BootLoader {
    SystemdBoot,
    Uki,
    Grub,
}

/// The first entry of the boot order after the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BootOrder {
    #[default]
    DiskFirst,
    NetworkFirst,
    Leave,
}

/// The queued actions, and the final action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Actions in their order; `[]` means none. By default all actions that have a section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    pub actions: Option<Vec<String>>,
    /// The actions of the document that the command line leaves out. They keep their claims.
    #[serde(skip)]
    pub left_out: Vec<String>,
    #[serde(default)]
    pub end: End,
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// The final action after all steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    #[default]
    Reboot,
    Kexec,
    PowerOff,
    Stay,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    #[default]
    Hold,
    Retry,
    Reboot,
}

/// Permissions beyond the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// A disk may be matched by its kernel name alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_kernel_names: bool,
    /// The root may be on another disk than the last time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_root_change: bool,
    /// The treatment of existing tables.
    #[serde(default)]
    pub tables: Tables,
}

impl Policy {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The treatment of existing tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// Tables are changed to match the document.
    #[default]
    Make,
    /// Existing tables must match the document to within 1 MiB; otherwise the plan is refused.
    Adopt,
}

/// The receiver of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
}

/// A file of the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The file system of the file.
    pub on: Id,
    /// The path from the root of that file system.
    pub path: String,
    pub content: Content,
    /// In octal: `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
}

/// Disks to erase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Erase {
    pub disks: Vec<Id>,
    #[serde(default)]
    pub method: EraseMethod,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EraseMethod {
    /// The strongest method that the disk offers.
    #[default]
    Strongest,
    /// The disk discards its encryption key.
    Crypto,
    /// The disk zeroes its blocks by itself.
    Block,
    /// Every byte is written.
    Overwrite,
    /// Only signatures are wiped; the data stays readable.
    Signatures,
}
