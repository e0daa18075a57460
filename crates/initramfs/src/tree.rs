//! Files and directories, and the archive they become: cpio in the kernel's `newc` format.

use std::collections::BTreeMap;
use std::io;

use crate::cpio::{self, END, Header};

/// The content of an archive, by path without a leading slash. Independent of any clock and of the
/// order of files on a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Directory,
    File {
        content: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link to this path.
    Link(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    #[error("`{0}` is not a path of an archive; name a path below its root, without `..`")]
    Path(String),
    #[error("the archive already has a different entry at `{0}`")]
    Taken(String),
    #[error("`{path}` has {size} bytes; files of an archive must be smaller than 4 GiB")]
    TooLarge { path: String, size: usize },
}

/// Longest path that the kernel reads.
const MAX_PATH: usize = 4096;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

impl Tree {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn directory(&mut self, path: &str) -> Result<(), TreeError> {
        self.add(path, Entry::Directory)
    }

    /// A readable file.
    pub fn file(&mut self, path: &str, content: Vec<u8>) -> Result<(), TreeError> {
        self.add(path, Entry::File { content, mode: 0o644 })
    }

    /// An executable file.
    pub fn program(&mut self, path: &str, content: Vec<u8>) -> Result<(), TreeError> {
        self.add(path, Entry::File { content, mode: 0o755 })
    }

    pub fn link(&mut self, path: &str, to: &str) -> Result<(), TreeError> {
        self.add(path, Entry::Link(to.to_owned()))
    }

    /// Adds an entry with its parent directories. Adding the same entry again is allowed.
    pub fn add(&mut self, path: &str, entry: Entry) -> Result<(), TreeError> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        let is_path = path.len() < MAX_PATH && !path.contains('\0') && path != END;
        if !is_path || !path.split('/').all(is_plain) {
            return Err(TreeError::Path(path.to_owned()));
        }
        if let Entry::File { content, .. } = &entry
            && u32::try_from(content.len()).is_err()
        {
            return Err(TreeError::TooLarge { path: path.to_owned(), size: content.len() });
        }
        for (at, _) in path.match_indices('/') {
            self.place(&path[..at], Entry::Directory)?;
        }
        self.place(path, entry)
    }

    fn place(&mut self, path: &str, entry: Entry) -> Result<(), TreeError> {
        match self.entries.get(path) {
            Some(there) if *there != entry => Err(TreeError::Taken(path.to_owned())),
            Some(_) => Ok(()),
            None => {
                self.entries.insert(path.to_owned(), entry);
                Ok(())
            }
        }
    }

    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// The number of files.
    pub fn files(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry, Entry::File { .. })).count()
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        let size = |entry: &Entry| match entry {
            Entry::File { content, .. } => content.len() as u64,
            Entry::Directory | Entry::Link(_) => 0,
        };
        self.entries.values().map(size).sum()
    }

    /// The entries that are missing in the other tree, which is unpacked first.
    #[must_use]
    pub fn without(mut self, other: &Self) -> Self {
        self.entries.retain(|path, _| !other.entries.contains_key(path));
        self
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The archive, not packed.
    pub fn archive(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        // In order, a directory comes before its entries.
        for (number, (path, entry)) in (1..).zip(&self.entries) {
            let (mode, content) = match entry {
                Entry::Directory => (DIRECTORY, &[][..]),
                Entry::File { content, mode } => (FILE | mode, &content[..]),
                Entry::Link(to) => (LINK, to.as_bytes()),
            };
            write(&mut archive, number, path, mode, content).expect("memory takes all bytes");
        }
        cpio::finish(&mut archive).expect("memory takes all bytes");
        archive
    }
}

/// Packs an archive as a zstd frame. Several frames can be concatenated.
pub fn pack(archive: &[u8], level: i32) -> io::Result<Vec<u8>> {
    let mut packed = zstd::encode_all(archive, level)?;
    // The kernel looks for the next archive at a multiple of four bytes.
    align(&mut packed);
    Ok(packed)
}

fn write(
    archive: &mut Vec<u8>,
    number: u32,
    path: &str,
    mode: u32,
    content: &[u8],
) -> io::Result<()> {
    let size = u32::try_from(content.len()).expect("checked when the file was added");
    Header { number, mode, size, ..Header::default() }.write(path.as_bytes(), archive)?;
    archive.extend_from_slice(content);
    cpio::pad(u64::from(size), archive)
}

fn align(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;
    use crate::cpio::MAGIC;

    #[test]
    fn archive_round_trips_its_entries() {
        let mut tree = Tree::new();
        tree.program("/bin/tool", b"#!/bin/sh\n".to_vec()).unwrap();
        tree.file("etc/a/odd", vec![7; 5]).unwrap();
        tree.link("init", "bin/tool").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut cpio = Command::new("cpio")
            .args(["-i", "-d", "--quiet", "-m"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("`cpio` is not installed; this test needs package `cpio`");
        cpio.stdin.take().unwrap().write_all(&tree.archive()).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(fs_err::read(dir.path().join("etc/a/odd")).unwrap(), [7; 5]);
        assert_eq!(fs_err::read_link(dir.path().join("init")).unwrap().to_str(), Some("bin/tool"));
        assert!(Command::new(dir.path().join("bin/tool")).status().unwrap().success());
    }

    #[test]
    fn archive_is_independent_of_the_order_of_additions() {
        let build = |paths: [&str; 3]| {
            let mut tree = Tree::new();
            for path in paths {
                tree.file(path, path.as_bytes().to_vec()).unwrap();
            }
            pack(&tree.archive(), 1).unwrap()
        };
        let one = build(["a/b", "c", "a/d"]);
        assert_eq!(one, build(["c", "a/d", "a/b"]));
        assert_eq!(one.len() % 4, 0);
    }

    #[test]
    fn path_outside_the_root_is_refused() {
        let longest = "n".repeat(MAX_PATH - 1);
        assert_eq!(Tree::new().file(&longest, Vec::new()), Ok(()));
        let too_long = format!("{longest}n");
        for path in ["", "/", "a//b", "../a", "a/./b", "a\0b", END, &too_long] {
            let refused = Tree::new().file(path, Vec::new());
            assert!(matches!(refused, Err(TreeError::Path(_))), "{path:?}");
        }
    }

    #[test]
    fn path_holds_a_single_entry() {
        let mut tree = Tree::new();
        tree.file("a/b", b"one".to_vec()).unwrap();
        assert_eq!(tree.file("a/b", b"one".to_vec()), Ok(()));
        assert_eq!(tree.file("a/b", b"two".to_vec()), Err(TreeError::Taken("a/b".to_owned())));
        assert_eq!(tree.file("a/b/c", Vec::new()), Err(TreeError::Taken("a/b".to_owned())));
        assert_eq!(tree.link("a", "c"), Err(TreeError::Taken("a".to_owned())));
    }

    proptest! {
        #[test]
        fn every_header_is_where_the_kernel_looks_for_it(content: Vec<u8>, name in "[a-z]{1,9}") {
            let mut tree = Tree::new();
            tree.file(&name, content.clone()).unwrap();
            let archive = tree.archive();
            let end = archive.len() - (110 + END.len() + 1).next_multiple_of(4);
            prop_assert_eq!(&archive[..6], &MAGIC[..]);
            prop_assert_eq!(&archive[end..end + 6], &MAGIC[..]);
            prop_assert_eq!(archive.len() % 4, 0);
        }
    }
}
