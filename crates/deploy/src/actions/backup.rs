//! What was there before a step changed it, kept beside it until nobody needs it.
//!
//! A directory for each attempt holds a list with a line for every path, written before the path is
//! touched, and the files that were replaced; and what an attempt that came to its end left at each
//! of them. Contents stay on the machine: a receipt has the directory, and a sum of what was left.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Ctx, Failure, Undone};
use hoist_engine::plan::Made;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::blocks::{Blocks, Until};
use super::{exit, io_error, place};

const LIST: &str = "list";
/// What an attempt that came to its end left at each path.
const LEFT: &str = "left";
/// That an attempt was taken back.
const UNDONE: &str = "undone";

pub(super) struct Backup<'a> {
    dir: PathBuf,
    until: Until<'a>,
    /// Where in the list the line of each path begins.
    lines: Vec<u64>,
    list: Option<fs_err::File>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    path: PathBuf,
    was: Was,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Was {
    Nothing,
    Directory(Access),
    Link(PathBuf),
    File { copy: PathBuf, access: Access },
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Access {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl<'a> Backup<'a> {
    /// With an empty list, which says of an attempt that ends badly that it has changed nothing yet.
    pub(super) fn new(ctx: &Ctx<'a>) -> Self {
        let (dir, until) = (place::own("backup", ctx), Until::of(ctx));
        let mut backup = Self { dir, until, lines: Vec::new(), list: None };
        // Only who changes something has to have one.
        let _ = backup.make();
        backup
    }

    /// Keeps what is at a path, before it becomes something else.
    pub(super) fn keep(&mut self, path: &Path) -> io::Result<()> {
        if let Some(copy) = self.note(path)? {
            copy.sync_data()?;
        }
        // Whatever becomes of the machine, it was kept before it was changed.
        self.list.as_ref().expect("just made").sync_data()?;
        let above = self.dir.parent().filter(|_| self.lines.len() == 1);
        [Some(self.dir.as_path()), above]
            .into_iter()
            .flatten()
            .try_for_each(|dir| fs_err::File::open(dir)?.sync_all())
    }

    /// The same for many paths at once, none of which is changed meanwhile. Gives the number of the
    /// first one.
    pub(super) fn keep_all(&mut self, paths: &[PathBuf]) -> io::Result<usize> {
        self.make()?;
        let first = self.lines.len();
        let kept = paths.iter().try_for_each(|path| self.note(path).map(drop)).and_then(|()| {
            // One for all of them: three for each would take most of the time.
            Ok(rustix::fs::syncfs(self.list.as_ref().expect("just made"))?)
        });
        if kept.is_err() {
            self.forget_from(first);
        }
        kept.map(|()| first)
    }

    /// Those from this number on were not changed, and what becomes of them now is not ours.
    pub(super) fn forget_from(&mut self, number: usize) {
        if let Some((list, end)) = self.list.as_mut().zip(self.lines.get(number)) {
            // They would be put back as they were.
            let _ = list.set_len(*end).and_then(|()| list.seek(io::SeekFrom::End(0)));
            self.lines.truncate(number);
        }
    }

    /// Writes down what is at a path. That is not durable yet, and neither is the copy.
    fn note(&mut self, path: &Path) -> io::Result<Option<fs_err::File>> {
        self.make()?;
        let mut copied = None;
        let was = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Was::Nothing,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_dir() => Was::Directory(Access::of(&meta)),
            Ok(meta) if meta.is_symlink() => Was::Link(fs_err::read_link(path)?),
            Ok(meta) if meta.is_file() => {
                let copy = self.dir.join(self.lines.len().to_string());
                let mut to = private(&copy)?;
                to.set_len(0)?;
                io::copy(&mut Blocks::open(path, self.until)?, &mut to)?;
                copied = Some(to);
                Was::File { copy, access: Access::of(&meta) }
            }
            Ok(_) => {
                let odd = format!("`{}` is no file, directory or link", path.display());
                return Err(io::Error::other(odd));
            }
        };
        let mut line =
            serde_json::to_vec(&Kept { path: path.to_owned(), was }).map_err(io::Error::other)?;
        line.push(b'\n');
        let list = self.list.as_mut().expect("just made");
        let begins = list.stream_position()?;
        list.write_all(&line)?;
        self.lines.push(begins);
        Ok(copied)
    }

    /// Makes the directories that a path needs, and keeps that they were not there.
    pub(super) fn make_parents(&mut self, path: &Path) -> io::Result<()> {
        let parents = path.ancestors().skip(1).take_while(|dir| dir.symlink_metadata().is_err());
        let missing: Vec<&Path> = parents.collect();
        for dir in missing.into_iter().rev() {
            self.keep(dir)?;
            fs_err::create_dir(dir)?;
        }
        Ok(())
    }

    /// The number of what was kept last.
    pub(super) fn last(&self) -> usize {
        self.lines.len().saturating_sub(1)
    }

    /// Where what was kept under a number becomes what it shall be, before it takes its place.
    pub(super) fn beside(&self, path: &Path, number: usize) -> io::Result<PathBuf> {
        beside(path, &self.dir, number)
    }

    fn make(&mut self) -> io::Result<()> {
        if self.list.is_some() {
            return Ok(());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        place::remove_old(self.dir.parent().unwrap_or(&self.dir));
        let path = self.dir.join(LIST);
        // The same attempt is begun once; if it was not, all that was there before is still needed.
        let there = match fs_err::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            there => there?,
        };
        let mut list = private(&path)?;
        let whole = whole_lines(&there);
        list.set_len(whole.len() as u64)?;
        list.seek(io::SeekFrom::End(0))?;
        let mut begins = 0;
        for line in whole.split_inclusive('\n') {
            self.lines.push(begins);
            begins += line.len() as u64;
        }
        self.list = Some(list);
        Ok(())
    }

    /// What takes it back, if anything was changed. With it goes a sum of what is left, by which it
    /// is seen whether somebody changed it since.
    pub(super) fn receipt(self) -> Result<Value, Failure> {
        if self.lines.is_empty() {
            // There is nothing that it could say which the end of the attempt does not.
            let _ = fs_err::remove_dir_all(&self.dir);
            return Ok(Value::Null);
        }
        let left = self.write_left().map_err(|error| io_error(&error))?;
        Ok(json!({ "backup": self.dir, "left": left }))
    }

    fn write_left(&self) -> io::Result<String> {
        let list = fs_err::read_to_string(self.dir.join(LIST))?;
        let mut paths = BTreeSet::new();
        let mut text = String::new();
        for line in whole_lines(&list).lines() {
            let Kept { path, .. } = serde_json::from_str(line)?;
            if paths.insert(path.clone()) {
                let left = Left::at(&path, self.until)?;
                text.push_str(&serde_json::to_string(&LeftAt { path, left })?);
                text.push('\n');
            }
        }
        let mut file = private(&self.dir.join(LEFT))?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        sum(text.as_bytes())
    }
}

#[derive(Serialize, Deserialize)]
struct LeftAt {
    path: PathBuf,
    left: Left,
}

/// What is at a path.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Left {
    Nothing,
    /// What is in it and who may use it is not looked at: only what is empty is removed.
    Directory,
    Link(PathBuf),
    File {
        sum: String,
        access: Access,
    },
    Other,
}

