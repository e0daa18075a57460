//! A directory as an archive that the kernel unpacks: `newc`, in an order that depends on names only.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::tree;

/// Writes everything below `root`, but for what is in the directory `without`. Who is not root owns what they made, so root does in the archive.
pub(crate) fn write(root: &Path, without: &Path, mut to: impl Write) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let left_out = root.join(without);
    let is_in = |path: &PathBuf| *path == left_out || !path.starts_with(&left_out);
    for (number, path) in (1..).zip(tree::entries(root)?.into_iter().filter(is_in)) {
        let about = fs_err::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).map_err(io::Error::other)?;
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        let (kind, device) = (about.file_type(), about.rdev());
        let is_device = kind.is_block_device() || kind.is_char_device();
        let link = if kind.is_symlink() {
            fs_err::read_link(&path)?.into_os_string().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let size = if kind.is_file() { about.len() } else { link.len() as u64 };
        let header = Header {
            number,
            mode: about.mode(),
            owner: if is_root { about.uid() } else { 0 },
            group: if is_root { about.gid() } else { 0 },
            modified: about.mtime(),
            size,
            device: if is_device { (major(device), minor(device)) } else { (0, 0) },
        };
        header.write(name.as_os_str().as_bytes(), &mut to)?;
        if kind.is_file() {
            let copied = io::copy(&mut fs_err::File::open(&path)?, &mut to)?;
            if copied != size {
                return Err(io::Error::other(format!("`{}` changes", path.display())));
            }
        } else {
            to.write_all(&link)?;
        }
        pad(size, &mut to)?;
    }
    let end =
        Header { number: 0, mode: 0, owner: 0, group: 0, modified: 0, size: 0, device: (0, 0) };
    end.write(b"TRAILER!!!", &mut to)?;
    to.flush()
}

struct Header {
    number: u32,
    mode: u32,
    owner: u32,
    group: u32,
    modified: i64,
    size: u64,
    device: (u32, u32),
}

impl Header {
    /// Thirteen fields of eight hexadecimal digits after the magic number, then the name, ending on a
    /// multiple of four bytes.
    fn write(&self, name: &[u8], to: &mut impl Write) -> io::Result<()> {
        let too_large = |_| io::Error::other("a file has more than 4 GiB");
        let size = u32::try_from(self.size).map_err(too_large)?;
        let modified = u32::try_from(self.modified).unwrap_or(0);
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        let (links, nothing) = (1, 0);
        let (major, minor) = self.device;
        let about = [self.number, self.mode, self.owner, self.group, links, modified, size];
        let devices = [nothing, nothing, major, minor, name_size, nothing];
        to.write_all(b"070701")?;
        for field in about.into_iter().chain(devices) {
            write!(to, "{field:08x}")?;
        }
        to.write_all(name)?;
        to.write_all(&[0])?;
        // The magic number and the fields have 110 bytes.
        pad(110 + u64::from(name_size), to)
    }
}

fn pad(written: u64, to: &mut impl Write) -> io::Result<()> {
    let missing = written.next_multiple_of(4) - written;
    to.write_all(&[0; 3][..usize::try_from(missing).unwrap_or(0)])
}
