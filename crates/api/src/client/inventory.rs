//! Calls of `/inventory/v1`.

use reqwest::{Body, Method};
use serde::de::DeserializeOwned;

use hoist_model::NodeId;

use super::{Client, ClientError, Lines, TypedLines};
use crate::inventory::{
    ApplyResult, DeleteRequest, Group, ImportReport, ImportRequest, Listing, MaintainRequest,
    NetworkObject, Node, NodeList, PartitionObject, ProtectRequest, ReleaseRequest, RenewRequest,
    Status, SwapRequest, WatchLine,
};

const ROOT: [&str; 2] = ["inventory", "v1"];
/// Nodes asked for in one page of a listing.
const PAGE: usize = 5000;

/// Nodes to list, and their fields.
#[derive(Debug, Clone, Default)]
pub struct NodeQuery {
    pub selector: Option<String>,
    /// Only these fields of each node, separated by commas.
    pub fields: Option<String>,
    pub limit: Option<usize>,
    /// Include the last observed state of each node.
    pub state: bool,
    /// The `next` of the previous page.
    pub next: Option<String>,
}

/// Keys of a node besides its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKey {
    Name,
    Mac,
    Xname,
    Nid,
    Ip,
    Uuid,
}

/// Terms for applying documents.
#[derive(Debug, Clone, Default)]
pub struct ApplyQuery {
    pub dry_run: bool,
    /// The number of existing nodes that may come out differently.
    pub affects: Option<usize>,
    /// The set these documents are, by name.
    pub set: Option<String>,
    /// Remove resources that the set contained before and no longer contains.
    pub prune: bool,
    /// `incarnation.revision`: only if the site is still there.
    pub at: Option<String>,
}

/// Objects that are listed as a whole and found by their path.
pub trait Collection: DeserializeOwned {
    const PATH: &'static str;
}

impl Collection for Group {
    const PATH: &'static str = "groups";
}

impl Collection for PartitionObject {
    const PATH: &'static str = "partitions";
}

impl Collection for NetworkObject {
    const PATH: &'static str = "networks";
}

impl NodeKey {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Mac => "mac",
            Self::Xname => "xname",
            Self::Nid => "nid",
            Self::Ip => "ip",
            Self::Uuid => "uuid",
        }
    }
}

impl Client {
    pub async fn nodes(&self, query: &NodeQuery) -> Result<NodeList, ClientError> {
        let limit = query.limit.map(|limit| limit.to_string());
        self.get(&path(&["nodes"]))
            .query("selector", query.selector.as_deref())
            .query("fields", query.fields.as_deref())
            .query("limit", limit.as_deref())
            .query("continue", query.next.as_deref())
            .flag("state", query.state)
            .ordinary()
            .value()
            .await
    }

    /// All nodes of a selector with their state, page by page from one snapshot, and where
    /// [`Self::watch_nodes`] goes on after it.
    pub async fn all_nodes(
        &self,
        selector: Option<&str>,
    ) -> Result<(String, Vec<Node>), ClientError> {
        let selector = selector.map(str::to_owned);
        let mut query =
            NodeQuery { selector, limit: Some(PAGE), state: true, ..NodeQuery::default() };
        let mut nodes = Vec::new();
        loop {
            let page = self.nodes(&query).await?;
            nodes.extend(page.items);
            query.next = page.next;
            if query.next.is_none() {
                return Ok((page.since, nodes));
            }
        }
    }

    /// Changes of the nodes of a selector after a listing or a bookmark: `since` of that.
    pub async fn watch_nodes(
        &self,
        selector: Option<&str>,
        since: &str,
    ) -> Result<TypedLines<WatchLine>, ClientError> {
        let lines = self
            .get(&path(&["nodes"]))
            .flag("watch", true)
            .query("since", Some(since))
            .query("selector", selector)
            .accept_lines()
            .stream()
            .await?;
        Ok(TypedLines::new(lines))
    }

    pub async fn node(&self, id: NodeId) -> Result<Option<Node>, ClientError> {
        self.get(&path(&["nodes", &id.to_string()])).flag("state", true).ordinary().optional().await
    }

    pub async fn node_by(&self, key: NodeKey, value: &str) -> Result<Option<Node>, ClientError> {
        self.get(&path(&["nodes", "by", key.as_str(), value]))
            .flag("state", true)
            .ordinary()
            .optional()
            .await
    }

    pub async fn create_node(&self, node: &Node) -> Result<Node, ClientError> {
        self.call(Method::POST, &path(&["nodes"])).json(node).ordinary().value().await
    }

