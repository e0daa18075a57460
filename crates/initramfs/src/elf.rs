//! The part of ELF that names the dependencies of a program or a module: 64 bits, little-endian, as
//! on all machines that hoist supports.

use std::ops::Range;

/// Errors of an ELF file. The caller names the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    #[error("not a 64-bit little-endian ELF file")]
    Kind,
    #[error("the ELF file is damaged or truncated")]
    Damaged,
}

/// Of the dynamic section: a library's name, where to look for libraries, and the text of both.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
const INTERPRETER: u64 = 3;

#[derive(Debug)]
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
}

/// The dependencies of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dependencies {
    pub(crate) interpreter: Option<String>,
    pub(crate) libraries: Vec<String>,
    /// Where to look first; `$ORIGIN` is where the program is.
    pub(crate) places: Vec<String>,
}

struct Segment {
    kind: u64,
    file: Range<usize>,
    address: u64,
}

impl<'a> Elf<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, ElfError> {
        if bytes.starts_with(b"\x7fELF\x02\x01") { Ok(Self { bytes }) } else { Err(ElfError::Kind) }
    }

    /// A number of this many bytes.
    fn number(&self, at: usize, length: usize) -> Result<u64, ElfError> {
        let end = at.checked_add(length).ok_or(ElfError::Damaged)?;
        let bytes = self.bytes.get(at..end).ok_or(ElfError::Damaged)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn size(&self, at: usize, length: usize) -> Result<usize, ElfError> {
        usize::try_from(self.number(at, length)?).map_err(|_| ElfError::Damaged)
    }

    fn range(&self, start: usize, length: usize) -> Result<Range<usize>, ElfError> {
        let end = start.checked_add(length).filter(|end| *end <= self.bytes.len());
        end.map(|end| start..end).ok_or(ElfError::Damaged)
    }

    /// The content of the section with this name.
    pub(crate) fn section(&self, name: &str) -> Result<Option<&'a [u8]>, ElfError> {
        let table = self.size(40, 8)?;
        let entry = self.size(58, 2)?;
        let count = self.size(60, 2)?;
        let header = |number: usize| {
            let at = number.checked_mul(entry).and_then(|offset| offset.checked_add(table));
            let at = at.ok_or(ElfError::Damaged)?;
            Ok::<_, ElfError>((self.size(at, 4)?, self.size(at + 24, 8)?, self.size(at + 32, 8)?))
        };
        if count == 0 {
            return Ok(None);
        }
        let (_, names, length) = header(self.size(62, 2)?)?;
        let names = &self.bytes[self.range(names, length)?];
        for number in 0..count {
            let (its_name, start, length) = header(number)?;
            if text(names, its_name)? == name {
                return Ok(Some(&self.bytes[self.range(start, length)?]));
            }
        }
        Ok(None)
    }

    fn segments(&self) -> Result<Vec<Segment>, ElfError> {
        let table = self.size(32, 8)?;
        let entry = self.size(54, 2)?;
        let count = self.size(56, 2)?;
        let segment = |number: usize| {
            let at = number.checked_mul(entry).and_then(|offset| offset.checked_add(table));
            let at = at.ok_or(ElfError::Damaged)?;
            let file = self.range(self.size(at + 8, 8)?, self.size(at + 32, 8)?)?;
            Ok(Segment { kind: self.number(at, 4)?, file, address: self.number(at + 16, 8)? })
        };
        (0..count).map(segment).collect()
    }

    pub(crate) fn needs(&self) -> Result<Dependencies, ElfError> {
        let segments = self.segments()?;
        let find = |kind: u64| segments.iter().find(|segment| segment.kind == kind);
        let mut needs = Dependencies::default();
        if let Some(segment) = find(INTERPRETER) {
            needs.interpreter = Some(text(&self.bytes[segment.file.clone()], 0)?.to_owned());
        }
        let Some(dynamic) = find(DYNAMIC) else { return Ok(needs) };
        let entries = dynamic
            .file
            .clone()
            .step_by(16)
            .map(|at| Ok::<_, ElfError>((self.number(at, 8)?, self.number(at + 8, 8)?)));
        let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
        let strings = entries.iter().find(|(kind, _)| *kind == STRINGS);
        let Some((_, address)) = strings else { return Ok(needs) };
        let strings = segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            let is_in = segment.kind == LOAD && offset < segment.file.len();
            is_in.then(|| &self.bytes[segment.file.start + offset..])
        });
        let strings = strings.ok_or(ElfError::Damaged)?;
        for (kind, value) in entries {
            let value = || text(strings, usize::try_from(value).map_err(|_| ElfError::Damaged)?);
            match kind {
                NEEDED => needs.libraries.push(value()?.to_owned()),
                RPATH | RUNPATH => needs.places.extend(value()?.split(':').map(str::to_owned)),
                _ => {}
            }
        }
        Ok(needs)
    }
}

/// Up to the next zero byte.
fn text(bytes: &[u8], at: usize) -> Result<&str, ElfError> {
    let rest = bytes.get(at..).ok_or(ElfError::Damaged)?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or(ElfError::Damaged)?;
    str::from_utf8(&rest[..end]).map_err(|_| ElfError::Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ourselves() -> Vec<u8> {
        fs_err::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let program = ourselves();
        let elf = Elf::new(&program).unwrap();
        let needs = elf.needs().unwrap();
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        assert!(needs.interpreter.unwrap().contains("/ld-linux"));
        assert!(elf.section(".text").unwrap().is_some());
        assert_eq!(elf.section(".nothing").unwrap(), None);
    }

    #[test]
    fn something_else_is_no_program() {
        assert_eq!(Elf::new(b"#!/bin/sh\n").unwrap_err(), ElfError::Kind);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(tail: Vec<u8>, flips: Vec<(u16, u8)>) {
            let _ = Elf::new(&[b"\x7fELF\x02\x01", &tail[..]].concat()).unwrap().needs();
            let mut program = ourselves()[..8192].to_vec();
            for (at, value) in flips {
                program[6 + usize::from(at) % 8186] = value;
            }
            let elf = Elf::new(&program).unwrap();
            let _ = (elf.needs(), elf.section(".modinfo"));
        }
    }
}
