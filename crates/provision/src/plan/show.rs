//! The changes of a plan, as text for people and as JSON for programs: disks, files and firmware
//! variables.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use hoist_engine::plan::Call;
use serde::{Deserialize as _, Serialize};

use super::context::PlanContext;
use super::{ProvisionPlan, boot, drive, files, image, is_kept, stack};
use crate::boot_entries::{Changes, Entry};
use crate::digest::Digest;
use crate::document::size::MIB;
use crate::document::{Bytes, Content, Id, SecretRef};
use crate::layout::{Layout, PartitionPlan, StackPlan};
use crate::steps::boot::Source;
use crate::steps::disks::{self, NewFileSystem};
use crate::steps::files::FileContent;
use crate::steps::{erase, images};
use crate::volume::Contents;

/// A plan, as programs read it.
#[derive(Debug, Serialize)]
pub struct PlanView<'a> {
    /// `None` for a plan that cannot be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<&'a str>,
    pub is_settled: bool,
    pub layout: &'a Layout,
    pub files: &'a [FileChange],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<&'a FirmwareChange>,
    pub steps: Vec<StepView<'a>>,
    /// Most bytes that the steps write, without the steps whose size is not known.
    pub bytes: u64,
    /// Risks that are allowed but deserve attention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct StepView<'a> {
    pub name: &'a str,
    pub call: &'a Call,
    /// Most bytes that the step writes, if the size is known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    pub what: Becomes,
    /// A partition, or a file system.
    pub on: Id,
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The reference of a content that is secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
    /// The text, if hoist generates the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Becomes {
    Kept,
    /// The file is written; an older one at this path is replaced.
    New,
    Changed,
    Deleted,
}

/// The change of the firmware variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirmwareChange {
    Changed(Changes),
    /// The variables are as desired.
    Kept,
    /// The variables stay unchanged for this reason; the firmware finds this file by its default
    /// path.
    LeftAlone {
        why: String,
        file: String,
    },
}

impl ProvisionPlan {
    pub fn show(&self) -> PlanView<'_> {
        let steps = self.plan.order().iter().filter_map(|id| {
            let call = &self.plan.step(*id)?.call;
            let is_done = self.done.contains_key(id);
            let name = &self.plan.vertex(*id).name;
            (!is_done).then(|| StepView { name, call, bytes: bytes_of(call) })
        });
        let steps: Vec<_> = steps.collect();
        let mut warnings: Vec<String> = self.unanswered.iter().map(ToString::to_string).collect();
        warnings.extend(self.silent_sources.iter().cloned());
        warnings.extend(steps.iter().filter_map(unchecked));
        warnings.extend(files::hidden(&self.document));
        PlanView {
            hash: (!self.is_elsewhere).then(|| self.hash()),
            is_settled: self.is_settled(),
            layout: &self.layout,
            files: &self.changes.files,
            firmware: self.changes.firmware.as_ref(),
            bytes: steps.iter().filter_map(|step| step.bytes).fold(0, u64::saturating_add),
            steps,
            warnings,
        }
    }
}

impl Display for ProvisionPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.layout.fmt(f)?;
        if !self.changes.files.is_empty() {
            writeln!(f, "files")?;
        }
        self.changes.files.iter().try_for_each(|file| file.fmt(f))?;
        if let Some(firmware) = &self.changes.firmware {
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
            1 => writeln!(f, ", without 1 step of unknown size")?,
            count => writeln!(f, ", without {count} steps of unknown size")?,
        }
        match shown.hash {
            Some(hash) => writeln!(f, "plan {hash}"),
            None => writeln!(f, "no hash: this plan cannot be applied"),
        }
    }
}

/// Rounds up to whole MiB for readability.
fn round(bytes: u64) -> Bytes {
    Bytes(if bytes > MIB { bytes.next_multiple_of(MIB) } else { bytes })
}

/// Most bytes that a step writes, for steps that wipe, erase or write an image.
fn bytes_of(call: &Call) -> Option<u64> {
    match call.action.as_str() {
        disks::NAME => match disks::Task::deserialize(&call.input).ok()? {
            disks::Task::Wipe { ranges, .. } => Some(ranges.iter().map(disks::wiped).sum()),
            _ => None,
        },
        erase::NAME => {
            let erase::Task { range, method, .. } = erase::Task::deserialize(&call.input).ok()?;
            match method {
                erase::Method::Block | erase::Method::Overwrite => Some(range.end - range.start),
                erase::Method::Signatures => Some(disks::wiped(&range)),
                erase::Method::Command(_) => None,
            }
        }
        images::NAME => call.input["size"].as_u64(),
        _ => None,
    }
}

/// A warning for an image that is fetched without a digest to compare.
fn unchecked(step: &StepView<'_>) -> Option<String> {
    let Call { action, input, .. } = step.call;
    let sources = input["sources"].as_array().filter(|_| action == images::NAME)?;
    let is_far = |source: &serde_json::Value| {
        source.as_str().is_some_and(|source| !source.starts_with("file:"))
    };
    let has_digest = ["digest", "unpacked_digest"].iter().any(|field| !input[*field].is_null());
    let is_unchecked = !has_digest && sources.iter().any(is_far);
    let id = input["image"].as_str().filter(|_| is_unchecked)?;
    Some(if input["size"].is_null() {
        format!(
            "images.{id} has no `digest` and no `size`: its content is written unchecked, also when \
             it is truncated"
        )
    } else {
        format!("images.{id} has no `digest`: its content is written unchecked")
    })
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
            Self::Kept => writeln!(f, "  = kept    the boot order is as desired"),
            Self::LeftAlone { why, file } => {
                writeln!(f, "  = left alone: {why}; it finds {file} by itself")
            }
            Self::Changed(changes) => {
                for (number, entry) in changes.entries() {
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
                let before = order(&changes.before);
                let after = order(&changes.order);
                writeln!(f, "  ~ order   {after}, was {before}")
            }
        }
    }
}