    pub async fn protect(
        &self,
        id: NodeId,
        request: &ProtectRequest,
        dry_run: bool,
    ) -> Result<(), ClientError> {
        self.of_node(Method::PUT, id, "protection", dry_run).json(request).done().await
    }

    pub async fn unprotect(&self, id: NodeId, dry_run: bool) -> Result<(), ClientError> {
        self.of_node(Method::DELETE, id, "protection", dry_run).done().await
    }

    pub async fn maintain(
        &self,
        id: NodeId,
        request: &MaintainRequest,
        dry_run: bool,
    ) -> Result<(), ClientError> {
        self.of_node(Method::PUT, id, "maintenance", dry_run).json(request).done().await
    }

    pub async fn end_maintenance(&self, id: NodeId, dry_run: bool) -> Result<(), ClientError> {
        self.of_node(Method::DELETE, id, "maintenance", dry_run).done().await
    }

    pub async fn release(
        &self,
        id: NodeId,
        request: &ReleaseRequest,
        dry_run: bool,
    ) -> Result<(), ClientError> {
        self.of_node(Method::PUT, id, "released", dry_run).json(request).done().await
    }

    pub async fn swap(
        &self,
        id: NodeId,
        request: &SwapRequest,
        dry_run: bool,
    ) -> Result<(), ClientError> {
        self.of_node(Method::POST, id, "swap", dry_run).json(request).done().await
    }

    pub async fn list<T: Collection>(&self) -> Result<Listing<T>, ClientError> {
        self.get(&path(&[T::PATH])).ordinary().value().await
    }

    /// `name` is the rest of the path: one part, or partition and name for a group.
    pub async fn find<T: Collection>(&self, name: &[&str]) -> Result<Option<T>, ClientError> {
        let mut parts = path(&[T::PATH]);
        parts.extend(name);
        self.get(&parts).ordinary().optional().await
    }

    /// Applies documents, one JSON document per line, in one transaction. Gives also the version
    /// (`incarnation.revision`) of the answer, if the server states it.
    pub async fn apply(
        &self,
        query: &ApplyQuery,
        documents: impl Into<Body>,
    ) -> Result<(ApplyResult, Option<String>), ClientError> {
        let mut call = self.call(Method::POST, &path(&["apply"]));
        // A dry run changes nothing, so losing its answer leaves nothing in doubt.
        call.write = !query.dry_run;
        call.flag("dry_run", query.dry_run)
            .query("affects", query.affects.map(|count| count.to_string()).as_deref())
            .query("set", query.set.as_deref())
            .flag("prune", query.prune)
            .if_match(query.at.as_deref())
            .lines(documents.into())
            .tagged()
            .await
    }

    pub async fn delete(
        &self,
        targets: Vec<String>,
        dry_run: bool,
        affects: Option<usize>,
    ) -> Result<ApplyResult, ClientError> {
        let mut call = self.call(Method::POST, &path(&["delete"]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run)
            .query("affects", affects.map(|count| count.to_string()).as_deref())
            .json(&DeleteRequest { targets })
            .value()
            .await
    }

    /// Makes nodes the next generation of themselves.
    pub async fn renew(
        &self,
        nodes: &RenewRequest,
        dry_run: bool,
        affects: Option<usize>,
    ) -> Result<ApplyResult, ClientError> {
        let mut call = self.call(Method::POST, &path(&["renew"]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run)
            .query("affects", affects.map(|count| count.to_string()).as_deref())
            .json(nodes)
            .value()
            .await
    }

    /// Everything declared, one document per line; with a selector, only those nodes.
    pub async fn export(&self, selector: Option<&str>) -> Result<Lines, ClientError> {
        self.get(&path(&["export"])).query("selector", selector).accept_lines().stream().await
    }

    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get(&path(&["status"])).ordinary().value().await
    }

    /// One cycle of the server's own source; with `force` it removes nodes however many they are.
    pub async fn refresh(&self, force: bool) -> Result<ImportReport, ClientError> {
        self.call(Method::POST, &path(&["refresh"])).flag("force", force).value().await
    }

    /// One cycle of a source that the server can reach.
    pub async fn import(&self, request: &ImportRequest) -> Result<ImportReport, ClientError> {
        self.call(Method::POST, &path(&["import"])).json(request).value().await
    }

    fn of_node(&self, method: Method, id: NodeId, what: &str, dry_run: bool) -> super::Call<'_> {
        let mut call = self.call(method, &path(&["nodes", &id.to_string(), what]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run).ordinary()
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ROOT.iter().chain(rest).copied().collect()
}
