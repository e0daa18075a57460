//! Sources of nodes that are not declared in hoist itself: SMD, files, and the stores of other
//! sites.
//!
//! A source must yield its complete set or an error. A partial set that looked complete would
//! remove nodes. [`reconcile`](crate::reconcile) decides the effect of a set; nothing in here
//! writes.

pub mod file;
mod settle;
pub mod smd;
pub mod store;
pub mod table;
mod value;
mod yaml;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use hoist_diagnostic::Diagnostic;
use hoist_model::boot::{BootRules, SelectedBy};
use hoist_model::node::Power;
use hoist_model::{GroupKey, GroupSpec, Name, NetworkSpec, NodeSpec, PartitionSpec};
use serde::{Deserialize, Serialize};

pub use settle::settle;
pub(crate) use settle::{Claims, declare_named};
pub use store::SharedStore;

/// Something that knows a site's machines.
///
/// The suite in `tests/sources/conformance.rs` is the definition: a source is done when it passes.
///
/// * `Complete` is the whole set. There is no smaller answer than that: an unreachable, broken or
///   empty source is an error.
/// * `Unchanged` means that the set is the one last answered as `Complete`.
/// * A source that failed recovers by itself: the next call starts from nothing.
#[async_trait]
pub trait InventorySource: Send + Sync + fmt::Debug {
    /// The name in the nodes' provenance: `smd`, `file`, `store`.
    fn name(&self) -> &Name;

    async fn fetch(&self) -> Result<FetchOutcome, SourceError>;

    /// Makes the next answer `Complete` even if nothing changed. To be called when an answer could
    /// not be put into the store, or when the reconciliation wants to see it again.
    fn forget(&self);
}

/// The result of reading a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    Unchanged,
    Complete(ImportedSet),
}

/// Everything a source knows, in hoist's words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedSet {
    /// In the order in which they may claim what only one can have.
    pub nodes: Vec<ImportedNode>,
    /// External ids of machines that exist but whose description is unusable. They are not
    /// imported, and their nodes from earlier imports are neither changed nor removed.
    pub held: BTreeSet<String>,
    pub groups: Vec<(GroupKey, GroupSpec)>,
    pub partitions: Vec<(Name, PartitionSpec)>,
    pub networks: Vec<(Name, NetworkSpec)>,
    /// The fields of a node this source knows about. It never touches the others.
    pub fields: FieldSet,
    pub warnings: Vec<Warning>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedNode {
    /// The id in the source; the node is recognised by it.
    pub external_id: String,
    /// The name the source gives it. Without one the site's template applies.
    pub name: Option<Name>,
    pub spec: NodeSpec,
    pub state: Option<ObservedState>,
}

/// The observed state of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedState {
    pub power: Power,
    /// The source's own word for it, such as SMD's `Ready`.
    pub word: String,
}

/// A problem for an operator to look at. The import continues without its subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Warning {
    pub kind: WarningKind,
    /// The node, interface or group, as the source calls it.
    pub subject: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WarningKind {
    /// A value that does not parse was left out.
    Value,
    /// Two want what only one can have; the first keeps it.
    Collision,
    /// More of something than a node can have.
    Limit,
    /// A node's interface seems to be filed under its BMC.
    MisfiledNic,
    /// An interface of a node that is not there.
    Orphan,
    /// The machine is there but cannot be imported as it is.
    Held,
    /// An interface has a placeholder in the place of its MAC, and is left out.
    PlaceholderMac,
    /// Nodes without a NID.
    NoNid,
    /// Nodes without a partition, where others have one.
    NoPartition,
    /// Several interfaces could boot with equal right.
    Boot,
    /// The machine is already here and belongs to someone else.
    Foreign,
    /// A protected node would have been removed.
    Protected,
    /// The result would not be a valid node.
    Invalid,
}

impl WarningKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Collision => "collision",
            Self::Limit => "limit",
            Self::MisfiledNic => "misfiled-nic",
            Self::Orphan => "orphan",
            Self::Held => "held",
            Self::PlaceholderMac => "placeholder-mac",
            Self::NoNid => "no-nid",
            Self::NoPartition => "no-partition",
            Self::Boot => "boot",
            Self::Foreign => "foreign",
            Self::Protected => "protected",
            Self::Invalid => "invalid",
        }
    }
}

