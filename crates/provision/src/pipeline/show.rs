//! A decision for people, and as programs read it: what of the disks, of files and of the firmware's
//! memory will be otherwise.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use hoist_engine::plan::Call;
use serde::{Deserialize as _, Serialize};

use super::{Decision, Planning, boot, drive, files, is_kept};
use crate::actions::boot::Source;
use crate::actions::disks::{self, Making};
use crate::actions::erase;
use crate::actions::files::Holds;
use crate::actions::images;
use crate::device::efivars::{Changes, Entry};
use crate::device::signature;
use crate::document::size::MIB;
use crate::document::{Bytes, Content, Id, SecretRef, StorageNode};
use crate::fat::Contents;
use crate::images::Digest;
use crate::layout::{Layout, PartitionPlan};

/// A decision as programs read it.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    pub hash: &'a str,
    pub is_settled: bool,
    pub layout: &'a Layout,
    pub files: &'a [FileChange],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<&'a FirmwareChange>,
    pub steps: Vec<ShownStep<'a>>,
    /// Most bytes that are written by the steps that say so before.
    pub bytes: u64,
    /// What nobody forbids and somebody should think of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct ShownStep<'a> {
    pub name: &'a str,
    pub call: &'a Call,
    /// Most bytes that it writes, if that is known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What becomes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    pub what: Becomes,
    /// A partition, or a file system.
    pub on: Id,
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Where its content is, if that is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
    /// Of what hoist itself writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Becomes {
    Kept,
    /// It comes there, in place of what may be there.
    New,
    Changed,
    Deleted,
}

/// What becomes of what firmware remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirmwareChange {
    Changed(Changes),
    /// It is as it shall be.
    Kept,
    /// It is told nothing, for this reason, and finds this file by itself.
    LeftAlone {
        why: String,
        file: String,
    },
}

impl Decision {
    pub fn show(&self) -> Shown<'_> {
        let steps = self.plan.order().iter().filter_map(|id| {
            let call = &self.plan.step(*id)?.call;
            let is_done = self.done.contains_key(id);
            let name = &self.plan.vertex(*id).name;
            (!is_done).then(|| ShownStep { name, call, bytes: bytes_of(call) })
        });
        let steps: Vec<_> = steps.collect();
        let warnings = steps.iter().filter_map(unchecked).collect();
        Shown {
            hash: self.hash(),
            is_settled: self.is_settled(),
            layout: &self.layout,
            files: &self.files,
            firmware: self.firmware.as_ref(),
            bytes: steps.iter().filter_map(|step| step.bytes).fold(0, u64::saturating_add),
            steps,
            warnings,
        }
    }
}

impl Display for Decision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.layout.fmt(f)?;
        if !self.files.is_empty() {
            writeln!(f, "files")?;
        }
        self.files.iter().try_for_each(|file| file.fmt(f))?;
        if let Some(firmware) = &self.firmware {
            writeln!(f, "firmware")?;
            firmware.fmt(f)?;
        }
        if self.is_settled() {
            return writeln!(f, "nothing to do: everything is as the document says");
        }
        let shown = self.show();
        for warning in &shown.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        writeln!(f, "steps")?;
        for (number, step) in shown.steps.iter().enumerate() {
            write!(f, "  {:>2}. {}", number + 1, step.name)?;
            let input = &step.call.input;
            let program = ["fs", "node"].map(|what| &input[what]["program"]);
            if let Some(words) = program.into_iter().find_map(|program| program.as_array()) {
                let words: Vec<_> = words.iter().filter_map(|word| word.as_str()).collect();
                write!(f, ": {}", words.join(" "))?;
            }
            for words in input["fs"]["programs"].as_array().into_iter().flatten() {
                let words = words.as_array().into_iter().flatten();
                let words: Vec<_> = words.filter_map(|word| word.as_str()).collect();
                write!(f, ": {}", words.join(" "))?;
            }
            if let Some(bytes) = step.bytes {
                write!(f, ": {}", round(bytes))?;
            }
            writeln!(f)?;
        }
        let unsaid = shown.steps.iter().filter(|step| step.bytes.is_none()).count();
        write!(f, "writes {} at most", round(shown.bytes))?;
        match unsaid {
            0 => writeln!(f)?,
            1 => writeln!(f, ", and what 1 step does not say before")?,
            count => writeln!(f, ", and what {count} steps do not say before")?,
        }
        writeln!(f, "plan {}", self.hash)
    }
}

