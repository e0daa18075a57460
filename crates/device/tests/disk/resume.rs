//! Resuming images in chunks that an earlier attempt wrote partly.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::{
    ChunkedImage, ImageError, Origin, ProgressError, Watch, first_difference, pack, write_chunks,
};
use hoist_device::{GuardedIo, Identity, Ranges};
use hoist_provision::manifest::Manifest;
use parking_lot::Mutex;

use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;

/// Small enough to be written many times, with more chunks than one progress record covers.
const IMAGE: usize = 150 * MIB + 5000;
const TARGET: Range<u64> = MIB as u64..152 * MIB as u64;

/// All chunks differ, most are zeros but for a few bytes, and some are all zeros.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; IMAGE];
    for (number, chunk) in bytes.chunks_mut(4 * MIB).enumerate() {
        if number % 5 != 3 {
            chunk[700_000..800_000].fill(u8::try_from(number).expect("few") + 1);
            chunk[0] = 7;
        }
    }
    bytes
}

struct Case {
    image: Vec<u8>,
    manifest: Manifest,
    server: Server,
    disk: tempfile::NamedTempFile,
}

#[derive(Default)]
struct RecordedProgress(Mutex<u64>);

impl Watch for RecordedProgress {
    fn durable(&self, reached: u64) -> Result<(), ProgressError> {
        let mut kept = self.0.lock();
        assert!(*kept < reached, "it only grows");
        *kept = reached;
        Ok(())
    }
}

impl Case {
    fn new() -> Self {
        let image = image();
        let mut packed = Vec::new();
        let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
        let server = Server::start(&packed, &[Answer::Good]);
        let memory = std::path::Path::new("/dev/shm");
        let elsewhere = std::env::temp_dir();
        let dir = if memory.is_dir() { memory } else { &elsewhere };
        let disk = tempfile::NamedTempFile::new_in(dir).expect("a temporary file");
        disk.as_file().set_len(TARGET.end).expect("it has a size");
        Self { image, manifest, server, disk }
    }

    fn open(&self) -> GuardedIo {
        let meant = Identity::of(self.disk.path(), 512).expect("it is there");
        let allow = Ranges::from(TARGET);
        GuardedIo::open(self.disk.path(), &meant, &allow, &Ranges::default()).expect("it is free")
    }

    fn write(&self, io: &GuardedIo, reached: u64, watch: &dyn Watch) -> Result<(), ImageError> {
        let origin = Origin::new(vec![self.server.url.clone()]);
        let image = ChunkedImage {
            origin: &origin,
            manifest: &self.manifest,
            reached,
            keep_every: 40 * MIB as u64,
        };
        write_chunks(&image, io, TARGET, watch).map(|written| {
            assert_eq!(written.bytes, IMAGE as u64);
        })
    }

    fn is_whole(&self) -> bool {
        let io = self.open();
        let start = TARGET.start;
        let found = first_difference(&io, start, &self.manifest.chunks).expect("it is read");
        let mut first = [0; 1];
        self.disk.as_file().read_exact_at(&mut first, start).expect("it is read");
        assert!(found.is_some() || first == self.image[..1]);
        found.is_none()
    }
}

#[test]
fn power_cut_resumes_from_durable_bytes() {
    let case = Case::new();
    let mut went_on = 0;
    for (number, cut) in (1..10).map(|step| (step, step * 15 * MIB as u64)) {
        case.disk.as_file().set_len(0).expect("it is emptied");
        case.disk.as_file().set_len(TARGET.end).expect("it has a size");
        let kept = RecordedProgress::default();
        let io = case.open().with_fault(Fault::new(
            FaultTrigger::AfterBytes(cut),
            FaultEffect::CutPower(number + 1),
        ));
        let error = case.write(&io, 0, &kept).expect_err("the power is cut");
        assert!(matches!(error, ImageError::Write(_)), "{error:?}");
        drop(io);
        assert!(!case.is_whole());
        let reached = *kept.0.lock();
        let before = case.server.starts().len();
        case.write(&case.open(), reached, &()).expect("nothing is wrong any more");
        assert!(case.is_whole(), "cut at {cut}");
        if reached > 0 {
            went_on += 1;
            let starts = &case.server.starts()[before..];
            assert_eq!(starts[0], 0, "the first chunk is fetched in any case");
            assert!(starts.len() == 2 && starts[1] > 0, "{starts:?}: the rest is gone on with");
        }
    }
    assert!(went_on > 2, "{went_on} of them had something to go on from");
}

#[test]
fn lost_durable_bytes_are_written_again() {
    let case = Case::new();
    let kept = RecordedProgress::default();
    case.write(&case.open(), 0, &kept).expect("nothing is wrong");
    let reached = *kept.0.lock();
    assert!(reached > 100 * MIB as u64, "{reached}");
    let chunk = usize::try_from(reached).expect("small") / (4 * MIB) - 1;
    let at = TARGET.start + (chunk * 4 * MIB) as u64 + 750_000;
    case.disk.as_file().write_all_at(b"lost", at).expect("it is written");
    let far = TARGET.start + 9 * 4 * MIB as u64 + 750_000;
    case.disk.as_file().write_all_at(b"lost too", far).expect("it is written");
    assert!(!case.is_whole());
    case.write(&case.open(), reached, &()).expect("nothing is wrong");
    assert!(case.is_whole(), "all of it was written again");
}

struct CannotKeep;

impl Watch for CannotKeep {
    fn durable(&self, _: u64) -> Result<(), ProgressError> {
        Err(ProgressError::BadAttempt("no room".to_owned()))
    }
}

#[test]
fn unsaved_progress_stops_the_image() {
    let case = Case::new();
    let error = case.write(&case.open(), 0, &CannotKeep).expect_err("nobody would know");
    assert!(matches!(error, ImageError::Keep(_)), "{error:?}");
    assert!(!case.is_whole());
}
