use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use hoist_device::fault::Fault;
use hoist_device::guard::WriteError;
use hoist_device::images::{
    ChunkedImage, FetchLimits, ImageError, KEEP_EVERY, Origin, Progress, ProgressError,
    SourceError, Stream, Watch, WriteSummary, pack, write, write_chunks,
};
use hoist_device::{GuardedIo, Identity, Ranges};
use hoist_provision::digest::Digest;
use hoist_provision::document::Compression;
use hoist_provision::manifest::{ChunkKind, Manifest};
use hoist_testkit::loop_disk::LoopDisk;
use parking_lot::Mutex;

use crate::machine::identity;
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;

/// Range of the image, on a slightly larger disk.
const TARGET: Range<u64> = MIB as u64..25 * MIB as u64;
const DISK: u64 = 27 * MIB as u64;

/// An image with all kinds of content: incompressible and compressible bytes, holes, and an odd
/// end.
fn image() -> Vec<u8> {
    let mut bytes = noise(21 * MIB + 12_345);
    bytes[2 * MIB..3 * MIB].fill(0);
    bytes[5 * MIB + 17..17 * MIB].fill(0);
    bytes[18 * MIB..18 * MIB + 500_000].fill(b'x');
    bytes
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("it is memory");
    encoder.finish().expect("it is memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("it is memory")
}

fn chunked(bytes: &[u8]) -> (Vec<u8>, Manifest) {
    let mut packed = Vec::new();
    let manifest = pack(bytes, &mut packed, 1).expect("it is memory");
    (packed, manifest)
}

/// A file that stands for a disk, full of old data.
struct Target(tempfile::NamedTempFile);

impl Target {
    fn new() -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let elsewhere = std::env::temp_dir();
        let dir = if memory.is_dir() { memory } else { &elsewhere };
        let file = tempfile::NamedTempFile::new_in(dir).expect("a temporary file");
        fs_err::write(file.path(), vec![0xff; usize::try_from(DISK).expect("small")])
            .expect("written");
        Self(file)
    }

    fn open(&self) -> GuardedIo {
        let meant = Identity::of(self.0.path(), 512).expect("it is there");
        let allow = Ranges::from(TARGET);
        GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default()).expect("it is free")
    }

    /// Asserts that the target holds the image and that nothing else changed.
    fn holds(&self, image: &[u8]) {
        holds(&fs_err::read(self.0.path()).expect("it is there"), image);
    }

    /// Asserts that nothing on the disk looks like the image and that nothing outside the target
    /// changed.
    fn does_not_look_whole(&self) {
        let bytes = fs_err::read(self.0.path()).expect("it is there");
        let first = &bytes[MIB..2 * MIB];
        assert!(first.iter().all(|byte| *byte == 0 || *byte == 0xff), "the first MiB goes last");
        assert!(bytes[..MIB].iter().chain(&bytes[25 * MIB..]).all(|byte| *byte == 0xff));
    }
}

fn holds(disk: &[u8], image: &[u8]) {
    assert!(disk[MIB..MIB + image.len()] == *image, "the image is there");
    let is_old = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
    assert!(is_old(&disk[..MIB]) && is_old(&disk[MIB + image.len()..]), "nothing else changed");
}

fn origin(server: &Server) -> Origin {
    let limits = FetchLimits {
        connect: Duration::from_secs(5),
        window: Duration::from_millis(300),
        least: 64 * 1024,
        attempts: 4,
        deadline: None,
        pause: Duration::from_millis(1),
    };
    Origin { limits, ..Origin::new(vec![server.url.clone()]) }
}

fn stream(origin: &Origin) -> Stream<'_> {
    Stream {
        origin,
        compression: Compression::Detect,
        size: None,
        digest: None,
        unpacked_digest: None,
    }
}

fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, Origin) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs_err::write(file.path(), bytes).expect("it is written");
    let origin = Origin::new(vec![format!("file://{}", file.path().display())]);
    (file, origin)
}

/// The recorded notices.
#[derive(Default)]
struct Said {
    progress: Mutex<Vec<Progress>>,
    durable: Mutex<Vec<u64>>,
}

impl Watch for Said {
    fn progress(&self, progress: Progress) {
        self.progress.lock().push(progress);
    }

