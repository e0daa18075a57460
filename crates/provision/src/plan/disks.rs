//! Planner of disks: wiping, tables, and file systems in partitions.

use std::collections::BTreeMap;
use std::ops::Range;

use super::context::PlanContext;
use super::fragment::{Fragment, PlannedStep};
use super::{
    FinalContent, OpenedDisk, boot, detached, drive, erase, files, image, is_kept, plugins, stack,
};
use crate::document::Id;
use crate::layout::{Difference, DiskPlan, PartitionPlan, TableChange, TablePlan, Work};
use crate::partition_table::{FIRST_PARTITION, Geometry};
use crate::steps::FsLocation;
use crate::steps::disks::{NAME, NewFileSystem, Task, free, metadata_area};

/// Plans wiping and creating, disk by disk.
pub(super) fn plan(context: &PlanContext<'_>) -> Fragment {
    let mut fragment = Fragment::default();
    // Detached legs are wiped first: the stack is recognised only as long as the rest of it exists.
    for disk in detached::disks(context.layout) {
        fragment.touched.insert(disk.id.clone());
        fragment.steps.push(wipe(disk, disk.writable.clone(), None));
    }
    for disk in &context.layout.disks {
        fragment.append(match &disk.work {
            Work::Table(table) => plan_table(context, disk, table),
            Work::Image(_) => plan_whole_disk(context, disk),
            Work::Erase => erase::plan_disk(context, disk),
            Work::None => Fragment::default(),
        });
    }
    fragment.diagnostics.extend(erase::check(context));
    fragment
}

/// Plans the tables of opened disks. A table is written only when everything on its disk is
/// durable.
pub(super) fn close(opened: &BTreeMap<Id, OpenedDisk>) -> Fragment {
    let mut fragment = Fragment::default();
    for (id, disk) in opened {
        let task = match disk.becomes {
            FinalContent::Table => Task::Close { disk: id.clone(), table: disk.table.clone() },
            FinalContent::Image => Task::Fit { disk: id.clone() },
            FinalContent::Nothing => continue,
        };
        fragment.steps.push(PlannedStep::new(format!("close {id}"), NAME, task));
    }
    fragment
}

/// The partitions that get a new file system.
pub(super) fn reformatted<'a>(context: &PlanContext<'a>) -> Vec<&'a Id> {
    let disks = context.layout.disks.iter();
    let all = disks.flat_map(|disk| match &disk.work {
        Work::Table(table) => new_file_systems(context, disk, table),
        Work::Image(_) | Work::Erase | Work::None => Vec::new(),
    });
    all.map(|(part, _)| &part.id).collect()
}

/// The file systems to create in partitions of a table.
fn new_file_systems<'a>(
    context: &PlanContext<'a>,
    disk: &'a DiskPlan,
    table: &'a TablePlan,
) -> Vec<(&'a PartitionPlan, NewFileSystem)> {
    let new = context.layout.stack.iter().filter_map(|plan| {
        let fs = context.file_system(&plan.id)?;
        let part = table.partitions.iter().find(|part| part.id == fs.on)?;
        let is_made = !plan.retained && plan.image.is_none();
        let new = NewFileSystem::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
        (is_made && !has_file_system(context, disk, part, &new)).then_some((part, new))
    });
    new.collect()
}

/// Whether a partition exists and holds this file system.
pub(super) fn has_file_system(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    part: &PartitionPlan,
    fs: &NewFileSystem,
) -> bool {
    let mut inside = context.signatures_in(disk, part);
    is_kept(disk, part) && inside.any(|signature| fs.is(signature))
}

/// Whether another planner still has a step for a partition of this disk.
fn is_pending(context: &PlanContext<'_>, disk: &DiskPlan) -> bool {
    stack::is_pending(context, &disk.id)
        || image::is_pending(context, disk)
        || image::is_growth_pending(context, disk)
        || drive::is_pending(context, &disk.id)
        || files::is_pending(context, disk)
        || plugins::is_pending(context, &disk.id)
        || boot::is_pending(context, disk)
}

