//! What an agent is ordered to do: a document made of the node's profile, of what the node goes back
//! to, or of the disks that it puts back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hoist_api::Code;
use hoist_api::provision::{DocumentsRequest, Finding, How, NodeRunState, Order, Outcome, Report};
use hoist_inventory::{Roster, record};
use hoist_metadata::{Resolve as _, config_drive};
use hoist_model::{Name, Node, NodeId, ProvisionProfileSpec};
use serde_json::Value;

use super::Provision;
use super::document::{self, Case, Past};
use super::record::{FactsRecord, Given, NodeRecord, put};
use super::runs::{Changed, own_draft};
use super::steer::protected;
use crate::audit::Draft;
use crate::failure::Failure;
use crate::metadata::{EnrolledNode, NO_ADDRESS, NO_ADDRESS_REMEDY, SecretRelease};

/// Giving orders.
impl Provision {
    /// Another key came with the right token: people see it where they look for the node.
    pub(super) async fn note_stranger(&self, node: NodeId) {
        let roster = self.runs.roster();
        let provisioning = roster.boot_state(node).and_then(|state| state.provisioning.as_ref());
        let Some(provisioning) = provisioning else { return };
        let audit = own_draft("quarantined", &provisioning.run);
        let noted = self.runs.amend(&provisioning.run, node, &audit, |_, was| {
            let note = "another key came with this node's token; if the machine was started anew, \
                        `hoist provision retry NODE --key FINGERPRINT` lets it in again";
            (was.value.shown.note.as_deref() != Some(note)).then(|| {
                let mut next = was.value.clone();
                next.shown.note = Some(note.to_owned());
                Changed::new(was, next)
            })
        });
        if let Err(failure) = noted.await {
            tracing::warn!(error = %crate::chain(&failure), "a second key is not noted");
        }
    }

