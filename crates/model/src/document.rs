//! Resources as people write them: `{api: hoist/v1, kind, name, spec}` in YAML or JSON, several to
//! a file.
//!
//! Reading never stops at the first error: every document of a file is checked, and each
//! [`Diagnostic`] names file, line, column and document in `at`, and the remedy.

mod plain;
mod read;

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::Serialize;

pub use read::{Suggestion, cloud_config, from_json, read, read_one, suggested};

use crate::{
    ArtifactName, ArtifactSpec, BootConfigSpec, GroupKey, GroupSpec, MetadataLayerSpec, Name,
    NetworkSpec, NodeSpec, PartitionSpec, ProvisionProfileSpec,
};

/// The version of the document format.
pub const API: &str = "hoist/v1";

/// What kinds of documents there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Partition,
    Network,
    Group,
    Node,
    Artifact,
    BootConfig,
    MetadataLayer,
    ProvisionProfile,
}

/// One resource as declared: its name and its spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    Partition(Name, PartitionSpec),
    Network(Name, NetworkSpec),
    Group(GroupKey, GroupSpec),
    Node(Name, Box<NodeSpec>),
    Artifact(ArtifactName, ArtifactSpec),
    BootConfig(Name, Box<BootConfigSpec>),
    MetadataLayer(Name, Box<MetadataLayerSpec>),
    ProvisionProfile(Name, Box<ProvisionProfileSpec>),
}

/// The name of a document: a group's name has two parts, an artifact's is a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentName {
    Plain(Name),
    Group(GroupKey),
    Artifact(ArtifactName),
}

impl Kind {
    /// In the order in which documents refer to each other, so that listings read well.
    pub const ALL: [Self; 8] = [
        Self::Partition,
        Self::Network,
        Self::Group,
        Self::Node,
        Self::Artifact,
        Self::BootConfig,
        Self::MetadataLayer,
        Self::ProvisionProfile,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Partition => "Partition",
            Self::Network => "Network",
            Self::Group => "Group",
            Self::Node => "Node",
            Self::Artifact => "Artifact",
            Self::BootConfig => "BootConfig",
            Self::MetadataLayer => "MetadataLayer",
            Self::ProvisionProfile => "ProvisionProfile",
        }
    }

    /// Any spelling people use: `Node`, `node`, `nodes`.
    pub fn from_word(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        Self::ALL.into_iter().find(|kind| {
            let name = kind.as_str().to_ascii_lowercase();
            word == name || word.strip_suffix('s') == Some(&name)
        })
    }

    /// The JSON Schema of a whole document of this kind, for editors and other tools.
    pub fn schema(self) -> serde_json::Value {
        let spec = match self {
            Self::Partition => schemars::schema_for!(PartitionSpec),
            Self::Network => schemars::schema_for!(NetworkSpec),
            Self::Group => schemars::schema_for!(GroupSpec),
            Self::Node => schemars::schema_for!(NodeSpec),
            Self::Artifact => schemars::schema_for!(ArtifactSpec),
            Self::BootConfig => schemars::schema_for!(BootConfigSpec),
            Self::MetadataLayer => schemars::schema_for!(MetadataLayerSpec),
            Self::ProvisionProfile => schemars::schema_for!(ProvisionProfileSpec),
        };
        let mut spec = spec.to_value();
        let defs = spec.as_object_mut().and_then(|spec| spec.remove("$defs"));
        serde_json::json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": format!("hoist {}", self.as_str()),
            "type": "object",
            "required": ["api", "kind", "name"],
            "additionalProperties": false,
            "properties": {
                "api": { "const": API },
                "kind": { "const": self.as_str() },
                "name": { "type": "string" },
                "spec": spec,
            },
            "$defs": defs.unwrap_or_default(),
        })
    }
}

impl Document {
    pub fn node(name: Name, spec: NodeSpec) -> Self {
        Self::Node(name, Box::new(spec))
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Partition(..) => Kind::Partition,
            Self::Network(..) => Kind::Network,
            Self::Group(..) => Kind::Group,
            Self::Node(..) => Kind::Node,
            Self::Artifact(..) => Kind::Artifact,
            Self::BootConfig(..) => Kind::BootConfig,
            Self::MetadataLayer(..) => Kind::MetadataLayer,
            Self::ProvisionProfile(..) => Kind::ProvisionProfile,
        }
    }

    pub fn name(&self) -> DocumentName {
        match self {
            Self::Group(key, _) => DocumentName::Group(key.clone()),
            Self::Artifact(name, _) => DocumentName::Artifact(name.clone()),
            Self::Partition(name, _)
            | Self::Network(name, _)
            | Self::Node(name, _)
            | Self::BootConfig(name, _)
            | Self::MetadataLayer(name, _)
            | Self::ProvisionProfile(name, _) => DocumentName::Plain(name.clone()),
        }
    }

    /// The problems that can be found without the site.
    pub fn check(&self) -> Vec<Diagnostic> {
        match self {
            Self::Partition(..) => Vec::new(),
            Self::Network(_, spec) => spec.check(),
            Self::Group(_, spec) => spec.check(),
            Self::Node(_, spec) => spec.check(),
            Self::Artifact(_, spec) => spec.check(),
            Self::BootConfig(_, spec) => spec.check(),
            Self::MetadataLayer(_, spec) => spec.check(),
            Self::ProvisionProfile(_, spec) => spec.check(),
        }
    }

    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("a document is made of maps, lists and plain values")
    }
}

impl std::fmt::Display for DocumentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(name) => name.fmt(f),
            Self::Group(key) => key.fmt(f),
            Self::Artifact(name) => name.fmt(f),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Document {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Document", 4)?;
        out.serialize_field("api", API)?;
        out.serialize_field("kind", self.kind().as_str())?;
        out.serialize_field("name", &self.name().to_string())?;
        match self {
            Self::Partition(_, spec) => out.serialize_field("spec", spec)?,
            Self::Network(_, spec) => out.serialize_field("spec", spec)?,
            Self::Group(_, spec) => out.serialize_field("spec", spec)?,
            Self::Node(_, spec) => out.serialize_field("spec", spec)?,
            Self::Artifact(_, spec) => out.serialize_field("spec", spec)?,
            Self::BootConfig(_, spec) => out.serialize_field("spec", spec)?,
            Self::MetadataLayer(_, spec) => out.serialize_field("spec", spec)?,
            Self::ProvisionProfile(_, spec) => out.serialize_field("spec", spec)?,
        }
        out.end()
    }
}

impl JsonSchema for Document {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Document".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "required": ["api", "kind", "name"],
            "description": "A resource as people write it; `hoist schema KIND` has the whole truth.",
            "properties": {
                "api": { "const": API },
                "kind": { "enum": Kind::ALL.map(Kind::as_str) },
                "name": { "type": "string" },
                "spec": { "type": "object" },
            },
        })
    }
}

#[cfg(test)]
mod tests;
