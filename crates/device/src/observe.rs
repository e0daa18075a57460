//! Observing everything that a plan depends on: the machine, the metadata on its disks, and the
//! images.

mod sources;

use std::collections::{BTreeMap, BTreeSet};

use hoist_diagnostic::chain;
use hoist_engine::record::{End, Record};
use hoist_provision::bind::bind;
use hoist_provision::boot_entries::Variables;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::digest::Digest;
use hoist_provision::document::{Document, FsKind, Id};
use hoist_provision::facts::{DiskFacts, Facts, Firmware};
use hoist_provision::layout::{DiskPlan, PartitionPlan};
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::partition_table::IN_PROGRESS;
use hoist_provision::plan::{
    AvailablePrograms, DiskMetadata, ObservedBoot, ObservedMachine, boot, drive, is_kept, lay_out,
};
use hoist_provision::steps::boot::MAX_FILE;
use hoist_provision::steps::{files as filing, images};
use hoist_provision::volume::{Contents, StoredFile};
use serde::de::DeserializeOwned;

use crate::actions::boot::has_grub;
use crate::actions::disks::find_tool;
use crate::actions::files;
use crate::fat::{ReadOnly, Volume};
use crate::images::SourceError;
use crate::metadata_area::{DiskJournal, read_marker};
use crate::probe::Machine;
use crate::{ReadIo, RunInputs};

use self::sources::SourceRequests;
pub use self::sources::{SOURCES_TIMEOUT, SourceTimeout};

/// Programs that create and grow stacks and file systems.
const TOOLS: [&str; 11] = [
    "btrfs",
    "cryptsetup",
    "e2fsck",
    "lvm",
    "mdadm",
    "mke2fs",
    "mkfs.btrfs",
    "mkfs.xfs",
    "mkswap",
    "resize2fs",
    "xfs_growfs",
];

/// Reads all inputs of a decision. Nothing is changed.
pub fn observe(document: &Document, machine: &Machine, given: &RunInputs) -> ObservedMachine {
    observe_until(document, machine, given, &SourceTimeout::default())
}

/// As [`observe`], and waits for sources as `timeout` says.
pub fn observe_until(
    document: &Document,
    machine: &Machine,
    given: &RunInputs,
    timeout: &SourceTimeout,
) -> ObservedMachine {
    let probed = machine.probe();
    let secrets = given.secrets.clone();
    let programs = AvailablePrograms {
        plugins: given.plugins.clone(),
        unusable: given.unusable.clone(),
        ..AvailablePrograms::default()
    };
    let mut seen =
        ObservedMachine { facts: probed.facts, secrets, programs, ..ObservedMachine::default() };
    // Errors of binding are reported by the planner.
    let binding = bind(document, &seen.facts).unwrap_or_default();
    let names: BTreeSet<String> = binding.values().map(|disk| disk.kernel_name.clone()).collect();
    for disk in seen.facts.disks.iter().filter(|disk| names.contains(&disk.kernel_name)) {
        match notes(disk, machine) {
            Ok(notes) => {
                seen.disks.metadata.insert(disk.kernel_name.clone(), notes);
            }
            Err(error) => {
                let what = format!("disk `{}` cannot be read: {error}", disk.kernel_name);
                seen.diagnostics.push(ProvisionDiagnostic::new(Code::NoDisk, "disks", what));
            }
        }
    }
    let fetching = SourceRequests::new(given, timeout);
    if document.is_queued(images::NAME) {
        sources::images(document, &mut seen, fetching);
    }
    volumes(document, &mut seen, machine, fetching);
    seen.boot.variables = match machine.efivars().read() {
        Ok(variables) => variables,
        Err(error) => {
            let told = ProvisionDiagnostic::new(Code::Firmware, "boot.order", chain(&error));
            let is_asked = document.is_queued("boot") && document.sections.boot.is_some();
            seen.diagnostics.extend(is_asked.then_some(told));
            None
        }
    };
    seen.diagnostics.extend(unmountable(document));
    seen.programs.tools =
        TOOLS.into_iter().filter(|tool| find_tool(tool).is_some()).map(str::to_owned).collect();
    seen
}

/// A machine that is elsewhere, as far as its facts describe it. Nothing is read: neither this
/// machine nor a server. Programs count as installed, images and files as not yet written, and the
/// firmware has no boot entries.
pub fn elsewhere(facts: Facts, given: &RunInputs) -> ObservedMachine {
    let programs = AvailablePrograms {
        plugins: given.plugins.clone(),
        unusable: given.unusable.clone(),
        tools: TOOLS.into_iter().map(str::to_owned).collect(),
    };
    let has_variables = facts.firmware == Firmware::Uefi;
    let variables = has_variables.then(Variables::default);
    let boot = ObservedBoot { variables, ..ObservedBoot::default() };
    let secrets = given.secrets.clone();
    ObservedMachine {
        facts,
        programs,
        boot,
        secrets,
        is_elsewhere: true,
        ..ObservedMachine::default()
    }
}

/// File systems that receive files and that this kernel does not support. If the kernel cannot be
/// asked, all count as supported.
fn unmountable(document: &Document) -> Vec<ProvisionDiagnostic> {
    if !document.is_queued(filing::NAME) {
        return Vec::new();
    }
    let kinds = document.sections.files.iter().filter_map(|file| {
        let mut all = document.sections.storage.iter();
        let fs = all.find_map(|node| node.as_fs().filter(|fs| fs.id == file.on))?;
        Some((&fs.id, fs.kind))
    });
    let unknown: BTreeMap<&Id, FsKind> =
        kinds.filter(|(_, kind)| !files::is_known(*kind)).collect();
    let say = |(id, kind): (&Id, FsKind)| {
        let kind = kind.as_str();
        let what = format!("cannot write files to `{id}`: this kernel does not support {kind}");
        let hint = format!("make the image with `hoist agent image --with {kind}`");
        ProvisionDiagnostic::new(Code::MissingTool, format!("storage.{id}"), what).hint(hint)
    };
    unknown.into_iter().map(say).collect()
}

