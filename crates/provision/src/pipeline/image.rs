//! Images: which go where, whether they are there, and what is known of them before they are written.

use super::{Planning, Target, as_value, is_kept};
use crate::actions::images::{self, Receipt};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Bytes, Id, ImageTable, StorageNode};
use crate::facts::Firmware;
use crate::images::table_of;
use crate::layout::DiskPlan;

impl<'a> Planning<'a> {
    pub(super) fn queued_images(&self) -> Vec<(Target<'a>, images::Task)> {
        let is_queued = self.document.is_queued(images::NAME);
        if is_queued { self.all_images() } else { Vec::new() }
    }

    pub(super) fn all_images(&self) -> Vec<(Target<'a>, images::Task)> {
        let images = self.document.sections.images.iter();
        let all = images.filter(|(_, image)| image.made_by.is_none()).filter_map(|(id, image)| {
            let target = self.target(image)?;
            let manifest = self.seen.manifests.get(id);
            let (disk, partuuid, range) = match target {
                Target::Part(disk, part) => (&disk.id, part.partuuid, part.range()),
                Target::Whole(disk) => (&disk.id, self.disk_guid(disk), 0..disk.size),
                Target::Device(plan) => (&plan.id, plan.uuid, 0..plan.size),
            };
            let task = images::Task {
                image: id.clone(),
                disk: disk.clone(),
                is_stacked: matches!(target, Target::Device(_)),
                partuuid,
                range,
                sources: image.sources.clone(),
                format: image.format,
                compression: image.compression,
                size: image.size.map(|Bytes(bytes)| bytes),
                digest: image.digest.as_ref().and_then(|digest| digest.parse().ok()),
                token: image.token.clone(),
                manifest: image.manifest.clone().zip(manifest.map(|(digest, _)| *digest)),
                table: image.table.filter(|_| matches!(target, Target::Whole(_))),
            };
            Some((target, task))
        });
        all.collect()
    }

    /// What says that an image is where it shall be. The journal of a run is on one of its disks.
    pub(super) fn receipt(&self, target: Target<'_>, task: &images::Task) -> Option<Receipt> {
        let fingerprint = task.fingerprint();
        let receipt = self.receipts().find(|receipt| receipt.task == fingerprint)?;
        self.still_has(target).then(|| receipt.clone())
    }

    /// Whether what an image was written to is still there.
    pub(super) fn still_has(&self, target: Target<'_>) -> bool {
        match target {
            Target::Part(disk, part) => is_kept(disk, part),
            Target::Whole(disk) => self.is_closed(disk),
            Target::Device(plan) => self.stands(&plan.id),
        }
    }

