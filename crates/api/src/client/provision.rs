//! Calls of `/provision/v1`.

use reqwest::Method;

use super::{Client, ClientError};
use crate::inventory::Listing;
use crate::provision::{
    Enrollment, EnrollmentToken, NodeFacts, ProvisionProfileObject, ProvisionRun, StartRequest,
    StartResult, SteerRequest, SteerResult,
};

impl Client {
    /// Lets a node's agent take its secrets once; an earlier token becomes invalid.
    pub async fn enroll(&self, node: &str) -> Result<EnrollmentToken, ClientError> {
        self.call(Method::POST, &path(&["nodes", node, "enrollment"])).ordinary().value().await
    }

    pub async fn unenroll(&self, node: &str) -> Result<(), ClientError> {
        let path = path(&["nodes", node, "enrollment"]);
        self.call(Method::DELETE, &path).ordinary().done().await
    }

    pub async fn enrollments(&self) -> Result<Listing<Enrollment>, ClientError> {
        self.get(&path(&["enrollments"])).ordinary().value().await
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

    /// Provisions the nodes of a selector, or returns the dry-run result.
    pub async fn start_provisioning(
        &self,
        request: &StartRequest,
    ) -> Result<StartResult, ClientError> {
        self.call(Method::POST, &path(&["runs"])).json(request).ordinary().value().await
    }

    /// Runs, the last one first, without their nodes.
    pub async fn provision_runs(&self) -> Result<Listing<ProvisionRun>, ClientError> {
        self.get(&path(&["runs"])).ordinary().value().await
    }

    /// A run with its nodes; `last` is the last one.
    pub async fn provision_run(&self, run: &str) -> Result<Option<ProvisionRun>, ClientError> {
        self.get(&path(&["runs", run])).ordinary().optional().await
    }

    /// The run that a node was in last, with this node alone.
    pub async fn provision_run_of(&self, node: &str) -> Result<Option<ProvisionRun>, ClientError> {
        self.get(&path(&["nodes", node, "run"])).ordinary().optional().await
    }

    /// `retry`, `abort` or `undo`.
    pub async fn steer_provisioning(
        &self,
        run: &str,
        what: &str,
        request: &SteerRequest,
    ) -> Result<SteerResult, ClientError> {
        let path = path(&["runs", run, what]);
        self.call(Method::POST, &path).json(request).ordinary().value().await
    }

    /// The facts that a node's agent reported.
    pub async fn facts(&self, node: &str) -> Result<NodeFacts, ClientError> {
        self.get(&path(&["nodes", node, "facts"])).ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ["provision", "v1"].into_iter().chain(rest.iter().copied()).collect()
}
