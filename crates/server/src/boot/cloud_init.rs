//! `/meta-data` and `/user-data`: cloud-init as BSS serves it, at the root.
//!
//! Who asks is known by address alone.

use std::net::IpAddr;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_boot::bss::host_name;
use hoist_boot::cloud_init::{self, Document};
use hoist_model::Node;
use hoist_site::Roster;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;

use super::boot_log::Endpoint;
use super::{Boot, bss_json};
use hoist_chassis::extract::Query;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;

const YAML: HeaderValue = HeaderValue::from_static("text/yaml");

#[derive(Debug, Default, Deserialize)]
pub(super) struct MetaDataQuery {
    key: Option<String>,
}

pub(super) async fn meta_data(
    State(boot): State<Boot>,
    peer: Peer,
    headers: HeaderMap,
    Query(wanted): Query<MetaDataQuery>,
) -> Result<Response, Failure> {
    let address = boot.chassis.proxies.client(&peer, &headers);
    let roster = boot.registry.roster();
    let node = asking(&roster, address)?;
    let Document { value, .. } = cloud_init::meta_data(&roster, node, &address.to_string());
    match wanted.key.filter(|key| !key.is_empty()) {
        None => Ok(bss_json(&value)),
        Some(key) => {
            let part = cloud_init::lookup(&value, &key);
            part.map(bss_json).ok_or_else(|| Failure::new(Code::NotFound, "Not Found"))
        }
    }
}

pub(super) async fn user_data(
    State(boot): State<Boot>,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let address = boot.chassis.proxies.client(&peer, &headers);
    let roster = boot.registry.roster();
    let node = asking(&roster, address)?;
    let Document { value, record } = cloud_init::user_data(&roster, node);
    let yaml = serde_saphyr::to_string(&value).map_err(|error| {
        Failure::new(Code::Internal, format!("the user data cannot be written as YAML: {error}"))
    })?;
    if let Some(node) = node {
        let (name, revision) = record
            .map_or_else(Default::default, |(key, revision)| (format!("bss:{key}"), revision));
        let now = boot.chassis.clock.now();
        boot.log.note_request(node.id, Endpoint::UserData, name, revision, address, now);
    }
    Ok(([(header::CONTENT_TYPE, YAML)], format!("#cloud-config\n{yaml}")).into_response())
}

/// The only node that speaks from the address; a disabled one gets nothing.
pub(super) fn asking(roster: &Roster, address: IpAddr) -> Result<Option<&Node>, Failure> {
    let found = roster.speaking_from(address);
    let [node] = found.as_slice() else { return Ok(None) };
    if !node.spec.enabled {
        let detail = format!("{}: this host is disabled", host_name(node));
        return Err(Failure::new(Code::NotFound, detail));
    }
    Ok(Some(node))
}