    fn durable(&self, reached: u64) -> Result<(), ProgressError> {
        self.durable.lock().push(reached);
        Ok(())
    }
}

#[test]
fn all_image_forms_give_the_same_bytes_on_a_device() {
    let image = image();
    let (half, rest) = image.split_at(9 * MIB + 1);
    let members = [gzip(half), gzip(rest)].concat();
    let frames = [zstd(half), zstd(rest)].concat();
    let (in_chunks, manifest) = chunked(&image);
    let forms =
        [("raw", image.clone()), ("gzip", members), ("zstd", frames), ("chunks", in_chunks)];
    for (number, (name, packed)) in forms.into_iter().enumerate() {
        let sector = if number % 2 == 0 { 512 } else { 4096 };
        let disk = LoopDisk::new(DISK, sector);
        let identity = identity(&disk);
        let allow = Ranges::from(TARGET);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        let io = io.expect("nobody uses it");
        let (_file, origin) = file(&packed);
        let said = Said::default();
        let written = if name == "chunks" {
            let image = ChunkedImage {
                origin: &origin,
                manifest: &manifest,
                reached: 0,
                keep_every: KEEP_EVERY,
            };
            write_chunks(&image, &io, TARGET, &said)
        } else {
            let digest = Some(Digest::of(&packed));
            let size = Some(image.len() as u64);
            write(&Stream { digest, size, ..stream(&origin) }, &io, TARGET, &said)
        };
        let WriteSummary { bytes, zeros } =
            written.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(bytes, image.len() as u64, "{name}");
        assert!(zeros > 11 * MIB as u64, "{name}: zeros are not written as data: {zeros}");
        drop(io);
        let mut wanted = vec![0xff; usize::try_from(DISK).expect("small")];
        wanted[MIB..MIB + image.len()].copy_from_slice(&image);
        assert!(disk.bytes() == wanted, "{name}");
        let last = *said.progress.lock().last().expect("something was said");
        assert_eq!((last.done, last.total), (bytes, Some(bytes)), "{name}");
        assert!(last.rate > 0);
    }
}

#[test]
fn image_zeros_are_written_without_device_zeroing() {
    let image = image();
    let (_file, origin) = file(&zstd(&image));
    let target = Target::new();
    let io = target.open().with_fault(Fault::without_punch());
    write(&stream(&origin), &io, TARGET, &()).expect("it is written");
    target.holds(&image);
}

#[test]
fn damaged_or_truncated_image_never_looks_complete() {
    let image = image();
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 1000].to_vec();
    let flip = |mut bytes: Vec<u8>| {
        let at = bytes.len() / 2;
        bytes[at] ^= 4;
        bytes
    };
    for packed in [cut(gzip(&image)), cut(zstd(&image)), flip(gzip(&image))] {
        let (_file, origin) = file(&packed);
        let target = Target::new();
        let error = write(&stream(&origin), &target.open(), TARGET, &()).expect_err("it is bad");
        assert!(matches!(error, ImageError::Unpack(_)), "{error:?}");
        target.does_not_look_whole();
    }
    for (packed, good) in
        [(flip(image.clone()), image.clone()), (cut(image.clone()), image.clone())]
    {
        let (_file, origin) = file(&packed);
        let target = Target::new();
        let wanted = Digest::of(&good);
        let asked = Stream { digest: Some(wanted), ..stream(&origin) };
        let error = write(&asked, &target.open(), TARGET, &()).expect_err("it is bad");
        let is = Digest::of(&packed);
        assert_eq!(
            error.to_string(),
            format!(
                "the image has the digest {is} instead of {wanted}; check the image and the document"
            )
        );
        target.does_not_look_whole();
    }
    let (_file, origin) = file(&cut(image.clone()));
    let asked = Stream { size: Some(image.len() as u64), ..stream(&origin) };
    let error = write(&asked, &Target::new().open(), TARGET, &()).expect_err("it is short");
    assert!(matches!(error, ImageError::Size { .. }), "{error}");
    let (packed, manifest) = chunked(&image);
    let mut older = manifest.clone();
    for chunk in &mut older.chunks {
        if let ChunkKind::Data { packed, .. } = &mut chunk.kind {
            *packed = None;
        }
    }
    let bad = [(flip(packed.clone()), &manifest), (cut(packed.clone()), &manifest)];
    for (bad, manifest) in bad.into_iter().chain([(flip(packed), &older)]) {
        let (_file, origin) = file(&bad);
        let target = Target::new();
        let asked = ChunkedImage { origin: &origin, manifest, reached: 0, keep_every: KEEP_EVERY };
        let error = write_chunks(&asked, &target.open(), TARGET, &()).expect_err("it is bad");
        let is_said = matches!(
            error,
            ImageError::Chunk { .. } | ImageError::Source(SourceError::Short { .. })
        );
        assert!(is_said, "{error:?}");
        target.does_not_look_whole();
    }
}

