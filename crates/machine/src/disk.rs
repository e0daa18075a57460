//! Disks that boot: they say one line on the serial console and stop there, which is all a test
//! needs to know that the firmware has left the network for the disk.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fs_err as fs;

use crate::machine::Firmware;

/// Options of a disk that is a file. The host outlives the machine and keeps its writes, also when
/// the machine is killed: acknowledged writes are in the host's memory. Lost unflushed writes are
/// tested by `device::fault`. No test needs to wait until a busy host has the bytes on its own
/// disk.
pub(crate) const KEPT_BY_THE_HOST: &str = "format=raw,cache=unsafe";

/// Where files for disks are made that are not large: in memory, if there is such a place. Making a
/// range of a file zero changes its metadata, and that waits for the host's own disk however it is
/// opened.
pub fn quick_dir() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// The disks of a machine, by their controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disk {
    /// A raw image.
    Image(PathBuf),
    /// A directory shown as a FAT file system that cannot be written.
    Directory(PathBuf),
    /// A raw image behind a controller of the kind `nvme`.
    Nvme { image: PathBuf, serial: String },
    /// More than one of those, each with its serial number.
    Nvmes(Vec<(PathBuf, String)>),
}

impl Disk {
    /// A disk below `dir` that this firmware boots, and that then says `text`.
    pub fn saying(text: &str, firmware: Firmware, dir: &Path) -> Result<Self> {
        let line = format!("\r\n{text}\r\n\0");
        match firmware {
            Firmware::Bios => {
                let path = dir.join("disk.img");
                fs::write(&path, master_boot_record(&line))?;
                Ok(Self::Image(path))
            }
            Firmware::Uefi => {
                let path = dir.join("disk");
                fs::create_dir_all(path.join("EFI/BOOT"))?;
                fs::write(path.join("EFI/BOOT/BOOTX64.EFI"), efi_program(&line))?;
                Ok(Self::Directory(path))
            }
        }
    }
}

/// Sends the text behind it to the first serial port, each byte as soon as the port takes one.
/// Runs in real mode at address 0x7c00.
const BIOS_CODE: [u8; 34] = [
    0xfa, // cli
    0x31, 0xc0, 0x8e, 0xd8, // ds = 0
    0xbe, 0x22, 0x7c, // si = 0x7c22, where the text begins
    0xfc, // cld
    0xac, 0x84, 0xc0, 0x74, 0x11, // next: al = [si++], zero: goto end
    0x88, 0xc4, // ah = al
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, // until port 0x3fd says empty
    0x88, 0xe0, 0xb2, 0xf8, 0xee, // al = ah to port 0x3f8
    0xeb, 0xea, // goto next
    0xf4, 0xeb, 0xfd, // end: hlt, goto end
];

/// The same in 64-bit mode, wherever it is.
const UEFI_CODE: [u8; 35] = [
    0xfa, // cli
    0x48, 0x8d, 0x35, 0x1b, 0x00, 0x00, 0x00, // rsi = rip + 0x1b, where the text begins
    0xfc, // cld
    0xac, 0x84, 0xc0, 0x74, 0x12, // next: al = [rsi++], zero: goto end
    0x88, 0xc4, // ah = al
    0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, // until port 0x3fd says empty
    0x88, 0xe0, 0xb2, 0xf8, 0xee, // al = ah to port 0x3f8
    0xeb, 0xe9, // goto next
    0xf4, 0xeb, 0xfd, // end: hlt, goto end
];

fn master_boot_record(text: &str) -> Vec<u8> {
    const SIGNATURE: usize = 510;
    let mut image = [&BIOS_CODE, text.as_bytes()].concat();
    assert!(image.len() <= SIGNATURE, "the text fits into the first sector");
    image.resize(SIGNATURE, 0);
    image.extend([0x55, 0xaa]);
    image.resize(1 << 20, 0);
    image
}

/// A PE32+ file with one section, as little as firmware accepts.
fn efi_program(text: &str) -> Vec<u8> {
    const FILE_UNIT: u32 = 0x200;
    const MEMORY_UNIT: u32 = 0x1000;
    const HEADER: u16 = 0x40;
    const DIRECTORIES: u16 = 16;
    const OPTIONAL: u16 = 112 + DIRECTORIES * 8;

    let mut section = [&UEFI_CODE, text.as_bytes()].concat();
    section.resize(FILE_UNIT as usize, 0);

    let mut file = b"MZ".to_vec();
    let word = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, values: &[u32]| {
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    file.resize(usize::from(HEADER) - 4, 0);
    long(&mut file, &[HEADER.into()]);
    // One section for x86-64, no symbols; a 64-bit executable.
    file.extend(b"PE\0\0");
    word(&mut file, 0x8664);
    word(&mut file, 1);
    long(&mut file, &[0, 0, 0]);
    word(&mut file, OPTIONAL);
    word(&mut file, 0x22);
    // Linker version; sizes of code and data; entry, code, preferred address; units; versions;
    // sizes in memory and of the headers; checksum.
    word(&mut file, 0x20b);
    word(&mut file, 0);
    long(&mut file, &[FILE_UNIT, 0, 0, MEMORY_UNIT, MEMORY_UNIT, 0, 0, MEMORY_UNIT, FILE_UNIT]);
    long(&mut file, &[0, 0, 0, 0, 2 * MEMORY_UNIT, FILE_UNIT, 0]);
    // An application of the firmware, stack and heap as it likes, no data directories.
    word(&mut file, 10);
    word(&mut file, 0);
    long(&mut file, &[0, 0, 0, 0, 0, 0, 0, 0, 0, DIRECTORIES.into()]);
    file.resize(file.len() + usize::from(DIRECTORIES) * 8, 0);
    // Code that can be read and run.
    file.extend(b".text\0\0\0");
    long(&mut file, &[FILE_UNIT, MEMORY_UNIT, FILE_UNIT, FILE_UNIT, 0, 0, 0, 0x6000_0020]);
    file.resize(FILE_UNIT as usize, 0);
    file.extend(section);
    file
}
