//! Reading bytes by place. Parsers take anything that can do that: a disk, a file, or memory.

use std::io;

/// Something that bytes are read from, by place.
pub trait ReadAt {
    /// Bytes that it has.
    fn size(&self) -> u64;

    /// Fills all of `into`; reading behind the end is an error.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
