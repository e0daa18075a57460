//! Disks that are made empty.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hoist_engine::action::{Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::images::Keeper;
use super::{Held, failed, faults, task, wrong};
use crate::device::buffer::{Buffer, CHUNK};
use crate::device::table::FIRST_PARTITION;
use crate::device::{GuardedIo, ReadAt, kernel, signature};
use crate::document::{EraseMethod, Id};
use crate::facts::{DiskFacts, SignaturePlace};
use crate::images::Progress;

pub const NAME: &str = "erase";

/// Places of a disk that are read back.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 64 * 1024;

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
}

impl Method {
    /// Why there is none, if the disk cannot do what is asked for.
    pub fn choose(asked: EraseMethod, disk: &DiskFacts) -> Result<Self, String> {
        let name = &disk.kernel_name;
        match asked {
            EraseMethod::Strongest | EraseMethod::Overwrite => Ok(Self::Overwrite),
            EraseMethod::Block if disk.can_zero => Ok(Self::Block),
            EraseMethod::Block => Err(format!("disk `{name}` cannot make its blocks empty")),
            EraseMethod::Crypto => Err(format!("nobody here can make disk `{name}` forget a key")),
            EraseMethod::Signatures => Ok(Self::Signatures),
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
#[serde(deny_unknown_fields)]
pub struct Report {
    pub disk: Id,
    #[serde(flatten)]
    pub who: Who,
    pub method: Method,
    pub range: Range<u64>,
    /// In milliseconds since 1970.
    pub started: u64,
    pub ended: u64,
    /// Places that were read back and held nothing, and bytes of each. Of `signatures` none are.
    pub samples: u64,
    pub sample: u64,
}

/// Somebody who wants to know how far a disk has come, and keeps the report.
pub trait Listener: Send + Sync {
    fn progress(&self, disk: &Id, progress: Progress);
    fn erased(&self, report: &Report);
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Erase {
    pub held: Arc<Held>,
    pub listener: Arc<dyn Listener>,
    pub keeper: Arc<dyn Keeper>,
}

impl Erase {
    fn erase(&self, task: &Task, io: &GuardedIo, ctx: &Ctx<'_>) -> Result<(), Failure> {
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
                Method::Block | Method::Signatures => {
                    io.zero(first).map_err(|error| failed(&error))?;
                }
            }
            io.sync().map_err(|error| failed(&error))?;
            kernel::tell(io.path(), &[]).map_err(|error| failed(&error))?;
        }
        Ok(())
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
            Method::Overwrite | Method::Signatures => CHUNK as u64,
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
                Method::Block | Method::Signatures => io.zero(piece),
            };
            outcome.map_err(|error| failed(&error))?;
            if told.elapsed() >= OFTEN || at == range.end {
                told = Instant::now();
                let done = at - range.start;
                let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
                let rate = done.saturating_mul(1000) / millis;
                self.listener.progress(&task.disk, Progress { done, total: Some(total), rate });
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

/// Where a range is read back: both ends of it, and places between that nobody can guess who does not
/// know the seed.
fn samples(range: &Range<u64>, seed: u64) -> Vec<Range<u64>> {
    let length = (range.end - range.start).min(SAMPLE as u64);
    let room = range.end - range.start - length;
    let mut random = seed | 1;
    let places = (0..SAMPLES).map(|number| match number {
        0 => 0,
        1 => room,
        _ => {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % (room + 1)
        }
    });
    places.map(|at| range.start + at..range.start + at + length).collect()
}

/// The first of these places that is not empty.
fn first_left(disk: &impl ReadAt, task: &Task) -> io::Result<Option<u64>> {
    let mut buffer = Buffer::new(SAMPLE);
    for place in samples(&task.range, task.seed) {
        let length = usize::try_from(place.end - place.start).expect("a sample");
        let bytes = &mut buffer[..length];
        disk.read_at(place.start, bytes)?;
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(place.start + at as u64));
        }
    }
    Ok(None)
}

fn left(task: &Task, io: &GuardedIo) -> Result<Option<String>, Failure> {
    if task.method == Method::Signatures {
        let found = signature::probe(io, task.range.clone(), SignaturePlace::Disk);
        let found = found.map_err(|error| failed(&error))?;
        let words: Vec<_> = found.iter().map(ToString::to_string).collect();
        return Ok((!words.is_empty()).then(|| format!("there still is {}", words.join(", "))));
    }
    let left = first_left(io, task).map_err(|error| failed(&error))?;
    Ok(left.map(|at| format!("disk `{}` still holds something, at byte {at}", task.disk)))
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
        self.erase(&task, &io, ctx)?;
        if let Some(left) = left(&task, &io)? {
            return Err(wrong(left));
        }
        let samples = if task.method == Method::Signatures { 0 } else { SAMPLES };
        let Task { disk, who, range, method, .. } = task;
        let (ended, sample) = (now(), SAMPLE as u64);
        let report = Report { disk, who, method, range, started, ended, samples, sample };
        self.listener.erased(&report);
        let receipt = serde_json::to_value(report).expect("a plain value");
        Ok(Done { changed: true, receipt })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let left = left(&task, &io)?;
        Ok(left.map_or(Verdict::Holds, |reason| Verdict::DoesNot { reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_back_at_both_ends_and_between() {
        let range = 1000..1 << 40;
        let places = samples(&range, 7);
        assert_eq!(places.len() as u64, SAMPLES);
        assert!(places.iter().all(|place| range.start <= place.start && place.end <= range.end));
        assert_eq!((places[0].start, places[1].end), (range.start, range.end));
        assert_ne!(places[2..], samples(&range, 9)[2..]);
        assert_eq!(samples(&(5..6), 7)[5], 5..6, "however small it is");
    }

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
}
