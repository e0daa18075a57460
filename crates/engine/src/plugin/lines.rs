//! Splits chunks into lines of bounded length.

use std::mem;

/// Collects the bytes of an incomplete line.
#[derive(Debug)]
pub(super) struct Lines {
    limit: usize,
    kept: Vec<u8>,
    is_cut: bool,
}

/// A line without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    /// The line was longer; the rest was dropped.
    pub(super) is_cut: bool,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, kept: Vec::new(), is_cut: false }
    }

    /// The lines that end in this chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut parts = chunk.split(|byte| *byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.keep(part);
            lines.push(self.take());
        }
        self.keep(last);
        lines
    }

    /// The incomplete last line.
    pub(super) fn finish(&mut self) -> Option<Line> {
        (!self.kept.is_empty()).then(|| self.take())
    }

    fn keep(&mut self, part: &[u8]) {
        let room = self.limit - self.kept.len();
        self.is_cut |= part.len() > room;
        self.kept.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn take(&mut self) -> Line {
        Line { bytes: mem::take(&mut self.kept), is_cut: mem::take(&mut self.is_cut) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a>(limit: usize, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
        let mut lines = Lines::new(limit);
        let mut all: Vec<Line> = chunks.into_iter().flat_map(|chunk| lines.push(chunk)).collect();
        all.extend(lines.finish());
        all
    }

    /// Bytes with many newlines.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()];
        proptest::collection::vec(byte, 0..200)
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_chunking(bytes in bytes(), size in 1..40_usize, limit in 1..20_usize) {
            prop_assert_eq!(read(limit, bytes.chunks(size)), read(limit, [&bytes[..]]));
        }

        #[test]
        fn lines_are_cut_at_the_limit_and_none_is_lost(bytes in bytes(), limit in 1..20_usize) {
            let lines = read(limit, [&bytes[..]]);
            let mut plain: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
            if plain.last().is_some_and(|last| last.is_empty()) {
                plain.pop();
            }
            prop_assert_eq!(lines.len(), plain.len());
            for (line, plain) in lines.iter().zip(plain) {
                prop_assert_eq!(&line.bytes[..], &plain[..plain.len().min(limit)]);
                prop_assert_eq!(line.is_cut, plain.len() > limit);
            }
        }
    }

    #[test]
    fn line_at_the_limit_is_whole() {
        let line = |bytes: &[u8], is_cut| Line { bytes: bytes.to_vec(), is_cut };
        assert_eq!(
            read(3, [&b"abc\nabcd\nabcd"[..]]),
            [line(b"abc", false), line(b"abc", true), line(b"abc", true)]
        );
    }
}
