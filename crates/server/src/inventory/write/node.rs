//! Changing one node.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::{
    MaintainRequest, Node, NodeBoot, ProtectRequest, ReleaseRequest, SwapRequest,
};
use hoist_diagnostic::Diagnostic;
use hoist_model::{BootChoice, Kind, Maintenance, Name, NodeId, NodeSpec, NodeState, Protection};
use hoist_site::plan::{Draft, MANAGED_FIELDS, Reason, Refusal};
use hoist_site::registry::{WriteError, mint_id};
use http::{HeaderMap, StatusCode};

use super::{WriteQuery, Writer, applied, check_version};
use crate::authorisation::Sight;
use crate::inventory::nodes::{NodeKey, bad_parameter, parse_id};
use crate::inventory::write_failure;
use crate::inventory::{Inventory, etag};
use crate::node_lookup::no_such_node;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;

pub(in crate::inventory) async fn create_node(
    writer: Writer,
    Query(query): Query<WriteQuery>,
    Json(body): Json<Node>,
) -> Result<Response, Failure> {
    let name = name_of(&body, None)?;
    let spec = checked(&name, body)?;
    let roster = writer.inventory.roster();
    let sight = writer.sight(&roster);
    if roster.by_name(&name).is_some_and(|node| sight.reaches(&roster, node)) {
        return Err(Failure::new(Code::Conflict, format!("there is a node `{name}` already"))
            .with_remedy("change it with PUT, or choose another name"));
    }
    let id = mint_id();
    let written = writer
        .write(query.terms(), |draft| {
            draft.put_node(id, name.clone(), spec.clone());
            Ok(())
        })
        .await?;
    let (node, tag) = writer.node_after(&written, id)?;
    Ok(etag::tagged(StatusCode::CREATED, &tag, &node))
}

pub(in crate::inventory) async fn put_node(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<Node>,
) -> Result<Response, Failure> {
    let id = parse_id(&id)?;
    writer.check_sight(id)?;
    let roster = writer.inventory.roster();
    let known = roster.by_id(id).ok_or_else(|| no_such_node(id))?;
    replace(writer, query, &headers, known, body).await
}

/// `PUT …/by/KEY/VALUE`: the value belongs to the node, so a body without it gets it.
pub(in crate::inventory) async fn put_node_by(
    writer: Writer,
    Path((key, value)): Path<(String, String)>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(mut body): Json<Node>,
) -> Result<Response, Failure> {
    let key = NodeKey::parse(&key, &value)?;
    let roster = writer.inventory.roster();
    let known = key.find(&roster, &writer.sight(&roster))?;
    take_key(&key, known.is_some(), &mut body)?;
    if let Some(known) = known {
        return replace(writer, query, &headers, known, body).await;
    }
    let name = name_of(&body, None)?;
    let spec = checked(&name, body)?;
    let id = mint_id();
    // A node out of reach that has the key already makes this a clash, told as out of reach.
    let written = writer
        .write(query.terms(), |draft| {
            etag::check(&headers, None)?;
            draft.put_node(id, name.clone(), spec.clone());
            Ok(())
        })
        .await?;
    let (node, tag) = writer.node_after(&written, id)?;
    Ok(etag::tagged(StatusCode::CREATED, &tag, &node))
}

async fn replace(
    writer: Writer,
    query: WriteQuery,
    headers: &HeaderMap,
    known: &hoist_model::Node,
    mut body: Node,
) -> Result<Response, Failure> {
    let id = known.id;
    if body.id.is_some_and(|given| given != id) {
        let message = format!("the body is that of another node, not of `{id}`");
        return Err(bad_parameter("id", &message, "leave `id` out, or send it to its own path"));
    }
    keep_choice(&writer.inventory, known, &mut body);
    let name = name_of(&body, Some(&known.name))?;
    let spec = checked(&name, body)?;
    let written = writer
        .write(query.terms(), |draft| {
            check_version(headers, draft, &writer.inventory, id)?;
            draft.put_node(id, name.clone(), spec.clone());
            Ok(())
        })
        .await?;
    let (node, tag) = writer.node_after(&written, id)?;
    Ok(etag::tagged(StatusCode::OK, &tag, &node))
}

