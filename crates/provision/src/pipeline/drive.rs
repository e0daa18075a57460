//! The config drive: what shall be in it, and whether it is.

use super::{Planning, is_kept};
use crate::actions::config_drive::{self, Task};
use crate::document::{Content, Document, Id};
use crate::fat::Stored;
use crate::layout::{DiskPlan, Layout, PartitionPlan, derive};

/// Where the volume goes, and what it shall be.
pub(super) fn wanted<'a>(
    document: &Document,
    layout: &'a Layout,
) -> Option<(&'a DiskPlan, &'a PartitionPlan, Task)> {
    let drive = document.sections.config_drive.as_ref()?;
    if !document.is_queued(config_drive::NAME) {
        return None;
    }
    let mut images = document.sections.images.iter();
    let image = images.find(|(_, image)| image.made_by.as_deref() == Some(config_drive::NAME));
    let (disk, part) = layout.partition(&image?.1.target)?;
    let texts = drive.files.iter().filter_map(|(path, content)| match content {
        Content::Text(text) => Some((path.clone(), Stored::of(text.as_bytes()))),
        Content::Secret(_) | Content::Fstab | Content::Crypttab => None,
    });
    let serial = derive(document.txn, document.node_id(), &part.id).as_fields().0;
    let (disk_id, partition) = (disk.id.clone(), part.id.clone());
    let task =
        Task { disk: disk_id, partition, range: part.range(), serial, files: texts.collect() };
    Some((disk, part, task))
}

impl Planning<'_> {
    /// What is to be made, unless it is there.
    fn missing_drive(&self) -> Option<(&DiskPlan, Task)> {
        let (disk, part, task) = wanted(self.document, self.layout)?;
        let found = self.seen.contents.get(&part.id).filter(|_| is_kept(disk, part));
        let is_there = found.is_some_and(|found| task.is(found));
        (!is_there).then_some((disk, task))
    }

    pub(super) fn needs_drive(&self, disk: &Id) -> bool {
        self.missing_drive().is_some_and(|(on, _)| on.id == *disk)
    }

    pub(super) fn drive(&mut self) {
        let Some((disk, task)) = self.missing_drive() else { return };
        let disk = disk.id.clone();
        self.touched.insert(disk);
        let name = format!("make config drive in {}", task.partition);
        self.step(name, config_drive::NAME, task, true);
    }
}
