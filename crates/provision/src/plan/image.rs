//! Planner of images: their targets, whether they are already written, growing their file systems,
//! and the checks before writing.

use std::collections::BTreeSet;

use super::context::{PlanContext, WriteTarget};
use super::fragment::{Fragment, PlannedStep};
use super::is_kept;
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{Bytes, Document, Id, Image, ImageTable, StorageNode};
use crate::facts::{Firmware, Signature};
use crate::image_table::table_of;
use crate::layout::DiskPlan;
use crate::partition_table::FIRST_PARTITION;
use crate::steps::disks::has_label;
use crate::steps::grow::FileSystemGrowth;
use crate::steps::images::{self, Receipt};
use crate::steps::{config_drive, disks};

fn queued<'a>(context: &PlanContext<'a>) -> Vec<(WriteTarget<'a>, images::Task)> {
    if context.document.is_queued(images::NAME) { all(context) } else { Vec::new() }
}

/// All images of the document that come from sources, with their targets.
pub(super) fn all<'a>(context: &PlanContext<'a>) -> Vec<(WriteTarget<'a>, images::Task)> {
    let images = context.document.sections.images.iter();
    let all = images.filter(|(_, image)| image.made_by.is_none()).filter_map(|(id, image)| {
        let target = context.target(image)?;
        Some((target, task(context, target, id, image)))
    });
    all.collect()
}

fn task(
    context: &PlanContext<'_>,
    target: WriteTarget<'_>,
    id: &Id,
    image: &Image,
) -> images::Task {
    let manifest = context.machine.images.manifests.get(id);
    let (disk, partuuid, range) = match target {
        WriteTarget::Part(disk, part) => (&disk.id, part.partuuid, part.range()),
        WriteTarget::Whole(disk) => (&disk.id, context.disk_guid(disk), 0..disk.size),
        WriteTarget::Device(plan) => (&plan.id, plan.uuid, 0..plan.size),
    };
    images::Task {
        image: id.clone(),
        disk: disk.clone(),
        is_stacked: matches!(target, WriteTarget::Device(_)),
        partuuid,
        range,
        sources: image.sources.clone(),
        format: image.format,
        compression: image.compression,
        size: image.size.map(|Bytes(bytes)| bytes),
        digest: image.digest.as_ref().and_then(|digest| digest.parse().ok()),
        unpacked_digest: image.unpacked_digest.as_ref().and_then(|digest| digest.parse().ok()),
        token: image.token.clone(),
        manifest: image.manifest.clone().zip(manifest.map(|(digest, _)| *digest)),
        table: image.table.filter(|_| matches!(target, WriteTarget::Whole(_))),
    }
}

fn receipts<'a>(context: &PlanContext<'a>) -> impl Iterator<Item = &'a Receipt> + use<'a> {
    context.all_metadata().flat_map(|metadata| &metadata.images)
}

/// The receipt of a written image whose target still exists.
pub(super) fn receipt<'a>(
    context: &PlanContext<'a>,
    target: WriteTarget<'_>,
    task: &images::Task,
) -> Option<&'a Receipt> {
    let fingerprint = task.fingerprint();
    let receipt = receipts(context).find(|receipt| receipt.task == fingerprint)?;
    still_exists(context, target).then_some(receipt)
}

/// Whether the target of a written image still exists.
fn still_exists(context: &PlanContext<'_>, target: WriteTarget<'_>) -> bool {
    match target {
        WriteTarget::Part(disk, part) => is_kept(disk, part),
        WriteTarget::Whole(disk) => context.is_closed(disk),
        WriteTarget::Device(plan) => context.exists(&plan.id),
    }
}

/// The queued images without a receipt.
fn unwritten<'a>(context: &PlanContext<'a>) -> Vec<(WriteTarget<'a>, images::Task)> {
    let mut images = queued(context);
    images.retain(|(target, task)| receipt(context, *target, task).is_none());
    images
}

pub(super) fn unwritten_ids(context: &PlanContext<'_>) -> BTreeSet<Id> {
    unwritten(context).into_iter().map(|(_, task)| task.image).collect()
}

