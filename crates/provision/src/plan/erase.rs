//! Planner of erasures: disks that end empty, and disks that are erased before their new contents.

use std::ops::Range;

use super::FinalContent;
use super::context::PlanContext;
use super::disks::{geometry, without_partitions};
use super::fragment::{Fragment, PlannedStep};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{Document, Id};
use crate::layout::DiskPlan;
use crate::partition_table::FIRST_PARTITION;
use crate::steps::erase::{self, Method, Task};

/// The document without the desired contents of its disks, if they do not matter.
pub(super) fn without_contents(document: &Document) -> Document {
    let mut document = document.clone();
    if document.ignores_contents() {
        let sections = &mut document.sections;
        (sections.boot, sections.config_drive) = (None, None);
        sections.storage.clear();
        sections.files.clear();
        sections.images.0.clear();
        sections.third_party.clear();
        if let Some(flow) = &mut sections.flow {
            flow.left_out.clear();
        }
    }
    document
}

/// Refuses methods that disks do not offer.
pub(super) fn check(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let Some(section) = context.document.sections.erase.as_ref() else { return Vec::new() };
    let erased = context.layout.disks.iter().filter(|disk| is_erased(context.document, &disk.id));
    let refused = erased.filter_map(|disk| {
        let error = Method::choose(section.method, context.disk_facts(disk)?).err()?;
        let message = error.to_string();
        let refused = ProvisionDiagnostic::new(Code::Unsupported, "erase.method", message);
        Some(refused.hint("use `overwrite`, or leave `method` out"))
    });
    refused.collect()
}

pub fn is_erased(document: &Document, disk: &Id) -> bool {
    let section = document.sections.erase.as_ref();
    document.is_queued(erase::NAME)
        && section.is_some_and(|section| section.disks.iter().any(|id| id == disk))
}

/// Erases a whole disk that gets no contents. An empty disk cannot record that it was erased, so
/// every run erases it.
pub(super) fn plan_disk(context: &PlanContext<'_>, disk: &DiskPlan) -> Fragment {
    let opened = without_partitions(context, disk, Vec::new(), FinalContent::Nothing);
    Fragment {
        steps: erase_range(context, disk, 0..disk.size).into_iter().collect(),
        opened: [(disk.id.clone(), opened)].into(),
        touched: [disk.id.clone()].into(),
        ..Fragment::default()
    }
}

/// Erases a disk that keeps no partition, before its new contents are written.
pub(super) fn before_use(context: &PlanContext<'_>, disk: &DiskPlan) -> Option<PlannedStep> {
    let range = FIRST_PARTITION..geometry(disk).usable().end;
    let is_erased = is_erased(context.document, &disk.id);
    is_erased.then(|| erase_range(context, disk, range)).flatten()
}

fn erase_range(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    range: Range<u64>,
) -> Option<PlannedStep> {
    let asked = context.document.sections.erase.as_ref().map(|section| section.method);
    let facts = context.disk_facts(disk)?;
    // `check` refuses an unsupported method.
    let method = Method::choose(asked.unwrap_or_default(), facts).ok()?;
    let who = facts.into();
    let seed = context.disk_guid(disk).as_u64_pair().0;
    let task = Task { disk: disk.id.clone(), who, range, method, seed };
    Some(PlannedStep::new(format!("erase {} by {method}", disk.id), erase::NAME, task))
}