impl Left {
    fn at(path: &Path, until: Until<'_>) -> io::Result<Self> {
        Ok(match path.symlink_metadata() {
            Err(error) if is_missing(&error) => Self::Nothing,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_dir() => Self::Directory,
            Ok(meta) if meta.is_symlink() => Self::Link(fs_err::read_link(path)?),
            Ok(meta) if meta.is_file() => {
                let sum = sum(Blocks::open(path, until)?)?;
                Self::File { sum, access: Access::of(&meta) }
            }
            Ok(_) => Self::Other,
        })
    }

    /// Whether it is there again already: taking back may be begun more than once.
    fn is(&self, was: &Was, until: Until<'_>) -> io::Result<bool> {
        Ok(match (self, was) {
            (Self::Nothing, Was::Nothing) | (Self::Directory, Was::Directory(_)) => true,
            (Self::Link(target), Was::Link(other)) => target == other,
            (Self::File { sum: now, .. }, Was::File { copy, .. }) => {
                *now == sum(Blocks::open(copy, until)?)?
            }
            _ => false,
        })
    }
}

fn sum(mut from: impl io::Read) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut block = vec![0; 64 * 1024];
    loop {
        match from.read(&mut block)? {
            0 => break,
            count => sum.update(&block[..count]),
        }
    }
    let mut text = String::new();
    for byte in sum.finalize() {
        write!(text, "{byte:02x}").expect("writing to memory");
    }
    Ok(text)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl Access {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self { mode: meta.permissions().mode() & 0o7777, uid: meta.uid(), gid: meta.gid() }
    }

    fn give(self, file: &std::fs::File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, Some(self.uid), Some(self.gid))?;
        file.set_permissions(PermissionsExt::from_mode(self.mode))
    }
}