/// The images to write whose sources did not answer.
pub(super) fn unanswered(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let tasks = unwritten(context).into_iter();
    let silent = tasks.filter_map(|(_, task)| {
        let reason = context.machine.images.unanswered.get(&task.image)?;
        let place = format!("images.{}.sources", task.image);
        let told = ProvisionDiagnostic::new(Code::Unreachable, place, reason);
        Some(told.hint("nothing is written before a source answers; check the sources"))
    });
    silent.collect()
}

/// Sources that failed while another one of the same image answered.
pub(super) fn silent_sources(context: &PlanContext<'_>) -> Vec<String> {
    let silent = context.machine.images.silent.iter();
    silent
        .map(|(id, reason)| format!("images.{id}.sources: {reason}; another source answered"))
        .collect()
}

/// Whether an image is going to overwrite a partition or a device.
pub(super) fn is_rewritten(context: &PlanContext<'_>, place: &Id) -> bool {
    unwritten(context).iter().any(|(target, _)| target.id() == place)
}

/// Whether an image is still to be written to this disk.
pub(super) fn is_pending(context: &PlanContext<'_>, disk: &DiskPlan) -> bool {
    unwritten(context).iter().any(|(target, _)| context.is_on(*target, &disk.id))
}

/// Whether the file system of an image on this disk is still to be grown.
pub(super) fn is_growth_pending(context: &PlanContext<'_>, disk: &DiskPlan) -> bool {
    queued(context).iter().any(|(target, task)| {
        let growth = growth(context, *target, task);
        context.is_on(*target, &disk.id)
            && growth.is_some_and(|(_, task)| growth_receipt(context, &task).is_none())
    })
}

/// Plans writing and growing. A receipt is carried into the next journal if the run touches the
/// disk of its image: `touched` has the disks that earlier planners touch.
pub(super) fn plan(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Fragment {
    let mut fragment = Fragment { diagnostics: check(context), ..Fragment::default() };
    for (target, task) in queued(context) {
        let receipt = receipt(context, target, &task);
        let mut all_touched = touched.iter().chain(&fragment.touched);
        if receipt.is_some() && !all_touched.any(|disk| context.is_on(target, disk)) {
            continue;
        }
        if receipt.is_none() {
            fragment.touch(target, &context.stacks);
        }
        let name = format!("write image {} to {}", task.image, target.id());
        let step = match task.manifest {
            Some(_) => PlannedStep::new(name, images::NAME, &task),
            None => PlannedStep::unverified(name, images::NAME, &task),
        };
        fragment.steps.push(step.with_receipt(receipt));
        fragment.append(plan_growth(context, target, &task, receipt.is_none()));
    }
    fragment
}

/// Carries receipts of written images into the new journal of a run that does not queue `images`.
/// Without touched disks there is no new journal.
pub(super) fn carry_receipts(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Fragment {
    let mut fragment = Fragment::default();
    if context.document.is_queued(images::NAME) || touched.is_empty() {
        return fragment;
    }
    for (target, task) in all(context) {
        let is_of_image = |receipt: &&Receipt| receipt.image == task.image && !receipt.is_grown;
        let receipt = receipts(context).filter(is_of_image).last();
        if receipt.is_some() && still_exists(context, target) {
            let name = format!("keep image {}", task.image);
            let step = PlannedStep::unverified(name, images::NAME, &task);
            fragment.steps.push(step.with_receipt(receipt));
        }
    }
    fragment
}

fn file_system_growth(document: &Document, image: &Image) -> Option<FileSystemGrowth> {
    let fs = document.storage(&image.target).and_then(StorageNode::as_fs)?;
    FileSystemGrowth::new(&fs.id, fs.kind)
}

/// The step that grows a file system after its image is written.
fn growth(
    context: &PlanContext<'_>,
    target: WriteTarget<'_>,
    image: &images::Task,
) -> Option<(FileSystemGrowth, disks::Task)> {
    let section = context.document.sections.images.get(&image.image)?;
    let fs = file_system_growth(context.document, section).filter(|_| section.grow)?;
    let place = target.place()?;
    let of = image.fingerprint();
    let task = disks::Task::Grow { place, fs: fs.clone(), image: image.image.clone(), of };
    Some((fs, task))
}

fn growth_receipt<'a>(context: &PlanContext<'a>, task: &disks::Task) -> Option<&'a Receipt> {
    let fingerprint = task.fingerprint();
    receipts(context).find(|receipt| receipt.task == fingerprint)
}

