//! The provisioning document: the desired state of one machine, in sections that actions read.
//!
//! A value of these types was readable; [`check`] finds its other problems. Third-party sections
//! are kept unchanged: their names contain vendor and version.

mod check;
mod limits;
mod read;
pub mod secret;
mod section;
pub mod size;
pub mod storage;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use uuid::Uuid;

pub use check::{MAX_PARTITIONS, check};
pub use hoist_model::document::API;
pub use read::{MAX_BYTES, read, type_errors};
pub(crate) use read::{read_typed, unreadable};
pub use secret::{SecretRef, Secrets};
pub use section::{
    Boot, BootFiles, BootFirmware, BootLoader, BootOrder, Compression, ConfigDrive, Content, Disk,
    DiskMatch, End, Erase, EraseMethod, FetchedFile, File, Flow, Image, ImageFormat, ImageTable,
    LastRoot, NodeSection, OnFailure, Policy, Report, SizeRange, Tables, Wipe,
};
pub use size::{Bytes, Size};
pub use storage::{
    Attribute, Fs, FsKind, FsRetain, Luks, Lv, Md, MdLevel, Part, PartRetain, PartRole, Pv,
    StorageNode, Vg,
};

pub const MAX_DISKS: usize = 256;
pub const MAX_STORAGE: usize = 1024;
pub const MAX_IMAGES: usize = 64;
pub const MAX_FILES: usize = 1024;
pub const MAX_THIRD_PARTY: usize = 64;
/// Of any list within an entry: sources, links, options, words for a kernel.
pub const MAX_LIST: usize = 256;
/// Of all that storage nodes lie on, taken together.
pub const MAX_ON: usize = 4 * MAX_STORAGE;
/// Longest id of a disk, an image or a storage node.
pub const MAX_ID: usize = 64;

/// The desired state of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hoist provisioning document")]
pub struct Document {
    /// `hoist/v1`.
    #[schemars(extend("const" = API))]
    pub api: String,
    /// One installation of one machine. GUIDs are derived from it: the same again means the same.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub txn: Uuid,
    pub sections: Sections,
}

/// The sections by topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(extend(
    "additionalProperties" = false,
    "patternProperties" = {THIRD_PARTY_PATTERN: true}
))]
pub struct Sections {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeSection>,
    /// The disks that may be written to, and no others.
    #[serde(default, skip_serializing_if = "Entries::is_empty")]
    pub disks: Entries<Disk>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage: Vec<StorageNode>,
    #[serde(default, skip_serializing_if = "Entries::is_empty")]
    pub images: Entries<Image>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ConfigDrive>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// As cloud-init's network-config has it, version 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<serde_json::Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<Flow>,
    #[serde(default, skip_serializing_if = "Policy::is_default")]
    pub policy: Policy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erase: Option<Erase>,
    /// Sections of others by name: `vendor.example/raid@1`.
    #[serde(flatten)]
    #[schemars(skip)]
    pub third_party: BTreeMap<String, Value>,
}

/// Names of the sections that are hoist's own.
pub const CORE_SECTIONS: [&str; 12] = [
    "node",
    "disks",
    "storage",
    "images",
    "config_drive",
    "boot",
    "network",
    "flow",
    "policy",
    "report",
    "files",
    "erase",
];

const THIRD_PARTY_PATTERN: &str =
    r"^[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z0-9][a-z0-9_-]*@[1-9][0-9]{0,4}$";

/// `vendor.example/raid@1`: vendor, name and version.
pub fn is_third_party(name: &str) -> bool {
    let is_word = |text: &str, more: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
        !text.is_empty() && text.chars().all(plain)
    };
    let Some(((domain, what), version)) =
        name.rsplit_once('@').and_then(|(front, version)| Some((front.split_once('/')?, version)))
    else {
        return false;
    };
    let is_domain = domain.contains('.') && domain.split('.').all(|part| is_word(part, "-"));
    let is_what = is_word(what, "-_") && !what.starts_with(['-', '_']);
    let is_version = (1..=5).contains(&version.len())
        && version.bytes().all(|b| b.is_ascii_digit())
        && !version.starts_with('0');
    is_domain && is_what && is_version
}

fn unknown_section<E: serde::de::Error>(name: &str) -> E {
    if name.contains(['/', '@']) {
        return E::custom(format!(
            "`{name}` is no name of a section; a third-party section is called like \
             `vendor.example/raid@1`"
        ));
    }
    E::unknown_field(name, &CORE_SECTIONS)
}

