//! Routes that read nodes: listings, streams, watches and single nodes.
//!
//! Does not belong here: writing (`write`).

use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hoist_api::admin::Verb;
use hoist_api::inventory::{DerivedFields, Node, NodeList};
use hoist_api::{Code, Problem};
use hoist_diagnostic::Diagnostic;
use hoist_model::selector::{Bound, ParseSelectorError};
use hoist_model::{NodeId, Selector};
use hoist_site::Roster;
use hoist_site::selector_names::unknown_name;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

use super::snapshots::PageEnd;
use super::{Inventory, NDJSON, etag, watch};
use crate::authorisation::Sight;
use crate::node_lookup::no_such_node;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;

/// Nodes in one page.
const PAGE: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// Nodes turned into text at once when they are streamed.
const CHUNK: usize = 512;

#[derive(Debug, Deserialize)]
pub(super) struct ListQuery {
    pub(super) selector: Option<String>,
    fields: Option<String>,
    limit: Option<usize>,
    #[serde(rename = "continue")]
    next: Option<String>,
    #[serde(default)]
    state: Flag,
    #[serde(default)]
    watch: Flag,
    pub(super) since: Option<String>,
    pub(super) wait: Option<String>,
}

pub(super) async fn list(
    State(inventory): State<Inventory>,
    principal: Principal,
    Query(query): Query<ListQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if query.watch.0 {
        query.check_watch(&["wait"])?;
        return watch::stream(&inventory, &principal, &query);
    }
    if query.wait.is_some() || query.since.is_some() {
        query.check_watch(&[])?;
        return watch::poll(&inventory, &principal, &query).await;
    }
    let (roster, after) = snapshot(&inventory, query.next.as_deref())?;
    let chosen = NodeQuery::new(&roster, &principal, query.selector.as_deref())?;
    let fields = Fields::parse(query.fields.as_deref())?;
    let with_state = query.state.0;
    let tag = chosen.tag(&roster);
    if !with_state && etag::is_known(&headers, &tag) {
        return Ok(etag::not_modified(&tag));
    }
    let view = View { inventory: inventory.clone(), roster, chosen, fields, with_state };
    let mut response =
        if accepts_ndjson(&headers) { view.stream(after) } else { view.page(after, query.limit)? };
    if !with_state {
        etag::mark(&mut response, &tag);
    }
    Ok(response)
}

impl ListQuery {
    /// Refuses what only a listing can do, or what else makes no sense with a watch: a parameter
    /// that is ignored misleads.
    fn check_watch(&self, further: &[&str]) -> Result<(), Failure> {
        let given = [
            ("fields", self.fields.is_some()),
            ("limit", self.limit.is_some()),
            ("continue", self.next.is_some()),
            ("state", self.state.0),
            ("wait", self.wait.is_some() && further.contains(&"wait")),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let message = "it cannot be had together with `watch` or `since`";
                Err(bad_parameter(name, message, "leave it out"))
            }
        }
    }
}

/// The roster of the first page, and where to go on in it.
fn snapshot(
    inventory: &Inventory,
    next: Option<&str>,
) -> Result<(Arc<Roster>, Option<NodeId>), Failure> {
    let Some(next) = next else { return Ok((inventory.complete_roster()?, None)) };
    let end: PageEnd = next.parse().map_err(|()| {
        bad_parameter(
            "continue",
            "it is not where a page ended",
            "give back what the last page said",
        )
    })?;
    let gone = || {
        Failure::new(Code::Gone, "the listing took too long; its snapshot is gone")
            .with_remedy("start again without `continue`, with larger pages or as NDJSON")
    };
    Ok((inventory.snapshots.find(&end).ok_or_else(gone)?, Some(end.id)))
}

/// The nodes a request asks for and may see.
pub(super) struct NodeQuery {
    sight: Sight,
    selector: Option<Bound>,
}

impl NodeQuery {
    pub(super) fn new(
        roster: &Roster,
        principal: &Principal,
        selector: Option<&str>,
    ) -> Result<Self, Failure> {
        let sight = Sight::new(principal, Verb::Read, roster);
        let selector = selector.filter(|text| !text.trim().is_empty());
        let selector = selector.map(|text| bind(roster, text)).transpose()?;
        Ok(Self { sight, selector })
    }

    /// The tag of a listing of these nodes: changes with them, and with no other node.
    fn tag(&self, roster: &Roster) -> String {
        if self.selector.is_none() && self.sight.is_all() {
            return etag::of_site(roster);
        }
        let chosen = roster.nodes_after(None).filter(|node| self.contains(roster, node));
        etag::of_nodes(roster, chosen.map(|node| (node.id, node.revision)))
    }

