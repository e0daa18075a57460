//! Planner of files in the installed system, including fstab and crypttab.

use std::collections::{BTreeMap, BTreeSet};

use super::context::PlanContext;
use super::fragment::{Fragment, PlannedStep};
use super::image;
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{Content, Document, File, Fs, FsKind, Id, StorageNode, Tables};
use crate::facts::Facts;
use crate::layout::{DiskPlan, Layout, Work};
use crate::steps::FsLocation;
use crate::steps::disks::NewFileSystem;
use crate::steps::files::{self, FileContent, FileSpec, Receipt, Task, Texts};
use crate::steps::stack::map_of;
use crate::volume::StoredFile;

/// Default modes of files with text and with secrets.
const MODE: u32 = 0o644;
const SECRET_MODE: u32 = 0o600;

/// The desired files by file system, and their texts.
pub(super) fn desired(
    context: &PlanContext<'_>,
) -> Result<(Vec<Task>, Texts), Vec<ProvisionDiagnostic>> {
    let document = context.document;
    let layout = context.layout;
    let facts = &context.machine.facts;
    let mut tasks = BTreeMap::<&Id, Task>::new();
    let mut texts = Texts::new();
    let mut diagnostics = Vec::new();
    for file in &document.sections.files {
        let Some(fs) = document.storage(&file.on).and_then(StorageNode::as_fs) else { continue };
        let Some(empty) = task(layout, fs) else { continue };
        let path = file.path.trim_start_matches('/').to_owned();
        let text = match &file.content {
            Content::Text(text) => Some(text.clone()),
            Content::Fstab => match fstab(document, layout, facts) {
                Ok(text) => Some(text),
                Err(diagnostic) => {
                    diagnostics.push(diagnostic);
                    continue;
                }
            },
            Content::Crypttab => Some(crypttab(document, layout)),
            Content::Secret(_) => None,
        };
        tasks.entry(&fs.id).or_insert(empty).files.push(file_spec(file, &path, text.as_deref()));
        texts.extend(text.map(|text| ((fs.id.clone(), path), text)));
    }
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }
    Ok((tasks.into_values().collect(), texts))
}

