//! FAT volumes, made, filled and read where they lie, without mounting them and without a program.
//!
//! What is made is the same for the same input: times are fixed, and the serial number is given.

mod name;
mod window;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::ops::Range;

use fatfs::{
    Date, DateTime, Dir, FileSystem, FormatVolumeOptions, FsOptions, Time, TimeProvider,
    format_volume,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::device::{GuardedIo, ReadAt};
use crate::images::Digest;

pub use name::{NameError, check_names};
pub use window::{Medium, ReadOnly};
use window::{Shared, Window};

/// Most entries of a volume that are looked at: a damaged one may go round in circles.
pub const MAX_ENTRIES: usize = 16 * 1024;
/// Deepest directories that are looked into.
const MAX_DEPTH: usize = 32;
/// What is written at once.
const PIECE: usize = 64 * 1024;

/// Why a volume is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FatError {
    #[error("no FAT volume can be made in {size} bytes")]
    Make { size: u64, source: io::Error },
    #[error("there is no FAT volume that can be read")]
    Open(#[source] io::Error),
    #[error("`{path}` does not fit into the volume; make its partition larger")]
    Full { path: String },
    #[error("`{path}` cannot be written to the volume")]
    Write { path: String, source: io::Error },
    #[error("`{path}` of the volume cannot be read")]
    Read { path: String, source: io::Error },
    #[error("the volume has more than {MAX_ENTRIES} entries, or goes round in circles")]
    Endless,
    #[error("the volume cannot be finished")]
    Finish(#[source] io::Error),
}

/// A file that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    pub size: u64,
    pub digest: Digest,
}

impl Stored {
    pub fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len() as u64, digest: Digest::of(bytes) }
    }
}

/// Always the first moment that FAT knows.
#[derive(Debug)]
struct Never;

impl TimeProvider for Never {
    fn get_current_date(&self) -> Date {
        Date { year: 1980, month: 1, day: 1 }
    }

    fn get_current_date_time(&self) -> DateTime {
        let time = Time { hour: 0, min: 0, sec: 0, millis: 0 };
        DateTime { date: self.get_current_date(), time }
    }
}

/// A label as FAT keeps it: eleven bytes in capitals.
fn label_bytes(label: &str) -> [u8; 11] {
    let mut bytes = [b' '; 11];
    for (to, from) in bytes.iter_mut().zip(label.bytes()) {
        *to = from.to_ascii_uppercase();
    }
    bytes
}

/// Makes an empty volume that fills the range. Whether it is FAT12, FAT16 or FAT32 follows from how
/// many clusters there are, as whoever reads it decides; the sectors are those of the disk.
pub fn make(
    io: &GuardedIo,
    range: &Range<u64>,
    label: Option<&str>,
    serial: u32,
) -> Result<(), FatError> {
    let size = range.end - range.start;
    let failed = |source| FatError::Make { size, source };
    let sector = u16::try_from(io.sector()).expect("at most 4096");
    let mut options = FormatVolumeOptions::new().bytes_per_sector(sector).volume_id(serial);
    if let Some(label) = label {
        options = options.volume_label(label_bytes(label));
    }
    let mut window = Window::new(io, range.clone());
    format_volume(&mut window, options).map_err(failed)?;
    window.flush().map_err(failed)?;
    io.sync().map_err(|error| failed(error.into()))
}

/// A volume that is there.
pub struct Volume<M: Medium> {
    fs: FileSystem<Shared<M>>,
    window: Shared<M>,
}

impl<M: Medium> Debug for Volume<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").finish_non_exhaustive()
    }
}

impl<'a, R: ReadAt + ?Sized> Volume<ReadOnly<'a, R>> {
    pub fn read_only(disk: &'a R, range: Range<u64>) -> Result<Self, FatError> {
        Self::open(ReadOnly(disk), range)
    }
}

impl<M: Medium> Volume<M> {
    pub fn open(medium: M, range: Range<u64>) -> Result<Self, FatError> {
        let options = FsOptions::new().time_provider(&Never);
        let window = Shared::new(medium, range);
        let fs = FileSystem::new(window.share(), options).map_err(FatError::Open)?;
        Ok(Self { fs, window })
    }

    /// In its root, which counts, and not only in its first sector.
    pub fn label(&self) -> Option<String> {
        let label = self.fs.read_volume_label_from_root_dir().ok()??;
        Some(label.trim_end().to_owned())
    }

    pub fn serial(&self) -> u32 {
        self.fs.volume_id()
    }

