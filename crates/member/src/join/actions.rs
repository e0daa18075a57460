//! The steps of a join as actions of the engine. Each may be repeated after a process has ended at
//! any point.

use std::sync::Arc;

use hoist_api::cluster::JoinBundle;
use hoist_cluster::id::Pin;
use hoist_cluster::pre_check::{Severity, blocking};
use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::context::JoinContext;
use super::error::JoinError;
use super::plan::StepKind;
use super::{greeting, registration};
use crate::service::PreviousService;
use crate::state::{MemberFile, Standing};
use crate::trust::{certificates, pin_of};

pub(super) struct JoinAction {
    pub(super) kind: StepKind,
    pub(super) context: Arc<JoinContext>,
}

impl Action for JoinAction {
    fn describe(&self) -> Description {
        Description {
            name: self.kind.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: self.kind.progress().to_owned(),
            can: [Ability::Undo].into(),
            network: matches!(
                self.kind,
                StepKind::Checks | StepKind::Registration | StepKind::Confirmation
            ),
            ..Description::default()
        }
    }

    fn validate(&self, _: &Value) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn apply(&self, _: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let done = match self.kind {
            StepKind::Checks => self.check(),
            StepKind::Key => self.make_key(),
            StepKind::Registration => self.register(ctx),
            StepKind::Bundle => self.store_bundle(),
            StepKind::Service => self.install_service(),
            StepKind::Confirmation => self.confirm(ctx),
        };
        done.map_err(|error| self.context.fail(error))
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::fails("a step of a join is repeated, not verified"))
    }

    fn undo(
        &self,
        _: &Step,
        attempt: &AppliedAttempt,
        _: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        let state = &self.context.setup.state;
        let undone: Result<(), JoinError> = match self.kind {
            StepKind::Checks => Ok(()),
            // A repeated attempt keeps its place in the controller's queue with the same key.
            StepKind::Key if self.context.is_key_used() => Ok(()),
            StepKind::Key => state.remove_key().map_err(Into::into),
            StepKind::Registration => registration::withdraw(&self.context),
            StepKind::Bundle => state.remove_bundle().map_err(Into::into),
            StepKind::Service => self.restore_service(&attempt.receipt),
            StepKind::Confirmation => {
                let reason = "the controller counts the node as a member".to_owned();
                return Ok(UndoOutcome::NotPossible { reason });
            }
        };
        undone.map(|()| UndoOutcome::Undone).map_err(|error| self.context.fail(error))
    }
}

fn changed(receipt: Value) -> ApplyOutcome {
    ApplyOutcome { changed: true, receipt }
}

impl JoinAction {
    fn check(&self) -> Result<ApplyOutcome, JoinError> {
        let context = &self.context;
        let console = context.setup.console.as_ref();
        let greeting = greeting::greet(&context.intent, console)?;
        let checks = greeting::node_checks(&context.setup, &greeting);
        for warning in checks.iter().filter(|check| check.severity == Severity::Warning) {
            console.warn(&warning.evidence);
        }
        let refused = blocking(&checks, &std::collections::BTreeSet::new());
        if !refused.is_empty() {
            return Err(JoinError::Checks(refused.into_iter().cloned().collect()));
        }
        // The receipt is the evidence in the journal.
        let receipt = json!({ "controller": greeting.session.authority(), "checks": checks });
        Ok(ApplyOutcome { changed: false, receipt })
    }

    fn make_key(&self) -> Result<ApplyOutcome, JoinError> {
        let state = &self.context.setup.state;
        let is_new = state.node_key()?.is_none();
        let (_, id) = state.ensure_key()?;
        Ok(ApplyOutcome { changed: is_new, receipt: json!({ "node": id }) })
    }

    fn register(&self, ctx: &Ctx<'_>) -> Result<ApplyOutcome, JoinError> {
        let context = &self.context;
        let state = &context.setup.state;
        // An earlier attempt has stored the bundle, and its end was not recorded.
        let stored: Option<JoinBundle> = state.join_bundle()?;
        let bundle = if let Some(bundle) = stored {
            bundle
        } else {
            let (key, id) = state.ensure_key()?;
            let (mut bundle, authority) = registration::register(context, &key, id, ctx.cancel)?;
            let url = format!("https://{authority}");
            // The controller that was reached may have another name in its own bundle.
            if !bundle.controllers.contains(&url) {
                bundle.controllers.push(url);
            }
            state.store_join_bundle(&bundle)?;
            bundle
        };
        let text = format!("accepted as node {} of cluster {}", bundle.node, bundle.cluster.name);
        context.setup.console.step(&text);
        Ok(changed(json!({ "node": bundle.node, "join_order": bundle.join_order })))
    }

    fn store_bundle(&self) -> Result<ApplyOutcome, JoinError> {
        let context = &self.context;
        let state = &context.setup.state;
        let bundle: JoinBundle = state.join_bundle()?.ok_or(JoinError::NoBundle)?;
        let (key, id) = state.ensure_key()?;
        let uid = bundle.cluster.uid.parse();
        let now = Timestamp::now();
        let pins: Vec<Pin> = certificates(&bundle.authorities).iter().filter_map(pin_of).collect();
        let member = MemberFile {
            standing: Standing::Accepted,
            name: bundle.cluster.name.clone(),
            uid: uid.map_err(|_| JoinError::Bundle("its cluster id cannot be read"))?,
            id,
            node: bundle.node.clone(),
            join_order: bundle.join_order,
            controllers: bundle.controllers.clone(),
            pins,
            founded: context.intent.founded,
            accepted: now,
            certificate_from: now,
            certificate_ends: bundle.certificate_ends,
        };
        state.store_identity(&key, Some(&bundle.certificate))?;
        state.store_authorities(&bundle.authorities)?;
        state.store_member(&member)?;
        Ok(changed(Value::Null))
    }

    fn install_service(&self) -> Result<ApplyOutcome, JoinError> {
        let service = &self.context.setup.service;
        let previous = service.install(&self.context.setup.state)?;
        Ok(changed(json!(previous)))
    }

    fn restore_service(&self, receipt: &Value) -> Result<(), JoinError> {
        // An attempt that did not end has no receipt; its record of the state before is in a file.
        let previous: Option<PreviousService> = serde_json::from_value(receipt.clone()).ok();
        self.context.setup.service.restore(&self.context.setup.state, previous.as_ref())?;
        Ok(())
    }

    fn confirm(&self, ctx: &Ctx<'_>) -> Result<ApplyOutcome, JoinError> {
        let state = &self.context.setup.state;
        let member = state.member()?.ok_or(JoinError::NoBundle)?;
        if let Err(error) = registration::confirm(&self.context, &member, ctx.cancel) {
            let JoinError::Call(call) = &error else { return Err(error) };
            let Some(end) = call.membership_end() else { return Err(error) };
            state.end_membership(end)?;
            return Err(JoinError::Ended(end));
        }
        state.store_member(&MemberFile { standing: Standing::Member, ..member })?;
        Ok(changed(Value::Null))
    }
}
