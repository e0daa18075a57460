//! `/meta/v1/layers` and `/meta/v1/nodes/{node}/render`: the layers, and a preview of a node's
//! documents.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::Listing;
use hoist_api::metadata::{
    FailedLayer, MetadataLayerObject, RenderedDocument, RenderedMetadata, TracedKey, UsedLayer,
};
use hoist_metadata::layers::nodes_of;
use hoist_metadata::{
    Document, Documents, LayerFailure, Layers, Mode, RenderedDocuments, Renderer, Secrets, With,
};
use hoist_model::{MetadataLayer, Name, Node};
use hoist_site::{Resource, Roster};
use serde::Deserialize;

use super::Metadata;
use crate::authorisation::Access;
use crate::authorisation::Sight;
use crate::inventory::bad_parameter;
use crate::node_lookup::find_node;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

pub(super) const READ: AccessClass =
    AccessClass::Admin { context: Context::Metadata, verb: Verb::Read };

/// In the place of the node's token.
pub(super) const TOKEN: &str = "(token)";

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::get("/meta/v1/layers", READ, list)
            .summary("All metadata layers, with the number of nodes that each selects")
            .gives::<Listing<MetadataLayerObject>>(200)
            .selective(),
        Route::get("/meta/v1/layers/{name}", READ, get)
            .summary("One metadata layer")
            .gives::<MetadataLayerObject>(200)
            .selective(),
        Route::get("/meta/v1/nodes/{node}/render", READ, render)
            .summary("The cloud-init documents of a node, without secrets; writes nothing")
            .query("doc", "`meta-data`, `user-data`, `vendor-data` or `network-config`; else all")
            .flag("trace", "with the layer that every key comes from")
            .gives::<RenderedMetadata>(200)
            .selective(),
    ]
}

pub(super) fn sight(principal: &Principal, roster: &Roster) -> Sight {
    Sight::within(principal, Verb::Read, Context::Metadata, roster)
}

impl Metadata {
    /// Runs work that scans all nodes or renders, a few at a time, on separate threads.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Renderer, &Arc<Roster>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.permits.take().await?;
        let renderer = Arc::clone(self.provider.renderer());
        let roster = self.boot.registry.roster();
        let work = tokio::task::spawn_blocking(move || {
            let made = work(&renderer, &roster);
            drop(permit);
            made
        });
        work.await.map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))
    }
}

async fn list(State(metadata): State<Metadata>, principal: Principal) -> Result<Response, Failure> {
    let listing = metadata.aside(move |renderer, roster| {
        let sight = sight(&principal, roster);
        let access = Access::new(&principal, Verb::Read, roster);
        let counts = counts(renderer.compiled(roster).layers(), roster, &sight);
        let items = roster.metadata_layers().filter_map(|layer| {
            let nodes = counts.get(&layer.name).copied().unwrap_or_default();
            is_seen(&access, layer).then(|| MetadataLayerObject::from_stored(layer, nodes))
        });
        Listing { revision: roster.revision(), items: items.collect() }
    });
    Ok(Json(listing.await?).into_response())
}

/// A limited token sees only the layers of its nodes.
fn is_seen(access: &Access<'_>, layer: &Arc<MetadataLayer>) -> bool {
    access.covers(&Resource::MetadataLayer(Arc::clone(layer)))
}

/// How many nodes each layer speaks of, looking once at every node.
fn counts(layers: &Layers, roster: &Roster, sight: &Sight) -> HashMap<Name, usize> {
    let mut counts = HashMap::new();
    for node in roster.nodes().filter(|node| sight.reaches(roster, node)) {
        for layer in layers.of_node(roster, node) {
            *counts.entry(layer.source.name.clone()).or_default() += 1;
        }
    }
    counts
}

async fn get(
    State(metadata): State<Metadata>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let found = metadata.aside(move |_, roster| {
        let sight = sight(&principal, roster);
        let access = Access::new(&principal, Verb::Read, roster);
        let seen = roster.metadata_layer(&name).and_then(|layer| {
            let nodes = nodes_of(roster, layer);
            let nodes = nodes.into_iter().filter(|node| sight.reaches(roster, node)).count();
            is_seen(&access, layer).then(|| MetadataLayerObject::from_stored(layer, nodes))
        });
        seen.ok_or_else(|| {
            Failure::new(Code::NotFound, format!("metadata layer `{name}` not found"))
                .with_remedy("`hoist metadata list` shows all of them")
        })
    });
    found.await?.map(|layer| Json(layer).into_response())
}

