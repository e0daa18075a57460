//! Formats of images: those that are unpacked, and those that must never be written as they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use hoist_device::images::{ImageError, KEEP_EVERY, Origin, Stream, pack, write, write_chunks};
use hoist_device::{GuardedIo, Identity, Ranges, RunInputs, images, observe};
use hoist_provision::diagnostic::Code;
use hoist_provision::digest::Digest;
use hoist_provision::document::{Compression, Document};
use hoist_provision::manifest::{ChunkKind, Manifest};
use hoist_provision::plan;
use hoist_testkit::loop_disk::run;

use crate::machine::{FileMachine, document};
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;
const DISK: usize = 24 * MIB;

/// An image with holes that are larger than chunks, and an odd end.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; 14 * MIB + 512];
    bytes[1024..4096].fill(7);
    bytes[13 * MIB..].fill(9);
    bytes
}

fn machine() -> FileMachine {
    let machine = FileMachine::new();
    machine.add("sda", 512, &vec![0; DISK]);
    machine
}

fn wanted(source: &str, more: &str) -> Document {
    document(&format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-000000000301\nsections:\n  node: {{id: n1}}\n  \
         disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  storage:\n  - part: {{id: root, \
         on: os, size: 20 MiB}}\n  images:\n    root: {{sources: ['{source}'], target: root{more}}}\n"
    ))
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// A file of 20 MiB that stands for a disk.
fn disk() -> (tempfile::NamedTempFile, GuardedIo) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(20 << 20).expect("it has a size");
    let meant = Identity::of(file.path(), 512).expect("it is there");
    let all = Ranges::from(0..20 << 20);
    let io = GuardedIo::open(file.path(), &meant, &all, &Ranges::default()).expect("it is free");
    (file, io)
}

fn stream(origin: &Origin) -> Stream<'_> {
    let compression = Compression::Detect;
    Stream { origin, compression, size: None, digest: None, unpacked_digest: None }
}

/// The same image in the formats of other tools, with the word that names each.
fn foreign(machine: &FileMachine) -> Vec<(PathBuf, &'static str)> {
    let raw = machine.path("raw.img");
    fs_err::write(&raw, image()).expect("written");
    let convert = |format: &str, options: &[&str], name: &str| {
        let path = machine.path(name);
        let mut qemu = Command::new("qemu-img");
        qemu.args(["convert", "-f", "raw", "-O", format]).args(options).arg(&raw).arg(&path);
        run(&mut qemu);
        path
    };
    let fixed = ["-o", "subformat=fixed,force_size"];
    let mut all = vec![
        (convert("qcow2", &[], "a.qcow2"), "qcow2"),
        (convert("vmdk", &[], "a.vmdk"), "VMDK"),
        (convert("vdi", &[], "a.vdi"), "VDI"),
        (convert("vpc", &[], "a.vhd"), "VHD"),
        (convert("vpc", &fixed, "fixed.vhd"), "VHD"),
        (convert("vhdx", &[], "a.vhdx"), "VHDX"),
    ];
    let dir = raw.parent().expect("a directory");
    let [tar, old_tar] = [("gnu", "a.tar"), ("v7", "old.tar")].map(|(format, name)| {
        let path = machine.path(name);
        let mut tar = Command::new("tar");
        tar.arg(format!("--format={format}")).arg("-C").arg(dir).arg("-cf").arg(&path);
        run(tar.arg("raw.img"));
        path
    });
    let packed = machine.path("a.tar.gz");
    let gzip = run(Command::new("gzip").arg("-k").arg(&tar));
    assert_eq!(gzip, "");
    let bzip = machine.path("a.bz2");
    fs_err::write(&bzip, b"BZh91AY&SY\x12\x34\x56").expect("written");
    let twice = machine.path("twice.zst");
    let once = zstd::encode_all(&image()[..], 1).expect("it is memory");
    fs_err::write(&twice, zstd::encode_all(&once[..], 1).expect("it is memory")).expect("written");
    let page = machine.path("page.html");
    fs_err::write(&page, b"<!DOCTYPE html><title>Sign in</title>").expect("written");
    all.extend([
        (tar, "tar"),
        (old_tar, "tar"),
        (packed, "tar"),
        (bzip, "bzip2"),
        (twice, "zstd"),
        (page, "web page"),
    ]);
    all
}

