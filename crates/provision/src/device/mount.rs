//! A file system that is mounted for one thread, and for nobody else.
#![expect(unsafe_code, reason = "no safe function gives a thread mounts of its own")]

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

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
    let place = std::env::temp_dir().join(format!("hoist-mount-{}", std::process::id()));
    match std::fs::DirBuilder::new().mode(0o700).create(&place) {
        // Of one of us that was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
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
