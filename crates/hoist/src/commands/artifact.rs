//! `hoist artifact`: kernels, initrds and images that hoist serves.
//!
//! Does not belong here: the content store (`hoist-server`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use fs_err as fs;
use futures_util::TryStreamExt;
use hoist_api::Code;
use hoist_api::artifact::{ArtifactObject, ArtifactVerification, CollectionResult, Outcome};
use hoist_api::client::{Body, Client, ClientError};
use hoist_model::image::UnpackedContent;
use hoist_model::node::Arch;
use hoist_model::{ArtifactName, ArtifactSpec, Digest, Document, Exit, Kind};
use indicatif::{HumanBytes, ProgressBar};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::network::joined;
use super::node::word;
use super::{Shell, get};
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::input::{Documents, bar};
use crate::printer::Output;
use crate::table::Table;

/// Read and sent at once.
const CHUNK: usize = 1024 * 1024;

/// How often an upload is taken up again without getting any further.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Longest time that another upload may hold the content: longer than the minute a controller takes
/// to notice a lost connection.
const BUSY: Duration = Duration::from_secs(90);

/// Kernels, initrds and images that hoist serves
#[derive(Debug, Args)]
pub(crate) struct ArtifactArgs {
    #[command(subcommand)]
    command: ArtifactCommand,
}

#[derive(Debug, Subcommand)]
enum ArtifactCommand {
    /// Bring a file to the controller and give it a name
    ///
    /// Boot configurations name it `artifact:NAME`. An upload that was broken off goes on from where
    /// it was; a file that is there already is not sent again.
    #[command(after_help = "Examples:\n  hoist artifact add vmlinuz-6.1\n  \
        hoist artifact add build/initrd.img --name initrd-6.1.img --arch x86_64\n  \
        hoist artifact add image.squashfs --replace")]
    Add(AddArgs),
    /// List all artifacts, whether they are on this controller, and who names them
    #[command(after_help = "Examples:\n  hoist artifact list -o wide")]
    List,
    /// Read all stored contents, and set damaged ones aside
    ///
    /// Damaged contents are no longer served; add the file again, or let this controller fetch it
    /// from another one. Exits with 7 if something was damaged. Contents that artifacts name and
    /// this controller lacks are listed, and are not damage.
    #[command(after_help = "Examples:\n  hoist artifact verify")]
    Verify,
    /// Remove contents that no artifact names
    ///
    /// Contents named by a boot configuration or a BSS record stay, as do contents added within the
    /// last hour, and those of current and previous installations. Each controller collects its own
    /// disk.
    #[command(after_help = "Examples:\n  hoist artifact gc --dry-run\n  \
        hoist artifact gc --unused")]
    Gc {
        /// Remove also artifacts that no boot configuration and no BSS record names
        #[arg(long)]
        unused: bool,
        /// Remove also recently interrupted uploads; they start again from the beginning
        #[arg(long)]
        unfinished: bool,
        /// Remove also what nodes need to go back with `hoist provision start --previous`
        #[arg(long)]
        previous: bool,
        /// Show the contents to remove without removing them; exits with 20 if there are any
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove artifacts that nothing names; `gc` then removes their contents
    #[command(visible_alias = "rm", after_help = "Examples:\n  hoist artifact rm vmlinuz-5.10")]
    Remove {
        #[arg(value_name = "ARTIFACT", required = true)]
        artifacts: Vec<String>,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the artifact; by default the name of the file
    #[arg(long)]
    name: Option<ArtifactName>,
    /// What machines it is for: `x86_64`, `aarch64` or `riscv64`
    #[arg(long, value_parser = word::<Arch>)]
    arch: Option<Arch>,
    #[arg(long)]
    description: Option<String>,
    /// Give the name to this file, whatever it stood for before: nodes that boot it get the new one
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    write: WriteArgs,
}

impl ArtifactArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        match self.command {
            ArtifactCommand::Add(args) => add(shell, &client, args).await,
            ArtifactCommand::List => list(shell, &client).await,
            ArtifactCommand::Verify => verify(shell, &client).await,
            ArtifactCommand::Gc { unused, unfinished, previous, dry_run } => {
                let collected = client.collect_artifacts(dry_run, unused, unfinished, previous);
                let collected = collected.await?;
                report(shell, &collected)
            }
            ArtifactCommand::Remove { artifacts, write } => {
                let targets = artifacts.iter().map(|name| get::target(Kind::Artifact, name));
                edit::delete(shell, &client, targets.collect::<Result<_, _>>()?, &write).await
            }
        }
    }
}

