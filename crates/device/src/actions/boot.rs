//! Everything that starts the installed system: files for the firmware or a boot loader, GRUB for
//! BIOS, and the boot entries of UEFI firmware.

pub mod grub;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;
use hoist_provision::diagnostic::Code;
use hoist_provision::digest::Digest;
use hoist_provision::read_at::ReadAt;
use hoist_provision::steps::boot::{MAX_FILE, NAME, RemoteFile, Source, Task};
use hoist_provision::volume::StoredFile;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::grub::{BOOT_CODE, Note, SECTOR};
use super::{Causes, HeldDisks, chain, diagnostics, failed, origin, task, wrong};
use crate::GuardedIo;
use crate::efivars::Efivars;
use crate::fat::{self, FatError, Volume};
use crate::images::source::Fetch;
use crate::images::{Notices, SourceError, Trust};

/// The reason why a file could not be written.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Fat(#[from] FatError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("`{path}` has the digest {is} instead of {wanted}; the file was discarded")]
    Other { path: String, wanted: Digest, is: Digest },
    #[error("`{path}` has more than {MAX_FILE} bytes")]
    TooLarge { path: String },
}

/// The action.
#[derive(Debug)]
pub struct Boot {
    pub held: Arc<HeldDisks>,
    pub trust: Trust,
    pub notices: Notices,
    pub efivars: Efivars,
    pub causes: Arc<Causes>,
}

impl PutError {
    /// The code of the failure. `None` means that the disk failed.
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
    fn failed(&self, file: &RemoteFile, error: &PutError) -> Failure {
        self.causes.blame(error.code(), &file.sources);
        failed(error)
    }

    /// Writes a file. After a failure the file does not exist, so it is never partial.
    fn put(&self, io: &GuardedIo, put: &Put<'_>, ctx: &Ctx<'_>) -> Result<(), Failure> {
        fat::repair(io, put.range).map_err(|error| failed(&error))?;
        let volume = Volume::open(io, put.range.clone()).map_err(|error| failed(&error))?;
        let outcome = match put.source {
            Source::Text(text) => volume.put_bytes(put.path, text.as_bytes()).map_err(Into::into),
            Source::Fetched(file) => {
                let origin = origin(&file.sources, None, (&self.trust, &self.notices), ctx)?;
                let begun = Fetch::begin(&origin, 0).map_err(PutError::from);
                begun.and_then(|fetch| fetched(&volume, put.path, fetch, file.digest))
            }
        };
        if outcome.is_err() {
            // The file may not exist yet.
            let _ = volume.remove(put.path);
        }
        volume.finish().map_err(|error| failed(&error))?;
        io.sync().map_err(|error| failed(&error))?;
        outcome.map_err(|error| match put.source {
            Source::Text(_) => failed(&error),
            Source::Fetched(file) => self.failed(file, &error),
        })
    }

    fn fetch(&self, file: &RemoteFile, most: u64, ctx: &Ctx<'_>) -> Result<Vec<u8>, Failure> {
        let origin = origin(&file.sources, None, (&self.trust, &self.notices), ctx)?;
        let bytes = origin.read_all(most).map_err(|error| self.failed(file, &error.into()))?;
        let is = Digest::of(&bytes);
        if is == file.digest {
            return Ok(bytes);
        }
        let path = file.sources.join(" or ");
        let wanted = file.digest;
        Err(self.failed(file, &PutError::Other { path, wanted, is }))
    }

    /// Writes GRUB for BIOS. The first sector must be written last, so that BIOS never starts a
    /// partial core.
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
            written_core: StoredFile::of(&core),
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
    boot: &'a RemoteFile,
    core: &'a RemoteFile,
}

/// Whether a disk holds this GRUB, from its first sector to the end of its core.
pub fn has_grub(
    disk: &(impl ReadAt + ?Sized),
    range: &Range<u64>,
    boot: &RemoteFile,
    core: &RemoteFile,
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
        && StoredFile::of(&written) == note.written_core)
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
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
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
        Ok(ApplyOutcome { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let reason = match task::<Task>(&step.call.input)? {
            Task::Put { disk, range, path, source, .. } => {
                let io = self.held.io(&disk)?;
                let volume = Volume::read_only(&*io, range);
                match volume.and_then(|volume| volume.stored(&path, MAX_FILE)) {
                    Ok(Some(stored)) if stored.digest == source.digest() => None,
                    Ok(Some(_)) => Some(format!("`{path}` has other contents")),
                    Ok(None) => Some(format!("`{path}` is missing")),
                    Err(error) => Some(chain(&error)),
                }
            }
            Task::Grub { disk, partition, range, boot, core } => {
                let io = self.held.io(&disk)?;
                let has = has_grub(&*io, &range, &boot, &core).map_err(|error| failed(&error))?;
                (!has).then(|| format!("GRUB is missing in `{partition}` or the first sector"))
            }
            Task::Remember { changes } => {
                let now = self.efivars.read().map_err(|error| failed(&error))?;
                let now = now.ok_or_else(|| {
                    wrong("the firmware variables are no longer available".to_owned())
                })?;
                let has_order = now.order == changes.order;
                let has_entry = changes.entries().all(|(number, entry)| {
                    now.entries.get(number) == Some(&entry.option().encode())
                });
                let is_removed = |number: &u16| !now.entries.contains_key(number);
                let is_it = has_order && has_entry && changes.remove.iter().all(is_removed);
                (!is_it).then(|| "the firmware did not store the boot entries".to_owned())
            }
        };
        Ok(reason.map_or(Verdict::Holds, Verdict::fails))
    }
}
