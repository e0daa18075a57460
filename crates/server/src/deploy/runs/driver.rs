//! The thread of a run: it drives it until it has ended, is left, or cannot go on.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use hoist_api::deploy::RunOutcome;
use hoist_diagnostic::chain;
use hoist_engine::drive::{Halt, Journal, drive};
use hoist_engine::journal::JournalError;
use hoist_engine::{Event, Run};
use serde_json::json;

use super::recover::caught;
use super::{Known, Runs, RunsError, now_ms, to_the_ended};
use crate::deploy::entry::{Entry, RunJournal};
use crate::deploy::folder::{Folder, FolderError};
use crate::deploy::transport::Transport;

/// The thread of one run.
pub(super) struct Driver {
    pub(super) runs: Runs,
    pub(super) shown: RunJournal,
    pub(super) entry: Arc<Entry>,
    pub(super) folder: Folder,
    pub(super) run: Run,
    pub(super) transport: Transport,
    pub(super) told: Receiver<Event>,
}

impl Runs {
    pub(super) fn spawn(&self, driver: Driver, told: &str) -> Result<(), RunsError> {
        let entry = Arc::clone(&driver.entry);
        let id = entry.file.id.clone();
        if let Some(claim) = &driver.shown.claim {
            let entry = Arc::clone(&entry);
            claim.keep(move || entry.leave());
        }
        let runs = self.clone();
        let of = id.clone();
        let drive = move || {
            let driven = caught(|| {
                driver.run();
                Ok(())
            });
            if let Err(error) = driven {
                let broken = runs.broken(&of, &error);
                runs.0.known.lock().insert(of, broken);
            }
        };
        // The lock delays the end of the run until its thread is registered.
        let mut known = self.0.known.lock();
        let thread = std::thread::Builder::new().name("run".to_owned()).spawn(drive);
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                drop(known);
                let error = RunsError::NoThread(error);
                let broken = self.broken(&id, &error);
                self.0.known.lock().insert(id, broken);
                return Err(error);
            }
        };
        known.insert(id.clone(), Known::Live(Arc::clone(&entry)));
        drop(known);
        self.0.bus.publish(told, &format!("run/{id}"), json!({ "title": entry.file.title }));
        self.0.summaries.keep(&entry.view().summary());
        let mut threads = self.0.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

impl Driver {
    fn run(mut self) {
        let inner = Arc::clone(&self.runs.0);
        let mut transport = self.transport;
        let mut journal = transport.kept(&self.entry.plan, self.shown);
        let mut is_final = true;
        let known = loop {
            let halt = drive(&mut self.run, &mut journal, &mut transport, &self.told, now_ms);
            let halt = halt.and_then(|halt| match halt {
                Halt::Finished(_)
                    if goes_on(&mut self.run, &self.entry, &self.told, &mut journal)? =>
                {
                    Ok(None)
                }
                halt => Ok(Some(halt)),
            });
            match halt {
                Ok(None) => {}
                Ok(Some(Halt::Finished(_))) => {
                    is_final = self.runs.undo_by_itself(&self.run, &self.entry);
                    break ended(&self.entry, &self.folder, is_final);
                }
                Ok(Some(Halt::NeedsPerson)) => {
                    self.entry.set_waiting(true);
                    let Ok(event) = self.told.recv() else { return };
                    self.entry.set_waiting(false);
                    self.entry.tell(&[event]);
                }
                Ok(Some(Halt::Deserted)) => return,
                // The controller that owns the run now writes its summary.
                Err(JournalError::Fenced) => {
                    self.runs.0.known.lock().remove(&self.entry.file.id);
                    return;
                }
                Err(_) if self.entry.is_leaving() => {
                    if let Some(claim) = journal.journal.claim.take() {
                        self.runs.0.known.lock().remove(&self.entry.file.id);
                        claim.leave();
                    }
                    if let Err(error) = self.folder.leave() {
                        tracing::warn!(error = %chain(&error), "the next start takes this for a crash");
                    }
                    return;
                }
                Err(error) => {
                    let error = FolderError::Journal(error);
                    break self.runs.broken(&self.entry.file.id, &error);
                }
            }
        };
        let id = self.entry.file.id.clone();
        let summary = match &known {
            Known::Ended(summary) | Known::Broken(summary) => summary.clone(),
            Known::Live(_) => unreachable!("its thread ends"),
        };
        self.entry.close();
        let is_ended = matches!(known, Known::Ended(_));
        // What agents hold of one that is broken is needed when it goes on.
        if is_ended {
            inner.context.gateway.dispatcher.close(&id);
            transport.forget();
        }
        match journal.journal.claim.take() {
            Some(claim) if is_ended && is_final => claim.end(&self.entry.file),
            // Others may be able to go on.
            Some(claim) => claim.leave(),
            None => {}
        }
        // A resume needs the lock.
        drop((self.folder, journal));
        self.runs.0.known.lock().insert(id.clone(), known);
        // Those who wait look again.
        self.entry.set_waiting(false);
        let outcome = summary.outcome.map(RunOutcome::as_str);
        inner.bus.publish("deploy.run.ended", &format!("run/{id}"), json!({ "outcome": outcome }));
        inner.summaries.keep(&summary);
    }
}

/// Applies events that arrived while the run ended; false if there were none, and the channel is
/// closed then.
fn goes_on(
    run: &mut Run,
    entry: &Entry,
    told: &Receiver<Event>,
    journal: &mut impl Journal,
) -> Result<bool, JournalError> {
    while let Some(events) = entry.close_unless_told(told) {
        let mut number = entry.view().records.len();
        let mut said = Vec::new();
        for record in events.iter().filter_map(to_the_ended) {
            // The run rejects an event that does not fit, and its sender learns so.
            if run.follow(number, &record).is_ok() {
                number += 1;
                said.push(record);
            }
        }
        journal.append(&said)?;
        if run.outcome().is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A run without a final end is examined again at the next start.
fn ended(entry: &Entry, folder: &Folder, is_final: bool) -> Known {
    let summary = entry.view().summary();
    if is_final && let Err(error) = folder.end(&summary) {
        tracing::warn!(error = %chain(&error), "the journal is read at the next start");
    }
    Known::Ended(summary)
}
