//! `hoist agent`: what runs on machines that have no system yet.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};
use fs_err as fs;
use hoist_initramfs::agent::{Image, ImageError, Recipe, SMALLEST, build, drivers};
use hoist_initramfs::modules::ModulesError;
use hoist_initramfs::programs::ProgramError;
use hoist_model::artifact::TOOL;
use hoist_model::node::Arch;
use hoist_model::{ArtifactName, Digest, Exit};
use indicatif::{HumanBytes, ProgressBar};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::Shell;
use super::artifact::{self, Addition};
use super::node::word;
use crate::connect;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// The program that the image is made around; a package of its own, beside this one.
const AGENT: &str = "hoist-agent";

/// File names.
const KERNEL: &str = "kernel";
const INITRD: &str = "agent.cpio.zst";

/// The agent that provisions machines
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Make the image that machines boot to be provisioned
    ///
    /// A kernel, and an archive with hoist-agent, the drivers that machines need, tools, and the
    /// certificate authority of this site: an agent of this image talks to no other controllers.
    /// The same input gives the same bytes.
    #[command(after_help = "Examples:\n  \
        hoist agent image --package linux-image-amd64 --out agent --add\n  \
        hoist agent image --package linux-image-amd64 --firmware firmware-bnx2x --out agent\n  \
        hoist agent image --kernel /boot/vmlinuz-6.1.0-9-amd64 --modules /lib/modules/6.1.0-9-amd64 --out agent\n  \
        hoist agent image --package linux-image-amd64 --with md,dm --tools mdadm,lvm --out agent\n  \
        hoist agent image --package linux-image-cloud-amd64 --plugin raid.cpio --out agent --dry-run")]
    Image(Box<ImageArgs>),
}

#[derive(Debug, Args)]
struct ImageArgs {
    /// The directory for `kernel` and `agent.cpio.zst`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Debian's package of a kernel, fetched with `apt-get download` and never installed: for
    /// hardware `linux-image-amd64`, for virtual machines only `linux-image-cloud-amd64`
    #[arg(long, value_name = "NAME", required_unless_present = "kernel")]
    package: Option<String>,
    /// A kernel that is here already
    #[arg(long, value_name = "FILE", requires = "modules", conflicts_with = "package")]
    kernel: Option<PathBuf>,
    /// The modules of that kernel, as `lib/modules/6.1.0-9-amd64`
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// The agent; the one beside this program if left out
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// More programs of this machine that documents need, with their libraries; every image has
    /// mke2fs, mkswap, e2fsck and resize2fs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    tools: Vec<String>,
    /// Firmware for the drivers: a directory like `/lib/firmware`, or a package of Debian such as
    /// `firmware-bnx2x`; only files that the drivers ask for are taken
    #[arg(long, value_name = "DIR|PACKAGE", value_delimiter = ',')]
    firmware: Vec<String>,
    /// More drivers: `md`, `dm`, `crypt`, `xfs`, or modules by their names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    with: Vec<String>,
    /// An archive to put behind the image (`cpio -H newc`, packed or not), as plug-ins come
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// How hard to try to make it small
    #[arg(long, value_name = "1-19", default_value_t = SMALLEST,
        value_parser = clap::value_parser!(i32).range(1..=i64::from(SMALLEST)))]
    level: i32,
    /// What machines it is for: `x86_64`, `aarch64` or `riscv64`
    #[arg(long, value_parser = word::<Arch>, default_value = "x86_64")]
    arch: Arch,
    /// Bring both files to the controller, under the names that provisioning boots
    #[arg(long)]
    add: bool,
    /// Give the names to these files, whatever they stood for before
    #[arg(long, requires = "add")]
    replace: bool,
    #[command(flatten)]
    write: WriteArgs,
}

impl AgentArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let AgentCommand::Image(args) = self.command;
        image(shell, *args).await
    }
}

/// The result, or the dry-run result.
#[derive(Debug, Serialize)]
struct ImageResult {
    out: PathBuf,
    release: String,
    parts: Vec<MadePart>,
    files: Vec<MadeFile>,
    /// Drivers that are in the kernel itself.
    built_in: Vec<String>,
    /// Programs in the image.
    tools: Vec<String>,
}

#[derive(Debug, Serialize)]
struct MadePart {
    part: String,
    /// As files, in the memory of the machine.
    unpacked: u64,
    /// In the image.
    size: u64,
}

#[derive(Debug, Serialize)]
struct MadeFile {
    file: &'static str,
    size: u64,
    sha256: Digest,
    artifact: ArtifactName,
}

