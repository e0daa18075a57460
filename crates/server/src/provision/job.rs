//! The provisioning job of an agent: a document from the node's profile, from its previous
//! installation, or for restoring its disks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hoist_api::Code;
use hoist_api::provision::{
    DocumentsRequest, NodeDiagnostic, NodeRunState, Outcome, ProvisionOptions, ProvisioningJob,
    Report,
};
use hoist_diagnostic::Diagnostic;
use hoist_metadata::{Resolve as _, config_drive};
use hoist_model::{Name, Node, NodeId, ProvisionProfileSpec};
use hoist_site::Roster;
use serde_json::Value;

use super::Provision;
use super::document::{self, Case, Past};
use super::keys;
use super::record::{FactsRecord, JobInputs, NodeRecord, put};
use super::runs::{NodeChange, own_draft};
use super::steer::protected;
use crate::metadata::{EnrolledNode, NO_ADDRESS, NO_ADDRESS_REMEDY, SecretRelease};
use hoist_chassis::audit::Draft;
use hoist_chassis::failure::Failure;

/// Makes provisioning jobs.
impl Provision {
    /// Another key presented the right token: the run status of the node shows a note.
    pub(super) async fn note_second_key(&self, node: NodeId) {
        let roster = self.runs.roster();
        let provisioning = roster.boot_state(node).and_then(|state| state.provisioning.as_ref());
        let Some(provisioning) = provisioning else { return };
        let audit = own_draft("quarantined", &provisioning.run);
        let noted = self.runs.amend(&provisioning.run, node, &audit, |_, was| {
            let note = "another key presented this node's token; if the machine was restarted, run \
                        `hoist provision retry NODE --key FINGERPRINT` to admit it";
            (was.value.shown.note.as_deref() != Some(note)).then(|| {
                let mut next = was.value.clone();
                next.shown.note = Some(note.to_owned());
                NodeChange::new(was, next)
            })
        });
        if let Err(failure) = noted.await {
            tracing::warn!(error = %hoist_diagnostic::chain(&failure), "a second key is not noted");
        }
    }

