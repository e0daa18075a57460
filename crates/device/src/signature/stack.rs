//! Members of arrays and volume groups, and contents identified at the end of a device.

use std::io;

use hoist_provision::facts::SignatureKind as K;

use super::{Region, SignatureMatch, number32, number64, uuid};

pub(super) fn find(region: &Region<'_>) -> io::Result<Vec<SignatureMatch>> {
    let mut found = Vec::new();
    found.extend(lvm(region)?);
    found.extend(md_1(region)?);
    found.extend(md_0(region)?);
    found.extend(firmware_array(region)?.filter(|_| found.iter().all(|seen| seen.kind != K::Md)));
    found.extend(zfs(region)?);
    found.extend(drbd(region)?);
    Ok(found)
}

/// The label is in one of the first four sectors of 512 bytes, whatever the sector size of the
/// device.
fn lvm(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    for at in (0..4).map(|sector| sector * 512) {
        let Some(label) = region.get(at, 512)? else { break };
        if &label[..8] == b"LABELONE" && &label[24..32] == b"LVM2 001" {
            let group = volume_group(region, &label)?.unwrap_or_default();
            let VolumeGroup { name, id, members } = group;
            return Ok(Some(SignatureMatch {
                label: name,
                uuid: id,
                members,
                ..SignatureMatch::bare(K::Lvm, at + 24)
            }));
        }
    }
    Ok(None)
}

#[derive(Default)]
struct VolumeGroup {
    name: Option<String>,
    id: Option<String>,
    members: Option<u32>,
}

/// Longest description of a volume group that is parsed. A longer one is still recognised as LVM.
const MAX_DESCRIPTION: u64 = 1024 * 1024;

/// Magic bytes of the metadata area of LVM, behind its checksum.
const AREA: &[u8; 16] = b"\x20LVM2\x20x[5A%r0N*>";

/// Bytes of the header of the metadata area.
const AREA_HEAD: u64 = 512;

fn volume_group(region: &Region<'_>, label: &[u8]) -> io::Result<Option<VolumeGroup>> {
    let Some((start, size)) = description_area(label) else { return Ok(None) };
    let Some(head) = region.get(start, 512)? else { return Ok(None) };
    let at = number64(&head, 40);
    let length = number64(&head, 48);
    let is_sane = &head[4..20] == AREA
        && (1..=MAX_DESCRIPTION).contains(&length)
        && at >= AREA_HEAD
        && at < size
        && length <= size - AREA_HEAD;
    let Some(place) = start.checked_add(at).filter(|_| is_sane) else { return Ok(None) };
    // The area is a ring buffer: behind its end, the text continues after the header.
    let before = length.min(size - at);
    let pieces = [(place, before), (start + AREA_HEAD, length - before)];
    let mut text = Vec::new();
    for (at, length) in pieces {
        let piece = region.get(at, usize::try_from(length).expect("it is bounded"))?;
        text.extend(piece.unwrap_or_default());
    }
    Ok(Some(described(&String::from_utf8_lossy(&text))))
}

/// Location of the first metadata area of LVM. Behind id and size, the label has a list of data
/// areas and a list of metadata areas, each terminated by a pair of zeros.
fn description_area(label: &[u8]) -> Option<(u64, u64)> {
    let header = usize::try_from(number32(label, 20)).ok()?;
    let mut pairs = label.get(header.checked_add(40)?..)?.chunks_exact(16);
    let pair = |bytes: &[u8]| (number64(bytes, 0), number64(bytes, 8));
    pairs.by_ref().map(pair).find(|(at, _)| *at == 0)?;
    pairs.next().map(pair).filter(|(at, _)| *at != 0)
}

