//! Erasing disks.

mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{self, Ability, Action, ApplyOutcome, Ctx, Description, Failure};
use hoist_engine::plan::Step;
use hoist_provision::document::Id;
use hoist_provision::facts::{EraseCommand, SignaturePlace};
use hoist_provision::partition_table::FIRST_PARTITION;
use hoist_provision::read_at::ReadAt as _;
use hoist_provision::steps::erase::{EraseReport, Evidence, Method, NAME, Task, Verdict};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::images::ProgressStore;
use super::{HeldDisks, diagnostics, failed, task, wrong};
use crate::buffer::{Buffer, CHUNK};
use crate::images::Progress;
use crate::{GuardedIo, kernel, nvme, signature, table};

/// Interval between two progress reports.
const OFTEN: Duration = Duration::from_millis(500);

/// Receives the progress and the report of an erasure.
pub trait Listener: Send + Sync {
    fn progress(&self, disk: &Id, progress: Progress);
    fn erased(&self, report: &EraseReport);
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Erase {
    held: Arc<HeldDisks>,
    listener: Arc<dyn Listener>,
    progress_store: Arc<dyn ProgressStore>,
    /// Samples of disks before they erased themselves.
    before: Mutex<BTreeMap<Id, Vec<Vec<u8>>>>,
}

impl Erase {
    pub fn new(
        held: Arc<HeldDisks>,
        listener: Arc<dyn Listener>,
        progress_store: Arc<dyn ProgressStore>,
    ) -> Self {
        Self { held, listener, progress_store, before: Mutex::default() }
    }

    fn erase(&self, task: &Task, io: &GuardedIo, ctx: &Ctx<'_>) -> Result<Evidence, Failure> {
        let says = match task.method {
            Method::Command(command) => Some(self.send_command(task, io, command, ctx)?),
            Method::Block | Method::Overwrite | Method::Signatures => {
                self.write_over(task, io, ctx)?;
                None
            }
        };
        if let Some(left) = self.left(task, io)? {
            return Err(wrong(left));
        }
        if let Method::Command(_) = task.method {
            // The disk may return any bytes now. With blank ends it counts as empty.
            signature::wipe(io, task.range.clone()).map_err(|error| failed(&error))?;
        }
        let samples = if task.method == Method::Signatures { 0 } else { evidence::SAMPLES };
        let held = self.before().get(&task.disk).map(|before| evidence::held(before));
        Ok(Evidence { samples, sample: evidence::SAMPLE as u64, held, says })
    }

