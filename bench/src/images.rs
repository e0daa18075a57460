//! Images written to a disk, beside the tools that others write them with. The disk is a loop device
//! past the page cache, over a file under `target`; the image is half files of this machine and half
//! holes. Must be run by root.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hoist_device::images::{ChunkedImage, KEEP_EVERY, Origin, Stream, pack, write, write_chunks};
use hoist_device::{GuardedIo, Identity, Ranges};
use hoist_provision::digest::Digest;
use hoist_provision::document::Compression;
use hoist_provision::manifest::Manifest;

use crate::stopwatch::ratio;
use crate::verdict::{Limit, Row, multiple};
use crate::{inside, resident};

const MIB: u64 = 1024 * 1024;
const IMAGE: u64 = 1024 * MIB;
/// Length of the holes and of the data between them.
const RUN: u64 = 8 * MIB;
/// Files that the other half is made of.
const CONTENT: [&str; 3] = ["/usr/lib", "/usr/bin", "/usr/share"];
/// The default compression level of other tools.
const LEVEL: i32 = 3;
const ROUNDS: usize = 5;

const LEAST_OF_LIMIT: f64 = 0.7;
const LEAST_TO_ZSTD: f64 = 1.05;
const LEAST_TO_STREAM: f64 = 2.0;
const LEAST_TO_GZIP: f64 = 5.0;
const MAX_MIB: f64 = 64.0;

/// As the agent of Ironic does it: 1 MiB at a time, through a digest and the page cache.
const IRONIC: &str = "
import hashlib, os, sys
digest = hashlib.sha256()
with open(sys.argv[1], 'rb') as image, open(sys.argv[2], 'r+b', buffering=0) as disk:
    while piece := image.read(1 << 20):
        digest.update(piece)
        disk.write(piece)
    os.fsync(disk.fileno())
";

pub(crate) fn measure() -> Result<Vec<Row>> {
    let (bench, _attached) = Bench::prepare()?;
    let Bench { device, raw, zst, gz, .. } = &bench;
    let zst_at = path(zst)?;
    let gz_at = path(gz)?;
    let raw_at = path(raw)?;
    let dev = path(device)?;
    let blocks = IMAGE / (4 * MIB);
    let fill = |from: u64, count: u64| {
        let place = format!("seek={from} count={count}");
        format!("dd if=/dev/zero of={dev} bs=4M oflag=direct {place} status=none")
    };
    let zeros = fill(0, blocks);
    let two_at_once = format!("{} & {}; wait", fill(0, blocks / 2), fill(blocks / 2, blocks / 2));
    let zstd_dd =
        format!("zstd -dc {zst_at} | dd of={dev} bs=4M oflag=direct iflag=fullblock status=none");
    let gzip_dd = format!("gzip -dc {gz_at} | dd of={dev} bs=1M conv=fsync,notrunc status=none");
    let mut turns: Vec<(Turn<'_>, Duration)> = [
        Box::new(|| bench.chunks()) as Turn<'_>,
        Box::new(|| bench.stream()),
        Box::new(|| shell(&zeros)),
        Box::new(|| shell(&two_at_once)),
        Box::new(|| shell(&format!("zstd -dc {zst_at} > /dev/null"))),
        Box::new(|| shell(&zstd_dd)),
        Box::new(|| done(Command::new("python3").args(["-c", IRONIC, raw_at, dev]))),
        Box::new(|| shell(&gzip_dd)),
    ]
    .map(|turn| (turn, Duration::MAX))
    .into();
    for _ in 0..ROUNDS {
        for (turn, best) in &mut turns {
            // Every tool starts with a full disk: a hole left by the previous one would cost the
            // next one the time to allocate it.
            shell(&zeros)?;
            let start = Instant::now();
            turn()?;
            *best = start.elapsed().min(*best);
        }
    }
    let times: Vec<Duration> = turns.iter().map(|(_, best)| *best).collect();
    drop(turns);
    let peaks = [bench.peak("chunks")?, bench.peak("stream")?];
    rows(&times, peaks)
}

type Turn<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

