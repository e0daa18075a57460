//! A file system that is mounted in a single thread and invisible to all others.
#![expect(unsafe_code, reason = "no safe function gives a thread mounts of its own")]

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `work` in a thread with its own mount namespace, in which the device is mounted. The mount
/// is gone when the thread ends, for any reason.
pub(crate) fn mounted<T: Send>(
    device: &Path,
    kind: &str,
    work: impl FnOnce(&Path) -> T + Send,
) -> io::Result<T> {
    let place = new_place(&std::env::temp_dir())?;
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread exists only for this call, and nothing in it depends on sharing
            // mounts or the working directory with other threads.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
            mount(device, &place, kind, flags, None)?;
            let outcome = work(&place);
            unmount(&place, UnmountFlags::empty())?;
            Ok(outcome)
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    });
    let _ = std::fs::remove_dir(&place);
    outcome
}

/// Creates a new directory. An existing one may belong to a killed hoist process, or to another
/// user who waits for files in it.
fn new_place(parent: &Path) -> io::Result<PathBuf> {
    const NAMES: u32 = 1024;
    for number in 0..NAMES {
        let place = parent.join(format!("hoist-mount-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| place),
        }
    }
    let what =
        format!("`{}` has too many `hoist-mount-*` directories; remove them", parent.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn mount_directory_is_always_a_new_one() {
        let parent = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let name =
            |number| parent.path().join(format!("hoist-mount-{}-{number}", std::process::id()));
        symlink(elsewhere.path(), name(0)).expect("a link");
        std::fs::create_dir(name(1)).expect("a directory");
        let place = new_place(parent.path()).expect("a place");
        assert_eq!(place, name(2));
        let about = std::fs::symlink_metadata(&place).expect("it is there");
        assert!(about.is_dir());
        assert_eq!(about.mode() & 0o777, 0o700);
    }
}