/// A read node shows the whole boot interface, however little was declared about it. Sent back as
/// it was shown, it declares no more than before.
fn keep_choice(inventory: &Inventory, known: &hoist_model::Node, body: &mut Node) {
    let shown = inventory.roster().boot(known).map(NodeBoot::from);
    if body.boot.is_some() && body.boot == shown {
        let choice = known.spec.boot.as_deref().cloned();
        body.boot = choice.map(|BootChoice { mac, ip, interface }| NodeBoot {
            mac,
            ip,
            interface,
            selected_by: None,
        });
    }
}

/// The key in the path must be the node's own: a body that says otherwise is refused.
fn take_key(key: &NodeKey, known: bool, body: &mut Node) -> Result<(), Failure> {
    let differs = |what: &str| {
        bad_parameter(what, "the body says something else than the path", "make them the same")
    };
    match key {
        NodeKey::Name(name) if body.name.as_ref().is_none_or(|given| given == name) => {
            body.name = Some(name.clone());
            Ok(())
        }
        // A new name in the body renames the node, if there is one to rename.
        NodeKey::Name(_) if known => Ok(()),
        NodeKey::Name(_) => Err(differs("name")),
        NodeKey::Xname(xname) if body.xname.is_none_or(|given| given == *xname) => {
            body.xname = Some(*xname);
            Ok(())
        }
        NodeKey::Xname(_) => Err(differs("xname")),
        NodeKey::Nid(nid) if body.nid.is_none_or(|given| given == *nid) => {
            body.nid = Some(*nid);
            Ok(())
        }
        NodeKey::Nid(_) => Err(differs("nid")),
        NodeKey::Mac(mac) => {
            let has = body.interfaces.iter().any(|interface| interface.mac == *mac);
            if has { Ok(()) } else { Err(differs("mac")) }
        }
        NodeKey::Ip { ip, .. } => {
            let mut addresses = body.interfaces.iter().flat_map(|interface| &interface.addresses);
            if addresses.any(|address| address.addr() == *ip) { Ok(()) } else { Err(differs("ip")) }
        }
        NodeKey::Uuid(uuid) => {
            let given = body.system.as_ref().and_then(|system| system.uuid.as_ref());
            if given == Some(uuid) { Ok(()) } else { Err(differs("uuid")) }
        }
    }
}

/// The name in the body, else the known one, else one made from the nid.
fn name_of(body: &Node, known: Option<&Name>) -> Result<Name, Failure> {
    let from_nid = || {
        let nid = body.nid?.get();
        Some(format!("nid{nid:06}").parse().expect("letters and digits"))
    };
    body.name.clone().or_else(|| known.cloned()).or_else(from_nid).ok_or_else(|| {
        bad_parameter("name", "a node needs a name", "give `name`, or a `nid` to make it from")
    })
}

/// The spec of a body, if it is right by itself.
fn checked(name: &Name, body: Node) -> Result<NodeSpec, Failure> {
    let spec = body.into_spec();
    let diagnostics = spec.check();
    if diagnostics.is_empty() {
        return Ok(spec);
    }
    let detail = format!("Node {name}: {}", diagnostics[0]);
    let mut problem = hoist_api::Problem::new(Code::InvalidBody, detail);
    for Diagnostic { at, message, hint } in diagnostics {
        problem = problem.with_diagnostic(hoist_diagnostic::Diagnostic { at, message, hint });
    }
    Err(problem.into())
}

pub(in crate::inventory) async fn delete_node(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = parse_id(&id)?;
    writer.check_sight(id)?;
    let written = writer
        .write(query.terms(), |draft| {
            there(draft, id)?;
            check_version(&headers, draft, &writer.inventory, id)?;
            draft.remove_node(id);
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, query.terms().dry_run)).into_response())
}

pub(super) fn there(draft: &Draft<'_>, id: NodeId) -> Result<(), WriteError> {
    match draft.node(id) {
        Some(_) => Ok(()),
        None => Err(WriteError::NotFound { subject: format!("node `{id}`") }),
    }
}

