//! What there is: the machine, what hoist left on its disks, and the lists of images.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::action::{Cancel, Secrets as _};
use hoist_engine::record::{End, Record};
use serde::de::DeserializeOwned;

use super::{Given, Notes, Seen, boot, drive, is_kept, laid_out};
use crate::actions::boot::{MAX_FILE, has_grub};
use crate::actions::chain;
use crate::actions::disks::find_tool;
use crate::actions::{files, images};
use crate::bind::bind;
use crate::device::ReadIo;
use crate::device::gap::{Gap, GapJournal, Marker};
use crate::device::probe::Machine;
use crate::device::table::IN_PROGRESS;
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Compression, Document, FsKind, Id, Image, ImageFormat};
use crate::facts::DiskFacts;
use crate::fat::{Contents, ReadOnly, Volume};
use crate::images::chunks::MAX_MANIFEST;
use crate::images::{
    Digest, ImageError, Manifest, Origin, beginning, is_endless, size_if_plain, virtual_size,
};
use crate::layout::{DiskPlan, PartitionPlan};

/// Programs that stacks and file systems are made and grown with.
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

/// What is given, and for how long it is waited.
type Until<'a> = (&'a Given, &'a Cancel);

/// Looks at everything that a decision is made from. Nothing is changed.
pub fn look(document: &Document, machine: &Machine, given: &Given) -> Seen {
    look_until(document, machine, given, &Cancel::default())
}

/// As [`look`], but whoever is waited for then is not waited for any longer. What was not seen is told
/// as what cannot be reached.
pub fn look_until(document: &Document, machine: &Machine, given: &Given, cancel: &Cancel) -> Seen {
    let probed = machine.probe();
    let secrets = given.secrets.clone();
    let (plugins, unusable) = (given.plugins.clone(), given.unusable.clone());
    let mut seen = Seen { facts: probed.facts, secrets, plugins, unusable, ..Seen::default() };
    // What keeps disks from being found is told by whoever decides.
    let binding = bind(document, &seen.facts).unwrap_or_default();
    let names: BTreeSet<String> = binding.values().map(|disk| disk.kernel_name.clone()).collect();
    for disk in seen.facts.disks.iter().filter(|disk| names.contains(&disk.kernel_name)) {
        match notes(disk, machine) {
            Ok(notes) => {
                seen.notes.insert(disk.kernel_name.clone(), notes);
            }
            Err(error) => {
                let what = format!("disk `{}` cannot be read: {error}", disk.kernel_name);
                seen.troubles.push(Diagnostic::new(Code::NoDisk, "disks", what));
            }
        }
    }
    if document.is_queued(images::NAME) {
        for (id, image) in document.sections.images.iter() {
            let mut receipts = seen.notes.values().flat_map(|notes| &notes.receipts);
            // What was written once is not asked for to see that it is still there.
            let is_new = image.made_by.is_none() && !receipts.any(|one| one.image == *id);
            if is_new && image.format == ImageFormat::Raw {
                let is_stream = image.manifest.is_none();
                let reads = is_stream && image.compression == Compression::Detect;
                match origin(image, image.sources.clone(), (given, cancel)).look(reads) {
                    Ok(looked) if is_stream => {
                        let is_known = image.size.is_some() || image.digest.is_some();
                        if is_endless(looked, image.compression) && !is_known {
                            seen.troubles.push(endless(id));
                        }
                        let size = size_if_plain(looked, image.compression);
                        seen.plain_sizes.extend(size.map(|size| (id.clone(), size)));
                    }
                    Ok(_) => {}
                    Err(error) => drop(seen.absent.insert(id.clone(), chain(&error))),
                }
            }
            match manifest(image, (given, cancel)) {
                None => {}
                Some(Ok(manifest)) => {
                    seen.manifests.insert(id.clone(), manifest);
                }
                Some(Err(reason)) => seen.troubles.push(unreadable(id, &reason)),
            }
            if image.format == ImageFormat::Qcow2 {
                match virtual_size(&origin(image, image.sources.clone(), (given, cancel))) {
                    Ok(size) => drop(seen.virtual_sizes.insert(id.clone(), size)),
                    Err(error) => seen.troubles.push(no_qcow2(id, &error)),
                }
            }
            let is_of_a_disk = document.sections.disks.get(&image.target).is_some();
            if is_new && is_of_a_disk && !seen.absent.contains_key(id) {
                begins(id, image, &mut seen, (given, cancel));
            }
        }
    }
    volumes(document, &mut seen, machine, (given, cancel));
    seen.variables = match machine.efivars().read() {
        Ok(variables) => variables,
        Err(error) => {
            let told = Diagnostic::new(Code::Firmware, "boot.order", chain(&error));
            let is_asked = document.is_queued("boot") && document.sections.boot.is_some();
            seen.troubles.extend(is_asked.then_some(told));
            None
        }
    };
    seen.troubles.extend(unmountable(document));
    seen.tools =
        TOOLS.into_iter().filter(|tool| find_tool(tool).is_some()).map(str::to_owned).collect();
    seen
}

