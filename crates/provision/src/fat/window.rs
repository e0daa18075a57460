//! A part of a disk as something that is read and written from its beginning.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::rc::Rc;

use crate::device::{GuardedIo, ReadAt};

/// What is read and written at once: whoever makes a volume goes back and forth between its tables
/// and its data by a few bytes, and a disk is read and written past all caches.
const BLOCK: u64 = 64 * 1024;
/// Blocks that are kept.
const KEPT: usize = 32;

/// What a volume lies on.
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

/// Something that is only looked at.
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
    /// When it was last wanted.
    used: u64,
}

pub(super) struct Window<M: Medium> {
    medium: M,
    range: Range<u64>,
    position: u64,
    blocks: BTreeMap<u64, Block>,
    clock: u64,
    /// Where the entry of a directory for the one above it was last written.
    above: Option<u64>,
}

/// The name of the entry of a directory for itself, and for the one above it.
const ITSELF: &[u8; 11] = b".          ";
const ABOVE: &[u8; 11] = b"..         ";
/// Bytes of an entry.
const ENTRY: usize = 32;
/// In an entry, the two halves of the cluster that it leads to.
const CLUSTER: [Range<usize>; 2] = [20..22, 26..28];

impl<M: Medium> Window<M> {
    pub(super) fn new(medium: M, range: Range<u64>) -> Self {
        Self { medium, range, position: 0, blocks: BTreeMap::new(), clock: 0, above: None }
    }

    /// Mends the directory that was just made, if one was. `fatfs` puts a long name before each of the
    /// first two entries, which by the specification have none and come first, and in the directories
    /// of the root of FAT32 it names the root by its cluster, where it is to be zero. Linux does not
    /// mind; firmware and checkers may.
    fn mend(&mut self, is_in_root: bool) -> io::Result<()> {
        let Some(start) = self.above.take().and_then(|at| at.checked_sub(3 * ENTRY as u64)) else {
            return Ok(());
        };
        let mut entries = [0; 4 * ENTRY];
        self.seek(SeekFrom::Start(start))?;
        self.read_exact(&mut entries)?;
        let (itself, above) = (ENTRY..2 * ENTRY, 3 * ENTRY..4 * ENTRY);
        if !entries[itself.clone()].starts_with(ITSELF)
            || !entries[above.clone()].starts_with(ABOVE)
        {
            return Err(io::Error::other("a directory does not begin as it should"));
        }
        entries.copy_within(itself, 0);
        entries.copy_within(above, ENTRY);
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

    /// The block of the position, where in it that is, and how much of a wish is in it.
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

    /// The block that was not wanted for the longest time goes.
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
        if bytes == ABOVE {
            self.above = Some(self.position);
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

/// Whoever fills a volume asks first whether all came there, with [`Write::flush`].
impl<M: Medium> Drop for Window<M> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A window for a file system and for who mends what it does.
pub(super) struct Shared<M: Medium>(Rc<RefCell<Window<M>>>);

impl<M: Medium> Shared<M> {
    pub(super) fn new(medium: M, range: Range<u64>) -> Self {
        Self(Rc::new(RefCell::new(Window::new(medium, range))))
    }

    pub(super) fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    /// See [`Window::mend`]: what `work` makes, if it makes one.
    pub(super) fn mended<T>(
        &self,
        is_in_root: bool,
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.borrow_mut().above = None;
        let made = work()?;
        self.0.borrow_mut().mend(is_in_root)?;
        Ok(made)
    }
}

impl<M: Medium> Read for Shared<M> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(into)
    }
}

impl<M: Medium> Write for Shared<M> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl<M: Medium> Seek for Shared<M> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.borrow_mut().seek(to)
    }
}
