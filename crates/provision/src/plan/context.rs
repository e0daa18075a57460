//! The read-only context of every planner: the inputs, and the state of the machine derived from
//! them.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::plugins::PluginStep;
use super::{DiskMetadata, ObservedMachine, disks, is_kept, stack};
use crate::document::{Document, Fs, Id, Image, StorageNode};
use crate::facts::{DiskFacts, Signature, SignaturePlace};
use crate::layout::{DiskPlan, Layout, PartitionPlan, StackPlan, TableChange, Work, derive};
use crate::steps::FsLocation;
use crate::steps::stack::Stacks;

/// Everything that planners read. No planner changes it.
pub(super) struct PlanContext<'a> {
    pub(super) document: &'a Document,
    pub(super) layout: &'a Layout,
    pub(super) machine: &'a ObservedMachine,
    pub(super) stacks: Stacks,
    /// The steps of the queued plug-ins.
    pub(super) plugin_steps: Vec<PluginStep>,
    /// Stacked devices that exist as desired.
    existing: BTreeSet<Id>,
    /// Partitions and stacked devices that get a new file system.
    reformatted: BTreeSet<Id>,
}

/// The target of an image or of files.
#[derive(Debug, Clone, Copy)]
pub(super) enum WriteTarget<'a> {
    Part(&'a DiskPlan, &'a PartitionPlan),
    Whole(&'a DiskPlan),
    /// An array, a volume or an encrypted device.
    Device(&'a StackPlan),
}

impl WriteTarget<'_> {
    pub(super) fn id(&self) -> &Id {
        match self {
            Self::Part(_, part) => &part.id,
            Self::Whole(disk) => &disk.id,
            Self::Device(plan) => &plan.id,
        }
    }

    /// `None` for whole disks.
    pub(super) fn place(&self) -> Option<FsLocation> {
        match self {
            Self::Part(disk, part) => {
                let Work::Table(table) = &disk.work else { return None };
                let disk = disk.id.clone();
                let partition = part.id.clone();
                let table = table.clone();
                Some(FsLocation::Partition { disk, table, partition })
            }
            Self::Whole(_) => None,
            Self::Device(plan) => Some(FsLocation::Device(plan.id.clone())),
        }
    }
}

impl<'a> PlanContext<'a> {
    pub(super) fn new(
        document: &'a Document,
        layout: &'a Layout,
        machine: &'a ObservedMachine,
        plugin_steps: Vec<PluginStep>,
    ) -> Self {
        let mut context = Self {
            document,
            layout,
            machine,
            stacks: Stacks::new(layout, &document.sections.storage),
            plugin_steps,
            existing: BTreeSet::new(),
            reformatted: BTreeSet::new(),
        };
        // A node is behind the nodes that it lies on, so their state is known.
        for node in &context.stacks.nodes {
            if stack::is_existing(&context, node) {
                context.existing.insert(node.id.clone());
            }
        }
        let mut reformatted = disks::reformatted(&context);
        reformatted.extend(stack::reformatted(&context));
        context.reformatted = reformatted.into_iter().cloned().collect();
        context
    }

    pub(super) fn disk_facts(&self, disk: &DiskPlan) -> Option<&'a DiskFacts> {
        self.machine.disk_facts(disk)
    }

    pub(super) fn metadata(&self, disk: &DiskPlan) -> Option<&'a DiskMetadata> {
        self.machine.disks.metadata.get(&disk.kernel_name)
    }

    /// The metadata of all disks. The journal of a run is on one of its disks.
    pub(super) fn all_metadata(&self) -> impl Iterator<Item = &'a DiskMetadata> + use<'a> {
        self.machine.disks.metadata.values()
    }

    /// The plan of a stacked device or of a file system.
    pub(super) fn planned(&self, id: &Id) -> Option<&'a StackPlan> {
        self.layout.stack.iter().find(|plan| plan.id == *id)
    }

    pub(super) fn file_system(&self, id: &Id) -> Option<&'a Fs> {
        self.document.storage(id).and_then(StorageNode::as_fs)
    }

    /// Whether a partition or a stacked device exists as desired.
    pub(super) fn exists(&self, id: &Id) -> bool {
        let part = self.layout.partition(id).map(|(disk, part)| is_kept(disk, part));
        part.unwrap_or_else(|| self.existing.contains(id))
    }

    /// The signatures in an existing partition. The plan may give the partition another number.
    pub(super) fn signatures_in(
        &self,
        disk: &DiskPlan,
        part: &PartitionPlan,
    ) -> impl Iterator<Item = &'a Signature> + use<'a> {
        let is_it = |change: &&TableChange| {
            change.after.as_ref().is_some_and(|after| after.partuuid == Some(part.partuuid))
        };
        let before = disk.changes.iter().find(is_it).and_then(|change| change.before.as_ref());
        let place = before.map(|before| SignaturePlace::Partition(before.number));
        let signatures = self.disk_facts(disk).map_or(&[][..], |facts| &facts.signatures);
        signatures.iter().filter(move |signature| Some(signature.place) == place)
    }

    /// Whether a partition or a stacked device gets a new file system.
    pub(super) fn is_reformatted(&self, place: &Id) -> bool {
        self.reformatted.contains(place)
    }

    /// Whether an earlier run of this transaction completed the disk.
    pub(super) fn is_closed(&self, disk: &DiskPlan) -> bool {
        let marker = self.metadata(disk).and_then(|metadata| metadata.marker.as_ref());
        (self.document.adopts_tables() && !matches!(disk.work, Work::Image(_)))
            || marker.is_some_and(|marker| marker.is_complete && marker.txn == self.document.txn)
    }

    /// The GUID of the in-progress table of a disk.
    pub(super) fn disk_guid(&self, disk: &DiskPlan) -> Uuid {
        derive(self.document.txn, self.document.node_id(), &disk.id)
    }

    /// The partition or stacked device with this id.
    pub(super) fn place(&self, id: &Id) -> Option<WriteTarget<'a>> {
        let part = self.layout.partition(id).map(|(disk, part)| WriteTarget::Part(disk, part));
        part.or_else(|| {
            self.stacks.node(id)?;
            self.planned(id).map(WriteTarget::Device)
        })
    }

    /// The target of an image, directly or through its file system.
    pub(super) fn target(&self, image: &Image) -> Option<WriteTarget<'a>> {
        let fs = self.file_system(&image.target);
        let place = self.place(fs.map_or(&image.target, |fs| &fs.on));
        let whole = || self.layout.disks.iter().find(|disk| disk.id == image.target);
        place.or_else(|| whole().map(WriteTarget::Whole))
    }

    /// Whether any part of a target is on a disk.
    pub(super) fn is_on(&self, target: WriteTarget<'_>, disk: &Id) -> bool {
        match target {
            WriteTarget::Part(on, _) | WriteTarget::Whole(on) => on.id == *disk,
            WriteTarget::Device(plan) => self.stacks.disks_below(&plan.id).contains(disk),
        }
    }
}
