//! Images of whole disks.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{Ending, Opened, Planning, Seen};
use crate::device::table::{FIRST_PARTITION, Geometry};
use crate::document::{Id, Image};
use crate::layout::{Change, Difference, DiskPlan, Entry, Layout, TablePlan, Work, derive};

impl<'a> Planning<'a> {
    /// The disk that an image is of, if it is of a whole one.
    pub(super) fn whole_target(&self, image: &Image) -> Option<&'a DiskPlan> {
        self.layout.disks.iter().find(|disk| disk.id == image.target)
    }

    /// Of the table that a disk has while it is worked on.
    pub(super) fn disk_guid(&self, disk: &DiskPlan) -> Uuid {
        derive(self.document.txn, self.document.node_id(), &disk.id)
    }

    pub(super) fn whole(&mut self, disk: &DiskPlan) {
        if self.is_closed(disk) && !self.needs_image(disk) {
            return;
        }
        self.touched.insert(disk.id.clone());
        let table = TablePlan { guid: self.disk_guid(disk), partitions: Vec::new() };
        let marker = self.notes(disk).and_then(|notes| notes.marker.clone());
        let doomed = self.old_legs(disk, &[]);
        // Between the table that says that it is worked on, and its copy.
        let geometry = Geometry { size: disk.size, sector: disk.sector.into() };
        let mut ranges = doomed.clone();
        ranges.push(FIRST_PARTITION..geometry.usable().end);
        let (kept, ending) = (Vec::new(), Ending::Image);
        let opened = Opened { table, kept, doomed, ending, marker };
        self.opened.insert(disk.id.clone(), opened);
        self.erase_before(disk);
        self.wipe(disk, ranges);
    }
}

/// Disks that have their image already lose nothing, though the layout knows nothing of that.
pub(super) fn as_it_is(layout: &Layout, touched: &BTreeSet<Id>, seen: &Seen) -> Layout {
    let mut layout = layout.clone();
    // What nobody needs alone stays together.
    let untouched = layout.disks.iter_mut().filter(|disk| !touched.contains(&disk.id));
    untouched.for_each(|disk| disk.tears_down.clear());
    let settled = layout
        .disks
        .iter_mut()
        .filter(|disk| matches!(disk.work, Work::Image(_)) && !touched.contains(&disk.id));
    for disk in settled {
        let facts = seen.facts.disks.iter().find(|facts| facts.kernel_name == disk.kernel_name);
        let table = facts.and_then(|facts| facts.table.as_ref());
        let parts = table.map_or(&[][..], |table| &table.partitions);
        let kept = |part| {
            let entry = Some(Entry::from(part));
            Change { what: Difference::Kept, before: entry.clone(), after: entry }
        };
        disk.changes = parts.iter().map(kept).collect();
        disk.destroys.clear();
    }
    layout
}