/// A file for nobody else, to be written.
fn private(path: &Path) -> io::Result<fs_err::File> {
    fs_err::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A line that was cut short was written before anything was done.
fn whole_lines(list: &str) -> &str {
    list.rfind('\n').map_or("", |end| &list[..=end])
}

fn beside(path: &Path, backup: &Path, at: usize) -> io::Result<PathBuf> {
    let name = backup.file_name().unwrap_or_default().to_string_lossy();
    let parent = path.parent().ok_or_else(|| io::Error::other("a path without a directory"))?;
    Ok(parent.join(format!(".{name}.{at}")))
}

/// Makes everything as it was before an attempt, the last change first. One that did not come to its
/// end has given no receipt, but what it changed is kept under its name.
pub(super) fn restore(made: &Made, ctx: &Ctx<'_>) -> Result<Undone, Failure> {
    let dir = if made.receipt.is_null() {
        place::of("backup", &made.attempt, ctx)
    } else if let Some(dir) = made.receipt["backup"].as_str() {
        PathBuf::from(dir)
    } else {
        let reason = "its receipt names no backup".to_owned();
        return Ok(Undone::NotPossible { reason });
    };
    if dir.parent() != place::own("backup", ctx).parent() || dir.file_name().is_none() {
        return Err(exit(format!("`{}` is no backup of this machine", dir.display())));
    }
    let list = match fs_err::read_to_string(dir.join(LIST)) {
        // What an attempt changes is kept before: one that has kept nothing has changed nothing.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && made.receipt.is_null()
                && place::is_kept_still(&made.attempt) =>
        {
            return Ok(Undone::Undone);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = format!("what it changed is not kept in `{}`", dir.display());
            return Ok(Undone::NotPossible { reason });
        }
        list => list.map_err(|error| io_error(&error))?,
    };
    let until = Until::of(ctx);
    let damaged = |error| exit(format!("the backup {} is damaged: {error}", dir.display()));
    let kept: Vec<Kept> = whole_lines(&list)
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(damaged)?;
    let is_looked_at = !made.over_changes && !dir.join(UNDONE).exists();
    if let Some(sum) = made.receipt["left"].as_str().filter(|_| is_looked_at) {
        let changed = changed_since(&dir, sum, &kept, until).map_err(|error| io_error(&error))?;
        if let Some(what) = changed {
            let reason = format!(
                "{what}; look at it, and say `--over-changes` to have what was there before the \
                 step put in its place"
            );
            return Ok(Undone::NotPossible { reason });
        }
    }
    for (at, kept) in kept.iter().enumerate().rev() {
        until.look()?;
        let new = beside(&kept.path, &dir, at);
        new.and_then(|new| put_back(kept, &new, until)).map_err(|error| io_error(&error))?;
    }
    private(&dir.join(UNDONE)).map_err(|error| io_error(&error))?;
    Ok(Undone::Undone)
}

/// What somebody has changed since an attempt left it.
fn changed_since(
    dir: &Path,
    expected: &str,
    kept: &[Kept],
    until: Until<'_>,
) -> io::Result<Option<String>> {
    let path = dir.join(LEFT);
    let text = match fs_err::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => text?,
    };
    if sum(text.as_slice())? != expected {
        let path = path.display();
        return Ok(Some(format!("nobody knows what it left: `{path}` is not as it was written")));
    }
    let mut before: HashMap<&Path, Vec<&Was>> = HashMap::new();
    for Kept { path, was } in kept {
        before.entry(path).or_default().push(was);
    }
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let LeftAt { path, left } = serde_json::from_slice(line)?;
        let now = Left::at(&path, until)?;
        if now == left {
            continue;
        }
        let mut is_back = false;
        for was in before.get(path.as_path()).into_iter().flatten() {
            is_back |= now.is(was, until)?;
        }
        if !is_back {
            return Ok(Some(format!("`{}` was changed since the step left it", path.display())));
        }
    }
    Ok(None)
}

/// `new` may be there from an attempt, here or on the way back, that was cut short.
fn put_back(Kept { path, was }: &Kept, new: &Path, until: Until<'_>) -> io::Result<()> {
    remove(new)?;
    match was {
        Was::Directory(access) => {
            match fs_err::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            access.give(fs_err::File::open(path)?.file())
        }
        Was::Nothing => match remove(path) {
            // Somebody else put something there, which is not ours to remove.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed,
        },
        Was::Link(target) => {
            remove(path)?;
            fs_err::os::unix::fs::symlink(target, path)
        }
        Was::File { copy, access } => {
            let parent =
                path.parent().ok_or_else(|| io::Error::other("a path without a directory"))?;
            fs_err::create_dir_all(parent)?;
            let mut to = private(new)?;
            io::copy(&mut Blocks::open(copy, until)?, &mut to)?;
            access.give(to.file())?;
            to.sync_data()?;
            if path.is_dir() && !path.is_symlink() {
                fs_err::remove_dir(path)?;
            }
            fs_err::rename(new, path)
        }
    }
}

/// Whatever it is; nothing is fine as well.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs_err::remove_dir(path),
        _ => fs_err::remove_file(path),
    };
    match removed {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(())
        }
        removed => removed,
    }
}
