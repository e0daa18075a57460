//! Single objects. An object out of the token's reach gets the answer of a missing one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hoist_api::Code;
use hoist_model::{Name, Nid, Node, Xname};
use hoist_site::Roster;
use hoist_site::smd_view::{self, EthernetInterface};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

use super::{Hsm, not_modified, not_there, sight};
use crate::inventory::etag;
use hoist_chassis::extract::Path;
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;

pub(super) async fn component(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(xname): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster()?;
    let sight = sight(&principal, &roster);
    if let Some(bmc) = smd_view::find_bmc(&roster, &xname, |node| sight.reaches(&roster, node)) {
        return Ok(hsm.one(&roster, &headers, || bmc));
    }
    let node = found(&roster, &principal, smd_view::find(&roster, &xname), "xname")?;
    Ok(hsm.one(&roster, &headers, || smd_view::component(node, hsm.states.power(node.id))))
}

pub(super) async fn by_nid(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(nid): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let number: i64 =
        nid.parse().map_err(|_| Failure::new(Code::BadParameter, "a nid is a number"))?;
    let roster = hsm.roster()?;
    let nid = u32::try_from(number).ok().map(Nid::new);
    let node = found(&roster, &principal, nid.and_then(|nid| roster.by_nid(nid)), "nid")?;
    Ok(hsm.one(&roster, &headers, || smd_view::component(node, hsm.states.power(node.id))))
}

pub(super) async fn interface(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster()?;
    let shown = found_interface(&roster, &principal, &id)?;
    Ok(hsm.one(&roster, &headers, || shown))
}

pub(super) async fn addresses(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster()?;
    let shown = found_interface(&roster, &principal, &id)?;
    Ok(hsm.one(&roster, &headers, || shown.addresses))
}

fn found_interface<'r>(
    roster: &'r Roster,
    principal: &Principal,
    id: &str,
) -> Result<EthernetInterface<'r>, Failure> {
    let found = smd_view::find_interface(roster, id);
    let reached = found.filter(|(node, _)| sight(principal, roster).reaches(roster, node));
    let (node, interface) = reached.ok_or_else(|| not_there("component ethernet interface"))?;
    Ok(smd_view::ethernet_interface(roster, node, interface))
}

pub(super) async fn component_endpoint(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(xname): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster()?;
    let node = found(&roster, &principal, smd_view::find(&roster, &xname), "xname")?;
    Ok(hsm.one(&roster, &headers, || smd_view::component_endpoint(&roster, node)))
}

pub(super) async fn membership(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(xname): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = xname.trim();
    if id.parse::<Xname>().is_err() && id.parse::<Name>().is_err() {
        return Err(Failure::new(Code::BadParameter, "this is neither an xname nor a name")
            .with_remedy("write it like x1000c0s0b0n0"));
    }
    let roster = hsm.roster()?;
    let node = found(&roster, &principal, smd_view::find(&roster, id), "xname")?;
    Ok(hsm.one(&roster, &headers, || smd_view::membership(&roster, node)))
}

fn found<'r>(
    roster: &'r Roster,
    principal: &Principal,
    node: Option<&'r Arc<Node>>,
    what: &str,
) -> Result<&'r Arc<Node>, Failure> {
    let sight = sight(principal, roster);
    node.filter(|node| sight.reaches(roster, node)).ok_or_else(|| not_there(what))
}

impl Hsm {
    pub(super) fn one<T: Serialize>(
        &self,
        roster: &Roster,
        headers: &HeaderMap,
        object: impl FnOnce() -> T,
    ) -> Response {
        let tag = self.tag(roster);
        if etag::is_known(headers, &tag) {
            return not_modified(&tag);
        }
        etag::tagged(StatusCode::OK, &tag, &object())
    }
}
