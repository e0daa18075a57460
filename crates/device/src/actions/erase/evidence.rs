//! Samples of a disk before and after its erasure.

use std::io;
use std::ops::Range;

use hoist_provision::read_at::ReadAt;

/// Number of samples that are read back.
pub(super) const SAMPLES: u64 = 64;
pub(super) const SAMPLE: usize = 64 * 1024;

/// The unit of comparison: the block size in which file systems change data.
const PIECE: usize = 4096;

/// The ranges to read back: both ends, and places between them that depend on the seed.
pub(super) fn places(range: &Range<u64>, seed: u64) -> Vec<Range<u64>> {
    let length = (range.end - range.start).min(SAMPLE as u64);
    let room = range.end - range.start - length;
    let mut random = seed | 1;
    let places = (0..SAMPLES).map(|number| match number {
        0 => 0,
        1 => room,
        _ => {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % (room + 1)
        }
    });
    places.map(|at| range.start + at..range.start + at + length).collect()
}

/// The bytes at these places.
pub(super) fn read(disk: &impl ReadAt, places: &[Range<u64>]) -> io::Result<Vec<Vec<u8>>> {
    let sample = |place: &Range<u64>| {
        let mut bytes = vec![0; usize::try_from(place.end - place.start).expect("a sample")];
        disk.read_at(place.start, &mut bytes).map(|()| bytes)
    };
    places.iter().map(sample).collect()
}

/// The first byte of these samples that is not empty.
pub(super) fn first_left(places: &[Range<u64>], now: &[Vec<u8>]) -> Option<u64> {
    let left = |(place, bytes): (&Range<u64>, &Vec<u8>)| {
        let at = bytes.iter().position(|byte| *byte != 0)?;
        Some(place.start + at as u64)
    };
    places.iter().zip(now).find_map(left)
}

/// The first byte of a piece that held data and is unchanged. After an erase command the disk may
/// return any bytes, so equality with the old data is the only evidence of a failure.
pub(super) fn first_same(
    places: &[Range<u64>],
    before: &[Vec<u8>],
    now: &[Vec<u8>],
) -> Option<u64> {
    places.iter().zip(before.iter().zip(now)).find_map(|(place, (before, now))| {
        let mut pieces = before.chunks(PIECE).zip(now.chunks(PIECE));
        let at = pieces.position(|(before, now)| before == now && holds_something(before))?;
        Some(place.start + (at * PIECE) as u64)
    })
}

/// The number of samples that held data.
pub(super) fn held(before: &[Vec<u8>]) -> u64 {
    before.iter().filter(|bytes| holds_something(bytes)).count() as u64
}

/// A block that was never written consists of one repeated byte.
fn holds_something(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != bytes[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_cover_both_ends_and_places_between() {
        let range = 1000..1 << 40;
        let found = places(&range, 7);
        assert_eq!(found.len() as u64, SAMPLES);
        assert!(found.iter().all(|place| range.start <= place.start && place.end <= range.end));
        assert_eq!((found[0].start, found[1].end), (range.start, range.end));
        assert_ne!(found[2..], places(&range, 9)[2..]);
        assert_eq!(places(&(5..6), 7)[5], 5..6, "however small it is");
    }

    #[test]
    fn unchanged_samples_disprove_an_erasure() {
        let places = [0..PIECE as u64 * 2, 10_000..10_000 + PIECE as u64 * 2];
        let text =
            |byte: u8| -> Vec<u8> { (0..2 * PIECE).map(|at| at.to_le_bytes()[0] ^ byte).collect() };
        let before = [text(1), vec![0xff; 2 * PIECE]];
        assert_eq!(held(&before), 1);
        // Zeros, ones and data under another key all count as erased.
        for now in [vec![0; 2 * PIECE], vec![0xff; 2 * PIECE], text(9)] {
            assert_eq!(first_same(&places, &before, &[now, vec![0xff; 2 * PIECE]]), None);
        }
        let half = [[&text(9)[..PIECE], &text(1)[PIECE..]].concat(), before[1].clone()];
        assert_eq!(first_same(&places, &before, &half), Some(PIECE as u64));
        assert_eq!(first_same(&places, &before, &before), Some(0));
    }

    #[test]
    fn first_remaining_byte_is_reported() {
        let places = [0..4, 100..104];
        assert_eq!(first_left(&places, &[vec![0; 4], vec![0; 4]]), None);
        assert_eq!(first_left(&places, &[vec![0; 4], vec![0, 0, 3, 0]]), Some(102));
    }
}
