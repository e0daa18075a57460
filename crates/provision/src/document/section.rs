//! The sections that are hoist's own, but for the storage nodes.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Bytes, Id, SecretRef};
use crate::facts::{Bus, SignatureKind};

/// Which machine this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// As the inventory has it; what hoist writes to disks carries it.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of the node when its run began; the marker on its disks carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The disk that had the root the last time, or all of them if it was on several. Others need
    /// `policy.allow_root_change`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_root: Option<LastRoot>,
}

/// Where the root was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LastRoot {
    Disk(Box<DiskMatch>),
    /// Of a mirror or a volume group: with one of them it is where it was.
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
    /// What of others on it may be destroyed.
    #[serde(default, skip_serializing_if = "Wipe::is_nothing")]
    pub wipe: Wipe,
}

/// What a disk is known by. All that is given has to agree.
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
    /// What the kernel calls it, which changes; alone only with `policy.allow_kernel_names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
}

/// Both ends belong to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SizeRange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Bytes>,
}

/// What of others on a disk may be destroyed: a list of kinds, or `any`.
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
            "description": "What of others on a disk may be destroyed: a list of kinds, or `any`.",
            "anyOf": [{"const": "any"}, kinds],
        })
    }
}

/// Bytes that come from elsewhere, and where they go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Where it is; the first that answers is taken. Without one, its content is made here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// What makes its content, where no source does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// A file system, a partition or volume, or a whole disk.
    pub target: Id,
    #[serde(default)]
    pub format: ImageFormat,
    #[serde(default)]
    pub compression: Compression,
    /// Unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Of what comes: `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Where its list of chunks is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The sector size it was made for, if it is a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector_size: Option<u32>,
    /// The table in it, if it is a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<ImageTable>,
    /// The file system is grown to what it lies on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grow: bool,
    /// What is sent as a bearer token for it.
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
    /// Told by its first bytes.
    #[default]
    Detect,
    None,
    Gzip,
    Zstd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageTable {
    Gpt,
    Mbr,
}

/// A small volume from which the installed system learns who it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigDrive {
    /// Files by their paths in it.
    #[serde(default)]
    pub files: BTreeMap<String, Content>,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Text(String),
    Secret(SecretRef),
    /// What is mounted where, as the document says it. Only of `files`.
    Fstab,
    /// What is encrypted, and that its key is asked for when the system starts. Only of `files`.
    Crypttab,
}

/// How the machine starts what was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// As the machine was started now, unless said otherwise.
    #[serde(default)]
    pub firmware: BootFirmware,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<BootLoader>,
    /// Words for the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_size: Option<Bytes>,
    #[serde(default)]
    pub order: BootOrder,
    /// What it is started with.
    #[serde(default, skip_serializing_if = "BootFiles::is_empty")]
    pub files: BootFiles,
}

/// What a machine is started with, each from where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootFiles {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Fetched>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<Fetched>,
    /// What UEFI starts: systemd-boot, or an image of GRUB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<Fetched>,
    /// Kernel, initramfs and command line in one file that UEFI starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uki: Option<Fetched>,
    /// GRUB's `boot.img`, for BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_boot: Option<Fetched>,
    /// GRUB's `core.img`, for BIOS. It looks for `/hoist/grub.cfg` by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_core: Option<Fetched>,
}

impl BootFiles {
    /// All by their names in the document.
    pub fn named(&self) -> [(&'static str, Option<&Fetched>); 6] {
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

/// A file that comes from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fetched {
    /// Where it is; the first that answers is taken.
    pub sources: Vec<String>,
    /// Of what comes: `sha256:…`. Nothing is taken whose digest nobody knows.
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

/// What the firmware tries first afterwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BootOrder {
    #[default]
    DiskFirst,
    NetworkFirst,
    Leave,
}

/// What is done, and what follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Actions in their order; all that have a section unless said otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    #[serde(default)]
    pub end: End,
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// What the machine does when all is done.
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

/// What is allowed that is not by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// A disk may be matched by its kernel name alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_kernel_names: bool,
    /// The root may be on another disk than the last time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_root_change: bool,
    /// What becomes of the tables that are there.
    #[serde(default)]
    pub tables: Tables,
}

impl Policy {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of the tables that are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// They become what the document says.
    #[default]
    Make,
    /// They are what the document says, to within 1 MiB, or nothing is done.
    Adopt,
}

/// Who is told what came of it.
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
    /// The file system that it is in.
    pub on: Id,
    /// From the root of that file system.
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

/// Disks that are made empty.
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
    /// The strongest that the disk offers.
    #[default]
    Strongest,
    /// The disk forgets the key with which everything was encrypted.
    Crypto,
    /// The disk empties its blocks by itself.
    Block,
    /// Every byte is written.
    Overwrite,
    /// Only what says what is on it; the data stays readable.
    Signatures,
}
