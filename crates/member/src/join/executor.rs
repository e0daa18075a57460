//! Carries out the steps of a join, one after the other in the thread of the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hoist_engine::action::{Cancel, Catalog};
use hoist_engine::drive::{Executor, Journal};
use hoist_engine::execute::{
    AttemptPrograms, BaseDirectory, ExecutionSite, Job, JobOutcome, NoSecrets, Outputs,
};
use hoist_engine::file_journal::FileJournal;
use hoist_engine::journal::JournalError;
use hoist_engine::plan::Plan;
use hoist_engine::record::{End, Record};
use hoist_engine::run::{AttemptStatus, Effect, Event, Run};

use super::plan::StepKind;
use crate::console::Console;

pub(super) struct SequentialExecutor {
    name: String,
    site: ExecutionSite,
    events: Sender<Event>,
    console: Arc<dyn Console>,
    cancel: Cancel,
    /// Steps that failed, with the reasons.
    pub(super) failed: BTreeMap<String, String>,
}

impl SequentialExecutor {
    pub(super) fn new(
        name: String,
        catalog: Catalog,
        events: Sender<Event>,
        console: Arc<dyn Console>,
        cancel: Cancel,
    ) -> Self {
        let site = ExecutionSite {
            catalog,
            secrets: Arc::new(NoSecrets),
            outputs: Outputs::none(),
            base: BaseDirectory::Machine,
        };
        Self { name, site, events, console, cancel, failed: BTreeMap::new() }
    }

    fn announce(&self, job: &Job) {
        let kind = StepKind::ALL.into_iter().find(|kind| kind.name() == job.task);
        match kind {
            Some(kind) => self.console.step(kind.progress()),
            None => self.console.step(&job.task),
        }
    }
}

impl Executor for SequentialExecutor {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        // Steps of an earlier process ended with that process.
        if let Effect::Ask { step, attempt } = effect {
            let _ = self.events.send(Event::Found { step, attempt, found: AttemptStatus::Gone });
            return;
        }
        let Some(job) = Job::of(&self.name, plan, effect) else { return };
        if matches!(effect, Effect::Start { .. }) {
            self.announce(&job);
        }
        let outcome = self.site.carry_out(&job, &self.cancel, &AttemptPrograms::default());
        if let JobOutcome::Ran {
            end: End::Failed { reason, .. } | End::NotBegun { reason: Some(reason) },
        } = &outcome
        {
            self.failed.insert(job.task.clone(), reason.clone());
        }
        // The receiver outlives this call: `drive` waits for the event.
        let _ = self.events.send(outcome.event(job.number, job.attempt));
    }
}

/// A place at which a test may end the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalMoment {
    BeforeWrite,
    AfterWrite,
}

/// Called around each write of a journal. An error takes the place of the write, or follows it.
pub type JournalProbe = Arc<dyn Fn(JournalMoment) -> Result<(), JournalError> + Send + Sync>;

/// A journal in a file, with the probe of a test.
pub(super) struct ProbedJournal {
    journal: FileJournal,
    probe: Option<JournalProbe>,
}

impl ProbedJournal {
    pub(super) fn new(journal: FileJournal, probe: Option<JournalProbe>) -> Self {
        Self { journal, probe }
    }

    fn probe(&self, moment: JournalMoment) -> Result<(), JournalError> {
        self.probe.as_ref().map_or(Ok(()), |probe| probe(moment))
    }
}

impl Journal for ProbedJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.probe(JournalMoment::BeforeWrite)?;
        self.journal.append(records)?;
        self.probe(JournalMoment::AfterWrite)
    }

    fn snapshot(&mut self, run: &Run) {
        self.journal.snapshot(run);
    }
}
