#![no_main]

use std::io;

use hoist_device::signature::find;
use hoist_provision::read_at::ReadAt;
use libfuzzer_sys::fuzz_target;

/// The probed offsets are far apart.
const SIZE: usize = 640 * 1024;

struct Disk(Vec<u8>);

impl ReadAt for Disk {
    fn size(&self) -> u64 {
        self.0.as_slice().size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.as_slice().read_at(at, into)
    }
}

/// Pieces, each with where it is (three bytes) and how long it is (one).
fn disk(mut input: &[u8]) -> Disk {
    let mut bytes = vec![0; SIZE];
    while let Some(([a, b, c, length], rest)) = input.split_first_chunk() {
        let (piece, behind) = rest.split_at(rest.len().min(usize::from(*length)));
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % (SIZE - piece.len());
        bytes[at..at + piece.len()].copy_from_slice(piece);
        input = behind;
    }
    Disk(bytes)
}

fuzz_target!(|input: &[u8]| {
    let disk = disk(input);
    for sector in [512, 4096] {
        for signature in find(&disk, sector).expect("it is memory") {
            assert!(signature.offset < disk.size(), "{signature}");
        }
    }
});
