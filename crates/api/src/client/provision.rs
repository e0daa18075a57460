//! Calls of `/provision/v1`.

use reqwest::Method;

use super::{Client, ClientError};
use crate::inventory::Listing;
use crate::provision::{
    Armed, Arming, NodeFacts, ProvisionProfileObject, Run, StartRequest, Started, SteerRequest,
    Steered,
};

impl Client {
    /// Lets a node's agent take its secrets, once; what it was armed with before is good for nothing.
    pub async fn arm(&self, node: &str) -> Result<Armed, ClientError> {
        self.call(Method::POST, &path(&["nodes", node, "arming"])).ordinary().value().await
    }

    pub async fn disarm(&self, node: &str) -> Result<(), ClientError> {
        let path = path(&["nodes", node, "arming"]);
        self.call(Method::DELETE, &path).ordinary().done().await
    }

    pub async fn armings(&self) -> Result<Listing<Arming>, ClientError> {
        self.get(&path(&["armings"])).ordinary().value().await
    }

    pub async fn provision_profiles(&self) -> Result<Listing<ProvisionProfileObject>, ClientError> {
        self.get(&path(&["profiles"])).ordinary().value().await
    }

    pub async fn provision_profile(
        &self,
        name: &str,
    ) -> Result<Option<ProvisionProfileObject>, ClientError> {
        self.get(&path(&["profiles", name])).ordinary().optional().await
    }

    /// Provisions the nodes of a selector, or says what would be done.
    pub async fn start_provisioning(&self, request: &StartRequest) -> Result<Started, ClientError> {
        self.call(Method::POST, &path(&["runs"])).json(request).ordinary().value().await
    }

    /// Runs, the last one first, without their nodes.
    pub async fn provision_runs(&self) -> Result<Listing<Run>, ClientError> {
        self.get(&path(&["runs"])).ordinary().value().await
    }

    /// A run with its nodes; `last` is the last one.
    pub async fn provision_run(&self, run: &str) -> Result<Option<Run>, ClientError> {
        self.get(&path(&["runs", run])).ordinary().optional().await
    }

    /// The run that a node was in last, with this node alone.
    pub async fn provision_run_of(&self, node: &str) -> Result<Option<Run>, ClientError> {
        self.get(&path(&["nodes", node, "run"])).ordinary().optional().await
    }

    /// `retry`, `abort` or `undo`.
    pub async fn steer_provisioning(
        &self,
        run: &str,
        what: &str,
        request: &SteerRequest,
    ) -> Result<Steered, ClientError> {
        let path = path(&["runs", run, what]);
        self.call(Method::POST, &path).json(request).ordinary().value().await
    }

    /// What the agent of a node found there.
    pub async fn facts(&self, node: &str) -> Result<NodeFacts, ClientError> {
        self.get(&path(&["nodes", node, "facts"])).ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ["provision", "v1"].into_iter().chain(rest.iter().copied()).collect()
}
