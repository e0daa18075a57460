//! Joining a cluster as a plan of the engine, with a journal.
//!
//! | Step | Undo |
//! | --- | --- |
//! | `checks` | nothing to undo |
//! | `key` | removes the key, unless a request was made with it |
//! | `registration` | withdraws the request or the acceptance |
//! | `bundle` | removes certificate, authorities and membership |
//! | `service` | restores the unit and its state |
//! | `confirmation` | none: the commit point |
//!
//! `join.json` is written before the journal and removed before it: a machine with that file is
//! joining, one without it is not. A process that ends at any point leaves a join that the next run
//! continues. A join that fails before the controller has accepted is undone; from the acceptance
//! on it is always continued, because the controller counts the node.
//!
//! Does not belong here: the decision which cluster to join, and the files (`state`).

mod actions;
mod context;
mod error;
mod executor;
mod greeting;
mod plan;
mod registration;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hoist_api::cluster::Hello;
use hoist_cluster::join_token::JoinToken;
use hoist_cluster::pre_check::CheckResult;
use hoist_diagnostic::chain;
use hoist_engine::Plan;
use hoist_engine::action::{Action, Cancel, Catalog};
use hoist_engine::drive::{self, Halt};
use hoist_engine::file_journal::{FileJournal, RecoverError};
use hoist_engine::journal::JournalError;
use hoist_engine::plan::StepId;
use hoist_engine::record::Outcome;
use hoist_engine::run::{Event, Run, State};
use hoist_engine::undo::{GapKind, UndoDraft, UndoError, undo_plan};

pub use error::JoinError;
pub use executor::{JournalMoment, JournalProbe};
pub use greeting::observed_pins;

use crate::console::Console;
use crate::facts::FactSource;
use crate::interrupt::Interrupt;
use crate::service::ServiceHost;
use crate::state::{JoinIntent, MemberFile, StateDir};
use context::JoinContext;
use executor::{ProbedJournal, SequentialExecutor};
use plan::StepKind;

/// Space for the records of an undo on a disk that has become full.
const RESERVE: usize = 64 * 1024;

/// Everything that a join works with.
#[derive(Clone)]
pub struct JoinSetup {
    pub state: StateDir,
    pub console: Arc<dyn Console>,
    pub interrupt: Interrupt,
    pub facts: FactSource,
    pub service: ServiceHost,
    /// How long to wait for the decision of an operator.
    pub wait: Duration,
    /// For tests that end the process at a record.
    pub probe: Option<JournalProbe>,
}

impl std::fmt::Debug for JoinSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinSetup").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The results of the checks before a join, for a dry run.
#[derive(Debug)]
pub struct Inspection {
    /// The controller that answered.
    pub address: String,
    pub cluster: Hello,
    pub checks: Vec<CheckResult>,
}

/// Connects and makes all checks, and changes nothing. The controller learns nothing of this node.
pub fn inspect(setup: &JoinSetup, intent: &JoinIntent) -> Result<Inspection, JoinError> {
    let greeting = greeting::greet(intent, setup.console.as_ref())?;
    let checks = greeting::node_checks(setup, &greeting);
    let address = greeting.session.authority().to_owned();
    Ok(Inspection { address, cluster: greeting.hello, checks })
}

/// Begins a join. The caller must hold the lock of the state directory.
pub fn begin(
    setup: &JoinSetup,
    intent: &JoinIntent,
    token: Option<&JoinToken>,
) -> Result<MemberFile, JoinError> {
    let state = &setup.state;
    // Files of a join that ended while it removed them.
    state.end_join()?;
    let prepared = prepare(state, intent, token);
    if let Err(error) = prepared {
        state.end_join()?;
        return Err(error.into());
    }
    go_on(setup, intent, token.cloned(), false)
}

fn prepare(
    state: &StateDir,
    intent: &JoinIntent,
    token: Option<&JoinToken>,
) -> Result<(), crate::state::StateError> {
    state.reserve_space(RESERVE)?;
    if let Some(token) = token {
        state.store_join_token(&token.reveal())?;
    }
    state.store_join_intent(intent)
}

/// Continues a join that an earlier process began. `token` takes the place of the stored one. The
/// caller must hold the lock of the state directory.
pub fn resume(setup: &JoinSetup, token: Option<&JoinToken>) -> Result<MemberFile, JoinError> {
    let state = &setup.state;
    let intent = state.join_intent()?.ok_or(JoinError::NoJoin)?;
    let token = match token {
        Some(token) => {
            state.store_join_token(&token.reveal())?;
            Some(token.clone())
        }
        None => stored_token(state)?,
    };
    if state.undo_journal().exists() {
        let run = recover(setup, &intent)?.map(|(_, run)| run);
        let context = Arc::new(JoinContext::new(setup, &intent, token, true));
        undo(setup, &context, run.as_ref())?;
        return Err(JoinError::UndoCompleted);
    }
    go_on(setup, &intent, token, true)
}