/// What an image of a whole disk begins with says whether it can be started, before it is written.
fn begins(id: &Id, image: &Image, seen: &mut Seen, given: Until<'_>) {
    let list = seen.manifests.get(id).map(|(_, list)| list);
    if list.is_none() && image.manifest.is_some() {
        return;
    }
    let origin = origin(image, image.sources.clone(), given);
    match beginning(&origin, image.format, image.compression, list) {
        Ok(first) => seen.beginnings.extend(first.map(|first| (id.clone(), first))),
        // That it is no image of this format is told already.
        Err(ImageError::Qcow2(_) | ImageError::Source(_)) => {}
        Err(error) => {
            let code = error.code().unwrap_or(Code::Unreachable);
            let told = Diagnostic::new(code, format!("images.{id}"), chain(&error));
            seen.troubles.push(told.hint("nothing was written"));
        }
    }
}

/// File systems that files are put into, and that this kernel does not know. One that cannot be asked
/// knows them all.
fn unmountable(document: &Document) -> Vec<Diagnostic> {
    if !document.is_queued(files::NAME) {
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
        let what = format!("files are to be put into `{id}`, and this kernel does not know {kind}");
        let hint = format!("make the image with `hoist agent image --with {kind}`");
        Diagnostic::new(Code::MissingTool, format!("storage.{id}"), what).hint(hint)
    };
    unknown.into_iter().map(say).collect()
}

/// What is in the volumes that this is about, as far as they are there. What cannot be read is as if
/// it were not there, and is made anew.
fn volumes(document: &Document, seen: &mut Seen, machine: &Machine, given: Until<'_>) {
    let Ok((document, layout)) = laid_out(document, seen) else { return };
    if let Some((disk, part, task)) = drive::wanted(&document, &layout) {
        let most = task.files.values().map(|stored| stored.size).max().unwrap_or(0);
        let found = inside(machine, disk, part, |volume| {
            let paths = volume.paths().ok()?;
            volume.contents(paths.iter().map(String::as_str), most).ok()
        });
        seen.contents.extend(found.map(|found| (part.id.clone(), found)));
    }
    let Ok(Some(wanted)) = boot::wanted(&document, &layout, &seen.facts) else { return };
    let found = inside(machine, wanted.disk, wanted.volume, |volume| {
        volume.contents(wanted.files.keys().map(String::as_str), MAX_FILE).ok()
    });
    seen.contents.extend(found.map(|found| (wanted.volume.id.clone(), found)));
    if let Some((part, boot, core)) = &wanted.grub {
        let io = ReadIo::open(&machine.device(&wanted.disk.kernel_name), wanted.disk.sector);
        let has = io.is_ok_and(|io| has_grub(&io, &part.range(), boot, core).unwrap_or(false));
        seen.grub.extend((has && is_kept(wanted.disk, part)).then(|| part.id.clone()));
    }
    sizes(&wanted, seen, given);
}

