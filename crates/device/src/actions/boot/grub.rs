//! GRUB for BIOS: the first sector of the disk loads the first sector of the core, which loads the
//! rest. The location of the core is patched into both.

use std::ops::Range;

use hoist_provision::digest::Digest;
use hoist_provision::volume::StoredFile;
use serde::{Deserialize, Serialize};

/// The only sector size that BIOS supports.
pub const SECTOR: usize = 512;
/// Bytes of boot code in the first sector. The partition table follows them.
pub const BOOT_CODE: usize = 440;

/// In `boot.img`: the first sector of the core.
const CORE_AT: Range<usize> = 0x5c..0x64;
/// In `boot.img`: a jump over the code that corrects a wrong drive number. Some BIOS versions pass
/// a wrong number, so the jump is removed.
const DRIVE_CHECK: Range<usize> = 0x66..0x68;
const NOP: u8 = 0x90;
/// In the first sector of `core.img`, its last block list: the first sector of the rest, the number
/// of sectors, and the segment to load them to.
const LIST_START: Range<usize> = 500..508;
const LIST_LENGTH: Range<usize> = 508..510;
/// The last two bytes of every bootable sector.
const SIGNATURE: [u8; 2] = [0x55, 0xaa];

/// The file is not part of GRUB for BIOS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the file is not a {0} of GRUB for BIOS")]
pub struct NotGrub(&'static str);

/// The boot code of the first sector, for a core at this sector.
pub fn boot_code(image: &[u8], core: u64) -> Result<[u8; BOOT_CODE], NotGrub> {
    let is_one = image.len() == SECTOR && image.ends_with(&SIGNATURE) && image[0] == 0xeb;
    let mut code: [u8; BOOT_CODE] = image
        .get(..BOOT_CODE)
        .filter(|_| is_one)
        .and_then(|code| code.try_into().ok())
        .ok_or(NotGrub("boot.img"))?;
    code[CORE_AT].copy_from_slice(&core.to_le_bytes());
    code[DRIVE_CHECK].fill(NOP);
    Ok(code)
}

/// The core, patched for its location and padded to whole sectors.
pub fn core(mut image: Vec<u8>, at: u64) -> Result<Vec<u8>, NotGrub> {
    let sectors = image.len().div_ceil(SECTOR);
    let rest = sectors.checked_sub(1).and_then(|rest| u16::try_from(rest).ok());
    // A block list that ends elsewhere has an unknown format.
    let Some(rest) = rest.filter(|rest| *rest > 0 && image[510..512] == [0x20, 0x08]) else {
        return Err(NotGrub("core.img"));
    };
    image.resize(sectors * SECTOR, 0);
    image[LIST_START].copy_from_slice(&(at + 1).to_le_bytes());
    image[LIST_LENGTH].copy_from_slice(&rest.to_le_bytes());
    Ok(image)
}

/// Digests of the source files and of the patched bytes, stored in the last sector of the
/// partition. The patched bytes alone do not identify their sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    pub boot: Digest,
    pub core: Digest,
    pub written_code: Digest,
    pub written_core: StoredFile,
}

const MAGIC: &[u8; 8] = b"hoistgrb";

impl Note {
    pub fn encode(&self) -> [u8; SECTOR] {
        let text = serde_json::to_vec(self).expect("a plain value");
        let mut sector = [0; SECTOR];
        sector[..MAGIC.len()].copy_from_slice(MAGIC);
        sector[MAGIC.len()..][..text.len()].copy_from_slice(&text);
        sector
    }

    pub fn decode(sector: &[u8]) -> Option<Self> {
        let text = sector.strip_prefix(MAGIC)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        serde_json::from_slice(&text[..end]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot_image() -> Vec<u8> {
        let mut image = vec![7; SECTOR];
        image[0] = 0xeb;
        image[510..].copy_from_slice(&SIGNATURE);
        image
    }

    #[test]
    fn boot_code_contains_the_core_sector() {
        let code = boot_code(&boot_image(), 0x0102_0304_0506).expect("it is one");
        assert_eq!(code[0x5c..0x64], [6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(code[0x66..0x68], [0x90, 0x90]);
        assert_eq!((code[0x5b], code[0x64], code[0x65], code[0x68]), (7, 7, 7, 7));
        for wrong in [&boot_image()[..511], &[0; SECTOR], b""] {
            assert!(boot_code(wrong, 1).is_err());
        }
    }

    #[test]
    fn core_contains_the_sector_of_its_rest() {
        let mut image = vec![7; 3 * SECTOR + 1];
        image[510..512].copy_from_slice(&[0x20, 0x08]);
        let written = core(image.clone(), 2048).expect("it is one");
        assert_eq!(written.len(), 4 * SECTOR);
        assert_eq!(written[500..512], [1, 8, 0, 0, 0, 0, 0, 0, 3, 0, 0x20, 0x08]);
        assert_eq!(written[512..=3 * SECTOR], image[512..]);
        assert_eq!(written[3 * SECTOR + 1..], [0; SECTOR - 1]);
        for wrong in [vec![], vec![7; SECTOR], vec![7; 3 * SECTOR], vec![7; 100]] {
            assert_eq!(core(wrong, 2048), Err(NotGrub("core.img")));
        }
        image.resize(65_537 * SECTOR, 0);
        assert!(core(image, 2048).is_err());
    }

    #[test]
    fn grub_note_round_trips() {
        let digest = Digest::of(b"x");
        let written_core = StoredFile { size: u64::MAX, digest };
        let note = Note { boot: digest, core: digest, written_code: digest, written_core };
        assert_eq!(Note::decode(&note.encode()), Some(note));
        assert_eq!(Note::decode(&[0; SECTOR]), None);
    }
}
