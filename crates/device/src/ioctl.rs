//! Calls to the kernel without a safe wrapper in any crate.
#![expect(
    unsafe_code,
    reason = "no crate tells the kernel about single partitions, arrays and maps"
)]

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
    /// Keeps the target of `argument` alive during the call.
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

/// Adds, removes or resizes one partition in the kernel. Positions are in bytes.
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

/// `struct dm_ioctl` of linux/dm-ioctl.h.
#[repr(C)]
struct MapCall {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_number: u32,
    padding: u32,
    device: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// Stops an MD array. The data on its devices stays.
pub(super) fn stop_array(array: &File) -> io::Result<()> {
    const STOP_ARRAY: Opcode = opcode::none(9, 0x32);
    // SAFETY: STOP_ARRAY takes no argument; other devices than arrays do not know it.
    unsafe { rustix::ioctl::ioctl(array, rustix::ioctl::NoArg::<STOP_ARRAY>::new()) }?;
    Ok(())
}

/// Removes a device-mapper map that no process has open.
pub(super) fn remove_map(name: &str) -> io::Result<()> {
    const REMOVE: Opcode = opcode::read_write::<MapCall>(0xfd, 4);
    let size = u32::try_from(size_of::<MapCall>()).expect("it is small");
    let mut call = MapCall {
        version: [4, 0, 0],
        data_size: size,
        data_start: size,
        target_count: 0,
        open_count: 0,
        flags: 0,
        event_number: 0,
        padding: 0,
        device: 0,
        name: [0; 128],
        uuid: [0; 129],
        data: [0; 7],
    };
    // The last byte terminates the name.
    let place = call.name.get_mut(..name.len()).filter(|place| place.len() < 128);
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    let control = File::options().read(true).write(true).open("/dev/mapper/control")?;
    // SAFETY: DM_DEV_REMOVE reads and writes a `dm_ioctl` of the size that it says, which `call`
    // is.
    unsafe {
        rustix::ioctl::ioctl(&control, rustix::ioctl::Updater::<REMOVE, MapCall>::new(&mut call))
    }?;
    Ok(())
}