/// A little more rather than digits that nobody reads.
fn round(bytes: u64) -> Bytes {
    Bytes(if bytes > MIB { bytes.next_multiple_of(MIB) } else { bytes })
}

/// What a step says of it: what is wiped, erased, or written of an image.
fn bytes_of(call: &Call) -> Option<u64> {
    match call.action.as_str() {
        disks::NAME => match disks::Task::deserialize(&call.input).ok()? {
            disks::Task::Wipe { ranges, .. } => Some(ranges.iter().map(signature::wiped).sum()),
            _ => None,
        },
        erase::NAME => {
            let erase::Task { range, method, .. } = erase::Task::deserialize(&call.input).ok()?;
            match method {
                erase::Method::Block | erase::Method::Overwrite => Some(range.end - range.start),
                erase::Method::Signatures => Some(signature::wiped(&range)),
                erase::Method::Command(_) => None,
            }
        }
        images::NAME => call.input["size"].as_u64(),
        _ => None,
    }
}

/// An image that is believed because of where it comes from.
fn unchecked(step: &ShownStep<'_>) -> Option<String> {
    let Call { action, input, .. } = step.call;
    let sources = input["sources"].as_array().filter(|_| action == images::NAME)?;
    let is_far = |source: &serde_json::Value| {
        source.as_str().is_some_and(|source| !source.starts_with("file:"))
    };
    let is_unchecked = input["digest"].is_null() && sources.iter().any(is_far);
    let id = input["image"].as_str().filter(|_| is_unchecked)?;
    Some(format!("images.{id} has no `digest`: whatever its server sends is written"))
}

impl Display for FileChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (sign, word) = match self.what {
            Becomes::Kept => ('=', "kept"),
            Becomes::New => ('+', "new"),
            Becomes::Changed => ('~', "changed"),
            Becomes::Deleted => ('-', "deleted"),
        };
        write!(f, "  {sign} {word:<8}{}:/{}", self.on, self.path)?;
        if let Some(secret) = &self.secret {
            write!(f, "  {secret}")?;
        } else if let Some(digest) = &self.digest {
            write!(f, "  {digest}")?;
        }
        writeln!(f)?;
        let is_shown = matches!(self.what, Becomes::New | Becomes::Changed);
        let mut lines = self.text.iter().filter(|_| is_shown).flat_map(|text| text.lines());
        lines.try_for_each(|line| writeln!(f, "      | {line}"))
    }
}

impl Display for FirmwareChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => writeln!(f, "  = kept    it tries what it shall"),
            Self::LeftAlone { why, file } => {
                writeln!(f, "  = left alone: {why}; it finds {file} by itself")
            }
            Self::Changed(changes) => {
                if let Some((number, entry)) = &changes.set {
                    let Entry { partuuid, file, .. } = entry;
                    writeln!(f, "  + entry   Boot{number:04X} is {file} of partition {partuuid}")?;
                }
                for number in &changes.remove {
                    writeln!(f, "  - entry   Boot{number:04X}, of a partition that is gone")?;
                }
                let order = |numbers: &[u16]| {
                    let numbers: Vec<_> = numbers.iter().map(|n| format!("{n:04X}")).collect();
                    if numbers.is_empty() { "none".to_owned() } else { numbers.join(" ") }
                };
                let (before, after) = (order(&changes.before), order(&changes.order));
                writeln!(f, "  ~ order   {after}, was {before}")
            }
        }
    }
}

/// What becomes of the files of a volume of which it is known what is in it.
fn compared<'a>(
    on: &Id,
    wanted: impl Iterator<Item = (&'a String, Digest, Option<String>)>,
    found: Option<&Contents>,
) -> Vec<FileChange> {
    let change = |(path, digest, text): (&String, Digest, Option<String>)| {
        let stored = found.and_then(|found| found.files.get(path));
        let what = match stored {
            Some(stored) if stored.digest == digest => Becomes::Kept,
            Some(_) => Becomes::Changed,
            None => Becomes::New,
        };
        let (on, path, digest) = (on.clone(), path.clone(), Some(digest));
        FileChange { what, on, path, digest, secret: None, text }
    };
    wanted.map(change).collect()
}