/// Reads the contents of the existing boot and config volumes. An unreadable volume counts as
/// missing and is made again.
fn volumes(
    document: &Document,
    seen: &mut ObservedMachine,
    machine: &Machine,
    fetching: SourceRequests<'_>,
) {
    let Ok((document, layout)) = lay_out(document, seen) else { return };
    if let Some((disk, part, task)) = drive::desired(&document, &layout) {
        let most = task.files.values().map(|stored| stored.size).max().unwrap_or(0);
        let found = inside(machine, disk, part, |volume| {
            let paths = volume.paths().ok()?;
            volume.contents(paths.iter().map(String::as_str), most).ok()
        });
        seen.disks.contents.extend(found.map(|found| (part.id.clone(), found)));
    }
    let Ok(Some(wanted)) = boot::desired(&document, &layout, &seen.facts) else { return };
    for (disk, part, grub) in wanted.volumes() {
        let found = inside(machine, disk, part, |volume| {
            volume.contents(wanted.files.keys().map(String::as_str), MAX_FILE).ok()
        });
        seen.disks.contents.extend(found.map(|found| (part.id.clone(), found)));
        if let Some((part, boot, core)) = grub {
            let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.sector);
            let has = io.is_ok_and(|io| has_grub(&io, &part.range(), boot, core).unwrap_or(false));
            seen.disks.grub.extend((has && is_kept(disk, part)).then(|| part.id.clone()));
        }
    }
    sizes(&wanted, seen, fetching);
}

/// Sizes of the files still to fetch. A file that no source offers is reported before anything is
/// written.
fn sizes(wanted: &boot::DesiredBoot<'_>, seen: &mut ObservedMachine, fetching: SourceRequests<'_>) {
    let contents: Vec<_> = wanted
        .volumes()
        .map(|(_, part, _)| seen.disks.contents.get(&part.id).map(|contents| &contents.files))
        .collect();
    let stored = contents.iter().flatten().flat_map(|files| files.values());
    let stored = stored.map(|stored| (stored.digest.to_string(), stored.size));
    seen.boot.file_sizes.extend(stored);
    let is_everywhere = |digest: Digest| {
        let has_it = |files: &BTreeMap<String, StoredFile>| {
            files.values().any(|stored| stored.digest == digest)
        };
        contents.iter().all(|files| files.is_some_and(has_it))
    };
    let has_grub = wanted
        .volumes()
        .all(|(_, _, grub)| grub.is_none_or(|(part, ..)| seen.disks.grub.contains(&part.id)));
    let code: Vec<_> = wanted.grub.iter().flat_map(|(_, boot, core)| [boot, core]).collect();
    for file in wanted.fetched() {
        let digest = file.digest.to_string();
        if is_everywhere(file.digest) || (has_grub && code.contains(&file)) {
            continue;
        }
        match fetching.origin(file.sources.clone()).size() {
            Ok(size) => seen.boot.file_sizes.extend(size.map(|size| (digest, size))),
            Err(error @ SourceError::GivenUp { .. }) => seen.boot.unanswered.push(chain(&error)),
            Err(error) => {
                let told = ProvisionDiagnostic::new(Code::Unreachable, "boot.files", chain(&error));
                seen.diagnostics
                    .push(told.hint("nothing was written; check that the file is there"));
            }
        }
    }
}

fn inside(
    machine: &Machine,
    disk: &DiskPlan,
    part: &PartitionPlan,
    read: impl FnOnce(&Volume<ReadOnly<'_, ReadIo>>) -> Option<Contents>,
) -> Option<Contents> {
    if !is_kept(disk, part) {
        return None;
    }
    let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.sector).ok()?;
    read(&Volume::read_only(&io, part.range()).ok()?)
}

fn notes(disk: &DiskFacts, machine: &Machine) -> Result<DiskMetadata, Box<dyn std::error::Error>> {
    let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.logical_sector)?;
    let Some(area) = area(disk) else { return Ok(DiskMetadata::default()) };
    let marker = read_marker(&io, &area)?;
    // An unreadable journal counts as an empty one.
    let records = DiskJournal::peek(&io, &area).ok().flatten().unwrap_or_default();
    Ok(DiskMetadata {
        marker,
        images: receipts(&records),
        files: receipts(&records),
        stacks: receipts(&records),
        plugins: receipts(&records),
    })
}

/// The metadata area of a disk, if there is room for one.
pub(crate) fn area(disk: &DiskFacts) -> Option<MetadataArea> {
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    let others = partitions.filter(|part| part.type_guid != Some(IN_PROGRESS));
    MetadataArea::before(others.map(|part| part.start).min()).ok()
}

/// The receipts of steps, of this run or an earlier one.
fn receipts<R: DeserializeOwned>(records: &[Record]) -> Vec<R> {
    let values = records.iter().flat_map(|record| match record {
        Record::Ran { end: End::Done { receipt, .. }, .. } => vec![receipt],
        Record::Carried { made, .. } => made.iter().map(|made| &made.receipt).collect(),
        _ => Vec::new(),
    });
    values.filter_map(|value| R::deserialize(value).ok()).collect()
}
