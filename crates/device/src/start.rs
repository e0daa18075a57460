//! Reading the kernel of the installed system from its boot volume, to start it without the
//! firmware.

use hoist_provision::digest::Digest;
use hoist_provision::plan::{ProvisionPlan, boot};
use hoist_provision::steps::boot::{MAX_FILE, Source};

use crate::fat::{FatError, Volume};
use crate::probe::Machine;
use crate::{OpenError, ReadIo};

/// The kernel of an installed system, with its initrd and arguments.
#[derive(Debug)]
pub struct Start {
    pub kernel: Vec<u8>,
    pub initrd: Option<Vec<u8>>,
    pub arguments: String,
}

/// The reason why the system cannot be started with kexec.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("the document has no kernel to start; add `boot.files`")]
    Nothing,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Fat(#[from] FatError),
    #[error("`{0}` on the disk does not have the digest of the document")]
    Other(String),
    #[error("`{0}` is not a unified kernel image")]
    NoImage(String),
}

/// Reads the installed kernel and its arguments. Every file must have the digest that the document
/// names.
pub fn start(decision: &ProvisionPlan, machine: &Machine) -> Result<Start, StartError> {
    let facts = machine.probe().facts;
    let wanted = boot::desired(&decision.document, &decision.layout, &facts);
    let wanted = wanted.ok().flatten().ok_or(StartError::Nothing)?;
    let io = ReadIo::open(&machine.device(&wanted.disk.kernel_name), wanted.disk.sector)?;
    let volume = Volume::read_only(&io, wanted.volume.range())?;
    let read = |path: &str| -> Result<Option<Vec<u8>>, StartError> {
        let Some(source) = wanted.files.get(path) else { return Ok(None) };
        let bytes = volume.read(path, MAX_FILE)?;
        let bytes = bytes.filter(|bytes| Digest::of(bytes) == source.digest());
        bytes.map(Some).ok_or_else(|| StartError::Other(path.to_owned()))
    };
    let arguments = wanted.arguments.clone();
    if let Some(kernel) = read(boot::KERNEL)? {
        return Ok(Start { kernel, initrd: read(boot::INITRD)?, arguments });
    }
    let is_image = |path: &&String| path.to_lowercase().ends_with(".efi");
    let is_fetched = |path: &&String| matches!(wanted.files[*path], Source::Fetched(_));
    // Next to a boot loader, the image is not at the default path of the firmware.
    let image = wanted.files.keys().filter(is_image).filter(is_fetched).max();
    let image = image.ok_or(StartError::Nothing)?;
    let bytes = read(image)?.ok_or(StartError::Nothing)?;
    let kernel = section(&bytes, ".linux").map(<[u8]>::to_vec);
    let kernel = kernel.ok_or_else(|| StartError::NoImage(image.clone()))?;
    let initrd = section(&bytes, ".initrd").map(<[u8]>::to_vec);
    Ok(Start { kernel, initrd, arguments })
}

/// A section of a PE file.
fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    const HEAD: usize = 24;
    const ENTRY: usize = 40;
    let short = |at: usize| Some(u16::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let long =
        |at: usize| usize::try_from(u32::from_le_bytes(*file.get(at..)?.first_chunk()?)).ok();
    let head = long(0x3c)?;
    file.get(head..)?.strip_prefix(b"PE\0\0")?;
    let count = short(head + 6)?;
    let more = short(head + 20)?;
    let table = head + HEAD + usize::from(more);
    (0..usize::from(count)).map(|number| table + number * ENTRY).find_map(|at| {
        let called = file.get(at..at + 8)?;
        let length = called.iter().position(|byte| *byte == 0).unwrap_or(called.len());
        if &called[..length] != name.as_bytes() {
            return None;
        }
        // The section may be padded in the file.
        let size = long(at + 8)?;
        let room = long(at + 16)?;
        let start = long(at + 20)?;
        file.get(start..)?.get(..size.min(room))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A PE file with these sections, each padded to 512 bytes.
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
    fn unified_kernel_image_is_split_into_sections() {
        let file = program(&[(".text", b"stub"), (".linux", b"kernel"), (".initrd", b"files")]);
        assert_eq!(section(&file, ".linux"), Some(&b"kernel"[..]));
        assert_eq!(section(&file, ".initrd"), Some(&b"files"[..]));
        assert_eq!(section(&file, ".cmdline"), None);
        assert_eq!(section(&file[..0x402], ".linux"), None, "it is cut off");
        assert_eq!(section(b"MZ", ".linux"), None);
    }

    proptest! {
        #[test]
        fn kernel_reader_stays_within_the_file(
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