impl Warning {
    pub fn new(kind: WarningKind, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, subject: subject.into(), message: message.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.message)
    }
}

/// A field of a node that a source may know, by the name it has in documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    Name,
    Xname,
    Nid,
    Partition,
    Groups,
    Boot,
    Interfaces,
    Arch,
    Firmware,
    Role,
    Subrole,
    Enabled,
    Bmc,
    System,
    Labels,
    Data,
}

impl Field {
    pub const ALL: [Self; 16] = [
        Self::Name,
        Self::Xname,
        Self::Nid,
        Self::Partition,
        Self::Groups,
        Self::Boot,
        Self::Interfaces,
        Self::Arch,
        Self::Firmware,
        Self::Role,
        Self::Subrole,
        Self::Enabled,
        Self::Bmc,
        Self::System,
        Self::Labels,
        Self::Data,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Xname => "xname",
            Self::Nid => "nid",
            Self::Partition => "partition",
            Self::Groups => "groups",
            Self::Boot => "boot",
            Self::Interfaces => "interfaces",
            Self::Arch => "arch",
            Self::Firmware => "firmware",
            Self::Role => "role",
            Self::Subrole => "subrole",
            Self::Enabled => "enabled",
            Self::Bmc => "bmc",
            Self::System => "system",
            Self::Labels => "labels",
            Self::Data => "data",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.as_str() == word)
    }
}

/// A set of [`Field`]s.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldSet(u32);

impl FieldSet {
    pub fn all() -> Self {
        Field::ALL.into_iter().collect()
    }

    pub fn contains(self, field: Field) -> bool {
        self.0 & 1 << field as u32 != 0
    }

    #[must_use]
    pub fn with(self, field: Field) -> Self {
        Self(self.0 | 1 << field as u32)
    }

    #[must_use]
    pub fn without(self, field: Field) -> Self {
        Self(self.0 & !(1 << field as u32))
    }

    pub fn iter(self) -> impl Iterator<Item = Field> {
        Field::ALL.into_iter().filter(move |field| self.contains(*field))
    }
}

impl FromIterator<Field> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> Self {
        fields.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Field::as_str)).finish()
    }
}

/// Why a source gave no set. Nodes from earlier imports stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("{what} is unreachable")]
    Unreachable { what: String, source: Box<dyn std::error::Error + Send + Sync> },

    #[error("{what} did not answer within {}", Seconds(*.after))]
    TimedOut { what: String, after: Duration },

    #[error("{what} refused us with status {status}; check the token")]
    Refused { what: String, status: u16 },

    #[error("{what} answered with status {status}")]
    Status { what: String, status: u16 },

    #[error("the answer of {what} broke off")]
    Partial { what: String, source: Box<dyn std::error::Error + Send + Sync> },

    #[error("{what} makes no sense: {detail}")]
    Malformed { what: String, detail: String },

    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: String, limit: usize },

    #[error("{what} is empty; an empty inventory is an error of the source")]
    Empty { what: String },

    #[error("cannot read `{}`", .path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{} in {what}: {}", count(.errors.len()), first(.errors))]
    Documents { what: String, errors: Vec<Diagnostic> },

    #[error("cannot prepare the connection to {what}")]
    Setup { what: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// The kinds of failure that a metric or a decision tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    Unreachable,
    TimedOut,
    Refused,
    /// Broken off, malformed, too large, or an error status.
    Broken,
    Empty,
    /// Our own side: a file that cannot be read, a bad setting.
    Local,
}

impl FailureKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed-out",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Empty => "empty",
            Self::Local => "local",
        }
    }
}

impl SourceError {
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Unreachable { .. } => FailureKind::Unreachable,
            Self::TimedOut { .. } => FailureKind::TimedOut,
            Self::Refused { .. } => FailureKind::Refused,
            Self::Status { .. }
            | Self::Partial { .. }
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::Documents { .. } => FailureKind::Broken,
            Self::Empty { .. } => FailureKind::Empty,
            Self::Read { .. } | Self::Setup { .. } => FailureKind::Local,
        }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_secs_f32())
    }
}