/// Changes the server's fields of a node, which are not in the spec.
async fn amend(
    writer: Writer,
    id: &str,
    query: WriteQuery,
    headers: &HeaderMap,
    mut change: impl FnMut(&mut hoist_model::Node) + Send,
) -> Result<Response, Failure> {
    let id = parse_id(id)?;
    writer.check_sight(id)?;
    let written = writer
        .write(query.terms(), |draft| {
            there(draft, id)?;
            check_version(headers, draft, &writer.inventory, id)?;
            draft.amend_node(id, &mut change);
            Ok(())
        })
        .await?;
    let (node, tag) = writer.node_after(&written, id)?;
    Ok(etag::tagged(StatusCode::OK, &tag, &node))
}

pub(in crate::inventory) async fn protect(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<ProtectRequest>,
) -> Result<Response, Failure> {
    let since = writer.inventory.chassis.clock.now();
    amend(writer, &id, query, &headers, move |node| {
        // Protecting twice keeps the first date: nothing happened in between.
        let since = node.protection.as_ref().map_or(since, |protection| protection.since);
        node.protection = Some(Box::new(Protection { reason: body.reason.clone(), since }));
    })
    .await
}

pub(in crate::inventory) async fn unprotect(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    amend(writer, &id, query, &headers, |node| {
        node.protection = None;
    })
    .await
}

pub(in crate::inventory) async fn maintain(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<MaintainRequest>,
) -> Result<Response, Failure> {
    let since = writer.inventory.chassis.clock.now();
    if body.until.is_some_and(|until| until <= since) {
        return Err(bad_parameter("until", "it is in the past", "give a time to come"));
    }
    amend(writer, &id, query, &headers, move |node| {
        let since = node.maintenance.as_ref().map_or(since, |maintenance| maintenance.since);
        let MaintainRequest { reason, until } = body.clone();
        node.maintenance = Some(Box::new(Maintenance { reason, since, until }));
    })
    .await
}

pub(in crate::inventory) async fn end_maintenance(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    amend(writer, &id, query, &headers, |node| {
        node.maintenance = None;
    })
    .await
}

pub(in crate::inventory) async fn release(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<ReleaseRequest>,
) -> Result<Response, Failure> {
    if let Some(unknown) = body.fields.iter().find(|f| !MANAGED_FIELDS.contains(&f.as_str())) {
        let hint = format!("there are {}", MANAGED_FIELDS.join(", "));
        let message = format!("`{unknown}` is not a field that sources set");
        return Err(bad_parameter("fields", &message, &hint));
    }
    writer.check_sight(parse_id(&id)?)?;
    let known = writer.inventory.roster().by_id(parse_id(&id)?).cloned();
    if known.is_some_and(|node| node.provenance.is_none()) {
        return Err(Failure::new(
            Code::Conflict,
            "the node was not imported: all its fields are yours",
        ));
    }
    amend(writer, &id, query, &headers, move |node| {
        if let Some(provenance) = &mut node.provenance {
            provenance.released.clone_from(&body.fields);
            provenance.released.sort();
            provenance.released.dedup();
        }
    })
    .await
}

pub(in crate::inventory) async fn put_state(
    State(inventory): State<Inventory>,
    principal: Principal,
    Path(id): Path<String>,
    audit: AuditContext,
    Json(state): Json<NodeState>,
) -> Result<Response, Failure> {
    let id = parse_id(&id)?;
    let roster = inventory.roster();
    let sight = Sight::new(&principal, Verb::Write, &roster);
    let node = roster.by_id(id).filter(|node| sight.reaches(&roster, node));
    let node = node.ok_or_else(|| no_such_node(id))?;
    // Observations are frequent and not decisions, so they are not audited.
    audit.nothing_written();
    inventory.states.set(id, state.clone()).await?;
    let told = serde_json::json!({ "state": state });
    inventory.chassis.events.publish("node.state", &format!("node/{}", node.name), told);
    Ok(Json(state).into_response())
}

