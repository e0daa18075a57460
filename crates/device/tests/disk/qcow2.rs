//! Images made by `qemu-img`.

use std::path::Path;
use std::process::Command;

use hoist_device::images::{
    FetchLimits, ImageError, Origin, Qcow2Error, Stream, WriteSummary, virtual_size, write_qcow2,
};
use hoist_device::{GuardedIo, Identity, Ranges};
use hoist_provision::digest::Digest;
use hoist_provision::document::Compression;

use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;
const SIZE: usize = 11 * MIB + 512 * 7;

/// Compressible and incompressible bytes and holes, also in the first MiB.
fn raw() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut state = 3_u64;
    for (at, byte) in bytes.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let is_there = !(300_000..700_000).contains(&at) && !(2 * MIB..7 * MIB).contains(&at);
        let is_plain = (8 * MIB..9 * MIB).contains(&at);
        *byte = match (is_there, is_plain) {
            (false, _) => 0,
            (true, true) => b'x',
            (true, false) => state.to_be_bytes()[0],
        };
    }
    bytes
}

fn qemu_img(dir: &Path, arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).current_dir(dir).output();
    let output = output.expect("qemu-img is there; package qemu-utils");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A directory with `raw`, and `qcow2` made from it.
fn made(arguments: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs_err::write(dir.path().join("raw"), raw()).expect("it is written");
    let all = [&["convert", "-f", "raw", "-O", "qcow2"][..], arguments, &["raw", "qcow2"]].concat();
    qemu_img(dir.path(), &all);
    dir
}

fn origin(urls: Vec<String>) -> Origin {
    let limits = FetchLimits { attempts: 2, ..FetchLimits::default() };
    Origin { limits, ..Origin::new(urls) }
}

fn of_file(path: &Path) -> Origin {
    origin(vec![format!("file://{}", path.display())])
}

/// Writes the image onto a disk full of old bytes, from its second MiB on. Returns the content,
/// too.
fn written(
    origin: &Origin,
    size: Option<u64>,
    digest: Option<Digest>,
) -> (Result<WriteSummary, ImageError>, Vec<u8>) {
    let disk = tempfile::NamedTempFile::new_in("/dev/shm").expect("a temporary file");
    fs_err::write(disk.path(), vec![0xff; 13 * MIB]).expect("it is written");
    let meant = Identity::of(disk.path(), 512).expect("it is there");
    let target = MIB as u64..13 * MIB as u64;
    let allow = Ranges::from(target.clone());
    let io = GuardedIo::open(disk.path(), &meant, &allow, &Ranges::default()).expect("it is free");
    let image =
        Stream { origin, compression: Compression::Detect, size, digest, unpacked_digest: None };
    let outcome = write_qcow2(&image, &io, target, &());
    (outcome, fs_err::read(disk.path()).expect("it is there"))
}

fn holds(disk: &[u8], raw: &[u8]) {
    assert!(disk[MIB..MIB + raw.len()] == *raw, "the image is there");
    let rest = disk[..MIB].iter().chain(&disk[MIB + raw.len()..]);
    assert!(rest.into_iter().all(|byte| *byte == 0xff), "nothing else changed");
}

#[test]
fn qcow2_of_qemu_becomes_the_same_disk() {
    let raw = raw();
    for arguments in [
        &[][..],
        &["-c"],
        &["-c", "-o", "compression_type=zstd"],
        &["-o", "compat=0.10"],
        &["-c", "-o", "compat=0.10,cluster_size=512"],
        &["-o", "cluster_size=4096"],
        &["-o", "cluster_size=2M"],
        &["-c", "-o", "cluster_size=2M"],
        &["-o", "preallocation=metadata"],
    ] {
        let dir = made(arguments);
        let file = dir.path().join("qcow2");
        let origin = of_file(&file);
        assert_eq!(virtual_size(&origin).expect("it has one"), SIZE as u64);
        let digest = Digest::of(&fs_err::read(&file).expect("it is there"));
        let (outcome, disk) = written(&origin, Some(SIZE as u64), Some(digest));
        let outcome = outcome.unwrap_or_else(|error| panic!("{arguments:?}: {error:?}"));
        assert_eq!(outcome.bytes, SIZE as u64, "{arguments:?}");
        assert!(outcome.zeros >= 4 * MIB as u64, "{arguments:?}: {outcome:?}");
        holds(&disk, &raw);
    }
}

#[test]
fn qcow2_snapshots_are_not_written() {
    let dir = made(&[]);
    qemu_img(dir.path(), &["snapshot", "-c", "before", "qcow2"]);
    let (outcome, disk) = written(&of_file(&dir.path().join("qcow2")), None, None);
    outcome.expect("it is whole");
    holds(&disk, &raw());
}

