//! Stack nodes as data: arrays, volume groups, logical volumes and encrypted devices, with the
//! programs that create and assemble them.

pub mod programs;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::digest::Digest;
use crate::document::{Id, SecretRef, StorageNode, Vg};
use crate::layout::{Layout, StackPlan, TablePlan, Work};

/// A node of a stack, on partitions or on other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackNode {
    pub id: Id,
    pub on: Vec<Id>,
    /// Bytes that the nodes above need.
    pub size: u64,
    pub uuid: Uuid,
    pub what: StackKind,
    /// The program that creates the node, without the devices, which are its last arguments.
    pub program: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackKind {
    Md,
    Pv,
    Vg { name: String },
    Lv { group: String, name: String },
    Luks { key: SecretRef },
}

/// The journal entry of a created node. It is the only evidence of nodes above a stopped stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub made: Id,
    pub task: Digest,
}

impl StackNode {
    /// Nothing for partitions and file systems.
    pub fn new(plan: &StackPlan, node: &StorageNode, group: Option<&Vg>) -> Option<Self> {
        let StackPlan { id, on, size, uuid, .. } = plan;
        let (what, program) = match node {
            StorageNode::Md(md) => (StackKind::Md, programs::array(md, *uuid)),
            StorageNode::Pv(pv) => (StackKind::Pv, programs::physical(pv, *uuid)),
            StorageNode::Vg(vg) => {
                (StackKind::Vg { name: vg.name().to_owned() }, programs::group(vg.name()))
            }
            StorageNode::Lv(lv) => {
                let group = group?.name().to_owned();
                let name = lv.name().to_owned();
                let program = programs::volume(&group, &name, *size);
                (StackKind::Lv { group, name }, program)
            }
            StorageNode::Luks(luks) => {
                (StackKind::Luks { key: luks.key.clone() }, programs::sealed(luks, *uuid))
            }
            StorageNode::Part(_) | StorageNode::Fs(_) => return None,
        };
        let id = id.clone();
        let on = on.clone();
        Some(Self { id, on, size: *size, uuid: *uuid, what, program })
    }

    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }

    pub fn tool(&self) -> &'static str {
        match self.what {
            StackKind::Md => "mdadm",
            StackKind::Pv | StackKind::Vg { .. } | StackKind::Lv { .. } => "lvm",
            StackKind::Luks { .. } => "cryptsetup",
        }
    }

    /// The value of `hoist agent image --with` for the drivers of the node.
    pub fn drivers(&self) -> &'static str {
        match self.what {
            StackKind::Md => "md",
            StackKind::Pv | StackKind::Vg { .. } | StackKind::Lv { .. } => "dm",
            StackKind::Luks { .. } => "dm,crypt",
        }
    }
}

/// All stack nodes of a run.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    /// The nodes, each behind the nodes that it lies on.
    pub nodes: Vec<StackNode>,
    /// The disks and tables of partitions.
    pub parts: BTreeMap<Id, (Id, TablePlan)>,
    /// The disks below each node.
    below: BTreeMap<Id, BTreeSet<Id>>,
}

impl Stacks {
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
            StackNode::new(plan, node, group)
        });
        let mut parts = BTreeMap::new();
        for disk in &layout.disks {
            let Work::Table(table) = &disk.work else { continue };
            let of_disk = table.partitions.iter();
            parts.extend(of_disk.map(|p| (p.id.clone(), (disk.id.clone(), table.clone()))));
        }
        let nodes: Vec<StackNode> = nodes.collect();
        let mut below: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
        // The disks of each node are collected once: the number of paths is exponential.
        for node in &nodes {
            let mut disks = BTreeSet::new();
            for on in &node.on {
                disks.extend(parts.get(on).map(|(disk, _): &(Id, _)| disk.clone()));
                disks.extend(below.get(on).into_iter().flatten().cloned());
            }
            below.insert(node.id.clone(), disks);
        }
        Self { nodes, parts, below }
    }

    pub fn node(&self, id: &Id) -> Option<&StackNode> {
        self.nodes.iter().find(|node| node.id == *id)
    }

    /// The disks below a node.
    pub fn disks_below(&self, id: &Id) -> &BTreeSet<Id> {
        static NONE: BTreeSet<Id> = BTreeSet::new();
        self.below.get(id).unwrap_or(&NONE)
    }
}

/// The device-mapper name of a volume: a `-` within a name is doubled.
pub fn map_of(group: &str, volume: &str) -> String {
    format!("{}-{}", group.replace('-', "--"), volume.replace('-', "--"))
}
