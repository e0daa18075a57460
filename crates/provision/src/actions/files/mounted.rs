//! A file system that only we see: it is mounted nowhere, and goes when we let go of it, however that
//! comes about. Paths in it are followed as if it were the root of everything, so that no link in it
//! leads out of it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::document::FsKind;

/// What a file is called until it is whole.
const NEW: &str = ".hoist-new";

/// No link leads out of it, and none of `/proc` anywhere.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

#[derive(Debug)]
pub(super) struct Mounted(OwnedFd);

/// Who may do what with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The kernel loads what it needs for that, if it is there.
fn open(kind: FsKind) -> rustix::io::Result<OwnedFd> {
    let name = match kind {
        FsKind::Ext2 | FsKind::Ext3 | FsKind::Ext4 => "ext4",
        other => other.as_str(),
    };
    rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)
}

/// Whether the kernel knows such file systems, as far as it says.
pub(super) fn is_known(kind: FsKind) -> bool {
    !matches!(open(kind), Err(Errno::NODEV))
}

impl Mounted {
    pub(super) fn mount(node: &Path, kind: FsKind, is_read_only: bool) -> io::Result<Self> {
        let fs = open(kind)?;
        rustix::mount::fsconfig_set_string(&fs, "source", node)?;
        if is_read_only {
            rustix::mount::fsconfig_set_flag(&fs, "ro")?;
        }
        rustix::mount::fsconfig_create(&fs)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, is_read_only);
        Ok(Self(rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// A directory of ours stands for one, in tests.
    #[cfg(test)]
    fn at(dir: &Path) -> Self {
        Self(File::open(dir).expect("it is there").into())
    }

    fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { "." } else { path };
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), INSIDE)?)
    }

    /// The directory of a file, made if it is not there.
    fn above(&self, path: &str) -> io::Result<(OwnedFd, String)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (mut so_far, mut dir) = (String::new(), self.directory("")?);
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            so_far = if so_far.is_empty() { part.to_owned() } else { format!("{so_far}/{part}") };
            dir = match self.directory(&so_far) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755))?;
                    self.directory(&so_far)?
                }
                other => other?,
            };
        }
        Ok((dir, name.to_owned()))
    }

    /// Puts a file there, in place of what was: also of a link, which is not followed.
    pub(super) fn put(&self, path: &str, bytes: &[u8], rights: Rights) -> io::Result<()> {
        let (dir, name) = self.above(path)?;
        match rustix::fs::unlinkat(&dir, NEW, AtFlags::empty()) {
            Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(rustix::fs::openat(&dir, NEW, flags, mode)?);
        let Rights { mode, uid, gid } = rights;
        // Changing the owner takes bits away from the mode, so that it comes first.
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(rustix::fs::renameat(&dir, NEW, &dir, name.as_str())?)
    }

    /// A file with its rights, if it is there; of its bytes at most so many and one.
    pub(super) fn get(&self, path: &str, most: u64) -> io::Result<Option<(Vec<u8>, Rights)>> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = self
            .directory(dirs)
            .and_then(|dir| Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?));
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let about = file.metadata()?;
        let mode = about.mode() & 0o7777;
        let rights = Rights { mode, uid: about.uid(), gid: about.gid() };
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(Some((bytes, rights)))
    }

    /// Everything is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        // What a mount is held by is only a place.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
        Ok(rustix::fs::syncfs(&root)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Of whoever runs the tests.
    fn rights(dir: &Path, mode: u32) -> Rights {
        let about = std::fs::metadata(dir).expect("it is there");
        Rights { mode, uid: about.uid(), gid: about.gid() }
    }

    #[test]
    fn what_a_kernel_does_not_know_is_known_before_it_is_needed() {
        // Swap is written to disks, and mounted nowhere. Only root may ask.
        let may_ask = rustix::process::geteuid().is_root();
        assert_eq!(is_known(FsKind::Swap), !may_ask);
        assert!(is_known(FsKind::Ext4));
    }

    #[test]
    fn files_come_as_a_whole_with_their_rights_and_directories_are_made() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = Mounted::at(dir.path());
        let wanted = rights(dir.path(), 0o640);
        for text in ["first", "2"] {
            mounted.put("etc/hoist/token", text.as_bytes(), wanted).expect("it is written");
            let found = mounted.get("etc/hoist/token", 100).expect("it is read");
            assert_eq!(found, Some((text.as_bytes().to_vec(), wanted)));
        }
        assert_eq!(mounted.get("etc/none", 100).expect("it is read"), None);
        assert_eq!(mounted.get("none/none", 100).expect("it is read"), None);
        let names = fs_err::read_dir(dir.path().join("etc/hoist")).expect("it is there").count();
        assert_eq!(names, 1, "nothing is left of what was on the way");
        mounted.put("etc", b"x", wanted).expect_err("that is a directory");
    }

    #[test]
    fn no_link_leads_out_and_the_last_one_is_replaced() {
        let outside = tempfile::tempdir().expect("a temporary directory");
        let victim = outside.path().join("victim");
        fs_err::write(&victim, "as it was").expect("it is written");
        let root = tempfile::tempdir().expect("a temporary directory");
        let inside = |name: &str| root.path().join(name);
        fs_err::create_dir(inside("usr")).expect("made");
        symlink("usr", inside("bin")).expect("linked");
        symlink(outside.path(), inside("absolute")).expect("linked");
        symlink("../../../../../../../..", inside("up")).expect("linked");
        symlink(&victim, inside("usr/victim")).expect("linked");
        symlink("/proc/self/root", inside("magic")).expect("linked");
        let mounted = Mounted::at(root.path());
        let wanted = rights(root.path(), 0o644);
        mounted.put("bin/tool", b"t", wanted).expect("links within are followed");
        assert_eq!(fs_err::read(inside("usr/tool")).expect("it is there"), b"t");
        mounted.put("bin/victim", b"new", wanted).expect("the link is replaced");
        mounted.put("up/escaped", b"new", wanted).expect("above the root is the root");
        assert!(inside("escaped").is_file());
        // What the links lead to is not there, inside.
        mounted.put("absolute/victim", b"new", wanted).expect_err("it leads nowhere");
        mounted.put("magic/escaped", b"new", wanted).expect_err("it leads nowhere");
        assert_eq!(fs_err::read(&victim).expect("it is there"), b"as it was");
        assert_eq!(fs_err::read_dir(outside.path()).expect("it is there").count(), 1);
    }
}
