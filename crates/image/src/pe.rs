//! Unified kernel images: systemd's stub, with the kernel, its arguments and its initial RAM disk
//! as further sections of the same EFI program. Only the necessary part of the PE format belongs
//! here.

/// How large a section begins in memory.
const PAGE: u32 = 4096;

/// Sections that a program may have.
const MAX_SECTIONS: u16 = 96;

/// Data that is there from the beginning and can be read.
const READABLE_DATA: u32 = 0x4000_0040;

const SECTION_HEADER: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeError {
    #[error("the stub is not an EFI program for 64-bit machines")]
    NoProgram,
    #[error("the stub has no room for {0} more section headers; use another stub")]
    NoRoom(usize),
    #[error("the unified kernel image becomes larger than 2 GiB")]
    TooLarge,
}

/// A section to add: a name of at most eight bytes, and its content.
pub(crate) type Section<'a> = (&'a str, &'a [u8]);

/// The program with these sections behind its own. The same input gives the same bytes.
pub(crate) fn append(program: &[u8], sections: &[Section<'_>]) -> Result<Vec<u8>, PeError> {
    let layout = Layout::of(program)?;
    let first = layout.sections + layout.count * SECTION_HEADER;
    let room = layout.headers.checked_sub(first).ok_or(PeError::NoProgram)?;
    if sections.len() * SECTION_HEADER > room {
        return Err(PeError::NoRoom(sections.len()));
    }
    // What lies behind the last section (symbols) is for debuggers, and would lie in the way.
    let mut file = program.get(..layout.end).ok_or(PeError::NoProgram)?.to_vec();
    let mut address = layout.memory_end.next_multiple_of(PAGE);
    let mut data = 0_u32;
    for (number, (name, content)) in sections.iter().enumerate() {
        file.resize(file.len().next_multiple_of(layout.file_unit), 0);
        let size = u32::try_from(content.len()).map_err(|_| PeError::TooLarge)?;
        let at = u32::try_from(file.len()).map_err(|_| PeError::TooLarge)?;
        file.extend_from_slice(content);
        file.resize(file.len().next_multiple_of(layout.file_unit), 0);
        let stored = u32::try_from(file.len()).map_err(|_| PeError::TooLarge)? - at;
        let header = &mut file[first + number * SECTION_HEADER..][..SECTION_HEADER];
        header.fill(0);
        header[..name.len()].copy_from_slice(name.as_bytes());
        put(header, 8, size);
        put(header, 12, address);
        put(header, 16, stored);
        put(header, 20, at);
        put(header, 36, READABLE_DATA);
        address = address
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(PAGE))
            .filter(|end| *end < 1 << 31)
            .ok_or(PeError::TooLarge)?;
        data = data.saturating_add(stored);
    }
    let count = layout.count + sections.len();
    let count = u16::try_from(count).ok().filter(|count| *count <= MAX_SECTIONS);
    let count = count.ok_or(PeError::NoRoom(sections.len()))?;
    file[layout.coff + 2..layout.coff + 4].copy_from_slice(&count.to_le_bytes());
    // No symbols, and no checksum, which firmware ignores.
    put(&mut file, layout.coff + 8, 0);
    put(&mut file, layout.coff + 12, 0);
    put(&mut file, layout.optional + 64, 0);
    let known = number(&file, layout.optional + 8)?;
    put(&mut file, layout.optional + 8, known.saturating_add(data));
    put(&mut file, layout.optional + 56, address.next_multiple_of(layout.memory_unit));
    Ok(file)
}

/// Where things are in a program.
struct Layout {
    coff: usize,
    optional: usize,
    sections: usize,
    count: usize,
    /// Bytes of all headers.
    headers: usize,
    file_unit: usize,
    memory_unit: u32,
    /// Of the sections, in the file and in memory.
    end: usize,
    memory_end: u32,
}

