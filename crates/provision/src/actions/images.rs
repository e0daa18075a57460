//! Images, from where they are into their partitions, or over whole disks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hoist_engine::action::{
    Ability, Action, Cancel, Ctx, Description, Diagnostic, Done, Failure, Verdict,
};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Causes, Held, failed, faults, origin, task, wrong};
use crate::device::gap::{self, Gap, Marker};
use crate::device::{GuardedIo, ReadAt};
use crate::document::{Compression, Id, ImageFormat, ImageTable, SecretRef};
use crate::images::{
    self, Chunked, Digest, Manifest, Masked, Place, Progress, Stream, Trust, Watch,
    first_difference, judge,
};

pub const NAME: &str = "images";

/// One step: all of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub image: Id,
    /// Or what is made of partitions.
    pub disk: Id,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stacked: bool,
    /// Of the partition, or of the disk's table, if the image is of a whole disk.
    pub partuuid: Uuid,
    pub range: Range<u64>,
    pub sources: Vec<String>,
    #[serde(default, skip_serializing_if = "is_raw")]
    pub format: ImageFormat,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
    /// Where the list of its chunks is, and which list that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<(String, Digest)>,
    /// The table that it is said to have, if it is a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<ImageTable>,
}

/// What is left in the journal: that this very image is in this very place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub image: Id,
    /// Of the task.
    pub task: Digest,
    pub bytes: u64,
    /// Of those, not written as data.
    pub zeros: u64,
    /// It is not that it was written, but that its file system was grown to so many bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_grown: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_raw(format: &ImageFormat) -> bool {
    *format == ImageFormat::Raw
}

impl Task {
    /// No partition begins at the beginning of a disk.
    pub fn is_whole_disk(&self) -> bool {
        self.range.start == 0 && !self.is_stacked
    }

    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }
}

/// Somebody who wants to know how far an image has come.
pub trait Listener: Send + Sync {
    fn progress(&self, image: &Id, progress: Progress);
}

/// Keeps how far an attempt came, by its name, so that another goes on from there.
pub trait Keeper: Send + Sync {
    fn reached(&self, attempt: &str, bytes: u64) -> Result<(), String>;

    /// Where the records are on this disk, the image comes now: they are kept elsewhere from here on.
    fn leave(&self, disk: &Id);
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Images {
    pub held: Arc<Held>,
    /// Of which a marker says that the gap of a disk is ours.
    pub txn: Uuid,
    /// The lists of chunks by image, as they were when it was planned.
    pub manifests: BTreeMap<Id, Manifest>,
    /// What earlier attempts have made durable.
    pub reached: BTreeMap<Id, u64>,
    pub trust: Trust,
    pub listener: Arc<dyn Listener>,
    pub keeper: Arc<dyn Keeper>,
    pub causes: Arc<Causes>,
}

struct Watching<'a> {
    action: &'a Images,
    task: &'a Task,
    io: &'a GuardedIo,
    attempt: &'a str,
    cancel: &'a Cancel,
}

impl Watch for Watching<'_> {
    fn progress(&self, progress: Progress) {
        self.action.listener.progress(&self.task.image, progress);
    }

    fn durable(&self, reached: u64) -> Result<(), String> {
        self.action.keeper.reached(self.attempt, reached)
    }

    fn last(&self, first: &[u8]) -> Result<usize, String> {
        if !self.task.is_whole_disk() {
            return Ok(first.len());
        }
        let sector = u32::try_from(self.io.sector()).expect("it is small");
        match judge(self.io.size(), sector, first, self.task.table)? {
            Place::Ours => Ok(usize::try_from(gap::START).expect("it is small")),
            Place::Images => {
                self.action.keeper.leave(&self.task.disk);
                Ok(first.len())
            }
        }
    }

    fn is_marked(&self) -> bool {
        self.task.is_whole_disk()
    }

    fn is_stopped(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl Images {
    fn manifest(&self, task: &Task) -> Result<Option<&Manifest>, Failure> {
        if task.manifest.is_none() {
            return Ok(None);
        }
        let manifest = self.manifests.get(&task.image);
        let lost = || wrong(format!("the list of chunks of `{}` is not here", task.image));
        manifest.ok_or_else(lost).map(Some)
    }
}

impl Action for Images {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "images into partitions and over whole disks".to_owned(),
            reads: vec!["images".to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            network: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let origin = origin(&task.sources, task.token.as_ref(), &self.trust, ctx)?;
        let watch = Watching {
            action: self,
            task: &task,
            io: &io,
            attempt: ctx.attempt,
            cancel: ctx.cancel,
        };
        let written = if let Some(manifest) = self.manifest(&task)? {
            let reached = self.reached.get(&task.image).copied().unwrap_or(0);
            let keep_every = images::KEEP_EVERY;
            let image = Chunked { origin: &origin, manifest, reached, keep_every };
            images::write_chunks(&image, &io, task.range.clone(), &watch)
        } else {
            let Task { compression, size, digest, .. } = task.clone();
            let image = Stream { origin: &origin, compression, size, digest };
            match task.format {
                ImageFormat::Raw => images::write(&image, &io, task.range.clone(), &watch),
                ImageFormat::Qcow2 => images::write_qcow2(&image, &io, task.range.clone(), &watch),
            }
        };
        let written = written.map_err(|error| {
            self.causes.blame(error.code(), &task.sources);
            failed(&error)
        })?;
        let receipt = Receipt {
            task: task.fingerprint(),
            image: task.image,
            bytes: written.bytes,
            zeros: written.zeros,
            is_grown: false,
        };
        let receipt = serde_json::to_value(receipt).expect("a plain value");
        Ok(Done { changed: true, receipt })
    }

    /// An image in chunks is read back. Of one that is a stream, the digest was of what came, and
    /// nobody knows what it is unpacked.
    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let Some(manifest) = self.manifest(&task)? else { return Ok(Verdict::Holds) };
        let io = self.held.io(&task.disk)?;
        let gap = Gap::before(None).expect("a whole gap has room");
        let marker = Marker::read(&*io, &gap).map_err(|error| failed(&error))?;
        let is_ours = marker.is_some_and(|marker| marker.txn == self.txn);
        let is_masked = task.is_whole_disk() && is_ours;
        let disk = Masked { disk: &*io, gap: is_masked.then_some(gap) };
        let difference = first_difference(&disk, task.range.start, &manifest.chunks);
        Ok(match difference.map_err(|error| failed(&error))? {
            None => Verdict::Holds,
            Some(at) => {
                let reason = format!("`{}` is not what was written, from byte {at} on", task.image);
                Verdict::DoesNot { reason }
            }
        })
    }
}