/// Warnings for files that the installed system does not see, because another file system is
/// mounted over them.
pub(super) fn hidden(document: &Document) -> Vec<String> {
    if !document.is_queued(files::NAME) {
        return Vec::new();
    }
    let mounted = || {
        let fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
        fss.filter_map(|fs| Some((fs, fs.mount.as_deref()?.trim_end_matches('/'))))
    };
    let warning = |file: &File| {
        let (_, own) = mounted().find(|(fs, _)| fs.id == file.on)?;
        let path = format!("{own}/{}", file.path.trim_start_matches('/'));
        let is_over = |at: &str| at.len() > own.len() && at.starts_with(own) && is_below(&path, at);
        let (over, at) = mounted().find(|(_, at)| is_over(at))?;
        Some(format!(
            "file `{}` on `{}` is hidden in the installed system: `{}` is mounted at `{at}`; \
             write it on `{}`",
            file.path, file.on, over.id, over.id
        ))
    };
    document.sections.files.iter().filter_map(warning).collect()
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn task(layout: &Layout, fs: &Fs) -> Option<Task> {
    let place = match layout.partition(&fs.on) {
        None => FsLocation::Device(fs.on.clone()),
        Some((disk, part)) => {
            let Work::Table(table) = &disk.work else { return None };
            let disk = disk.id.clone();
            let partition = part.id.clone();
            let table = table.clone();
            FsLocation::Partition { disk, table, partition }
        }
    };
    Some(Task { place, fs: fs.id.clone(), kind: fs.kind, files: Vec::new() })
}

fn file_spec(file: &File, path: &str, text: Option<&str>) -> FileSpec {
    let (content, mode) = match (&file.content, text) {
        (Content::Secret(secret), _) => (FileContent::Secret(secret.clone()), SECRET_MODE),
        (_, text) => (FileContent::Text(StoredFile::of(text.unwrap_or_default().as_bytes())), MODE),
    };
    let declared = file.mode.as_ref().and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let File { uid, gid, .. } = *file;
    FileSpec { path: path.to_owned(), mode: declared.unwrap_or(mode), uid, gid, content }
}

/// The fstab of the installed system. Parent mount points come first.
fn fstab(
    document: &Document,
    layout: &Layout,
    facts: &Facts,
) -> Result<String, ProvisionDiagnostic> {
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
        // The last field is the order of file system checks; xfs and btrfs check themselves.
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

/// The crypttab of the installed system. Its entries ask for the passphrase; other ways to unlock
/// are left to the system.
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

/// Whether the document describes tables that hoist makes, in this run or an earlier one.
fn makes_tables(document: &Document) -> bool {
    document.sections.policy.tables == Tables::Make
}

/// The device path of a stacked device on the installed system.
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

/// How the installed system finds a file system: by the UUID that hoist assigned, otherwise by its
/// partition, label or device.
fn spec(
    document: &Document,
    layout: &Layout,
    facts: &Facts,
    fs: &Fs,
) -> Result<String, ProvisionDiagnostic> {
    let plan = layout.stack.iter().find(|plan| plan.id == fs.id);
    if let Some(plan) = plan.filter(|plan| fs.retain.is_none() && plan.image.is_none()) {
        let made = NewFileSystem::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
        let mut found = facts.disks.iter().flat_map(|disk| &disk.signatures);
        let is_stacked = layout.partition(&fs.on).is_none();
        // With adopted tables, the file system is either from an earlier run or foreign. A file
        // system on a stack is invisible while the stack is stopped; without `disks` in this run,
        // an earlier run made it.
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
        let what = "the installed system cannot find the file system: it has no UUID, label or device name";
        let place = format!("storage.{}", fs.id);
        ProvisionDiagnostic::new(Code::Missing, place, what).hint("give its label, or `no_fstab: true`")
    })
}

/// Refuses files whose contents or file systems are not known.
fn check(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    if !context.document.is_queued(files::NAME) {
        return Vec::new();
    }
    let mut diagnostics = desired(context).err().unwrap_or_default();
    for (at, file) in context.document.sections.files.iter().enumerate() {
        let Content::Secret(secret) = &file.content else { continue };
        if !context.machine.secrets.has(secret) {
            let what = format!("`{secret}` is not known here");
            let place = format!("files[{at}].content");
            let hint = "by hand, name the directory of its file with --secrets";
            diagnostics.push(ProvisionDiagnostic::new(Code::Unsupported, place, what).hint(hint));
        }
    }
    diagnostics
}

/// The texts of all files, by file system and path.
pub(super) fn texts(context: &PlanContext<'_>) -> Texts {
    desired(context).map(|(_, texts)| texts).unwrap_or_default()
}

fn tasks(context: &PlanContext<'_>) -> Vec<Task> {
    desired(context).map(|(tasks, _)| tasks).unwrap_or_default()
}

/// The last receipt that `selects` accepts, if the file system of the task keeps its files.
fn receipt<'a>(
    context: &PlanContext<'a>,
    task: &Task,
    selects: impl Fn(&Receipt) -> bool,
) -> Option<&'a Receipt> {
    let place = task.place.id();
    let keeps_files = context.exists(place)
        && !context.is_reformatted(place)
        && !image::is_rewritten(context, place);
    let receipts = context.all_metadata().flat_map(|metadata| &metadata.files);
    receipts.filter(|receipt| selects(receipt)).last().filter(|_| keeps_files)
}

/// Whether exactly these files are written already.
pub(super) fn is_done(context: &PlanContext<'_>, task: &Task) -> bool {
    let fingerprint = task.fingerprint();
    receipt(context, task, |receipt| receipt.task == fingerprint).is_some()
}

/// Whether files are still to be written to this disk.
pub(super) fn is_pending(context: &PlanContext<'_>, disk: &DiskPlan) -> bool {
    let is_missing = |task: &Task| {
        let target = context.place(task.place.id());
        target.is_some_and(|on| context.is_on(on, &disk.id)) && !is_done(context, task)
    };
    context.document.is_queued(files::NAME) && tasks(context).iter().any(is_missing)
}

/// Plans the files of each file system. Without `files` in the queue, existing receipts are carried
/// into the next journal: `touched` has the disks that earlier planners touch.
pub(super) fn plan(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Fragment {
    let mut fragment = Fragment { diagnostics: check(context), ..Fragment::default() };
    let is_queued = context.document.is_queued(files::NAME);
    for task in tasks(context) {
        let fingerprint = task.fingerprint();
        let is_of_task = |receipt: &Receipt| {
            if is_queued { receipt.task == fingerprint } else { receipt.files_on == task.fs }
        };
        let receipt = receipt(context, &task, is_of_task);
        let has_journal = !touched.is_empty() || !fragment.touched.is_empty();
        match receipt {
            None if !is_queued => continue,
            Some(_) if !has_journal => continue,
            Some(_) => {}
            None => match context.place(task.place.id()) {
                Some(target) => fragment.touch(target, &context.stacks),
                None => continue,
            },
        }
        let name = format!("put files into {}", task.fs);
        let step = PlannedStep::new(name, files::NAME, &task);
        fragment.steps.push(step.with_receipt(receipt));
    }
    fragment
}