    pub(super) fn contains(&self, roster: &Roster, node: &hoist_model::Node) -> bool {
        let selected = self.selector.as_ref().is_none_or(|b| b.matches(&roster.subject(node)));
        selected && self.sight.reaches(roster, node)
    }
}

/// A selector from outside, with the position of its error in the answer.
pub(crate) fn bind(roster: &Roster, text: &str) -> Result<Bound, Failure> {
    let selector: Selector = text.parse().map_err(|error: ParseSelectorError| {
        let at = format!("selector, character {}", error.at + 1);
        let problem = Problem::new(Code::BadParameter, error.to_string());
        Failure::from(problem.with_diagnostic(Diagnostic::new(at, error.message)))
    })?;
    if let Some(message) = unknown_name(roster, &selector) {
        let problem = Problem::new(Code::BadParameter, format!("selector `{text}`: {message}"));
        return Err(Failure::from(problem.with_diagnostic(Diagnostic::new("selector", message))));
    }
    selector.bind(roster).map_err(|error| {
        let problem = Problem::new(Code::BadParameter, format!("selector `{text}`: {error}"));
        Failure::from(problem.with_diagnostic(Diagnostic::new("selector", error.to_string())))
    })
}

/// How a listing is shown.
struct View {
    inventory: Inventory,
    roster: Arc<Roster>,
    chosen: NodeQuery,
    fields: Fields,
    with_state: bool,
}

impl View {
    fn page(&self, after: Option<NodeId>, limit: Option<usize>) -> Result<Response, Failure> {
        let limit = limit.unwrap_or(PAGE);
        if !(1..=PAGE_MAX).contains(&limit) {
            let message = format!("{limit} is not 1 to {PAGE_MAX}");
            return Err(bad_parameter("limit", &message, "ask for a smaller page"));
        }
        let mut items = Vec::new();
        let mut last = after;
        let mut more = false;
        for node in self.roster.nodes_after(after) {
            if !self.chosen.contains(&self.roster, node) {
                continue;
            }
            if items.len() == limit {
                more = true;
                break;
            }
            last = Some(node.id);
            items.push(self.object(node));
        }
        let next = last.filter(|_| more).map(|id| {
            self.inventory.snapshots.keep(&self.roster);
            let incarnation = self.roster.incarnation().as_str().to_owned();
            PageEnd { incarnation, revision: self.roster.revision(), id }.to_string()
        });
        let revision = self.roster.revision();
        let since = watch::resume_point(self.roster.incarnation().as_str(), revision);
        Ok(match &self.fields {
            Fields::All => Json(NodeList { revision, since, items, next }).into_response(),
            Fields::Some(_) => {
                let items: Vec<_> = items.iter().map(|node| self.fields.of(node)).collect();
                let mut body =
                    serde_json::json!({"revision": revision, "since": since, "items": items});
                if let Some(next) = next {
                    body["continue"] = next.into();
                }
                Json(body).into_response()
            }
        })
    }

    /// All of them, a line each, made while they are sent: memory does not grow with the site.
    fn stream(self, after: Option<NodeId>) -> Response {
        let chunks =
            futures_util::stream::unfold((self, after, false), |(view, after, done)| async move {
                if done {
                    return None;
                }
                let mut text = Vec::new();
                let mut last = after;
                let mut looked_at = 0;
                for node in view.roster.nodes_after(after).take(CHUNK) {
                    looked_at += 1;
                    last = Some(node.id);
                    if view.chosen.contains(&view.roster, node) {
                        let value = view.fields.of(&view.object(node));
                        serde_json::to_writer(&mut text, &value).expect("nodes are plain values");
                        text.push(b'\n');
                    }
                }
                Some((Ok::<_, std::convert::Infallible>(text), (view, last, looked_at < CHUNK)))
            });
        ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(chunks.fuse())).into_response()
    }

    fn object(&self, node: &hoist_model::Node) -> Node {
        object(&self.inventory, &self.roster, node, self.with_state)
    }
}

/// Which members of a node are shown.
enum Fields {
    All,
    Some(Vec<String>),
}

