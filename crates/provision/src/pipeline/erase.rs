//! Disks that are made empty, by themselves or before something else comes to them.

use super::{Ending, Opened, Planning, Seen};
use crate::actions::erase::{self, Method, Task};
use crate::device::table::{FIRST_PARTITION, Geometry};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Document, Id};
use crate::layout::{DiskPlan, Layout, TablePlan};

/// Where nothing but erasing is wanted, what the disks would hold otherwise does not matter.
pub(super) fn alone(document: &Document) -> Document {
    let mut document = document.clone();
    if document.only_erases() {
        let sections = &mut document.sections;
        (sections.boot, sections.config_drive) = (None, None);
        sections.storage.clear();
        sections.files.clear();
        sections.images.0.clear();
    }
    document
}

/// Methods that disks do not offer.
pub(super) fn cannot(document: &Document, layout: &Layout, seen: &Seen) -> Vec<Diagnostic> {
    let Some(section) = document.sections.erase.as_ref() else { return Vec::new() };
    let asked = layout.disks.iter().filter(|disk| is_erased(document, &disk.id));
    let told = asked.filter_map(|disk| {
        let facts = seen.facts.disks.iter().find(|f| f.kernel_name == disk.kernel_name)?;
        let what = Method::choose(section.method, facts).err()?;
        let found = Diagnostic::new(Code::Unsupported, "erase.method", what);
        Some(found.hint("take `overwrite`, or leave it out"))
    });
    told.collect()
}

pub(super) fn is_erased(document: &Document, disk: &Id) -> bool {
    let section = document.sections.erase.as_ref();
    document.is_queued(erase::NAME)
        && section.is_some_and(|section| section.disks.iter().any(|id| id == disk))
}

impl Planning<'_> {
    /// All of a disk, and nothing comes to it. Nothing on it could say that it was done before.
    pub(super) fn erase(&mut self, disk: &DiskPlan) {
        self.touched.insert(disk.id.clone());
        let table = TablePlan { guid: self.disk_guid(disk), partitions: Vec::new() };
        let marker = self.notes(disk).and_then(|notes| notes.marker.clone());
        let (kept, doomed, ending) = (Vec::new(), Vec::new(), Ending::Nothing);
        let opened = Opened { table, kept, doomed, ending, marker };
        self.opened.insert(disk.id.clone(), opened);
        self.erase_range(disk, 0..disk.size);
    }

    /// Before something else comes to a disk on which nothing is kept.
    pub(super) fn erase_before(&mut self, disk: &DiskPlan) {
        if is_erased(self.document, &disk.id) {
            let geometry = Geometry { size: disk.size, sector: disk.sector.into() };
            self.erase_range(disk, FIRST_PARTITION..geometry.usable().end);
        }
    }

    fn erase_range(&mut self, disk: &DiskPlan, range: std::ops::Range<u64>) {
        let asked = self.document.sections.erase.as_ref().map(|section| section.method);
        let Some(facts) = self.facts(disk) else { return };
        // What cannot be was said already.
        let Ok(method) = Method::choose(asked.unwrap_or_default(), facts) else { return };
        let (who, seed) = (facts.into(), self.disk_guid(disk).as_u64_pair().0);
        let task = Task { disk: disk.id.clone(), who, range, method, seed };
        self.step(format!("erase {} by {method}", disk.id), erase::NAME, task, true);
    }
}