#[test]
fn qcow2_with_external_files_is_refused_before_any_write() {
    let dir = made(&[]);
    let refused = |arguments: &[&str], name: &str| {
        qemu_img(dir.path(), arguments);
        let (outcome, disk) = written(&of_file(&dir.path().join(name)), None, None);
        assert!(disk.iter().all(|byte| *byte == 0xff), "nothing was written");
        match outcome.expect_err("it is refused") {
            ImageError::Qcow2(error) => error,
            other => panic!("{other:?}"),
        }
    };
    let backed = ["create", "-f", "qcow2", "-b", "raw", "-F", "raw", "backed"];
    assert_eq!(refused(&backed, "backed"), Qcow2Error::BackingFile);
    let apart = ["create", "-f", "qcow2", "-o", "data_file=apart.raw", "apart", "1M"];
    assert_eq!(refused(&apart, "apart"), Qcow2Error::ExternalData);
    let extended = ["create", "-f", "qcow2", "-o", "extended_l2=on", "extended", "1M"];
    assert_eq!(refused(&extended, "extended"), Qcow2Error::ExtendedL2);
    let secret = "secret,id=key,data=abc";
    // LUKS measures the processor to choose the cost of a key, and fails on a busy one.
    let locked = ["create", "--object", secret, "-f", "qcow2", "-o"];
    let locked = [&locked[..], &["encrypt.format=aes,encrypt.key-secret=key", "locked", "1M"]];
    assert_eq!(refused(&locked.concat(), "locked"), Qcow2Error::Encrypted);
    assert_eq!(refused(&["info", "qcow2"], "raw"), Qcow2Error::Magic);
}

#[test]
fn qcow2_is_read_by_ranges_and_verified() {
    let dir = made(&["-c"]);
    let bytes = fs_err::read(dir.path().join("qcow2")).expect("it is there");
    let digest = Some(Digest::of(&bytes));
    let server = Server::start(&bytes, &[Answer::Good]);
    let (outcome, disk) = written(&origin(vec![server.url.clone()]), None, digest);
    outcome.expect("it is whole");
    holds(&disk, &raw());

    let (outcome, disk) =
        written(&origin(vec![server.url.clone()]), None, Some(Digest::of(b"another")));
    assert!(matches!(outcome, Err(ImageError::Digest { .. })), "{outcome:?}");
    assert!(disk.iter().all(|byte| *byte == 0xff), "nothing was written");

    // A hole in the middle of a file is not fetched, if the server supports ranges.
    let dir = made(&[]);
    let discard = Command::new("qemu-io")
        .args(["-f", "qcow2", "-c", "discard 7500k 3000k", "qcow2"])
        .current_dir(dir.path())
        .output()
        .expect("qemu-io is there; package qemu-utils");
    assert!(discard.status.success(), "{discard:?}");
    let bytes = fs_err::read(dir.path().join("qcow2")).expect("it is there");
    let mut rest = raw();
    rest[7500 * 1024..10_500 * 1024].fill(0);
    let server = Server::start(&bytes, &[Answer::Good]);
    let (outcome, disk) = written(&origin(vec![server.url.clone()]), None, None);
    outcome.expect("it is whole");
    assert!(disk[MIB + 7500 * 1024 + 65_536..MIB + 10_400 * 1024].iter().all(|byte| *byte == 0));
    assert!(disk[MIB + 10_560 * 1024..MIB + SIZE] == rest[10_560 * 1024..]);

    let server = Server::start(&bytes, &[Answer::Whole]);
    let (outcome, _) = written(&origin(vec![server.url.clone()]), None, None);
    let error = outcome.expect_err("it cannot be read at places").to_string();
    assert!(error.contains("does not support ranges"), "{error}");
}

#[test]
fn image_that_changes_between_reads_is_not_written() {
    let dir = made(&[]);
    let bytes = fs_err::read(dir.path().join("qcow2")).expect("it is there");
    // The first answer is the whole image, for its digest; the second answer is another image.
    let server = Server::start(&bytes, &[Answer::Good, Answer::Flipped]);
    let (outcome, disk) =
        written(&origin(vec![server.url.clone()]), None, Some(Digest::of(&bytes)));
    assert!(matches!(outcome, Err(ImageError::Chunk { .. })), "{outcome:?}");
    assert!(disk[MIB..2 * MIB].iter().all(|byte| *byte == 0), "it does not look whole");
}

#[test]
fn image_larger_than_target_or_declared_is_refused() {
    let dir = made(&[]);
    let origin = of_file(&dir.path().join("qcow2"));
    let (outcome, _) = written(&origin, Some(SIZE as u64 + 512), None);
    assert!(matches!(outcome, Err(ImageError::Size { .. })), "{outcome:?}");
    qemu_img(dir.path(), &["resize", "qcow2", "13M"]);
    let (outcome, disk) = written(&origin, None, None);
    assert!(matches!(outcome, Err(ImageError::TooLarge { .. })), "{outcome:?}");
    assert!(disk.iter().all(|byte| *byte == 0xff), "nothing was written");
}