impl Fields {
    fn parse(text: Option<&str>) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self::All) };
        let fields: Vec<String> = text.split(',').map(|field| field.trim().to_owned()).collect();
        let schema = schemars::schema_for!(Node).to_value();
        let known = schema["properties"].as_object().expect("a node has members");
        for field in &fields {
            if !known.contains_key(field) {
                let close = hoist_model::nearest(field, known.keys().map(String::as_str));
                let hint = close.map_or_else(
                    || "`/openapi.json` lists all members".to_owned(),
                    |close| format!("did you mean `{close}`?"),
                );
                let message = format!("a node has no member `{field}`");
                return Err(bad_parameter("fields", &message, &hint));
            }
        }
        Ok(Self::Some(fields))
    }

    fn of(&self, node: &Node) -> serde_json::Value {
        let mut value = serde_json::to_value(node).expect("nodes are plain values");
        if let (Self::Some(fields), Some(object)) = (self, value.as_object_mut()) {
            object.retain(|key, _| key == "id" || fields.contains(key));
        }
        value
    }
}

/// A node with everything that is worked out for it.
pub(super) fn object(
    inventory: &Inventory,
    roster: &Roster,
    node: &hoist_model::Node,
    with_state: bool,
) -> Node {
    let state = if with_state { inventory.states.get(node.id) } else { None };
    let derived = DerivedFields { boot: roster.boot(node), groups: roster.groups_of(node), state };
    Node::from_stored(node, derived)
}

pub(super) fn accepts_ndjson(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains(NDJSON))
}

#[derive(Debug, Deserialize)]
pub(super) struct GetQuery {
    #[serde(default)]
    state: Flag,
}

#[derive(Debug, Deserialize)]
pub(super) struct GetByQuery {
    #[serde(default)]
    state: Flag,
    /// The network of an address, where several networks use the same addresses.
    network: Option<hoist_model::Name>,
}

pub(super) async fn get(
    State(inventory): State<Inventory>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<GetQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = inventory.complete_roster()?;
    let node = visible(&roster, &principal, &id)?;
    Ok(answer(&inventory, &roster, node, query.state.0, &headers))
}

pub(super) async fn get_by(
    State(inventory): State<Inventory>,
    principal: Principal,
    Path((key, value)): Path<(String, String)>,
    Query(query): Query<GetByQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = inventory.complete_roster()?;
    let key = NodeKey::parse(&key, &value)?.on(query.network)?;
    let sight = Sight::new(&principal, Verb::Read, &roster);
    let node = key.find(&roster, &sight)?;
    let node = node.ok_or_else(|| no_such_node(format!("with the {} `{value}`", key.word())))?;
    Ok(answer(&inventory, &roster, node, query.state.0, &headers))
}

pub(super) async fn get_state(
    State(inventory): State<Inventory>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let roster = inventory.complete_roster()?;
    let node = visible(&roster, &principal, &id)?;
    let state = inventory.states.get(node.id).ok_or_else(|| {
        Failure::new(Code::NotFound, format!("nothing was seen of `{}` yet", node.name))
    })?;
    Ok(Json(state).into_response())
}

fn answer(
    inventory: &Inventory,
    roster: &Roster,
    node: &hoist_model::Node,
    with_state: bool,
    headers: &HeaderMap,
) -> Response {
    if with_state {
        return Json(object(inventory, roster, node, true)).into_response();
    }
    let tag = etag::of_node(roster, node.id, node.revision);
    if etag::is_known(headers, &tag) {
        return etag::not_modified(&tag);
    }
    etag::tagged(StatusCode::OK, &tag, &object(inventory, roster, node, false))
}

/// A node by id, if the principal may see it.
fn visible<'r>(
    roster: &'r Roster,
    principal: &Principal,
    id: &str,
) -> Result<&'r Arc<hoist_model::Node>, Failure> {
    let parsed = parse_id(id)?;
    let sight = Sight::new(principal, Verb::Read, roster);
    let node = roster.by_id(parsed).filter(|node| sight.reaches(roster, node));
    node.ok_or_else(|| no_such_node(format!("`{id}`")))
}

pub(super) fn parse_id(id: &str) -> Result<NodeId, Failure> {
    id.parse().map_err(|error: hoist_model::ParseNodeIdError| {
        Failure::new(Code::BadParameter, error.to_string())
            .with_remedy("ask by another key: /inventory/v1/nodes/by/name/NAME")
    })
}

pub(crate) fn bad_parameter(at: &str, message: &str, hint: &str) -> Failure {
    let problem = Problem::new(Code::BadParameter, format!("`{at}`: {message}"));
    problem.with_diagnostic(Diagnostic::new(at, message).hint(hint)).into()
}

/// Whether the node has this address on this network.
fn is_at(node: &hoist_model::Node, ip: std::net::IpAddr, network: &hoist_model::Name) -> bool {
    node.spec.interfaces.iter().any(|interface| {
        interface.network.as_ref() == Some(network)
            && interface.addresses.iter().any(|address| address.addr() == ip)
    })
}

