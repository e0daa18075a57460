//! Commands to runs of other controllers: `journal-commands/<run>/<id>` in the shared store.
//!
//! The controller that drives the run carries a command out and replaces it by the result. The
//! controller that was given the command waits for the result and removes it.

use std::time::Duration;

use hoist_api::{Code, Problem};
use hoist_chassis::failure::Failure;
use hoist_chassis::scan::{ScanStep, walk};
use hoist_chassis::secret;
use hoist_diagnostic::chain;
use hoist_store::{Compare, Key, Op, Record, StoreError, Txn};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Deploy;
use super::run_commands::GivenCommand;
use super::runs::now_ms;

/// How often the store is asked for commands, and for their results.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a result is waited for: longer than another controller needs to take a run over.
const ANSWERED: Duration = Duration::from_secs(15);
/// The controller that waits for an older one is gone.
const FORGOTTEN_MS: u64 = 60_000;

const ID_CHARS: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    /// Milliseconds since 1970.
    at: u64,
    content: Content,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Command(Box<GivenCommand>),
    Done,
    Refused(Box<Problem>),
}

impl Deploy {
    /// Sends a command to the controller that drives the run, and waits until the command is in the
    /// journal.
    pub(super) async fn send(&self, run: &str, given: GivenCommand) -> Result<(), Failure> {
        let key = top().child(run).child(&secret::random_text(ID_CHARS));
        let letter = Letter { at: now_ms(), content: Content::Command(Box::new(given)) };
        let txn = Txn { compares: Vec::new(), ops: vec![letter.put(&key)] };
        self.chassis.store.commit(txn).await?;
        let result = self.result(&key).await;
        let removal = Txn { compares: Vec::new(), ops: vec![Op::Delete(key)] };
        if let Err(error) = self.chassis.store.commit(removal).await {
            tracing::debug!(error = %chain(&error), "a command is removed later");
        }
        result
    }

    async fn result(&self, key: &Key) -> Result<(), Failure> {
        let deadline = Instant::now() + ANSWERED;
        while Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(record) = self.chassis.store.get(key).await? else { break };
            match Letter::read(&record).map(|letter| letter.content) {
                Some(Content::Done) => return Ok(()),
                Some(Content::Refused(problem)) => return Err((*problem).into()),
                Some(Content::Command(_)) => {}
                None => break,
            }
        }
        let detail = "the controller that drives the run has not answered";
        Err(Failure::new(Code::Conflict, detail)
            .with_remedy("`hoist deploy show` says where the run stands; try again"))
    }

    /// Carries out the commands to runs of this controller, until it stops.
    pub(super) async fn obey_commands(self, stopping: CancellationToken) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = look.tick() => {}
            }
            let mut records = Vec::new();
            let top = top();
            let walked = walk(&*self.chassis.store, &top, None, |record| {
                records.push(record);
                ScanStep::Go
            });
            if let Err(error) = walked.await {
                tracing::debug!(error = %chain(&error), "commands to runs cannot be read");
            }
            // One that waits for its run must not delay those to other runs.
            let answers = records.iter().map(|record| self.answer(record));
            for answered in futures_util::future::join_all(answers).await {
                if let Err(error) = answered {
                    tracing::debug!(error = %chain(&error), "command to a run not answered");
                }
            }
        }
    }

    /// Replaces a command by its result, if the run is here, and removes results that no caller
    /// waits for.
    async fn answer(&self, record: &Record) -> Result<(), StoreError> {
        let Record { key, revision, .. } = record;
        let letter = Letter::read(record);
        let is_old = |letter: &Letter| letter.at.saturating_add(FORGOTTEN_MS) < now_ms();
        let op = match letter {
            None => Op::Delete(key.clone()),
            Some(letter) if is_old(&letter) => Op::Delete(key.clone()),
            Some(Letter { content: Content::Command(given), .. }) => {
                let run = key.as_str().split('/').nth(1).unwrap_or_default();
                if self.runs.live(run).is_none() {
                    return Ok(());
                }
                let content = match self.obey(run, &given).await {
                    Ok(()) => Content::Done,
                    Err(failure) => Content::Refused(Box::new(failure.problem().clone())),
                };
                Letter { at: now_ms(), content }.put(key)
            }
            Some(_) => return Ok(()),
        };
        let compares = vec![Compare::At(key.clone(), *revision)];
        match self.chassis.store.commit(Txn { compares, ops: vec![op] }).await {
            // The one who waited for it has gone.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Letter {
    fn read(record: &Record) -> Option<Self> {
        serde_json::from_slice(&record.value).ok()
    }

    fn put(&self, key: &Key) -> Op {
        Op::Put(key.clone(), serde_json::to_vec(self).expect("a plain value"))
    }
}

fn top() -> Key {
    "journal-commands".parse().expect("a literal key")
}
