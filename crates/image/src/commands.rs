//! The commands.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use hoist_image::build::{Build, BuildPaths, BuildProgress, OutputFile};
use hoist_image::document::{Image, MAX_BYTES, read};
use hoist_image::unpack::PackedImage;
use hoist_model::image::UnpackedContent;
use hoist_model::{Exit, ImageFile, ImageIndex};
use hoist_provision::document::Bytes;
use parking_lot::Mutex;
use serde::Serialize;

use crate::cli::{BuildArgs, Output, UnpackArgs};
use crate::failure::Failure;

pub(crate) fn build(args: &BuildArgs, output: Output) -> Result<Exit, Failure> {
    let file = args.file.as_path();
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let image = read(&file.display().to_string(), &text(file)?, &stem)?;
    let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let out = match &args.out {
        Some(out) => out.clone(),
        None => beside.join(format!("{}.image", image.name)),
    };
    let place = BuildPaths { beside, out: &out, plugins: &args.plugins };
    let build = Build { image: &image, place, epoch: image.epoch(source_date_epoch()?) };
    if args.dry_run {
        print_plan(&image, &out, &build.check()?, output)?;
        return Ok(Exit::WouldChange);
    }
    let index = build.run(&OnTerminal::new())?;
    print_index(&index, &out, output)?;
    Ok(Exit::Done)
}

pub(crate) fn unpack(args: &UnpackArgs, output: Output) -> Result<Exit, Failure> {
    let image = PackedImage { file: &args.file, manifest: args.manifest.as_deref() };
    let out = match &args.out {
        Some(out) => out.clone(),
        None => image.default_output()?,
    };
    let unpacked = image.unpack(&out)?;
    match output {
        Output::Json => {
            #[derive(Serialize)]
            struct UnpackResult<'a> {
                out: &'a Path,
                #[serde(flatten)]
                content: &'a UnpackedContent,
            }
            print_json(&UnpackResult { out: &out, content: &unpacked })?;
        }
        Output::Text => {
            let UnpackedContent { size, sha256 } = &unpacked;
            writeln!(io::stdout(), "{}: {size} bytes, sha256:{sha256}", out.display())?;
        }
    }
    Ok(Exit::Done)
}

pub(crate) fn schema() -> Result<Exit, Failure> {
    print_json(&Image::schema())?;
    Ok(Exit::Done)
}

/// Of a file that is too large just enough to say so.
fn text(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text))
        .map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(text)
}

/// The common convention of reproducible builds.
fn source_date_epoch() -> Result<Option<u32>, Failure> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => text.parse().map(Some).map_err(|_| Failure::Epoch(text)),
        Err(_) => Ok(None),
    }
}

fn print_plan(
    image: &Image,
    out: &Path,
    made: &[OutputFile],
    output: Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Plan<'a> {
        name: &'a str,
        out: &'a Path,
        files: &'a [OutputFile],
    }
    if output == Output::Json {
        return print_json(&Plan { name: &image.name, out, files: made });
    }
    let mut lines = vec![format!("would make in {}:", out.display())];
    lines
        .extend(made.iter().map(|OutputFile { file, artifact }| format!("  {file:20} {artifact}")));
    lines.push("(an initrd only if the image has one)".to_owned());
    Ok(writeln!(io::stdout(), "{}", lines.join("\n"))?)
}

fn print_index(index: &ImageIndex, out: &Path, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Built<'a> {
        out: &'a Path,
        #[serde(flatten)]
        index: &'a ImageIndex,
    }
    if output == Output::Json {
        return print_json(&Built { out, index });
    }
    let mut lines = vec![format!("{} is in {}:", index.name, out.display())];
    lines.extend(index.files.iter().map(|entry| {
        let ImageFile { file, size, sha256, .. } = entry;
        format!("  {file:20} {size:>12}  {sha256}")
    }));
    Ok(writeln!(io::stdout(), "{}", lines.join("\n"))?)
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// Interval of byte counts on a terminal; a log file gets none.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Says on standard error how it goes.
struct OnTerminal {
    told: Mutex<Instant>,
    is_terminal: bool,
}

impl OnTerminal {
    fn new() -> Self {
        Self { told: Mutex::new(Instant::now()), is_terminal: io::stderr().is_terminal() }
    }
}

impl BuildProgress for OnTerminal {
    fn stage(&self, what: &str) {
        eprintln!("{what}");
    }

    fn note(&self, line: &str) {
        eprintln!("  {line}");
    }

    fn progress(&self, done: u64, total: u64) {
        let mut told = self.told.lock();
        if !self.is_terminal || told.elapsed() < TELL_EVERY {
            return;
        }
        *told = Instant::now();
        let of = if total > 0 { format!(" of {}", Bytes(total)) } else { String::new() };
        eprintln!("  {}{of}", Bytes(done));
    }
}