/// A key that names at most one node.
pub(super) enum NodeKey {
    Name(hoist_model::Name),
    Mac(hoist_model::Mac),
    Xname(hoist_model::Xname),
    Nid(hoist_model::Nid),
    Ip {
        ip: std::net::IpAddr,
        /// Only interfaces on this network.
        network: Option<hoist_model::Name>,
    },
    Uuid(String),
}

impl NodeKey {
    const WORDS: [&str; 6] = ["name", "mac", "xname", "nid", "ip", "uuid"];

    pub(super) fn parse(key: &str, value: &str) -> Result<Self, Failure> {
        /// An error has its cause before a semicolon, and its remedy after it.
        fn parsed<T: FromStr<Err: std::fmt::Display>>(at: &str, text: &str) -> Result<T, Failure> {
            text.parse().map_err(|error: T::Err| {
                let told = error.to_string();
                let (message, hint) =
                    told.split_once("; ").unwrap_or((&told, "check its spelling"));
                bad_parameter(at, message, hint)
            })
        }
        Ok(match key {
            "name" => Self::Name(parsed(key, value)?),
            "mac" => Self::Mac(parsed(key, value)?),
            "xname" => Self::Xname(parsed(key, value)?),
            "nid" => Self::Nid(parsed(key, value)?),
            "ip" => {
                let ip = value.parse().map_err(|_| {
                    let message = format!("`{value}` is not an address");
                    bad_parameter("ip", &message, "leave the prefix out")
                })?;
                Self::Ip { ip, network: None }
            }
            "uuid" if hoist_model::node::is_uuid(value) => Self::Uuid(value.to_ascii_lowercase()),
            "uuid" => {
                let hint = "write it like 4c4c4544-0042-3510-8057-b4c04f4a5931";
                return Err(bad_parameter("uuid", &format!("`{value}` is not a UUID"), hint));
            }
            other => {
                let message = format!("nodes have no key `{other}`");
                let hint = format!("there are {}", Self::WORDS.join(", "));
                return Err(bad_parameter("key", &message, &hint));
            }
        })
    }

    /// The same key, on this network only.
    fn on(self, network: Option<hoist_model::Name>) -> Result<Self, Failure> {
        match self {
            Self::Ip { ip, .. } => Ok(Self::Ip { ip, network }),
            other if network.is_none() => Ok(other),
            other => {
                let message = format!("it cannot be had together with the key `{}`", other.word());
                Err(bad_parameter("network", &message, "leave it out, or ask by `ip`"))
            }
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Name(_) => "name",
            Self::Mac(_) => "mac",
            Self::Xname(_) => "xname",
            Self::Nid(_) => "nid",
            Self::Ip { .. } => "ip",
            Self::Uuid(_) => "uuid",
        }
    }

    /// The node with this key, among those in sight.
    pub(super) fn find<'r>(
        &self,
        roster: &'r Roster,
        sight: &Sight,
    ) -> Result<Option<&'r Arc<hoist_model::Node>>, Failure> {
        let found = match self {
            Self::Name(name) => roster.by_name(name),
            Self::Mac(mac) => roster.by_mac(*mac),
            Self::Xname(xname) => roster.by_xname(*xname),
            Self::Nid(nid) => roster.by_nid(*nid),
            Self::Uuid(uuid) => roster.by_uuid(uuid),
            Self::Ip { ip, network } => match Self::seen_at(roster, sight, *ip, network.as_ref())
                .as_slice()
            {
                [] => None,
                [one] => Some(*one),
                many => {
                    let names: Vec<_> = many.iter().map(|node| node.name.to_string()).collect();
                    let detail =
                        format!("{} nodes have the address {ip}: {}", many.len(), names.join(", "));
                    return Err(Failure::new(Code::Ambiguous, detail).with_remedy(
                        "the same address is used on several networks; add `?network=NAME`, or ask \
                         by another key",
                    ));
                }
            },
        };
        Ok(found.filter(|node| sight.reaches(roster, node)))
    }

    fn seen_at<'r>(
        roster: &'r Roster,
        sight: &Sight,
        ip: std::net::IpAddr,
        network: Option<&hoist_model::Name>,
    ) -> Vec<&'r Arc<hoist_model::Node>> {
        let mut found = roster.by_ip(ip);
        if let Some(network) = network {
            found.retain(|node| is_at(node, ip, network));
        }
        found.retain(|node| sight.reaches(roster, node));
        found
    }
}