    /// On whichever disk the journal was.
    pub(super) fn receipts(&self) -> impl Iterator<Item = &'a Receipt> {
        self.seen.notes.values().flat_map(|notes| &notes.receipts)
    }

    /// The journal begins anew with a run: what says that images are where they shall be goes on into
    /// it, also if nobody asks for them now.
    pub(super) fn keep_receipts(&mut self) {
        if self.document.is_queued(images::NAME) || self.touched.is_empty() {
            return;
        }
        for (target, task) in self.all_images() {
            let receipt = self
                .receipts()
                .filter(|receipt| receipt.image == task.image && !receipt.is_grown)
                .last();
            let Some(receipt) = receipt.filter(|_| self.still_has(target)) else {
                continue;
            };
            let id = self.step(format!("keep image {}", task.image), images::NAME, &task, false);
            self.done.insert(id, as_value(receipt));
        }
    }

    /// Whether an image comes over what is in a partition or a device now.
    pub(super) fn is_rewritten(&self, place: &Id) -> bool {
        let images = self.queued_images();
        let mut there = images.iter().filter(|(target, _)| target.id() == place);
        there.any(|(target, task)| self.receipt(*target, task).is_none())
    }

    pub(super) fn needs_image(&self, disk: &DiskPlan) -> bool {
        self.queued_images().iter().any(|(target, task)| {
            self.is_on(*target, &disk.id) && self.receipt(*target, task).is_none()
        })
    }

    pub(super) fn images(&mut self) {
        for (target, task) in self.queued_images() {
            let receipt = self.receipt(target, &task);
            if receipt.is_some() && !self.touched.iter().any(|disk| self.is_on(target, disk)) {
                continue;
            }
            if receipt.is_none() {
                self.touch_target(target);
            }
            let name = format!("write image {} to {}", task.image, target.id());
            let id = self.step(name, images::NAME, &task, task.manifest.is_some());
            let is_written = receipt.is_none();
            self.done.extend(receipt.map(|receipt| (id, as_value(&receipt))));
            self.grow(target, &task, is_written);
        }
    }

    /// What is to be written and cannot be had is told while the disks are as they were.
    pub(super) fn absent_images(&self) -> Vec<Diagnostic> {
        let told = self.unwritten_images().into_iter().filter_map(|(_, task)| {
            let (id, reason) = self.seen.absent.get_key_value(&task.image)?;
            let found = Diagnostic::new(Code::Unreachable, format!("images.{id}.sources"), reason);
            Some(found.hint("see that it is there"))
        });
        told.collect()
    }

    fn unwritten_images(&self) -> Vec<(Target<'a>, images::Task)> {
        let mut images = self.queued_images();
        images.retain(|(target, task)| self.receipt(*target, task).is_none());
        images
    }

    /// And so is what would not fit, or not start.
    pub(super) fn refused_images(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (target, task) in self.unwritten_images() {
            let place = format!("images.{}", task.image);
            found.extend(self.refused_size(&task, &place));
            if let Target::Whole(disk) = target {
                found.extend(self.refused_beginning(disk, &task, &place));
            }
        }
        found
    }

    /// S8, of an image whose size nobody wrote and its server says.
    fn refused_size(&self, task: &images::Task, place: &str) -> Option<Diagnostic> {
        let size = *self.seen.plain_sizes.get(&task.image)?;
        if let Some(wanted) = task.size.filter(|wanted| *wanted != size) {
            let what = format!("it has {}, not {}", Bytes(size), Bytes(wanted));
            let found = Diagnostic::new(Code::WrongContent, format!("{place}.size"), what);
            return Some(found.hint("say the size that it has, or none; nothing was written"));
        }
        let room = task.range.end - task.range.start;
        (size > room).then(|| {
            let what = format!("it has {}, and its target only {}", Bytes(size), Bytes(room));
            let hint = "make its target larger; nothing was written";
            Diagnostic::new(Code::ImageTooLarge, place, what).hint(hint)
        })
    }

    /// S9, of an image of which nobody wrote what table it has, and for which sectors.
    fn refused_beginning(
        &self,
        disk: &DiskPlan,
        task: &images::Task,
        place: &str,
    ) -> Option<Diagnostic> {
        let first = self.seen.beginnings.get(&task.image)?;
        let refused = |what: String, hint: &str| {
            Some(Diagnostic::new(Code::Firmware, place, what).hint(hint))
        };
        let table = match table_of(disk.size, disk.sector, first, task.table) {
            Ok(table) => table,
            Err(reason) => {
                let what =
                    format!("it cannot be started from disk `{}`: {reason}", disk.kernel_name);
                return refused(what, "take an image for this disk; nothing was written");
            }
        };
        let is_started = !self.has_root_elsewhere() && !has_esp(first);
        if table == Some(ImageTable::Mbr)
            && self.seen.facts.firmware == Firmware::Uefi
            && is_started
        {
            let what = "it has an MBR without an EFI system partition, and the machine was \
                        started by UEFI";
            let hint = "take an image with a GPT, or start the machine by BIOS";
            return refused(what.to_owned(), hint);
        }
        None
    }

    /// What is on other disks is started, and the image is only data.
    fn has_root_elsewhere(&self) -> bool {
        let mut fss = self.document.sections.storage.iter().filter_map(StorageNode::as_fs);
        fss.any(|fs| fs.mount.as_deref() == Some("/"))
    }
}

/// Whether an MBR has a partition that UEFI starts from.
fn has_esp(first: &[u8]) -> bool {
    const ESP: u8 = 0xef;
    let entries = first.get(446..510).unwrap_or_default();
    entries.chunks_exact(16).any(|entry| entry[4] == ESP)
}