pub(in crate::inventory) async fn swap(
    writer: Writer,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<SwapRequest>,
) -> Result<Response, Failure> {
    let id = parse_id(&id)?;
    if body.with.is_some() != body.macs.is_empty() {
        return Err(bad_parameter("swap", "say `macs` or `with`", "exactly one of the two"));
    }
    writer.check_sight(id)?;
    let spare = body
        .with
        .as_ref()
        .and_then(|spare| writer.inventory.roster().by_name(spare).map(|node| node.id));
    if spare.is_some_and(|spare| writer.check_sight(spare).is_err()) {
        let subject = format!("node `{}`", body.with.as_deref().unwrap_or_default());
        return Err(write_failure(WriteError::NotFound { subject }));
    }
    let written = writer
        .write(query.terms(), |draft| {
            there(draft, id)?;
            check_version(&headers, draft, &writer.inventory, id)?;
            match &body.with {
                Some(spare) => exchange(draft, id, spare),
                None => replace_macs(draft, id, &body),
            }
        })
        .await?;
    let (node, tag) = writer.node_after(&written, id)?;
    Ok(etag::tagged(StatusCode::OK, &tag, &node))
}

fn refused(name: &Name, at: &str, message: String) -> WriteError {
    let diagnostic = Diagnostic::new(at, message);
    WriteError::Refused(vec![Refusal::of(Reason::Invalid, Kind::Node, name, diagnostic)])
}

fn replace_macs(draft: &mut Draft<'_>, id: NodeId, body: &SwapRequest) -> Result<(), WriteError> {
    let Some(node) = draft.node(id) else { return Ok(()) };
    for swap in &body.macs {
        if !node.spec.interfaces.iter().any(|interface| interface.mac == swap.old) {
            let message = format!("no interface has the MAC {}", swap.old);
            return Err(refused(&node.name, "macs", message));
        }
    }
    draft.amend_node(id, |node| {
        for interface in &mut node.spec.interfaces {
            if let Some(swap) = body.macs.iter().find(|swap| swap.old == interface.mac) {
                interface.mac = swap.new;
            }
        }
        let chosen = node.spec.boot.as_mut().and_then(|choice| choice.mac.as_mut());
        if let Some(mac) = chosen
            && let Some(swap) = body.macs.iter().find(|swap| swap.old == *mac)
        {
            *mac = swap.new;
        }
        if body.system.is_some() {
            node.spec.system.clone_from(&body.system);
        }
    });
    Ok(())
}

/// Two nodes exchange their machines: MACs by interface name, system identity and BMC.
fn exchange(draft: &mut Draft<'_>, id: NodeId, spare: &Name) -> Result<(), WriteError> {
    let spare_id = draft
        .id_of(spare)
        .ok_or_else(|| WriteError::NotFound { subject: format!("node `{spare}`") })?;
    let (Some(one), Some(other)) = (draft.node(id), draft.node(spare_id)) else { return Ok(()) };
    let names = |node: &hoist_model::Node| {
        let mut names: Vec<_> = node.spec.interfaces.iter().map(|i| i.name.clone()).collect();
        names.sort();
        names
    };
    if names(one) != names(other) {
        let message = format!("`{}` and `{spare}` have different interfaces", one.name);
        return Err(refused(&one.name, "with", message));
    }
    let hardware = one.spec.clone();
    let spare_hardware = other.spec.clone();
    draft.amend_node(id, |node| move_in(&mut node.spec, &spare_hardware));
    draft.amend_node(spare_id, |node| move_in(&mut node.spec, &hardware));
    Ok(())
}

fn move_in(spec: &mut NodeSpec, machine: &NodeSpec) {
    for interface in &mut spec.interfaces {
        if let Some(new) = machine.interfaces.iter().find(|other| other.name == interface.name) {
            interface.mac = new.mac;
        }
    }
    // A choice by MAC names a machine; which interface boots is then up to the rules again.
    if let Some(choice) = &mut spec.boot {
        choice.mac = None;
    }
    spec.boot = spec.boot.take().filter(|choice| **choice != hoist_model::BootChoice::default());
    spec.system.clone_from(&machine.system);
    spec.bmc.clone_from(&machine.bmc);
}
