//! Bodies of `/meta/v1`: the layers and the documents rendered from them.

use hoist_model::{MetadataLayer, MetadataLayerSpec, Name, NodeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A metadata layer. It is written as a document, with `POST /inventory/v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MetadataLayerObject {
    pub name: Name,
    #[serde(flatten)]
    pub spec: MetadataLayerSpec,
    /// Number of its nodes.
    pub nodes: usize,
    pub revision: u64,
}

impl MetadataLayerObject {
    pub fn from_stored(layer: &MetadataLayer, nodes: usize) -> Self {
        Self { name: layer.name.clone(), spec: layer.spec.clone(), nodes, revision: layer.revision }
    }
}

/// `GET /meta/v1/nodes/{node}/render`: the metadata of a node. Secrets are shown as `(secret)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenderedMetadata {
    pub node: Name,
    pub id: NodeId,
    pub revision: u64,
    /// The provider of the node's documents: `builtin`, `external`, `redirect`, `proxy` or `none`.
    /// Unless it is `builtin`, these are the documents hoist would serve, not those the node gets.
    #[serde(default)]
    pub mode: String,
    /// The other source of the documents: a URL, or the argument on the kernel's command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
    /// Layers fail, and the documents are those that the node is served instead: the last ones in
    /// which nothing failed. They have no trace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The layers of the node; later ones override earlier ones.
    pub layers: Vec<UsedLayer>,
    pub documents: Vec<RenderedDocument>,
    /// The origin of every key, if the request asked for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<TracedKey>,
    /// Layers in which something fails for this node. They are left out, unless the documents are
    /// `stale`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedLayer>,
    /// Content that is served but probably without the intended effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// `GET /meta/v1/nodes/{node}/seed`: how a node is led to its documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSeed {
    pub node: Name,
    pub id: NodeId,
    /// The provider of the node's documents: `builtin`, `external`, `redirect`, `proxy` or `none`.
    pub mode: String,
    /// For the kernel's command line; empty when the node gets no documents.
    pub kernel_args: String,
    /// The URL of the documents at this controller. Ends with a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsedLayer {
    pub name: Name,
    /// `*`, `partition:p1`, `group:gpu` or `node:n1`.
    pub selector: String,
    pub priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenderedDocument {
    /// `meta-data`, `user-data`, `vendor-data` or `network-config`.
    pub document: String,
    /// Empty when there is nothing to say.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracedKey {
    pub document: String,
    /// Such as `ntp.servers[0]`.
    pub key: String,
    /// The layer of the value: `layer:site`, or `network:mgmt` or `hoist` for values of no layer.
    pub from: String,
    /// Whose values it took the place of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedLayer {
    pub layer: Name,
    /// The path in the layer.
    pub at: String,
    pub reason: String,
}
