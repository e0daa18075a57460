//! Something that is read at many places, as an image with tables in it has to be.
//!
//! A digest is of all of it. So all of it is read once, from its beginning to its end, and the digest of
//! each block is kept; what is read at a place afterwards must have that of its block. A server that
//! answers otherwise the second time is found out, and nothing has to fit into memory.

use std::collections::VecDeque;

use sha2::{Digest as _, Sha256};

use super::source::{Fetch, Origin};
use super::{Digest, ImageError, Watch};

/// What is fetched at once.
const BLOCK: u64 = 1024 * 1024;

/// With a digest for each block of it, 4 MiB of them.
pub(super) const MAX_FILE: u64 = 128 * 1024 * BLOCK;

/// Blocks that are kept: tables lie between what they point to.
const KEPT: usize = 4;

pub(super) struct Blocks<'a> {
    fetch: Fetch<'a>,
    size: u64,
    /// Of every block, if somebody said of which digest all of them are.
    digests: Option<Vec<Digest>>,
    kept: VecDeque<(u64, Vec<u8>)>,
}

impl<'a> Blocks<'a> {
    /// Reads all of it if there is a digest to compare.
    pub(super) fn open(
        origin: &'a Origin,
        wanted: Option<Digest>,
        watch: &dyn Watch,
    ) -> Result<Self, ImageError> {
        let mut fetch = Fetch::begin(origin, 0)?;
        let size = fetch.needs_places()?;
        if size > MAX_FILE {
            return Err(ImageError::TooLong { size });
        }
        let digests = match wanted {
            None => None,
            Some(wanted) => Some(all(&mut fetch, size, wanted, watch)?),
        };
        Ok(Self { fetch, size, digests, kept: VecDeque::with_capacity(KEPT) })
    }

    /// Of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// What is behind the end reads as zeros.
    pub(super) fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let mut done = 0;
        while done < into.len() {
            let Some(place) = at.checked_add(done as u64).filter(|place| *place < self.size) else {
                into[done..].fill(0);
                return Ok(());
            };
            let (number, skip) = (place / BLOCK, usize::try_from(place % BLOCK).expect("small"));
            let block = self.block(number)?;
            let length = (block.len() - skip).min(into.len() - done);
            into[done..done + length].copy_from_slice(&block[skip..skip + length]);
            done += length;
        }
        Ok(())
    }

    fn block(&mut self, number: u64) -> Result<&[u8], ImageError> {
        if let Some(at) = self.kept.iter().position(|(kept, _)| *kept == number) {
            return Ok(&self.kept[at].1);
        }
        let start = number * BLOCK;
        let length = usize::try_from(BLOCK.min(self.size - start)).expect("at most a block");
        let oldest = if self.kept.len() < KEPT { None } else { self.kept.pop_front() };
        let mut bytes = oldest.map_or_else(Vec::new, |(_, bytes)| bytes);
        bytes.resize(length, 0);
        self.fetch.seek(start);
        self.fetch.read_exactly(&mut bytes)?;
        let wanted = self.digests.as_ref().map(|all| all[usize::try_from(number).expect("few")]);
        if wanted.is_some_and(|wanted| wanted != Digest::of(&bytes)) {
            let tried = vec!["it has changed since it was looked at".to_owned()];
            return Err(ImageError::Chunk { offset: start, tried });
        }
        self.kept.push_back((number, bytes));
        Ok(self.kept.back().map_or(&[], |(_, bytes)| bytes))
    }
}

/// The digest of each block, if that of all of them is the right one.
fn all(
    fetch: &mut Fetch<'_>,
    size: u64,
    wanted: Digest,
    watch: &dyn Watch,
) -> Result<Vec<Digest>, ImageError> {
    let (mut hash, mut digests, mut done) = (Sha256::new(), Vec::new(), 0);
    let mut block = vec![0; usize::try_from(BLOCK).expect("small")];
    while done < size {
        if watch.is_stopped() {
            return Err(ImageError::Stopped);
        }
        let length = usize::try_from(BLOCK.min(size - done)).expect("at most a block");
        fetch.read_exactly(&mut block[..length])?;
        hash.update(&block[..length]);
        digests.push(Digest::of(&block[..length]));
        done += length as u64;
    }
    match Digest::end(hash) {
        is if is == wanted => Ok(digests),
        is => Err(ImageError::Digest { wanted, is }),
    }
}
