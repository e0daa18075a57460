//! Repair of a volume after an interrupted write. Files whose writes were complete stay; a file or
//! directory that was being written is removed, and its clusters are free again.

use std::io;
use std::ops::Range;

use hoist_provision::read_at::ReadAt as _;

use super::{FatError, MAX_ENTRIES};
use crate::GuardedIo;
use crate::guard::WriteError;

/// Largest table that is checked. A volume of hoist needs less than 1 MiB.
const MAX_TABLE: u64 = 64 << 20;
const ENTRY: usize = 32;
const DELETED: u8 = 0xe5;
const LONG_NAME: u8 = 0x0f;
const LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;

/// The geometry of a volume. Positions are relative to its start.
struct Shape {
    /// Bits of an entry of the table.
    bits: u32,
    tables: Vec<Range<u64>>,
    /// The root directory of FAT12 and FAT16.
    root: Range<u64>,
    /// The first cluster of the root directory of FAT32.
    root_cluster: u32,
    data: u64,
    /// Bytes of a cluster.
    cluster: u64,
    clusters: u32,
    /// The sector with the number of free clusters.
    info: Option<u64>,
    /// The byte whose lowest bit marks an interrupted write.
    flag: u64,
}

impl Shape {
    fn parse(boot: &[u8; 512], size: u64) -> Option<Self> {
        let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let long = |at: usize| word(at) | word(at + 2) << 16;
        let either = |short: u64, long: u64| if short == 0 { long } else { short };
        let sector = word(11);
        let cluster = sector * u64::from(boot[13]);
        let length = either(word(22), long(36)) * sector;
        if cluster == 0 || boot[16] == 0 || !(1..=MAX_TABLE).contains(&length) {
            return None;
        }
        let first = word(14) * sector;
        let table = |number: u64| first + number * length..first + (number + 1) * length;
        let tables: Vec<_> = (0..u64::from(boot[16])).map(table).collect();
        let root_start = tables.last()?.end;
        let data = root_start + (word(17) * ENTRY as u64).next_multiple_of(sector);
        let total = either(word(19), long(32)) * sector;
        let clusters = u32::try_from(total.checked_sub(data)? / cluster).ok()?;
        let bits = match clusters {
            0..4085 => 12,
            4085..65_525 => 16,
            _ => 32,
        };
        let is_whole = (u64::from(clusters) + 2) * u64::from(bits) <= length * 8 && total <= size;
        let is_32 = bits == 32;
        is_whole.then(|| Self {
            bits,
            tables,
            root: root_start..data,
            root_cluster: u32::try_from(long(44)).unwrap_or(0),
            data,
            cluster,
            clusters,
            info: is_32.then(|| word(48) * sector),
            flag: if is_32 { 0x41 } else { 0x25 },
        })
    }

    fn contains(&self, cluster: u32) -> bool {
        (2..self.clusters + 2).contains(&cluster)
    }

    fn end(&self) -> u32 {
        match self.bits {
            12 => 0xfff,
            16 => 0xffff,
            _ => 0x0fff_ffff,
        }
    }

    /// Values from this one on end a chain. The value before marks a bad cluster.
    fn ends(&self) -> u32 {
        self.end() - 7
    }

    fn place(&self, cluster: u32) -> u64 {
        self.data + u64::from(cluster - 2) * self.cluster
    }

    fn entry(&self, table: &[u8], number: u32) -> u32 {
        let number = number as usize;
        let pair = |at: usize| u32::from(table[at]) | u32::from(table[at + 1]) << 8;
        match self.bits {
            12 => pair(number + number / 2) >> (number % 2 * 4) & 0xfff,
            16 => pair(number * 2),
            _ => (pair(number * 4) | pair(number * 4 + 2) << 16) & 0x0fff_ffff,
        }
    }

    fn set_entry(&self, table: &mut [u8], number: u32, value: u32) {
        let number = number as usize;
        let (at, mask, value) = match self.bits {
            12 => {
                let shift = number % 2 * 4;
                (number + number / 2, 0xfff_u32 << shift, value << shift)
            }
            16 => (number * 2, 0xffff, value),
            _ => (number * 4, 0x0fff_ffff, value),
        };
        let length = if self.bits == 32 { 4 } else { 2 };
        let all = value.to_le_bytes().into_iter().zip(mask.to_le_bytes());
        for (byte, (value, mask)) in table[at..at + length].iter_mut().zip(all) {
            *byte = *byte & !mask | value & mask;
        }
    }
}