fn rows(times: &[Duration], peaks: [u64; 2]) -> Result<Vec<Row>> {
    let &[chunks, stream, one, two, decoder, zstd_dd, ironic, gzip_dd] = times else {
        anyhow::bail!("as many times as turns");
    };
    let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
    // Whichever way the disk takes more.
    let device = one.min(two);
    let limit = device.max(decoder / cores);
    let beside = |what: &str, other: Duration, least: Option<f64>| Row {
        what: what.to_owned(),
        measured: ratio(other, chunks),
        unit: " x",
        limit: least.map(Limit::AtLeast),
        detail: format!("{chunks:.2?}, {other:.2?}"),
    };
    let memory = |what: &str, peak: u64| Row {
        what: what.to_owned(),
        measured: multiple(peak, MIB),
        unit: " MiB",
        limit: Some(Limit::AtMost(MAX_MIB)),
        detail: "all of the process".to_owned(),
    };
    let of_limit = "chunked image, each chunk verified / slower of device and decoder x cores";
    let mut all = vec![
        beside(of_limit, limit, Some(LEAST_OF_LIMIT)),
        beside("/ `zstd -dc \\| dd oflag=direct bs=4M`", zstd_dd, Some(LEAST_TO_ZSTD)),
        beside("/ a stream as Ironic's agent writes it", ironic, Some(LEAST_TO_STREAM)),
        beside("/ `gzip -dc \\| dd`, as bareon writes it", gzip_dd, Some(LEAST_TO_GZIP)),
    ];
    all[0].detail =
        format!("{chunks:.2?}; device {device:.2?}, decoder {decoder:.2?} on one of {cores} cores");
    let of_stream = |what: &str, other: Duration| Row {
        what: what.to_owned(),
        measured: ratio(other, stream),
        unit: " x",
        limit: None,
        detail: format!("{stream:.2?}, {other:.2?}"),
    };
    all.push(of_stream("the image as one stream with its digest / `zstd -dc \\| dd`", zstd_dd));
    all.push(of_stream("stream / slower of device and decoder x cores", limit));
    all.push(of_stream("stream / slower of device and decoder on one core", device.max(decoder)));
    all.push(memory("peak memory of writing chunks", peaks[0]));
    all.push(memory("peak memory of writing a stream", peaks[1]));
    Ok(all)
}

/// A measurement in a process of its own: `chunks` or `stream`.
pub(crate) fn peak(form: &str, dir: &Path, device: &Path) -> Result<u64> {
    let bench = Bench::at(dir, device)?;
    resident::reset_peak("self")?;
    match form {
        "chunks" => bench.chunks()?,
        _ => bench.stream()?,
    }
    resident::peak("self")
}

struct Bench {
    dir: PathBuf,
    device: PathBuf,
    raw: PathBuf,
    zst: PathBuf,
    gz: PathBuf,
    chunks: PathBuf,
    manifest: Manifest,
    digest: Digest,
}

/// A loop device, until this is dropped.
struct LoopDevice(PathBuf);

impl Bench {
    fn prepare() -> Result<(Self, LoopDevice)> {
        ensure!(rustix::process::geteuid().is_root(), "loop devices need root");
        let dir = Path::new("target").join("bench-images");
        fs_err::create_dir_all(&dir)?;
        let dir = dir.canonicalize()?;
        if !dir.join("complete").exists() {
            make(&dir)?;
            fs_err::write(dir.join("complete"), "")?;
        }
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(dir.join("disk"));
        let output = losetup.output()?;
        ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let attached = LoopDevice(PathBuf::from(String::from_utf8(output.stdout)?.trim()));
        Ok((Self::at(&dir, &attached.0)?, attached))
    }

    fn at(dir: &Path, device: &Path) -> Result<Self> {
        let file = |name: &str| dir.join(name);
        let manifest = Manifest::parse(&fs_err::read(file("manifest"))?, None)?;
        let digest = fs_err::read_to_string(file("digest"))?.parse()?;
        let dir = dir.to_owned();
        let device = device.to_owned();
        let raw = file("raw");
        let zst = file("zst");
        let gz = file("gz");
        let chunks = file("chunks");
        Ok(Self { dir, device, raw, zst, gz, chunks, manifest, digest })
    }