#[test]
fn oversized_image_stops_at_the_end_of_its_target() {
    let exact = noise(24 * MIB);
    let larger = [&exact[..], &[1]].concat();
    let (_file, origin) = file(&larger);
    let target = Target::new();
    let error = write(&stream(&origin), &target.open(), TARGET, &()).expect_err("it is too large");
    assert!(matches!(error, ImageError::Overflow { room } if room == 24 * MIB as u64), "{error}");
    target.does_not_look_whole();
    let target = Target::new();
    let asked = Stream { size: Some(larger.len() as u64), ..stream(&origin) };
    let error = write(&asked, &target.open(), TARGET, &()).expect_err("it is too large");
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    let (packed, manifest) = chunked(&larger);
    let (_file, origin) = file(&packed);
    let asked =
        ChunkedImage { origin: &origin, manifest: &manifest, reached: 0, keep_every: KEEP_EVERY };
    let error = write_chunks(&asked, &target.open(), TARGET, &()).expect_err("it is too large");
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    let bytes = fs_err::read(target.0.path()).expect("it is there");
    assert!(bytes.iter().all(|byte| *byte == 0xff), "nothing was written");
    let outside = write(&stream(&origin), &target.open(), 0..DISK, &()).expect_err("not allowed");
    assert!(matches!(outside, ImageError::Write(WriteError::Outside { .. })), "{outside}");

    let (_file, origin) = file(&exact);
    write(&stream(&origin), &target.open(), TARGET, &()).expect("as large as its target");
    target.holds(&exact);
}

#[test]
fn lost_connection_is_resumed_at_its_position() {
    let image = image();
    let packed = zstd(&image);
    let answers = [Answer::Cut(300_000), Answer::Cut(200_000), Answer::Good];
    let server = Server::start(&packed, &answers);
    let origin = origin(&server);
    let target = Target::new();
    let asked = Stream { digest: Some(Digest::of(&packed)), ..stream(&origin) };
    write(&asked, &target.open(), TARGET, &()).expect("it goes on");
    target.holds(&image);
    assert_eq!(server.starts(), [0, 300_000, 500_000]);
    assert!(server.requests()[1].contains("if-range: \"one\""), "{:?}", server.requests()[1]);
}

#[test]
fn server_without_ranges_is_read_from_the_start() {
    let image = image();
    let packed = gzip(&image);
    let server = Server::start(&packed, &[Answer::Cut(300_000), Answer::Whole]);
    let origin = origin(&server);
    let target = Target::new();
    write(&stream(&origin), &target.open(), TARGET, &()).expect("it goes on");
    target.holds(&image);
    assert_eq!(server.starts(), [0, 300_000]);
}

#[test]
fn server_that_always_ends_early_is_given_up() {
    let packed = zstd(&image());
    let server = Server::start(&packed, &[Answer::Cut(100_000)]);
    let origin = origin(&server);
    let target = Target::new();
    let error = write(&stream(&origin), &target.open(), TARGET, &()).expect_err("it never comes");
    let ImageError::Source(SourceError::GivenUp { at: 400_000, attempts: 4, url, .. }) = error
    else {
        panic!("{error:?}");
    };
    assert!(!url.contains("secret"), "what is behind the question mark is not shown");
    target.does_not_look_whole();
}