/// Repairs a volume. Returns whether it had a fault; a volume without one is not written.
pub fn repair(io: &GuardedIo, range: &Range<u64>) -> Result<bool, FatError> {
    let mut boot = [0; 512];
    if range.end - range.start < boot.len() as u64 {
        return Ok(false);
    }
    io.read_at(range.start, &mut boot).map_err(FatError::Open)?;
    // Another reader reports a volume that is none.
    let Some(shape) = Shape::parse(&boot, range.end - range.start) else { return Ok(false) };
    let check = Check::new(io, range.start, &shape)?;
    let Check { mut table, found, deleted, .. } = check;
    let mut changes: Vec<(u64, Vec<u8>)> =
        deleted.into_iter().map(|at| (at, vec![DELETED])).collect();
    let is_bad = |number: u32| shape.entry(&found[0], number) == shape.ends() - 1;
    let numbers = 2..shape.clusters + 2;
    numbers.clone().filter(|number| is_bad(*number)).for_each(|number| {
        shape.set_entry(&mut table, number, shape.ends() - 1);
    });
    // The two highest bits say that the volume was closed.
    let closed = shape.entry(&table, 1) | 3 << (shape.end().ilog2() - 1);
    shape.set_entry(&mut table, 1, closed);
    let stale = shape.tables.iter().zip(&found).filter(|(_, found)| **found != table);
    changes.extend(stale.map(|(place, _)| (place.start, table.clone())));
    let free = numbers.filter(|number| shape.entry(&table, *number) == 0).count();
    changes.extend(free_count(io, range.start, &shape, free)?);
    let flag = usize::try_from(shape.flag).expect("within the first sector");
    if changes.is_empty() && boot[flag] & 1 == 0 {
        return Ok(false);
    }
    let failed = |error: WriteError| FatError::Finish(error.into());
    for (at, bytes) in &changes {
        io.write_at(range.start + at, bytes).map_err(failed)?;
    }
    io.sync().map_err(failed)?;
    io.write_at(range.start + shape.flag, &[boot[flag] & !1]).map_err(failed)?;
    io.sync().map_err(failed)?;
    Ok(true)
}

/// The number of free clusters, if the stored one is wrong. All ones stand for an unknown number.
fn free_count(
    io: &GuardedIo,
    start: u64,
    shape: &Shape,
    free: usize,
) -> Result<Option<(u64, Vec<u8>)>, FatError> {
    let Some(at) = shape.info else { return Ok(None) };
    let mut count = [0; 4];
    io.read_at(start + at + 488, &mut count).map_err(FatError::Open)?;
    let is = u32::try_from(free).unwrap_or(u32::MAX).to_le_bytes();
    let is_wrong = count != is && count != [0xff; 4];
    Ok(is_wrong.then(|| (at + 488, is.to_vec())))
}

/// A walk through all directories.
struct Check<'a> {
    io: &'a GuardedIo,
    start: u64,
    shape: &'a Shape,
    /// The copies of the table, as they are.
    found: Vec<Vec<u8>>,
    /// The table with the chains of sound files and directories only.
    table: Vec<u8>,
    /// Positions of entries to delete.
    deleted: Vec<u64>,
    seen: usize,
}

impl<'a> Check<'a> {
    fn new(io: &'a GuardedIo, start: u64, shape: &'a Shape) -> Result<Self, FatError> {
        let mut found = Vec::new();
        for place in &shape.tables {
            let length = usize::try_from(place.end - place.start).expect("it is bounded");
            let mut table = vec![0; length];
            io.read_at(start + place.start, &mut table).map_err(FatError::Open)?;
            found.push(table);
        }
        let mut table = found[0].clone();
        (2..shape.clusters + 2).for_each(|number| shape.set_entry(&mut table, number, 0));
        let mut check = Self { io, start, shape, found, table, deleted: Vec::new(), seen: 0 };
        check.walk()?;
        Ok(check)
    }

    fn walk(&mut self) -> Result<(), FatError> {
        let shape = self.shape;
        let mut waiting = Vec::new();
        if shape.bits == 32 {
            let root = self.chain(shape.root_cluster, None);
            let broken = || io::Error::other("the root directory is damaged");
            waiting.push(root.ok_or_else(|| FatError::Open(broken()))?);
        } else {
            waiting.push(vec![shape.root.clone()]);
        }
        while let Some(pieces) = waiting.pop() {
            waiting.extend(self.directory(&pieces)?);
        }
        Ok(())
    }