async fn add(shell: &mut Shell, client: &Client, args: AddArgs) -> Result<Exit, Failure> {
    let name = match args.name {
        Some(name) => name,
        None => name_of(&args.file)?,
    };
    let file = args.file;
    let arch = args.arch;
    let description = args.description;
    let (sha256, provides, unpacked) = (None, None, None);
    let addition = Addition { file, name, arch, description, sha256, provides, unpacked };
    add_all(shell, client, vec![addition], args.replace, &args.write).await
}

/// A file that gets a name.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) file: PathBuf,
    pub(crate) name: ArtifactName,
    pub(crate) arch: Option<Arch>,
    pub(crate) description: Option<String>,
    /// The expected digest, if one was given.
    pub(crate) sha256: Option<Digest>,
    /// Of an archive of plug-ins; unchanged by default.
    pub(crate) provides: Option<Vec<String>>,
    /// The image that is packed in the file; that of the same content by default.
    pub(crate) unpacked: Option<UnpackedContent>,
}

/// Brings files to the controller, and then gives all of them their names in one change.
pub(crate) async fn add_all(
    shell: &mut Shell,
    client: &Client,
    additions: Vec<Addition>,
    replace: bool,
    write: &WriteArgs,
) -> Result<Exit, Failure> {
    let mut hashed = Vec::new();
    for addition in additions {
        let path = addition.file.clone();
        let content = tokio::task::spawn_blocking(move || hash(&path)).await;
        let (sha256, size) = content.map_err(|died| Failure::Broken(died.to_string()))??;
        if addition.sha256.is_some_and(|wanted| wanted != sha256) {
            let what = format!("`{}` does not match its index", addition.file.display());
            return Err(Failure::refused(what).with_hint("build it again"));
        }
        hashed.push(HashedFile { addition, sha256, size });
    }
    let known = client.artifacts().await?.items;
    hashed.iter().try_for_each(|hashed| hashed.check_name(&known, replace))?;
    if !write.dry_run {
        for HashedFile { addition, sha256, size } in &hashed {
            let path = &addition.file;
            let sha256 = *sha256;
            let size = *size;
            Upload { client, path, sha256, size }.run(shell).await?;
        }
    }
    // Another client may have taken a name meanwhile.
    let make = async || {
        let known = client.artifacts().await?.items;
        hashed.iter().try_for_each(|hashed| hashed.check_name(&known, replace))?;
        let documents: Vec<_> = hashed.iter().map(|hashed| hashed.document(&known)).collect();
        Documents::of(&documents)
    };
    let ended = edit::modify(shell, client, write, make).await?;
    if ended == Exit::Done {
        let names: Vec<_> =
            hashed.iter().map(|hashed| format!("`artifact:{}`", hashed.addition.name)).collect();
        shell.printer.note(&match names.as_slice() {
            [name] => format!("boot configurations refer to it as {name}"),
            names => format!("boot configurations refer to them as {}", names.join(", ")),
        });
    }
    Ok(ended)
}

/// A file with its digest and size.
struct HashedFile {
    addition: Addition,
    sha256: Digest,
    size: u64,
}

impl HashedFile {
    fn known<'a>(&self, known: &'a [ArtifactObject]) -> Option<&'a ArtifactObject> {
        known.iter().find(|known| known.name == self.addition.name)
    }

    /// An existing name must not get other content without `--replace`.
    fn check_name(&self, known: &[ArtifactObject], replace: bool) -> Result<(), Failure> {
        if replace || self.known(known).is_none_or(|known| known.sha256 == self.sha256) {
            return Ok(());
        }
        let name = &self.addition.name;
        Err(Failure::refused(format!("artifact `{name}` exists with other content"))
            .with_hint("replace it with `--replace`, or choose another name with `--name`"))
    }

    fn document(&self, known: &[ArtifactObject]) -> Document {
        let known = self.known(known);
        let arch = known.map(|known| known.arch);
        let description = known.map(|known| known.description.clone());
        let provides = known.map(|known| known.provides.clone());
        let same = known.filter(|known| known.sha256 == self.sha256);
        let unpacked = same.and_then(|known| known.unpacked.clone());
        let Addition { name, arch: new_arch, description: new_description, .. } = &self.addition;
        let spec = ArtifactSpec {
            sha256: self.sha256,
            size: self.size,
            arch: new_arch.or(arch).unwrap_or_default(),
            description: new_description.clone().or(description).unwrap_or_default(),
            provides: self.addition.provides.clone().or(provides).unwrap_or_default(),
            unpacked: self.addition.unpacked.clone().or(unpacked),
        };
        Document::Artifact(name.clone(), spec)
    }
}