fn described(text: &str) -> VolumeGroup {
    let name = text.split_once(" {").map(|(name, _)| name.trim().to_owned());
    let id = text.split_once("id = \"").and_then(|(_, rest)| rest.split_once('"'));
    let is_member = |line: &&str| {
        let number = line.trim().strip_prefix("pv").and_then(|line| line.strip_suffix(" {"));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let members = u32::try_from(text.lines().filter(is_member).count()).ok();
    VolumeGroup {
        name: name.filter(|name| !name.is_empty() && name.len() <= 128),
        id: id.map(|(id, _)| id.to_owned()).filter(|id| id.len() <= 64),
        members: members.filter(|count| *count > 0),
    }
}

const MD: u32 = 0xa92b_4efc;

/// Versions 1.1, 1.2 and 1.0, which differ only in their position.
fn md_1(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    let behind = (region.size() / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    for at in [0, 4096].into_iter().chain(behind) {
        let Some(block) = region.get(at, 256)? else { continue };
        if number32(&block, 0) == MD && number32(&block, 4) == 1 {
            let label = super::text(&block[32..64]);
            let uuid = uuid(&block[16..32]);
            let members = Some(number32(&block, 92));
            return Ok(Some(SignatureMatch {
                label,
                uuid,
                members,
                ..SignatureMatch::bare(K::Md, at)
            }));
        }
    }
    Ok(None)
}

/// Version 0.90, in the byte order of the machine that created it.
fn md_0(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    const PLACE: u64 = 64 * 1024;
    let Some(at) = (region.size() / PLACE * PLACE).checked_sub(PLACE) else { return Ok(None) };
    let Some(block) = region.get(at, 256)? else { return Ok(None) };
    let is_little = number32(&block, 0) == MD;
    if !is_little && number32(&block, 0).swap_bytes() != MD {
        return Ok(None);
    }
    let word = |number: usize| {
        let word = number32(&block, number * 4);
        if is_little { word } else { word.swap_bytes() }
    };
    if word(1) != 0 {
        return Ok(None);
    }
    let id = [5, 13, 14, 15].map(|number| word(number).to_be_bytes()).concat();
    let members = Some(word(10));
    Ok(Some(SignatureMatch { uuid: uuid(&id), members, ..SignatureMatch::bare(K::Md, at) }))
}

/// Arrays assembled by firmware and by MD: the formats of Intel and of the SNIA (DDF). Both
/// describe the array in the last sectors of each disk, whatever the sector size.
fn firmware_array(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    const INTEL: &[u8] = b"Intel Raid ISM Cfg Sig. ";
    const COMMON: [u8; 4] = 0xde11_de11_u32.to_be_bytes();
    for sector in [512, 4096] {
        let place = |back: u64| (region.size() / sector).checked_sub(back).map(|at| at * sector);
        if let Some(at) = place(2)
            && let Some(block) = region.get(at, 48)?.filter(|block| block.starts_with(INTEL))
        {
            let uuid = Some(format!("{:08x}", number32(&block, 40)));
            return Ok(Some(SignatureMatch { uuid, ..SignatureMatch::bare(K::Md, at) }));
        }
        for at in [1, 257].into_iter().filter_map(place) {
            let block = region.get(at, 32)?.unwrap_or_default();
            let swapped: Vec<u8> = COMMON.iter().rev().copied().collect();
            if block.starts_with(&COMMON) || block.starts_with(&swapped) {
                let word = |at| number64(&block, at).swap_bytes();
                let id = format!("{:016x}{:016x}{:016x}", word(8), word(16), word(24));
                return Ok(Some(SignatureMatch {
                    uuid: Some(id),
                    ..SignatureMatch::bare(K::Md, at)
                }));
            }
        }
    }
    Ok(None)
}

/// Four labels, two at each end. Each has a ring of uberblocks in its second half, and the
/// description of the pool before it.
fn zfs(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    const LABEL: u64 = 256 * 1024;
    const RING: u64 = 128 * 1024;
    const DESCRIPTION: u64 = 16 * 1024;
    const UBERBLOCK: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();
    let mut swapped = UBERBLOCK;
    swapped.reverse();
    let end = region.size() / LABEL * LABEL;
    let behind = [2, 1].into_iter().filter_map(|back| end.checked_sub(back * LABEL));
    for at in [0, LABEL].into_iter().chain(behind) {
        let Some(ring) = region.get(at + RING, usize::try_from(RING).expect("it is small"))? else {
            continue;
        };
        let is_one = |slot: &[u8]| slot.starts_with(&UBERBLOCK) || slot.starts_with(&swapped);
        if let Some(slot) = ring.chunks(1024).position(is_one) {
            let length = usize::try_from(RING - DESCRIPTION).expect("it is small");
            let pairs = region.get(at + DESCRIPTION, length)?.unwrap_or_default();
            let number = |value: &[u8]| Some(u64::from_be_bytes(*value.first_chunk()?).to_string());
            let uuid = value_of(&pairs, "pool_guid", 8).and_then(number);
            let label = value_of(&pairs, "name", 9).and_then(|value| {
                let (length, text) = value.split_first_chunk()?;
                super::text(text.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?)
            });
            let bare = SignatureMatch::bare(K::Zfs, at + RING + slot as u64 * 1024);
            return Ok(Some(SignatureMatch { label, uuid, ..bare }));
        }
    }
    Ok(None)
}

/// The value of a pair in XDR encoding, with this name and type and a single element.
fn value_of<'a>(pairs: &'a [u8], name: &str, kind: u32) -> Option<&'a [u8]> {
    let length = u32::try_from(name.len()).ok()?;
    let mut before = [&length.to_be_bytes()[..], name.as_bytes()].concat();
    before.resize(before.len().next_multiple_of(4), 0);
    before.extend([kind.to_be_bytes(), 1_u32.to_be_bytes()].concat());
    let at = pairs.windows(before.len()).position(|bytes| bytes == before)?;
    pairs.get(at + before.len()..)
}

/// Internal metadata of DRBD is in the last 4 KiB.
fn drbd(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    const MAGICS: [u32; 3] = [0x8374_026b, 0x8374_026c, 0x8374_026d];
    let Some(at) = (region.size() / 4096 * 4096).checked_sub(4096) else { return Ok(None) };
    let Some(block) = region.get(at + 60, 4)? else { return Ok(None) };
    let is_one = MAGICS.contains(&number32(&block, 0).swap_bytes());
    Ok(is_one.then(|| SignatureMatch::bare(K::Drbd, at + 60)))
}
