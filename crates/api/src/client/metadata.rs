//! Calls of `/meta/v1`.

use super::{Client, ClientError, whole};
use crate::inventory::Listing;
use crate::metadata::{MetadataLayerObject, NodeSeed, RenderedMetadata};

const ROOT: [&str; 2] = ["meta", "v1"];

impl Client {
    pub async fn metadata_layers(&self) -> Result<Listing<MetadataLayerObject>, ClientError> {
        self.get(&path(&["layers"])).ordinary().value().await
    }

    pub async fn metadata_layer(
        &self,
        name: &str,
    ) -> Result<Option<MetadataLayerObject>, ClientError> {
        self.get(&path(&["layers", name])).ordinary().optional().await
    }

    /// The rendered metadata of a node: one document, or all of them.
    pub async fn render_metadata(
        &self,
        node: &str,
        document: Option<&str>,
        trace: bool,
    ) -> Result<RenderedMetadata, ClientError> {
        let call = self.get(&path(&["nodes", node, "render"])).query("doc", document);
        call.flag("trace", trace).ordinary().value().await
    }

    /// The kernel arguments that lead a node to its documents.
    pub async fn node_seed(&self, node: &str) -> Result<NodeSeed, ClientError> {
        self.get(&path(&["nodes", node, "seed"])).ordinary().value().await
    }

    /// The documents of a node as an ISO 9660 image.
    pub async fn config_drive(&self, node: &str) -> Result<Vec<u8>, ClientError> {
        let call = self.get(&path(&["nodes", node, "config-drive"])).ordinary();
        Ok(whole(call.send().await?, false).await?.to_vec())
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ROOT.into_iter().chain(rest.iter().copied()).collect()
}
