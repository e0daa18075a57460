//! Chunk manifests of images: every 4 MiB are a zstd frame, and the manifest lists position and
//! digest of each. Chunks are unpacked in parallel and checked separately, and chunks of an earlier
//! attempt are not fetched again. Chunks of zeros are only in the manifest.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Most bytes of a chunk, unpacked.
pub const MAX_CHUNK: usize = 4 * 1024 * 1024;

/// Bytes of a list that is read.
pub const MAX_MANIFEST: u64 = 128 * 1024 * 1024;

/// Chunks that a list may have: 2 TiB.
pub const MAX_CHUNKS: usize = 512 * 1024;

/// Most bytes of a packed chunk. Larger ones are refused.
pub const MAX_STORED: u32 = 4 * 1024 * 1024 + 64 * 1024;
const _: () = assert!(MAX_STORED as usize == MAX_CHUNK + 64 * 1024);

/// The largest sector that there is: chunks begin where sectors do.
const ALIGNMENT: u64 = 4096;

const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub version: u32,
    /// Unpacked.
    pub size: u64,
    pub chunks: Vec<Chunk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Entry", into = "Entry")]
pub struct Chunk {
    /// Within the image, unpacked.
    pub offset: u64,
    pub length: u32,
    pub kind: ChunkKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkKind {
    /// All of it is zero, and must be.
    Zero,
    Data {
        /// Unpacked.
        sha256: Digest,
        /// The range in the fetched file.
        at: u64,
        stored: u32,
        /// The digest of the packed bytes. It suffices to verify a chunk; without it the unpacked
        /// bytes are verified.
        packed: Option<Digest>,
    },
}

/// A chunk as it is written in the list.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    offset: u64,
    length: u32,
    kind: Word,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packed: Option<Digest>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Zero,
    Data,
}

impl TryFrom<Entry> for Chunk {
    type Error = &'static str;

    fn try_from(entry: Entry) -> Result<Self, Self::Error> {
        let Entry { offset, length, packed, .. } = entry;
        let kind = match (entry.kind, entry.sha256, entry.at, entry.stored) {
            (Word::Zero, None, None, None) if packed.is_none() => ChunkKind::Zero,
            (Word::Data, Some(sha256), Some(at), Some(stored)) => {
                ChunkKind::Data { sha256, at, stored, packed }
            }
            (Word::Zero, ..) => return Err("a chunk of zeros has nothing but its place"),
            (Word::Data, ..) => return Err("a chunk of data has `sha256`, `at` and `stored`"),
        };
        Ok(Self { offset, length, kind })
    }
}

impl From<Chunk> for Entry {
    fn from(Chunk { offset, length, kind }: Chunk) -> Self {
        let (kind, sha256, at, stored, packed) = match kind {
            ChunkKind::Zero => (Word::Zero, None, None, None, None),
            ChunkKind::Data { sha256, at, stored, packed } => {
                (Word::Data, Some(sha256), Some(at), Some(stored), packed)
            }
        };
        Self { offset, length, kind, sha256, at, stored, packed }
    }
}

/// Why a manifest is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    #[error("the list of chunks has the digest {is}, not {wanted}")]
    Digest { wanted: Digest, is: Digest },
    #[error("this is no list of chunks")]
    Syntax(#[source] serde_json::Error),
    #[error(
        "the list of chunks is of version {0}, which this program does not know; use a newer one"
    )]
    Version(u32),
    #[error("the image has {0} chunks; at most {MAX_CHUNKS} are known")]
    TooMany(usize),
    #[error("chunk {number} of the list is impossible: {what}")]
    Chunk { number: usize, what: &'static str },
    #[error("the chunks are {is} bytes together, not {wanted}")]
    Size { wanted: u64, is: u64 },
}

impl Manifest {
    pub fn new(size: u64, chunks: Vec<Chunk>) -> Self {
        Self { version: VERSION, size, chunks }
    }