#[test]
fn image_in_a_foreign_format_is_refused_before_any_write() {
    let machine = machine();
    for (path, name) in foreign(&machine) {
        let document = wanted(&url(&path), "");
        let seen = observe::observe(&document, &machine.machine(), &RunInputs::default());
        let found = plan::decide(&document, &seen).map(drop).expect_err(name);
        let told = found[0].to_string();
        assert_eq!(found[0].code, Code::Unsupported, "{told}");
        assert!(told.starts_with("images.root: the content is") && told.contains(name), "{told}");
        assert!(machine.bytes("sda").iter().all(|byte| *byte == 0));
    }
}

#[test]
fn image_in_a_foreign_format_never_looks_complete() {
    let machine = machine();
    for (path, name) in foreign(&machine) {
        let (disk, io) = disk();
        let origin = Origin::new(vec![url(&path)]);
        let error = write(&stream(&origin), &io, 0..20 << 20, &()).expect_err(name);
        assert!(matches!(error, ImageError::Format(_)), "{name}: {error}");
        let bytes = fs_err::read(disk.path()).expect("it is there");
        assert!(bytes[..MIB].iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn xz_image_gives_the_same_bytes() {
    let machine = machine();
    let half = machine.path("half");
    let rest = machine.path("rest");
    let start = &image()[..=5 * MIB];
    let end = &image()[5 * MIB + 1..];
    let mut packed = Vec::new();
    for (path, bytes) in [(&half, start), (&rest, end)] {
        fs_err::write(path, bytes).expect("written");
        run(Command::new("xz").args(["-9", "-T1"]).arg(path));
        packed.extend(fs_err::read(path.with_extension("xz")).expect("it is there"));
    }
    let path = machine.path("image.xz");
    fs_err::write(&path, &packed).expect("written");
    for compression in ["", ", compression: xz"] {
        let digest = Digest::of(&packed);
        let document = wanted(&url(&path), &format!("{compression}, digest: '{digest}'"));
        machine.add("sda", 512, &vec![0; DISK]);
        machine.apply(&document).expect("nothing is wrong");
        assert!(machine.bytes("sda")[MIB..].starts_with(&image()));
    }
    fs_err::write(&path, &packed[..packed.len() - 40]).expect("written");
    machine.add("sda", 512, &vec![0; DISK]);
    let error = machine.apply(&wanted(&url(&path), "")).expect_err("it is truncated");
    assert_eq!(error.code().0, "damaged", "{error}");
    assert!(machine.bytes("sda")[MIB..2 * MIB].iter().all(|byte| *byte == 0));
}

#[test]
fn packed_image_is_a_complete_zstd_stream() {
    let image = image();
    let mut packed = Vec::new();
    let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
    assert!(packed.len() < 64 * 1024, "{}", packed.len());
    assert!(zstd::decode_all(&packed[..]).expect("it is complete") == image);
    let server = Server::start(&packed, &[Answer::Good]);
    let origin = Origin::new(vec![server.url.clone()]);
    for is_chunked in [true, false] {
        let (disk, io) = disk();
        let written = if is_chunked {
            chunks(&origin, &manifest, &io)
        } else {
            write(&stream(&origin), &io, 0..20 << 20, &())
        };
        written.expect("nothing is wrong");
        assert!(fs_err::read(disk.path()).expect("it is there").starts_with(&image));
    }
    assert_eq!(server.starts(), [0, 0], "frames of zeros are skipped in one request");
}

fn chunks(
    origin: &Origin,
    manifest: &Manifest,
    io: &GuardedIo,
) -> Result<images::WriteSummary, ImageError> {
    let keep_every = KEEP_EVERY;
    let image = images::ChunkedImage { origin, manifest, reached: 0, keep_every };
    write_chunks(&image, io, 0..20 << 20, &())
}

#[test]
fn unpacked_image_must_have_its_declared_digest() {
    let machine = machine();
    let path = machine.path("image.zst");
    fs_err::write(&path, zstd::encode_all(&image()[..], 1).expect("memory")).expect("written");
    let other = Digest::of(b"other");
    let asked = |digest: Digest| wanted(&url(&path), &format!(", unpacked_digest: '{digest}'"));
    let error = machine.apply(&asked(other)).expect_err("it is another one");
    assert_eq!(error.code().0, "wrong-content", "{error}");
    assert!(error.to_string().contains("the unpacked image has the digest"), "{error}");
    assert!(machine.bytes("sda")[MIB..2 * MIB].iter().all(|byte| *byte == 0));
    machine.add("sda", 512, &vec![0; DISK]);
    machine.apply(&asked(Digest::of(&image()))).expect("nothing is wrong");
    assert!(machine.bytes("sda")[MIB..].starts_with(&image()));
}

/// A complete stream of many frames, and the same without the last of them.
fn whole_and_cut(image: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut whole = Vec::new();
    let manifest = pack(image, &mut whole, 1).expect("it is memory");
    let mut starts = manifest.chunks.iter().filter_map(|chunk| match chunk.kind {
        ChunkKind::Data { at, .. } if at > 0 => Some(at),
        _ => None,
    });
    let frame = usize::try_from(starts.next_back().expect("a second frame")).expect("it is small");
    let cut = whole[..frame].to_vec();
    let unpacked = zstd::decode_all(&cut[..]).expect("a complete stream");
    assert!(unpacked.len() < image.len() && image.starts_with(&unpacked));
    (whole, cut)
}

#[test]
fn image_cut_between_frames_is_refused_by_size_and_digest() {
    let machine = machine();
    let image = image();
    let (whole, cut) = whole_and_cut(&image);
    let servers = [&cut, &whole].map(|bytes| Server::start(bytes, &[Answer::Good]));
    let packed = Digest::of(&whole);
    let unpacked = Digest::of(&image);
    let size = image.len();
    for (more, reason) in [
        (format!(", size: {size} B"), "bytes instead of"),
        (format!(", digest: '{packed}'"), "the image has the digest"),
        (format!(", unpacked_digest: '{unpacked}'"), "the unpacked image has the digest"),
    ] {
        machine.add("sda", 512, &vec![0; DISK]);
        let error = machine.apply(&wanted(&servers[0].url, &more)).expect_err(reason);
        assert_eq!(error.code().0, "wrong-content", "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(machine.bytes("sda")[MIB..2 * MIB].iter().all(|byte| *byte == 0), "{reason}");
        machine.add("sda", 512, &vec![0; DISK]);
        machine.apply(&wanted(&servers[1].url, &more)).expect("nothing is wrong");
        assert!(machine.bytes("sda")[MIB..].starts_with(&image));
    }
}

#[test]
fn plan_warns_of_a_packed_image_without_digest() {
    let machine = machine();
    let (_, cut) = whole_and_cut(&image());
    let server = Server::start(&cut, &[Answer::Good]);
    let warning = |more: &str| {
        let plan = machine.decide(&wanted(&server.url, more)).to_string();
        let line = plan.lines().find(|line| line.starts_with("warning: images.root has no"));
        line.unwrap_or_default().to_owned()
    };
    let unchecked = warning("");
    assert!(unchecked.contains("no `digest` and no `size`"), "{unchecked}");
    assert!(unchecked.contains("also when it is truncated"), "{unchecked}");
    let sized = warning(", size: 14 MiB");
    assert!(sized.contains("no `digest`: its content") && !sized.contains("truncated"), "{sized}");
    assert_eq!(warning(&format!(", unpacked_digest: '{}'", Digest::of(b"x"))), "");
}

#[test]
fn ext_image_cut_between_frames_is_refused_by_its_superblock() {
    let machine = machine();
    let path = machine.path("root.ext4");
    let file = fs_err::File::create(&path).expect("created");
    file.set_len(14 * MIB as u64).expect("it has a size");
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&path));
    let mut image = fs_err::read(&path).expect("it is there");
    image[13 * MIB..].fill(9);
    let (whole, cut) = whole_and_cut(&image);
    let server = Server::start(&cut, &[Answer::Good]);
    let error = machine.apply(&wanted(&server.url, "")).expect_err("it is truncated");
    assert_eq!(error.code().0, "damaged", "{error}");
    assert!(error.to_string().contains("but its ext file system 14680064"), "{error}");
    assert!(machine.bytes("sda")[MIB..2 * MIB].iter().all(|byte| *byte == 0));
    let server = Server::start(&whole, &[Answer::Good]);
    machine.add("sda", 512, &vec![0; DISK]);
    machine.apply(&wanted(&server.url, "")).expect("nothing is wrong");
    assert!(machine.bytes("sda")[MIB..].starts_with(&image));
}
