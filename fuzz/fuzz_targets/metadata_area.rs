#![no_main]

use hoist_device::metadata_area::{DiskJournal, read_marker};
use hoist_provision::backup;
use hoist_provision::metadata_area::{MetadataArea, START};
use libfuzzer_sys::fuzz_target;

/// Of the smallest disk that has a whole one.
const SIZE: usize = 1024 * 1024;

// The metadata area: marker, journal and backup.
fuzz_target!(|bytes: &[u8]| {
    let mut disk = vec![0; SIZE];
    let start = usize::try_from(START).expect("it is small");
    let length = bytes.len().min(SIZE - start);
    disk[start..start + length].copy_from_slice(&bytes[..length]);
    let gap = MetadataArea::before(None).expect("an empty disk has room");
    drop(read_marker(&disk[..], &gap).expect("it is memory"));
    if let Err(error) = DiskJournal::peek(&disk[..], &gap) {
        drop(error.to_string());
    }
    drop(backup::parse(bytes, SIZE as u64));
});
