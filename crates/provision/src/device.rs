//! What touches devices. Nothing here decides anything: it carries out what was decided, and
//! [`guard::GuardedIo`] is the only way to write.

pub mod above;
pub mod buffer;
mod disk;
pub mod efivars;
pub mod fault;
pub mod gap;
pub mod guard;
mod ioctl;
pub mod kernel;
pub(crate) mod mount;
pub mod nvme;
pub mod probe;
pub mod ranges;
#[cfg(test)]
pub(crate) mod scratch;
pub mod signature;
pub mod table;

use std::io;

pub use disk::{Identity, OpenError, ReadIo};
pub use guard::GuardedIo;
pub use ranges::Ranges;

/// Something that bytes are read from, by place.
pub trait ReadAt {
    /// Bytes that it has.
    fn size(&self) -> u64;

    /// Fills all of `into`; what is behind the end is an error.
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
