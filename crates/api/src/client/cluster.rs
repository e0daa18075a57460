//! Calls of `/cluster/v1`.

use reqwest::Method;

use super::{Client, ClientError};
use crate::cluster::{
    AcceptRequest, ClusterMember, ClusterPlanView, ClusterStatus, FoundRequest, Hello,
    JoinTokenEntry, JoinTokenRequest, NewJoinToken, PendingJoin, PrometheusTarget, ReasonRequest,
    ReplaceRequest, RoleWishes,
};
use crate::inventory::Listing;

impl Client {
    /// Founds the site's cluster, without a member.
    pub async fn found_cluster(
        &self,
        request: &FoundRequest,
    ) -> Result<ClusterStatus, ClientError> {
        self.call(Method::POST, &path(&["found"])).json(request).ordinary().value().await
    }

    /// None if no cluster was founded.
    pub async fn cluster(&self) -> Result<Option<ClusterStatus>, ClientError> {
        self.get(&path(&[])).ordinary().optional().await
    }

    /// The open greeting: name, id and clock of the cluster.
    pub async fn cluster_hello(&self) -> Result<Option<Hello>, ClientError> {
        self.get(&path(&["hello"])).ordinary().optional().await
    }

    pub async fn cluster_members(&self) -> Result<Listing<ClusterMember>, ClientError> {
        self.get(&path(&["members"])).ordinary().value().await
    }

    pub async fn create_join_token(
        &self,
        request: &JoinTokenRequest,
    ) -> Result<NewJoinToken, ClientError> {
        self.call(Method::POST, &path(&["tokens"])).json(request).ordinary().value().await
    }

    pub async fn join_tokens(&self) -> Result<Listing<JoinTokenEntry>, ClientError> {
        self.get(&path(&["tokens"])).ordinary().value().await
    }

    pub async fn revoke_join_token(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &path(&["tokens", id])).ordinary().done().await
    }

    pub async fn pending_joins(&self) -> Result<Listing<PendingJoin>, ClientError> {
        self.get(&path(&["pending"])).ordinary().value().await
    }

    pub async fn accept_join(
        &self,
        id: &str,
        request: &AcceptRequest,
    ) -> Result<ClusterMember, ClientError> {
        let path = path(&["pending", id, "accept"]);
        self.call(Method::POST, &path).json(request).ordinary().value().await
    }

    pub async fn reject_join(&self, id: &str, request: &ReasonRequest) -> Result<(), ClientError> {
        let path = path(&["pending", id, "reject"]);
        self.call(Method::POST, &path).json(request).ordinary().done().await
    }

    /// `drain`, `leave` or `expel`.
    pub async fn steer_member(
        &self,
        id: &str,
        verb: &str,
        request: &ReasonRequest,
    ) -> Result<ClusterMember, ClientError> {
        let path = path(&["members", id, verb]);
        self.call(Method::POST, &path).json(request).ordinary().value().await
    }

    pub async fn set_role_wishes(
        &self,
        id: &str,
        wishes: &RoleWishes,
    ) -> Result<ClusterMember, ClientError> {
        let path = path(&["members", id, "roles"]);
        self.call(Method::PUT, &path).json(wishes).ordinary().value().await
    }

    pub async fn replace_member(
        &self,
        request: &ReplaceRequest,
    ) -> Result<ClusterMember, ClientError> {
        self.call(Method::POST, &path(&["replace"])).json(request).ordinary().value().await
    }

    /// The stored plan; with `preview`, the one that would replace it.
    pub async fn cluster_plan(&self, preview: bool) -> Result<ClusterPlanView, ClientError> {
        self.get(&path(&["plan"])).flag("preview", preview).ordinary().value().await
    }

    /// Plans again and stores the plan. `consent` lets one waiting move start.
    pub async fn replan_cluster(
        &self,
        consent: Option<&str>,
    ) -> Result<ClusterPlanView, ClientError> {
        let call = self.call(Method::POST, &path(&["plan"])).query("consent", consent);
        call.ordinary().value().await
    }

    /// The members, for Prometheus' HTTP discovery.
    pub async fn cluster_targets(
        &self,
        port: Option<u16>,
    ) -> Result<Vec<PrometheusTarget>, ClientError> {
        let port = port.map(|port| port.to_string());
        let call = self.get(&path(&["prometheus-sd"])).query("port", port.as_deref());
        call.ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ["cluster", "v1"].into_iter().chain(rest.iter().copied()).collect()
}
