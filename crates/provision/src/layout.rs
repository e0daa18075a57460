//! What the disks become: for each its table before and after, what is made on it and in which
//! order, what is destroyed, and where anything may be written at all.
//!
//! A function of the document, the disks it was bound to and the facts. What must not be is refused
//! here, all of it at once, before anybody opens a disk.

mod guid;
mod refuse;
mod show;
mod stack;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::bind::{Binding, bind};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::storage::in_order;
use crate::document::{Document, Id, StorageNode};
use crate::facts::{DiskFacts, Facts, Signature};

pub use guid::{derive, type_of};
pub use stack::{EXTENT, LUKS_HEADER, MD_DATA_OFFSET};
pub use table::{ALIGN, SLACK};

/// Everything that becomes of the disks of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    pub disks: Vec<DiskPlan>,
    /// What lies on the partitions, each behind what it lies on.
    pub stack: Vec<StackPlan>,
}

/// What becomes of one disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskPlan {
    pub id: Id,
    /// What it was called when this was planned; whoever opens it compares the rest again.
    pub kernel_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    pub size: u64,
    pub sector: u32,
    pub work: Work,
    /// Its table before and after, by where things are.
    pub changes: Vec<Change>,
    /// What is on it and will not be any more.
    pub destroys: Vec<Signature>,
    /// Devices above it that are taken apart first, by kernel name.
    pub tears_down: Vec<String>,
    /// Nothing outside of these is ever written.
    pub writable: Vec<Range<u64>>,
}

/// What is done to a disk as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// It has, or gets, this table.
    Table(TablePlan),
    /// An image is written over all of it.
    Image(Id),
    /// All of it is made empty.
    Erase,
    /// Nothing, but that what it destroys is.
    None,
}

impl Work {
    /// Nothing that was on the disk is there afterwards.
    fn is_of_all(&self) -> bool {
        matches!(self, Self::Image(_) | Self::Erase)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablePlan {
    pub guid: Uuid,
    pub partitions: Vec<PartitionPlan>,
}

/// An entry of the table as it will be. Numbers of bytes, whatever the sector size is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionPlan {
    pub id: Id,
    pub number: u32,
    pub start: u64,
    pub len: u64,
    pub type_guid: Uuid,
    pub partuuid: Uuid,
    pub name: String,
    pub attributes: u64,
    /// It was there, and nothing in it is touched.
    pub retained: bool,
}

impl PartitionPlan {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }
}

/// One line of the difference between two tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub what: Difference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Entry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    Kept,
    New,
    /// It begins where it did and is the same one, with another size, type or name.
    Resized,
    Deleted,
}

/// A partition as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub number: u32,
    pub start: u64,
    pub len: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_guid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<Uuid>,
    pub name: String,
}

impl Entry {
    fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.len)
    }
}

/// Something that lies on partitions. What it is in detail says the node of the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackPlan {
    pub id: Id,
    pub kind: String,
    pub on: Vec<Id>,
    /// Bytes that what lies on it can use.
    pub size: u64,
    /// For what has a UUID.
    pub uuid: Uuid,
    /// It is there, and stays.
    pub retained: bool,
    /// It is there as it shall be, by what an earlier run has done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_there: bool,
    /// What it holds comes from this image; it is not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Id>,
}

impl Layout {
    /// The tables are as they shall be, and nothing is destroyed.
    pub fn is_settled(&self) -> bool {
        self.disks.iter().all(|disk| {
            let same = |change: &Change| change.what == Difference::Kept;
            !disk.work.is_of_all() && disk.destroys.is_empty() && disk.changes.iter().all(same)
        })
    }

    pub fn partition(&self, id: &Id) -> Option<(&DiskPlan, &PartitionPlan)> {
        self.disks.iter().find_map(|disk| {
            let Work::Table(table) = &disk.work else { return None };
            Some((disk, table.partitions.iter().find(|part| part.id == *id)?))
        })
    }
}