    fn write_over(&self, task: &Task, io: &GuardedIo, ctx: &Ctx<'_>) -> Result<(), Failure> {
        let Range { start, end } = task.range.clone();
        let behind = start.max(FIRST_PARTITION.min(end))..end;
        match task.method {
            Method::Signatures => signature::wipe(io, behind).map_err(|error| failed(&error))?,
            method => self.make_zero(task, io, behind, method, ctx)?,
        }
        if start < FIRST_PARTITION {
            // The metadata area is erased before the in-progress table, which names the run.
            self.progress_store.leave(&task.disk);
            let [header, entries] = table::clearing_order(io);
            for piece in [entries.end..FIRST_PARTITION, header, entries] {
                let piece = piece.start.max(start)..piece.end.min(end);
                let cleared = match task.method {
                    _ if piece.is_empty() => Ok(()),
                    Method::Overwrite => overwrite(io, piece),
                    _ => io.zero(piece),
                };
                cleared.and_then(|()| io.sync()).map_err(|error| failed(&error))?;
            }
            kernel::set_partitions(io.path(), &[]).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Sends the erase command, which clears the whole disk. If other contents follow, the
    /// in-progress table and the journal are written again afterwards.
    fn send_command(
        &self,
        task: &Task,
        io: &GuardedIo,
        command: EraseCommand,
        ctx: &Ctx<'_>,
    ) -> Result<String, Failure> {
        let before = evidence::read(io, &evidence::places(&task.range, task.seed));
        self.before().insert(task.disk.clone(), before.map_err(|error| failed(&error))?);
        let ends = [0..task.range.start, task.range.end..io.size()];
        let kept = evidence::read(io, &ends).map_err(|error| failed(&error))?;
        let is_whole = task.range == (0..io.size());
        if is_whole {
            self.progress_store.leave(&task.disk);
        }
        let begun = Instant::now();
        let total = io.size();
        let mut goes_on = |parts: u16| {
            let done = u128::from(total) * u128::from(parts) / u128::from(nvme::PARTS);
            self.progress(task, u64::try_from(done).unwrap_or(total), total, begun);
            !ctx.cancel.is_cancelled()
        };
        goes_on(0);
        let says = io.erase(command, &mut goes_on).map_err(|error| failed(&error))?;
        for (place, bytes) in ends.iter().zip(&kept).filter(|(place, _)| !place.is_empty()) {
            io.write_at(place.start, bytes).map_err(|error| failed(&error))?;
        }
        io.sync().map_err(|error| failed(&error))?;
        if is_whole {
            kernel::set_partitions(io.path(), &[]).map_err(|error| failed(&error))?;
        }
        self.progress(task, total, total, begun);
        Ok(says)
    }

    fn before(&self) -> MutexGuard<'_, BTreeMap<Id, Vec<Vec<u8>>>> {
        self.before.lock()
    }

    fn progress(&self, task: &Task, done: u64, total: u64, begun: Instant) {
        let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = done.saturating_mul(1000) / millis;
        self.listener.progress(&task.disk, Progress { done, total: Some(total), rate });
    }

    /// The data that the erasure left behind, described for the report.
    fn left(&self, task: &Task, io: &GuardedIo) -> Result<Option<String>, Failure> {
        if task.method == Method::Signatures {
            let found = signature::probe(io, task.range.clone(), SignaturePlace::Disk);
            let found = found.map_err(|error| failed(&error))?;
            let words: Vec<_> = found.iter().map(ToString::to_string).collect();
            return Ok(
                (!words.is_empty()).then(|| format!("signatures are left: {}", words.join(", ")))
            );
        }
        let places = evidence::places(&task.range, task.seed);
        let now = evidence::read(io, &places).map_err(|error| failed(&error))?;
        let disk = &task.disk;
        if let Method::Command(_) = task.method {
            let before = self.before();
            let Some(before) = before.get(disk) else {
                return Ok(Some(format!("no samples of disk `{disk}` from before the erasure")));
            };
            let same = evidence::first_same(&places, before, &now);
            return Ok(same
                .map(|at| format!("disk `{disk}` reported success, but byte {at} is unchanged")));
        }
        let left = evidence::first_left(&places, &now);
        Ok(left.map(|at| format!("disk `{disk}` still holds data at byte {at}")))
    }

    fn make_zero(
        &self,
        task: &Task,
        io: &GuardedIo,
        range: Range<u64>,
        method: Method,
        ctx: &Ctx<'_>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let total = range.end - range.start;
        let mut told = begun;
        let step = match method {
            // The kernel splits the request anyway; this size bounds the delay of a cancellation.
            Method::Block => 1 << 30,
            _ => CHUNK as u64,
        };
        let mut at = range.start;
        while at < range.end {
            if ctx.cancel.is_cancelled() {
                return Err(wrong(format!("erasing disk `{}` was cancelled", task.disk)));
            }
            let piece = at..range.end.min(at + step);
            at = piece.end;
            let outcome = match method {
                Method::Overwrite => overwrite(io, piece),
                _ => io.zero(piece),
            };
            outcome.map_err(|error| failed(&error))?;
            if told.elapsed() >= OFTEN || at == range.end {
                told = Instant::now();
                self.progress(task, at - range.start, total, begun);
            }
        }
        io.sync().map_err(|error| failed(&error))
    }
}

/// Writes zeros as data, even if the device can zero ranges itself.
fn overwrite(io: &GuardedIo, range: Range<u64>) -> Result<(), crate::guard::WriteError> {
    let zeros = Buffer::new(CHUNK);
    let mut at = range.start;
    while at < range.end {
        let length = usize::try_from(range.end - at).unwrap_or(CHUNK).min(CHUNK);
        io.write_at(at, &zeros[..length])?;
        at += length as u64;
    }
    Ok(())
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Action for Erase {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "disks are made empty".to_owned(),
            reads: vec!["disks".to_owned(), NAME.to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let started = now();
        let outcome = self.erase(&task, &io, ctx);
        let Task { disk, who, range, method, .. } = task;
        let (verdict, reason) = match &outcome {
            Ok(_) => (Verdict::Erased, None),
            Err(failure) => (Verdict::NotErased, Some(failure.reason.clone())),
        };
        let evidence = outcome.as_ref().cloned().unwrap_or_default();
        let ended = now();
        let report =
            EraseReport { disk, who, method, range, started, ended, verdict, evidence, reason };
        self.listener.erased(&report);
        outcome?;
        let receipt = serde_json::to_value(report).expect("a plain value");
        Ok(ApplyOutcome { changed: true, receipt })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<action::Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let left = self.left(&task, &io)?;
        Ok(left.map_or(action::Verdict::Holds, action::Verdict::fails))
    }
}
