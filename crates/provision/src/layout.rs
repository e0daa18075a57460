//! The layout of the disks: for each disk its table before and after, the stacks on it in the order
//! of their creation, the destroyed signatures, and the writable ranges.
//!
//! A layout is a function of the document, the bound disks and the facts. Forbidden layouts are
//! refused here with all reasons at once, before any disk is opened.

mod contents;
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
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::storage::in_order;
use crate::document::{Document, Id, StorageNode};
use crate::facts::{DiskFacts, Facts, Signature};

pub use guid::{derive, type_of};
pub use stack::{EXTENT, LUKS_HEADER, MD_DATA_OFFSET};
pub use table::{ALIGN, SLACK};

/// The layout of all disks of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    pub disks: Vec<DiskPlan>,
    /// The nodes above the partitions. Each is behind the nodes that it lies on.
    pub stack: Vec<StackPlan>,
}

/// The plan for one disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskPlan {
    pub id: Id,
    /// The kernel name at the time of planning. The run compares the identity again when it opens
    /// the disk.
    pub kernel_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    pub size: u64,
    pub sector: u32,
    pub work: Work,
    /// The differences between the old and the new table, by position.
    pub changes: Vec<TableChange>,
    /// Signatures that the run destroys.
    pub destroys: Vec<Signature>,
    /// Holders of the disk that are stopped first, by kernel name.
    pub tears_down: Vec<String>,
    /// The only ranges that may be written.
    pub writable: Vec<Range<u64>>,
}

/// The work on a whole disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The disk has, or gets, this table.
    Table(TablePlan),
    /// An image is written over the whole disk.
    Image(Id),
    /// The whole disk is erased.
    Erase,
    /// No work, except that signatures are destroyed.
    None,
}

impl Work {
    /// Whether nothing of the former contents remains.
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

/// An entry of the planned table. All numbers are in bytes.
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
    /// The partition exists, and its contents are not touched.
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
pub struct TableChange {
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
    /// The same partition at the same place, with another name, type or number. Its contents stay.
    Renamed,
    /// The same partition at the same start, with another size. Its contents are lost.
    Recreated,
    Deleted,
}

impl Difference {
    /// Whether the partition exists, and its contents stay.
    pub fn keeps_contents(self) -> bool {
        matches!(self, Self::Kept | Self::Renamed)
    }
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

/// A node above the partitions. Its details are in the node of the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackPlan {
    pub id: Id,
    pub kind: String,
    pub on: Vec<Id>,
    /// Usable bytes.
    pub size: u64,
    /// The UUID, for kinds that have one.
    pub uuid: Uuid,
    /// The node exists, and stays.
    pub retained: bool,
    /// The node exists as desired, from an earlier run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_there: bool,
    /// The image that brings the contents. The node is not created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Id>,
}

impl Layout {
    /// Whether all tables are as desired, and nothing is destroyed.
    pub fn is_settled(&self) -> bool {
        self.disks.iter().all(|disk| {
            let same = |change: &TableChange| change.what == Difference::Kept;
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
pub fn plan(document: &Document, facts: &Facts) -> Result<Layout, Vec<ProvisionDiagnostic>> {
    let binding = bind(document, facts)?;
    lay_out(document, &binding, facts)
}

/// The layout, or every reason against it.
pub fn lay_out(
    document: &Document,
    binding: &Binding<'_>,
    facts: &Facts,
) -> Result<Layout, Vec<ProvisionDiagnostic>> {
    let Some(ordered) = in_order(&document.sections.storage) else {
        let what = "some nodes lie on each other in a circle";
        return Err(vec![ProvisionDiagnostic::new(Code::Contradiction, "storage", what)]);
    };
    let context = Context { document, binding, facts };
    let mut disks = Vec::new();
    let mut found = Vec::new();
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

/// The inputs of a layout.
struct Context<'a> {
    document: &'a Document,
    binding: &'a Binding<'a>,
    facts: &'a Facts,
}

impl<'a> Context<'a> {
    fn nodes(&self) -> &'a [StorageNode] {
        &self.document.sections.storage
    }

    /// The nodes that lie directly on a node or a disk.
    fn nodes_on(&self, id: &Id) -> impl Iterator<Item = &'a StorageNode> {
        self.nodes().iter().filter(move |node| node.on().contains(id))
    }

    /// The image that is written to a node: directly, or through the file system on it.
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

/// A node and all nodes below it, down to the disks.
fn below(document: &Document, id: &Id) -> BTreeSet<Id> {
    let mut waiting = vec![id.clone()];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if let Some(node) = document.storage(&id).filter(|_| !seen.contains(&id)) {
            waiting.extend(node.on().iter().cloned());
        }
        seen.insert(id);
    }
    seen
}

/// The disks below a node.
pub fn disks_below(document: &Document, id: &Id) -> BTreeSet<Id> {
    let mut all = below(document, id);
    all.retain(|id| document.sections.disks.get(id).is_some());
    all
}

/// The disks below the file system with this mount point.
pub fn disks_of_mount(document: &Document, mount: &str) -> BTreeSet<Id> {
    let nodes = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    let mounted = nodes.filter(|fs| fs.mount.as_deref() == Some(mount));
    mounted.flat_map(|fs| disks_below(document, &fs.id)).collect()
}

/// The disks that hold the installed system. Without a file system mounted at `/`, the system comes
/// as an image of a whole disk.
pub fn disks_of_root(document: &Document) -> BTreeSet<Id> {
    let mounted = disks_of_mount(document, "/");
    if !mounted.is_empty() {
        return mounted;
    }
    document.sections.images.iter().map(|(_, image)| image.target.clone()).collect()
}

/// Sizes of nodes by id, as far as they are known.
type Sizes = BTreeMap<Id, u64>;

#[cfg(test)]
mod tests;
