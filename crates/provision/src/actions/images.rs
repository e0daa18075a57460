//! Images, from where they are into their partitions.

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

use super::{Held, failed, faults, task, wrong};
use crate::document::{Compression, Id};
use crate::images::{
    self, Chunked, Digest, Manifest, Origin, Progress, Stream, Watch, first_difference,
};

pub const NAME: &str = "images";

/// One step: all of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub image: Id,
    pub disk: Id,
    pub partuuid: Uuid,
    pub range: Range<u64>,
    pub sources: Vec<String>,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Where the list of its chunks is, and which list that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<(String, Digest)>,
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
}

impl Task {
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
}

/// The action.
#[allow(missing_debug_implementations)]
pub struct Images {
    pub held: Arc<Held>,
    /// The lists of chunks by image, as they were when it was planned.
    pub manifests: BTreeMap<Id, Manifest>,
    /// What earlier attempts have made durable.
    pub reached: BTreeMap<Id, u64>,
    pub listener: Arc<dyn Listener>,
    pub keeper: Arc<dyn Keeper>,
}

struct Watching<'a> {
    action: &'a Images,
    image: &'a Id,
    attempt: &'a str,
    cancel: &'a Cancel,
}

impl Watch for Watching<'_> {
    fn progress(&self, progress: Progress) {
        self.action.listener.progress(self.image, progress);
    }

    fn durable(&self, reached: u64) -> Result<(), String> {
        self.action.keeper.reached(self.attempt, reached)
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
            about: "images into partitions".to_owned(),
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
        let origin = Origin::new(task.sources.clone());
        let watch =
            Watching { action: self, image: &task.image, attempt: ctx.attempt, cancel: ctx.cancel };
        let written = if let Some(manifest) = self.manifest(&task)? {
            let reached = self.reached.get(&task.image).copied().unwrap_or(0);
            let keep_every = images::KEEP_EVERY;
            let image = Chunked { origin: &origin, manifest, reached, keep_every };
            images::write_chunks(&image, &io, task.range.clone(), &watch)
        } else {
            let Task { compression, size, digest, .. } = task;
            let image = Stream { origin: &origin, compression, size, digest };
            images::write(&image, &io, task.range.clone(), &watch)
        };
        let written = written.map_err(|error| failed(&error))?;
        let receipt = Receipt {
            task: task.fingerprint(),
            image: task.image,
            bytes: written.bytes,
            zeros: written.zeros,
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
        let difference = first_difference(&*io, task.range.start, &manifest.chunks);
        Ok(match difference.map_err(|error| failed(&error))? {
            None => Verdict::Holds,
            Some(at) => {
                let reason = format!("`{}` is not what was written, from byte {at} on", task.image);
                Verdict::DoesNot { reason }
            }
        })
    }
}
