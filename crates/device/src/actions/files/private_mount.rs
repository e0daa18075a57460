//! A file system mounted at no path and visible only to this process. The kernel unmounts it when
//! the descriptor is closed, even if the process is killed. Paths are resolved with the file system
//! as root, so that no link leads out of it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hoist_provision::document::FsKind;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The name of a file until it is complete.
const NEW: &str = ".hoist-new";

/// No link may lead out of the file system, and magic links as in `/proc` are refused.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

#[derive(Debug)]
pub(super) struct PrivateMount(OwnedFd);

/// Owner and mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The kernel loads the module of the file system if it is available.
fn open(kind: FsKind) -> rustix::io::Result<OwnedFd> {
    let name = match kind {
        FsKind::Ext2 | FsKind::Ext3 | FsKind::Ext4 => "ext4",
        other => other.as_str(),
    };
    rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)
}

/// Whether the kernel supports this kind of file system, as far as it can be determined.
pub(super) fn is_known(kind: FsKind) -> bool {
    !matches!(open(kind), Err(Errno::NODEV))
}

impl PrivateMount {
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

    /// Uses a directory in place of a mount, in tests.
    #[cfg(test)]
    fn at(dir: &Path) -> Self {
        Self(File::open(dir).expect("it is there").into())
    }

    fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { "." } else { path };
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), INSIDE)?)
    }

    /// The parent directory of a file, created if it is missing.
    fn parent(&self, path: &str) -> io::Result<(OwnedFd, String)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut so_far = String::new();
        let mut dir = self.directory("")?;
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

    /// Writes a file and replaces an existing one. A symbolic link is replaced, never followed.
    pub(super) fn put(&self, path: &str, bytes: &[u8], rights: Rights) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        match rustix::fs::unlinkat(&dir, NEW, AtFlags::empty()) {
            Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(rustix::fs::openat(&dir, NEW, flags, mode)?);
        let Rights { mode, uid, gid } = rights;
        // Changing the owner clears mode bits, so it must come before setting the mode.
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(rustix::fs::renameat(&dir, NEW, &dir, name.as_str())?)
    }

    /// A file with its rights, if it exists. At most `most + 1` bytes are read.
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

    /// Makes all files durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        // The mount descriptor is an `O_PATH` descriptor and cannot be synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
        Ok(rustix::fs::syncfs(&root)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// With the user and group of the test process.
    fn rights(dir: &Path, mode: u32) -> Rights {
        let about = std::fs::metadata(dir).expect("it is there");
        Rights { mode, uid: about.uid(), gid: about.gid() }
    }

    #[test]
    fn missing_kernel_support_is_detected_before_use() {
        // Swap cannot be mounted. Only root may ask the kernel.
        let may_ask = rustix::process::geteuid().is_root();
        assert_eq!(is_known(FsKind::Swap), !may_ask);
        assert!(is_known(FsKind::Ext4));
    }

    #[test]
    fn files_are_written_whole_with_rights_and_directories() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = PrivateMount::at(dir.path());
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
    fn links_stay_inside_and_last_link_is_replaced() {
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
        let mounted = PrivateMount::at(root.path());
        let wanted = rights(root.path(), 0o644);
        mounted.put("bin/tool", b"t", wanted).expect("links within are followed");
        assert_eq!(fs_err::read(inside("usr/tool")).expect("it is there"), b"t");
        mounted.put("bin/victim", b"new", wanted).expect("the link is replaced");
        mounted.put("up/escaped", b"new", wanted).expect("above the root is the root");
        assert!(inside("escaped").is_file());
        // The targets of the links do not exist inside the mount.
        mounted.put("absolute/victim", b"new", wanted).expect_err("it leads nowhere");
        mounted.put("magic/escaped", b"new", wanted).expect_err("it leads nowhere");
        assert_eq!(fs_err::read(&victim).expect("it is there"), b"as it was");
        assert_eq!(fs_err::read_dir(outside.path()).expect("it is there").count(), 1);
    }
}
