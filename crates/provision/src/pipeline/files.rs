//! Files of the installed system: which, where, and whether they are there.

use std::collections::BTreeMap;

use super::{Planning, as_value};
use crate::actions::Place;
use crate::actions::disks::Making;
use crate::actions::files::{self, Holds, Receipt, Task, Texts, Wanted};
use crate::device::above::map_of;
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Content, Document, File, Fs, FsKind, Id, StorageNode, Tables};
use crate::facts::Facts;
use crate::fat::Stored;
use crate::layout::{DiskPlan, Layout, Work};

/// Of a file that nothing else is said of, and of one that is a secret.
const MODE: u32 = 0o644;
const SECRET_MODE: u32 = 0o600;

/// What is to be in which file system, and the texts of it.
pub(super) fn wanted(
    document: &Document,
    layout: &Layout,
    facts: &Facts,
) -> Result<(Vec<Task>, Texts), Vec<Diagnostic>> {
    let (mut tasks, mut texts) = (BTreeMap::<&Id, Task>::new(), Texts::new());
    let mut found = Vec::new();
    for file in &document.sections.files {
        let Some(fs) = document.storage(&file.on).and_then(StorageNode::as_fs) else { continue };
        let Some(empty) = task(layout, fs) else { continue };
        let path = file.path.trim_start_matches('/').to_owned();
        let text = match &file.content {
            Content::Text(text) => Some(text.clone()),
            Content::Fstab => match fstab(document, layout, facts) {
                Ok(text) => Some(text),
                Err(diagnostic) => {
                    found.push(diagnostic);
                    continue;
                }
            },
            Content::Crypttab => Some(crypttab(document, layout)),
            Content::Secret(_) => None,
        };
        tasks.entry(&fs.id).or_insert(empty).files.push(as_wanted(file, &path, text.as_deref()));
        texts.extend(text.map(|text| ((fs.id.clone(), path), text)));
    }
    if found.is_empty() { Ok((tasks.into_values().collect(), texts)) } else { Err(found) }
}

fn task(layout: &Layout, fs: &Fs) -> Option<Task> {
    let place = match layout.partition(&fs.on) {
        None => Place::Device(fs.on.clone()),
        Some((disk, part)) => {
            let Work::Table(table) = &disk.work else { return None };
            let (disk, partition, table) = (disk.id.clone(), part.id.clone(), table.clone());
            Place::Partition { disk, table, partition }
        }
    };
    Some(Task { place, fs: fs.id.clone(), kind: fs.kind, files: Vec::new() })
}

fn as_wanted(file: &File, path: &str, text: Option<&str>) -> Wanted {
    let (content, mode) = match (&file.content, text) {
        (Content::Secret(secret), _) => (Holds::Secret(secret.clone()), SECRET_MODE),
        (_, text) => (Holds::Text(Stored::of(text.unwrap_or_default().as_bytes())), MODE),
    };
    let said = file.mode.as_ref().and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let File { uid, gid, .. } = *file;
    Wanted { path: path.to_owned(), mode: said.unwrap_or(mode), uid, gid, content }
}

/// What is mounted where, as the installed system reads it: what lies below comes first.
fn fstab(document: &Document, layout: &Layout, facts: &Facts) -> Result<String, Diagnostic> {
    let fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    let is_in = |fs: &&Fs| !fs.no_fstab && (fs.mount.is_some() || fs.kind == FsKind::Swap);
    let mut listed: Vec<&Fs> = fss.filter(is_in).collect();
    listed.sort_by_key(|fs| (fs.mount.is_none(), fs.mount.clone()));
    let mut lines = vec!["# Written by hoist when this system was installed.\n".to_owned()];
    for fs in listed {
        let options = match fs.kind {
            _ if !fs.options.is_empty() => fs.options.join(","),
            FsKind::Swap => "sw".to_owned(),
            _ => "defaults".to_owned(),
        };
        let mount = fs.mount.as_deref().unwrap_or("none");
        // The last number is when it is checked; xfs and btrfs do that by themselves.
        let pass = match fs.kind {
            FsKind::Xfs | FsKind::Btrfs | FsKind::Swap => 0,
            _ if mount == "/" => 1,
            _ => 2,
        };
        let spec = spec(document, layout, facts, fs)?;
        lines.push(format!("{spec} {mount} {} {options} 0 {pass}\n", fs.kind));
    }
    Ok(lines.concat())
}

/// What is encrypted, as the installed system reads it. Its key is asked for; what opens it otherwise
/// is for the system to know.
fn crypttab(document: &Document, layout: &Layout) -> String {
    let mut lines = vec!["# Written by hoist when this system was installed.\n".to_owned()];
    for node in &document.sections.storage {
        let StorageNode::Luks(luks) = node else { continue };
        let plan = layout.stack.iter().find(|plan| plan.id == luks.id);
        let part =
            layout.partition(&luks.on).map(|(_, part)| format!("PARTUUID={}", part.partuuid));
        let is_made = !luks.retain && makes_tables(document);
        let made = plan.filter(|_| is_made).map(|plan| format!("UUID={}", plan.uuid));
        let found = made.or(part).or_else(|| device(document, &luks.on));
        lines.extend(found.map(|found| format!("{} {found} none luks\n", luks.id)));
    }
    lines.concat()
}

