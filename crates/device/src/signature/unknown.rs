//! Data that no signature explains.
//!
//! Both ends of a disk or partition are probed, exactly as far as a wipe clears them: whatever a
//! wipe would destroy there is seen before, and a wiped range is empty.

use std::ops::Range;

use hoist_provision::facts::{Signature, SignatureKind, SignaturePlace};
use hoist_provision::read_at::ReadAt;
use hoist_provision::steps::disks::WIPED;

use super::bare;

/// The unit that is blank or not. No sector is smaller.
const UNIT: usize = 512;

/// Bytes that are read and compared at once.
const PIECE: usize = 256 * 1024;

static ZEROS: [u8; PIECE] = [0; PIECE];
static ONES: [u8; PIECE] = [0xff; PIECE];

/// The first unknown data in a range.
pub(super) fn find(
    disk: &impl ReadAt,
    range: Range<u64>,
    place: SignaturePlace,
) -> Option<Signature> {
    let range = range.start..range.end.min(disk.size());
    let at = first_data(disk, range.clone())?;
    // An MBR without partitions is a table, and the first sector of an extended partition belongs
    // to one.
    let is_table = at == range.start && is_bare_table(disk, &range);
    match place {
        SignaturePlace::Partition(_) if is_table => None,
        SignaturePlace::Disk if is_table => Some(bare(SignatureKind::Mbr, 510, place, None)),
        _ => Some(bare(SignatureKind::Unknown, at, place, None)),
    }
}

/// The position of the first unit in the probed areas that is not blank.
fn first_data(disk: &impl ReadAt, range: Range<u64>) -> Option<u64> {
    let Range { start, end } = range;
    let before = start..end.min(start.saturating_add(WIPED));
    let behind = end.saturating_sub(WIPED).max(before.end)..end;
    for mut area in [before, behind] {
        let mut buffer = vec![0; PIECE];
        while !area.is_empty() {
            let length = usize::try_from(area.end - area.start).unwrap_or(PIECE).min(PIECE);
            let piece = &mut buffer[..length];
            // An area that cannot be read is not blank.
            let at = disk.read_at(area.start, piece).map_or(Some(0), |()| first_in(piece));
            if let Some(at) = at {
                return Some(area.start + at as u64);
            }
            area.start += length as u64;
        }
    }
    None
}

fn first_in(piece: &[u8]) -> Option<usize> {
    if is_blank(piece) {
        return None;
    }
    piece.chunks(UNIT).position(|unit| !is_blank(unit)).map(|unit| unit * UNIT)
}

/// Whether bytes are all zeros or all ones, as erased blocks are.
fn is_blank(bytes: &[u8]) -> bool {
    bytes == &ZEROS[..bytes.len()] || bytes == &ONES[..bytes.len()]
}

/// Whether the range starts with a sector of an MBR without boot code, and holds nothing else.
fn is_bare_table(disk: &impl ReadAt, range: &Range<u64>) -> bool {
    let mut sector = [0; UNIT];
    let rest = range.start + UNIT as u64..range.end;
    rest.start <= range.end
        && disk.read_at(range.start, &mut sector).is_ok()
        && sector[..440] == ZEROS[..440]
        && sector[510..] == [0x55, 0xaa]
        && first_data(disk, rest).is_none()
}