async fn image(shell: &mut Shell, args: ImageArgs) -> Result<Exit, Failure> {
    if args.add {
        // An unreachable server must be noticed before a minute of work.
        shell.client()?.artifacts().await?;
    }
    let authority = connect::authority(&shell.connection)?;
    let work = ProgressBar::new_spinner().with_message("making the image");
    work.enable_steady_tick(std::time::Duration::from_millis(100));
    let (args, made) = tokio::task::spawn_blocking(move || {
        let made = make(&args, &authority);
        (args, made)
    })
    .await
    .map_err(|died| Failure::Broken(died.to_string()))?;
    work.finish_and_clear();
    let (kernel, image) = made?;
    let made = described(&args, &kernel, &image)?;
    if !image.absent.is_empty() {
        let absent = image.absent.join("`, `");
        return Err(Failure::usage(format!("kernel {} has no driver `{absent}`", image.release))
            .with_hint("remove it from `--with`, or use another kernel"));
    }
    print(shell, &made)?;
    if !args.firmware.is_empty() && image.firmware == 0 {
        let note = "warning: no driver of the image asks for a file of this firmware";
        shell.printer.note(note);
    }
    if args.write.dry_run {
        return Ok(Exit::WouldChange);
    }
    fs::create_dir_all(&args.out).map_err(Failure::File)?;
    for (name, content) in [(KERNEL, &kernel), (INITRD, &image.bytes)] {
        fs::write(args.out.join(name), content).map_err(Failure::File)?;
    }
    if !args.add {
        return Ok(Exit::Done);
    }
    let provides = |file: &MadeFile| {
        if file.file != INITRD {
            return Vec::new();
        }
        // Archives appended to an image are not examined.
        let plugins = args.plugin.first().map(|_| "*".to_owned());
        let tools = image.tools.iter().map(|tool| format!("{TOOL}{tool}"));
        plugins.into_iter().chain(tools).collect()
    };
    let addition = |file: &MadeFile| Addition {
        file: args.out.join(file.file),
        name: file.artifact.clone(),
        arch: Some(args.arch),
        description: Some(format!("agent, kernel {}", made.release)),
        sha256: Some(file.sha256),
        provides: Some(provides(file)),
        unpacked: None,
    };
    let additions = made.files.iter().map(addition).collect();
    let client = shell.client()?;
    artifact::add_all(shell, &client, additions, args.replace, &args.write).await
}

/// The kernel and the image.
fn make(args: &ImageArgs, authority: &Path) -> Result<(Vec<u8>, Image), Failure> {
    let agent = match &args.agent {
        Some(agent) => agent.clone(),
        None => beside()?,
    };
    let fetched = tempfile::tempdir().map_err(Failure::File)?;
    let (kernel, modules) = match (&args.kernel, &args.modules, &args.package) {
        (Some(kernel), Some(modules), _) => (kernel.clone(), modules.clone()),
        (_, _, Some(package)) => fetch(package, fetched.path())?,
        _ => return Err(Failure::usage("no kernel was given").with_hint("give `--package`")),
    };
    let recipe = Recipe {
        agent,
        modules,
        more_modules: args.with.iter().flat_map(|word| drivers(word)).collect(),
        tools: args.tools.clone(),
        firmware: firmware(&args.firmware, fetched.path())?,
        authority: Some(fs::read(authority).map_err(Failure::File)?),
        archives: args.plugin.clone(),
        level: args.level,
    };
    let image = build(&recipe).map_err(refused)?;
    Ok((fs::read(kernel).map_err(Failure::File)?, image))
}

/// Directories of firmware: those that are named, and those in packages.
fn firmware(words: &[String], into: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut directories = Vec::new();
    for (number, word) in words.iter().enumerate() {
        let path = PathBuf::from(word);
        if word.contains('/') || path.is_dir() {
            directories.push(path);
            continue;
        }
        let into = into.join(format!("firmware-{number}"));
        fs::create_dir_all(&into).map_err(Failure::File)?;
        let tree = unpack(word, &into)?;
        let places = [tree.join("lib/firmware"), tree.join("usr/lib/firmware")];
        let found = places.into_iter().find(|place| place.is_dir()).ok_or_else(|| {
            Failure::missing(format!("firmware in package `{word}`"))
                .with_hint("name a package such as `firmware-bnx2x`, or a directory")
        })?;
        directories.push(found);
    }
    Ok(directories)
}

fn refused(error: ImageError) -> Failure {
    match error {
        ImageError::Io(error)
        | ImageError::Modules(ModulesError::Io(error))
        | ImageError::Program(ProgramError::Io(error)) => Failure::File(error),
        error => Failure::usage(error.to_string()),
    }
}

fn beside() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().map_err(Failure::File)?;
    let agent = here.with_file_name(AGENT);
    if agent.is_file() {
        return Ok(agent);
    }
    let what = format!("agent `{}`", agent.display());
    Err(Failure::missing(what).with_hint("install the package `hoist-agent`, or use `--agent`"))
}

