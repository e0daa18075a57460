//! Initial RAM disks: cpio archives in the kernel's `newc` format.

/// An archive being written.
#[derive(Debug, Default)]
pub struct Initrd {
    archive: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Initrd {
    pub fn new() -> Self {
        Self::default()
    }

    /// A directory; the ones above it come first.
    #[must_use]
    pub fn directory(mut self, path: &str) -> Self {
        self.entry(path, DIRECTORY, &[]);
        self
    }

    /// A file that may be run.
    #[must_use]
    pub fn program(mut self, path: &str, content: &[u8]) -> Self {
        self.entry(path, PROGRAM, content);
        self
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.archive
    }

    /// Thirteen fields of eight hexadecimal digits after the magic number, then name and content,
    /// each ending on a multiple of four bytes.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of an initial RAM disk are small");
        let name_size = u32::try_from(path.len() + 1).expect("names are short");
        let (links, nothing) = (1, 0);
        let numbers = [self.entries, mode, nothing, nothing, links, nothing, size];
        let devices_name_checksum = [nothing, nothing, nothing, nothing, name_size, nothing];
        self.archive.extend_from_slice(b"070701");
        for number in numbers.into_iter().chain(devices_name_checksum) {
            self.archive.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.archive.extend_from_slice(path.as_bytes());
        self.archive.push(0);
        self.align();
        self.archive.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.archive.resize(self.archive.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lie_where_the_kernel_looks_for_them() {
        let archive = Initrd::new().directory("bin").program("bin/x", b"12345").finish();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8(archive).unwrap();
        let entries: Vec<&str> = text.split("070701").collect();
        assert_eq!(entries.len(), 4, "{text:?}");
        assert!(entries[1].starts_with("00000001000041ed"), "{text:?}");
        assert!(entries[1].ends_with("bin\0\0\0"), "{text:?}");
        assert!(entries[2].starts_with("00000002000081ed"), "{text:?}");
        assert!(entries[2].contains("bin/x\0"), "{text:?}");
        assert!(entries[2].ends_with("12345\0\0\0"), "{text:?}");
        assert!(entries[3].contains("TRAILER!!!\0"), "{text:?}");
    }
}
