//! Observing everything that a plan depends on: the machine, the metadata on its disks, and the
//! images.

use std::collections::{BTreeMap, BTreeSet};

use hoist_diagnostic::chain;
use hoist_engine::action::{Cancel, Secrets as _};
use hoist_engine::record::{End, Record};
use hoist_provision::bind::bind;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::digest::Digest;
use hoist_provision::document::{Compression, Document, FsKind, Id, Image, ImageFormat};
use hoist_provision::facts::DiskFacts;
use hoist_provision::layout::{DiskPlan, PartitionPlan};
use hoist_provision::manifest::{MAX_MANIFEST, Manifest};
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::partition_table::IN_PROGRESS;
use hoist_provision::plan::{
    AvailablePrograms, DiskMetadata, ObservedMachine, boot, drive, is_kept, lay_out,
};
use hoist_provision::steps::boot::MAX_FILE;
use hoist_provision::steps::{files as filing, images};
use hoist_provision::volume::Contents;
use serde::de::DeserializeOwned;

use crate::actions::boot::has_grub;
use crate::actions::disks::find_tool;
use crate::actions::files;
use crate::fat::{ReadOnly, Volume};
use crate::images::{ImageError, Origin, beginning, is_endless, size_if_plain, virtual_size};
use crate::metadata_area::{DiskJournal, read_marker};
use crate::probe::Machine;
use crate::{ReadIo, RunInputs};

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

/// The inputs of the run, and its cancellation.
type Until<'a> = (&'a RunInputs, &'a Cancel);

/// Reads all inputs of a decision. Nothing is changed.
pub fn observe(document: &Document, machine: &Machine, given: &RunInputs) -> ObservedMachine {
    observe_until(document, machine, given, &Cancel::default())
}

