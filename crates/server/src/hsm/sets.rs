//! Groups, partitions and BMCs. Their content is gathered from the whole site, so these answers
//! need permits as lists do and are made on separate threads.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hoist_api::Code;
use hoist_model::node::Power;
use hoist_model::{GroupName, Name, Node};
use hoist_site::Roster;
use hoist_site::smd_view::{self, EndpointFilter, Group, Members, NodeFilter, Partition};
use http::{HeaderMap, HeaderValue, Uri, header};
use serde::Serialize;
use serde_json::json;

use super::{Hsm, JSON, bad_filter, not_modified, not_there, pairs, sight};
use crate::authorisation::Sight;
use crate::inventory::etag;
use hoist_chassis::extract::Path;
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::{cut, lend};
use hoist_chassis::principal::Principal;

pub(super) async fn groups(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let named = SetFilter::parse(&uri, "group")?;
    let make = move |seen: &VisibleSite<'_>| {
        let mut found = seen.groups();
        found.retain(|group| named.fits(&group.label));
        Some(found)
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn labels(
    State(hsm): State<Hsm>,
    principal: Principal,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let make = |seen: &VisibleSite<'_>| {
        let labels = seen.groups().into_iter().map(|group| group.label);
        Some(labels.collect::<Vec<_>>())
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn group(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(label): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let one = One::new(&hsm, &label, &uri)?;
    hsm.whole(principal, headers, move |seen| one.find(seen)).await
}

pub(super) async fn group_members(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(label): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let one = One::new(&hsm, &label, &uri)?;
    let make = move |seen: &VisibleSite<'_>| one.find(seen).map(|group| group.members);
    hsm.whole(principal, headers, make).await
}

pub(super) async fn partitions(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let named = SetFilter::parse(&uri, "partition")?;
    let make = move |seen: &VisibleSite<'_>| {
        let mut found = seen.partitions();
        found.retain(|partition| named.fits(&partition.name));
        Some(found)
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn names(
    State(hsm): State<Hsm>,
    principal: Principal,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let make = |seen: &VisibleSite<'_>| {
        let names = seen.partitions().into_iter().map(|partition| partition.name);
        Some(names.collect::<Vec<_>>())
    };
    hsm.whole(principal, headers, make).await
}

pub(super) async fn partition(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = partition_name(&name)?;
    hsm.whole(principal, headers, move |seen| seen.partition(&name)).await
}

pub(super) async fn partition_members(
    State(hsm): State<Hsm>,
    principal: Principal,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = partition_name(&name)?;
    let make =
        move |seen: &VisibleSite<'_>| seen.partition(&name).map(|partition| partition.members);
    hsm.whole(principal, headers, make).await
}

/// BSS asks for it first, to see whether it needs a token.
pub(super) async fn redfish_endpoints(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let filter = EndpointFilter::parse(pairs(&uri)).map_err(bad_filter)?;
    let make = move |seen: &VisibleSite<'_>| {
        let mut found = smd_view::redfish_endpoints(seen.roster, |node| seen.reaches(node));
        found.retain(|endpoint| filter.matches(endpoint));
        Some(json!({ "RedfishEndpoints": found }))
    };
    hsm.whole(principal, headers, make).await
}

fn partition_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

/// The site as far as a token reaches. Of groups and partitions a limited one sees those with at
/// least one of its nodes.
struct VisibleSite<'r> {
    roster: &'r Roster,
    sight: Sight,
}

impl VisibleSite<'_> {
    fn reaches(&self, node: &Node) -> bool {
        self.sight.reaches(self.roster, node)
    }

    fn shows(&self, members: &Members) -> bool {
        self.sight.is_all() || !members.ids.is_empty()
    }

    fn groups(&self) -> Vec<Group> {
        let mut found = smd_view::groups(self.roster, |node| self.reaches(node));
        found.retain(|group| self.shows(&group.members));
        found
    }

    fn partitions(&self) -> Vec<Partition> {
        let mut found = smd_view::partitions(self.roster, |node| self.reaches(node));
        found.retain(|partition| self.shows(&partition.members));
        found
    }

    fn partition(&self, name: &Name) -> Option<Partition> {
        let inside = |node: &Node| node.spec.partition == *name && self.reaches(node);
        let mut all = smd_view::partitions(self.roster, inside);
        let at = all.iter().position(|partition| partition.name == *name)?;
        Some(all.swap_remove(at)).filter(|partition| self.shows(&partition.members))
    }
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
        let roster = hsm.roster()?;
        let filter = NodeFilter::parse(&roster, partition).map_err(bad_filter)?;
        Ok(Self { label, filter })
    }

    fn find(&self, seen: &VisibleSite<'_>) -> Option<Group> {
        self.among(seen.groups())?;
        let wanted = |node: &Node| self.filter.matches(seen.roster, node, Power::Unknown);
        self.among(smd_view::groups(seen.roster, |node| seen.reaches(node) && wanted(node)))
    }

    fn among(&self, groups: Vec<Group>) -> Option<Group> {
        groups.into_iter().find(|group| group.label == self.label)
    }
}

/// The sets that a list is asked for; all of them unless some are named.
struct SetFilter {
    wanted: Vec<String>,
    tagged: bool,
}

impl SetFilter {
    fn parse(uri: &Uri, parameter: &str) -> Result<Self, Failure> {
        let named = pairs(uri).filter(|(name, _)| name == parameter);
        let wanted: Vec<_> = named.map(|(_, value)| value.to_ascii_lowercase()).collect();
        if wanted.iter().any(|value| value.starts_with('!')) {
            return Err(bad_filter(smd_view::negation(parameter)));
        }
        Ok(Self { wanted, tagged: pairs(uri).any(|(name, _)| name == "tag") })
    }

    fn fits(&self, name: &str) -> bool {
        !self.tagged && (self.wanted.is_empty() || self.wanted.iter().any(|known| known == name))
    }
}

impl Hsm {
    /// `make` returns `None` for a missing object.
    async fn whole<T, M>(
        &self,
        principal: Principal,
        headers: HeaderMap,
        make: M,
    ) -> Result<Response, Failure>
    where
        T: Serialize,
        M: FnOnce(&VisibleSite<'_>) -> Option<T> + Send + 'static,
    {
        let roster = self.roster()?;
        let tag = self.tag(&roster);
        if etag::is_known(&headers, &tag) {
            return Ok(not_modified(&tag));
        }
        let permit = self.closed.take().await?;
        let work = tokio::task::spawn_blocking(move || {
            let seen = VisibleSite { roster: &roster, sight: sight(&principal, &roster) };
            let made = make(&seen)?;
            Some(Bytes::from(serde_json::to_vec(&made).expect("a plain value")))
        });
        let text = work
            .await
            .map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))?
            .ok_or_else(|| not_there("group or partition"))?;
        let mut response = Response::new(lend(&self.tasks, cut(text), permit));
        let json = HeaderValue::from_static(JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        etag::mark(&mut response, &tag);
        Ok(response)
    }
}
