//! The directory that becomes the root of an image.
//!
//! Files are always put below it, whatever links are on the path: links are resolved as in the
//! installed system.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;

/// Entries of a tree.
const MAX_ENTRIES: usize = 4_000_000;

/// A tree being filled.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// A new, empty one.
    pub(crate) fn create(root: PathBuf) -> io::Result<Self> {
        fs_err::create_dir(&root)?;
        let tree = Self { root };
        tree.set_mode("/", 0o755)?;
        Ok(tree)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// A directory, with those above it.
    pub(crate) fn directory(&self, path: &str, mode: u32) -> io::Result<()> {
        self.open_directory(&names(path))?;
        self.set_mode(path, mode)
    }

    /// Makes root the owner of a directory, if it is there.
    pub(crate) fn give_to_root(&self, path: &str) -> io::Result<()> {
        let directory = match self.resolve(path.trim_start_matches('/'), OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let user = rustix::fs::Uid::ROOT;
        let group = rustix::fs::Gid::ROOT;
        Ok(rustix::fs::fchown(directory, Some(user), Some(group))?)
    }

    /// A file with this content, instead of whatever is there.
    pub(crate) fn file(&self, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let mut file = self.create_file(path)?;
        file.write_all(content)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(())
    }

    /// The same with the content of a file of this machine.
    pub(crate) fn copy(&self, path: &str, from: &Path, mode: u32) -> io::Result<()> {
        let mut from = fs_err::File::open(from)?;
        let mut file = self.create_file(path)?;
        io::copy(&mut from, &mut file)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(())
    }

    /// A symbolic link, instead of whatever is there.
    pub(crate) fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let (above, name) = self.place(path)?;
        Ok(rustix::fs::symlinkat(target, above, name)?)
    }

    /// Whether the last name of a path is a symbolic link.
    pub(crate) fn is_link(&self, path: &str) -> bool {
        let target = self
            .open_above(path)
            .and_then(|(above, name)| Ok(rustix::fs::readlinkat(above, name, Vec::new())?));
        target.is_ok()
    }

    /// Takes a file away, if it is there.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        self.place(path).map(|_| ())
    }

    /// A file of the tree, as the installed system would find it.
    pub(crate) fn open(&self, path: &str) -> io::Result<std::fs::File> {
        Ok(self.resolve(path.trim_start_matches('/'), OFlags::RDONLY)?.into())
    }

    /// The names in a directory, in order; none if there is no such directory.
    pub(crate) fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let directory = match self.resolve(path.trim_start_matches('/'), OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes nothing in it newer than `epoch`. Must be the last that happens to it.
    pub(crate) fn settle(&self, epoch: u32) -> io::Result<()> {
        // Changing an entry changes its directory, so entries come before their directory.
        for path in entries(&self.root)?.iter().rev() {
            let about = rustix::fs::lstat(path)?;
            let seconds = about.st_mtime.min(epoch.into());
            let at = Timespec { tv_sec: seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: at, last_modification: at };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn create_file(&self, path: &str) -> io::Result<std::fs::File> {
        let (above, name) = self.place(path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(above, name, flags | OFlags::CLOEXEC, Mode::RUSR)?.into())
    }

    /// The directory of a path, and the name in it.
    fn open_above<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let mut above = names(path);
        let name = above.pop().ok_or(Errno::ISDIR)?;
        Ok((self.open_directory(&above)?, name))
    }

    /// The same, where nothing is any more.
    fn place<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (above, name) = self.open_above(path)?;
        match rustix::fs::unlinkat(&above, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((above, name)),
            Err(error) => Err(error.into()),
        }
    }

    fn open_directory(&self, names: &[&str]) -> io::Result<OwnedFd> {
        for length in 1..=names.len() {
            let path = names[..length].join("/");
            match self.resolve(&path, OFlags::DIRECTORY) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    let above = self.resolve(&names[..length - 1].join("/"), OFlags::DIRECTORY)?;
                    rustix::fs::mkdirat(&above, names[length - 1], Mode::from_raw_mode(0o755))?;
                    // Independent of the caller's mask.
                    let made = self.resolve(&path, OFlags::DIRECTORY)?;
                    rustix::fs::fchmod(made, Mode::from_raw_mode(0o755))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.resolve(&names.join("/"), OFlags::DIRECTORY)?)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let root =
            rustix::fs::open(&self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = if path.is_empty() { "." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    }

    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        let directory = self.resolve(path.trim_start_matches('/'), OFlags::DIRECTORY)?;
        Ok(rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))?)
    }
}

fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

/// The directory and everything below it, in an order that depends on names only; a directory comes
/// before its entries.
pub(crate) fn entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if !fs_err::symlink_metadata(&path)?.is_dir() {
            continue;
        }
        for entry in fs_err::read_dir(&path)? {
            found.push(entry?.path());
        }
        if found.len() > MAX_ENTRIES {
            return Err(io::Error::other(format!("the tree has more than {MAX_ENTRIES} files")));
        }
    }
    found.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::create(dir.path().join("tree")).unwrap();
        (dir, tree)
    }

    #[test]
    fn links_of_the_tree_never_lead_out_of_it() {
        let (dir, tree) = tree();
        fs_err::create_dir(dir.path().join("outside")).unwrap();
        let outside = dir.path().join("outside");
        tree.link("/var", outside.to_str().unwrap()).unwrap();
        tree.link("/etc", "../../../../outside").unwrap();
        tree.directory("/outside", 0o755).unwrap();
        // As the installed system sees it, the first leads nowhere.
        assert!(tree.file("/var/x", b"x", 0o644).is_err());
        tree.file("/etc/x", b"x", 0o644).unwrap();
        assert!(!outside.join("x").exists());
        assert!(tree.path().join("outside/x").is_file());
    }

    #[test]
    fn a_file_takes_the_place_of_a_link_and_has_its_mode() {
        let (dir, tree) = tree();
        let outside = dir.path().join("kept");
        fs_err::write(&outside, "old").unwrap();
        tree.link("/x", outside.to_str().unwrap()).unwrap();
        assert!(tree.is_link("/x"));
        tree.file("/x", b"new", 0o4711).unwrap();
        assert_eq!(fs_err::read_to_string(outside).unwrap(), "old");
        assert!(!tree.is_link("/x") && !tree.is_link("/nothing"));
        let made = fs_err::symlink_metadata(tree.path().join("x")).unwrap();
        assert!(made.is_file() && made.mode() & 0o7777 == 0o4711);
    }

    #[test]
    fn change_times_are_capped_and_older_ones_stay() {
        let (_dir, tree) = tree();
        tree.file("/a/b/new", b"", 0o644).unwrap();
        tree.file("/a/old", b"", 0o644).unwrap();
        tree.link("/a/link", "nowhere").unwrap();
        let old = Timespec { tv_sec: 1000, tv_nsec: 5 };
        let times = Timestamps { last_access: old, last_modification: old };
        rustix::fs::utimensat(CWD, tree.path().join("a/old"), &times, AtFlags::empty()).unwrap();
        tree.settle(1_700_000_000).unwrap();
        for path in entries(tree.path()).unwrap() {
            let about = fs_err::symlink_metadata(&path).unwrap();
            let wanted = if path.ends_with("old") { 1000 } else { 1_700_000_000 };
            assert_eq!((about.mtime(), about.mtime_nsec()), (wanted, 0), "{}", path.display());
        }
    }
}
