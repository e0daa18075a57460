//! `sync`: a directory with the same files as another one on the same machine.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Prediction, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::backup::{self, Backup};
use super::blocks::Until;
use super::input::parse;
use super::put::{self, Content, DesiredFile};
use super::{described, exit, invalid, io_error, place};

/// Files and directories of one step.
pub(super) const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 64;

/// So many changes are kept and made durable together,
const BATCH: usize = 100;
/// of files with at most this many bytes in total, unless it is a single file. Until the rename,
/// the new files take disk space in addition to the files that they replace.
const BATCH_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct Sync;

struct Input {
    from: String,
    to: String,
    delete: bool,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let from = input.wanted("from").map(str::to_owned);
        let to = input.wanted("to").map(str::to_owned);
        let delete = input.flag("delete");
        Some(Input { from: from?, to: to?, delete })
    })
}

#[derive(PartialEq, Eq)]
enum Entry {
    Directory {
        mode: u32,
    },
    File,
    Link(PathBuf),
    /// A socket, a device.
    Other,
}

impl Entry {
    fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }
}

fn mode(path: &Path) -> io::Result<u32> {
    Ok(fs_err::metadata(path)?.permissions().mode() & 0o7777)
}

/// Everything below a directory, by its path from there. Links are not followed.
fn entries(dir: &Path) -> Result<BTreeMap<PathBuf, Entry>, Failure> {
    let mut found = BTreeMap::new();
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(exit(format!(
                "`{}` is deeper than {MAX_DEPTH} directories",
                dir.display()
            )));
        }
        for entry in fs_err::read_dir(dir.join(&below)).map_err(|error| io_error(&error))? {
            let entry = entry.map_err(|error| io_error(&error))?;
            let path = below.join(entry.file_name());
            let kind = entry.file_type().map_err(|error| io_error(&error))?;
            let entry = if kind.is_dir() {
                open.push((path.clone(), depth + 1));
                Entry::Directory { mode: mode(&entry.path()).map_err(|error| io_error(&error))? }
            } else if kind.is_file() {
                Entry::File
            } else if kind.is_symlink() {
                Entry::Link(fs_err::read_link(entry.path()).map_err(|error| io_error(&error))?)
            } else {
                Entry::Other
            };
            found.insert(path, entry);
            if found.len() > MAX_ENTRIES {
                return Err(exit(format!(
                    "`{}` has more than {MAX_ENTRIES} entries",
                    dir.display()
                )));
            }
        }
    }
    Ok(found)
}

/// A change of one path, in the order in which changes are possible.
enum Change<'a> {
    Remove(&'a Path),
    Make(&'a Path, &'a Entry),
    /// Sets the mode of a directory after it is filled: the mode may forbid writing.
    Mode(&'a Path, u32),
}

impl<'a> Change<'a> {
    fn path(&self) -> &'a Path {
        match self {
            Self::Remove(path) | Self::Make(path, _) | Self::Mode(path, _) => path,
        }
    }

    /// The phase of a change. All changes of one phase finish before the next phase starts, so that
    /// backups hold the original state and files have a writable directory.
    fn turn(&self) -> u8 {
        match self {
            Self::Remove(_) => 0,
            Self::Make(_, Entry::File) => 2,
            Self::Make(..) => 1,
            Self::Mode(..) => 3,
        }
    }
}

struct Work<'a> {
    until: Until<'a>,
    from: PathBuf,
    to: PathBuf,
    source: BTreeMap<PathBuf, Entry>,
    target: BTreeMap<PathBuf, Entry>,
}