#[test]
fn slow_server_is_replaced_by_another_one() {
    let image = image();
    let packed = zstd(&image);
    let slow = Server::start(&packed, &[Answer::Drip(1000, Duration::from_millis(20))]);
    let hanging = Server::start(&packed, &[Answer::Drip(50_000, Duration::from_secs(30))]);
    let good = Server::start(&packed, &[Answer::Good]);
    let mut origin = origin(&slow);
    let target = Target::new();
    let alone =
        write(&stream(&origin), &target.open(), TARGET, &()).expect_err("it takes for ever");
    assert!(matches!(alone, ImageError::Source(SourceError::GivenUp { .. })), "{alone:?}");
    assert_eq!(slow.requests().len(), 4);
    origin.urls.extend([hanging.url.clone(), good.url.clone()]);
    write(&stream(&origin), &target.open(), TARGET, &()).expect("one of them is good");
    target.holds(&image);
    assert!(good.starts()[0] > 0, "it goes on where the others ended");
}

#[test]
fn slow_server_is_given_up_while_skipping() {
    let packed = zstd(&image());
    let cut = Answer::Cut(100_000);
    let drip = Answer::DripWhole(100, Duration::from_millis(20));
    let slow = Server::start(&packed, &[cut, drip]);
    let begun = Instant::now();
    let error = write(&stream(&origin(&slow)), &Target::new().open(), TARGET, &());
    let error = error.expect_err("it takes for ever");
    assert!(matches!(error, ImageError::Source(SourceError::GivenUp { .. })), "{error:?}");
    // Reading the whole body takes twenty seconds each time.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn sources_without_the_image_are_skipped() {
    let image = image();
    let packed = zstd(&image);
    let missing = Server::start(&packed, &[Answer::Status(404)]);
    let ending = Server::start(&packed, &[Answer::Cut(100_000)]);
    let other = Server::start(&packed, &[Answer::OtherLength]);
    let part = Server::start(&packed, &[Answer::OtherPart]);
    let busy = Server::start(&packed, &[Answer::Status(503), Answer::Good]);
    let mut origin = origin(&missing);
    let target = Target::new();
    let alone = write(&stream(&origin), &target.open(), TARGET, &()).expect_err("nobody has it");
    let text = alone.to_string();
    assert!(text.ends_with("/image`: the server returned status 404"), "{text}");
    assert_eq!(missing.requests().len(), 1, "it is not asked again");
    origin.urls.extend([&ending, &other, &part, &busy].map(|server| server.url.clone()));
    origin.token = Some("hunter2".into());
    write(&stream(&origin), &target.open(), TARGET, &()).expect("one of them is good");
    target.holds(&image);
    assert!(busy.requests().iter().all(|head| head.contains("authorization: bearer hunter2")));
    assert_eq!((other.requests().len(), part.requests().len()), (1, 1));
    assert!(matches!(origin.read_all(1000), Err(SourceError::TooLong { most: 1000, .. })));
}

#[test]
fn server_needs_a_trusted_certificate() {
    let image = image();
    let packed = zstd(&image);
    let (server, certificate) = Server::start_with_tls(&packed);
    let target = Target::new();
    let mut origin = origin(&server);
    let error = write(&stream(&origin), &target.open(), TARGET, &()).expect_err("nobody vouches");
    assert!(matches!(error, ImageError::Source(SourceError::Refused { .. })), "{error:?}");
    origin.trust.roots.push(certificate);
    write(&stream(&origin), &target.open(), TARGET, &()).expect("it vouches for itself");
    target.holds(&image);
}

#[test]
fn image_without_sources_is_refused() {
    let nowhere = Origin::new(Vec::new());
    let error = write(&stream(&nowhere), &Target::new().open(), TARGET, &()).expect_err("nowhere");
    assert!(matches!(error, ImageError::Source(SourceError::Nowhere)), "{error}");
    let gone = Origin::new(vec!["file:///gone/away".to_owned()]);
    let error = write(&stream(&gone), &Target::new().open(), TARGET, &()).expect_err("gone");
    assert!(matches!(error, ImageError::Source(SourceError::Refused { .. })), "{error}");
}

