//! What there is: the machine, what hoist left on its disks, and the lists of images.

use std::collections::BTreeSet;

use hoist_engine::record::{End, Record};
use serde::Deserialize;

use super::{Notes, Seen};
use crate::actions::chain;
use crate::actions::disks::find_tool;
use crate::actions::images::{self, Receipt};
use crate::bind::bind;
use crate::device::ReadIo;
use crate::device::gap::{Gap, GapJournal, Marker};
use crate::device::probe::Machine;
use crate::device::table::IN_PROGRESS;
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Document, Id, Image};
use crate::facts::DiskFacts;
use crate::images::chunks::MAX_MANIFEST;
use crate::images::{Digest, Manifest, Origin};

/// Programs that file systems are made with.
const TOOLS: [&str; 5] = ["mke2fs", "mkfs.btrfs", "mkfs.vfat", "mkfs.xfs", "mkswap"];

/// Looks at everything that a decision is made from. Nothing is changed.
pub fn look(document: &Document, machine: &Machine) -> Seen {
    let probed = machine.probe();
    let mut seen = Seen { facts: probed.facts, ..Seen::default() };
    let names: BTreeSet<String> = if let Ok(binding) = bind(document, &seen.facts) {
        binding.values().map(|disk| disk.kernel_name.clone()).collect()
    } else {
        // That is told by whoever decides; a disk that could not be read may be why.
        let say = |failure: &crate::device::probe::Failure| {
            Diagnostic::new(Code::NoDisk, "disks", failure.to_string())
        };
        seen.troubles.extend(probed.failures.iter().map(say));
        BTreeSet::new()
    };
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
            match manifest(image) {
                None => {}
                Some(Ok(manifest)) => {
                    seen.manifests.insert(id.clone(), manifest);
                }
                Some(Err(reason)) => seen.troubles.push(unreadable(id, &reason)),
            }
        }
    }
    seen.tools =
        TOOLS.into_iter().filter(|tool| find_tool(tool).is_some()).map(str::to_owned).collect();
    seen
}

fn unreadable(id: &Id, reason: &str) -> Diagnostic {
    Diagnostic::new(Code::BadValue, format!("images.{id}.manifest"), reason)
}

/// With a list, the digest of the document is that of the list, which vouches for every chunk.
fn manifest(image: &Image) -> Option<Result<(Digest, Manifest), String>> {
    let url = image.manifest.clone()?;
    let bytes = match Origin::new(vec![url]).read_all(MAX_MANIFEST) {
        Ok(bytes) => bytes,
        Err(error) => return Some(Err(chain(&error))),
    };
    let wanted = image.digest.as_ref().and_then(|digest| digest.parse().ok());
    let manifest = Manifest::parse(&bytes, wanted).map_err(|error| chain(&error));
    Some(manifest.map(|manifest| (Digest::of(&bytes), manifest)))
}

fn notes(disk: &DiskFacts, machine: &Machine) -> Result<Notes, Box<dyn std::error::Error>> {
    let io = ReadIo::open(&machine.device(&disk.kernel_name), disk.logical_sector)?;
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    let others = partitions.filter(|part| part.type_guid != Some(IN_PROGRESS));
    let Ok(gap) = Gap::before(others.map(|part| part.start).min()) else {
        return Ok(Notes::default());
    };
    let marker = Marker::read(&io, &gap)?;
    // What cannot be read is no reason to stop: it is as if nothing had been done.
    let records = GapJournal::peek(&io, &gap).ok().flatten().unwrap_or_default();
    Ok(Notes { marker, receipts: receipts(&records) })
}

/// What steps said that they have done, in this run or before it.
pub(super) fn receipts(records: &[Record]) -> Vec<Receipt> {
    let values = records.iter().flat_map(|record| match record {
        Record::Ran { end: End::Done { receipt, .. }, .. } => vec![receipt],
        Record::Carried { made, .. } => made.iter().map(|made| &made.receipt).collect(),
        _ => Vec::new(),
    });
    values.filter_map(|value| Receipt::deserialize(value).ok()).collect()
}