/// Binds the disks of a document and lays everything out on them.
pub fn plan(document: &Document, facts: &Facts) -> Result<Layout, Vec<Diagnostic>> {
    let binding = bind(document, facts)?;
    lay_out(document, &binding, facts)
}

/// The layout, or everything that forbids it.
pub fn lay_out(
    document: &Document,
    binding: &Binding<'_>,
    facts: &Facts,
) -> Result<Layout, Vec<Diagnostic>> {
    let Some(ordered) = in_order(&document.sections.storage) else {
        let what = "some nodes lie on each other in a circle";
        return Err(vec![Diagnostic::new(Code::Contradiction, "storage", what)]);
    };
    let context = Context { document, binding, facts };
    let (mut disks, mut found) = (Vec::new(), Vec::new());
    for (id, disk) in binding {
        match table::disk(&context, id, disk) {
            Ok(plan) => disks.push(plan),
            Err(diagnostics) => found.extend(diagnostics),
        }
    }
    if !found.is_empty() {
        return Err(found);
    }
    let mut layout = Layout { disks, stack: Vec::new() };
    match stack::stack(&context, &ordered, &layout) {
        Ok(stack) => layout.stack = stack,
        Err(diagnostics) => found.extend(diagnostics),
    }
    found.extend(refuse::refuse(&context, &mut layout));
    if found.is_empty() { Ok(layout) } else { Err(found) }
}

/// What everything is a function of.
struct Context<'a> {
    document: &'a Document,
    binding: &'a Binding<'a>,
    facts: &'a Facts,
}

impl<'a> Context<'a> {
    fn nodes(&self) -> &'a [StorageNode] {
        &self.document.sections.storage
    }

    /// What lies directly on something.
    fn above(&self, id: &Id) -> impl Iterator<Item = &'a StorageNode> {
        self.nodes().iter().filter(move |node| node.on().contains(id))
    }

    /// What is written to this, if an image is: directly, or through the file system on it.
    fn image_of(&self, device: &Id) -> Option<&'a Id> {
        let mut images = self.document.sections.images.iter();
        let is_made = |maker: &String| self.document.is_queued(maker);
        let found = images.find(|(_, image)| {
            if !image.made_by.as_ref().is_none_or(is_made) {
                return false;
            }
            let fs = self.document.storage(&image.target).and_then(StorageNode::as_fs);
            fs.map_or(&image.target, |fs| &fs.on) == device
        });
        found.map(|(id, _)| id)
    }

    fn fact(&self, id: &Id) -> Option<&'a DiskFacts> {
        self.binding.get(id).copied()
    }
}

/// Everything that something lies on, down to the disks, and itself.
fn below(document: &Document, id: &Id) -> BTreeSet<Id> {
    let (mut waiting, mut seen) = (vec![id.clone()], BTreeSet::new());
    while let Some(id) = waiting.pop() {
        if let Some(node) = document.storage(&id).filter(|_| !seen.contains(&id)) {
            waiting.extend(node.on().iter().cloned());
        }
        seen.insert(id);
    }
    seen
}

/// The disks that something lies on, through everything between.
pub fn disks_below(document: &Document, id: &Id) -> BTreeSet<Id> {
    let mut all = below(document, id);
    all.retain(|id| document.sections.disks.get(id).is_some());
    all
}

/// The disks that carry what is mounted there.
pub fn disks_of_mount(document: &Document, mount: &str) -> BTreeSet<Id> {
    let nodes = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    let mounted = nodes.filter(|fs| fs.mount.as_deref() == Some(mount));
    mounted.flat_map(|fs| disks_below(document, &fs.id)).collect()
}

/// The disks of a document that have the system afterwards, all or one of them. Without a root of its
/// own a whole system comes as an image.
pub fn disks_of_root(document: &Document) -> BTreeSet<Id> {
    let mounted = disks_of_mount(document, "/");
    if !mounted.is_empty() {
        return mounted;
    }
    document.sections.images.iter().map(|(_, image)| image.target.clone()).collect()
}

/// Sizes of things by id, as they become known.
type Sizes = BTreeMap<Id, u64>;

#[cfg(test)]
mod tests;