/// Plans growing the file system of an image. A rewritten image is grown again.
fn plan_growth(
    context: &PlanContext<'_>,
    target: WriteTarget<'_>,
    image: &images::Task,
    is_rewritten: bool,
) -> Fragment {
    let mut fragment = Fragment::default();
    let Some((fs, task)) = growth(context, target, image) else { return fragment };
    let receipt = growth_receipt(context, &task).filter(|_| !is_rewritten);
    if receipt.is_none() {
        fragment.touch(target, &context.stacks);
    }
    fragment.tools.extend(fs.tools().map(|tool| (tool.to_owned(), fs.id.clone())));
    let name = format!("grow {} {} in {}", fs.kind, fs.id, target.id());
    fragment.steps.push(PlannedStep::new(name, disks::NAME, task).with_receipt(receipt));
    fragment
}

/// Refuses images that cannot be fetched, written, grown or booted, before any disk is changed.
fn check(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let mut diagnostics = check_sections(context);
    diagnostics.extend(check_growth(context.document));
    diagnostics.extend(check_contents(context));
    let unwritten = unwritten(context);
    diagnostics.extend(unwritten.iter().filter_map(|(_, task)| {
        let (id, reason) = context.machine.images.unreachable.get_key_value(&task.image)?;
        let refused =
            ProvisionDiagnostic::new(Code::Unreachable, format!("images.{id}.sources"), reason);
        Some(refused.hint("check the sources"))
    }));
    for (target, task) in unwritten {
        let place = format!("images.{}", task.image);
        diagnostics.extend(check_size(context, &task, &place));
        if let WriteTarget::Whole(disk) = target {
            diagnostics.extend(check_beginning(context, disk, &task, &place));
        }
    }
    diagnostics
}

/// Reports written images whose file systems are not as declared: the installed system would not find
/// or mount them.
fn check_contents(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let mut diagnostics = Vec::new();
    for (target, task) in queued(context) {
        let WriteTarget::Part(disk, part) = target else { continue };
        let mut fss = context.document.sections.storage.iter().filter_map(StorageNode::as_fs);
        let Some(fs) = fss.find(|fs| fs.on == part.id) else { continue };
        let inside: Vec<_> = context.signatures_in(disk, part).collect();
        let is_it = |found: &&Signature| {
            found.kind == fs.kind.signature() && has_label(fs.kind, fs.label.as_deref(), found)
        };
        let is_written = receipt(context, target, &task).is_some();
        if !is_written || inside.is_empty() || inside.iter().any(is_it) {
            continue;
        }
        let label = fs.label.as_ref().map(|label| format!(" with label `{label}`"));
        let label = label.unwrap_or_default();
        let what = format!("it brought other contents than `{}`, {}{label}", fs.id, fs.kind);
        let place = format!("images.{}", task.image);
        let found = ProvisionDiagnostic::new(Code::WrongContent, place, what);
        let hint = "correct the kind or the label in the document, or take another image";
        let seen = inside.into_iter().map(ToString::to_string);
        diagnostics.push(found.evidence(seen).hint(hint));
    }
    diagnostics
}

