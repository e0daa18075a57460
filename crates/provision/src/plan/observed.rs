//! The observed state of a machine: every input of a plan besides the document.
//!
//! The device crate fills these values in. Reading devices, servers and firmware does not belong
//! here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_engine::plugin::Plugin;

use crate::boot_entries::Variables;
use crate::diagnostic::ProvisionDiagnostic;
use crate::digest::Digest;
use crate::document::{Id, Secrets};
use crate::facts::{DiskFacts, Facts};
use crate::layout::DiskPlan;
use crate::manifest::Manifest;
use crate::metadata_area::Marker;
use crate::steps::{files, images, plugin, stack};
use crate::volume::Contents;

/// A machine, its image sources and its programs, as observed before planning.
#[derive(Debug, Default)]
pub struct ObservedMachine {
    pub facts: Facts,
    pub disks: ObservedDisks,
    pub images: ObservedImages,
    pub boot: ObservedBoot,
    pub programs: AvailablePrograms,
    /// Planning reads only whether a secret is known, never its value.
    pub secrets: Secrets,
    /// Problems found while the machine was observed. Each refuses the plan.
    pub diagnostics: Vec<ProvisionDiagnostic>,
    /// The machine is another one, known by its facts only. Its plan cannot be applied.
    pub is_elsewhere: bool,
}

/// The contents of the disks beyond [`Facts`].
#[derive(Debug, Default)]
pub struct ObservedDisks {
    /// The hoist metadata of each disk, by kernel name.
    pub metadata: BTreeMap<String, DiskMetadata>,
    /// Contents of existing FAT volumes, by partition.
    pub contents: BTreeMap<Id, Contents>,
    /// BIOS boot partitions that hold the desired GRUB and are loaded by the first sector of their
    /// disk.
    pub grub: BTreeSet<Id>,
}

/// The images of the document, as their sources offer them.
#[derive(Debug, Default)]
pub struct ObservedImages {
    /// Chunk manifests, with the digests of their bytes.
    pub manifests: BTreeMap<Id, (Digest, Manifest)>,
    /// Virtual disk sizes of qcow2 images.
    pub virtual_sizes: BTreeMap<Id, u64>,
    /// Sizes of uncompressed images, if their servers announce them.
    pub plain_sizes: BTreeMap<Id, u64>,
    /// The first MiB of each image of a whole disk.
    pub beginnings: BTreeMap<Id, Vec<u8>>,
    /// Images that no source offers, with the reason.
    pub unreachable: BTreeMap<Id, String>,
    /// Images whose sources did not answer, with the reason.
    pub unanswered: BTreeMap<Id, String>,
    /// Sources that failed, with the reason, of images with another source that answered.
    pub silent: Vec<(Id, String)>,
}

/// Inputs of the boot planner.
#[derive(Debug, Default)]
pub struct ObservedBoot {
    /// Sizes of boot files to fetch, by digest, if their servers announce them.
    pub file_sizes: BTreeMap<String, u64>,
    /// Boot files whose sources did not answer, with the reason.
    pub unanswered: Vec<String>,
    /// The boot variables of UEFI firmware. `None` without efivarfs.
    pub variables: Option<Variables>,
}

/// Programs that steps can call on this machine.
#[derive(Debug, Default)]
pub struct AvailablePrograms {
    /// Installed tools for file systems and stacks.
    pub tools: BTreeSet<String>,
    /// Usable plug-ins. Each describes its own needs and steps.
    pub plugins: Vec<Arc<Plugin>>,
    /// One reason for each plug-in that cannot be used.
    pub unusable: Vec<String>,
}

/// The contents of the hoist metadata area of a disk: its marker, and the receipts of its journal.
#[derive(Debug, Clone, Default)]
pub struct DiskMetadata {
    pub marker: Option<Marker>,
    /// Receipts of written images.
    pub images: Vec<images::Receipt>,
    /// Receipts of written files.
    pub files: Vec<files::Receipt>,
    /// Receipts of created arrays, volumes, encrypted devices and their file systems.
    pub stacks: Vec<stack::Receipt>,
    /// Receipts of plug-in steps.
    pub plugins: Vec<plugin::Receipt>,
}

impl ObservedMachine {
    pub(super) fn disk_facts(&self, disk: &DiskPlan) -> Option<&DiskFacts> {
        self.facts.disks.iter().find(|facts| facts.kernel_name == disk.kernel_name)
    }
}