impl<'de> Deserialize<'de> for Sections {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Sections;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sections by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sections, A::Error> {
                let mut all = Sections::default();
                let mut seen = std::collections::BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        let message = format!("section `{name}` is there twice");
                        return Err(serde::de::Error::custom(message));
                    }
                    match name.as_str() {
                        "node" => all.node = map.next_value()?,
                        "disks" => all.disks = map.next_value()?,
                        "storage" => all.storage = map.next_value()?,
                        "images" => all.images = map.next_value()?,
                        "config_drive" => all.config_drive = map.next_value()?,
                        "boot" => all.boot = map.next_value()?,
                        "network" => all.network = map.next_value()?,
                        "flow" => all.flow = map.next_value()?,
                        "policy" => all.policy = map.next_value()?,
                        "report" => all.report = map.next_value()?,
                        "files" => all.files = map.next_value()?,
                        "erase" => all.erase = map.next_value()?,
                        name if is_third_party(name) => {
                            all.third_party.insert(name.to_owned(), map.next_value()?);
                        }
                        name => return Err(unknown_section(name)),
                    }
                }
                Ok(all)
            }
        }
        d.deserialize_map(All)
    }
}

/// The id of a disk, an image or a storage node.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
pub struct Id(String);

/// A text that is no id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseIdError(String);

impl std::error::Error for ParseIdError {}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(MAX_ID).collect();
        write!(
            f,
            "`{shown}` is no id; one has up to {MAX_ID} letters, digits, dots, dashes and \
             underscores, and begins with a letter or a digit"
        )
    }
}

impl Id {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Id {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && text.len() <= MAX_ID && text.chars().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError(text.to_owned()))
        }
    }
}

impl TryFrom<String> for Id {
    type Error = ParseIdError;
    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Things by id, each once: of two with one id a reader of JSON would silently drop the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Entries<T>(pub BTreeMap<Id, T>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Entries<T> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, id: &Id) -> Option<&T> {
        self.0.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Id, &T)> {
        self.0.iter()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ById<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ById<T> {
            type Value = Entries<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of things by id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(id) = map.next_key::<Id>()? {
                    let value = map.next_value()?;
                    if entries.insert(id.clone(), value).is_some() {
                        let message = format!("`{id}` is there twice");
                        return Err(serde::de::Error::custom(message));
                    }
                }
                Ok(Entries(entries))
            }
        }
        d.deserialize_map(ById(PhantomData))
    }
}

impl Document {
    /// The JSON Schema of it, for editors and other tools.
    pub fn schema() -> Value {
        schemars::schema_for!(Self).to_value()
    }

    /// The node id, from which GUIDs are derived.
    pub fn node_id(&self) -> &str {
        self.sections.node.as_ref().map_or("", |node| node.id.as_str())
    }

    /// Of the node's boot state; nothing is 0.
    pub fn generation(&self) -> u64 {
        self.sections.node.as_ref().and_then(|node| node.generation).unwrap_or(0)
    }

    /// The queued actions, if the document names them.
    pub fn actions(&self) -> Option<&[String]> {
        self.sections.flow.as_ref()?.actions.as_deref()
    }

    /// Whether an action is queued: all are, unless the document names some or none.
    pub fn is_queued(&self, action: &str) -> bool {
        self.actions().is_none_or(|queued| queued.iter().any(|name| name == action))
    }

    /// Whether the command line leaves out an action that the document names.
    pub fn leaves_out(&self, action: &str) -> bool {
        let flow = self.sections.flow.as_ref();
        flow.is_some_and(|flow| flow.left_out.iter().any(|name| name == action))
    }

    /// Whether the contents of the disks do not matter, apart from final actions: the document only
    /// erases disks, or queues nothing.
    pub fn ignores_contents(&self) -> bool {
        self.only_erases() || self.actions().is_some_and(<[String]>::is_empty)
    }

    /// Whether the document only erases disks, apart from final actions.
    pub fn only_erases(&self) -> bool {
        let queued = self.actions().unwrap_or_default();
        let is_of_it = |action: &String| ["erase", "report", "reboot"].contains(&action.as_str());
        queued.iter().any(|action| action == "erase") && queued.iter().all(is_of_it)
    }

    /// Whether tables stay as they are: by policy, or because `disks` is not queued.
    pub fn adopts_tables(&self) -> bool {
        self.sections.policy.tables == Tables::Adopt || !self.is_queued("disks")
    }

    pub fn storage(&self, id: &Id) -> Option<&StorageNode> {
        self.sections.storage.iter().find(|node| node.id() == id)
    }
}

#[cfg(test)]
mod tests;