impl<'a> Work<'a> {
    fn new(input: &Input, ctx: &Ctx<'a>) -> Result<Self, Failure> {
        let from = place::to_read(&input.from, ctx);
        let to = place::to_write(&input.to, ctx)?;
        if !from.is_dir() {
            return Err(exit(format!("directory `{}` not found", from.display())));
        }
        let target = match to.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(io_error(&error)),
            Ok(meta) if meta.is_dir() => entries(&to)?,
            Ok(_) => return Err(exit(format!("`{}` is no directory", to.display()))),
        };
        let source = entries(&from)?;
        let odd = source.iter().find(|(_, entry)| **entry == Entry::Other);
        if let Some((path, _)) = odd {
            return Err(exit(format!(
                "`{}` is no file, directory or link",
                from.join(path).display()
            )));
        }
        Ok(Self { until: Until::of(ctx), from, to, source, target })
    }

    fn changes(&self, delete: bool) -> Result<Vec<Change<'_>>, Failure> {
        let mut changes = Vec::new();
        // The entries of a directory come before the directory.
        for (path, entry) in self.target.iter().rev() {
            let clashes = match self.source.get(path) {
                None => delete || self.is_below_a_clash(path),
                Some(wanted) => wanted.is_directory() != entry.is_directory(),
            };
            let goes = clashes || self.source.contains_key(path);
            if goes && *entry == Entry::Other {
                return Err(put::irreplaceable(&self.to.join(path)));
            }
            if clashes {
                changes.push(Change::Remove(path));
            }
        }
        for (path, entry) in &self.source {
            let is_there = match (entry, self.target.get(path)) {
                (Entry::File, Some(Entry::File)) => {
                    self.wanted(&self.from.join(path)).differs(&self.to.join(path))?.is_none()
                }
                (Entry::Directory { .. }, Some(there)) => there.is_directory(),
                (entry, there) => Some(entry) == there,
            };
            if !is_there {
                changes.push(Change::Make(path, entry));
            }
        }
        for (path, entry) in self.source.iter().rev() {
            if let Entry::Directory { mode } = entry
                && self.target.get(path) != Some(entry)
            {
                changes.push(Change::Mode(path, *mode));
            }
        }
        Ok(changes)
    }

    /// Whether something above it has to become something that is no directory.
    fn is_below_a_clash(&self, path: &Path) -> bool {
        let above = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        above.filter_map(|dir| self.source.get(dir)).any(|entry| !entry.is_directory())
    }

    /// The changes in lots that are kept, done and made durable together.
    fn batches<'c>(&self, mut changes: Vec<Change<'c>>) -> Vec<Vec<Change<'c>>> {
        changes.sort_by_key(Change::turn);
        let mut batches: Vec<Vec<Change<'_>>> = Vec::new();
        let mut bytes = 0;
        for change in changes {
            let size = match change {
                Change::Make(path, Entry::File) => {
                    fs_err::metadata(self.from.join(path)).map_or(0, |meta| meta.len())
                }
                _ => 0,
            };
            bytes += size;
            match batches.last_mut() {
                Some(batch)
                    if batch[0].turn() == change.turn()
                        && batch.len() < BATCH
                        && bytes <= BATCH_BYTES =>
                {
                    batch.push(change);
                }
                _ => {
                    batches.push(vec![change]);
                    bytes = size;
                }
            }
        }
        batches
    }

    fn carry_out(&self, batch: &[Change<'_>], backup: &mut Backup<'_>) -> Result<(), Failure> {
        let kept = batch.iter().filter(|change| self.is_to_keep(change));
        let kept: Vec<PathBuf> = kept.map(|change| self.to.join(change.path())).collect();
        let first = backup.keep_all(&kept).map_err(|error| io_error(&error))?;
        let mut begun = 0;
        let done = match batch {
            [Change::Make(_, Entry::File), ..] => self.put_all(&kept, first, backup, &mut begun),
            _ => batch.iter().try_for_each(|change| {
                self.until.look()?;
                begun += usize::from(self.is_to_keep(change));
                self.change(change).map_err(|error| io_error(&error))
            }),
        };
        if done.is_err() {
            backup.forget_from(first + begun);
        }
        done
    }

    /// Of a directory that was just made it is kept that it was not there.
    fn is_to_keep(&self, change: &Change<'_>) -> bool {
        match change {
            Change::Remove(_) | Change::Make(..) => true,
            Change::Mode(path, _) => self.target.get(*path).is_some_and(Entry::is_directory),
        }
    }

    /// Files take their places when all of them are durable. `begun` is how many did.
    fn put_all(
        &self,
        paths: &[PathBuf],
        first: usize,
        backup: &Backup<'_>,
        begun: &mut usize,
    ) -> Result<(), Failure> {
        let mut all = Vec::new();
        for (number, to) in (first..).zip(paths) {
            self.until.look()?;
            let below = to.strip_prefix(&self.to).expect("it is below");
            let from = self.from.join(below);
            let new = backup.beside(to, number).and_then(|new| self.wanted(&from).made(to, &new));
            all.push(new.map_err(|error| io_error(&error))?);
        }
        sync(&all).map_err(|error| io_error(&error))?;
        for (new, to) in all.into_iter().zip(paths) {
            self.until.look()?;
            *begun += 1;
            new.persist(to).map_err(|error| io_error(&error.error))?;
        }
        Ok(())
    }

    fn change(&self, change: &Change<'_>) -> io::Result<()> {
        let to = self.to.join(change.path());
        match change {
            Change::Remove(_) => backup::remove(&to),
            Change::Make(_, Entry::Directory { .. }) => {
                std::fs::DirBuilder::new().mode(0o700).create(&to)
            }
            Change::Make(_, Entry::Link(target)) => {
                backup::remove(&to)?;
                fs_err::os::unix::fs::symlink(target, &to)
            }
            Change::Make(_, Entry::File | Entry::Other) => Ok(()),
            Change::Mode(_, mode) => fs_err::set_permissions(to, PermissionsExt::from_mode(*mode)),
        }
    }

    /// A file like the one there.
    fn wanted<'b>(&self, from: &'b Path) -> DesiredFile<'b>
    where
        'a: 'b,
    {
        let content = Content::Of(from, self.until);
        DesiredFile { content, mode: mode(from).ok(), owner: None, group: None }
    }
}

