//! Groups, partitions and BMCs. What is in them is gathered from the whole site, so these answers
//! have turns as the lists do, and are made beside the threads that answer others.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hoist_api::Code;
use hoist_inventory::Roster;
use hoist_inventory::smd_view::{self, Group, NodeFilter, Partition};
use hoist_model::node::Power;
use hoist_model::{GroupName, Name, Node};
use http::{HeaderMap, HeaderValue, Uri, header};
use serde::Serialize;
use serde_json::json;

use super::{Hsm, JSON, not_modified, not_there, pairs, sight};
use crate::extract::Path;
use crate::failure::Failure;
use crate::inventory::etag;
use crate::principal::Principal;
use crate::whole_site::{cut, lend};

pub(super) async fn groups(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let named = Named::parse(&uri, "group");
    let make = move |roster: &Roster, sees: &dyn Fn(&Node) -> bool| {
        let mut found = smd_view::groups(roster, sees);
        found.retain(|group| named.fits(&group.label));
        Some(found)
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn labels(
    State(hsm): State<Hsm>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster();
    Ok(hsm.one(&roster, &headers, || {
        let mut labels: Vec<_> = roster.groups().map(|group| &group.name).collect();
        labels.sort();
        labels.dedup();
        labels.into_iter().cloned().collect::<Vec<_>>()
    }))
}

pub(super) async fn group(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(label): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let one = One::new(&hsm, &label, &uri)?;
    hsm.whole(principal, headers, move |roster, sees| one.find(roster, sees)).await
}

pub(super) async fn group_members(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(label): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let one = One::new(&hsm, &label, &uri)?;
    let make = move |roster: &Roster, sees: &dyn Fn(&Node) -> bool| {
        one.find(roster, sees).map(|group| group.members)
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn partitions(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let named = Named::parse(&uri, "partition");
    let make = move |roster: &Roster, sees: &dyn Fn(&Node) -> bool| {
        let mut found = smd_view::partitions(roster, sees);
        found.retain(|partition| named.fits(&partition.name));
        Some(found)
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn names(State(hsm): State<Hsm>, headers: HeaderMap) -> Result<Response, Failure> {
    let roster = hsm.roster();
    Ok(hsm.one(&roster, &headers, || {
        let shown = smd_view::partitions(&roster, |_| false);
        shown.into_iter().map(|partition| partition.name).collect::<Vec<_>>()
    }))
}

pub(super) async fn partition(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = partition_name(&name)?;
    hsm.whole(principal, headers, move |roster, sees| find_partition(roster, sees, &name)).await
}

pub(super) async fn partition_members(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = partition_name(&name)?;
    let make = move |roster: &Roster, sees: &dyn Fn(&Node) -> bool| {
        find_partition(roster, sees, &name).map(|partition| partition.members)
    };
    hsm.whole(principal, headers, make).await
}

/// BSS asks for it first, to see whether it needs a token.
pub(super) async fn redfish_endpoints(
    State(hsm): State<Hsm>,
    principal: Principal,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let make = move |roster: &Roster, sees: &dyn Fn(&Node) -> bool| {
        Some(json!({ "RedfishEndpoints": smd_view::redfish_endpoints(roster, sees) }))
    };
    hsm.whole(principal, headers, make).await
}

fn partition_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

fn find_partition(roster: &Roster, sees: &dyn Fn(&Node) -> bool, name: &Name) -> Option<Partition> {
    let mut all = smd_view::partitions(roster, |node| node.spec.partition == *name && sees(node));
    let at = all.iter().position(|partition| partition.name == *name)?;
    Some(all.swap_remove(at))
}

/// One group, with its members in some partition.
struct One {
    label: GroupName,
    filter: NodeFilter,
}

impl One {
    fn new(hsm: &Hsm, label: &str, uri: &Uri) -> Result<Self, Failure> {
        let label =
            label.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))?;
        let partition = pairs(uri).filter(|(name, _)| name == "partition");
        Ok(Self { label, filter: NodeFilter::parse(&hsm.roster(), partition)? })
    }

    fn find(&self, roster: &Roster, sees: &dyn Fn(&Node) -> bool) -> Option<Group> {
        let seen = |node: &Node| sees(node) && self.filter.matches(roster, node, Power::Unknown);
        let mut all = smd_view::groups(roster, seen);
        let at = all.iter().position(|group| group.label == self.label)?;
        Some(all.swap_remove(at))
    }
}

/// The sets that a list is asked for; all of them unless some are named.
struct Named {
    wanted: Vec<String>,
    tagged: bool,
}

impl Named {
    fn parse(uri: &Uri, parameter: &str) -> Self {
        let named = pairs(uri).filter(|(name, _)| name == parameter);
        let wanted = named.map(|(_, value)| value.to_ascii_lowercase()).collect();
        Self { wanted, tagged: pairs(uri).any(|(name, _)| name == "tag") }
    }

    fn fits(&self, name: &str) -> bool {
        !self.tagged && (self.wanted.is_empty() || self.wanted.iter().any(|known| known == name))
    }
}

impl Hsm {
    /// `make` gives nothing for what is not there.
    async fn whole<T, M>(
        &self,
        principal: Principal,
        headers: HeaderMap,
        make: M,
    ) -> Result<Response, Failure>
    where
        T: Serialize,
        M: FnOnce(&Roster, &dyn Fn(&Node) -> bool) -> Option<T> + Send + 'static,
    {
        let roster = self.roster();
        let tag = self.tag(&roster);
        if etag::is_known(&headers, &tag) {
            return Ok(not_modified(&tag));
        }
        let turn = self.closed.take().await?;
        let work = tokio::task::spawn_blocking(move || {
            let sight = sight(&principal, &roster);
            let made = make(&roster, &|node| sight.reaches(&roster, node))?;
            Some(Bytes::from(serde_json::to_vec(&made).expect("a plain value")))
        });
        let text = work
            .await
            .map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))?
            .ok_or_else(|| not_there("group or partition"))?;
        let mut response = Response::new(lend(&self.tasks, cut(text), turn));
        let json = HeaderValue::from_static(JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        etag::mark(&mut response, &tag);
        Ok(response)
    }
}
