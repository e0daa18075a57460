//! `hoist plugin pack`: plug-ins as an archive that a kernel unpacks behind the agent's image, so
//! that machines carry only the plug-ins they need.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hoist_engine::action::{Action, Catalog};
use hoist_engine::plugin::{self, DRIVER_PREFIX, Driver, Isolation, PREFIX};
use hoist_initramfs::{Entry, Tree, TreeError, programs};
use hoist_model::{Arch, ArtifactName, Digest, Exit};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::commands::Shell;
use crate::commands::artifact::{self, Addition};
use crate::commands::node::word;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::Output;
use crate::serve;

/// Where the agent looks.
const PLACE: &str = "usr/lib/hoist/plugins";

/// What plug-ins are started with, in namespaces of their own. The image of the agent has none of it.
const STARTED_WITH: [&str; 8] =
    ["/bin/sh", "/bin/true", "ln", "mkdir", "mount", "setpriv", "sleep", "unshare"];

/// All files together. Every machine that is given the archive holds it in memory.
const MAX_ARCHIVE: u64 = 256 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct PackArgs {
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The archive to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// A file or a directory that they need as well; it has the same path there
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,

    /// Bring it to the controller: nodes whose profile needs a plug-in of it boot it with the agent
    #[arg(long)]
    add: bool,

    /// The artifact's name; `plugin-NAME-ARCH` by default, for one plug-in
    #[arg(long, requires = "add", value_parser = word::<ArtifactName>)]
    name: Option<ArtifactName>,

    /// Which machines it is for
    #[arg(long, value_parser = word::<Arch>, default_value = "x86_64")]
    arch: Arch,

    /// Give the name to this archive if another one has it
    #[arg(long, requires = "add")]
    replace: bool,

    #[command(flatten)]
    write: WriteArgs,
}

#[derive(Debug, Serialize)]
struct PackedArchive {
    path: PathBuf,
    bytes: usize,
    sha256: Digest,
    plugins: Vec<String>,
    /// What profiles name of it: actions, and the sections that they read.
    provides: Vec<String>,
    files: usize,
}

pub(super) async fn pack(shell: &mut Shell, args: &PackArgs) -> Result<Exit, Failure> {
    let PackArgs { directory, out, with, .. } = args;
    let dry_run = args.write.dry_run;
    let mut tree = Tree::new();
    let isolation = Arc::new(serve::plugin_isolation(&shell.connection)?);
    let (plugins, provides) = put_plugins(&mut tree, directory, &isolation)?;
    if plugins.is_empty() {
        let what = format!("`{}` contains no plug-ins", directory.display());
        let hint = format!("name their files `{PREFIX}NAME` or `{DRIVER_PREFIX}NAME`");
        return Err(Failure::usage(what).with_hint(hint));
    }
    for program in STARTED_WITH {
        put_program(&mut tree, program)?;
    }
    for path in with {
        put_as_it_is(&mut tree, path)?;
    }
    let archive = tree.archive();
    let packed = PackedArchive {
        path: out.clone(),
        provides,
        bytes: archive.len(),
        sha256: Digest::from_bytes(Sha256::digest(&archive).into()),
        plugins,
        files: tree.paths().count(),
    };
    if !dry_run {
        let part = out.with_added_extension("part");
        fs_err::write(&part, &archive)
            .and_then(|()| fs_err::rename(&part, out))
            .map_err(Failure::File)?;
    }
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(&packed)?,
        Output::Table | Output::Wide | Output::Name => {
            let PackedArchive { path, bytes, sha256, plugins, files, .. } = &packed;
            let path = path.display();
            let plugins = plugins.join(", ");
            shell.printer.line(format!("{path}: {bytes} bytes, {files} files, sha256:{sha256}"))?;
            shell.printer.line(format!("holds {plugins}"))?;
        }
    }
    if dry_run {
        return Ok(Exit::WouldChange);
    }
    if !args.add {
        return Ok(Exit::Done);
    }
    let addition = Addition {
        file: out.clone(),
        name: args.artifact(&packed)?,
        arch: Some(args.arch),
        description: Some(format!("archive of {}", packed.plugins.join(", "))),
        sha256: Some(packed.sha256),
        provides: Some(packed.provides),
        unpacked: None,
    };
    let client = shell.client()?;
    artifact::add_all(shell, &client, vec![addition], args.replace, &args.write).await
}

impl PackArgs {
    fn artifact(&self, packed: &PackedArchive) -> Result<ArtifactName, Failure> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let actions: Vec<_> =
            packed.plugins.iter().filter_map(|p| p.strip_prefix(PREFIX)).collect();
        let [action] = actions[..] else {
            return Err(Failure::usage("the archive has more than one plug-in")
                .with_hint("name the artifact with `--name`, or pack them one by one"));
        };
        let name = format!("plugin-{action}-{}", self.arch.as_str());
        name.parse().map_err(|error| Failure::usage(format!("{error}")).with_hint("give `--name`"))
    }
}

