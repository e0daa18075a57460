//! Images of whole disks: the table in the first MiB, and the use of the metadata area.

use std::io;

use crate::document::ImageTable;
use crate::manifest::is_zero;
use crate::metadata_area::START;
use crate::partition_table::{self, FIRST_PARTITION, Flaw, Geometry, LayoutError, TableOnDisk};
use crate::read_at::ReadAt;

/// The owner of the metadata area once the image is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaOwner {
    /// The image leaves the area empty, so hoist metadata stays.
    Ours,
    /// The image uses the area for a loader or a partition.
    Images,
}

/// Why a machine would not boot from an image on a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageTableError {
    #[error("{0}")]
    Read(io::Error),
    /// The image is larger than the disk, or made for another sector size.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Damaged(Vec<Flaw>),
    #[error("the image has {}, not {}", name(*.is), name(Some(*.declared)))]
    Undeclared { is: Option<ImageTable>, declared: ImageTable },
}

fn name(table: Option<ImageTable>) -> &'static str {
    match table {
        None => "no table",
        Some(ImageTable::Gpt) => "a GPT",
        Some(ImageTable::Mbr) => "an MBR",
    }
}

/// Which table the first MiB of an image has, and where partitions begin, for a disk of this size.
fn looked(
    size: u64,
    sector: u32,
    first: &[u8],
) -> Result<(Option<ImageTable>, Vec<u64>), ImageTableError> {
    let found = partition_table::read(&ImageBytes { size, first }, sector)
        .map_err(ImageTableError::Read)?;
    Ok(match &found {
        TableOnDisk::Nothing => (None, Vec::new()),
        TableOnDisk::Mbr { partitions, .. } => {
            (Some(ImageTable::Mbr), partitions.iter().map(|part| part.start).collect())
        }
        TableOnDisk::Gpt { table, .. } => {
            let geometry = Geometry { size, sector: sector.into() };
            table.check(&geometry)?;
            (Some(ImageTable::Gpt), table.partitions.iter().map(|part| part.start).collect())
        }
        TableOnDisk::Damaged(flaws) => return Err(ImageTableError::Damaged(flaws.clone())),
    })
}

/// The table of an image, if it is as declared.
pub fn table_of(
    size: u64,
    sector: u32,
    first: &[u8],
    said: Option<ImageTable>,
) -> Result<Option<ImageTable>, ImageTableError> {
    let (is, _) = looked(size, sector, first)?;
    as_said(is, said).map(|()| is)
}

/// Checks the first MiB of an image, which is written last, for a disk of this size.
pub fn judge(
    size: u64,
    sector: u32,
    first: &[u8],
    said: Option<ImageTable>,
) -> Result<AreaOwner, ImageTableError> {
    let (is, starts) = looked(size, sector, first)?;
    as_said(is, said)?;
    let start = usize::try_from(START).expect("it is small");
    let is_free = first.len() as u64 >= FIRST_PARTITION
        && is_zero(&first[start..])
        && is.is_some()
        && starts.iter().all(|start| *start >= FIRST_PARTITION);
    Ok(if is_free { AreaOwner::Ours } else { AreaOwner::Images })
}

fn as_said(is: Option<ImageTable>, said: Option<ImageTable>) -> Result<(), ImageTableError> {
    match said.filter(|said| is != Some(*said)) {
        Some(declared) => Err(ImageTableError::Undeclared { is, declared }),
        None => Ok(()),
    }
}

/// A disk without other contents: its former end does not count.
struct ImageBytes<'a> {
    size: u64,
    first: &'a [u8],
}

impl ReadAt for ImageBytes<'_> {
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
