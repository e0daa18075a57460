//! Unpacking a stream.

use std::io::{self, BufRead, Read};

use hoist_provision::document::Compression;

use super::ImageError;

/// Largest window of a decompressor. `zstd -19` needs half of it.
pub(super) const WINDOW: u64 = 1 << WINDOW_LOG;
pub(super) const WINDOW_LOG: u32 = 24;

/// Magic bytes of the compression formats.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The unpacked bytes of a stream.
pub(super) enum Decoder<R: BufRead> {
    Raw(R),
    /// Concatenated members form one image.
    Gzip(Box<flate2::bufread::MultiGzDecoder<R>>),
    /// Concatenated frames form one image.
    Zstd(Box<zstd::stream::read::Decoder<'static, R>>),
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(mut packed: R, compression: Compression) -> io::Result<Self> {
        let compression = match compression {
            Compression::Detect => detect(packed.fill_buf()?),
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
        })
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Raw(stream) => stream.read(into),
            Self::Gzip(stream) => stream.read(into),
            Self::Zstd(stream) => stream.read(into),
        }
    }
}

fn detect(start: &[u8]) -> Compression {
    let skippable = start.get(1..4) == Some(&[0x2a, 0x4d, 0x18]) && start[0] & 0xf0 == 0x50;
    if start.starts_with(&GZIP) {
        Compression::Gzip
    } else if start.starts_with(&ZSTD) || skippable {
        Compression::Zstd
    } else {
        Compression::None
    }
}

/// Whether a stream with this first byte is uncompressed.
pub(super) fn is_plain(first: Option<u8>, compression: Compression) -> bool {
    let may_be_packed = |first: u8| first == GZIP[0] || first == ZSTD[0] || first & 0xf0 == 0x50;
    match compression {
        Compression::None => true,
        Compression::Detect => first.is_some_and(|first| !may_be_packed(first)),
        Compression::Gzip | Compression::Zstd => false,
    }
}

/// Classifies an error of the decompressor.
pub(super) fn failure(error: io::Error) -> ImageError {
    if error.to_string().contains("too much memory") {
        ImageError::Window
    } else {
        ImageError::Unpack(error)
    }
}