    /// Admits an agent that failed, stayed in memory and knows only its earlier token: the key that
    /// claimed that token claims the new enrollment, if an operator retried the node.
    pub(super) async fn come_back(
        &self,
        proof: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<Option<EnrolledNode>, Failure> {
        let roster = self.runs.roster();
        let provisioning = roster.boot_state(proof.node).and_then(|s| s.provisioning.as_ref());
        let Some(run) = provisioning.map(|provisioning| &provisioning.run) else { return Ok(None) };
        let record = self.runs.node(run, proof.node).await?;
        let earlier = record.and_then(|record| record.value.earlier);
        let node =
            earlier.and_then(|earlier| self.metadata.is_of_before(&roster, &earlier, proof, from));
        let Some(node) = node else { return Ok(None) };
        // The new enrollment belongs to this key from now on.
        let taken = self.metadata.claim_current(&node, proof, from).await?;
        Ok(taken.map(|by| EnrolledNode { roster, node, by, from }))
    }

    /// The answer to an agent that failed or was ended and asks again: no job before an operator
    /// decides. A caller that never had the job learns nothing.
    pub(super) async fn why_over(
        &self,
        proof: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<Option<Failure>, Failure> {
        let roster = self.runs.roster();
        let Some(last) = self.runs.last(proof.node).await?.filter(|last| last.over) else {
            return Ok(None);
        };
        let Some(record) = self.runs.node(&last.run, proof.node).await? else { return Ok(None) };
        let NodeRecord { shown, earlier, .. } = record.value;
        let node =
            earlier.and_then(|earlier| self.metadata.is_of_before(&roster, &earlier, proof, from));
        let Some(node) = node else { return Ok(None) };
        let name = &node.name;
        let run = &last.run;
        let detail = match shown.state {
            NodeRunState::Failed => format!("node `{name}` has failed in run {run}"),
            NodeRunState::Aborted => format!("node `{name}` was aborted in run {run}"),
            _ => return Ok(None),
        };
        Ok(Some(Failure::new(Code::Forbidden, detail).with_remedy(format!(
            "run `hoist provision retry {name}`; this agent then continues by itself"
        ))))
    }

    /// The node's part in its run: from now on its agent works.
    pub(super) async fn take_up(
        &self,
        roster: &Roster,
        node: &Node,
        facts: &FactsRecord,
        audit: &Draft,
    ) -> Result<NodeRecord, Failure> {
        let provisioning = roster.boot_state(node.id).and_then(|state| state.provisioning.as_ref());
        let facts = put(keys::facts(node.id), facts);
        let Some(provisioning) = provisioning else {
            return Err(no_job(node));
        };
        // The disks of a node that was protected after its enrollment must not be written.
        if node.is_protected() {
            return Err(protected(node));
        }
        let draft = Draft { object: format!("node/{}: job", node.name), ..audit.clone() };
        let taken = self.runs.amend(&provisioning.run, node.id, &draft, |runs, was| {
            let state = was.value.shown.state;
            state.is_active().then(|| {
                let mut next = was.value.clone();
                next.become_state(NodeRunState::Working, runs.now());
                (next.seq, next.heard) = (0, Some(runs.now()));
                next.told_silent = None;
                next.given_at = Some(runs.now());
                NodeChange { more: vec![facts.clone()], ..NodeChange::new(was, next) }
            })
        });
        let taken = taken.await?.filter(|taken| taken.shown.state == NodeRunState::Working);
        taken.ok_or_else(|| no_job(node))
    }

    pub(super) async fn job(
        &self,
        enrolled: &EnrolledNode,
        record: &NodeRecord,
        base: &str,
        audit: &Draft,
    ) -> Result<ProvisioningJob, Failure> {
        let EnrolledNode { roster, node, by, from } = enrolled;
        if record.undo.is_some() {
            return self.undo_job(roster, node, record).await;
        }
        let run = &record.shown.run;
        let header = self.runs.header(run).await?.ok_or_else(|| no_job(node))?.value;
        let Some(given) = self.given_to(roster, record).await? else {
            return Err(self
                .refuse_job(record, audit, vec![no_profile(&record.shown.profile)])
                .await?);
        };
        let JobInputs { spec, artifacts, .. } = &given;
        let how = &header.how;
        let named = document::secret_names(roster, node, spec, how);
        let may_have = how.secrets_without_address || roster.has_own_address(node);
        if !named.is_empty() && !may_have {
            self.metadata.refuse_without_address(node, *from);
            return Err(self.refuse_job(record, audit, vec![no_address(&named)]).await?);
        }
        let drive = self.drive(roster, node, spec, how).await?;
        let mut released = SecretRelease::of(node, *by, *from);
        if let Some((_, layers)) = &drive {
            released = released.with_layers(roster, layers);
        }
        let drive = drive.as_ref().map(|(tree, _)| tree);
        let txn = record.txn;
        let were = Some(artifacts);
        let root = self.runs.last_root(node.id).await?;
        let past = Past { generation: record.begun_generation, root };
        let case = Case { roster, node, how, txn, base, were, drive, past };
        let document = document::make(spec, &case);
        let found = document::check(spec, &case, &document);
        if !found.is_empty() {
            let found = found.iter().map(document::reported).collect();
            return Err(self.refuse_job(record, audit, found).await?);
        }
        let secrets = match self.secrets(spec, &document).await? {
            Ok(secrets) => secrets,
            Err(missing) => return Err(self.refuse_job(record, audit, vec![*missing]).await?),
        };
        self.runs.remember_given(record, &given).await?;
        let released = released.with_secrets(secrets.keys());
        if !released.is_empty() {
            self.metadata.release(&released, audit.clone()).await?;
        }
        Ok(ProvisioningJob { document, secrets, ..self.empty_job(roster, node, record)? })
    }

    /// Inputs of a node's job: its current profile, or its previous installation.
    pub(super) async fn given_to(
        &self,
        roster: &Roster,
        record: &NodeRecord,
    ) -> Result<Option<JobInputs>, Failure> {
        if let Some(digest) = record.given.as_ref().filter(|_| record.is_given) {
            return Ok(self.runs.given(digest).await?);
        }
        Ok(roster.provision_profile(&record.shown.profile).map(|profile| JobInputs {
            profile: profile.name.clone(),
            spec: profile.spec.clone(),
            artifacts: document::artifacts(roster, &profile.spec),
        }))
    }

    /// Uses the inputs of the undone run, not the current profile.
    async fn undo_job(
        &self,
        roster: &Roster,
        node: &Node,
        record: &NodeRecord,
    ) -> Result<ProvisioningJob, Failure> {
        let given = match &record.given {
            Some(digest) => self.runs.given(digest).await?,
            None => None,
        };
        let now = roster.provision_profile(&record.shown.profile).map(|profile| &profile.spec);
        let spec = given.as_ref().map(|given| &given.spec).or(now);
        let spec = spec.ok_or_else(|| no_job(node))?;
        let document = document::undoing(spec, node, record.txn);
        let undo = Some(self.runs.backups(&record.shown.run, node.id).await?);
        Ok(ProvisioningJob { document, undo, ..self.empty_job(roster, node, record)? })
    }

    /// A job that names the node and its run and contains no work.
    fn empty_job(
        &self,
        roster: &Roster,
        node: &Node,
        record: &NodeRecord,
    ) -> Result<ProvisioningJob, Failure> {
        let provisioning = roster.boot_state(node.id).and_then(|state| state.provisioning.as_ref());
        let nonce = provisioning.ok_or_else(|| no_job(node))?.nonce;
        Ok(ProvisioningJob {
            run: record.shown.run.clone(),
            session: self.runs.session(node, &nonce),
            node: node.name.clone(),
            id: node.id,
            generation: node.generation,
            document: Value::Null,
            secrets: BTreeMap::new(),
            undo: None,
        })
    }

    /// The content of a node's config drive with its secrets, and the layers it comes from. It must
    /// travel over TLS only.
    async fn drive(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        spec: &ProvisionProfileSpec,
        how: &ProvisionOptions,
    ) -> Result<Option<(BTreeMap<String, Bytes>, Vec<Name>)>, Failure> {
        if !document::wants_drive(spec, how) {
            return Ok(None);
        }
        let rendered = self.metadata.rendered_whole(roster, node).await?;
        let tree = config_drive::tree(&rendered);
        Ok(Some((tree, rendered.layers)))
    }

    /// Away from the threads that answer: secrets are in files.
    async fn secrets(
        &self,
        spec: &ProvisionProfileSpec,
        document: &Value,
    ) -> Result<Result<BTreeMap<String, String>, Box<NodeDiagnostic>>, Failure> {
        let wanted = document::secrets(spec, document);
        let vault = Arc::clone(self.metadata.vault());
        let resolving = tokio::task::spawn_blocking(move || {
            let resolved = wanted.into_iter().map(|(name, place)| match vault.resolve(&place) {
                Ok(secret) => Ok((name, secret)),
                Err(error) => {
                    let error = hoist_diagnostic::chain(&error);
                    tracing::error!(name, error, "a secret of a profile cannot be read");
                    Err(Box::new(no_secret(&name)))
                }
            });
            resolved.collect::<Result<BTreeMap<_, _>, _>>()
        });
        resolving.await.map_err(|_| Failure::new(Code::Internal, "the secrets cannot be read"))
    }

    /// Fails the node with a problem that an operator must repair, and tells its agent to wait.
    async fn refuse_job(
        &self,
        record: &NodeRecord,
        audit: &Draft,
        problems: Vec<NodeDiagnostic>,
    ) -> Result<Failure, Failure> {
        let detail =
            problems.first().map(|found| found.diagnostic.message.clone()).unwrap_or_default();
        let report = Report {
            outcome: Outcome::Refused,
            plan: None,
            changed: false,
            resumed: false,
            problems,
            receipts: Value::Null,
            erased: Vec::new(),
            root: Vec::new(),
        };
        self.reported(record, &report, audit).await?;
        Ok(Failure::new(Code::Conflict, detail)
            .with_remedy("correct the problem, then run `hoist provision retry`"))
    }
}

fn no_job(node: &Node) -> Failure {
    let name = &node.name;
    Failure::new(Code::Conflict, format!("no provisioning job for node `{name}`")).with_remedy(
        format!("run `hoist provision start node:{name}` or `hoist provision retry {name}`"),
    )
}

fn no_profile(name: &Name) -> NodeDiagnostic {
    let cause = Diagnostic::new("", format!("ProvisionProfile `{name}` no longer exists"));
    NodeDiagnostic::new("no-such-thing", "input", cause)
}

fn no_address(secrets: &[String]) -> NodeDiagnostic {
    let cause = Diagnostic::new("", NO_ADDRESS).hint(NO_ADDRESS_REMEDY);
    NodeDiagnostic {
        evidence: secrets.iter().map(|name| format!("secret {name}")).collect(),
        ..NodeDiagnostic::new("no-address", "refused", cause)
    }
}

fn no_secret(name: &str) -> NodeDiagnostic {
    let cause = Diagnostic::new("", format!("the secret `{name}` cannot be read"))
        .hint("the controller's log has the reason");
    NodeDiagnostic::new("no-such-thing", "input", cause)
}
