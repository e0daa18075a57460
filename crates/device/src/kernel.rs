//! The kernel's list of partitions. Partitions are added and removed one by one: rereading the
//! whole table fails when any partition is in use, and renames unchanged partitions.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use hoist_provision::partition_table::Partition;
use rustix::io::Errno;

use super::ioctl::{self, Call};

/// Another process may still have a partition open or mounted. A mount in another namespace stays
/// until the last process of that namespace ends.
const TRIES: usize = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// The reason why the kernel's list of partitions could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} of `{disk}`")]
pub struct KernelError {
    what: String,
    disk: String,
    source: io::Error,
}

impl KernelError {
    /// Whether a process uses the partition.
    pub fn is_in_use(&self) -> bool {
        Errno::from_io_error(&self.source) == Some(Errno::BUSY)
    }
}

/// A partition in the kernel's list, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPartition {
    pub number: u32,
    /// Read from the kernel, never derived.
    pub kernel_name: String,
    pub start: u64,
    pub length: u64,
}

/// Makes the kernel list exactly these partitions of a disk. Unchanged partitions are not touched
/// and may be in use; a partition with a new length only is resized. Does nothing for a file.
pub fn set_partitions(
    disk: &Path,
    wanted: &[Partition],
) -> Result<Vec<KernelPartition>, KernelError> {
    let failed =
        |what: String| move |source| KernelError { what, disk: disk.display().to_string(), source };
    let not_listed = |source| failed("list the partitions".to_owned())(source);
    let device = File::open(disk).map_err(not_listed)?;
    if !is_block(&device).map_err(not_listed)? {
        return Ok(Vec::new());
    }
    let known = known(&device).map_err(not_listed)?;
    let stays = |known: &KernelPartition| {
        wanted.iter().any(|one| one.number == known.number && one.start == known.start)
    };
    for one in known.iter().filter(|one| !stays(one)) {
        when_free(|| ioctl::partition(&device, Call::Delete, one.number, 0, 0))
            .map_err(failed(format!("remove partition {}", one.number)))?;
    }
    // Partitions that shrink must make room before others grow.
    for is_smaller in [true, false] {
        for one in known.iter().filter(|one| stays(one)) {
            let new =
                wanted.iter().find(|new| new.number == one.number).map_or(0, |new| new.length);
            if new != one.length && (new < one.length) == is_smaller {
                ioctl::partition(&device, Call::Resize, one.number, one.start, new)
                    .map_err(failed(format!("resize partition {}", one.number)))?;
            }
        }
    }
    for one in wanted.iter().filter(|one| !known.iter().any(|k| k.number == one.number && stays(k)))
    {
        ioctl::partition(&device, Call::Add, one.number, one.start, one.length)
            .map_err(failed(format!("add partition {}", one.number)))?;
    }
    self::known(&device).map_err(not_listed)
}

/// Retries for a while as long as the partition is busy.
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

/// The kernel's partitions of a disk, ordered by number.
pub fn partitions(disk: &Path) -> io::Result<Vec<KernelPartition>> {
    known(&File::open(disk)?)
}

fn known(device: &File) -> io::Result<Vec<KernelPartition>> {
    use std::os::unix::fs::MetadataExt;
    let number = device.metadata()?.rdev();
    let major = rustix::fs::major(number);
    let minor = rustix::fs::minor(number);
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
        known.push(KernelPartition {
            number,
            kernel_name,
            start: start * 512,
            length: length * 512,
        });
    }
    known.sort_by_key(|one| one.number);
    Ok(known)
}
