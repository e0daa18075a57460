//! Backups of both ends of a disk: reading, storing in the metadata area, restoring.

use std::io;
use std::ops::Range;

use hoist_provision::backup::{Backup, BackupOrigin, pack, parse, place};
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::read_at::ReadAt;

use super::MetadataAreaError;
use crate::GuardedIo;
use crate::guard::WriteError;

/// Reads both ends of a disk.
pub fn take(disk: &impl ReadAt) -> io::Result<Backup> {
    let length = usize::try_from(Backup::length(disk.size())).expect("it is a MiB");
    let mut head = vec![0; length];
    let mut tail = vec![0; length];
    disk.read_at(0, &mut head)?;
    disk.read_at(disk.size() - length as u64, &mut tail)?;
    Ok(Backup { head, tail })
}

/// Restores the ranges that may be written; the others were never changed. The first copy of the
/// table is written late and `last` after it: as long as the marker in `last` remains, the whole
/// restore can be repeated.
pub fn restore(backup: &Backup, io: &GuardedIo, last: &Range<u64>) -> Result<(), WriteError> {
    let tail = io.size() - backup.tail.len() as u64;
    let head = backup.head.len() as u64;
    let pieces = [
        (tail, &backup.tail, tail..io.size()),
        (0, &backup.head, last.end..head),
        (0, &backup.head, 0..last.start.min(head)),
        (0, &backup.head, last.start..last.end.min(head)),
    ];
    for (at, bytes, piece) in pieces {
        for allowed in io.allowed().iter() {
            let start = allowed.start.max(piece.start);
            let end = allowed.end.min(piece.end);
            if start < end {
                let inside = |place: u64| usize::try_from(place - at).expect("within a MiB");
                io.write_at(start, &bytes[inside(start)..inside(end)])?;
            }
        }
        io.sync()?;
    }
    Ok(())
}

/// Stores a backup, unless it is already stored or does not fit.
pub fn keep(
    io: &GuardedIo,
    area: &MetadataArea,
    before: &BackupOrigin,
    backup: &Backup,
) -> Result<(), MetadataAreaError> {
    let found = read(io, area).map_err(MetadataAreaError::Read)?;
    if found.is_some_and(|(found, _)| found == *before) {
        return Ok(());
    }
    let place = place(area);
    let bytes = pack(before, backup).map_err(MetadataAreaError::Read)?;
    io.zero(place.clone())?;
    if bytes.len() as u64 <= place.end - place.start {
        io.write_at(place.start, &bytes)?;
    }
    Ok(io.sync()?)
}

/// The stored backup, if there is one.
pub fn read(disk: &impl ReadAt, area: &MetadataArea) -> io::Result<Option<(BackupOrigin, Backup)>> {
    let place = place(area);
    if place.is_empty() || place.end > disk.size() {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(place.end - place.start).expect("less than a MiB")];
    disk.read_at(place.start, &mut bytes)?;
    Ok(parse(&bytes, disk.size()))
}