fn name_of(file: &Path) -> Result<ArtifactName, Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.parse().map_err(|error| {
        Failure::usage(format!("{error}")).with_hint("choose another name with `--name`")
    })
}

fn hash(path: &Path) -> Result<(Digest, u64), Failure> {
    // Checked first: opening a pipe would wait for a writer.
    let about = fs::metadata(path).map_err(Failure::File)?;
    if !about.is_file() {
        return Err(Failure::usage(format!("`{}` is not a regular file", path.display())));
    }
    let mut file = fs::File::open(path).map_err(Failure::File)?;
    let progress = bar("reading", about.len());
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = file.read(&mut buffer).map_err(Failure::File)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        size += count as u64;
        progress.set_position(size);
    }
    progress.finish_and_clear();
    Ok((Digest::from_bytes(hash.finalize().into()), size))
}

/// A file on its way.
struct Upload<'a> {
    client: &'a Client,
    path: &'a Path,
    sha256: Digest,
    size: u64,
}

impl Upload<'_> {
    /// Goes on from where an earlier one was broken off, and on again when it is broken off itself.
    async fn run(&self, shell: &mut Shell) -> Result<(), Failure> {
        let progress = bar("sending", self.size);
        let mut furthest = 0;
        let mut tries = 0;
        let mut anew = false;
        let mut waits: Option<Instant> = None;
        loop {
            let mut offset = 0;
            let ended = self.go_on(&mut offset, &progress).await;
            if offset > furthest {
                (furthest, tries, waits) = (offset, 0, None);
            }
            let error = match ended {
                Ok(true) => {
                    progress.finish_and_clear();
                    return Ok(());
                }
                // The file is shorter than it was.
                Ok(false) => return Err(changed(self.path)),
                Err(Failure::Client(error)) => error,
                Err(failure) => return Err(failure),
            };
            let note = match error.code() {
                // The earlier part may be damaged; the server has dropped it now.
                Some(Code::InvalidBody) if offset > 0 && !anew => {
                    (furthest, anew) = (0, true);
                    "the earlier upload was different; sending all of it".to_owned()
                }
                Some(Code::InvalidBody) => return Err(changed(self.path)),
                Some(Code::Busy) => match waits {
                    None => {
                        waits = Some(Instant::now());
                        format!("{error}; waiting for up to {} s", BUSY.as_secs())
                    }
                    Some(since) if since.elapsed() < BUSY => String::new(),
                    Some(_) => return Err(error.into()),
                },
                _ if tries < TRIES && is_worth_another_try(&error) => {
                    tries += 1;
                    format!("{error}; going on")
                }
                _ => return Err(error.into()),
            };
            if !note.is_empty() {
                progress.suspend(|| shell.printer.note(&note));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends the missing part from `offset` on; true when the controller then has all of it.
    async fn go_on(&self, offset: &mut u64, progress: &ProgressBar) -> Result<bool, Failure> {
        let blob = self.client.blob(self.sha256).await?;
        // Complete content is announced too, so that the controller keeps it until it has its
        // artifact.
        *offset = if blob.whole { self.size } else { blob.received.min(self.size) };
        progress.set_position(*offset);
        let body = self.body(*offset, progress).await?;
        Ok(self.client.upload(self.sha256, *offset, self.size, body).await?.whole)
    }

    async fn body(&self, offset: u64, progress: &ProgressBar) -> Result<Body, Failure> {
        let mut file = fs_err::tokio::File::open(self.path).await.map_err(Failure::File)?;
        file.seek(std::io::SeekFrom::Start(offset)).await.map_err(Failure::File)?;
        let rest = ReaderStream::with_capacity(file.take(self.size - offset), CHUNK);
        let progress = progress.clone();
        Ok(Body::wrap_stream(rest.inspect_ok(move |bytes| progress.inc(bytes.len() as u64))))
    }
}

fn changed(path: &Path) -> Failure {
    Failure::refused(format!("`{}` changed while it was sent; nothing was stored", path.display()))
        .with_hint("try again when the file is no longer written")
}

/// The connection, or the other end of it.
fn is_worth_another_try(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Lost { .. } => true,
        error => matches!(
            error.code(),
            Some(Code::Conflict | Code::Stopping | Code::Timeout | Code::BadRequest)
        ),
    }
}

pub(crate) fn table(artifacts: &[ArtifactObject]) -> Table {
    let columns = ["ARTIFACT", "SIZE", "ARCH", "HERE", "USED BY"];
    let mut table = Table::new(&columns).wide(&["SHA256", "DESCRIPTION"]);
    for artifact in artifacts {
        let mut users: Vec<_> = artifact.used_by.iter().map(ToString::to_string).collect();
        if artifact.bss_records > 0 {
            users.push(format!("{} BSS records", artifact.bss_records));
        }
        table.row(vec![
            artifact.name.to_string(),
            HumanBytes(artifact.size).to_string(),
            artifact.arch.as_str().to_owned(),
            if artifact.here { "yes" } else { "no" }.to_owned(),
            users.join(","),
            artifact.sha256.to_string(),
            artifact.description.clone(),
        ]);
    }
    table
}

async fn list(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let artifacts = client.artifacts().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&artifacts))?,
        Output::Name => artifacts.iter().try_for_each(|known| printer.line(known.name.as_str()))?,
        Output::Json | Output::Yaml => printer.value(&artifacts)?,
    }
    Ok(Exit::Done)
}

