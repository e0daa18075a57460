//! The values that the steps of a join share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hoist_cluster::join_token::JoinToken;
use hoist_diagnostic::chain;
use hoist_engine::action::{Cancel, Failure};
use hoist_engine::record::FailureKind;
use hoist_engine::run::Run;
use parking_lot::Mutex;

use super::JoinSetup;
use super::error::JoinError;
use super::plan::StepKind;
use crate::state::JoinIntent;

pub(super) struct JoinContext {
    pub(super) setup: JoinSetup,
    pub(super) intent: JoinIntent,
    pub(super) token: Option<JoinToken>,
    /// The error of the step that failed last, with its type.
    error: Mutex<Option<JoinError>>,
    /// A controller may know of this join.
    is_sent: AtomicBool,
    /// The key was used for a request, and stays through an undo.
    is_key_used: AtomicBool,
}

impl JoinContext {
    pub(super) fn new(
        setup: &JoinSetup,
        intent: &JoinIntent,
        token: Option<JoinToken>,
        is_resumed: bool,
    ) -> Self {
        Self {
            setup: setup.clone(),
            intent: intent.clone(),
            token,
            error: Mutex::new(None),
            // An earlier process may have sent a request before it ended.
            is_sent: AtomicBool::new(is_resumed),
            is_key_used: AtomicBool::new(is_resumed),
        }
    }

    /// Called before a request is sent.
    pub(super) fn note_sent(&self) {
        self.is_sent.store(true, Ordering::Relaxed);
        self.is_key_used.store(true, Ordering::Relaxed);
    }

    /// Called when the controller has refused the request, and so does not know of it.
    pub(super) fn note_refused(&self) {
        self.is_sent.store(false, Ordering::Relaxed);
    }

    /// Without a registration in the journal, no earlier process has sent one.
    pub(super) fn note_begun(&self, run: &Run) {
        if !run.was_begun(StepKind::Registration.id()) {
            self.is_sent.store(false, Ordering::Relaxed);
            self.is_key_used.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }

    pub(super) fn is_key_used(&self) -> bool {
        self.is_key_used.load(Ordering::Relaxed)
    }

    /// Remembers the error, and makes a failure of the engine from it.
    pub(super) fn fail(self: &Arc<Self>, error: JoinError) -> Failure {
        let reason = chain(&error);
        *self.error.lock() = Some(error);
        Failure { kind: FailureKind::Exit, reason }
    }

    pub(super) fn take_error(&self) -> Option<JoinError> {
        self.error.lock().take()
    }

    /// An interrupted step has no error of its own.
    pub(super) fn check_interrupt(cancel: &Cancel) -> Result<(), JoinError> {
        if cancel.is_cancelled() {
            return Err(JoinError::Interrupted { is_undone: false });
        }
        Ok(())
    }
}
