//! `hoist image`: images of operating systems, built by a program of its own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use fs_err as fs;
use hoist_model::image::{INDEX_FILE, MAX_INDEX};
use hoist_model::node::Arch;
use hoist_model::{Exit, ImageFile, ImageIndex};
use indicatif::HumanBytes;
use serde_json::Value;

use super::Shell;
use super::artifact::{self, Addition};
use super::node::word;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// The program that builds; a package of its own, beside this one.
const BUILDER: &str = "hoist-image";

/// Images of operating systems, for disks and for machines without any
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Build an image from a document
    ///
    /// Makes a directory with everything that the document wants: a file system, a kernel, what boots
    /// it, and an index. The same input gives the same bytes. `hoist-image` does that, which is
    /// installed beside hoist or not at all.
    #[command(after_help = "Examples:\n  hoist image build -f tiny.yaml\n  \
        hoist image build -f tiny.yaml --out build/tiny --add\n  \
        hoist image build -f tiny.yaml --dry-run -o json")]
    Build(BuildArgs),
    /// Unpack an image into a file
    ///
    /// Understands zstd, xz and gzip. An image that was built by hoist is verified with the manifest
    /// and the index beside it.
    #[command(after_help = "Examples:\n  hoist image unpack tiny.image/root.ext4.zst\n  \
        hoist image unpack tiny.image/disk.img.zst --out /srv/vm/tiny.img")]
    Unpack(UnpackArgs),
    /// Bring the files of an image that was built to the controller, as artifacts
    #[command(after_help = "Examples:\n  hoist image add tiny.image\n  \
        hoist image add tiny.image --replace\n  hoist image add tiny.image --dry-run")]
    Add {
        /// The directory that was made
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        add: AddArgs,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, Args)]
struct BuildArgs {
    /// The document
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The directory to make; `NAME.image` where the document is, if left out
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where plug-ins are that build
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
    /// Bring its files to the controller afterwards
    #[arg(long)]
    add: bool,
    #[command(flatten)]
    how: AddArgs,
    #[command(flatten)]
    write: WriteArgs,
}

#[derive(Debug, Args)]
struct UnpackArgs {
    /// The packed image
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to write; FILE without its suffix, if left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The chunk manifest; `NAME.manifest.json` beside the image, if left out
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Give the names to these files, whatever they stood for before
    #[arg(long)]
    replace: bool,
    /// What machines it is for: `x86_64`, `aarch64` or `riscv64`
    #[arg(long, value_parser = word::<Arch>)]
    arch: Option<Arch>,
}

impl ImageArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            ImageCommand::Build(args) => build(shell, args).await,
            ImageCommand::Unpack(args) => unpack(shell, &args),
            ImageCommand::Add { directory, add, write } => {
                bring(shell, &directory, &add, &write).await
            }
        }
    }
}

async fn build(shell: &mut Shell, args: BuildArgs) -> Result<Exit, Failure> {
    let builder = builder()?;
    if args.add {
        // An unreachable server must be noticed before minutes of work.
        shell.client()?.artifacts().await?;
    }
    let mut command = Command::new(builder);
    command.arg("build").arg("--file").arg(&args.file).args(["--output", "json"]);
    for (option, value) in [("--out", &args.out), ("--plugins", &args.plugins)] {
        if let Some(value) = value {
            command.arg(option).arg(value);
        }
    }
    if args.write.dry_run {
        command.arg("--dry-run");
    }
    let (exit, made) = answer(&mut command)?;
    let Some(made) = made else { return Ok(exit) };
    if exit == Exit::WouldChange || !args.add {
        print(shell, &made)?;
        return Ok(exit);
    }
    let directory = PathBuf::from(made["out"].as_str().unwrap_or_default());
    bring(shell, &directory, &args.how, &args.write).await
}

