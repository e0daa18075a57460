//! The only way to write to a disk.
//!
//! A [`GuardedIo`] holds its disk exclusively until it is dropped and knows which bytes may be
//! written. A write outside of them is refused as a whole, so that a bug in an action causes an
//! error and never destroys foreign data.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_provision::facts::EraseCommand;
use hoist_provision::read_at::ReadAt;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::Ranges;
use super::buffer::{ALIGNMENT, CHUNK, Pool};
use super::disk::{Access, Disk, Identity, OpenError};
use super::fault::{Fault, FaultOutcome};
use super::nvme::{self, CommandError};

/// Buffers for unaligned writes.
const BOUNCES: usize = 2;

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    #[error(
        "bytes {start} to {end} of `{path}` are outside the planned ranges; nothing was written"
    )]
    Outside { path: PathBuf, start: u64, end: u64 },
    #[error("cannot write at byte {at} of `{path}`")]
    Write { path: PathBuf, at: u64, source: io::Error },
    #[error("cannot make the writes to `{path}` durable")]
    Sync { path: PathBuf, source: io::Error },
    #[error("cannot read at byte {at} of `{path}`")]
    Read { path: PathBuf, at: u64, source: io::Error },
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        let kind = match &error {
            WriteError::Outside { .. } => io::ErrorKind::PermissionDenied,
            WriteError::Write { source, .. }
            | WriteError::Sync { source, .. }
            | WriteError::Read { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// The reason why an erase command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EraseError {
    #[error(transparent)]
    Guard(#[from] WriteError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// An exclusively opened disk with a set of writable bytes.
#[derive(Debug)]
pub struct GuardedIo {
    disk: Disk,
    meant: Identity,
    allowed: Ranges,
    bounces: Pool,
    /// Serialises read-modify-write of partial sectors.
    patching: Mutex<()>,
    fault: Option<Arc<Fault>>,
}

impl GuardedIo {
    /// Opens a disk exclusively. It must have the expected identity and must not be in use by a
    /// mount, a holder or another hoist process. Bytes in `retain` are never written, even if
    /// `allow` contains them. A sector that is only partly allowed is not allowed at all.
    pub fn open(
        path: &Path,
        meant: &Identity,
        allow: &Ranges,
        retain: &Ranges,
    ) -> Result<Self, OpenError> {
        Self::open_for(Access::Write, path, meant, allow, retain)
    }

    /// As [`GuardedIo::open`], but devices assembled on its partitions may exist.
    pub fn open_shared(
        path: &Path,
        meant: &Identity,
        allow: &Ranges,
        retain: &Ranges,
    ) -> Result<Self, OpenError> {
        Self::open_for(Access::Share, path, meant, allow, retain)
    }

    fn open_for(
        access: Access,
        path: &Path,
        meant: &Identity,
        allow: &Ranges,
        retain: &Ranges,
    ) -> Result<Self, OpenError> {
        let disk = Disk::open(path, meant.sector, access)?;
        disk.check(meant)?;
        let allowed = allowed(allow, retain, disk.size(), disk.sector());
        let bounces = Pool::new(BOUNCES, CHUNK);
        Ok(Self { disk, meant: *meant, allowed, bounces, patching: Mutex::new(()), fault: None })
    }

    /// All later writes fail as the fault defines.
    #[must_use]
    pub fn with_fault(mut self, fault: impl Into<Arc<Fault>>) -> Self {
        self.fault = Some(fault.into());
        self
    }

    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    pub fn path(&self) -> &Path {
        &self.disk.path
    }

    pub fn identity(&self) -> Identity {
        self.meant
    }

    /// Bytes of a logical sector.
    pub fn sector(&self) -> u64 {
        self.disk.sector()
    }

    pub fn allowed(&self) -> &Ranges {
        &self.allowed
    }

    /// Whether path and descriptor still belong to the expected disk.
    pub fn check_identity(&self) -> Result<(), OpenError> {
        self.disk.check(&self.meant)
    }

    /// Whether all bytes of a range may be written.
    pub fn check(&self, range: Range<u64>) -> Result<(), WriteError> {
        if self.allowed.covers(&range) {
            return Ok(());
        }
        let Range { start, end } = range;
        Err(WriteError::Outside { path: self.disk.path.clone(), start, end })
    }

    /// Writes all bytes, or returns the position of the failure. The data is durable after
    /// [`GuardedIo::sync`].
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let end = at.saturating_add(bytes.len() as u64);
        self.check(at..end)?;
        let is_whole = self.disk.around(at, bytes.len() as u64) == (at, end);
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        if !self.disk.is_direct || (is_whole && is_aligned) {
            return self.put(at, bytes);
        }
        let mut buffer = self.bounces.take();
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let start = at / self.sector() * self.sector();
            let skip = usize::try_from(at - start).expect("less than a sector");
            let (part, behind) = rest.split_at(rest.len().min(CHUNK - skip));
            let (_, end) = self.disk.around(at, part.len() as u64);
            let whole = &mut buffer[..usize::try_from(end - start).expect("it fits the buffer")];
            self.patch(start, whole, skip, part)?;
            (at, rest) = (at + part.len() as u64, behind);
        }
        Ok(())
    }

    /// Writes whole sectors of which only a part is new.
    fn patch(
        &self,
        start: u64,
        whole: &mut [u8],
        skip: usize,
        part: &[u8],
    ) -> Result<(), WriteError> {
        let _alone = self.patching.lock();
        let sector = usize::try_from(self.sector()).expect("it is small");
        let last = whole.len() - sector;
        let is_old_behind = skip + part.len() < whole.len();
        for from in [(skip > 0).then_some(0), is_old_behind.then_some(last)].into_iter().flatten() {
            self.read(start + from as u64, &mut whole[from..from + sector])?;
        }
        whole[skip..skip + part.len()].copy_from_slice(part);
        self.put(start, whole)
    }

    /// Makes a range read as zeros. The device zeroes the range itself if it can; discarding alone
    /// is never used, because discarded bytes are undefined.
    pub fn zero(&self, range: Range<u64>) -> Result<(), WriteError> {
        self.check(range.clone())?;
        let sector = self.sector();
        let start = range.start.next_multiple_of(sector);
        let whole = start..(range.end / sector * sector).max(start);
        if whole.is_empty() {
            return self.write_zeros(range);
        }
        let Range { start, end } = whole;
        if self.punch(start, end - start)? {
            self.write_zeros(range.start..start)?;
            return self.write_zeros(end..range.end);
        }
        self.write_zeros(range)
    }

    /// Makes the disk erase itself. The command clears the whole disk, so the whole disk must be
    /// writable. `goes_on` gets the progress in units of 1 / [`nvme::PARTS`] and returns `false` to
    /// stop waiting. Returns the final status of the disk.
    pub fn erase(
        &self,
        command: EraseCommand,
        goes_on: &mut dyn FnMut(u16) -> bool,
    ) -> Result<String, EraseError> {
        self.check(0..self.size())?;
        self.check_identity()?;
        Ok(nvme::erase(&self.disk.file, command, goes_on)?)
    }

    /// Makes all previous writes durable.
    pub fn sync(&self) -> Result<(), WriteError> {
        let failed = |source| WriteError::Sync { path: self.disk.path.clone(), source };
        if let Some(fault) = &self.fault {
            fault.sync().map_err(failed)?;
        }
        self.disk.file.sync_data().map_err(failed)
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<(), WriteError> {
        let Range { start: mut at, end } = range;
        if at == end {
            return Ok(());
        }
        let mut zeros = self.bounces.take();
        zeros.fill(0);
        while at < end {
            // All pieces but the first start at a sector, so that only the ends need a read.
            let until = (at + CHUNK as u64) / self.sector() * self.sector();
            let length = usize::try_from(until.min(end) - at).expect("at most a chunk");
            self.write_at(at, &zeros[..length])?;
            at += length as u64;
        }
        Ok(())
    }

    /// Returns whether the device supports punching. Never falls back to writing zeros.
    fn punch(&self, at: u64, length: u64) -> Result<bool, WriteError> {
        let failed = |source| WriteError::Write { path: self.disk.path.clone(), at, source };
        if let Some(fault) = &self.fault {
            match fault.punch(&self.disk, at, length).map_err(failed)? {
                FaultOutcome::Refused => return Ok(false),
                FaultOutcome::Taken => return Ok(true),
                FaultOutcome::Real => {}
            }
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.disk.file, mode, at, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let failed = |source| WriteError::Write { path: self.disk.path.clone(), at, source };
        match &self.fault {
            Some(fault) => fault.write(&self.disk, at, bytes).map_err(failed),
            None => self.disk.file.write_all_at(bytes, at).map_err(failed),
        }
    }

    /// As [`ReadAt::read_at`], with the position in the error.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), WriteError> {
        let failed = |source| WriteError::Read { path: self.disk.path.clone(), at, source };
        self.disk.read_at(at, into).map_err(failed)
    }
}

impl ReadAt for GuardedIo {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(at, into)
    }
}

/// Whole sectors that are allowed and not retained.
fn allowed(allow: &Ranges, retain: &Ranges, size: u64, sector: u64) -> Ranges {
    let mut allowed = allow.clone();
    retain.iter().for_each(|range| allowed.subtract(range));
    allowed.subtract(size..u64::MAX);
    let inside = |range: Range<u64>| {
        let end = if range.end == size { size } else { range.end / sector * sector };
        range.start.checked_next_multiple_of(sector).map(|start| start..end.max(start))
    };
    allowed.iter().filter_map(inside).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 64 * 1024;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = crate::scratch::file();
        fs_err::write(file.path(), bytes).expect("it is written");
        file
    }

    fn open(
        file: &tempfile::NamedTempFile,
        sector: u32,
        allow: &Ranges,
        retain: &Ranges,
    ) -> GuardedIo {
        let meant = Identity::of(file.path(), sector).expect("it is there");
        GuardedIo::open(file.path(), &meant, allow, retain).expect("nobody else has it")
    }

    fn all() -> Ranges {
        Ranges::from(0..SIZE as u64)
    }

    fn none() -> Ranges {
        Ranges::default()
    }

    fn a_range() -> impl Strategy<Value = Range<u64>> {
        let size = SIZE as u64;
        // Also ranges beyond the end, and ranges whose sums overflow.
        prop_oneof![
            8 => (0..size + 5000, 0..20_000_u64).prop_map(|(start, length)| start..start + length),
            1 => (0..3_u64, 0..u64::MAX).prop_map(|(back, start)| start..u64::MAX - back),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn bytes_outside_the_allowed_ranges_never_change(
            allow in prop::collection::vec(a_range(), 0..4),
            retain in prop::collection::vec(a_range(), 0..4),
            asked in prop::collection::vec((any::<bool>(), a_range()), 1..12),
            sector in prop_oneof![Just(512_u32), Just(4096)],
            ragged in 0..600_usize,
        ) {
            let size = SIZE - ragged;
            let file = file(&vec![0xaa; size]);
            let allow = Ranges::from_iter(allow);
            let retain = Ranges::from_iter(retain);
            let io = open(&file, sector, &allow, &retain);
            let mut wanted = vec![0xaa; size];
            for (zero, range) in asked {
                let is_far = range.end - range.start > 30_000;
                let may = (range.start..range.end).step_by(if is_far { 4_000_000_000_000 } else { 1 }).all(|at| {
                    at < size as u64
                        && allow.covers(&(at..at + 1))
                        && !retain.covers(&(at..at + 1))
                });
                let outcome = match zero {
                    true => io.zero(range.clone()),
                    false if is_far => io.check(range.clone()),
                    false => io.write_at(range.start, &vec![0x55; usize::try_from(range.end - range.start)?]),
                };
                if outcome.is_ok() && !range.is_empty() {
                    prop_assert!(may, "{:?} was written", range);
                    wanted[usize::try_from(range.start)?..usize::try_from(range.end)?].fill(if zero { 0 } else { 0x55 });
                }
                if let Err(error) = outcome {
                    prop_assert!(matches!(error, WriteError::Outside { .. }), "{}", error);
                }
            }
            prop_assert!(fs_err::read(file.path())? == wanted);
        }
    }

    #[test]
    fn allowed_range_is_written_read_and_zeroed() {
        let file = file(&vec![0xaa; SIZE]);
        let io = open(&file, 512, &all(), &none());
        io.write_at(700, &[1; 5000]).expect("it is allowed");
        io.zero(1024..3000).expect("it is allowed");
        io.sync().expect("it is durable");
        let mut wanted = vec![0xaa; SIZE];
        wanted[700..5700].fill(1);
        wanted[1024..3000].fill(0);
        assert!(fs_err::read(file.path()).expect("it is there") == wanted);
        let mut read = [0; 100];
        io.read_at(2950, &mut read).expect("it is there");
        assert_eq!(read[..], wanted[2950..3050]);
        assert!(io.read_at(SIZE as u64 - 99, &mut read).is_err());
    }

    #[test]
    fn device_without_zeroing_gets_written_zeros() {
        let file = file(&vec![0xff; SIZE]);
        let io = open(&file, 512, &Ranges::from(512..SIZE as u64), &none())
            .with_fault(Fault::without_punch());
        io.zero(1000..60_000).expect("it is allowed");
        let mut wanted = vec![0xff; SIZE];
        wanted[1000..60_000].fill(0);
        assert!(fs_err::read(file.path()).expect("it is there") == wanted);
        let written = io.fault().expect("it has one").write_count();
        assert!(written.bytes >= 59_000, "{written:?}");
    }

    #[test]
    fn second_writer_of_a_disk_is_refused() {
        let file = file(&vec![0; SIZE]);
        let meant = Identity::of(file.path(), 512).expect("it is there");
        let first = GuardedIo::open(file.path(), &meant, &none(), &none()).expect("nobody has it");
        let second = GuardedIo::open(file.path(), &meant, &none(), &none());
        assert!(matches!(second, Err(OpenError::InUse { .. })));
        drop(first);
        GuardedIo::open(file.path(), &meant, &none(), &none()).expect("nobody has it any more");
    }

    #[test]
    fn guard_waits_for_a_holder_that_is_about_to_close() {
        let file = file(&vec![0; SIZE]);
        let meant = Identity::of(file.path(), 512).expect("it is there");
        let first = GuardedIo::open(file.path(), &meant, &none(), &none()).expect("nobody has it");
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                begun.recv().expect("the other one opens it");
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(first);
            });
            begins.send(()).expect("somebody has it");
            GuardedIo::open(file.path(), &meant, &none(), &none()).expect("it was let go");
        });
    }

    #[test]
    fn disk_with_changed_identity_is_refused() {
        let file = file(&vec![0; SIZE]);
        let meant = Identity::of(file.path(), 512).expect("it is there");
        let io = GuardedIo::open(file.path(), &meant, &none(), &none()).expect("it is the one");
        file.as_file().set_len(512).expect("it is cut");
        let error = io.check_identity().expect_err("it has shrunk");
        assert!(error.to_string().contains("its size was 65536 and is 512"), "{error}");
        drop(io);
        let again = GuardedIo::open(file.path(), &meant, &none(), &none());
        assert!(matches!(again, Err(OpenError::Changed { what: "size", .. })));
        let directory = tempfile::tempdir().expect("a temporary directory");
        assert!(matches!(Identity::of(directory.path(), 512), Err(OpenError::NoDisk { .. })));
        let odd = Identity::of(file.path(), 520);
        assert!(matches!(odd, Err(OpenError::Sector { sector: 520, .. })));
    }

    #[test]
    fn refused_write_maps_to_permission_denied() {
        let file = file(&vec![0; SIZE]);
        let io = open(&file, 512, &all(), &Ranges::from(4096..8192));
        let error = io.write_at(4000, &[1; 100]).expect_err("it reaches what is retained");
        assert_eq!(
            error.to_string(),
            format!(
                "bytes 4000 to 4100 of `{}` are outside the planned ranges; nothing was written",
                file.path().display()
            )
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
    }
}
