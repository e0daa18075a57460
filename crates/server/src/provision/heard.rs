//! Signals of machines outside the agent protocol: a boot script request, a phone-home, and a
//! missing phone-home.

use async_trait::async_trait;
use hoist_api::Code;
use hoist_api::provision::{NodeDiagnostic, NodeRunState};
use hoist_diagnostic::Diagnostic;
use hoist_model::{BootMode, NodeId, Provisioning};

use super::record::{NodeRecord, RunRecord};
use super::runs::{NodeChange, Runs, TRIES, Wrote, own_draft};
use crate::metadata::NodeUpListener;
use hoist_chassis::failure::Failure;

/// Code of a node whose system did not phone home.
const NOT_UP: &str = "not-up";

#[async_trait]
impl NodeUpListener for Runs {
    async fn node_is_up(&self, node: NodeId) -> Result<(), Failure> {
        self.is_up(node).await
    }
}

impl Runs {
    /// The system of a node says that it is up.
    async fn is_up(&self, node: NodeId) -> Result<(), Failure> {
        let Some(last) = self.last(node).await? else { return Ok(()) };
        let Some(header) = self.header(&last.run).await? else { return Ok(()) };
        if last.over {
            return self.is_up_late(node, &last.run).await;
        }
        let Some(starting) = self.node(&last.run, node).await?.map(|kept| kept.value) else {
            return Ok(());
        };
        if starting.shown.state != NodeRunState::Starting {
            return Ok(());
        }
        let installed = self.installed_by(&header.value.how, &starting).await?;
        let audit = own_draft("phone-home", &last.run);
        self.amend(&last.run, node, &audit, |runs, was| {
            (was.value.shown.state == NodeRunState::Starting).then(|| {
                let mut next = was.value.clone();
                next.become_state(NodeRunState::Done, runs.now());
                next.up_by = None;
                NodeChange {
                    more: installed.iter().cloned().collect(),
                    ..NodeChange::new(was, next)
                }
            })
        })
        .await?;
        Ok(())
    }

    /// Accepts a phone-home after its deadline, if the node's state was not changed since.
    async fn is_up_late(&self, node: NodeId, run: &str) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let Some(header) = self.header(run).await? else { return Ok(()) };
            let Some(was) = self.node(run, node).await? else { return Ok(()) };
            if !self.is_late(&was.value) {
                return Ok(());
            }
            let mut next = was.value.clone();
            next.become_state(NodeRunState::Done, self.now());
            next.up_by = None;
            next.shown.problems.retain(|found| found.code != NOT_UP);
            next.shown.note = Some("its system said late that it is up".to_owned());
            let installed = self.installed_by(&header.value.how, &next).await?;
            let changed = NodeChange {
                more: installed.into_iter().collect(),
                ..NodeChange::new(was, next.clone())
            };
            // The run's state is computed again.
            let open = RunRecord { over: false, counts: None, ..header.value.clone() };
            let audit = own_draft("phone-home", run);
            if self.write(audit, vec![changed], Some((&header, &open))).await? == Wrote::Done {
                self.changed(&next);
                return self.advance(run).await;
            }
        }
        Err(Failure::new(Code::Busy, "others write the same again and again")
            .with_remedy("try again"))
    }

    /// Whether the missing phone-home is the node's only problem and its boot state is unchanged
    /// since.
    fn is_late(&self, node: &NodeRecord) -> bool {
        let roster = self.roster();
        let state = roster.boot_state(node.shown.id);
        let is_as_left = state.is_some_and(|state| {
            let boots_disk = state.mode == Some(BootMode::Disk) && state.once.is_none();
            boots_disk && state.decided.is_none_or(|at| at <= node.shown.since)
        });
        // Retry and undo clear the phone-home deadline.
        node.shown.state == NodeRunState::Failed && node.up_by.is_some() && is_as_left
    }

    /// Records that the machine requested its boot script.
    pub(super) async fn agent_was_sent(&self, node: NodeId) -> Result<(), Failure> {
        let roster = self.roster();
        let provisioning = roster.boot_state(node).and_then(|state| state.provisioning.as_ref());
        let Some(Provisioning { run, .. }) = provisioning else { return Ok(()) };
        let audit = own_draft("agent sent", run);
        self.amend(run, node, &audit, |runs, was| {
            (was.value.shown.state == NodeRunState::Pending).then(|| {
                let mut next = was.value.clone();
                next.become_state(NodeRunState::Booting, runs.now());
                NodeChange::new(was, next)
            })
        })
        .await?;
        Ok(())
    }

    /// Systems that should be up by now.
    pub(super) async fn end_waits(&self, run: &str) -> Result<(), Failure> {
        let now = self.now();
        let late = |node: &NodeRecord| {
            node.shown.state == NodeRunState::Starting && node.up_by.is_some_and(|by| by < now)
        };
        for node in self.nodes(run).await?.into_iter().filter(|node| late(&node.value)) {
            let audit = own_draft("not heard of", run);
            self.amend(run, node.value.shown.id, &audit, |_, was| {
                late(&was.value).then(|| {
                    let mut next = was.value.clone();
                    next.become_state(NodeRunState::Failed, now);
                    next.shown.problems.push(not_up());
                    NodeChange::new(was, next)
                })
            })
            .await?;
        }
        Ok(())
    }
}

fn not_up() -> NodeDiagnostic {
    let cause = Diagnostic::new("", "the installed system did not report that it is up in time")
        .hint(
            "check its console; a later report completes the node, and `hoist provision retry` \
             installs it again",
        );
    NodeDiagnostic { action: "boot".to_owned(), ..NodeDiagnostic::new(NOT_UP, "device", cause) }
}
