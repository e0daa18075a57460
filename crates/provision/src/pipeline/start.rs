//! What the installed system is started with, as `boot` has left it: for whoever starts it without
//! the firmware.

use super::{Decision, boot};
use crate::actions::boot::{MAX_FILE, Source};
use crate::device::probe::Machine;
use crate::device::{OpenError, ReadIo};
use crate::fat::{FatError, Volume};
use crate::images::Digest;

/// A system that can be started.
#[derive(Debug)]
pub struct Start {
    pub kernel: Vec<u8>,
    pub initrd: Option<Vec<u8>>,
    pub arguments: String,
}

/// Why it cannot be started from here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoStart {
    #[error("the document does not say what the system is started with: it has no `boot.files`")]
    Nothing,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Fat(#[from] FatError),
    #[error("`{0}` is not on the disk as the document says")]
    Other(String),
    #[error("`{0}` is no unified kernel image")]
    NoImage(String),
}

impl Decision {
    /// Reads what was installed. Nothing is taken that is not what the document says.
    pub fn start(&self, machine: &Machine) -> Result<Start, NoStart> {
        let facts = machine.probe().facts;
        let wanted = boot::wanted(&self.document, &self.layout, &facts);
        let wanted = wanted.ok().flatten().ok_or(NoStart::Nothing)?;
        let io = ReadIo::open(&machine.device(&wanted.disk.kernel_name), wanted.disk.sector)?;
        let volume = Volume::read_only(&io, wanted.volume.range())?;
        let read = |path: &str| -> Result<Option<Vec<u8>>, NoStart> {
            let Some(source) = wanted.files.get(path) else { return Ok(None) };
            let bytes = volume.read(path, MAX_FILE)?;
            let bytes = bytes.filter(|bytes| Digest::of(bytes) == source.digest());
            bytes.map(Some).ok_or_else(|| NoStart::Other(path.to_owned()))
        };
        let arguments = wanted.arguments.clone();
        if let Some(kernel) = read(boot::KERNEL)? {
            return Ok(Start { kernel, initrd: read(boot::INITRD)?, arguments });
        }
        let is_image = |path: &&String| path.to_lowercase().ends_with(".efi");
        let is_fetched = |path: &&String| matches!(wanted.files[*path], Source::Fetched(_));
        // Where there is a loader too, the image is not where firmware looks.
        let image = wanted.files.keys().filter(is_image).filter(is_fetched).max();
        let image = image.ok_or(NoStart::Nothing)?;
        let bytes = read(image)?.ok_or(NoStart::Nothing)?;
        let kernel = section(&bytes, ".linux").map(<[u8]>::to_vec);
        let kernel = kernel.ok_or_else(|| NoStart::NoImage(image.clone()))?;
        let initrd = section(&bytes, ".initrd").map(<[u8]>::to_vec);
        Ok(Start { kernel, initrd, arguments })
    }
}

/// A section of a program as UEFI starts it.
fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    const HEAD: usize = 24;
    const ENTRY: usize = 40;
    let short = |at: usize| Some(u16::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let long =
        |at: usize| usize::try_from(u32::from_le_bytes(*file.get(at..)?.first_chunk()?)).ok();
    let head = long(0x3c)?;
    file.get(head..)?.strip_prefix(b"PE\0\0")?;
    let (count, more) = (short(head + 6)?, short(head + 20)?);
    let table = head + HEAD + usize::from(more);
    (0..usize::from(count)).map(|number| table + number * ENTRY).find_map(|at| {
        let called = file.get(at..at + 8)?;
        let length = called.iter().position(|byte| *byte == 0).unwrap_or(called.len());
        if &called[..length] != name.as_bytes() {
            return None;
        }
        // In the file it may be filled up.
        let (size, room, start) = (long(at + 8)?, long(at + 16)?, long(at + 20)?);
        file.get(start..)?.get(..size.min(room))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A program with these sections, each filled up to 512 bytes.
    fn program(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 0x80];
        file[0x3c] = 0x80;
        file.extend(b"PE\0\0\x64\x86");
        file.extend(u16::try_from(sections.len()).expect("few").to_le_bytes());
        file.extend([0; 12]);
        file.extend(8_u16.to_le_bytes());
        file.extend([0; 2 + 8]);
        for (number, (name, bytes)) in sections.iter().enumerate() {
            let mut called = name.as_bytes().to_vec();
            called.resize(8, 0);
            file.extend(called);
            let start = 0x400 + number * 512;
            for value in [bytes.len(), 0x1000 * number, 512, start] {
                file.extend(u32::try_from(value).expect("small").to_le_bytes());
            }
            file.extend([0; 16]);
        }
        for (number, (_, bytes)) in sections.iter().enumerate() {
            file.resize(0x400 + number * 512, 0);
            file.extend(*bytes);
        }
        file.resize(0x400 + sections.len() * 512, 0);
        file
    }

    #[test]
    fn a_unified_kernel_image_is_taken_apart() {
        let file = program(&[(".text", b"stub"), (".linux", b"kernel"), (".initrd", b"files")]);
        assert_eq!(section(&file, ".linux"), Some(&b"kernel"[..]));
        assert_eq!(section(&file, ".initrd"), Some(&b"files"[..]));
        assert_eq!(section(&file, ".cmdline"), None);
        assert_eq!(section(&file[..0x402], ".linux"), None, "it is cut off");
        assert_eq!(section(b"MZ", ".linux"), None);
    }

    proptest! {
        #[test]
        fn whatever_is_there_nothing_beyond_it_is_read(
            at in 0..0x100_usize,
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            cut in 0..0x800_usize,
        ) {
            let mut file = program(&[(".linux", b"kernel"), (".initrd", b"files")]);
            file[at..at + bytes.len()].copy_from_slice(&bytes);
            file.truncate(cut);
            section(&file, ".linux");
            section(&file, ".initrd");
        }
    }
}
