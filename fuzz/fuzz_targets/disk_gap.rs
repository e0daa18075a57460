#![no_main]

use hoist_provision::device::gap::{Gap, GapJournal, Marker, START, backup};
use libfuzzer_sys::fuzz_target;

/// Of the smallest disk that has a whole one.
const SIZE: usize = 1024 * 1024;

// What is in the gap: a marker, the journal, and what the disk was before.
fuzz_target!(|bytes: &[u8]| {
    let mut disk = vec![0; SIZE];
    let start = usize::try_from(START).expect("it is small");
    let length = bytes.len().min(SIZE - start);
    disk[start..start + length].copy_from_slice(&bytes[..length]);
    let gap = Gap::before(None).expect("a whole gap has room");
    drop(Marker::read(&disk[..], &gap).expect("it is memory"));
    if let Err(error) = GapJournal::peek(&disk[..], &gap) {
        drop(error.to_string());
    }
    drop(backup::parse(bytes, SIZE as u64));
});
