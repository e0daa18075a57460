//! What is heard of machines besides what their agents say: that one boots, that its system is up, and
//! that it is not.

use hoist_api::provision::{Finding, NodeRunState};
use hoist_model::{NodeId, Provisioning};

use super::record::NodeRecord;
use super::runs::{Changed, Runs, own_draft};
use crate::failure::Failure;

impl Runs {
    /// The system of a node says that it is up.
    pub(crate) async fn is_up(&self, node: NodeId) -> Result<(), Failure> {
        let Some(last) = self.last(node).await?.filter(|last| !last.over) else { return Ok(()) };
        let Some(header) = self.header(&last.run).await? else { return Ok(()) };
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
                Changed { more: installed.iter().cloned().collect(), ..Changed::new(was, next) }
            })
        })
        .await?;
        Ok(())
    }

    /// Its machine has asked what to boot.
    pub(super) async fn agent_was_sent(&self, node: NodeId) -> Result<(), Failure> {
        let roster = self.roster();
        let provisioning = roster.boot_state(node).and_then(|state| state.provisioning.as_ref());
        let Some(Provisioning { run, .. }) = provisioning else { return Ok(()) };
        let audit = own_draft("agent sent", run);
        self.amend(run, node, &audit, |runs, was| {
            (was.value.shown.state == NodeRunState::Armed).then(|| {
                let mut next = was.value.clone();
                next.become_state(NodeRunState::Booting, runs.now());
                Changed::new(was, next)
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
                    Changed::new(was, next)
                })
            })
            .await?;
        }
        Ok(())
    }
}

fn not_up() -> Finding {
    Finding {
        code: "not-up".to_owned(),
        class: "device".to_owned(),
        action: "boot".to_owned(),
        step: String::new(),
        what: "the installed system has not said that it is up within its time".to_owned(),
        place: String::new(),
        hint: Some("look at its console; `hoist provision retry` installs it again".to_owned()),
        evidence: Vec::new(),
    }
}
