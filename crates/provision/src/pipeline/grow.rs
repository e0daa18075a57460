//! File systems of images that are grown.

use super::{Planning, Target, as_value};
use crate::actions::disks::{self, Task};
use crate::actions::grow::Growing;
use crate::actions::images::{self, Receipt};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Document, Image, StorageNode};
use crate::layout::DiskPlan;

fn growing(document: &Document, image: &Image) -> Option<Growing> {
    let fs = document.storage(&image.target).and_then(StorageNode::as_fs)?;
    Growing::new(&fs.id, fs.kind)
}

/// What is asked to grow and cannot.
pub(super) fn cannot(document: &Document) -> Vec<Diagnostic> {
    let images = document.sections.images.iter().filter(|(_, image)| image.grow);
    let wrong = images.filter(|(_, image)| growing(document, image).is_none());
    let told = |(id, _): (_, &Image)| {
        let what = "only ext, xfs and btrfs that are named as `target` are grown";
        Diagnostic::new(Code::Unsupported, format!("images.{id}.grow"), what)
            .hint("name a file system of these kinds, or leave it out")
    };
    wrong.map(told).collect()
}

impl Planning<'_> {
    /// What is done once an image is where it shall be.
    fn growing(&self, target: Target<'_>, image: &images::Task) -> Option<(Growing, Task)> {
        let section = self.document.sections.images.get(&image.image)?;
        let fs = growing(self.document, section).filter(|_| section.grow)?;
        let (place, of) = (target.place()?, image.fingerprint());
        let task = Task::Grow { place, fs: fs.clone(), image: image.image.clone(), of };
        Some((fs, task))
    }

    fn grown(&self, task: &Task) -> Option<Receipt> {
        let fingerprint = task.fingerprint();
        self.receipts().find(|receipt| receipt.task == fingerprint).cloned()
    }

    pub(super) fn needs_growing(&self, disk: &DiskPlan) -> bool {
        self.queued_images().iter().any(|(target, task)| {
            let growing = self.growing(*target, task);
            self.is_on(*target, &disk.id)
                && growing.is_some_and(|(_, task)| self.grown(&task).is_none())
        })
    }

    /// Again, if the image is written again.
    pub(super) fn grow(&mut self, target: Target<'_>, image: &images::Task, is_written: bool) {
        let Some((fs, task)) = self.growing(target, image) else { return };
        let receipt = self.grown(&task).filter(|_| !is_written);
        let name = format!("grow {} {} in {}", fs.kind, fs.id, target.id());
        if receipt.is_none() {
            self.touch_target(target);
        }
        self.grows.push(fs);
        let id = self.step(name, disks::NAME, task, true);
        self.done.extend(receipt.map(|receipt| (id, as_value(&receipt))));
    }
}