/// Undoes a join that has not ended, as a signal does. The caller must hold the lock.
pub fn withdraw(setup: &JoinSetup) -> Result<(), JoinError> {
    let state = &setup.state;
    let intent = state.join_intent()?.ok_or(JoinError::NoJoin)?;
    let token = stored_token(state)?;
    let context = Arc::new(JoinContext::new(setup, &intent, token, true));
    let run = stopped_run(setup, &context)?;
    undo(setup, &context, run.as_ref())
}

fn stored_token(state: &StateDir) -> Result<Option<JoinToken>, JoinError> {
    let Some(text) = state.join_token()? else { return Ok(None) };
    text.parse().map(Some).map_err(|error| JoinError::StoredToken(state.path().into(), error))
}

fn go_on(
    setup: &JoinSetup,
    intent: &JoinIntent,
    token: Option<JoinToken>,
    is_resumed: bool,
) -> Result<MemberFile, JoinError> {
    let context = Arc::new(JoinContext::new(setup, intent, token, is_resumed));
    let driven = drive_join(setup, &context);
    let (run, halt) = match driven {
        Ok(driven) => driven,
        Err(JoinError::Journal(error @ JournalError::Full(_))) => {
            return Err(abort_on_full_disk(setup, &context, error));
        }
        Err(error) => return Err(error),
    };
    if halt == Halt::Finished(Outcome::Succeeded) {
        let member = setup.state.member()?.ok_or(JoinError::NoJoin)?;
        setup.state.end_join()?;
        return Ok(member);
    }
    let error = context.take_error().unwrap_or(JoinError::Interrupted { is_undone: false });
    if matches!(error, JoinError::Ended(_)) {
        setup.state.end_join()?;
        return Err(error);
    }
    if stays(&run, &error) {
        return Err(error.kept());
    }
    setup.console.step("undoing the join");
    undo(setup, &context, Some(&run)).inspect_err(|_| {
        // The reason of the undo comes before the reason why it did not end.
        setup.console.warn(&chain(&error));
    })?;
    Err(match error {
        JoinError::Interrupted { .. } => JoinError::Interrupted { is_undone: true },
        error => error,
    })
}

/// Whether the join stays, for a later run to continue it.
fn stays(run: &Run, error: &JoinError) -> bool {
    let registration = StepKind::Registration.id();
    let is_accepted = matches!(run.state(registration), State::Ended(end) if end.is_good());
    is_accepted || run.was_begun(registration) && error.is_open()
}

fn drive_join(setup: &JoinSetup, context: &Arc<JoinContext>) -> Result<(Run, Halt), JoinError> {
    let (mut journal, mut run) = match recover(setup, &context.intent)? {
        Some(recovered) => recovered,
        None => create(setup, &setup.state.join_journal(), &plan::plan(&context.intent))?,
    };
    // Steps that failed or were interrupted are tried again.
    if run.outcome().is_some() {
        let resume = Event::Resume { by: "bootstrap".to_owned() };
        drive::say(&mut run, &mut journal, [resume], clock())?;
    }
    let (send, events) = channel();
    let stop = send.clone();
    setup.interrupt.tell(move || {
        // The receiver is gone when the join has ended.
        let _ = stop.send(Event::Stop { now: true, by: "a signal".to_owned() });
    });
    let mut executor = SequentialExecutor::new(
        context.intent.operation.clone(),
        catalog(context),
        send,
        Arc::clone(&setup.console),
        setup.interrupt.first(),
    );
    let halt = drive::drive(&mut run, &mut journal, &mut executor, &events, clock)?;
    Ok((run, halt))
}

/// The error, after the join was undone where that is right.
fn abort_on_full_disk(
    setup: &JoinSetup,
    context: &Arc<JoinContext>,
    error: JournalError,
) -> JoinError {
    let aborted = stopped_run(setup, context).and_then(|run| match &run {
        Some(run) if stays(run, &JoinError::NoJoin) => Ok(()),
        run => undo(setup, context, run.as_ref()),
    });
    match aborted {
        Ok(()) => JoinError::Journal(error),
        Err(other) => other,
    }
}

/// The run of the journal, ended. `None` if nothing was ever recorded.
fn stopped_run(setup: &JoinSetup, context: &Arc<JoinContext>) -> Result<Option<Run>, JoinError> {
    setup.state.release_reserve()?;
    let Some((mut journal, mut run)) = recover(setup, &context.intent)? else { return Ok(None) };
    if run.outcome().is_none() {
        let stop = Event::Stop { now: true, by: "bootstrap".to_owned() };
        drive::say(&mut run, &mut journal, [stop], clock())?;
        let (send, events) = channel();
        let cancelled = Cancel::default();
        cancelled.cancel();
        let name = context.intent.operation.clone();
        let console = Arc::clone(&setup.console);
        let mut executor =
            SequentialExecutor::new(name, catalog(context), send, console, cancelled);
        drive::drive(&mut run, &mut journal, &mut executor, &events, clock)?;
    }
    Ok(Some(run))
}

