//! The installed system is started without the firmware.
#![expect(unsafe_code, reason = "no crate has a safe function for it")]

use std::ffi::{CString, c_ulong};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hoist_device::start::{Start, StartError};
use rustix::system::{RebootCommand, reboot};

/// In memory. The kernel refuses files that are open for writing.
const KERNEL: &str = "/run/hoist-agent.kernel";
const INITRD: &str = "/run/hoist-agent.initrd";

/// Why the firmware has to do it.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoKexec {
    #[error(transparent)]
    StartError(#[from] StartError),
    #[error("cannot prepare the installed system in memory")]
    Keep(#[source] io::Error),
    #[error("the running kernel does not support kexec")]
    Missing,
    #[error("the running kernel forbids kexec")]
    Forbidden,
    #[error("the running kernel rejects the installed kernel")]
    Refused(#[source] io::Error),
    #[error("cannot start the installed kernel")]
    Start(#[source] io::Error),
}

/// Starts the kernel; returns only on failure. All written data must be durable before the call.
pub(super) fn go(start: &Start) -> Result<(), NoKexec> {
    let loaded = load(start);
    let _ = (fs::remove_file(KERNEL), fs::remove_file(INITRD));
    loaded?;
    rustix::fs::sync();
    reboot(RebootCommand::Kexec).map_err(|error| NoKexec::Start(error.into()))
}

fn load(start: &Start) -> Result<(), NoKexec> {
    let kernel = kept(KERNEL.as_ref(), &start.kernel).map_err(NoKexec::Keep)?;
    let initrd = start.initrd.as_ref().map(|bytes| kept(INITRD.as_ref(), bytes));
    let initrd = initrd.transpose().map_err(NoKexec::Keep)?;
    let arguments = CString::new(start.arguments.as_str())
        .map_err(|error| NoKexec::Refused(io::Error::other(error)))?;
    kexec_file_load(&kernel, initrd.as_ref(), &arguments).map_err(|error| {
        match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOSYS) => NoKexec::Missing,
            Some(rustix::io::Errno::PERM) => NoKexec::Forbidden,
            _ => NoKexec::Refused(error),
        }
    })
}

fn kept(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    drop(file);
    File::open(path)
}

fn kexec_file_load(kernel: &File, initrd: Option<&File>, arguments: &CString) -> io::Result<()> {
    const NO_INITRD: c_ulong = 0x4;
    let bytes = arguments.as_bytes_with_nul();
    let (second, flags) = initrd.map_or((-1, NO_INITRD), |file| (file.as_raw_fd(), 0));
    // SAFETY: both files are open for as long as this runs, and the kernel reads as many bytes of the
    // arguments as there are. It writes to none of these.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            second,
            bytes.len(),
            bytes.as_ptr(),
            flags,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