fn count(errors: usize) -> String {
    if errors == 1 { "an error".to_owned() } else { format!("{errors} errors") }
}

fn first(errors: &[Diagnostic]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

/// Where the inventory of a site is kept, as `--inventory` says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In hoist itself.
    Store,
    /// The base URL of SMD's API, `http://host:27779/hsm/v2`.
    Smd(reqwest::Url),
    File(PathBuf),
    /// The store of another site.
    Shared(SharedStore),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no inventory; write `store`, `smd+http://HOST:PORT`, `smd+https://…`, `file:PATH` or \
     `store+etcd://…`"
)]
pub struct ParseLocationError(String);

impl FromStr for Location {
    type Err = ParseLocationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseLocationError(without_password(text));
        if text == "store" {
            return Ok(Self::Store);
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::File(path.into())) };
        }
        if let Some(address) = text.strip_prefix("store+") {
            return address.parse().map(Self::Shared).map_err(|_| wrong());
        }
        let url = text.strip_prefix("smd+").ok_or_else(wrong)?;
        let mut url: reqwest::Url = url.parse().map_err(|_| wrong())?;
        let plain = url.username().is_empty() && url.password().is_none();
        let bare = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !plain || !bare {
            return Err(wrong());
        }
        let path = match url.path().trim_end_matches('/') {
            "" => "/hsm/v2".to_owned(),
            path => path.to_owned(),
        };
        url.set_path(&path);
        Ok(Self::Smd(url))
    }
}

/// A password has no place in the URL, and even less in the message that says so.
fn without_password(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 < at => {
            format!("{}…{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    }
}

/// Nodes for which no rule says which of several interfaces boots. Apart from the import, because
/// the rules belong to the site's partitions.
pub fn check_boot<'a>(
    nodes: impl IntoIterator<Item = &'a ImportedNode>,
    rules: impl Fn(&Name) -> BootRules<'a>,
) -> Vec<Warning> {
    let unsure = nodes.into_iter().filter_map(|node| {
        let boot = node.spec.boot(&rules(&node.spec.partition))?;
        (boot.selected_by == SelectedBy::Heuristic).then(|| {
            let message = format!(
                "several interfaces could boot; {} was taken for its lowest MAC. Set the \
                 partition's boot networks or subnets",
                boot.mac
            );
            Warning::new(WarningKind::Boot, node.external_id.as_str(), message)
        })
    });
    unsure.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_parses_inventory_urls() {
        assert_eq!("store".parse(), Ok(Location::Store));
        assert_eq!("file:/a/b.yaml".parse(), Ok(Location::File("/a/b.yaml".into())));
        assert_eq!("file:///a/b.yaml".parse(), Ok(Location::File("/a/b.yaml".into())));
        for (text, url) in [
            ("smd+http://smd:27779", "http://smd:27779/hsm/v2"),
            (
                "smd+https://[fd00::1]:27779/apis/smd/hsm/v2/",
                "https://[fd00::1]:27779/apis/smd/hsm/v2",
            ),
        ] {
            assert_eq!(text.parse(), Ok(Location::Smd(url.parse().unwrap())), "{text}");
        }
        for text in ["store+etcd://h1:2379/other", "store+postgres://hoist@db/hoist"] {
            let Ok(Location::Shared(store)) = text.parse() else { panic!("{text}") };
            assert!(text.contains(store.to_string().split("//").next().unwrap()), "{store}");
        }
        assert!("store+embedded".parse::<Location>().is_err());
        for text in ["", "smd", "smd+ftp://a", "http://smd", "file:", "smd+http://a?x=1"] {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
        let error = "smd+http://me:hunter2@smd".parse::<Location>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn field_parses_from_its_word() {
        for field in Field::ALL {
            assert_eq!(Field::from_word(field.as_str()), Some(field));
        }
        let set: FieldSet = [Field::Nid, Field::Data].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [Field::Nid, Field::Data]);
        assert_eq!(FieldSet::all().without(Field::Nid).with(Field::Nid), FieldSet::all());
    }
}
