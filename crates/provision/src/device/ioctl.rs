//! The one call to the kernel for which there is no safe function.
#![expect(unsafe_code, reason = "no crate tells the kernel about single partitions")]

use std::ffi::{c_int, c_longlong, c_void};
use std::fs::File;
use std::io;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    Add = 1,
    Delete = 2,
    Resize = 3,
}

/// `struct blkpg_partition` of linux/blkpg.h.
#[repr(C)]
struct Partition {
    start: c_longlong,
    length: c_longlong,
    number: c_int,
    names: [u8; 128],
}

/// `struct blkpg_ioctl_arg` of linux/blkpg.h.
#[repr(C)]
struct Argument {
    call: c_int,
    flags: c_int,
    length: c_int,
    data: *const Partition,
}

struct Blkpg<'a> {
    argument: Argument,
    /// What `argument` points to lives as long as the call.
    _partition: &'a Partition,
}

// SAFETY: BLKPG reads a `blkpg_ioctl_arg`, which `argument` is, and the `blkpg_partition` that it
// points to, which is borrowed for as long as this value lives. It writes to neither.
unsafe impl Ioctl for Blkpg<'_> {
    type Output = ();

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(0x12, 105)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.argument).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Tells the kernel about one partition of a disk, in bytes.
pub(super) fn partition(
    disk: &File,
    call: Call,
    number: u32,
    start: u64,
    length: u64,
) -> io::Result<()> {
    let signed = |bytes: u64| c_longlong::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let number = c_int::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    let partition =
        Partition { start: signed(start)?, length: signed(length)?, number, names: [0; 128] };
    let size = c_int::try_from(size_of::<Partition>()).expect("it is small");
    let argument =
        Argument { call: call as c_int, flags: 0, length: size, data: &raw const partition };
    // SAFETY: see the implementation above; the kernel checks that the file is a disk.
    unsafe { rustix::ioctl::ioctl(disk, Blkpg { argument, _partition: &partition }) }?;
    Ok(())
}
