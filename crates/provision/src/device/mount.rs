//! A file system that is mounted for one thread, and for nobody else.
#![expect(unsafe_code, reason = "no safe function gives a thread mounts of its own")]

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Does something where only who does it sees the file system of a device. When its thread ends, in
/// whichever way, the mount is gone.
pub(crate) fn mounted<T: Send>(
    device: &Path,
    kind: &str,
    work: impl FnOnce(&Path) -> T + Send,
) -> io::Result<T> {
    let place = new_place(&std::env::temp_dir())?;
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread is ours from its beginning to its end, and nothing of it depends on
            // mounts or on the working directory being those of other threads.
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

/// A directory that was not there before. One that is there may be of one of us that was killed, or
/// of another user who waits for what is written below it.
fn new_place(parent: &Path) -> io::Result<PathBuf> {
    const NAMES: u32 = 1024;
    for number in 0..NAMES {
        let place = parent.join(format!("hoist-mount-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| place),
        }
    }
    let what = format!("`{}` is full of directories for mounts; remove them", parent.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn place_of_a_mount_is_never_one_that_was_there() {
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