fn plan_table(context: &PlanContext<'_>, disk: &DiskPlan, table: &TablePlan) -> Fragment {
    let mut fragment = Fragment::default();
    let new = new_file_systems(context, disk, table);
    let adopts = context.document.adopts_tables();
    let is_settled = new.is_empty() && context.is_closed(disk) && !is_pending(context, disk);
    if is_settled && (adopts || has_table(disk)) {
        return fragment;
    }
    fragment.touched.insert(disk.id.clone());
    let kept: Vec<_> = table.partitions.iter().filter(|part| is_kept(disk, part)).collect();
    let is_remade = |part: &PartitionPlan| {
        new.iter().any(|(made, _)| made.id == part.id) || stack::is_built_on(context, &part.id)
    };
    let wiped = table
        .partitions
        .iter()
        .filter(|part| is_remade(part) || (!adopts && !kept.iter().any(|kept| kept.id == part.id)));
    let mut ranges: Vec<_> = wiped.map(PartitionPlan::range).collect();
    let mut opened = None;
    if !adopts {
        ranges.extend(free(table, &geometry(disk)));
        let to_destroy = stack::ranges_to_destroy(context, disk, &kept);
        ranges.extend(to_destroy.iter().cloned());
        opened = Some(OpenedDisk {
            table: table.clone(),
            kept: kept.into_iter().cloned().collect(),
            to_destroy,
            becomes: FinalContent::Table,
            marker: context.metadata(disk).and_then(|metadata| metadata.marker.clone()),
        });
    }
    if opened.as_ref().is_some_and(|opened| opened.kept.is_empty()) {
        fragment.steps.extend(erase::before_use(context, disk));
    }
    if !ranges.is_empty() {
        fragment.steps.push(wipe(disk, ranges, opened.as_ref()));
    }
    fragment.opened.extend(opened.map(|opened| (disk.id.clone(), opened)));
    for (part, fs) in new {
        let name = format!("make {} {} in {}", fs.kind, fs.id, part.id);
        fragment.tools.extend(fs.tool().map(|tool| (tool.to_owned(), fs.id.clone())));
        let disk = disk.id.clone();
        let partition = part.id.clone();
        let place = FsLocation::Partition { disk, table: table.clone(), partition };
        fragment.steps.push(PlannedStep::new(name, NAME, Task::Make { place, fs }));
    }
    fragment
}

/// Plans a disk that gets the image of a whole disk.
fn plan_whole_disk(context: &PlanContext<'_>, disk: &DiskPlan) -> Fragment {
    let mut fragment = Fragment::default();
    if context.is_closed(disk) && !image::is_pending(context, disk) {
        return fragment;
    }
    fragment.touched.insert(disk.id.clone());
    let to_destroy = stack::ranges_to_destroy(context, disk, &[]);
    // Between the in-progress table and its copy.
    let mut ranges = to_destroy.clone();
    ranges.push(FIRST_PARTITION..geometry(disk).usable().end);
    let opened = without_partitions(context, disk, to_destroy, FinalContent::Image);
    fragment.steps.extend(erase::before_use(context, disk));
    fragment.steps.push(wipe(disk, ranges, Some(&opened)));
    fragment.opened.insert(disk.id.clone(), opened);
    fragment
}

/// An opened disk on which no partition is kept or created by the table.
pub(super) fn without_partitions(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    to_destroy: Vec<Range<u64>>,
    becomes: FinalContent,
) -> OpenedDisk {
    OpenedDisk {
        table: TablePlan { guid: context.disk_guid(disk), partitions: Vec::new() },
        kept: Vec::new(),
        to_destroy,
        becomes,
        marker: context.metadata(disk).and_then(|metadata| metadata.marker.clone()),
    }
}

fn wipe(disk: &DiskPlan, mut ranges: Vec<Range<u64>>, opened: Option<&OpenedDisk>) -> PlannedStep {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup();
    let area = opened.and_then(|opened| metadata_area(&opened.kept).ok());
    let from = area.map_or(0, |area| area.range().end);
    let task = Task::Wipe { disk: disk.id.clone(), ranges, from };
    PlannedStep::new(format!("wipe {}", disk.id), NAME, task)
}

pub(super) fn geometry(disk: &DiskPlan) -> Geometry {
    Geometry { size: disk.size, sector: disk.sector.into() }
}

/// Whether the disk has the desired table, and nothing on it is destroyed.
fn has_table(disk: &DiskPlan) -> bool {
    let is_kept = |change: &TableChange| change.what == Difference::Kept;
    disk.destroys.is_empty() && disk.changes.iter().all(is_kept)
}