/// Of what is not there yet: what nobody has is told before anything is written.
fn sizes(wanted: &boot::Wanted<'_>, seen: &mut Seen, (given, cancel): Until<'_>) {
    let contents = seen.contents.get(&wanted.volume.id);
    let stored: BTreeMap<String, u64> = contents
        .iter()
        .flat_map(|contents| contents.files.values())
        .map(|stored| (stored.digest.to_string(), stored.size))
        .collect();
    seen.sizes.extend(stored);
    let has_grub = wanted.grub.as_ref().is_some_and(|(part, ..)| seen.grub.contains(&part.id));
    let code: Vec<_> = wanted.grub.iter().flat_map(|(_, boot, core)| [boot, core]).collect();
    for file in wanted.fetched() {
        let digest = file.digest.to_string();
        if seen.sizes.contains_key(&digest) || (has_grub && code.contains(&file)) {
            continue;
        }
        let (trust, cancel) = (given.trust.clone(), cancel.clone());
        match (Origin { trust, cancel, ..Origin::new(file.sources.clone()) }).size() {
            Ok(size) => seen.sizes.extend(size.map(|size| (digest, size))),
            Err(error) => {
                let told = Diagnostic::new(Code::Unreachable, "boot.files", chain(&error));
                seen.troubles.push(told.hint("nothing was written; see that it is there"));
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

fn endless(id: &Id) -> Diagnostic {
    let what = "its server does not say how long it is, so that nobody could tell if it is cut off";
    Diagnostic::new(Code::Missing, format!("images.{id}"), what).hint("give its `size` or `digest`")
}

fn unreadable(id: &Id, reason: &str) -> Diagnostic {
    Diagnostic::new(Code::BadValue, format!("images.{id}.manifest"), reason)
}

fn origin(image: &Image, urls: Vec<String>, (given, cancel): Until<'_>) -> Origin {
    let token = image.token.as_ref().and_then(|token| given.secrets.get(token.name()).ok());
    let (token, trust, cancel) = (token.map(Into::into), given.trust.clone(), cancel.clone());
    Origin { token, trust, cancel, ..Origin::new(urls) }
}

/// With a list, the digest of the document is that of the list, which vouches for every chunk.
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

/// What will never be written is told now.
fn no_qcow2(id: &Id, error: &ImageError) -> Diagnostic {
    let code = match error {
        ImageError::Qcow2(_) => Code::Unsupported,
        _ => Code::Unreachable,
    };
    Diagnostic::new(code, format!("images.{id}"), chain(error))
}

fn notes(disk: &DiskFacts, machine: &Machine) -> Result<Notes, Box<dyn std::error::Error>> {
    let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.logical_sector)?;
    let Some(gap) = gap(disk) else { return Ok(Notes::default()) };
    let marker = Marker::read(&io, &gap)?;
    // What cannot be read is no reason to stop: it is as if nothing had been done.
    let records = GapJournal::peek(&io, &gap).ok().flatten().unwrap_or_default();
    Ok(Notes {
        marker,
        receipts: receipts(&records),
        filed: receipts(&records),
        built: receipts(&records),
        plugins: receipts(&records),
    })
}

/// Where notes are on a disk, if there is room for them.
pub(super) fn gap(disk: &DiskFacts) -> Option<Gap> {
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    let others = partitions.filter(|part| part.type_guid != Some(IN_PROGRESS));
    Gap::before(others.map(|part| part.start).min()).ok()
}

/// What steps said that they have done, in this run or before it.
pub(super) fn receipts<R: DeserializeOwned>(records: &[Record]) -> Vec<R> {
    let values = records.iter().flat_map(|record| match record {
        Record::Ran { end: End::Done { receipt, .. }, .. } => vec![receipt],
        Record::Carried { made, .. } => made.iter().map(|made| &made.receipt).collect(),
        _ => Vec::new(),
    });
    values.filter_map(|value| R::deserialize(value).ok()).collect()
}