    /// Reads a fetched manifest. A manifest with the expected digest is trusted, so the digest must
    /// come from a trusted source.
    pub fn parse(bytes: &[u8], wanted: Option<Digest>) -> Result<Self, ManifestError> {
        let is = Digest::of(bytes);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != is) {
            return Err(ManifestError::Digest { wanted, is });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Syntax)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        if self.version != VERSION {
            return Err(ManifestError::Version(self.version));
        }
        if self.chunks.len() > MAX_CHUNKS {
            return Err(ManifestError::TooMany(self.chunks.len()));
        }
        let mut offset = 0_u64;
        let mut place = 0_u64;
        for (number, chunk) in self.chunks.iter().enumerate() {
            let wrong = |what| Err(ManifestError::Chunk { number, what });
            if chunk.offset != offset {
                return wrong("it does not begin where the one before it ends");
            }
            if !offset.is_multiple_of(ALIGNMENT) {
                return wrong("it does not begin at a multiple of 4096");
            }
            if chunk.length == 0 || chunk.length as usize > MAX_CHUNK {
                return wrong("it is empty, or larger than 4 MiB");
            }
            offset += u64::from(chunk.length);
            if let ChunkKind::Data { at, stored, .. } = chunk.kind {
                if at < place || at.checked_add(stored.into()).is_none() {
                    return wrong("it is fetched before the one before it");
                }
                if stored == 0 || stored > MAX_STORED {
                    return wrong("its packed range is empty, or too large");
                }
                place = at + u64::from(stored);
            }
        }
        if offset != self.size {
            return Err(ManifestError::Size { wanted: self.size, is: offset });
        }
        Ok(())
    }

    /// Whether the first chunk has so many bytes, or all that there are.
    pub fn begins_with_all_of(&self, bytes: u64) -> bool {
        let first = self.chunks.first().map_or(0, |chunk| u64::from(chunk.length));
        first >= bytes.min(self.size)
    }

    /// The number of the chunk that a byte of the image is in.
    pub fn number_at(&self, byte: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.offset + u64::from(chunk.length) <= byte)
    }
}

impl Chunk {
    /// Whether these bytes are the unpacked chunk.
    pub fn is(&self, bytes: &[u8]) -> bool {
        match &self.kind {
            ChunkKind::Zero => is_zero(bytes),
            ChunkKind::Data { sha256, .. } => Digest::of(bytes) == *sha256,
        }
    }

    /// Whether these fetched bytes are the packed chunk, if its digest is known.
    pub fn is_packed(&self, bytes: &[u8]) -> Option<bool> {
        match &self.kind {
            ChunkKind::Data { packed: Some(packed), .. } => Some(Digest::of(bytes) == *packed),
            _ => None,
        }
    }
}

pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(offset: u64, length: u32, at: u64, stored: u32) -> Chunk {
        let kind = ChunkKind::Data { sha256: Digest::of(b""), at, stored, packed: None };
        Chunk { offset, length, kind }
    }

    fn zero(offset: u64, length: u32) -> Chunk {
        Chunk { offset, length, kind: ChunkKind::Zero }
    }

    fn problem(size: u64, chunks: Vec<Chunk>) -> String {
        let bytes = serde_json::to_vec(&Manifest::new(size, chunks)).expect("a plain value");
        match Manifest::parse(&bytes, None) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn impossible_manifest_is_refused() {
        let good =
            || vec![data(0, 4096, 0, 100), zero(4096, 4 << 20), data((4 << 20) + 4096, 10, 100, 5)];
        let size = (4 << 20) + 4096 + 10;
        assert_eq!(problem(size, good()), "");
        assert!(problem(size + 1, good()).contains("together, not"));
        let with = |at: usize, chunk: Chunk| {
            let mut chunks = good();
            chunks[at] = chunk;
            problem(size, chunks)
        };
        assert!(
            with(1, zero(8192, 4096))
                .contains("chunk 1 of the list is impossible: it does not begin where")
        );
        assert!(with(1, zero(4096, (4 << 20) + 1)).contains("larger than 4 MiB"));
        assert!(with(1, zero(4096, 0)).contains("is empty"));
        assert!(with(0, data(0, 4097, 0, 1)).contains("does not begin where"));
        assert!(with(2, data((4 << 20) + 4096, 10, 99, 5)).contains("fetched before"));
        assert!(with(2, data((4 << 20) + 4096, 10, u64::MAX, 5)).contains("fetched before"));
        assert!(with(2, data((4 << 20) + 4096, 10, 100, MAX_STORED + 1)).contains("too large"));
        assert_eq!(with(2, data((4 << 20) + 4096, 10, 100, MAX_STORED)), "");
        assert!(problem(5001, vec![zero(0, 5000), zero(5000, 1)]).contains("multiple of 4096"));
        let many = (0..=MAX_CHUNKS as u64).map(|at| zero(at * 4096, 4096)).collect();
        assert!(problem(0, many).contains("at most 524288"));
        let begins =
            |chunks: Vec<Chunk>, size| Manifest::new(size, chunks).begins_with_all_of(8192);
        assert!(begins(vec![zero(0, 8192), zero(8192, 1)], 8193) && begins(vec![zero(0, 10)], 10));
        assert!(!begins(vec![zero(0, 4096), zero(4096, 8192)], 12288) && begins(Vec::new(), 0));
    }

    #[test]
    fn manifest_of_other_version_or_digest_is_refused() {
        let bytes = br#"{"version":2,"size":0,"chunks":[]}"#;
        let error = Manifest::parse(bytes, None).expect_err("it is newer");
        assert!(matches!(error, ManifestError::Version(2)));
        let error = Manifest::parse(bytes, Some(Digest::of(b"other"))).expect_err("it is another");
        assert!(matches!(error, ManifestError::Digest { .. }));
        assert!(matches!(Manifest::parse(b"[]", None), Err(ManifestError::Syntax(_))));
    }

    #[test]
    fn manifest_round_trips() {
        let manifest = Manifest::new(8192, vec![zero(0, 4096), data(4096, 4096, 0, 7)]);
        let text = serde_json::to_string(&manifest).expect("a plain value");
        let digest = Digest::of(b"");
        let wanted = format!(
            r#"{{"version":1,"size":8192,"chunks":[{{"offset":0,"length":4096,"kind":"zero"}},{{"offset":4096,"length":4096,"kind":"data","sha256":"{digest}","at":0,"stored":7}}]}}"#
        );
        assert_eq!(text, wanted);
        let read = Manifest::parse(text.as_bytes(), Some(Digest::of(text.as_bytes())));
        assert_eq!(read.expect("it was just written"), manifest);
        for odd in [text.replace(r#""at":0,"#, ""), text.replace(r#""zero""#, r#""zero","at":1"#)] {
            assert!(matches!(Manifest::parse(odd.as_bytes(), None), Err(ManifestError::Syntax(_))));
        }
    }

    proptest! {
        #[test]
        fn no_list_makes_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            numbers in prop::collection::vec(any::<(u64, u32, u64, u32)>(), 0..8),
            size in any::<u64>(),
            flips in prop::collection::vec((0..4096_usize, any::<u8>()), 0..4),
        ) {
            let _ = Manifest::parse(&bytes, None);
            let wild = |(offset, length, at, stored)| data(offset, length, at, stored);
            let list = Manifest::new(size, numbers.into_iter().map(wild).collect());
            let mut text = serde_json::to_vec(&list).expect("a plain value");
            let _ = Manifest::parse(&text, None);
            for (at, byte) in flips {
                let at = at % text.len();
                text[at] = byte;
            }
            let _ = Manifest::parse(&text, None);
        }
    }
}