impl Layout {
    fn of(program: &[u8]) -> Result<Self, PeError> {
        let no = PeError::NoProgram;
        if program.get(..2) != Some(b"MZ") {
            return Err(no);
        }
        let pe = number(program, 0x3c)? as usize;
        let coff = pe.checked_add(4).ok_or(no.clone())?;
        if program.get(pe..coff) != Some(b"PE\0\0") || half(program, coff)? != 0x8664 {
            return Err(no);
        }
        let count = usize::from(half(program, coff + 2)?);
        let optional = coff + 20;
        if half(program, optional)? != 0x20b || count > usize::from(MAX_SECTIONS) {
            return Err(no);
        }
        let sections = optional + usize::from(half(program, coff + 16)?);
        let memory_unit = number(program, optional + 32)?;
        let file_unit = number(program, optional + 36)?;
        let headers = number(program, optional + 60)? as usize;
        let is_unit = |unit: u32| unit.is_power_of_two() && unit <= 1 << 16;
        if !is_unit(memory_unit) || !is_unit(file_unit) || headers > program.len() {
            return Err(no);
        }
        let mut end = headers;
        let mut memory_end = 0;
        for at in (0..count).map(|index| sections + index * SECTION_HEADER) {
            let field = |offset: usize| number(program, at + offset);
            let size = field(8)?;
            let address = field(12)?;
            let stored = field(16)?;
            let place = field(20)?;
            let stop = place.checked_add(stored).ok_or(no.clone())?;
            end = end.max(stop as usize);
            memory_end = memory_end.max(address.checked_add(size).ok_or(no.clone())?);
        }
        if end > program.len() || memory_end > 1 << 30 {
            return Err(no);
        }
        let file_unit = file_unit as usize;
        Ok(Self {
            coff,
            optional,
            sections,
            count,
            headers,
            file_unit,
            memory_unit,
            end,
            memory_end,
        })
    }
}

fn half(bytes: &[u8], at: usize) -> Result<u16, PeError> {
    let field = at.checked_add(2).and_then(|end| bytes.get(at..end)).ok_or(PeError::NoProgram)?;
    Ok(u16::from_le_bytes([field[0], field[1]]))
}

fn number(bytes: &[u8], at: usize) -> Result<u32, PeError> {
    let field = at.checked_add(4).and_then(|end| bytes.get(at..end)).ok_or(PeError::NoProgram)?;
    Ok(u32::from_le_bytes([field[0], field[1], field[2], field[3]]))
}

/// Where a field is that was read before.
fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn stub() -> Vec<u8> {
        fs_err::read("/usr/lib/systemd/boot/efi/linuxx64.efi.stub")
            .expect("this test needs package `systemd-boot-efi`")
    }

    #[test]
    fn other_programs_read_the_sections_that_were_added() {
        let words = b"console=ttyS0 quiet".to_vec();
        let kernel = vec![0x5a; 100_001];
        let stub = stub();
        let made = append(&stub, &[(".cmdline", &words), (".linux", &kernel)]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs_err::write(path("uki"), &made).unwrap();
        let mut objcopy = Command::new("objcopy");
        for section in ["cmdline", "linux"] {
            let to = path(section).display().to_string();
            objcopy.arg("--dump-section").arg(format!(".{section}={to}"));
        }
        let output = objcopy.arg(path("uki")).arg(path("other")).output();
        let output = output.expect("this test needs package `binutils`");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(&fs_err::read(path("cmdline")).unwrap()[..words.len()], words);
        assert_eq!(&fs_err::read(path("linux")).unwrap()[..kernel.len()], kernel);
        // The content of the stub keeps its place; only the fields about the whole file change.
        let headers = Layout::of(&stub).unwrap();
        assert_eq!(made[headers.headers..headers.end], stub[headers.headers..headers.end]);
        assert!(Layout::of(&made).unwrap().memory_end > headers.memory_end);
    }

    #[test]
    fn sections_that_find_no_room_are_refused() {
        let stub = stub();
        let some = |count: usize| append(&stub, &vec![(".x", &b"x"[..]); count]);
        assert!(some(3).is_ok());
        assert_eq!(some(90), Err(PeError::NoRoom(90)));
        assert_eq!(append(b"#!/bin/sh", &[]), Err(PeError::NoProgram));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, flips: Vec<(u16, u8)>) {
            let _ = append(&bytes, &[(".x", &[1])]);
            let mut program = stub()[..4096].to_vec();
            for (at, byte) in flips {
                program[usize::from(at) % 1024] = byte;
            }
            let _ = append(&program, &[(".x", &[1])]);
        }
    }
}
