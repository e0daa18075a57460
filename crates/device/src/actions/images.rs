//! Writing images to partitions or whole disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Cancel, Ctx, Description, Failure, Verdict,
};
use hoist_engine::plan::Step;
use hoist_provision::document::{Id, ImageFormat};
use hoist_provision::image_table::{AreaOwner, ImageTableError, judge};
use hoist_provision::manifest::Manifest;
use hoist_provision::metadata_area::{MetadataArea, START};
use hoist_provision::read_at::ReadAt;
use hoist_provision::steps::images::{NAME, Receipt, Task};
use serde_json::Value;
use uuid::Uuid;

use super::{Causes, HeldDisks, diagnostics, failed, origin, task, wrong};
use crate::images::{
    self, ChunkedImage, MaskedDisk, Notices, Progress, ProgressError, Stream, Trust, Watch,
    first_difference,
};
use crate::{GuardedIo, metadata_area};

/// Receives the progress of an image.
pub trait Listener: Send + Sync {
    fn progress(&self, image: &Id, progress: Progress);
}

/// Stores the progress of an attempt, so that a later attempt resumes from there.
pub trait ProgressStore: Send + Sync {
    fn reached(&self, attempt: &str, bytes: u64) -> Result<(), ProgressError>;

    /// The image now overwrites the disk that holds the records. Later records are kept elsewhere.
    fn leave(&self, disk: &Id);
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Images {
    pub held: Arc<HeldDisks>,
    /// The transaction. Its marker shows that the metadata area of a disk belongs to hoist.
    pub txn: Uuid,
    /// Manifests by image, as read during planning.
    pub manifests: BTreeMap<Id, Manifest>,
    /// Bytes of each image that earlier attempts made durable.
    pub reached: BTreeMap<Id, u64>,
    pub trust: Trust,
    pub notices: Notices,
    pub listener: Arc<dyn Listener>,
    pub progress_store: Arc<dyn ProgressStore>,
    pub causes: Arc<Causes>,
}

struct StepWatch<'a> {
    action: &'a Images,
    task: &'a Task,
    io: &'a GuardedIo,
    attempt: &'a str,
    cancel: &'a Cancel,
}

impl Watch for StepWatch<'_> {
    fn progress(&self, progress: Progress) {
        self.action.listener.progress(&self.task.image, progress);
    }

    fn durable(&self, reached: u64) -> Result<(), ProgressError> {
        self.action.progress_store.reached(self.attempt, reached)
    }

    fn last(&self, first: &[u8]) -> Result<usize, ImageTableError> {
        if !self.task.is_whole_disk() {
            return Ok(first.len());
        }
        let sector = u32::try_from(self.io.sector()).expect("it is small");
        match judge(self.io.size(), sector, first, self.task.table)? {
            AreaOwner::Ours => Ok(usize::try_from(START).expect("it is small")),
            AreaOwner::Images => {
                self.action.progress_store.leave(&self.task.disk);
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
        let lost = || wrong(format!("the manifest of image `{}` is missing", task.image));
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
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let origin = origin(&task.sources, task.token.as_ref(), (&self.trust, &self.notices), ctx)?;
        let watch = StepWatch {
            action: self,
            task: &task,
            io: &io,
            attempt: ctx.attempt,
            cancel: ctx.cancel,
        };
        let written = if let Some(manifest) = self.manifest(&task)? {
            let reached = self.reached.get(&task.image).copied().unwrap_or(0);
            let keep_every = images::KEEP_EVERY;
            let image = ChunkedImage { origin: &origin, manifest, reached, keep_every };
            images::write_chunks(&image, &io, task.range.clone(), &watch)
        } else {
            let Task { compression, size, digest, unpacked_digest, .. } = task;
            let image = Stream { origin: &origin, compression, size, digest, unpacked_digest };
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
        Ok(ApplyOutcome { changed: true, receipt })
    }

    /// Reads back an image in chunks. The digest of a stream covers the packed bytes, so its
    /// unpacked contents cannot be verified.
    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let Some(manifest) = self.manifest(&task)? else { return Ok(Verdict::Holds) };
        let io = self.held.io(&task.disk)?;
        let area = MetadataArea::before(None).expect("an empty disk has room");
        let marker = metadata_area::read_marker(&*io, &area).map_err(|error| failed(&error))?;
        let is_ours = marker.is_some_and(|marker| marker.txn == self.txn);
        let is_masked = task.is_whole_disk() && is_ours;
        let disk = MaskedDisk { disk: &*io, area: is_masked.then_some(area) };
        let difference = first_difference(&disk, task.range.start, &manifest.chunks);
        Ok(match difference.map_err(|error| failed(&error))? {
            None => Verdict::Holds,
            Some(at) => {
                let reason = format!("image `{}` differs from byte {at} on", task.image);
                Verdict::fails(reason)
            }
        })
    }
}