async fn verify(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let mut lines = client.verify_artifacts().await?;
    let progress = bar("checking", 0);
    let mut found = Vec::new();
    while let Some(line) = lines.next().await? {
        progress.set_length(line.total);
        progress.set_position(line.done);
        found.push(line);
    }
    progress.finish_and_clear();
    let is_missing = |line: &&ArtifactVerification| line.outcome == Outcome::Missing;
    let (missing, checked): (Vec<_>, Vec<_>) = found.iter().partition(is_missing);
    let bad: Vec<_> = checked.iter().filter(|line| line.outcome != Outcome::Whole).collect();
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(&found)?,
        Output::Name => bad.iter().try_for_each(|line| printer.line(line.sha256.to_string()))?,
        Output::Table | Output::Wide => {
            for line in bad.iter().copied().chain(&missing) {
                let what = outcome(line.outcome);
                let names = joined(line.names.iter());
                printer.line(format!("{what}  {}  {names}", line.sha256))?;
            }
            let bytes = HumanBytes(checked.iter().map(|line| line.size).sum());
            printer.line(format!("{} checked ({bytes}), {} bad", checked.len(), bad.len()))?;
        }
    }
    if !missing.is_empty() {
        let count = missing.len();
        printer.note(&format!("{count} contents are missing on this controller; add those files"));
    }
    Ok(if bad.is_empty() { Exit::Done } else { Exit::Degraded })
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Whole => "whole",
        Outcome::Damaged => "damaged",
        Outcome::Unreadable => "unreadable",
        Outcome::Missing => "missing",
    }
}

fn report(shell: &mut Shell, collected: &CollectionResult) -> Result<Exit, Failure> {
    let printer = &mut shell.printer;
    let CollectionResult { dry_run, artifacts, blobs, leftovers, bytes } = collected;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(collected)?,
        Output::Name => artifacts.iter().try_for_each(|name| printer.line(name.as_str()))?,
        Output::Table | Output::Wide => {
            artifacts.iter().try_for_each(|name| printer.line(format!("- Artifact {name}")))?;
            for blob in blobs {
                printer.line(format!("- {} ({})", blob.sha256, HumanBytes(blob.size)))?;
            }
            let word = if *dry_run { "to remove" } else { "removed" };
            printer.line(format!(
                "{} artifacts, {} contents and {leftovers} leftovers {word}, {} in all",
                artifacts.len(),
                blobs.len(),
                HumanBytes(*bytes)
            ))?;
        }
    }
    let nothing = artifacts.is_empty() && blobs.is_empty() && *leftovers == 0;
    Ok(if *dry_run && !nothing { Exit::WouldChange } else { Exit::Done })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_its_artifact_if_it_can() {
        assert_eq!(name_of(Path::new("build/vmlinuz-6.1+a")).unwrap().as_str(), "vmlinuz-6.1+a");
        for path in ["build/my kernel", "/", ".hidden", "a/.."] {
            assert!(name_of(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_is_hashed_as_others_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs::write(&path, "abc").unwrap();
        let (digest, size) = hash(&path).unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.to_string().as_str(), size), (known, 3));
        assert!(hash(dir.path()).is_err(), "a directory");
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(hash(&pipe).is_err(), "a pipe, which nobody writes");
    }
}