impl Planning<'_> {
    /// What is in a volume, as far as it stays.
    fn contents(&self, part: &PartitionPlan) -> Option<&Contents> {
        let (disk, _) = self.layout.partition(&part.id)?;
        let stays = is_kept(disk, part) && !self.is_made_anew(&part.id);
        self.seen.contents.get(&part.id).filter(|_| stays)
    }

    pub(super) fn file_changes(&self) -> Vec<FileChange> {
        let mut all = Vec::new();
        if let Ok(Some(wanted)) = boot::wanted(self.document, self.layout, &self.seen.facts) {
            let files = wanted.files.iter().map(|(path, source)| {
                let text = match source {
                    Source::Text(text) => Some(text.clone()),
                    Source::Fetched(_) => None,
                };
                (path, source.digest(), text)
            });
            all.extend(compared(&wanted.volume.id, files, self.contents(wanted.volume)));
        }
        if let Some((_, part, task)) = drive::wanted(self.document, self.layout) {
            let found = self.contents(part);
            let files = task.files.iter().map(|(path, stored)| (path, stored.digest, None));
            all.extend(compared(&part.id, files, found));
            let old = found.iter().flat_map(|found| &found.files);
            let gone = old.filter(|(path, _)| !task.files.contains_key(*path));
            all.extend(gone.map(|(path, _)| FileChange {
                what: Becomes::Deleted,
                on: part.id.clone(),
                path: path.clone(),
                digest: None,
                secret: None,
                text: None,
            }));
        }
        all.extend(self.installed());
        all
    }

    /// Of file systems that would have to be mounted only what the journal says is known.
    fn installed(&self) -> Vec<FileChange> {
        if !self.document.is_queued(crate::actions::files::NAME) {
            return Vec::new();
        }
        let Ok((tasks, texts)) = files::wanted(self.document, self.layout, &self.seen.facts) else {
            return Vec::new();
        };
        let named = self.document.sections.files.iter();
        let tables: BTreeSet<(&Id, &str)> = named
            .filter(|file| matches!(file.content, Content::Fstab | Content::Crypttab))
            .map(|file| (&file.on, file.path.trim_start_matches('/')))
            .collect();
        let mut all = Vec::new();
        for task in &tasks {
            let what = if self.is_filed(task) { Becomes::Kept } else { Becomes::New };
            for file in &task.files {
                let (digest, secret) = match &file.content {
                    Holds::Text(stored) => (Some(stored.digest), None),
                    Holds::Secret(secret) => (None, Some(secret.clone())),
                };
                let is_table = tables.contains(&(&task.fs, file.path.as_str()));
                let text = texts.get(&(task.fs.clone(), file.path.clone())).filter(|_| is_table);
                let (on, path, text) = (task.fs.clone(), file.path.clone(), text.cloned());
                all.push(FileChange { what, on, path, digest, secret, text });
            }
        }
        all
    }

    pub(super) fn firmware_change(&self) -> Option<FirmwareChange> {
        let section = self.document.sections.boot.as_ref()?;
        let wanted = boot::wanted(self.document, self.layout, &self.seen.facts).ok().flatten()?;
        let entry = wanted.entry?;
        Some(match boot::left_alone(section, wanted.disk, self.seen) {
            Some(why) => FirmwareChange::LeftAlone { why: why.to_owned(), file: entry.file },
            None => self
                .variables()
                .and_then(Result::ok)
                .map_or(FirmwareChange::Kept, FirmwareChange::Changed),
        })
    }

    /// What lies on partitions and is there as it shall be.
    pub(super) fn is_there(&self, id: &Id) -> bool {
        let Some(plan) = self.layout.stack.iter().find(|plan| plan.id == *id) else { return false };
        let Some(fs) = self.document.storage(id).and_then(StorageNode::as_fs) else {
            return self.stands(id);
        };
        if plan.image.is_some() {
            let mut images = self.all_images().into_iter();
            return images.any(|(target, task)| {
                *target.id() == fs.on && self.receipt(target, &task).is_some()
            });
        }
        let Some((disk, part)) = self.layout.partition(&fs.on) else {
            return self.has_file_system(plan, fs);
        };
        let making = Making::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
        self.is_made(disk, part, &making)
    }
}