/// Undoes the started steps in reverse order, continues after errors, and ends the join.
fn undo(setup: &JoinSetup, context: &Arc<JoinContext>, run: Option<&Run>) -> Result<(), JoinError> {
    let state = &setup.state;
    state.release_reserve()?;
    let failed = match run {
        Some(run) => undo_steps(setup, context, run)?,
        None => BTreeMap::new(),
    };
    state.end_join()?;
    if !failed.is_empty() {
        return Err(JoinError::NeedsOperator { failed });
    }
    Ok(())
}

/// The steps that could not be undone, with the reasons.
fn undo_steps(
    setup: &JoinSetup,
    context: &Arc<JoinContext>,
    run: &Run,
) -> Result<BTreeMap<String, String>, JoinError> {
    context.note_begun(run);
    let name = format!("{}-undo", context.intent.operation);
    let no_gap = |_: &hoist_engine::plan::Step| None::<GapKind>;
    let UndoDraft { draft, gaps, .. } = match undo_plan(run, &name, |_| true, no_gap) {
        Ok(planned) => planned,
        Err(UndoError::Nothing) => return Ok(BTreeMap::new()),
        Err(error) => return Err(JoinError::Undo(error)),
    };
    let gap = |step: StepId| {
        let name = run.plan().vertex(step).name.clone();
        (name, "it cannot be undone; use `hoist cluster leave`".to_owned())
    };
    let mut failed: BTreeMap<_, _> = gaps.iter().map(|one| gap(one.step)).collect();
    let plan = Arc::new(Plan::new(draft)?);
    let path = setup.state.undo_journal();
    let (mut journal, mut undo_run) = match recover_at(setup, &path, &plan)? {
        Some(recovered) => recovered,
        None => create(setup, &path, &plan)?,
    };
    let (send, events) = channel();
    let mut executor = SequentialExecutor::new(
        name,
        catalog(context),
        send.clone(),
        Arc::clone(&setup.console),
        setup.interrupt.second(),
    );
    setup.interrupt.tell({
        let second = setup.interrupt.second();
        move || {
            if second.is_cancelled() {
                // The receiver is gone when the undo has ended.
                let _ = send.send(Event::Stop { now: true, by: "a signal".to_owned() });
            }
        }
    });
    if undo_run.outcome().is_some() {
        let resume = Event::Resume { by: "bootstrap".to_owned() };
        // Refused if all steps were undone: nothing is left to resume then.
        let _ = drive::say(&mut undo_run, &mut journal, [resume], clock());
    }
    drive::drive(&mut undo_run, &mut journal, &mut executor, &events, clock)?;
    if setup.interrupt.second().is_cancelled() {
        return Err(JoinError::Interrupted { is_undone: false });
    }
    failed.append(&mut executor.failed);
    Ok(failed)
}

fn catalog(context: &Arc<JoinContext>) -> Catalog {
    let mut catalog = Catalog::default();
    for kind in StepKind::ALL {
        let action = actions::JoinAction { kind, context: Arc::clone(context) };
        catalog.add(Arc::new(action) as Arc<dyn Action>);
    }
    catalog
}

/// The journal and the run of the join; `None` if nothing was recorded.
fn recover(
    setup: &JoinSetup,
    intent: &JoinIntent,
) -> Result<Option<(ProbedJournal, Run)>, JoinError> {
    recover_at(setup, &setup.state.join_journal(), &plan::plan(intent))
}

fn recover_at(
    setup: &JoinSetup,
    path: &Path,
    plan: &Arc<Plan>,
) -> Result<Option<(ProbedJournal, Run)>, JoinError> {
    if !path.exists() {
        return Ok(None);
    }
    // A process may end between the creation of the file and its first record.
    if FileJournal::peek(path)?.is_empty() {
        fs_err::remove_file(path).map_err(JournalError::from)?;
        return Ok(None);
    }
    let (journal, run) = FileJournal::recover(path, plan).map_err(|error| match error {
        RecoverError::Journal(error) => JoinError::Journal(error),
        RecoverError::Replay(error) => JoinError::Replay(PathBuf::from(path), error),
    })?;
    Ok(Some((ProbedJournal::new(journal, setup.probe.clone()), run)))
}

fn create(
    setup: &JoinSetup,
    path: &Path,
    plan: &Arc<Plan>,
) -> Result<(ProbedJournal, Run), JoinError> {
    let mut journal = ProbedJournal::new(FileJournal::create(path)?, setup.probe.clone());
    drive::begin(plan, &mut journal, clock())?;
    Ok((journal, Run::new(Arc::clone(plan))))
}

fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