/// The document is of what is made, though perhaps not now.
fn makes_tables(document: &Document) -> bool {
    document.sections.policy.tables == Tables::Make
}

/// What the installed system calls something that is made of partitions.
pub(super) fn device(document: &Document, id: &Id) -> Option<String> {
    match document.storage(id)? {
        StorageNode::Md(md) => Some(format!("/dev/md/{}", md.name())),
        StorageNode::Luks(luks) => Some(format!("/dev/mapper/{}", luks.id)),
        StorageNode::Lv(lv) => match document.storage(&lv.on)? {
            StorageNode::Vg(vg) => Some(format!("/dev/mapper/{}", map_of(vg.name(), lv.name()))),
            _ => None,
        },
        _ => None,
    }
}

/// How a file system is found: by the UUID that it was given, or by what it lies on if it brought one
/// of its own.
fn spec(
    document: &Document,
    layout: &Layout,
    facts: &Facts,
    fs: &Fs,
) -> Result<String, Diagnostic> {
    let plan = layout.stack.iter().find(|plan| plan.id == fs.id);
    if let Some(plan) = plan.filter(|plan| fs.retain.is_none() && plan.image.is_none()) {
        let made = Making::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
        let mut found = facts.disks.iter().flat_map(|disk| &disk.signatures);
        let is_stacked = layout.partition(&fs.on).is_none();
        // Where tables stay it is what was made before, or something of others. What lies on stacks
        // nobody sees: if nobody makes any now, it was made before.
        if !plan.retained
            || found.any(|signature| made.is(signature))
            || (is_stacked && makes_tables(document))
        {
            return Ok(format!("UUID={}", made.uuid));
        }
    }
    if let Some((_, part)) = layout.partition(&fs.on) {
        return Ok(format!("PARTUUID={}", part.partuuid));
    }
    let retain = fs.retain.clone().unwrap_or_default();
    let uuid = retain.uuid.map(|uuid| format!("UUID={uuid}"));
    let label = retain.label.or_else(|| fs.label.clone()).map(|label| format!("LABEL={label}"));
    uuid.or(label).or_else(|| device(document, &fs.on)).ok_or_else(|| {
        let what = "nothing says how the installed system finds it";
        let place = format!("storage.{}", fs.id);
        Diagnostic::new(Code::Missing, place, what).hint("give its label, or `no_fstab: true`")
    })
}

impl Planning<'_> {
    pub(super) fn refused_files(&self) -> Vec<Diagnostic> {
        if !self.document.is_queued(files::NAME) {
            return Vec::new();
        }
        let mut found =
            wanted(self.document, self.layout, &self.seen.facts).err().unwrap_or_default();
        for (at, file) in self.document.sections.files.iter().enumerate() {
            let Content::Secret(secret) = &file.content else { continue };
            if !self.seen.secrets.has(secret) {
                let what = format!("`{secret}` is not known here");
                let place = format!("files[{at}].content");
                let hint = "by hand, name the directory of its file with --secrets";
                found.push(Diagnostic::new(Code::Unsupported, place, what).hint(hint));
            }
        }
        found
    }

    pub(super) fn texts(&self) -> Texts {
        wanted(self.document, self.layout, &self.seen.facts)
            .map(|(_, texts)| texts)
            .unwrap_or_default()
    }

    fn all_files(&self) -> Vec<Task> {
        wanted(self.document, self.layout, &self.seen.facts)
            .map(|(tasks, _)| tasks)
            .unwrap_or_default()
    }

    /// What says that files are where they shall be; `is_it` which of them.
    fn filed(&self, task: &Task, is_it: impl Fn(&Receipt) -> bool) -> Option<&Receipt> {
        let place = task.place.id();
        let is_there = self.stands(place) && !self.is_made_anew(place) && !self.is_rewritten(place);
        let receipts = self.seen.notes.values().flat_map(|notes| &notes.filed);
        receipts.filter(|receipt| is_it(receipt)).last().filter(|_| is_there)
    }

    pub(super) fn is_filed(&self, task: &Task) -> bool {
        let fingerprint = task.fingerprint();
        self.filed(task, |one| one.task == fingerprint).is_some()
    }

    pub(super) fn needs_files(&self, disk: &DiskPlan) -> bool {
        let is_missing = |task: &Task| {
            let target = self.place(task.place.id());
            target.is_some_and(|on| self.is_on(on, &disk.id)) && !self.is_filed(task)
        };
        self.document.is_queued(files::NAME) && self.all_files().iter().any(is_missing)
    }

    /// Where nobody asks for them now, what says that they are there goes on into the next journal.
    pub(super) fn files(&mut self) {
        let is_queued = self.document.is_queued(files::NAME);
        for task in self.all_files() {
            let fingerprint = task.fingerprint();
            let is_it = |one: &Receipt| {
                if is_queued { one.task == fingerprint } else { one.files_on == task.fs }
            };
            let receipt = self.filed(&task, is_it).cloned();
            match &receipt {
                None if !is_queued => continue,
                Some(_) if self.touched.is_empty() => continue,
                Some(_) => {}
                None => match self.place(task.place.id()) {
                    Some(target) => self.touch_target(target),
                    None => continue,
                },
            }
            let name = format!("put files into {}", task.fs);
            let id = self.step(name, files::NAME, &task, true);
            self.done.extend(receipt.map(|receipt| (id, as_value(&receipt))));
        }
    }
}
