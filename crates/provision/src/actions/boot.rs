//! What starts the installed system: files that firmware or a loader reads, GRUB's code for BIOS, and
//! what firmware of the UEFI kind remembers.

pub mod grub;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hoist_engine::action::{Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::grub::{BOOT_CODE, Note, SECTOR};
use super::{Causes, Held, chain, failed, faults, origin, task, wrong};
use crate::device::efivars::{Changes, Efivars};
use crate::device::{GuardedIo, ReadAt};
use crate::diagnostic::Code;
use crate::document::Id;
use crate::fat::{FatError, Stored, Volume};
use crate::images::source::Fetch;
use crate::images::{Digest, SourceError, Trust};

pub const NAME: &str = "boot";

/// Largest kernel, initramfs or loader.
pub const MAX_FILE: u64 = 512 * 1024 * 1024;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// A file comes into a volume.
    Put { disk: Id, partition: Id, range: Range<u64>, path: String, source: Source },
    /// GRUB's core comes into its partition, and what loads it into the first sector of the disk.
    Grub { disk: Id, partition: Id, range: Range<u64>, boot: Fetching, core: Fetching },
    /// Firmware is told what to try.
    Remember { changes: Changes },
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Fetched(Fetching),
    Text(String),
}

impl Source {
    pub fn digest(&self) -> Digest {
        match self {
            Self::Fetched(file) => file.digest,
            Self::Text(text) => Digest::of(text.as_bytes()),
        }
    }
}

/// Something that is somewhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fetching {
    pub sources: Vec<String>,
    pub digest: Digest,
}

/// Why a file does not come.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Fat(#[from] FatError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("`{path}` is {is}, and {wanted} was asked for; nothing of it is kept")]
    Other { path: String, wanted: Digest, is: Digest },
    #[error("`{path}` has more than {MAX_FILE} bytes")]
    TooLarge { path: String },
}

/// The action.
#[derive(Debug)]
pub struct Boot {
    pub held: Arc<Held>,
    pub trust: Trust,
    pub efivars: Efivars,
    pub causes: Arc<Causes>,
}

impl PutError {
    /// Nothing, if the disk is to blame.
    fn code(&self) -> Option<Code> {
        match self {
            Self::Fat(_) | Self::Source(SourceError::Stopped) => None,
            Self::Source(_) => Some(Code::Unreachable),
            Self::Other { .. } => Some(Code::WrongContent),
            Self::TooLarge { .. } => Some(Code::TooLarge),
        }
    }
}

impl Boot {
    fn failed(&self, file: &Fetching, error: &PutError) -> Failure {
        self.causes.blame(error.code(), &file.sources);
        failed(error)
    }

    /// A file is there as a whole, or not at all.
    fn put(&self, io: &GuardedIo, put: &Put<'_>, ctx: &Ctx<'_>) -> Result<(), Failure> {
        let volume = Volume::open(io, put.range.clone()).map_err(|error| failed(&error))?;
        let outcome = match put.source {
            Source::Text(text) => volume.put_bytes(put.path, text.as_bytes()).map_err(Into::into),
            Source::Fetched(file) => {
                let origin = origin(&file.sources, None, &self.trust, ctx)?;
                let begun = Fetch::begin(&origin, 0).map_err(PutError::from);
                begun.and_then(|fetch| fetched(&volume, put.path, fetch, file.digest))
            }
        };
        if outcome.is_err() {
            // It may not have come to be at all.
            let _ = volume.remove(put.path);
        }
        volume.finish().map_err(|error| failed(&error))?;
        io.sync().map_err(|error| failed(&error))?;
        outcome.map_err(|error| match put.source {
            Source::Text(_) => failed(&error),
            Source::Fetched(file) => self.failed(file, &error),
        })
    }

    fn fetch(&self, file: &Fetching, most: u64, ctx: &Ctx<'_>) -> Result<Vec<u8>, Failure> {
        let origin = origin(&file.sources, None, &self.trust, ctx)?;
        let bytes = origin.read_all(most).map_err(|error| self.failed(file, &error.into()))?;
        let is = Digest::of(&bytes);
        if is == file.digest {
            return Ok(bytes);
        }
        let (path, wanted) = (file.sources.join(" or "), file.digest);
        Err(self.failed(file, &PutError::Other { path, wanted, is }))
    }

