//! An open disk, or a file that stands for a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hoist_provision::read_at::ReadAt;
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

use super::buffer::{ALIGNMENT, Buffer, CHUNK};
use super::holders::HolderError;
use super::users::{self, DiskUsers};

/// How long to wait for another user of a disk. udev locks every disk for a moment after a write,
/// and a child process keeps inherited descriptors open until it executes its program.
const LET_GO: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The properties of a disk that must not change between probing and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The device number; `None` for a file.
    pub device: Option<u64>,
    /// The kernel's disk sequence number. It differs for another disk in the same slot.
    pub sequence: Option<u64>,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u32,
}

/// The reason why a disk cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("cannot open `{path}`")]
    Open { path: PathBuf, source: io::Error },
    #[error("`{path}` is in use{users}; unmount it, and stop the arrays and volumes on it")]
    InUse { path: PathBuf, users: DiskUsers },
    #[error(transparent)]
    Holder(#[from] HolderError),
    #[error("`{path}` is neither a block device nor a file")]
    NoDisk { path: PathBuf },
    #[error("`{path}` has sectors of {sector} bytes; 512 to {ALIGNMENT} are supported")]
    Sector { path: PathBuf, sector: u32 },
    #[error("`{path}` is not the disk that was probed: its {what} was {was} and is {is}")]
    Changed { path: PathBuf, what: &'static str, was: String, is: String },
}

impl Identity {
    /// The identity of the disk at a path. `sector_of_files` is the sector size of a file.
    pub fn of(path: &Path, sector_of_files: u32) -> Result<Self, OpenError> {
        Disk::open(path, sector_of_files, Access::Read).map(|disk| disk.identity)
    }

    fn difference(&self, is: &Self) -> Option<(&'static str, String, String)> {
        let text = |number: Option<u64>| number.map_or("none".to_owned(), |n| n.to_string());
        let rows = [
            ("device number", text(self.device), text(is.device)),
            ("sequence number", text(self.sequence), text(is.sequence)),
            ("size", self.size.to_string(), is.size.to_string()),
            ("sector size", self.sector.to_string(), is.sector.to_string()),
        ];
        rows.into_iter().find(|(_, was, is)| was != is)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Opened exclusively.
    Write,
    /// Locked against other hoist processes. Devices that the kernel assembled on the partitions
    /// stay.
    Share,
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    /// Direct I/O: memory address, offset and length must be multiples of the sector size.
    pub(super) is_direct: bool,
}

impl Disk {
    pub(super) fn open(
        path: &Path,
        sector_of_files: u32,
        access: Access,
    ) -> Result<Self, OpenError> {
        let end = Instant::now() + LET_GO;
        loop {
            match Self::try_open(path, sector_of_files, access) {
                Err(OpenError::InUse { .. }) if Instant::now() < end => sleep(ASK_EVERY),
                Err(OpenError::InUse { path, .. }) => {
                    let users = users::of(&path);
                    return Err(OpenError::InUse { path, users });
                }
                opened => return opened,
            }
        }
    }

    fn try_open(path: &Path, sector_of_files: u32, access: Access) -> Result<Self, OpenError> {
        let failed = |source: io::Error| match rustix::io::Errno::from_io_error(&source) {
            Some(rustix::io::Errno::BUSY) => in_use(path),
            _ => OpenError::Open { path: path.to_owned(), source },
        };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_block = kind.is_block_device();
        if !is_block && !kind.is_file() {
            return Err(OpenError::NoDisk { path: path.to_owned() });
        }
        let mut flags = OFlags::CLOEXEC;
        if is_block {
            flags |= OFlags::DIRECT;
        }
        if is_block && access == Access::Write {
            flags |= OFlags::EXCL;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(access != Access::Read).custom_flags(flags.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        if access != Access::Read {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(path)),
                Err(error) => return Err(failed(error.into())),
            }
        }
        let identity = identity(&file, sector_of_files).map_err(failed)?;
        let sector = identity.sector;
        if !sector.is_power_of_two() || !(512..=ALIGNMENT).contains(&(sector as usize)) {
            return Err(OpenError::Sector { path: path.to_owned(), sector });
        }
        Ok(Self { file, path: path.to_owned(), identity, is_direct: is_block })
    }

    /// Whether the path and the descriptor still belong to the expected disk.
    pub(super) fn check(&self, meant: &Identity) -> Result<(), OpenError> {
        let failed = |source| OpenError::Open { path: self.path.clone(), source };
        let open = identity(&self.file, self.identity.sector).map_err(failed)?;
        // The path may name another disk by now.
        let named = std::fs::metadata(&self.path).map_err(failed)?;
        let device = named.file_type().is_block_device().then(|| named.rdev());
        for is in [open, Identity { device, ..open }] {
            if let Some((what, was, is)) = meant.difference(&is) {
                return Err(OpenError::Changed { path: self.path.clone(), what, was, is });
            }
        }
        Ok(())
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.identity.sector)
    }

    /// Extends a range to whole sectors.
    pub(super) fn around(&self, at: u64, length: u64) -> (u64, u64) {
        let start = at;
        let end = at + length;
        let sector = self.sector();
        (start / sector * sector, end.next_multiple_of(sector))
    }
}

/// The users are looked for only when waiting for them has ended.
fn in_use(path: &Path) -> OpenError {
    OpenError::InUse { path: path.to_owned(), users: DiskUsers::default() }
}

impl ReadAt for Disk {
    fn size(&self) -> u64 {
        self.identity.size
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_whole = self.around(at, into.len() as u64) == (at, at + into.len() as u64);
        if !self.is_direct || (is_whole && into.as_ptr().addr().is_multiple_of(ALIGNMENT)) {
            return self.file.read_exact_at(into, at);
        }
        let mut buffer = Buffer::new((into.len() + 2 * ALIGNMENT).min(CHUNK));
        let mut at = at;
        let mut rest = into;
        while !rest.is_empty() {
            let start = at / self.sector() * self.sector();
            let skip = usize::try_from(at - start).expect("less than a sector");
            let part = rest.len().min(buffer.len() - ALIGNMENT - skip);
            let (_, end) = self.around(at, part as u64);
            let whole = &mut buffer[..usize::try_from(end - start).expect("it fits the buffer")];
            self.file.read_exact_at(whole, start)?;
            let (into, behind) = rest.split_at_mut(part);
            into.copy_from_slice(&whole[skip..skip + part]);
            (at, rest) = (at + part as u64, behind);
        }
        Ok(())
    }
}

fn identity(file: &File, sector_of_files: u32) -> io::Result<Identity> {
    let metadata = file.metadata()?;
    let is_block = metadata.file_type().is_block_device();
    let sector = if is_block { rustix::fs::ioctl_blksszget(file)? } else { sector_of_files };
    let size = (&mut &*file).seek(SeekFrom::End(0))?;
    let device = is_block.then(|| metadata.rdev());
    Ok(Identity { device, sequence: device.and_then(sequence), size, sector })
}

fn sequence(device: u64) -> Option<u64> {
    let major = rustix::fs::major(device);
    let minor = rustix::fs::minor(device);
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/diskseq")).ok()?;
    text.trim().parse().ok()
}

/// A disk opened for reading. Other processes may write to it meanwhile.
#[derive(Debug)]
pub struct ReadIo(Disk);

impl ReadIo {
    /// `sector_of_files` is the sector size of a file.
    pub fn open(path: &Path, sector_of_files: u32) -> Result<Self, OpenError> {
        Disk::open(path, sector_of_files, Access::Read).map(Self)
    }

    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl ReadAt for ReadIo {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, into)
    }
}
