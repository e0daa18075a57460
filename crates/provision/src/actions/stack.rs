//! What is made of partitions: arrays, volume groups and their volumes, and what is encrypted. Each is
//! described here as data: how it is made, how it is put together again, and by what it is known.

mod programs;
mod raise;

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::action::Cancel;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::device::above::{Above, Kind, map_of};
use crate::document::{Id, SecretRef, Secrets, StorageNode, Vg};
use crate::images::Digest;
use crate::layout::{Layout, StackPlan, TablePlan, Work};

/// Something that lies on partitions, or on others of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: Id,
    pub on: Vec<Id>,
    /// Bytes that it has to have for what lies on it.
    pub size: u64,
    pub uuid: Uuid,
    pub what: What,
    /// What makes it, but for the devices, which come last.
    pub program: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Md,
    Pv,
    Vg { name: String },
    Lv { group: String, name: String },
    Luks { key: SecretRef },
}

/// What is left in the journal: that this very thing was made. Nobody sees what lies on stacks while
/// they are not put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub made: Id,
    pub task: Digest,
}

impl Node {
    /// Nothing for partitions and file systems.
    pub fn new(plan: &StackPlan, node: &StorageNode, group: Option<&Vg>) -> Option<Self> {
        let StackPlan { id, on, size, uuid, .. } = plan;
        let (what, program) = match node {
            StorageNode::Md(md) => (What::Md, programs::array(md, *uuid)),
            StorageNode::Pv(pv) => (What::Pv, programs::physical(pv, *uuid)),
            StorageNode::Vg(vg) => {
                (What::Vg { name: vg.name().to_owned() }, programs::group(vg.name()))
            }
            StorageNode::Lv(lv) => {
                let (group, name) = (group?.name().to_owned(), lv.name().to_owned());
                let program = programs::volume(&group, &name, *size);
                (What::Lv { group, name }, program)
            }
            StorageNode::Luks(luks) => {
                (What::Luks { key: luks.key.clone() }, programs::sealed(luks, *uuid))
            }
            StorageNode::Part(_) | StorageNode::Fs(_) => return None,
        };
        let (id, on) = (id.clone(), on.clone());
        Some(Self { id, on, size: *size, uuid: *uuid, what, program })
    }

    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }

    pub fn tool(&self) -> &'static str {
        match self.what {
            What::Md => "mdadm",
            What::Pv | What::Vg { .. } | What::Lv { .. } => "lvm",
            What::Luks { .. } => "cryptsetup",
        }
    }

    /// What `hoist agent image` is told to put drivers for it into an image.
    pub fn drivers(&self) -> &'static str {
        match self.what {
            What::Md => "md",
            What::Pv | What::Vg { .. } | What::Lv { .. } => "dm",
            What::Luks { .. } => "dm,crypt",
        }
    }

    /// Whether a device of the kernel is this.
    fn is(&self, device: &Above) -> bool {
        match (&self.what, &device.kind) {
            (What::Md, Kind::Array) => true,
            (What::Lv { group, name }, Kind::Map { name: map, uuid }) => {
                uuid.starts_with("LVM-") && *map == map_of(group, name)
            }
            (What::Luks { .. }, Kind::Map { uuid, .. }) => {
                uuid.starts_with(&format!("CRYPT-LUKS2-{}-", self.uuid.simple()))
            }
            _ => false,
        }
    }
}

/// Everything that is made of the partitions of a run.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    /// Each behind what it lies on.
    pub nodes: Vec<Node>,
    /// The disks and tables of partitions.
    parts: BTreeMap<Id, (Id, TablePlan)>,
    /// The disks below each node.
    below: BTreeMap<Id, BTreeSet<Id>>,
    /// With which LUKS is opened.
    secrets: Secrets,
    /// By which its programs are ended.
    cancel: Cancel,
}

impl Stacks {
    #[must_use]
    pub fn for_run(self, secrets: Secrets, cancel: Cancel) -> Self {
        Self { secrets, cancel, ..self }
    }

    pub fn new(layout: &Layout, storage: &[StorageNode]) -> Self {
        let node_of = |id: &Id| storage.iter().find(|node| node.id() == id);
        let nodes = layout.stack.iter().filter_map(|plan| {
            let node = node_of(&plan.id)?;
            let group = match node {
                StorageNode::Lv(lv) => match node_of(&lv.on) {
                    Some(StorageNode::Vg(vg)) => Some(vg),
                    _ => None,
                },
                _ => None,
            };
            Node::new(plan, node, group)
        });
        let mut parts = BTreeMap::new();
        for disk in &layout.disks {
            let Work::Table(table) = &disk.work else { continue };
            let of_disk = table.partitions.iter();
            parts.extend(of_disk.map(|p| (p.id.clone(), (disk.id.clone(), table.clone()))));
        }
        let nodes: Vec<Node> = nodes.collect();
        let mut below: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
        // Each way down is gone once: there may be more of them than anybody can count.
        for node in &nodes {
            let mut disks = BTreeSet::new();
            for on in &node.on {
                disks.extend(parts.get(on).map(|(disk, _): &(Id, _)| disk.clone()));
                disks.extend(below.get(on).into_iter().flatten().cloned());
            }
            below.insert(node.id.clone(), disks);
        }
        Self { nodes, parts, below, ..Self::default() }
    }

    pub fn node(&self, id: &Id) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == *id)
    }

    /// The disks that something lies on, through everything between.
    pub fn disks_below(&self, id: &Id) -> &BTreeSet<Id> {
        static NONE: BTreeSet<Id> = BTreeSet::new();
        self.below.get(id).unwrap_or(&NONE)
    }
}
