//! An image of a whole disk: what is in its first MiB, and whose the gap behind its table is.

use std::io;
use std::ops::Range;

use super::stream::is_zero;
use crate::device::ReadAt;
use crate::device::gap::Gap;
use crate::device::table::{self, FIRST_PARTITION, Found, Geometry};
use crate::document::ImageTable;

/// Whose the gap is in which hoist keeps its notes, when the image is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The image has nothing in it, so that the notes stay.
    Ours,
    /// The image has it: a loader, or a partition.
    Images,
}

/// Which table the first MiB of an image has, and where partitions begin, for a disk of this size. Says
/// why a machine would not start from it, if it is of another sector size or does not fit.
fn looked(size: u64, sector: u32, first: &[u8]) -> Result<(Option<ImageTable>, Vec<u64>), String> {
    let found = table::read(&Only { size, first }, sector).map_err(|error| error.to_string())?;
    Ok(match &found {
        Found::Nothing => (None, Vec::new()),
        Found::Mbr { partitions, .. } => {
            (Some(ImageTable::Mbr), partitions.iter().map(|part| part.start).collect())
        }
        Found::Gpt { table, .. } => {
            let geometry = Geometry { size, sector: sector.into() };
            table.check(&geometry).map_err(|error| error.to_string())?;
            (Some(ImageTable::Gpt), table.partitions.iter().map(|part| part.start).collect())
        }
        Found::Damaged(flaws) => {
            let flaws: Vec<_> = flaws.iter().map(ToString::to_string).collect();
            return Err(flaws.join(", "));
        }
    })
}

/// The table that an image has, if it is the one that was said.
pub fn table_of(
    size: u64,
    sector: u32,
    first: &[u8],
    said: Option<ImageTable>,
) -> Result<Option<ImageTable>, String> {
    let (is, _) = looked(size, sector, first)?;
    as_said(is, said).map(|()| is)
}

/// Looks at what comes last of an image, for a disk of this size. Says why a machine would not start
/// from it, if it is of another sector size or has another table than was said.
pub fn judge(
    size: u64,
    sector: u32,
    first: &[u8],
    said: Option<ImageTable>,
) -> Result<Place, String> {
    let (is, starts) = looked(size, sector, first)?;
    as_said(is, said)?;
    let gap = usize::try_from(crate::device::gap::START).expect("it is small");
    let is_free = first.len() as u64 >= FIRST_PARTITION
        && is_zero(&first[gap..])
        && is.is_some()
        && starts.iter().all(|start| *start >= FIRST_PARTITION);
    Ok(if is_free { Place::Ours } else { Place::Images })
}

fn as_said(is: Option<ImageTable>, said: Option<ImageTable>) -> Result<(), String> {
    if let Some(said) = said.filter(|said| is != Some(*said)) {
        let word = |table: Option<ImageTable>| match table {
            None => "no table",
            Some(ImageTable::Gpt) => "a GPT",
            Some(ImageTable::Mbr) => "an MBR",
        };
        return Err(format!("it has {}, not {}", word(is), word(Some(said))));
    }
    Ok(())
}

/// A disk on which nothing else is: what was at the end of it does not count.
struct Only<'a> {
    size: u64,
    first: &'a [u8],
}

impl ReadAt for Only<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let first = usize::try_from(at).ok().and_then(|at| self.first.get(at..)).unwrap_or(&[]);
        let length = first.len().min(into.len());
        into[..length].copy_from_slice(&first[..length]);
        into[length..].fill(0);
        Ok(())
    }
}

/// A disk whose gap, which is ours, reads as what the image has there: nothing.
#[allow(missing_debug_implementations)]
pub struct Masked<'a> {
    pub disk: &'a dyn ReadAt,
    pub gap: Option<Gap>,
}

impl ReadAt for Masked<'_> {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(at, into)?;
        let Range { start, end } = self.gap.as_ref().map(Gap::range).unwrap_or_default();
        let inside = |place: u64| {
            let place = place.saturating_sub(at).min(into.len() as u64);
            usize::try_from(place).expect("within the buffer")
        };
        let (start, end) = (inside(start), inside(end));
        into[start..end].fill(0);
        Ok(())
    }
}