/// All plug-ins of a directory with the programs they call. A file that is no plug-in is reported.
fn put_plugins(
    tree: &mut Tree,
    directory: &Path,
    isolation: &Arc<Isolation>,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let wrong = |error: plugin::PluginError| Failure::usage(error.to_string());
    let (actions, mut refused) = plugin::load(directory, isolation, &Catalog::default());
    if let Some(error) = refused.pop() {
        return Err(wrong(error));
    }
    let about: Vec<_> = actions.iter().map(Action::describe).collect();
    let provides =
        about.into_iter().flat_map(|about| [vec![about.name], of_others(about.reads)].concat());
    let provides = provides.collect();
    let mut found: Vec<(PathBuf, Vec<String>)> = actions
        .iter()
        .map(|plugin| (plugin.path().to_owned(), Action::describe(plugin).tools))
        .collect();
    for entry in fs_err::read_dir(directory).map_err(Failure::File)? {
        let path = entry.map_err(Failure::File)?.path();
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(name) = file.strip_prefix(DRIVER_PREFIX) {
            let driver = Driver::open(directory, name, isolation).map_err(wrong)?;
            found.push((path.clone(), driver.about().tools.clone()));
        }
    }
    found.sort();
    let mut names = Vec::new();
    for (path, tools) in found {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = fs_err::read(&path).map_err(Failure::File)?;
        for program in interpreters(&content).into_iter().chain(tools) {
            put_program(tree, &program)?;
        }
        add(tree, &format!("{PLACE}/{name}"), Entry::File { content, mode: 0o755 })?;
        names.push(name);
    }
    Ok((names, provides))
}

/// The sections of a plug-in that are not hoist's own.
fn of_others(mut sections: Vec<String>) -> Vec<String> {
    sections.retain(|section| section.contains('/'));
    sections
}

/// The interpreter of a script's first line, and the program that `env` starts.
fn interpreters(content: &[u8]) -> Vec<String> {
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!").and_then(|line| str::from_utf8(line).ok()) else {
        return Vec::new();
    };
    let mut words = line.split_ascii_whitespace();
    let Some(program) = words.next() else { return Vec::new() };
    let is_env = program.ends_with("/env");
    std::iter::once(program).chain(words.next().filter(|_| is_env)).map(str::to_owned).collect()
}

/// A program by name or path, with the libraries that it needs, where it is on this machine.
fn put_program(tree: &mut Tree, name: &str) -> Result<(), Failure> {
    let wrong = |error: programs::ProgramError| {
        Failure::usage(error.to_string())
            .with_hint("install the programs that the plug-in calls on this machine; they are copied from here")
    };
    let path = if name.starts_with('/') {
        PathBuf::from(name)
    } else {
        programs::find(name).map_err(wrong)?
    };
    let at = path.display().to_string();
    programs::put(tree, &path, &at).map_err(wrong)?;
    is_small(tree)
}

/// A file, or a directory with everything in it, at the same place.
fn put_as_it_is(tree: &mut Tree, path: &Path) -> Result<(), Failure> {
    let path = std::path::absolute(path).map_err(Failure::File)?;
    let about = fs_err::symlink_metadata(&path).map_err(Failure::File)?;
    let at = path.display().to_string();
    if about.is_dir() {
        for entry in fs_err::read_dir(&path).map_err(Failure::File)? {
            put_as_it_is(tree, &entry.map_err(Failure::File)?.path())?;
        }
        return Ok(());
    }
    if about.is_symlink() {
        let to = fs_err::read_link(&path).map_err(Failure::File)?;
        return add(tree, &at, Entry::Link(to.display().to_string()));
    }
    if !about.is_file() {
        return Err(Failure::usage(format!("`{at}` is neither a file nor a directory")));
    }
    let mut content = Vec::new();
    let file = fs_err::File::open(&path).map_err(Failure::File)?;
    file.take(MAX_ARCHIVE + 1).read_to_end(&mut content).map_err(Failure::File)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o755;
    add(tree, &at, Entry::File { content, mode })
}

fn add(tree: &mut Tree, path: &str, entry: Entry) -> Result<(), Failure> {
    tree.add(path, entry).map_err(|error: TreeError| Failure::usage(error.to_string()))?;
    is_small(tree)
}

fn is_small(tree: &Tree) -> Result<(), Failure> {
    let size = tree.size();
    if size <= MAX_ARCHIVE {
        return Ok(());
    }
    let what = format!("the archive has {size} bytes; at most {MAX_ARCHIVE} are allowed");
    Err(Failure::usage(what).with_hint("leave out some files"))
}