/// Makes files durable, and whatever else is on the same file systems.
fn sync(files: &[NamedTempFile]) -> io::Result<()> {
    let mut seen = Vec::new();
    for file in files {
        let device = file.as_file().metadata()?.dev();
        if !seen.contains(&device) {
            rustix::fs::syncfs(file.as_file())?;
            seen.push(device);
        }
    }
    Ok(())
}

impl Action for Sync {
    fn describe(&self) -> Description {
        let can = [Ability::Verify, Ability::Check, Ability::Undo];
        described("sync", "makes a directory like another; as a check, it holds if it is", &can)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let mut backup = Backup::new(ctx);
        let input = read(&step.call.input).map_err(invalid)?;
        let work = Work::new(&input, ctx)?;
        let changes = work.changes(input.delete)?;
        if !work.to.is_dir() {
            let root = backup
                .make_parents(&work.to.join("content"))
                .and_then(|()| mode(&work.from))
                .and_then(|mode| {
                    fs_err::set_permissions(&work.to, PermissionsExt::from_mode(mode))
                });
            root.map_err(|error| io_error(&error))?;
        }
        for batch in work.batches(changes) {
            work.carry_out(&batch, &mut backup)?;
        }
        let receipt = backup.receipt()?;
        Ok(ApplyOutcome { changed: !receipt.is_null(), receipt })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        let work = Work::new(&input, ctx)?;
        let changes = work.changes(input.delete)?;
        Ok(match changes.first() {
            None if !work.to.is_dir() => {
                Verdict::fails(format!("`{}` does not exist", work.to.display()))
            }
            None => Verdict::Holds,
            Some(Change::Remove(path)) => {
                Verdict::fails(format!("`{}` is there", work.to.join(path).display()))
            }
            Some(Change::Make(path, _)) => {
                Verdict::fails(format!("`{}` differs", work.to.join(path).display()))
            }
            Some(Change::Mode(path, mode)) => Verdict::fails(format!(
                "the mode of `{}` is not {mode:04o}",
                work.to.join(path).display()
            )),
        })
    }

    fn undo(
        &self,
        _: &Step,
        made: &AppliedAttempt,
        ctx: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        backup::restore(made, ctx)
    }

    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        let work = Work::new(&input, ctx)?;
        let changes = work.changes(input.delete)?;
        if changes.is_empty() && work.to.is_dir() {
            return Ok(Prediction::NoChange);
        }
        let is_new = |change: &&Change<'_>| match change {
            Change::Mode(path, _) => !work.target.get(*path).is_some_and(Entry::is_directory),
            _ => false,
        };
        let lines = changes.iter().filter(|change| !is_new(change)).map(|change| match change {
            Change::Remove(path) => format!("- {}/{}\n", input.to, path.display()),
            Change::Make(path, _) if work.target.contains_key(*path) => {
                format!("~ {}/{}\n", input.to, path.display())
            }
            Change::Make(path, _) => format!("+ {}/{}\n", input.to, path.display()),
            Change::Mode(path, mode) => {
                format!("~ {}/{} (mode {mode:04o})\n", input.to, path.display())
            }
        });
        Ok(Prediction::Diff(lines.collect()))
    }
}
