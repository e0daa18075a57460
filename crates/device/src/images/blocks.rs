//! Verified random access to a file on a server, for image formats with tables.
//!
//! The expected digest covers the whole file. The file is therefore read once from start to end,
//! and the digest of each block is stored. Every later read of a block must match its digest, which
//! detects a server that returns different bytes the second time. The file never has to fit into
//! memory.

use std::collections::VecDeque;

use hoist_provision::digest::Digest;
use sha2::{Digest as _, Sha256};

use super::source::{Fetch, Origin};
use super::{ImageError, Watch};

/// Bytes in one request.
const BLOCK: u64 = 1024 * 1024;

/// Largest supported file. The digests of its blocks take 4 MiB.
pub(super) const MAX_FILE: u64 = 128 * 1024 * BLOCK;

/// Blocks in the cache. Tables lie between the data that they point to.
const KEPT: usize = 4;

pub(super) struct Blocks<'a> {
    fetch: Fetch<'a>,
    size: u64,
    /// The digest of each block, if the digest of the file is known.
    digests: Option<Vec<Digest>>,
    kept: VecDeque<(u64, Vec<u8>)>,
}

impl<'a> Blocks<'a> {
    /// Opens the file. Reads it completely if there is a digest to compare.
    pub(super) fn open(
        origin: &'a Origin,
        wanted: Option<Digest>,
        watch: &dyn Watch,
    ) -> Result<Self, ImageError> {
        let mut fetch = Fetch::begin(origin, 0)?;
        let size = fetch.needs_random_access()?;
        if size > MAX_FILE {
            return Err(ImageError::TooLong { size });
        }
        let digests = match wanted {
            None => None,
            Some(wanted) => Some(all(&mut fetch, size, wanted, watch)?),
        };
        Ok(Self { fetch, size, digests, kept: VecDeque::with_capacity(KEPT) })
    }

    /// The size of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes behind the end of the file read as zeros.
    pub(super) fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let mut done = 0;
        while done < into.len() {
            let Some(place) = at.checked_add(done as u64).filter(|place| *place < self.size) else {
                into[done..].fill(0);
                return Ok(());
            };
            let number = place / BLOCK;
            let skip = usize::try_from(place % BLOCK).expect("small");
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
            let tried = vec!["the file changed after it was verified".to_owned()];
            return Err(ImageError::Chunk { offset: start, tried });
        }
        self.kept.push_back((number, bytes));
        Ok(self.kept.back().map_or(&[], |(_, bytes)| bytes))
    }
}

/// The digest of each block, if the digest of the whole file matches.
fn all(
    fetch: &mut Fetch<'_>,
    size: u64,
    wanted: Digest,
    watch: &dyn Watch,
) -> Result<Vec<Digest>, ImageError> {
    let mut hash = Sha256::new();
    let mut digests = Vec::new();
    let mut done = 0;
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
