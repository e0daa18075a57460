//! Unpacking a stream.

use std::io::{self, BufRead, Read};

use hoist_provision::document::Compression;

use super::stream::fill;
use super::{ImageError, format};

/// Largest window of a decompressor. `zstd -19` needs half of it.
pub(super) const WINDOW: u64 = 1 << WINDOW_LOG;
pub(super) const WINDOW_LOG: u32 = 24;

/// Most memory of a decompressor of xz, in KiB. `xz -9` needs 64 MiB and a little.
const XZ_MEMORY: u32 = 80 * 1024;

/// The unpacked bytes of a stream.
pub(super) enum Decoder<R: BufRead> {
    Raw(R),
    /// Concatenated members form one image.
    Gzip(Box<flate2::bufread::MultiGzDecoder<R>>),
    /// Concatenated frames form one image.
    Zstd(Box<zstd::stream::read::Decoder<'static, R>>),
    /// Concatenated streams form one image.
    Xz(Box<lzma_rust2::XzReader<FullReads<R>>>),
}

/// Reads as many bytes as requested. The decompressor of xz takes a partial read between two
/// streams for the end.
pub(super) struct FullReads<R>(R);

impl<R: Read> Read for FullReads<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        fill(&mut self.0, into)
    }
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(mut packed: R, compression: Compression) -> io::Result<Self> {
        let compression = match compression {
            Compression::Detect => format::compression(packed.fill_buf()?),
            known => known,
        };
        Ok(match compression {
            Compression::Detect | Compression::None => Self::Raw(packed),
            Compression::Gzip => Self::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(packed))),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                decoder.window_log_max(WINDOW_LOG)?;
                Self::Zstd(Box::new(decoder))
            }
            Compression::Xz => {
                let packed = FullReads(packed);
                Self::Xz(Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, XZ_MEMORY)))
            }
        })
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Raw(stream) => stream.read(into),
            Self::Gzip(stream) => stream.read(into),
            Self::Zstd(stream) => stream.read(into),
            Self::Xz(stream) => stream.read(into),
        }
    }
}

/// Whether a stream with these first bytes is uncompressed. No bytes are no evidence.
pub(super) fn is_plain(start: &[u8], compression: Compression) -> bool {
    match compression {
        Compression::None => true,
        Compression::Detect => !start.is_empty() && format::compression(start) == Compression::None,
        Compression::Gzip | Compression::Zstd | Compression::Xz => false,
    }
}

/// Classifies an error of the decompressor.
pub(super) fn failure(error: io::Error) -> ImageError {
    if error.kind() == io::ErrorKind::OutOfMemory {
        let most = u64::from(XZ_MEMORY) * 1024;
        ImageError::Window { most, remedy: "pack it with `xz -9` or less" }
    } else if error.to_string().contains("too much memory") {
        ImageError::Window { most: WINDOW, remedy: "pack it without `--ultra` and `--long`" }
    } else {
        ImageError::Unpack(error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 3,000 bytes of `hoist` lines, packed by `xz --check=crc32`.
    const PACKED: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21,
        0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x0b, 0xb7, 0x00, 0x1c, 0x5d,
        0x00, 0x34, 0x1b, 0xc9, 0x62, 0x30, 0xaf, 0x9e, 0x62, 0x4b, 0xbb, 0x86, 0x18, 0x37, 0xcb,
        0xc6, 0x42, 0x62, 0xd2, 0x1f, 0xc0, 0xa8, 0x5e, 0xb9, 0x0f, 0xf8, 0x86, 0x52, 0x00, 0x00,
        0xdb, 0xa7, 0xa0, 0x09, 0x00, 0x01, 0x34, 0xb8, 0x17, 0x00, 0x00, 0x00, 0x95, 0xbd, 0xc7,
        0xb1, 0x3e, 0x30, 0x0d, 0x8b, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut unpacked = Vec::new();
        let decoder = Decoder::new(packed, Compression::Xz)?;
        decoder.take(1 << 20).read_to_end(&mut unpacked)?;
        Ok(unpacked)
    }

    #[test]
    fn xz_streams_and_their_padding_are_one_image() {
        let one = b"hoist\n".repeat(500);
        assert_eq!(unpack(PACKED).expect("it is whole"), one);
        let two = [PACKED, &[0; 8], PACKED].concat();
        assert_eq!(unpack(&two).expect("it is whole"), one.repeat(2));
        for length in 1..PACKED.len() {
            unpack(&PACKED[..length]).expect_err("it is truncated");
        }
        unpack(&[PACKED, b"more"].concat()).expect_err("another file follows");
    }

    proptest! {
        #[test]
        fn damaged_xz_never_gives_other_bytes(at in 0..PACKED.len(), flip in 1..=u8::MAX) {
            let mut packed = PACKED.to_vec();
            packed[at] ^= flip;
            if let Ok(unpacked) = unpack(&packed) {
                prop_assert_eq!(unpacked, b"hoist\n".repeat(500));
            }
        }

        #[test]
        fn no_xz_stream_makes_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 12..PACKED.len(),
        ) {
            let _ = unpack(&[&PACKED[..12], &bytes[..]].concat());
            let _ = unpack(&[&PACKED[..cut], &bytes[..]].concat());
        }
    }
}
