//! Disks that are made empty.

mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hoist_engine::action::{self, Ability, Action, Ctx, Description, Diagnostic, Done, Failure};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::images::Keeper;
use super::{Held, failed, faults, task, wrong};
use crate::device::buffer::{Buffer, CHUNK};
use crate::device::table::FIRST_PARTITION;
use crate::device::{GuardedIo, ReadAt, kernel, nvme, signature};
use crate::document::{EraseMethod, Id};
use crate::facts::{DiskFacts, EraseCommand, SignaturePlace};
use crate::images::Progress;

pub const NAME: &str = "erase";

/// Time between two words about how far it came.
const OFTEN: Duration = Duration::from_millis(500);

/// How it is done, when it is known what the disk can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The disk makes all of its blocks zero by itself.
    Block,
    /// Every byte is written.
    Overwrite,
    /// Only what says what is on it; the data stays readable.
    Signatures,
    /// The disk is told to erase itself.
    #[serde(untagged)]
    Command(EraseCommand),
}

impl Method {
    /// Why there is none, if the disk cannot do what is asked for. Nothing else is done in its place.
    pub fn choose(asked: EraseMethod, disk: &DiskFacts) -> Result<Self, String> {
        use EraseCommand::{FormatCrypto, FormatUserData, SanitizeBlock, SanitizeCrypto};
        let name = &disk.kernel_name;
        let first = |among: &[EraseCommand]| {
            let offered = among.iter().find(|command| disk.erase.contains(command));
            offered.copied().map(Self::Command)
        };
        match asked {
            EraseMethod::Strongest => Ok(first(&EraseCommand::ALL).unwrap_or(Self::Overwrite)),
            EraseMethod::Overwrite => Ok(Self::Overwrite),
            EraseMethod::Block => first(&[SanitizeBlock, FormatUserData])
                .or(disk.can_zero.then_some(Self::Block))
                .ok_or_else(|| format!("disk `{name}` cannot make its blocks empty")),
            EraseMethod::Crypto => first(&[SanitizeCrypto, FormatCrypto])
                .ok_or_else(|| format!("disk `{name}` has no command to forget its key")),
            EraseMethod::Signatures => Ok(Self::Signatures),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.pad("block"),
            Self::Overwrite => f.pad("overwrite"),
            Self::Signatures => f.pad("signatures"),
            Self::Command(command) => command.fmt(f),
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub disk: Id,
    pub who: Who,
    pub range: Range<u64>,
    pub method: Method,
    /// Says which places are read back.
    pub seed: u64,
}

/// Which disk it is, for whoever reads the report when the disk is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Who {
    pub kernel_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    pub size: u64,
}

impl From<&DiskFacts> for Who {
    fn from(disk: &DiskFacts) -> Self {
        let DiskFacts { kernel_name, model, serial, wwn, size, .. } = disk.clone();
        Self { kernel_name, model, serial, wwn, size }
    }
}

/// What was done to a disk, and what was seen of it afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub disk: Id,
    #[serde(flatten)]
    pub who: Who,
    pub method: Method,
    pub range: Range<u64>,
    /// In milliseconds since 1970.
    pub started: u64,
    pub ended: u64,
    pub verdict: Verdict,
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Why it is not erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Erased,
    /// Whatever was done, what was on the disk may still be there.
    NotErased,
}

/// What was seen of a disk that is erased.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Places that were read back, and bytes of each. Of `signatures` none are. They hold nothing, or,
    /// where the disk erased itself, nothing of what they held before.
    pub samples: u64,
    pub sample: u64,
    /// Of these places, those that held something before. Known only where the disk erased itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// What the disk says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

/// Somebody who wants to know how far a disk has come, and keeps the report.
pub trait Listener: Send + Sync {
    fn progress(&self, disk: &Id, progress: Progress);
    fn erased(&self, report: &Report);
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Erase {
    held: Arc<Held>,
    listener: Arc<dyn Listener>,
    keeper: Arc<dyn Keeper>,
    /// Samples of disks before they erased themselves.
    before: Mutex<BTreeMap<Id, Vec<Vec<u8>>>>,
}

impl Erase {
    pub fn new(held: Arc<Held>, listener: Arc<dyn Listener>, keeper: Arc<dyn Keeper>) -> Self {
        Self { held, listener, keeper, before: Mutex::default() }
    }

    fn erase(&self, task: &Task, io: &GuardedIo, ctx: &Ctx<'_>) -> Result<Evidence, Failure> {
        let says = match task.method {
            Method::Command(command) => Some(self.tell(task, io, command, ctx)?),
            Method::Block | Method::Overwrite | Method::Signatures => {
                self.write_over(task, io, ctx)?;
                None
            }
        };
        if let Some(left) = self.left(task, io)? {
            return Err(wrong(left));
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
            // What says that somebody is at work goes last, and with it the place of the records.
            self.keeper.leave(&task.disk);
            let first = start..FIRST_PARTITION.min(end);
            match task.method {
                Method::Overwrite => overwrite(io, first).map_err(|error| failed(&error))?,
                _ => io.zero(first).map_err(|error| failed(&error))?,
            }
            io.sync().map_err(|error| failed(&error))?;
            kernel::tell(io.path(), &[]).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Tells the disk to erase itself. That is all of it: what says that somebody is at work, and the
    /// records, are put back where something comes to the disk afterwards.
    fn tell(
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
            self.keeper.leave(&task.disk);
        }
        let (begun, total) = (Instant::now(), io.size());
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
            kernel::tell(io.path(), &[]).map_err(|error| failed(&error))?;
        }
        self.progress(task, total, total, begun);
        Ok(says)
    }