    /// Takes the clusters of a chain, as many as given or all. `None` if the chain is damaged, or
    /// shares a cluster with another one.
    fn chain(&mut self, first: u32, count: Option<u64>) -> Option<Vec<Range<u64>>> {
        let shape = self.shape;
        let mut clusters = Vec::new();
        let mut next = first;
        let is_done = |length: usize, next: u32| match count {
            Some(count) => length as u64 == count,
            None => length > 0 && next >= shape.ends(),
        };
        while !is_done(clusters.len(), next) {
            let is_free = shape.contains(next) && shape.entry(&self.table, next) == 0;
            if !is_free || clusters.len() > shape.clusters as usize {
                return None;
            }
            clusters.push(next);
            next = shape.entry(&self.found[0], next);
        }
        // A chain that ends in a free cluster was not written completely.
        let is_ended = count != Some(0) && next != 0;
        if count != Some(0) && !is_ended {
            return None;
        }
        let mut distinct = clusters.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != clusters.len() {
            return None;
        }
        let links = clusters.iter().skip(1).copied().chain([shape.end()]);
        for (cluster, link) in clusters.iter().zip(links) {
            shape.set_entry(&mut self.table, *cluster, link);
        }
        let place = |cluster: &u32| shape.place(*cluster)..shape.place(*cluster) + shape.cluster;
        Some(clusters.iter().map(place).collect())
    }

    fn read(&self, pieces: &[Range<u64>]) -> Result<Vec<(u64, [u8; ENTRY])>, FatError> {
        let mut entries = Vec::new();
        for piece in pieces {
            let length = usize::try_from(piece.end - piece.start).expect("a cluster");
            let mut bytes = vec![0; length];
            self.io.read_at(self.start + piece.start, &mut bytes).map_err(FatError::Open)?;
            let (all, _) = bytes.as_chunks::<ENTRY>();
            let places = (piece.start..).step_by(ENTRY);
            entries.extend(places.zip(all.iter().copied()));
        }
        Ok(entries)
    }

    /// Checks the entries of a directory. Returns the clusters of each directory in it.
    fn directory(&mut self, pieces: &[Range<u64>]) -> Result<Vec<Vec<Range<u64>>>, FatError> {
        let mut inside = Vec::new();
        // The entries of the long name before an entry.
        let mut name: Vec<(u64, u8)> = Vec::new();
        for (at, entry) in self.read(pieces)? {
            self.seen += usize::from(entry[0] != 0);
            if self.seen > MAX_ENTRIES {
                return Err(FatError::Endless);
            }
            match (entry[0], entry[11]) {
                (0, _) => break,
                (DELETED, _) => self.delete(&mut name),
                (_, LONG_NAME) => name.push((at, entry[13])),
                (_, kind) => {
                    let sum = checksum(&entry);
                    if name.iter().any(|(_, of)| *of != sum) {
                        self.delete(&mut name);
                    }
                    name.push((at, sum));
                    if kind & LABEL != 0 || matches!(&entry[..11], b".          " | b"..         ")
                    {
                        name.clear();
                    } else {
                        match self.content(&entry)? {
                            Some(directory) => {
                                inside.extend(Some(directory).filter(|pieces| !pieces.is_empty()));
                                name.clear();
                            }
                            None => self.delete(&mut name),
                        }
                    }
                }
            }
        }
        self.delete(&mut name);
        Ok(inside)
    }

    fn delete(&mut self, entries: &mut Vec<(u64, u8)>) {
        self.deleted.extend(entries.drain(..).map(|(at, _)| at));
    }

    /// Takes the clusters of an entry, and returns those of a directory. `None` if they are damaged.
    fn content(&mut self, entry: &[u8; ENTRY]) -> Result<Option<Vec<Range<u64>>>, FatError> {
        let word = |at: usize| u32::from(entry[at]) | u32::from(entry[at + 1]) << 8;
        let high = if self.shape.bits == 32 { word(20) } else { 0 };
        let first = word(26) | high << 16;
        if entry[11] & DIRECTORY == 0 {
            let size = u64::from(word(28) | word(30) << 16);
            let is_sound = match size {
                0 => first == 0,
                _ => self.chain(first, Some(size.div_ceil(self.shape.cluster))).is_some(),
            };
            return Ok(is_sound.then(Vec::new));
        }
        let before = self.table.clone();
        let Some(pieces) = self.chain(first, None) else { return Ok(None) };
        let entries = self.read(&pieces[..1])?;
        let starts = |number: usize, name: &[u8; 11]| {
            entries.get(number).is_some_and(|(_, entry)| entry.starts_with(name))
        };
        if starts(0, b".          ") && starts(1, b"..         ") {
            return Ok(Some(pieces));
        }
        self.table = before;
        Ok(None)
    }
}

/// The checksum of a short name, which the entries of its long name repeat.
fn checksum(entry: &[u8; ENTRY]) -> u8 {
    entry[..11].iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}
