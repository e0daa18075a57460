//! A directory as an archive that the kernel unpacks: `newc`, in an order that depends on names only.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hoist_initramfs::cpio::{self, Header};
use rustix::fs::{major, minor};

use crate::tree;

/// Writes everything below `root` except the directory `without`. If the caller is not root, its
/// files belong to root in the archive.
pub(crate) fn write(root: &Path, without: &Path, mut to: impl Write) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let left_out = root.join(without);
    let is_in = |path: &PathBuf| *path == left_out || !path.starts_with(&left_out);
    for (number, path) in (1..).zip(tree::entries(root)?.into_iter().filter(is_in)) {
        let about = fs_err::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).map_err(io::Error::other)?;
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        let kind = about.file_type();
        let device = about.rdev();
        let is_device = kind.is_block_device() || kind.is_char_device();
        let link = if kind.is_symlink() {
            fs_err::read_link(&path)?.into_os_string().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let size = if kind.is_file() { about.len() } else { link.len() as u64 };
        let too_large = |_| io::Error::other(format!("`{}` has 4 GiB or more", path.display()));
        let header = Header {
            number,
            mode: about.mode(),
            owner: if is_root { about.uid() } else { 0 },
            group: if is_root { about.gid() } else { 0 },
            modified: u32::try_from(about.mtime()).unwrap_or(0),
            size: u32::try_from(size).map_err(too_large)?,
            device: if is_device { (major(device), minor(device)) } else { (0, 0) },
        };
        header.write(name.as_os_str().as_bytes(), &mut to)?;
        if kind.is_file() {
            let copied = io::copy(&mut fs_err::File::open(&path)?, &mut to)?;
            if copied != size {
                return Err(io::Error::other(format!(
                    "`{}` changed while it was read",
                    path.display()
                )));
            }
        } else {
            to.write_all(&link)?;
        }
        cpio::pad(size, &mut to)?;
    }
    cpio::finish(&mut to)?;
    to.flush()
}