    /// The first sector comes last: before that, nothing starts what is only half there.
    fn grub(&self, io: &GuardedIo, grub: &Grub<'_>, ctx: &Ctx<'_>) -> Result<(), Failure> {
        let write = |at: u64, bytes: &[u8]| -> Result<(), Failure> {
            io.write_at(at, bytes).map_err(|error| failed(&error))?;
            io.sync().map_err(|error| failed(&error))
        };
        let none = |error: grub::NotGrub| failed(&error);
        let Range { start, end } = grub.range.clone();
        let at = start / SECTOR as u64;
        let room = (end - start).saturating_sub(SECTOR as u64);
        let code =
            grub::boot_code(&self.fetch(grub.boot, SECTOR as u64, ctx)?, at).map_err(none)?;
        let core = grub::core(self.fetch(grub.core, room, ctx)?, at).map_err(none)?;
        write(start, &core)?;
        let note = Note {
            boot: grub.boot.digest,
            core: grub.core.digest,
            written_code: Digest::of(&code),
            written_core: Stored::of(&core),
        };
        write(end - SECTOR as u64, &note.encode())?;
        write(0, &code)
    }
}

fn fetched(
    volume: &Volume<&GuardedIo>,
    path: &str,
    mut fetch: Fetch<'_>,
    wanted: Digest,
) -> Result<(), PutError> {
    let mut hash = Sha256::new();
    volume.put(path, |piece| {
        let length = fetch.read(piece)?;
        hash.update(&piece[..length]);
        if fetch.position() > MAX_FILE {
            return Err(PutError::TooLarge { path: path.to_owned() });
        }
        Ok(length)
    })?;
    let is = Digest::end(hash);
    let path = path.to_owned();
    if is == wanted { Ok(()) } else { Err(PutError::Other { path, wanted, is }) }
}

struct Put<'a> {
    range: &'a Range<u64>,
    path: &'a str,
    source: &'a Source,
}

struct Grub<'a> {
    range: &'a Range<u64>,
    boot: &'a Fetching,
    core: &'a Fetching,
}

/// Whether a disk has this GRUB, from its first sector to the end of its core.
pub fn has_grub(
    disk: &(impl ReadAt + ?Sized),
    range: &Range<u64>,
    boot: &Fetching,
    core: &Fetching,
) -> std::io::Result<bool> {
    let mut sector = [0; SECTOR];
    disk.read_at(range.end - SECTOR as u64, &mut sector)?;
    let Some(note) = Note::decode(&sector) else { return Ok(false) };
    let room = range.end - range.start;
    if note.boot != boot.digest || note.core != core.digest || note.written_core.size > room {
        return Ok(false);
    }
    disk.read_at(0, &mut sector)?;
    let mut written =
        vec![0; usize::try_from(note.written_core.size).expect("it fits a partition")];
    disk.read_at(range.start, &mut written)?;
    Ok(Digest::of(&sector[..BOOT_CODE]) == note.written_code
        && Stored::of(&written) == note.written_core)
}

impl Action for Boot {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "what starts the installed system".to_owned(),
            reads: vec![NAME.to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            network: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        match task::<Task>(&step.call.input)? {
            Task::Put { disk, range, path, source, .. } => {
                let put = Put { range: &range, path: &path, source: &source };
                self.put(&*self.held.io(&disk)?, &put, ctx)?;
            }
            Task::Grub { disk, range, boot, core, .. } => {
                let grub = Grub { range: &range, boot: &boot, core: &core };
                self.grub(&*self.held.io(&disk)?, &grub, ctx)?;
            }
            Task::Remember { changes } => {
                self.efivars.change(&changes).map_err(|error| failed(&error))?;
            }
        }
        Ok(Done { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let reason = match task::<Task>(&step.call.input)? {
            Task::Put { disk, range, path, source, .. } => {
                let io = self.held.io(&disk)?;
                let volume = Volume::read_only(&*io, range);
                match volume.and_then(|volume| volume.stored(&path, MAX_FILE)) {
                    Ok(Some(stored)) if stored.digest == source.digest() => None,
                    Ok(Some(_)) => Some(format!("`{path}` is another file")),
                    Ok(None) => Some(format!("`{path}` is not there")),
                    Err(error) => Some(chain(&error)),
                }
            }
            Task::Grub { disk, partition, range, boot, core } => {
                let io = self.held.io(&disk)?;
                let has = has_grub(&*io, &range, &boot, &core).map_err(|error| failed(&error))?;
                (!has).then(|| format!("GRUB is not in `{partition}` and the first sector"))
            }
            Task::Remember { changes } => {
                let now = self.efivars.read().map_err(|error| failed(&error))?;
                let now =
                    now.ok_or_else(|| wrong("the firmware's variables are gone".to_owned()))?;
                let has_order = now.order == changes.order;
                let has_entry = changes.set.as_ref().is_none_or(|(number, entry)| {
                    now.entries.get(number) == Some(&entry.option().encode())
                });
                let is_it = has_order && has_entry;
                (!is_it).then(|| "the firmware did not keep what it was told".to_owned())
            }
        };
        Ok(reason.map_or(Verdict::Holds, |reason| Verdict::DoesNot { reason }))
    }
}