#[derive(Debug, Deserialize)]
struct RenderQuery {
    doc: Option<String>,
    #[serde(default)]
    trace: Flag,
}

async fn render(
    State(metadata): State<Metadata>,
    principal: Principal,
    Path(node): Path<String>,
    Query(query): Query<RenderQuery>,
) -> Result<Json<RenderedMetadata>, Failure> {
    let wanted = query.doc.as_deref().map(document).transpose()?;
    let provider = Arc::clone(&metadata.provider);
    let key = metadata.key.clone();
    let rendered = metadata.aside(move |renderer, roster| {
        let node = find_node(roster, &sight(&principal, roster), &node)?;
        let with = With { token: TOKEN, secrets: Secrets::Redact, trace: query.trace.0 };
        let compiled = renderer.compiled(roster);
        let mut rendered = renderer.render(&compiled, node, with);
        let instead = renderer.last_good(&compiled, node, &rendered.failed);
        let stale = instead.is_some();
        if let Some(documents) = instead {
            let token = key.seed(node.id, node.generation);
            rendered.documents = without(&documents, token.as_str());
            rendered.trace.clear();
        }
        let shown = rendering(roster, node, rendered, wanted, provider.mode_of(roster, node));
        Ok(RenderedMetadata { stale, ..shown })
    });
    rendered.await?.map(Json)
}

/// Documents as they are served, but for the token in them.
pub(super) fn without(documents: &Documents, token: &str) -> Documents {
    let shown =
        |document: &Bytes| Bytes::from(String::from_utf8_lossy(document).replace(token, TOKEN));
    Documents {
        meta_data: shown(&documents.meta_data),
        user_data: shown(&documents.user_data),
        vendor_data: shown(&documents.vendor_data),
        network_config: shown(&documents.network_config),
    }
}

fn document(word: &str) -> Result<Document, Failure> {
    Document::from_word(word).ok_or_else(|| {
        let known = Document::ALL.map(Document::as_str).join(", ");
        bad_parameter(
            "doc",
            &format!("document `{word}` not found"),
            &format!("the documents are {known}"),
        )
    })
}

fn rendering(
    roster: &Roster,
    node: &Node,
    rendered: RenderedDocuments,
    wanted: Option<Document>,
    mode: &Mode,
) -> RenderedMetadata {
    let is_wanted = |document: Document| wanted.is_none_or(|wanted| wanted == document);
    let documents = Document::ALL.into_iter().filter(|document| is_wanted(*document));
    let documents = documents.map(|document| RenderedDocument {
        document: document.to_string(),
        text: String::from_utf8_lossy(rendered.documents.get(document)).into_owned(),
    });
    let trace = rendered.trace.iter().filter(|(document, _)| is_wanted(*document));
    let trace = trace.map(|(document, traced)| TracedKey {
        document: document.to_string(),
        key: traced.key.clone(),
        from: traced.from.to_string(),
        over: traced.over.iter().map(ToString::to_string).collect(),
    });
    let failed =
        |LayerFailure { layer, at, reason, .. }: LayerFailure| FailedLayer { layer, at, reason };
    RenderedMetadata {
        node: node.name.clone(),
        id: node.id,
        revision: roster.revision(),
        mode: mode.to_string(),
        elsewhere: mode.elsewhere(node),
        stale: false,
        layers: rendered.layers.iter().filter_map(|name| used(roster, name)).collect(),
        documents: documents.collect(),
        trace: trace.collect(),
        failed: rendered.failed.into_iter().map(failed).collect(),
        warnings: rendered.warnings,
    }
}

fn used(roster: &Roster, name: &Name) -> Option<UsedLayer> {
    let spec = &roster.metadata_layer(name)?.spec;
    let selector = spec.selector.as_ref().map(ToString::to_string).unwrap_or_default();
    Some(UsedLayer { name: name.clone(), selector, priority: spec.priority })
}