/// Unpacks a kernel without installing it: its file, and the directory of its modules.
fn fetch(package: &str, into: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    if !is_package(package) {
        return Err(Failure::usage(format!("`{package}` is not a package name")));
    }
    // A name without a version stands for the newest kernel, and holds nothing itself.
    let depends = run(Command::new("apt-cache").args(["depends", "--important", package]))?;
    let kernels = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let newest = kernels.map(str::trim).find(|name| name.starts_with("linux-image-"));
    let tree = unpack(newest.filter(|name| is_package(name)).unwrap_or(package), into)?;
    let kernel = entry(&tree.join("boot"), &|name| name.starts_with("vmlinuz-"))?;
    let places = [tree.join("lib/modules"), tree.join("usr/lib/modules")];
    let modules = places.iter().find(|place| place.is_dir()).unwrap_or(&places[0]);
    Ok((kernel, entry(modules, &|_| true)?))
}

fn is_package(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

/// The files of a package of Debian, which is fetched into a directory of its own.
fn unpack(package: &str, into: &Path) -> Result<PathBuf, Failure> {
    if !is_package(package) {
        return Err(Failure::usage(format!("`{package}` is not a package name")));
    }
    run(Command::new("apt-get").args(["download", "-q", package]).current_dir(into))?;
    let archive =
        entry(into, &|name| Path::new(name).extension().is_some_and(|ending| ending == "deb"))?;
    let tree = into.join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(&tree))?;
    Ok(tree)
}

/// The entry of a directory with a name of this kind.
fn entry(dir: &Path, is_it: &dyn Fn(&str) -> bool) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(dir).map_err(Failure::File)?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(is_it);
    let what = || format!("kernel in `{}`", dir.display());
    names.find(is_it).ok_or_else(|| {
        Failure::missing(what()).with_hint("name a kernel package, such as `linux-image-amd64`")
    })
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        Failure::missing(format!("program `{program}` ({error})"))
            .with_hint("outside Debian, use `--kernel` and `--modules`")
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(Failure::refused(format!("`{program}` failed: {}", crate::printer::plain(last))))
}

fn described(args: &ImageArgs, kernel: &[u8], image: &Image) -> Result<ImageResult, Failure> {
    let file = |file: &'static str, part: &str, content: &[u8]| {
        let name = format!("agent-{}-{part}", args.arch.as_str());
        let artifact = name
            .parse()
            .map_err(|_| Failure::usage(format!("`{name}` is not an artifact name")))?;
        let sha256 = Digest::from_bytes(Sha256::digest(content).into());
        Ok::<_, Failure>(MadeFile { file, size: content.len() as u64, sha256, artifact })
    };
    let part = |part: &hoist_initramfs::agent::Part| MadePart {
        part: part.name.clone(),
        unpacked: part.unpacked,
        size: part.packed,
    };
    Ok(ImageResult {
        out: args.out.clone(),
        release: image.release.clone(),
        parts: image.parts.iter().map(part).collect(),
        files: vec![file(KERNEL, "kernel", kernel)?, file(INITRD, "initrd", &image.bytes)?],
        built_in: image.built_in.clone(),
        tools: image.tools.clone(),
    })
}

fn print(shell: &mut Shell, made: &ImageResult) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(made),
        Output::Name => made.files.iter().try_for_each(|file| printer.line(file.artifact.as_str())),
        Output::Table | Output::Wide => {
            let mut table = Table::new(&["PART", "SIZE", "UNPACKED"]);
            for part in &made.parts {
                let sizes = [part.size, part.unpacked].map(|size| HumanBytes(size).to_string());
                table.row([vec![part.part.clone()], sizes.to_vec()].concat());
            }
            printer.table(&table)?;
            let mut table = Table::new(&["FILE", "SIZE", "ARTIFACT", "SHA256"]);
            for file in &made.files {
                table.row(vec![
                    made.out.join(file.file).display().to_string(),
                    HumanBytes(file.size).to_string(),
                    file.artifact.to_string(),
                    file.sha256.to_string(),
                ]);
            }
            printer.table(&table)?;
            printer.note(&format!("for kernel {}", made.release));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use hoist_initramfs::agent::EXTRAS;

    use super::*;

    #[test]
    fn names_that_are_no_packages_reach_no_program() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "-o=x", "a b", "../a", "linux;reboot"] {
            let failure = fetch(name, dir.path()).unwrap_err().to_string();
            assert!(failure.contains("is not a package name"), "{name}: {failure}");
        }
        for name in ["", "-o=x", "a b", "linux;reboot"] {
            let failure = firmware(&[name.to_owned()], dir.path()).unwrap_err().to_string();
            assert!(failure.contains("is not a package name"), "{name}: {failure}");
        }
    }

    #[test]
    fn the_words_of_the_help_are_those_that_are_known() {
        let known: Vec<&str> = EXTRAS.iter().map(|(name, _)| *name).collect();
        assert_eq!(known, ["md", "dm", "crypt", "xfs"]);
    }
}
