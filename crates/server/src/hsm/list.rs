//! Lists of everything: written as they are read, a few hundred nodes at a time, so that an answer
//! of tens of megabytes is never in memory as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_model::{Node, NodeId, Xname};
use hoist_site::Roster;
use hoist_site::smd_view::{self, InterfaceFilter, NodeFilter};
use http::{HeaderMap, HeaderValue, Uri, header};
use parking_lot::Mutex;
use serde::Serialize;

use super::{Hsm, JSON, bad_filter, not_modified, pairs, sight};
use crate::inventory::etag;
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::{AnswerPermits, PIECE, lend};
use hoist_chassis::principal::{Principal, Reach};

/// Nodes processed between two checks of the written bytes.
const AT_ONCE: usize = 256;

/// What stands before and behind the elements.
type Brackets = (&'static str, &'static str);
const ARRAY: Brackets = ("[", "]");

pub(super) async fn components(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if principal.reach(Verb::Read, Context::Inventory) != Reach::All {
        refuse_memberships(&uri)?;
    }
    let roster = hsm.roster()?;
    let filter = NodeFilter::parse(&roster, pairs(&uri)).map_err(bad_filter)?;
    let states = hsm.states.clone();
    let named = owned(filter.named(&roster));
    // A BMC with several nodes is one component.
    let bmcs: Mutex<BTreeSet<Xname>> = Mutex::default();
    let write = move |roster: &Roster, node: &Node, list: &mut List| {
        if let Some(component) = filter.component(roster, node, states.power(node.id)) {
            list.push(&component);
        }
        if let Some((bmc, component)) = filter.bmc(node)
            && bmcs.lock().insert(bmc)
        {
            list.push(&component);
        }
    };
    let brackets = ("{\"Components\":[", "]}");
    hsm.answer(&hsm.open, roster, &headers, named, brackets, write).await
}

/// Memberships need a token on other routes, so filters of an open list must not reveal them.
fn refuse_memberships(uri: &Uri) -> Result<(), Failure> {
    let asks = |name: &str| ["group", "partition"].iter().any(|f| name.eq_ignore_ascii_case(f));
    match pairs(uri).find(|(name, _)| asks(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let detail = format!("the filter `{name}` needs a token");
            Err(Failure::new(Code::Unauthenticated, detail)
                .with_remedy("send a token with `read` in `inventory`, for all nodes"))
        }
    }
}

pub(super) async fn interfaces(
    State(hsm): State<Hsm>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = hsm.roster()?;
    let filter = InterfaceFilter::parse(pairs(&uri)).map_err(bad_filter)?;
    let named = owned(filter.named(&roster));
    let write = move |roster: &Roster, node: &Node, list: &mut List| {
        for interface in &node.spec.interfaces {
            let shown = smd_view::ethernet_interface(roster, node, interface);
            if filter.matches(&shown) {
                list.push(&shown);
            }
        }
    };
    hsm.answer(&hsm.open, roster, &headers, named, ARRAY, write).await
}

pub(super) async fn component_endpoints(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let brackets = ("{\"ComponentEndpoints\":[", "]}");
    hsm.reached(&principal, &uri, &headers, brackets, |roster, node, list| {
        list.push(&smd_view::component_endpoint(roster, node));
    })
    .await
}

pub(super) async fn memberships(
    State(hsm): State<Hsm>,
    principal: Principal,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    hsm.reached(&principal, &uri, &headers, ARRAY, |roster, node, list| {
        list.push(&smd_view::membership(roster, node));
    })
    .await
}

impl Hsm {
    /// An element for every node that the token reaches and the query means.
    async fn reached(
        &self,
        principal: &Principal,
        uri: &Uri,
        headers: &HeaderMap,
        brackets: Brackets,
        element: fn(&Roster, &Node, &mut List),
    ) -> Result<Response, Failure> {
        let roster = self.roster()?;
        let filter = NodeFilter::parse(&roster, pairs(uri)).map_err(bad_filter)?;
        let sight = sight(principal, &roster);
        let states = self.states.clone();
        let named = owned(filter.named(&roster));
        let write = move |roster: &Roster, node: &Node, list: &mut List| {
            let seen = sight.reaches(roster, node);
            if seen && filter.matches(roster, node, states.power(node.id)) {
                element(roster, node, list);
            }
        };
        self.answer(&self.closed, roster, headers, named, brackets, write).await
    }

    /// Named nodes are looked up directly, without a permit.
    async fn answer<W>(
        &self,
        permits: &AnswerPermits,
        roster: Arc<Roster>,
        headers: &HeaderMap,
        named: Option<Vec<Arc<Node>>>,
        brackets: Brackets,
        write: W,
    ) -> Result<Response, Failure>
    where
        W: Fn(&Roster, &Node, &mut List) + Send + 'static,
    {
        // Taken before the data: newer data under an older tag is fetched again, never missed.
        let tag = self.tag(&roster);
        if etag::is_known(headers, &tag) {
            return Ok(not_modified(&tag));
        }
        let body = if let Some(named) = named {
            few(&roster, &named, brackets, &write)
        } else {
            let permit = permits.take().await?;
            lend(&self.tasks, pieces(roster, brackets, write), permit)
        };
        let json = (header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        let mut response = ([json], body).into_response();
        etag::mark(&mut response, &tag);
        Ok(response)
    }
}

fn owned(named: Option<Vec<&Arc<Node>>>) -> Option<Vec<Arc<Node>>> {
    named.map(|nodes| nodes.into_iter().map(Arc::clone).collect())
}

/// A list of few nodes, made at once.
fn few<W>(roster: &Roster, nodes: &[Arc<Node>], brackets: Brackets, write: &W) -> Body
where
    W: Fn(&Roster, &Node, &mut List),
{
    let (open, close) = brackets;
    let mut list = List { text: open.into(), first: true };
    for node in nodes {
        write(roster, node, &mut list);
    }
    list.text.extend_from_slice(close.as_bytes());
    Body::from(list.text)
}

/// The text of a list, made as it is asked for.
fn pieces<W>(
    roster: Arc<Roster>,
    brackets: Brackets,
    write: W,
) -> impl Iterator<Item = Bytes> + Send
where
    W: Fn(&Roster, &Node, &mut List) + Send + 'static,
{
    let (open, close) = brackets;
    let mut list = List { text: open.into(), first: true };
    let mut after: Option<NodeId> = None;
    let mut done = false;
    std::iter::from_fn(move || {
        while !done && list.text.len() < PIECE {
            let mut looked_at = 0;
            for node in roster.nodes_after(after).take(AT_ONCE) {
                write(&roster, node, &mut list);
                after = Some(node.id);
                looked_at += 1;
            }
            if looked_at < AT_ONCE {
                done = true;
                list.text.extend_from_slice(close.as_bytes());
            }
        }
        let text = std::mem::take(&mut list.text);
        (!text.is_empty()).then(|| Bytes::from(text))
    })
}

/// Elements with commas between them.
struct List {
    text: Vec<u8>,
    first: bool,
}

impl List {
    fn push(&mut self, element: &impl Serialize) {
        if !std::mem::take(&mut self.first) {
            self.text.push(b',');
        }
        serde_json::to_writer(&mut self.text, element).expect("a plain value");
    }
}
