//! Creating, writing and reading FAT volumes in place, without mounting and without external
//! programs.
//!
//! Output is deterministic: the same input gives the same bytes. Times are constant, and the caller
//! gives the serial number.

mod repair;
mod window;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::ops::Range;

use fatfs::{
    Date, DateTime, Dir, FileSystem, FormatVolumeOptions, FsOptions, Time, TimeProvider,
    format_volume,
};
use hoist_provision::digest::Digest;
use hoist_provision::read_at::ReadAt;
use hoist_provision::volume::{Contents, StoredFile};
use sha2::{Digest as _, Sha256};

use crate::GuardedIo;

pub use repair::repair;
pub use window::{Medium, ReadOnly};
use window::{SharedWindow, Window};

/// Most entries of a volume that are read. A damaged volume may contain cycles.
pub const MAX_ENTRIES: usize = 16 * 1024;
/// Deepest directory level that is read.
const MAX_DEPTH: usize = 32;
/// Bytes in one write.
const PIECE: usize = 64 * 1024;

/// The reason why a volume cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FatError {
    #[error("cannot make a FAT volume of {size} bytes")]
    Make { size: u64, source: io::Error },
    #[error("cannot read the FAT volume")]
    Open(#[source] io::Error),
    #[error("`{path}` does not fit into the FAT volume; use a larger partition")]
    Full { path: String },
    #[error("cannot write `{path}` to the FAT volume")]
    Write { path: String, source: io::Error },
    #[error("cannot read `{path}` of the FAT volume")]
    Read { path: String, source: io::Error },
    #[error("the FAT volume has more than {MAX_ENTRIES} entries, or its directories form a cycle")]
    Endless,
    #[error("cannot finish the FAT volume")]
    Finish(#[source] io::Error),
}

/// Always returns the first time that FAT can represent.
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

/// A label in the form of FAT: eleven bytes in capitals.
fn label_bytes(label: &str) -> [u8; 11] {
    let mut bytes = [b' '; 11];
    for (to, from) in bytes.iter_mut().zip(label.bytes()) {
        *to = from.to_ascii_uppercase();
    }
    bytes
}

/// Makes an empty volume that fills the range. The number of clusters decides between FAT12, FAT16
/// and FAT32, as in the specification. The sector size is that of the disk.
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

/// An existing volume.
pub struct Volume<M: Medium> {
    fs: FileSystem<SharedWindow<M>>,
    window: SharedWindow<M>,
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
        let window = SharedWindow::new(medium, range);
        let fs = FileSystem::new(window.share(), options).map_err(FatError::Open)?;
        Ok(Self { fs, window })
    }

    /// The label in the root directory, which takes precedence over the one in the first sector.
    pub fn label(&self) -> Option<String> {
        let label = self.fs.read_volume_label_from_root_dir().ok()??;
        Some(label.trim_end().to_owned())
    }

    pub fn serial(&self) -> u32 {
        self.fs.volume_id()
    }

    /// Total bytes that files can occupy.
    pub fn capacity(&self) -> Result<u64, FatError> {
        let stats = self.fs.stats().map_err(FatError::Open)?;
        Ok(u64::from(stats.total_clusters()) * u64::from(stats.cluster_size()))
    }

    /// The paths of all files.
    pub fn paths(&self) -> Result<Vec<String>, FatError> {
        let mut paths = Vec::new();
        let mut seen = 0;
        collect(&self.fs.root_dir(), "", 0, &mut seen, &mut paths)?;
        paths.sort();
        Ok(paths)
    }

    /// Size and digest of a file, if it exists. A file larger than `most` bytes is read only as far
    /// as needed to detect that.
    pub fn stored(&self, path: &str, most: u64) -> Result<Option<StoredFile>, FatError> {
        let failed = |source| FatError::Read { path: path.to_owned(), source };
        let mut file = match self.fs.root_dir().open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut hash = Sha256::new();
        let mut size = 0;
        let mut piece = vec![0; PIECE];
        loop {
            let length = file.read(&mut piece).map_err(failed)?;
            hash.update(&piece[..length]);
            size += length as u64;
            if length == 0 || size > most {
                return Ok(Some(StoredFile { size, digest: Digest::end(hash) }));
            }
        }
    }

    /// The contents of a file, if it exists and has at most `most` bytes.
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

    /// The contents of the volume, limited to these paths.
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
        let label = self.label();
        let serial = self.serial();
        let capacity = self.capacity()?;
        Ok(Contents { label, serial, capacity, files })
    }

    /// Writes a file and replaces an existing one. `next` returns pieces of it until one is empty.
    pub fn put<E: From<FatError>>(
        &self,
        path: &str,
        mut next: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let failed = |source: io::Error| self.failed(path, source);
        let mut dir = self.fs.root_dir();
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        for (depth, part) in parent.split('/').filter(|part| !part.is_empty()).enumerate() {
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

    /// Removes an existing file.
    pub fn remove(&self, path: &str) -> Result<(), FatError> {
        self.fs.root_dir().remove(path).map_err(|error| self.failed(path, error))
    }

    fn failed(&self, path: &str, source: io::Error) -> FatError {
        let path = path.to_owned();
        let is_full = self.fs.stats().is_ok_and(|stats| stats.free_clusters() == 0);
        if is_full { FatError::Full { path } } else { FatError::Write { path, source } }
    }

    /// Flushes everything to the medium.
    pub fn finish(self) -> Result<(), FatError> {
        let Self { fs, mut window } = self;
        fs.unmount().map_err(FatError::Finish)?;
        window.flush().map_err(FatError::Finish)
    }
}

fn collect<M: Medium>(
    dir: &Dir<'_, SharedWindow<M>>,
    parent: &str,
    depth: usize,
    seen: &mut usize,
    paths: &mut Vec<String>,
) -> Result<(), FatError> {
    for entry in dir.iter() {
        let entry = entry.map_err(|source| FatError::Read { path: parent.to_owned(), source })?;
        *seen += 1;
        if *seen > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(FatError::Endless);
        }
        let name = entry.file_name();
        if name == "." || name == ".." {
            continue;
        }
        let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
        if entry.is_dir() {
            collect(&entry.to_dir(), &path, depth + 1, seen, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