    fn open(&self) -> Result<GuardedIo> {
        let identity = Identity::of(&self.device, 512)?;
        let allow = Ranges::from(0..identity.size);
        Ok(GuardedIo::open(&self.device, &identity, &allow, &Ranges::default())?)
    }

    fn chunks(&self) -> Result<()> {
        let origin = origin(&self.chunks)?;
        let image = ChunkedImage {
            origin: &origin,
            manifest: &self.manifest,
            reached: 0,
            keep_every: KEEP_EVERY,
        };
        let written = write_chunks(&image, &self.open()?, 0..IMAGE, &())?;
        ensure!(written.bytes == IMAGE, "all of it");
        Ok(())
    }

    fn stream(&self) -> Result<()> {
        let origin = origin(&self.zst)?;
        let digest = Some(self.digest);
        let compression = Compression::Zstd;
        let size = Some(IMAGE);
        let image = Stream { origin: &origin, compression, size, digest, unpacked_digest: None };
        let written = write(&image, &self.open()?, 0..IMAGE, &())?;
        ensure!(written.bytes == IMAGE, "all of it");
        Ok(())
    }

    fn peak(&self, form: &str) -> Result<u64> {
        inside::ask(&["image", form, path(&self.dir)?, path(&self.device)?])
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn origin(file: &Path) -> Result<Origin> {
    Ok(Origin::new(vec![format!("file://{}", path(file)?)]))
}

/// The image in every form, and a disk that was written to before.
fn make(dir: &Path) -> Result<()> {
    let raw = dir.join("raw");
    let mut out = std::io::BufWriter::with_capacity(1 << 20, fs_err::File::create(&raw)?);
    let mut content = Content { todo: CONTENT.map(PathBuf::from).to_vec(), file: None };
    let mut run = vec![0; usize::try_from(RUN)?];
    for number in 0..IMAGE / RUN {
        run.fill(0);
        if number % 2 == 0 {
            content.fill(&mut run)?;
        }
        out.write_all(&run)?;
    }
    out.flush()?;
    let chunks = fs_err::File::create(dir.join("chunks"))?;
    let manifest = dir.join("manifest");
    let packed = pack(fs_err::File::open(&raw)?, chunks, LEVEL)?;
    fs_err::write(manifest, serde_json::to_vec(&packed)?)?;
    let at = path(dir)?;
    shell(&format!("zstd -q -f -{LEVEL} -o {at}/zst {at}/raw && gzip -1 -c {at}/raw > {at}/gz"))?;
    fs_err::write(dir.join("digest"), Digest::of(&fs_err::read(dir.join("zst"))?).to_string())?;
    shell(&format!("head -c {IMAGE} /dev/zero | tr '\\0' '\\377' > {at}/disk && sync {at}/disk"))
}

/// Files of this machine, one after the other.
struct Content {
    todo: Vec<PathBuf>,
    file: Option<std::fs::File>,
}

impl Content {
    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        let mut length = 0;
        while length < into.len() {
            let more = match &mut self.file {
                Some(file) => file.read(&mut into[length..])?,
                None => 0,
            };
            length += more;
            if more == 0 {
                self.file = Some(self.next()?);
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<std::fs::File> {
        loop {
            let path = self.todo.pop().context("this machine has too few files")?;
            let kind = fs_err::symlink_metadata(&path)?.file_type();
            if kind.is_dir() {
                let mut below = Vec::new();
                for entry in fs_err::read_dir(&path)? {
                    below.push(entry?.path());
                }
                below.sort();
                self.todo.extend(below);
            } else if kind.is_file() {
                return Ok(fs_err::File::open(&path)?.into_parts().0);
            }
        }
    }
}

fn shell(line: &str) -> Result<()> {
    done(Command::new("bash").args(["-c", &format!("set -o pipefail; {line}")]))
}

fn done(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

fn path(path: &Path) -> Result<&str> {
    inside::path(path)
}