/// As [`observe`], but ends waiting for servers when cancelled. Servers that were not reached by then
/// count as unreachable.
pub fn observe_until(
    document: &Document,
    machine: &Machine,
    given: &RunInputs,
    cancel: &Cancel,
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
    if document.is_queued(images::NAME) {
        for (id, image) in document.sections.images.iter() {
            let mut receipts = seen.disks.metadata.values().flat_map(|notes| &notes.images);
            // Sources of images that are already written are not contacted.
            let is_new = image.made_by.is_none() && !receipts.any(|one| one.image == *id);
            if is_new && image.format == ImageFormat::Raw {
                let is_stream = image.manifest.is_none();
                let reads = is_stream && image.compression == Compression::Detect;
                match origin(image, image.sources.clone(), (given, cancel)).probe(reads) {
                    Ok(probe) if is_stream => {
                        let is_known = image.size.is_some() || image.digest.is_some();
                        if is_endless(probe, image.compression) && !is_known {
                            seen.diagnostics.push(endless(id));
                        }
                        let size = size_if_plain(probe, image.compression);
                        seen.images.plain_sizes.extend(size.map(|size| (id.clone(), size)));
                    }
                    Ok(_) => {}
                    Err(error) => drop(seen.images.unreachable.insert(id.clone(), chain(&error))),
                }
            }
            match manifest(image, (given, cancel)) {
                None => {}
                Some(Ok(manifest)) => {
                    seen.images.manifests.insert(id.clone(), manifest);
                }
                Some(Err(reason)) => seen.diagnostics.push(unreadable(id, &reason)),
            }
            if image.format == ImageFormat::Qcow2 {
                match virtual_size(&origin(image, image.sources.clone(), (given, cancel))) {
                    Ok(size) => drop(seen.images.virtual_sizes.insert(id.clone(), size)),
                    Err(error) => seen.diagnostics.push(no_qcow2(id, &error)),
                }
            }
            let is_of_a_disk = document.sections.disks.get(&image.target).is_some();
            if is_new && is_of_a_disk && !seen.images.unreachable.contains_key(id) {
                begins(id, image, &mut seen, (given, cancel));
            }
        }
    }
    volumes(document, &mut seen, machine, (given, cancel));
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

/// Reads the start of an image of a whole disk, to check before writing whether it can boot.
fn begins(id: &Id, image: &Image, seen: &mut ObservedMachine, given: Until<'_>) {
    let list = seen.images.manifests.get(id).map(|(_, list)| list);
    if list.is_none() && image.manifest.is_some() {
        return;
    }
    let origin = origin(image, image.sources.clone(), given);
    match beginning(&origin, image.format, image.compression, list) {
        Ok(first) => seen.images.beginnings.extend(first.map(|first| (id.clone(), first))),
        // These errors are already reported.
        Err(ImageError::Qcow2(_) | ImageError::Source(_)) => {}
        Err(error) => {
            let code = error.code().unwrap_or(Code::Unreachable);
            let told = ProvisionDiagnostic::new(code, format!("images.{id}"), chain(&error));
            seen.diagnostics.push(told.hint("nothing was written"));
        }
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
fn volumes(document: &Document, seen: &mut ObservedMachine, machine: &Machine, given: Until<'_>) {
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
    let found = inside(machine, wanted.disk, wanted.volume, |volume| {
        volume.contents(wanted.files.keys().map(String::as_str), MAX_FILE).ok()
    });
    seen.disks.contents.extend(found.map(|found| (wanted.volume.id.clone(), found)));
    if let Some((part, boot, core)) = &wanted.grub {
        let io = ReadIo::open(&machine.device(&wanted.disk.kernel_name), wanted.disk.sector);
        let has = io.is_ok_and(|io| has_grub(&io, &part.range(), boot, core).unwrap_or(false));
        seen.disks.grub.extend((has && is_kept(wanted.disk, part)).then(|| part.id.clone()));
    }
    sizes(&wanted, seen, given);
}

/// Sizes of the files still to fetch. A file that no source offers is reported before anything is
/// written.
fn sizes(wanted: &boot::DesiredBoot<'_>, seen: &mut ObservedMachine, (given, cancel): Until<'_>) {
    let contents = seen.disks.contents.get(&wanted.volume.id);
    let stored: BTreeMap<String, u64> = contents
        .iter()
        .flat_map(|contents| contents.files.values())
        .map(|stored| (stored.digest.to_string(), stored.size))
        .collect();
    seen.boot.file_sizes.extend(stored);
    let has_grub =
        wanted.grub.as_ref().is_some_and(|(part, ..)| seen.disks.grub.contains(&part.id));
    let code: Vec<_> = wanted.grub.iter().flat_map(|(_, boot, core)| [boot, core]).collect();
    for file in wanted.fetched() {
        let digest = file.digest.to_string();
        if seen.boot.file_sizes.contains_key(&digest) || (has_grub && code.contains(&file)) {
            continue;
        }
        let trust = given.trust.clone();
        let cancel = cancel.clone();
        match (Origin { trust, cancel, ..Origin::new(file.sources.clone()) }).size() {
            Ok(size) => seen.boot.file_sizes.extend(size.map(|size| (digest, size))),
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

fn endless(id: &Id) -> ProvisionDiagnostic {
    let what =
        "the server reports no size of the image, so a truncated download would go unnoticed";
    ProvisionDiagnostic::new(Code::Missing, format!("images.{id}"), what)
        .hint("set `size` or `digest`")
}

fn unreadable(id: &Id, reason: &str) -> ProvisionDiagnostic {
    ProvisionDiagnostic::new(Code::BadValue, format!("images.{id}.manifest"), reason)
}

fn origin(image: &Image, urls: Vec<String>, (given, cancel): Until<'_>) -> Origin {
    let token = image.token.as_ref().and_then(|token| given.secrets.get(token.name()).ok());
    let token = token.map(Into::into);
    let trust = given.trust.clone();
    let cancel = cancel.clone();
    Origin { token, trust, cancel, ..Origin::new(urls) }
}

/// With a manifest, the digest in the document is that of the manifest, which contains the digest
/// of every chunk.
fn manifest(image: &Image, given: Until<'_>) -> Option<Result<(Digest, Manifest), String>> {
    let url = image.manifest.clone()?;
    let bytes = match origin(image, vec![url], given).read_all(MAX_MANIFEST) {
        Ok(bytes) => bytes,
        Err(error) => return Some(Err(chain(&error))),
    };
    let wanted = image.digest.as_ref().and_then(|digest| digest.parse().ok());
    let manifest = Manifest::parse(&bytes, wanted).map_err(|error| chain(&error));
    Some(manifest.map(|manifest| (Digest::of(&bytes), manifest)))
}

/// An image that cannot be written is reported before the run.
fn no_qcow2(id: &Id, error: &ImageError) -> ProvisionDiagnostic {
    let code = match error {
        ImageError::Qcow2(_) => Code::Unsupported,
        _ => Code::Unreachable,
    };
    ProvisionDiagnostic::new(code, format!("images.{id}"), chain(error))
}

fn notes(disk: &DiskFacts, machine: &Machine) -> Result<DiskMetadata, Box<dyn std::error::Error>> {
    let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.logical_sector)?;
    let Some(gap) = gap(disk) else { return Ok(DiskMetadata::default()) };
    let marker = read_marker(&io, &gap)?;
    // An unreadable journal counts as an empty one.
    let records = DiskJournal::peek(&io, &gap).ok().flatten().unwrap_or_default();
    Ok(DiskMetadata {
        marker,
        images: receipts(&records),
        files: receipts(&records),
        stacks: receipts(&records),
        plugins: receipts(&records),
    })
}

/// The metadata area of a disk, if there is room for one.
pub(crate) fn gap(disk: &DiskFacts) -> Option<MetadataArea> {
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