    /// Bytes that files can have in it in all.
    pub fn capacity(&self) -> Result<u64, FatError> {
        let stats = self.fs.stats().map_err(FatError::Open)?;
        Ok(u64::from(stats.total_clusters()) * u64::from(stats.cluster_size()))
    }

    /// Paths of all files.
    pub fn paths(&self) -> Result<Vec<String>, FatError> {
        let (mut paths, mut seen) = (Vec::new(), 0);
        collect(&self.fs.root_dir(), "", 0, &mut seen, &mut paths)?;
        paths.sort();
        Ok(paths)
    }

    /// A file, if it is there. Of one with more than `most` bytes only so much is read as to see it.
    pub fn stored(&self, path: &str, most: u64) -> Result<Option<Stored>, FatError> {
        let failed = |source| FatError::Read { path: path.to_owned(), source };
        let mut file = match self.fs.root_dir().open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (mut hash, mut size, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
        loop {
            let length = file.read(&mut piece).map_err(failed)?;
            hash.update(&piece[..length]);
            size += length as u64;
            if length == 0 || size > most {
                return Ok(Some(Stored { size, digest: Digest::end(hash) }));
            }
        }
    }

    /// All of a file, if it is there and has at most so many bytes.
    pub fn read(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>, FatError> {
        let failed = |source| FatError::Read { path: path.to_owned(), source };
        let file = match self.fs.root_dir().open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
        Ok((bytes.len() as u64 <= most).then_some(bytes))
    }

    /// What counts of it, as far as these files go.
    pub fn contents<'p>(
        &self,
        paths: impl IntoIterator<Item = &'p str>,
        most: u64,
    ) -> Result<Contents, FatError> {
        let mut files = BTreeMap::new();
        for path in paths {
            let stored = self.stored(path, most)?;
            files.extend(stored.map(|stored| (path.to_owned(), stored)));
        }
        let (label, serial, capacity) = (self.label(), self.serial(), self.capacity()?);
        Ok(Contents { label, serial, capacity, files })
    }

    /// Puts a file there, in place of what was. `next` gives pieces of it until one is empty.
    pub fn put<E: From<FatError>>(
        &self,
        path: &str,
        mut next: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let failed = |source: io::Error| self.failed(path, source);
        let mut dir = self.fs.root_dir();
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for (depth, part) in above.split('/').filter(|part| !part.is_empty()).enumerate() {
            dir = self.window.mended(depth == 0, || dir.create_dir(part)).map_err(failed)?;
        }
        let mut file = dir.create_file(name).map_err(failed)?;
        file.truncate().map_err(failed)?;
        let mut piece = vec![0; PIECE];
        loop {
            let length = next(&mut piece)?;
            if length == 0 {
                break;
            }
            file.write_all(&piece[..length]).map_err(failed)?;
        }
        file.flush().map_err(failed)?;
        Ok(())
    }

    pub fn put_bytes(&self, path: &str, bytes: &[u8]) -> Result<(), FatError> {
        let mut rest = bytes;
        self.put(path, |piece| rest.read(piece).map_err(|error| self.failed(path, error)))
    }

    /// Takes a file away that is there.
    pub fn remove(&self, path: &str) -> Result<(), FatError> {
        self.fs.root_dir().remove(path).map_err(|error| self.failed(path, error))
    }

    fn failed(&self, path: &str, source: io::Error) -> FatError {
        let path = path.to_owned();
        let is_full = self.fs.stats().is_ok_and(|stats| stats.free_clusters() == 0);
        if is_full { FatError::Full { path } } else { FatError::Write { path, source } }
    }

    /// Everything is with the medium afterwards.
    pub fn finish(self) -> Result<(), FatError> {
        let Self { fs, mut window } = self;
        fs.unmount().map_err(FatError::Finish)?;
        window.flush().map_err(FatError::Finish)
    }
}

fn collect<M: Medium>(
    dir: &Dir<'_, Shared<M>>,
    above: &str,
    depth: usize,
    seen: &mut usize,
    paths: &mut Vec<String>,
) -> Result<(), FatError> {
    for entry in dir.iter() {
        let entry = entry.map_err(|source| FatError::Read { path: above.to_owned(), source })?;
        *seen += 1;
        if *seen > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(FatError::Endless);
        }
        let name = entry.file_name();
        if name == "." || name == ".." {
            continue;
        }
        let path = if above.is_empty() { name } else { format!("{above}/{name}") };
        if entry.is_dir() {
            collect(&entry.to_dir(), &path, depth + 1, seen, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

/// What of a volume counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub label: Option<String>,
    pub serial: u32,
    /// Bytes that files can have in it in all.
    pub capacity: u64,
    pub files: BTreeMap<String, Stored>,
}