fn unpack(shell: &mut Shell, args: &UnpackArgs) -> Result<Exit, Failure> {
    let mut command = Command::new(builder()?);
    command.args(["unpack", "--output", "json"]);
    for (option, value) in [("--out", &args.out), ("--manifest", &args.manifest)] {
        if let Some(value) = value {
            command.arg(option).arg(value);
        }
    }
    let (exit, unpacked) = answer(command.arg("--").arg(&args.file))?;
    let Some(unpacked) = unpacked else { return Ok(exit) };
    let printer = &mut shell.printer;
    let text = |field: &str| unpacked[field].as_str().unwrap_or_default().to_owned();
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(&unpacked)?,
        Output::Name => printer.line(text("out"))?,
        _ => {
            let size = unpacked["size"].as_u64().unwrap_or(0);
            printer.line(format!("{}: {size} bytes, sha256:{}", text("out"), text("sha256")))?;
        }
    }
    Ok(exit)
}

/// Runs the builder. `None` if it failed: it has printed the reason.
fn answer(command: &mut Command) -> Result<(Exit, Option<Value>), Failure> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| Failure::Broken(format!("{BUILDER}: {error}")))?;
    let code = output.status.code();
    let exit = Exit::ALL.into_iter().find(|exit| Some(exit.code().into()) == code);
    let exit = exit.ok_or_else(|| Failure::Broken(format!("{BUILDER}: {}", output.status)))?;
    if !matches!(exit, Exit::Done | Exit::WouldChange) {
        return Ok((exit, None));
    }
    let answer = serde_json::from_slice(&output.stdout).map_err(Failure::Json)?;
    Ok((exit, Some(answer)))
}

/// Beside this program, as it was installed.
fn builder() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().map_err(Failure::File)?;
    let builder = here.with_file_name(BUILDER);
    if builder.is_file() {
        return Ok(builder);
    }
    let what = format!("image builder `{}`", builder.display());
    Err(Failure::missing(what).with_hint("install the package `hoist-image`"))
}

fn print(shell: &mut Shell, made: &Value) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    if matches!(printer.output(), Output::Json | Output::Yaml) {
        return printer.value(made);
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(size) => HumanBytes(size.as_u64().unwrap_or(0)).to_string(),
        _ => String::new(),
    };
    let files = made["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    if printer.output() == Output::Name {
        return files.iter().try_for_each(|file| printer.line(text(&file["artifact"])));
    }
    let mut table = Table::new(&["FILE", "SIZE", "ARTIFACT"]).wide(&["SHA256"]);
    for file in files {
        table.row(["file", "size", "artifact", "sha256"].map(|field| text(&file[field])).to_vec());
    }
    printer.table(&table)?;
    printer.note(&format!("in {}", text(&made["out"])));
    Ok(())
}

/// Makes the files of a directory artifacts, if they still are what its index says.
async fn bring(
    shell: &mut Shell,
    directory: &Path,
    how: &AddArgs,
    write: &WriteArgs,
) -> Result<Exit, Failure> {
    let index = index(directory)?;
    let addition = |entry: &ImageFile| Addition {
        file: directory.join(&entry.file),
        name: entry.artifact.clone(),
        arch: how.arch,
        description: Some(format!("{} of image {}", entry.file, index.name)),
        sha256: Some(entry.sha256),
        provides: None,
        unpacked: entry.unpacked.clone(),
    };
    let additions = index.files.iter().map(addition).collect();
    let client = shell.client()?;
    artifact::add_all(shell, &client, additions, how.replace, write).await
}

fn index(directory: &Path) -> Result<ImageIndex, Failure> {
    let path = directory.join(INDEX_FILE);
    let mut text = Vec::new();
    let file = fs::File::open(&path).map_err(Failure::File)?;
    file.take(MAX_INDEX + 1).read_to_end(&mut text).map_err(Failure::File)?;
    let no_index = |why: String| {
        Failure::usage(format!("`{}` is not an image index: {why}", path.display()))
            .with_hint("name a directory that `hoist image build` made")
    };
    if text.len() as u64 > MAX_INDEX {
        return Err(no_index(format!("more than {MAX_INDEX} bytes")));
    }
    let index: ImageIndex =
        serde_json::from_slice(&text).map_err(|error| no_index(error.to_string()))?;
    if index.stays_inside() {
        Ok(index)
    } else {
        Err(no_index("refers to files of other directories".to_owned()))
    }
}
