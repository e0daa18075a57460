//! Calls of `/deploy/v1`.

use bytes::Bytes;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, ClientError, whole};
use crate::deploy::{
    InstanceExplanation, InstanceList, PlanAnswer, PlanRequest, RunCommandRequest,
    RunCommandResult, RunDetail, RunEvents, RunList, RunSummary,
};

const RUNS: [&str; 3] = ["deploy", "v1", "runs"];

/// Instances of a run, by state.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstanceQuery<'a> {
    /// States by commas.
    pub state: Option<&'a str>,
    pub node: Option<&'a str>,
    pub after: Option<u32>,
}

fn below<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    RUNS.iter().copied().chain([run]).chain(more.iter().copied()).collect()
}

impl Client {
    /// Compiles; keeps nothing.
    pub async fn plan_deploy(&self, request: &PlanRequest) -> Result<PlanAnswer, ClientError> {
        let mut call = self.call(Method::POST, &["deploy", "v1", "plans"]);
        call.write = false;
        call.json(request).value().await
    }

    /// The plan of a run and its predicted changes on the nodes.
    pub async fn try_start_run(&self, request: &PlanRequest) -> Result<PlanAnswer, ClientError> {
        let mut call = self.call(Method::POST, &RUNS);
        call.write = false;
        call.flag("dry_run", true).flag("predict", true).json(request).value().await
    }

    pub async fn start_run(&self, request: &PlanRequest) -> Result<RunSummary, ClientError> {
        self.call(Method::POST, &RUNS).json(request).value().await
    }

    /// Starts a run of a changed plan without the finished steps of this one.
    pub async fn continue_run(
        &self,
        run: &str,
        request: &PlanRequest,
    ) -> Result<RunSummary, ClientError> {
        self.call(Method::POST, &below(run, &["continue"])).json(request).value().await
    }

    /// The plan that [`Self::continue_run`] would run.
    pub async fn try_continue_run(
        &self,
        run: &str,
        request: &PlanRequest,
    ) -> Result<PlanAnswer, ClientError> {
        let mut call = self.call(Method::POST, &below(run, &["continue"]));
        call.write = false;
        call.flag("dry_run", true).flag("predict", true).json(request).value().await
    }

    pub async fn runs(&self, limit: Option<usize>) -> Result<RunList, ClientError> {
        let limit = limit.map(|limit| limit.to_string());
        self.get(&RUNS).query("limit", limit.as_deref()).ordinary().value().await
    }

    pub async fn run(&self, run: &str) -> Result<RunDetail, ClientError> {
        self.get(&below(run, &[])).ordinary().value().await
    }

    pub async fn run_instances(
        &self,
        run: &str,
        query: InstanceQuery<'_>,
    ) -> Result<InstanceList, ClientError> {
        let after = query.after.map(|after| after.to_string());
        self.get(&below(run, &["instances"]))
            .query("state", query.state)
            .query("node", query.node)
            .query("after", after.as_deref())
            .ordinary()
            .value()
            .await
    }

    /// The output of an attempt.
    pub async fn run_output(
        &self,
        run: &str,
        instance: &str,
        attempt: u32,
    ) -> Result<Bytes, ClientError> {
        let attempt = attempt.to_string();
        let call = self.get(&below(run, &["output", instance, &attempt])).ordinary();
        whole(call.send().await?, false).await
    }

    /// The plan of a run, as the engine's draft.
    pub async fn run_plan<T: DeserializeOwned>(&self, run: &str) -> Result<T, ClientError> {
        self.get(&below(run, &["plan"])).value().await
    }

    pub async fn explain_instance(
        &self,
        run: &str,
        instance: &str,
    ) -> Result<InstanceExplanation, ClientError> {
        self.get(&below(run, &["explain", instance])).ordinary().value().await
    }

    /// The events after `after`; waits up to `wait` (`20s`) for the first one.
    pub async fn run_events(
        &self,
        run: &str,
        after: u64,
        wait: &str,
    ) -> Result<RunEvents, ClientError> {
        let call = self.get(&below(run, &["events"]));
        call.query("after", Some(&after.to_string())).query("wait", Some(wait)).value().await
    }

    /// One exchange with a node's agent: its messages and the answer.
    pub async fn work<T: DeserializeOwned>(
        &self,
        node: &str,
        report: &impl Serialize,
    ) -> Result<T, ClientError> {
        let call = self.call(Method::POST, &["agent", "v1", "nodes", node, "work"]);
        call.json(report).ordinary().value().await
    }

    /// Tells a run something: `stop`, `resume`, `pause` and so on.
    pub async fn command_run(
        &self,
        run: &str,
        word: &str,
        request: &RunCommandRequest,
        dry_run: bool,
    ) -> Result<RunCommandResult, ClientError> {
        let mut call = self.call(Method::POST, &below(run, &[word]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run).json(request).value().await
    }
}