    /// An agent that failed and stayed in memory knows only the token of before. The key that has
    /// redeemed it is taken once more, if somebody wants the node to be begun again.
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
        // What it would have found had it started anew is its own from now on, and nobody else's.
        let taken = self.metadata.redeem_anew(&node, proof, from).await?;
        Ok(taken.map(|by| EnrolledNode { roster, node, by, from }))
    }

    /// What an agent is told that failed, or was ended, and asks again: nothing is ordered before
    /// people decide. Whoever has not had that order learns nothing.
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
        let (name, run) = (&node.name, &last.run);
        let detail = match shown.state {
            NodeRunState::Failed => format!("node `{name}` has failed in run {run}"),
            NodeRunState::Aborted => format!("node `{name}` was aborted in run {run}"),
            _ => return Ok(None),
        };
        Ok(Some(Failure::new(Code::Forbidden, detail).with_remedy(format!(
            "`hoist provision retry {name}` begins it again, and this agent goes on by itself"
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
        let facts = put(record::facts_key(node.id), facts);
        let Some(provisioning) = provisioning else {
            return Err(nothing_ordered(node));
        };
        // Who is protected after it was armed is not written to.
        if node.is_protected() {
            return Err(protected(node));
        }
        let draft = Draft { object: format!("node/{}: order", node.name), ..audit.clone() };
        let taken = self.runs.amend(&provisioning.run, node.id, &draft, |runs, was| {
            let state = was.value.shown.state;
            state.is_active().then(|| {
                let mut next = was.value.clone();
                next.become_state(NodeRunState::Working, runs.now());
                (next.seq, next.heard) = (0, Some(runs.now()));
                next.told_silent = None;
                next.ordered = Some(runs.now());
                Changed { more: vec![facts.clone()], ..Changed::new(was, next) }
            })
        });
        let taken = taken.await?.filter(|taken| taken.shown.state == NodeRunState::Working);
        taken.ok_or_else(|| nothing_ordered(node))
    }

    pub(super) async fn order(
        &self,
        enrolled: &EnrolledNode,
        record: &NodeRecord,
        base: &str,
        audit: &Draft,
    ) -> Result<Order, Failure> {
        let EnrolledNode { roster, node, by, from } = enrolled;
        if record.undo.is_some() {
            return self.undo_order(roster, node, record).await;
        }
        let run = &record.shown.run;
        let header = self.runs.header(run).await?.ok_or_else(|| nothing_ordered(node))?.value;
        let Some(given) = self.given_to(roster, record).await? else {
            return Err(self
                .no_order(record, audit, vec![no_profile(&record.shown.profile)])
                .await?);
        };
        let Given { spec, artifacts, .. } = &given;
        let how = &header.how;
        let named = document::secret_names(roster, node, spec, how);
        let may_have = how.secrets_without_address || roster.has_own_address(node);
        if !named.is_empty() && !may_have {
            self.metadata.refuse_without_address(node, *from);
            return Err(self.no_order(record, audit, vec![no_address(&named)]).await?);
        }
        let drive = self.drive(roster, node, spec, how).await?;
        let mut released = SecretRelease::of(node, *by, *from);
        if let Some((_, layers)) = &drive {
            released = released.with_layers(roster, layers);
        }
        let drive = drive.as_ref().map(|(tree, _)| tree);
        let (txn, were) = (record.txn, Some(artifacts));
        let root = self.runs.last_root(node.id).await?;
        let past = Past { generation: record.begun_generation, root };
        let case = Case { roster, node, how, txn, base, were, drive, past };
        let document = document::make(spec, &case);
        let found = document::check(spec, &case, &document);
        if !found.is_empty() {
            let found = found.iter().map(document::finding).collect();
            return Err(self.no_order(record, audit, found).await?);
        }
        let secrets = match self.secrets(spec, &document).await? {
            Ok(secrets) => secrets,
            Err(missing) => return Err(self.no_order(record, audit, vec![*missing]).await?),
        };
        self.runs.remember_given(record, &given).await?;
        let released = released.with_secrets(secrets.keys());
        if !released.is_empty() {
            self.metadata.release(&released, audit.clone()).await?;
        }
        Ok(Order { document, secrets, ..self.empty_order(roster, node, record)? })
    }

    /// What a node is made of: its profile as it is now, or what it goes back to.
    pub(super) async fn given_to(
        &self,
        roster: &Roster,
        record: &NodeRecord,
    ) -> Result<Option<Given>, Failure> {
        if let Some(digest) = record.given.as_ref().filter(|_| record.is_given) {
            return Ok(self.runs.given(digest).await?);
        }
        Ok(roster.provision_profile(&record.shown.profile).map(|profile| Given {
            profile: profile.name.clone(),
            spec: profile.spec.clone(),
            artifacts: document::artifacts(roster, &profile.spec),
        }))
    }

    /// By what the node was given then, whatever its profile says now.
    async fn undo_order(
        &self,
        roster: &Roster,
        node: &Node,
        record: &NodeRecord,
    ) -> Result<Order, Failure> {
        let given = match &record.given {
            Some(digest) => self.runs.given(digest).await?,
            None => None,
        };
        let now = roster.provision_profile(&record.shown.profile).map(|profile| &profile.spec);
        let spec = given.as_ref().map(|given| &given.spec).or(now);
        let spec = spec.ok_or_else(|| nothing_ordered(node))?;
        let document = document::undoing(spec, node, record.txn);
        let undo = Some(self.runs.backups(&record.shown.run, node.id).await?);
        Ok(Order { document, undo, ..self.empty_order(roster, node, record)? })
    }

    /// Who and in which run, and nothing to do.
    fn empty_order(
        &self,
        roster: &Roster,
        node: &Node,
        record: &NodeRecord,
    ) -> Result<Order, Failure> {
        let provisioning = roster.boot_state(node.id).and_then(|state| state.provisioning.as_ref());
        let nonce = provisioning.ok_or_else(|| nothing_ordered(node))?.nonce;
        Ok(Order {
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

    /// What the config drive of a node says, with its secrets, and by which layers: it travels over
    /// TLS only.
    async fn drive(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        spec: &ProvisionProfileSpec,
        how: &How,
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
    ) -> Result<Result<BTreeMap<String, String>, Box<Finding>>, Failure> {
        let wanted = document::secrets(spec, document);
        let vault = Arc::clone(self.metadata.vault());
        let resolving = tokio::task::spawn_blocking(move || {
            let resolved = wanted.into_iter().map(|(name, place)| match vault.resolve(&place) {
                Ok(secret) => Ok((name, secret)),
                Err(reason) => {
                    tracing::error!(name, reason, "a secret of a profile cannot be read");
                    Err(Box::new(no_secret(&name)))
                }
            });
            resolved.collect::<Result<BTreeMap<_, _>, _>>()
        });
        resolving.await.map_err(|_| Failure::new(Code::Internal, "the secrets cannot be read"))
    }

    /// There is something wrong that a person has to mend: the node has failed, and its agent is
    /// told to wait.
    async fn no_order(
        &self,
        record: &NodeRecord,
        audit: &Draft,
        problems: Vec<Finding>,
    ) -> Result<Failure, Failure> {
        let detail = problems.first().map(|found| found.what.clone()).unwrap_or_default();
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
            .with_remedy("mend it, then `hoist provision retry`"))
    }
}

fn nothing_ordered(node: &Node) -> Failure {
    Failure::new(Code::Conflict, format!("nothing is ordered for node `{}`", node.name))
        .with_remedy("`hoist provision start` or `hoist provision retry` orders something")
}

fn no_profile(name: &Name) -> Finding {
    wrong("no-such-thing", format!("there is no ProvisionProfile `{name}` any more"))
}

fn no_address(secrets: &[String]) -> Finding {
    let mut found = wrong("no-address", NO_ADDRESS.to_owned());
    "refused".clone_into(&mut found.class);
    found.hint = Some(NO_ADDRESS_REMEDY.to_owned());
    found.evidence = secrets.iter().map(|name| format!("secret {name}")).collect();
    found
}

fn no_secret(name: &str) -> Finding {
    let hint = "the controller's log has the reason".to_owned();
    let what = format!("the secret `{name}` cannot be read");
    Finding { hint: Some(hint), ..wrong("no-such-thing", what) }
}

fn wrong(code: &str, what: String) -> Finding {
    Finding {
        code: code.to_owned(),
        class: "input".to_owned(),
        action: String::new(),
        step: String::new(),
        what,
        place: String::new(),
        hint: None,
        evidence: Vec::new(),
    }
}