#[test]
fn image_with_too_large_window_is_refused() {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("it is memory");
    encoder.window_log(27).expect("it is known");
    encoder.write_all(&noise(2 * MIB)).expect("it is memory");
    let (_file, origin) = file(&encoder.finish().expect("it is memory"));
    let error = write(&stream(&origin), &Target::new().open(), TARGET, &()).expect_err("too much");
    assert!(matches!(error, ImageError::Window { .. }), "{error:?}");
}

struct StopAtOnce;

impl Watch for StopAtOnce {
    fn is_stopped(&self) -> bool {
        true
    }
}

#[test]
fn stopped_write_does_not_look_complete() {
    let image = image();
    let (packed, manifest) = chunked(&image);
    let (_file, origin) = file(&packed);
    let target = Target::new();
    let error = write(&stream(&origin), &target.open(), TARGET, &StopAtOnce).expect_err("stopped");
    assert!(matches!(error, ImageError::Stopped), "{error:?}");
    let asked =
        ChunkedImage { origin: &origin, manifest: &manifest, reached: 0, keep_every: KEEP_EVERY };
    let error = write_chunks(&asked, &target.open(), TARGET, &StopAtOnce).expect_err("stopped");
    assert!(matches!(error, ImageError::Stopped), "{error:?}");
    target.does_not_look_whole();
}

#[test]
fn whole_device_target_never_looks_complete() {
    let image = image();
    let (packed, manifest) = chunked(&image);
    let (_file, origin) = file(&packed);
    let asked =
        ChunkedImage { origin: &origin, manifest: &manifest, reached: 0, keep_every: KEEP_EVERY };
    for is_stream in [true, false] {
        let target = Target::new();
        let all = 0..DISK;
        let meant = Identity::of(target.0.path(), 512).expect("it is there");
        let allow = Ranges::from(all.clone());
        let io = GuardedIo::open(target.0.path(), &meant, &allow, &Ranges::default())
            .expect("it is free");
        let error = if is_stream {
            write(&stream(&origin), &io, all, &StopAtOnce)
        } else {
            write_chunks(&asked, &io, all, &StopAtOnce)
        };
        assert!(matches!(error, Err(ImageError::Stopped)), "{error:?}");
        let bytes = fs_err::read(target.0.path()).expect("it is there");
        assert!(bytes[..MIB].iter().all(|byte| *byte == 0), "what it held is not recognised");
    }
}

#[test]
fn damaged_or_missing_chunk_comes_from_another_source() {
    let image = noise(9 * MIB);
    let (packed, manifest) = chunked(&image);
    let flip = |at: usize| {
        let mut bytes = packed.clone();
        bytes[at] ^= 1;
        bytes
    };
    let ends = [flip(1000), flip(packed.len() - 1000)];
    let good = Server::start(&packed, &[Answer::Good]);
    for bad in [ends[0].clone(), ends[1].clone(), packed[..5 * MIB].to_vec(), Vec::new()] {
        let server = Server::start(&bad, &[Answer::Good]);
        for urls in [[&server.url, &good.url], [&good.url, &server.url]] {
            let urls = urls.map(Clone::clone).to_vec();
            let origin = Origin { urls, ..origin(&good) };
            let asked = ChunkedImage {
                origin: &origin,
                manifest: &manifest,
                reached: 0,
                keep_every: KEEP_EVERY,
            };
            let target = Target::new();
            write_chunks(&asked, &target.open(), TARGET, &()).expect("somebody has it");
            target.holds(&image);
        }
    }
    // A chunk that no server has is reported with the servers and their answers.
    let servers =
        [&ends[0][..], &flip(1001), &packed[..500]].map(|b| Server::start(b, &[Answer::Good]));
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let origin = Origin { urls, ..origin(&good) };
    let asked =
        ChunkedImage { origin: &origin, manifest: &manifest, reached: 0, keep_every: KEEP_EVERY };
    let target = Target::new();
    let error = write_chunks(&asked, &target.open(), TARGET, &()).expect_err("nobody has it");
    let told = error.to_string();
    assert!(matches!(error, ImageError::Chunk { offset: 0, .. }), "{told}");
    for url in &origin.urls {
        assert!(told.contains(url.split('?').next().expect("a place")), "{told}");
    }
    assert!(!told.contains("secret"), "{told}");
    target.does_not_look_whole();
}
