//! Reading of files that may be large, or that are not plain files.
//!
//! Reading a FIFO or a device may block for ever, and no deadline would end it.

use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Instant;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Cancel, Ctx, Failure};
use rustix::fs::OFlags;

use super::{exit, timeout};

/// Between two of these it is seen that a step shall end.
const BLOCK: usize = 256 * 1024;

/// When a read must end, finished or not.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) deadline: Option<Instant>,
    pub(super) cancel: &'a Cancel,
}

impl<'a> Until<'a> {
    pub(super) fn of(ctx: &Ctx<'a>) -> Self {
        Self { deadline: ctx.deadline, cancel: ctx.cancel }
    }

    pub(super) fn look(self) -> Result<(), Failure> {
        if self.cancel.is_cancelled() {
            return Err(exit("stopped"));
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(timeout("timed out"));
        }
        Ok(())
    }
}

/// A plain file, a block at a time.
pub(super) struct Blocks<'a> {
    file: fs_err::File,
    until: Until<'a>,
}

impl<'a> Blocks<'a> {
    pub(super) fn open(path: &Path, until: Until<'a>) -> io::Result<BufReader<Self>> {
        let odd = || io::Error::other(format!("`{}` is not a regular file", path.display()));
        // Only to open some devices does something already.
        if !fs_err::metadata(path)?.is_file() {
            return Err(odd());
        }
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = fs_err::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(odd());
        }
        Ok(BufReader::with_capacity(BLOCK, Self { file, until }))
    }

    pub(super) fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.file.metadata()
    }
}

impl Read for Blocks<'_> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        self.until.look().map_err(io::Error::other)?;
        self.file.read(block)
    }
}
