//! Changing groups, partitions and networks.

use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::{Group, NetworkObject, PartitionObject};
use hoist_model::document::Document;
use hoist_model::{Kind, Name};
use hoist_site::Roster;
use hoist_site::registry::WriteError;
use http::{HeaderMap, StatusCode};

use super::{WriteQuery, Writer, applied};
use crate::authorisation::Sight;
use crate::inventory::etag;
use crate::inventory::members::{group_object, parse_group};
use crate::inventory::nodes::bad_parameter;
use crate::inventory::refusal::invalid_documents;
use hoist_chassis::extract::{Json, Path, Query};
use hoist_chassis::failure::Failure;

/// One document, written as if it had been applied.
async fn put(
    writer: &Writer,
    query: WriteQuery,
    headers: &HeaderMap,
    document: Document,
) -> Result<(), Failure> {
    let found = document.check();
    if !found.is_empty() {
        let subject = format!("{} {}", document.kind(), document.name());
        let found = found.into_iter().map(|found| found.within(&subject));
        return Err(invalid_documents(found.collect()));
    }
    writer
        .write(query.terms(), |draft| {
            let roster = writer.inventory.roster();
            let tag = tag_of(&roster, document.kind(), &document.name().to_string());
            etag::check(headers, tag.as_deref())?;
            draft.apply(vec![document.clone()], &mut hoist_site::registry::mint_id);
            Ok(())
        })
        .await?;
    Ok(())
}

/// The version of a document, if there is one.
fn tag_of(roster: &Roster, kind: Kind, name: &str) -> Option<String> {
    match kind {
        Kind::Group => {
            let key = name.parse().ok()?;
            roster.group(&key).map(|_| etag::of_site(roster))
        }
        Kind::Partition => roster
            .partition(name)
            .map(|partition| etag::of_object(roster, kind, name, partition.revision)),
        Kind::Network => roster
            .network(name)
            .map(|network| etag::of_object(roster, kind, name, network.revision)),
        Kind::Artifact => roster
            .artifact(name)
            .map(|artifact| etag::of_object(roster, kind, name, artifact.revision)),
        Kind::BootConfig => roster
            .boot_config(name)
            .map(|config| etag::of_object(roster, kind, name, config.revision)),
        Kind::MetadataLayer => roster
            .metadata_layer(name)
            .map(|layer| etag::of_object(roster, kind, name, layer.revision)),
        Kind::ProvisionProfile => roster
            .provision_profile(name)
            .map(|profile| etag::of_object(roster, kind, name, profile.revision)),
        Kind::Node => {
            roster.by_name(name).map(|node| etag::of_node(roster, node.id, node.revision))
        }
    }
}

async fn remove(
    writer: Writer,
    query: WriteQuery,
    headers: &HeaderMap,
    kind: Kind,
    name: String,
) -> Result<Response, Failure> {
    let written = writer
        .write(query.terms(), |draft| {
            let tag = tag_of(&writer.inventory.roster(), kind, &name);
            if tag.is_none() {
                return Err(WriteError::NotFound { subject: format!("{kind} `{name}`") });
            }
            etag::check(headers, tag.as_deref())?;
            draft.remove(kind, &name);
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, query.terms().dry_run)).into_response())
}

/// The name in the body, if there is one, is that of the path.
fn check_name<T: PartialEq>(at: &str, given: Option<&T>, path: &T) -> Result<(), Failure> {
    if given.is_none_or(|given| given == path) {
        return Ok(());
    }
    let hint = "leave it out, or make them the same";
    Err(bad_parameter(at, "the body says something else than the path", hint))
}

fn parse_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

pub(in crate::inventory) async fn put_group(
    writer: Writer,
    Path((partition, name)): Path<(String, String)>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<Group>,
) -> Result<Response, Failure> {
    let key = parse_group(&partition, &name)?;
    check_name("partition", body.partition.as_ref(), &key.partition)?;
    check_name("name", body.name.as_ref(), &key.name)?;
    let sent = body.clone();
    let document = Document::Group(key.clone(), body.into_spec());
    put(&writer, query, &headers, document).await?;
    let roster = writer.inventory.roster();
    let sight = Sight::new(&writer.principal, Verb::Read, &roster);
    let after = roster.group(&key).map_or(sent, |group| group_object(&roster, &sight, group));
    Ok(etag::tagged(StatusCode::OK, &etag::of_site(&roster), &after))
}

pub(in crate::inventory) async fn delete_group(
    writer: Writer,
    Path((partition, name)): Path<(String, String)>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let key = parse_group(&partition, &name)?;
    remove(writer, query, &headers, Kind::Group, key.to_string()).await
}

pub(in crate::inventory) async fn put_partition(
    writer: Writer,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<PartitionObject>,
) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    check_name("name", body.name.as_ref(), &name)?;
    let sent = body.clone();
    let document = Document::Partition(name.clone(), body.into());
    put(&writer, query, &headers, document).await?;
    let roster = writer.inventory.roster();
    let after = roster.partition(&name).map_or(sent, |partition| partition.as_ref().into());
    let tag = etag::of_object(&roster, Kind::Partition, &name, after.revision);
    Ok(etag::tagged(StatusCode::OK, &tag, &after))
}

pub(in crate::inventory) async fn delete_partition(
    writer: Writer,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    remove(writer, query, &headers, Kind::Partition, name).await
}

pub(in crate::inventory) async fn put_network(
    writer: Writer,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<NetworkObject>,
) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    check_name("name", body.name.as_ref(), &name)?;
    let sent = body.clone();
    let document = Document::Network(name.clone(), body.into());
    put(&writer, query, &headers, document).await?;
    let roster = writer.inventory.roster();
    let after = roster.network(&name).map_or(sent, |network| network.as_ref().into());
    let tag = etag::of_object(&roster, Kind::Network, &name, after.revision);
    Ok(etag::tagged(StatusCode::OK, &tag, &after))
}

pub(in crate::inventory) async fn delete_network(
    writer: Writer,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    remove(writer, query, &headers, Kind::Network, name).await
}