/// Refuses valid sections that the action `images` cannot carry out.
fn check_sections(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let mut diagnostics = Vec::new();
    if !context.document.is_queued(images::NAME) {
        return diagnostics;
    }
    let mut refuse = |place: String, what: &str, hint: &str| {
        diagnostics.push(ProvisionDiagnostic::new(Code::Unsupported, place, what).hint(hint));
    };
    let sections = &context.document.sections;
    for (id, image) in sections.images.iter() {
        let place = |field: &str| format!("images.{id}.{field}");
        let is_unknown = |token: &&_| !context.machine.secrets.has(token);
        if let Some(token) = image.token.as_ref().filter(is_unknown) {
            let what = format!("`{token}` is not known here");
            let hint = "by hand, name the directory of its file with --secrets";
            refuse(place("token"), &what, hint);
        }
        if image.made_by.as_deref().is_some_and(|maker| maker != config_drive::NAME) {
            refuse(place("made_by"), "no action here makes the image", "name a source");
        }
        let manifest = context.machine.images.manifests.get(id).map(|(_, manifest)| manifest);
        if sections.disks.get(&image.target).is_some()
            && manifest.is_some_and(|manifest| !manifest.begins_with_all_of(FIRST_PARTITION))
        {
            // The metadata area would be overwritten during the run.
            let what = "its first chunk does not have all of the first MiB of a disk";
            refuse(place("manifest"), what, "make the list with `hoist image build`");
        }
    }
    diagnostics
}

/// Refuses `grow` on file systems that cannot grow.
fn check_growth(document: &Document) -> Vec<ProvisionDiagnostic> {
    let images = document.sections.images.iter().filter(|(_, image)| image.grow);
    let wrong = images.filter(|(_, image)| file_system_growth(document, image).is_none());
    let refused = wrong.map(|(id, _)| {
        let what = "only ext, xfs and btrfs that are named as `target` are grown";
        ProvisionDiagnostic::new(Code::Unsupported, format!("images.{id}.grow"), what)
            .hint("name a file system of these kinds, or leave it out")
    });
    refused.collect()
}

/// S8 for an image without a declared size, from the size that its server announces.
fn check_size(
    context: &PlanContext<'_>,
    task: &images::Task,
    place: &str,
) -> Option<ProvisionDiagnostic> {
    let size = *context.machine.images.plain_sizes.get(&task.image)?;
    if let Some(declared) = task.size.filter(|declared| *declared != size) {
        let what = format!("it has {}, not {}", Bytes(size), Bytes(declared));
        let refused = ProvisionDiagnostic::new(Code::WrongContent, format!("{place}.size"), what);
        return Some(refused.hint("say the size that it has, or none; nothing was written"));
    }
    let room = task.range.end - task.range.start;
    (size > room).then(|| {
        let what = format!("it has {}, and its target only {}", Bytes(size), Bytes(room));
        let hint = "make its target larger; nothing was written";
        ProvisionDiagnostic::new(Code::ImageTooLarge, place, what).hint(hint)
    })
}

/// S9 for an image without a declared table and sector size.
fn check_beginning(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    task: &images::Task,
    place: &str,
) -> Option<ProvisionDiagnostic> {
    let first = context.machine.images.beginnings.get(&task.image)?;
    let refuse = |what: String, hint: &str| {
        Some(ProvisionDiagnostic::new(Code::Firmware, place, what).hint(hint))
    };
    let table = match table_of(disk.size, disk.sector, first, task.table) {
        Ok(table) => table,
        Err(error) => {
            let what = format!("it cannot be started from disk `{}`: {error}", disk.kernel_name);
            return refuse(what, "take an image for this disk; nothing was written");
        }
    };
    let is_booted = !has_root_elsewhere(context.document) && !has_esp(first);
    let is_uefi = context.machine.facts.firmware == Firmware::Uefi;
    if table == Some(ImageTable::Mbr) && is_uefi && is_booted {
        let what = "it has an MBR without an EFI system partition, and the machine was started \
                    by UEFI";
        let hint = "take an image with a GPT, or start the machine by BIOS";
        return refuse(what.to_owned(), hint);
    }
    None
}

/// Whether the system boots from another disk, so that the image is only data.
fn has_root_elsewhere(document: &Document) -> bool {
    let mut fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    fss.any(|fs| fs.mount.as_deref() == Some("/"))
}

/// Whether an MBR has a partition that UEFI boots from.
fn has_esp(first: &[u8]) -> bool {
    const ESP: u8 = 0xef;
    let entries = first.get(446..510).unwrap_or_default();
    entries.chunks_exact(16).any(|entry| entry[4] == ESP)
}
