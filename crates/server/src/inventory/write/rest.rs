//! Changing groups, partitions and networks.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::{Group, NetworkObject, PartitionObject};
use hoist_model::document::{Document, DocumentName, Spec};
use hoist_model::{Kind, Name};
use http::StatusCode;

use super::{WriteQuery, Writer, applied};
use crate::auth::AuditContext;
use crate::extract::{Json, Path, Query};
use crate::failure::Failure;
use crate::inventory::members::{group_object, parse_group};
use crate::inventory::refusal::invalid_documents;
use crate::inventory::sight::Sight;
use crate::inventory::{Inventory, etag};
use crate::principal::Principal;

/// One document, written as if it had been applied.
async fn put(writer: &Writer, query: WriteQuery, document: Document) -> Result<(), Failure> {
    let faults = document.check();
    if !faults.is_empty() {
        let error = |fault: hoist_model::Fault| hoist_model::document::DocumentError {
            source: "body".to_owned(),
            line: 0,
            column: 0,
            subject: Some(format!("{} {}", document.kind(), document.name)),
            message: format!("{}: {}", fault.at, fault.message),
            hint: fault.hint,
        };
        return Err(invalid_documents(faults.into_iter().map(error).collect()));
    }
    writer
        .write(query.terms(), |draft| {
            draft.apply(vec![document.clone()], &mut hoist_inventory::registry::mint_id);
            Ok(())
        })
        .await?;
    Ok(())
}

async fn remove(
    writer: Writer,
    query: WriteQuery,
    kind: Kind,
    name: String,
) -> Result<Response, Failure> {
    let roster = writer.inventory.roster();
    let there = match kind {
        Kind::Group => name.parse().is_ok_and(|key| roster.group(&key).is_some()),
        Kind::Partition => roster.partition(&name).is_some(),
        Kind::Network => roster.network(&name).is_some(),
        Kind::Node => roster.by_name(&name).is_some(),
    };
    if !there {
        return Err(Failure::new(Code::NotFound, format!("there is no {kind} `{name}`")));
    }
    let written = writer
        .write(query.terms(), |draft| {
            draft.remove(kind, &name);
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, query.terms().dry_run)).into_response())
}

fn parse_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

pub(in crate::inventory) async fn put_group(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path((partition, name)): Path<(String, String)>,
    Query(query): Query<WriteQuery>,
    Json(body): Json<Group>,
) -> Result<Response, Failure> {
    let key = parse_group(&partition, &name)?;
    let sent = body.clone();
    let document =
        Document { name: DocumentName::Group(key.clone()), spec: Spec::Group(body.into_spec()) };
    let writer = Writer { inventory, principal, audit };
    put(&writer, query, document).await?;
    let roster = writer.inventory.roster();
    let sight = Sight::new(&writer.principal, Verb::Read, &roster);
    let after = roster.group(&key).map_or(sent, |group| group_object(&roster, &sight, group));
    Ok(etag::tagged(StatusCode::OK, &etag::of_site(&roster), &after))
}

pub(in crate::inventory) async fn delete_group(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path((partition, name)): Path<(String, String)>,
    Query(query): Query<WriteQuery>,
) -> Result<Response, Failure> {
    let key = parse_group(&partition, &name)?;
    remove(Writer { inventory, principal, audit }, query, Kind::Group, key.to_string()).await
}

pub(in crate::inventory) async fn put_partition(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    Json(body): Json<PartitionObject>,
) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    let sent = body.clone();
    let document =
        Document { name: DocumentName::Plain(name.clone()), spec: Spec::Partition(body.into()) };
    let writer = Writer { inventory, principal, audit };
    put(&writer, query, document).await?;
    let roster = writer.inventory.roster();
    let after = roster.partition(&name).map_or(sent, |partition| partition.as_ref().into());
    Ok(etag::tagged(StatusCode::OK, &etag::of_site(&roster), &after))
}

pub(in crate::inventory) async fn delete_partition(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
) -> Result<Response, Failure> {
    remove(Writer { inventory, principal, audit }, query, Kind::Partition, name).await
}

pub(in crate::inventory) async fn put_network(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    Json(body): Json<NetworkObject>,
) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    let sent = body.clone();
    let document =
        Document { name: DocumentName::Plain(name.clone()), spec: Spec::Network(body.into()) };
    let writer = Writer { inventory, principal, audit };
    put(&writer, query, document).await?;
    let roster = writer.inventory.roster();
    let after = roster.network(&name).map_or(sent, |network| network.as_ref().into());
    Ok(etag::tagged(StatusCode::OK, &etag::of_site(&roster), &after))
}

pub(in crate::inventory) async fn delete_network(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
) -> Result<Response, Failure> {
    remove(Writer { inventory, principal, audit }, query, Kind::Network, name).await
}