    fn before(&self) -> MutexGuard<'_, BTreeMap<Id, Vec<Vec<u8>>>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self, task: &Task, done: u64, total: u64, begun: Instant) {
        let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = done.saturating_mul(1000) / millis;
        self.listener.progress(&task.disk, Progress { done, total: Some(total), rate });
    }

    /// What there still is, in words.
    fn left(&self, task: &Task, io: &GuardedIo) -> Result<Option<String>, Failure> {
        if task.method == Method::Signatures {
            let found = signature::probe(io, task.range.clone(), SignaturePlace::Disk);
            let found = found.map_err(|error| failed(&error))?;
            let words: Vec<_> = found.iter().map(ToString::to_string).collect();
            return Ok((!words.is_empty()).then(|| format!("there still is {}", words.join(", "))));
        }
        let places = evidence::places(&task.range, task.seed);
        let now = evidence::read(io, &places).map_err(|error| failed(&error))?;
        let disk = &task.disk;
        if let Method::Command(_) = task.method {
            let before = self.before();
            let Some(before) = before.get(disk) else {
                return Ok(Some(format!("nobody knows what disk `{disk}` held before")));
            };
            let same = evidence::first_same(&places, before, &now);
            return Ok(same.map(|at| {
                format!("disk `{disk}` says that it erased itself, and byte {at} is as before")
            }));
        }
        let left = evidence::first_left(&places, &now);
        Ok(left.map(|at| format!("disk `{disk}` still holds something, at byte {at}")))
    }

    fn make_zero(
        &self,
        task: &Task,
        io: &GuardedIo,
        range: Range<u64>,
        method: Method,
        ctx: &Ctx<'_>,
    ) -> Result<(), Failure> {
        let (begun, total) = (Instant::now(), range.end - range.start);
        let mut told = begun;
        let step = match method {
            // A request of the kernel is divided anyway; this is how often somebody may stop it.
            Method::Block => 1 << 30,
            _ => CHUNK as u64,
        };
        let mut at = range.start;
        while at < range.end {
            if ctx.cancel.is_cancelled() {
                return Err(wrong("it was stopped".to_owned()));
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

/// Writes zeros as data, also where a device could make them by itself.
fn overwrite(io: &GuardedIo, range: Range<u64>) -> Result<(), crate::device::guard::WriteError> {
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
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
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
        let report = Report { disk, who, method, range, started, ended, verdict, evidence, reason };
        self.listener.erased(&report);
        outcome?;
        let receipt = serde_json::to_value(report).expect("a plain value");
        Ok(Done { changed: true, receipt })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<action::Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let left = self.left(&task, &io)?;
        Ok(left.map_or(action::Verdict::Holds, |reason| action::Verdict::DoesNot { reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_cannot_is_not_chosen() {
        let mut disk = DiskFacts { kernel_name: "sda".to_owned(), ..DiskFacts::default() };
        let strongest = Method::choose(EraseMethod::Strongest, &disk);
        assert_eq!(strongest, Ok(Method::Overwrite));
        assert!(Method::choose(EraseMethod::Block, &disk).is_err());
        assert!(Method::choose(EraseMethod::Crypto, &disk).is_err());
        disk.can_zero = true;
        assert_eq!(Method::choose(EraseMethod::Block, &disk), Ok(Method::Block));
    }

    #[test]
    fn the_strongest_is_what_the_disk_does_by_itself_and_it_has_one_name() {
        use EraseCommand::{FormatCrypto, FormatUserData, SanitizeBlock, SanitizeOverwrite};
        let offering = |erase: &[EraseCommand]| DiskFacts {
            kernel_name: "nvme0n1".to_owned(),
            erase: erase.to_vec(),
            ..DiskFacts::default()
        };
        let disk = offering(&[SanitizeBlock, SanitizeOverwrite, FormatCrypto, FormatUserData]);
        for (asked, chosen, word) in [
            (EraseMethod::Strongest, Method::Command(SanitizeBlock), "sanitize_block"),
            (EraseMethod::Crypto, Method::Command(FormatCrypto), "format_crypto"),
            (EraseMethod::Block, Method::Command(SanitizeBlock), "sanitize_block"),
            (EraseMethod::Overwrite, Method::Overwrite, "overwrite"),
            (EraseMethod::Signatures, Method::Signatures, "signatures"),
        ] {
            assert_eq!(Method::choose(asked, &disk), Ok(chosen));
            assert_eq!(chosen.to_string(), word);
            let written = serde_json::to_value(chosen).expect("a word");
            assert_eq!(written, word);
            assert_eq!(serde_json::from_value::<Method>(written).expect("the same"), chosen);
        }
        let poor = offering(&[FormatUserData]);
        let strongest = Method::choose(EraseMethod::Strongest, &poor);
        assert_eq!(strongest, Ok(Method::Command(FormatUserData)));
        assert!(Method::choose(EraseMethod::Crypto, &poor).is_err());
    }
}