/// Compares the desired files of a volume with its known contents.
fn compare<'a>(
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
        let on = on.clone();
        let path = path.clone();
        let digest = Some(digest);
        FileChange { what, on, path, digest, secret: None, text }
    };
    wanted.map(change).collect()
}

/// The contents of a volume that the plan keeps.
fn kept_contents<'a>(context: &PlanContext<'a>, part: &PartitionPlan) -> Option<&'a Contents> {
    let (disk, _) = context.layout.partition(&part.id)?;
    let is_kept = is_kept(disk, part) && !context.is_reformatted(&part.id);
    context.machine.disks.contents.get(&part.id).filter(|_| is_kept)
}

/// The changes of files on the boot volume, the config drive and the installed file systems.
pub(super) fn file_changes(context: &PlanContext<'_>) -> Vec<FileChange> {
    let PlanContext { document, layout, machine, .. } = context;
    let mut all = Vec::new();
    if let Ok(Some(boot)) = boot::desired(document, layout, &machine.facts) {
        for (_, volume, _) in boot.volumes() {
            let files = boot.files.iter().map(|(path, source)| {
                let text = match source {
                    Source::Text(text) => Some(text.clone()),
                    Source::Fetched(_) => None,
                };
                (path, source.digest(), text)
            });
            all.extend(compare(&volume.id, files, kept_contents(context, volume)));
        }
    }
    if let Some((_, part, task)) = drive::desired(document, layout) {
        let contents = kept_contents(context, part);
        let files = task.files.iter().map(|(path, stored)| (path, stored.digest, None));
        all.extend(compare(&part.id, files, contents));
        let old = contents.iter().flat_map(|contents| &contents.files);
        let deleted = old.filter(|(path, _)| !task.files.contains_key(*path));
        all.extend(deleted.map(|(path, _)| FileChange {
            what: Becomes::Deleted,
            on: part.id.clone(),
            path: path.clone(),
            digest: None,
            secret: None,
            text: None,
        }));
    }
    all.extend(installed_changes(context));
    all
}

/// Changes in file systems that are not mounted for planning; only the journal tells their state.
fn installed_changes(context: &PlanContext<'_>) -> Vec<FileChange> {
    if !context.document.is_queued(crate::steps::files::NAME) {
        return Vec::new();
    }
    let Ok((tasks, texts)) = files::desired(context) else { return Vec::new() };
    let declared = context.document.sections.files.iter();
    let tables: BTreeSet<(&Id, &str)> = declared
        .filter(|file| matches!(file.content, Content::Fstab | Content::Crypttab))
        .map(|file| (&file.on, file.path.trim_start_matches('/')))
        .collect();
    let mut all = Vec::new();
    for task in &tasks {
        let what = if files::is_done(context, task) { Becomes::Kept } else { Becomes::New };
        for file in &task.files {
            let (digest, secret) = match &file.content {
                FileContent::Text(stored) => (Some(stored.digest), None),
                FileContent::Secret(secret) => (None, Some(secret.clone())),
            };
            let is_table = tables.contains(&(&task.fs, file.path.as_str()));
            let text = texts.get(&(task.fs.clone(), file.path.clone())).filter(|_| is_table);
            let on = task.fs.clone();
            let path = file.path.clone();
            let text = text.cloned();
            all.push(FileChange { what, on, path, digest, secret, text });
        }
    }
    all
}

pub(super) fn firmware_change(context: &PlanContext<'_>) -> Option<FirmwareChange> {
    let PlanContext { document, layout, machine, .. } = context;
    let section = document.sections.boot.as_ref()?;
    let boot = boot::desired(document, layout, &machine.facts).ok().flatten()?;
    let entry = boot.entry?;
    Some(match boot::reason_to_leave_firmware(section, boot.disk, machine) {
        Some(why) => FirmwareChange::LeftAlone { why: why.to_owned(), file: entry.file },
        None => {
            boot::firmware_changes(context).map_or(FirmwareChange::Kept, FirmwareChange::Changed)
        }
    })
}

/// Whether a file system or a stacked device exists as desired.
pub(super) fn is_there(context: &PlanContext<'_>, plan: &StackPlan) -> bool {
    let Some(fs) = context.file_system(&plan.id) else { return context.exists(&plan.id) };
    if plan.image.is_some() {
        let mut images = image::all(context).into_iter();
        return images.any(|(target, task)| {
            *target.id() == fs.on && image::receipt(context, target, &task).is_some()
        });
    }
    let Some((disk, part)) = context.layout.partition(&fs.on) else {
        return stack::has_file_system(context, plan, fs);
    };
    let new = NewFileSystem::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
    super::disks::has_file_system(context, disk, part, &new)
}
