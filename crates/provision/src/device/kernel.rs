//! What the kernel knows of partitions. It is told about each one by itself: reading the whole table
//! again fails when any partition is in use, and names the ones that did not change anew.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::ioctl::{self, Call};
use super::table::Partition;

/// Somebody may still look at a partition, or have a mount of it that is just going: in a namespace
/// of its own, a mount stays until whoever lives there ends.
const TRIES: usize = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Why the kernel does not know what it should.
#[derive(Debug, thiserror::Error)]
#[error("the kernel does not {what} partition {number} of `{disk}`")]
pub struct KernelError {
    what: &'static str,
    number: u32,
    disk: String,
    source: io::Error,
}

impl KernelError {
    /// Somebody has the partition.
    pub fn is_in_use(&self) -> bool {
        Errno::from_io_error(&self.source) == Some(Errno::BUSY)
    }
}

/// A partition as the kernel knows it, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub number: u32,
    /// It is asked for, never made up.
    pub kernel_name: String,
    pub start: u64,
    pub length: u64,
}

/// Makes the kernel know these partitions of a disk and no others. What it knows already stays as it
/// is, so that it may be in use; what only has another length is told the new one. Of a file that
/// stands for a disk it knows nothing.
pub fn tell(disk: &Path, wanted: &[Partition]) -> Result<Vec<Known>, KernelError> {
    let failed = |what, number| {
        move |source| KernelError { what, number, disk: disk.display().to_string(), source }
    };
    let device = File::open(disk).map_err(failed("show us", 0))?;
    if !is_block(&device).map_err(failed("show us", 0))? {
        return Ok(Vec::new());
    }
    let known = known(&device).map_err(failed("show us", 0))?;
    let stays = |known: &Known| {
        wanted.iter().any(|one| one.number == known.number && one.start == known.start)
    };
    for one in known.iter().filter(|one| !stays(one)) {
        when_free(|| ioctl::partition(&device, Call::Delete, one.number, 0, 0))
            .map_err(failed("forget", one.number))?;
    }
    // What becomes smaller makes room for what becomes larger.
    for is_smaller in [true, false] {
        for one in known.iter().filter(|one| stays(one)) {
            let new =
                wanted.iter().find(|new| new.number == one.number).map_or(0, |new| new.length);
            if new != one.length && (new < one.length) == is_smaller {
                ioctl::partition(&device, Call::Resize, one.number, one.start, new)
                    .map_err(failed("resize", one.number))?;
            }
        }
    }
    for one in wanted.iter().filter(|one| !known.iter().any(|k| k.number == one.number && stays(k)))
    {
        ioctl::partition(&device, Call::Add, one.number, one.start, one.length)
            .map_err(failed("take", one.number))?;
    }
    self::known(&device).map_err(failed("show us", 0))
}

/// Asks again for a while, as long as somebody has it.
fn when_free(ask: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..TRIES {
        match ask() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
    ask()
}

fn is_block(device: &File) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    Ok(device.metadata()?.file_type().is_block_device())
}

/// The partitions of a disk that the kernel knows, in order of their numbers.
pub fn partitions(disk: &Path) -> io::Result<Vec<Known>> {
    known(&File::open(disk)?)
}

fn known(device: &File) -> io::Result<Vec<Known>> {
    use std::os::unix::fs::MetadataExt;
    let number = device.metadata()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sys = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let mut known = Vec::new();
    for entry in std::fs::read_dir(&sys)? {
        let entry = entry?;
        let value = |name: &str| {
            let text = std::fs::read_to_string(entry.path().join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let Some(number) = value("partition").and_then(|number| u32::try_from(number).ok()) else {
            continue;
        };
        let (Some(start), Some(length)) = (value("start"), value("size")) else { continue };
        let kernel_name = entry.file_name().to_string_lossy().into_owned();
        known.push(Known { number, kernel_name, start: start * 512, length: length * 512 });
    }
    known.sort_by_key(|one| one.number);
    Ok(known)
}
