//! Calls of `/meta/v1`.

use super::{Client, ClientError};
use crate::inventory::Listing;
use crate::metadata::{MetadataLayerObject, Rendering};

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

    /// What a node would be told: one document, or all of them.
    pub async fn render_metadata(
        &self,
        node: &str,
        document: Option<&str>,
        trace: bool,
    ) -> Result<Rendering, ClientError> {
        let call = self.get(&path(&["nodes", node, "render"])).query("doc", document);
        call.flag("trace", trace).ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ROOT.into_iter().chain(rest.iter().copied()).collect()
}
