//! The calls to the kernel that send commands to NVMe disks.
#![expect(unsafe_code, reason = "no crate passes commands to disks")]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// A command to the controller of an NVMe disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admin {
    pub(super) opcode: u8,
    pub(super) namespace: u32,
    /// Command words 10 and 11.
    pub(super) words: [u32; 2],
    /// Timeout; 0 means the default of the kernel.
    pub(super) within_ms: u32,
}

/// `struct nvme_passthru_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_before: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_length: u32,
    data_length: u32,
    words: [u32; 6],
    within_ms: u32,
    result: u32,
}

struct NvmeAdmin<'a> {
    command: Passthrough,
    /// Keeps the buffer of `command` alive and exclusive during the call.
    _data: &'a mut [u8],
}

// SAFETY: NVME_IOCTL_ADMIN_CMD reads and writes an `nvme_passthru_cmd`, which `command` is, and at
// most the stated number of bytes of its buffer, which is borrowed as long as this value lives.
unsafe impl Ioctl for NvmeAdmin<'_> {
    type Output = c_int;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Passthrough>(b'N', 0x41)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.command).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> rustix::io::Result<c_int> {
        Ok(answer)
    }
}

/// Sends a command to the controller of the disk, and waits. The response is in `data`. Returns the
/// status if it is not zero.
pub(super) fn admin(disk: &File, command: Admin, data: &mut [u8]) -> io::Result<u16> {
    let Admin { opcode, namespace, words: [first, second], within_ms } = command;
    let data_length = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let command = Passthrough {
        opcode,
        namespace,
        data: if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() as u64 },
        data_length,
        words: [first, second, 0, 0, 0, 0],
        within_ms,
        ..Passthrough::default()
    };
    // SAFETY: see the implementation above; the kernel checks that the file is such a disk.
    let status = unsafe { rustix::ioctl::ioctl(disk, NvmeAdmin { command, _data: data }) }?;
    u16::try_from(status).map_err(|_| io::Error::other(format!("status {status}")))
}

struct NvmeNumber;

// SAFETY: NVME_IOCTL_ID takes no argument and answers with a number.
unsafe impl Ioctl for NvmeNumber {
    type Output = c_int;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(b'N', 0x40)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> rustix::io::Result<c_int> {
        Ok(answer)
    }
}

/// The number of the open namespace.
pub(super) fn namespace(disk: &File) -> io::Result<u32> {
    // SAFETY: see the implementation above.
    let number = unsafe { rustix::ioctl::ioctl(disk, NvmeNumber) }?;
    Ok(number.cast_unsigned())
}
