//! `/meta/v1/nodes/{node}/seed` and `/config-drive`: the documents of a node for machines that no
//! boot script leads to them: by kernel arguments of another boot loader, or as a disk.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::metadata::NodeSeed;
use hoist_metadata::{Secrets, With, config_drive};
use hoist_site::SeedProvider as _;
use http::{HeaderMap, HeaderValue, header};

use super::Metadata;
use super::render::{READ, sight};
use crate::boot::place;
use crate::node_lookup::find_node;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::{GatewayPrefix, Peer};
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Route;

const ISO: &str = "application/x-iso9660-image";

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::get("/meta/v1/nodes/{node}/seed", READ, seed)
            .summary("The kernel arguments with the URL of a node's documents and its seed token")
            .gives::<NodeSeed>(200)
            .selective(),
        Route::get("/meta/v1/nodes/{node}/config-drive", READ, drive)
            .summary("The documents of a node as a config drive, an ISO 9660 image; no secrets")
            .gives_media(200, ISO)
            .selective(),
    ]
}

async fn seed(
    State(metadata): State<Metadata>,
    principal: Principal,
    Path(node): Path<String>,
    peer: Peer,
    prefix: GatewayPrefix,
    headers: HeaderMap,
) -> Result<Json<NodeSeed>, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, &roster), &node)?;
    let base = metadata.boot.booter.base(place(&headers, &peer, prefix));
    let found = metadata.provider.seed_ref(&roster, node, &base);
    Ok(Json(NodeSeed {
        node: node.name.clone(),
        id: node.id,
        mode: metadata.provider.mode_of(&roster, node).to_string(),
        kernel_args: found.kernel_args,
        url: found.url,
    }))
}

async fn drive(
    State(metadata): State<Metadata>,
    principal: Principal,
    Path(node): Path<String>,
) -> Result<Response, Failure> {
    let key = metadata.key.clone();
    let image = metadata.aside(move |renderer, roster| {
        let node = Arc::clone(find_node(roster, &sight(&principal, roster), &node)?);
        let token = key.seed(node.id, node.generation);
        let with = With { token: token.as_str(), secrets: Secrets::LeaveOut, trace: false };
        let rendered = renderer.render(&renderer.compiled(roster), &node, with);
        if let Some(failed) = rendered.failed.first() {
            let detail =
                format!("layer `{}` fails: {}: {}", failed.layer, failed.at, failed.reason);
            let remedy = format!("`hoist metadata render {}` shows it; mend the layer", node.name);
            return Err(Failure::new(Code::Conflict, detail).with_remedy(remedy));
        }
        Ok(config_drive::image(&config_drive::tree(&rendered)))
    });
    let image = image.await??;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(ISO)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, image).into_response())
}
