//! Reading groups, partitions and networks, and everything at once.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::{Group, Listing, NetworkObject, PartitionObject};
use hoist_model::document::Document;
use hoist_model::{GroupKey, Kind, NodeId};
use hoist_site::{Resource, Roster};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};

use super::nodes::NodeQuery;
use super::{Inventory, NDJSON, etag};
use crate::authorisation::Access;
use crate::authorisation::Sight;
use hoist_chassis::extract::{Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;

/// Documents turned into text at once.
const CHUNK: usize = 512;

/// A listing with its tag, built only for those who do not have it.
fn listing<T: Serialize>(
    roster: &Roster,
    headers: &HeaderMap,
    items: impl FnOnce() -> Vec<T>,
) -> Response {
    let tag = etag::of_site(roster);
    if etag::is_known(headers, &tag) {
        return etag::not_modified(&tag);
    }
    let body = Listing { revision: roster.revision(), items: items() };
    etag::tagged(StatusCode::OK, &tag, &body)
}

/// Membership is part of a group, so any change of the site may change it: it has the site's tag.
pub(super) fn group_object(roster: &Roster, sight: &Sight, group: &hoist_model::Group) -> Group {
    let members = roster.members(&group.key());
    let seen = members.into_iter().filter(|node| sight.reaches(roster, node));
    Group::from_stored(group, seen.map(|node| node.name.clone()).collect())
}

pub(super) async fn list_groups(
    State(inventory): State<Inventory>,
    principal: Principal,
    headers: HeaderMap,
) -> Response {
    let roster = inventory.roster();
    let sight = Sight::new(&principal, Verb::Read, &roster);
    let object = |group: &Arc<hoist_model::Group>| group_object(&roster, &sight, group);
    listing(&roster, &headers, || roster.groups().map(object).collect())
}

pub(super) async fn get_group(
    State(inventory): State<Inventory>,
    principal: Principal,
    Path((partition, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = inventory.roster();
    let key = parse_group(&partition, &name)?;
    let group = roster.group(&key).ok_or_else(|| not_there("group", &key))?;
    let sight = Sight::new(&principal, Verb::Read, &roster);
    let tag = etag::of_site(&roster);
    Ok(one(&tag, &headers, || group_object(&roster, &sight, group)))
}

pub(super) fn parse_group(partition: &str, name: &str) -> Result<GroupKey, Failure> {
    let text = format!("{partition}/{name}");
    text.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

pub(super) fn not_there(kind: &str, name: &impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("{kind} `{name}` not found"))
}

fn one<T: Serialize>(tag: &str, headers: &HeaderMap, object: impl FnOnce() -> T) -> Response {
    if etag::is_known(headers, tag) {
        return etag::not_modified(tag);
    }
    etag::tagged(StatusCode::OK, tag, &object())
}

pub(super) async fn list_partitions(
    State(inventory): State<Inventory>,
    headers: HeaderMap,
) -> Response {
    let roster = inventory.roster();
    let object =
        |partition: &Arc<hoist_model::Partition>| PartitionObject::from(partition.as_ref());
    listing(&roster, &headers, || roster.partitions().map(object).collect())
}

pub(super) async fn get_partition(
    State(inventory): State<Inventory>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = inventory.roster();
    let partition = roster.partition(&name).ok_or_else(|| not_there("partition", &name))?;
    let tag = etag::of_object(&roster, Kind::Partition, &name, partition.revision);
    Ok(one(&tag, &headers, || PartitionObject::from(partition.as_ref())))
}

pub(super) async fn list_networks(
    State(inventory): State<Inventory>,
    headers: HeaderMap,
) -> Response {
    let roster = inventory.roster();
    let object = |network: &Arc<hoist_model::Network>| NetworkObject::from(network.as_ref());
    listing(&roster, &headers, || roster.networks().map(object).collect())
}

pub(super) async fn get_network(
    State(inventory): State<Inventory>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = inventory.roster();
    let network = roster.network(&name).ok_or_else(|| not_there("network", &name))?;
    let tag = etag::of_object(&roster, Kind::Network, &name, network.revision);
    Ok(one(&tag, &headers, || NetworkObject::from(network.as_ref())))
}

#[derive(Debug, Deserialize)]
pub(super) struct ExportQuery {
    selector: Option<String>,
}

/// Everything as documents that `apply` takes back: what there is little of, then the nodes.
pub(super) async fn export(
    State(inventory): State<Inventory>,
    principal: Principal,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Failure> {
    let roster = inventory.roster();
    let chosen = NodeQuery::new(&roster, &principal, query.selector.as_deref())?;
    let rest = match query.selector {
        None => lines(other_documents(&roster, &principal).into_iter()),
        Some(_) => Vec::new(),
    };
    let state = (roster, chosen, None, false);
    let nodes = futures_util::stream::unfold(state, |(roster, chosen, after, done)| async move {
        if done {
            return None;
        }
        let mut last: Option<NodeId> = after;
        let mut looked_at = 0;
        let mut documents = Vec::new();
        for node in roster.nodes_after(after).take(CHUNK) {
            looked_at += 1;
            last = Some(node.id);
            if chosen.contains(&roster, node) {
                documents.push(Document::node(node.name.clone(), node.spec.clone()));
            }
        }
        Some((lines(documents.into_iter()), (roster, chosen, last, looked_at < CHUNK)))
    });
    let text = futures_util::stream::iter([rest]).chain(nodes).map(Ok::<_, Infallible>);
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(text.fuse())).into_response())
}

/// The documents other than nodes that a reader may see.
fn other_documents(roster: &Roster, principal: &Principal) -> Vec<Document> {
    let access = Access::new(principal, Verb::Read, roster);
    let partitions = roster.partitions().cloned().map(Resource::Partition);
    let networks = roster.networks().cloned().map(Resource::Network);
    let groups = roster.groups().cloned().map(Resource::Group);
    let artifacts = roster.artifacts().cloned().map(Resource::Artifact);
    let configs = roster.boot_configs().cloned().map(Resource::BootConfig);
    let layers = roster.metadata_layers().cloned().map(Resource::MetadataLayer);
    let profiles = roster.provision_profiles().cloned().map(Resource::ProvisionProfile);
    let all = partitions.chain(networks).chain(groups).chain(artifacts);
    let all = all.chain(configs).chain(layers).chain(profiles);
    all.filter(|resource| access.covers(resource)).filter_map(document).collect()
}

/// A resource as a declared document; `None` for records that are not declared.
fn document(resource: Resource) -> Option<Document> {
    let document = match resource {
        Resource::Node(node) => Document::node(node.name.clone(), node.spec.clone()),
        Resource::Partition(partition) => {
            Document::Partition(partition.name.clone(), partition.spec.clone())
        }
        Resource::Network(network) => Document::Network(network.name.clone(), network.spec.clone()),
        Resource::Group(group) => Document::Group(group.key(), group.spec.clone()),
        Resource::Artifact(artifact) => {
            Document::Artifact(artifact.name.clone(), artifact.spec.clone())
        }
        Resource::BootConfig(config) => {
            Document::BootConfig(config.name.clone(), Box::new(config.spec.clone()))
        }
        Resource::MetadataLayer(layer) => {
            Document::MetadataLayer(layer.name.clone(), Box::new(layer.spec.clone()))
        }
        Resource::ProvisionProfile(profile) => {
            Document::ProvisionProfile(profile.name.clone(), Box::new(profile.spec.clone()))
        }
        Resource::BootState(_)
        | Resource::Bss(_)
        | Resource::BssImage(_)
        | Resource::Set(_)
        | Resource::Tombstone(_) => return None,
    };
    Some(document)
}

fn lines(documents: impl Iterator<Item = Document>) -> Vec<u8> {
    let mut text = Vec::new();
    for document in documents {
        serde_json::to_writer(&mut text, &document).expect("documents are plain values");
        text.push(b'\n');
    }
    text
}
