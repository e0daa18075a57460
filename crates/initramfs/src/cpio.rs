//! The cpio format `newc`, which the kernel unpacks: one header, name and content per entry.

use std::io::{self, Write};

/// Name of the last entry.
pub(crate) const END: &str = "TRAILER!!!";

pub(crate) const MAGIC: &[u8; 6] = b"070701";

/// Bytes of the magic number and the fields.
const HEADER: u64 = 110;

/// The properties of an entry. Without an owner, the entry belongs to root.
#[derive(Debug, Clone, Copy, Default)]
pub struct Header {
    pub number: u32,
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    /// Seconds since 1970.
    pub modified: u32,
    /// Bytes of the content.
    pub size: u32,
    /// Major and minor number of a device file.
    pub device: (u32, u32),
}

impl Header {
    /// Thirteen fields of eight hexadecimal digits after the magic number, then the name, ending on
    /// a multiple of four bytes. The content must follow, and [`pad`] after it.
    pub fn write(&self, name: &[u8], to: &mut impl Write) -> io::Result<()> {
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        let Self { number, mode, owner, group, modified, size, device: (major, minor) } = *self;
        let links = 1;
        let unused = 0;
        let about = [number, mode, owner, group, links, modified, size];
        let devices_name_checksum = [unused, unused, major, minor, name_size, unused];
        to.write_all(MAGIC)?;
        for field in about.into_iter().chain(devices_name_checksum) {
            write!(to, "{field:08x}")?;
        }
        to.write_all(name)?;
        to.write_all(&[0])?;
        pad(HEADER + u64::from(name_size), to)
    }
}

/// Fills up to a multiple of four bytes, after a content of `written` bytes.
pub fn pad(written: u64, to: &mut impl Write) -> io::Result<()> {
    let missing = written.next_multiple_of(4) - written;
    to.write_all(&[0; 3][..usize::try_from(missing).unwrap_or(0)])
}

/// Writes the last entry.
pub fn finish(to: &mut impl Write) -> io::Result<()> {
    Header::default().write(END.as_bytes(), to)
}

#[cfg(test)]
mod tests {
    use crate::Tree;

    #[test]
    fn entries_lie_where_the_kernel_looks_for_them() {
        let mut tree = Tree::new();
        tree.directory("bin").unwrap();
        tree.program("bin/x", b"12345".to_vec()).unwrap();
        let archive = tree.archive();
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
