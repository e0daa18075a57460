//! Planner of the config drive.

use super::context::PlanContext;
use super::fragment::{Fragment, PlannedStep};
use super::is_kept;
use crate::document::{Content, Document, Id};
use crate::layout::{DiskPlan, Layout, PartitionPlan, derive};
use crate::steps::config_drive::{self, Task};
use crate::volume::StoredFile;

/// The partition of the config drive and its desired contents.
pub fn desired<'a>(
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
        Content::Text(text) => Some((path.clone(), StoredFile::of(text.as_bytes()))),
        Content::Secret(_) | Content::Fstab | Content::Crypttab => None,
    });
    let task = Task {
        disk: disk.id.clone(),
        partition: part.id.clone(),
        range: part.range(),
        serial: derive(document.txn, document.node_id(), &part.id).as_fields().0,
        files: texts.collect(),
    };
    Some((disk, part, task))
}

/// The step that makes the config drive, unless the drive is up to date.
fn missing<'a>(context: &PlanContext<'a>) -> Option<(&'a DiskPlan, Task)> {
    let (disk, part, task) = desired(context.document, context.layout)?;
    let contents = context.machine.disks.contents.get(&part.id).filter(|_| is_kept(disk, part));
    let is_current = contents.is_some_and(|contents| task.is(contents));
    (!is_current).then_some((disk, task))
}

pub(super) fn is_pending(context: &PlanContext<'_>, disk: &Id) -> bool {
    missing(context).is_some_and(|(on, _)| on.id == *disk)
}

pub(super) fn plan(context: &PlanContext<'_>) -> Fragment {
    let Some((disk, task)) = missing(context) else { return Fragment::default() };
    let name = format!("make config drive in {}", task.partition);
    Fragment {
        steps: vec![PlannedStep::new(name, config_drive::NAME, task)],
        touched: [disk.id.clone()].into(),
        ..Fragment::default()
    }
}
