//! A range of a disk as a seekable stream with a cache.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::rc::Rc;

use hoist_provision::read_at::ReadAt;

use crate::GuardedIo;

/// Bytes in one read or write. The file system accesses tables and data in small pieces, and the
/// disk is opened without the page cache.
const BLOCK: u64 = 64 * 1024;
/// Blocks in the cache.
const KEPT: usize = 32;

/// The device below a volume.
pub trait Medium {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Medium for &GuardedIo {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_at(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Ok(self.write_at(at, bytes)?)
    }
}

/// A read-only medium.
#[derive(Debug)]
pub struct ReadOnly<'a, R: ?Sized>(pub &'a R);

impl<R: ReadAt + ?Sized> Medium for ReadOnly<'_, R> {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, into)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

struct Block {
    bytes: Vec<u8>,
    is_new: bool,
    /// Time of the last access.
    used: u64,
}

pub(super) struct Window<M: Medium> {
    medium: M,
    range: Range<u64>,
    position: u64,
    blocks: BTreeMap<u64, Block>,
    clock: u64,
    /// Position of the last written `..` entry.
    parent: Option<u64>,
}

/// Names of the entries `.` and `..` of a directory.
const ITSELF: &[u8; 11] = b".          ";
const PARENT: &[u8; 11] = b"..         ";
/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// The two halves of the cluster number in an entry.
const CLUSTER: [Range<usize>; 2] = [20..22, 26..28];

impl<M: Medium> Window<M> {
    pub(super) fn new(medium: M, range: Range<u64>) -> Self {
        Self { medium, range, position: 0, blocks: BTreeMap::new(), clock: 0, parent: None }
    }

    /// Corrects a directory that was just created. `fatfs` writes long names for `.` and `..`,
    /// although the specification requires these entries first and without long names. In
    /// directories of a FAT32 root, `..` names the cluster of the root instead of zero. Linux
    /// accepts both; firmware and checkers may not.
    fn mend(&mut self, is_in_root: bool) -> io::Result<()> {
        let Some(start) = self.parent.take().and_then(|at| at.checked_sub(3 * ENTRY as u64)) else {
            return Ok(());
        };
        let mut entries = [0; 4 * ENTRY];
        self.seek(SeekFrom::Start(start))?;
        self.read_exact(&mut entries)?;
        let itself = ENTRY..2 * ENTRY;
        let parent = 3 * ENTRY..4 * ENTRY;
        if !entries[itself.clone()].starts_with(ITSELF)
            || !entries[parent.clone()].starts_with(PARENT)
        {
            return Err(io::Error::other("a directory does not start with `.` and `..`"));
        }
        entries.copy_within(itself, 0);
        entries.copy_within(parent, ENTRY);
        entries[2 * ENTRY..].fill(0);
        if is_in_root {
            for half in CLUSTER {
                entries[ENTRY..][half].fill(0);
            }
        }
        self.seek(SeekFrom::Start(start))?;
        self.write_all(&entries)
    }

    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The block at the current position, and the part of it that the request covers.
    fn block(&mut self, wanted: usize) -> io::Result<(&mut Block, Range<usize>)> {
        let number = self.position / BLOCK;
        if !self.blocks.contains_key(&number) {
            self.make_room()?;
            let start = number * BLOCK;
            let length = BLOCK.min(self.size() - start);
            let mut bytes = vec![0; usize::try_from(length).expect("it is a block")];
            self.medium.read(self.range.start + start, &mut bytes)?;
            self.blocks.insert(number, Block { bytes, is_new: false, used: 0 });
        }
        self.clock += 1;
        let block = self.blocks.get_mut(&number).expect("it is there now");
        block.used = self.clock;
        let from = usize::try_from(self.position % BLOCK).expect("it is in a block");
        let to = block.bytes.len().min(from + wanted);
        self.position += (to - from) as u64;
        Ok((block, from..to))
    }

    /// Evicts the least recently used block.
    fn make_room(&mut self) -> io::Result<()> {
        if self.blocks.len() < KEPT {
            return Ok(());
        }
        let oldest = self.blocks.iter().min_by_key(|(_, block)| block.used);
        let Some(number) = oldest.map(|(number, _)| *number) else { return Ok(()) };
        if let Some(block) = self.blocks.remove(&number).filter(|block| block.is_new) {
            self.medium.write(self.range.start + number * BLOCK, &block.bytes)?;
        }
        Ok(())
    }
}

impl<M: Medium> Read for Window<M> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || self.position >= self.size() {
            return Ok(0);
        }
        let (block, part) = self.block(into.len())?;
        let bytes = &block.bytes[part];
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

impl<M: Medium> Write for Window<M> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() || self.position >= self.size() {
            return Ok(0);
        }
        if bytes == PARENT {
            self.parent = Some(self.position);
        }
        let (block, part) = self.block(bytes.len())?;
        let length = part.len();
        block.bytes[part].copy_from_slice(&bytes[..length]);
        block.is_new = true;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        for (number, block) in self.blocks.iter_mut().filter(|(_, block)| block.is_new) {
            self.medium.write(self.range.start + number * BLOCK, &block.bytes)?;
            block.is_new = false;
        }
        Ok(())
    }
}

impl<M: Medium> Seek for Window<M> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Errors are lost here. The caller must call [`Write::flush`] first.
impl<M: Medium> Drop for Window<M> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A window that is shared by the file system and the code that corrects its directories.
pub(super) struct SharedWindow<M: Medium>(Rc<RefCell<Window<M>>>);

impl<M: Medium> SharedWindow<M> {
    pub(super) fn new(medium: M, range: Range<u64>) -> Self {
        Self(Rc::new(RefCell::new(Window::new(medium, range))))
    }

    pub(super) fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    /// Runs `work`, then corrects the directory that it created, if any. See [`Window::mend`].
    pub(super) fn mended<T>(
        &self,
        is_in_root: bool,
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.borrow_mut().parent = None;
        let made = work()?;
        self.0.borrow_mut().mend(is_in_root)?;
        Ok(made)
    }
}

impl<M: Medium> Read for SharedWindow<M> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(into)
    }
}

impl<M: Medium> Write for SharedWindow<M> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl<M: Medium> Seek for SharedWindow<M> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.borrow_mut().seek(to)
    }
}
