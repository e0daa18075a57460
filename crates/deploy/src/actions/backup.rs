//! What was there before a step changed it, kept beside it until nobody needs it.
//!
//! A directory for each attempt holds a list with a line for every path, written before the path is
//! touched, and the files that were replaced. Contents stay on the machine: a receipt names the
//! directory only.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Ctx, Failure, Undone};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::blocks::{Blocks, Until};
use super::{exit, io_error, place};

const LIST: &str = "list";

pub(super) struct Backup<'a> {
    dir: PathBuf,
    until: Until<'a>,
    /// Paths so far.
    count: usize,
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

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Access {
    mode: u32,
    uid: u32,
    gid: u32,
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

impl<'a> Backup<'a> {
    pub(super) fn new(ctx: &Ctx<'a>) -> Self {
        Self { dir: place::own("backup", ctx), until: Until::of(ctx), count: 0, list: None }
    }

    /// Keeps what is at a path, before it becomes something else.
    pub(super) fn keep(&mut self, path: &Path) -> io::Result<()> {
        let was = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Was::Nothing,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_dir() => Was::Directory(Access::of(&meta)),
            Ok(meta) if meta.is_symlink() => Was::Link(fs_err::read_link(path)?),
            Ok(meta) if meta.is_file() => {
                self.make()?;
                let copy = self.dir.join(self.count.to_string());
                let mut to = fs_err::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(&copy)?;
                io::copy(&mut Blocks::open(path, self.until)?, &mut to)?;
                Was::File { copy, access: Access::of(&meta) }
            }
            Ok(_) => {
                let odd = format!("`{}` is no file, directory or link", path.display());
                return Err(io::Error::other(odd));
            }
        };
        self.make()?;
        let mut line =
            serde_json::to_vec(&Kept { path: path.to_owned(), was }).map_err(io::Error::other)?;
        line.push(b'\n');
        self.count += 1;
        self.list.as_mut().expect("just made").write_all(&line)
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

    fn make(&mut self) -> io::Result<()> {
        if self.list.is_none() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            let path = self.dir.join(LIST);
            // The same attempt is begun once; what is there is of another life of this machine.
            self.list = Some(
                fs_err::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(path)?,
            );
        }
        Ok(())
    }

    pub(super) fn receipt(&self) -> Value {
        if self.count == 0 {
            return Value::Null;
        }
        json!({ "backup": self.dir })
    }
}

/// Makes everything as it was, the last change first.
pub(super) fn restore(receipt: &Value, ctx: &Ctx<'_>) -> Result<Undone, Failure> {
    // A step that changed nothing has nothing to take back.
    if receipt.is_null() {
        return Ok(Undone::Undone);
    }
    let Some(dir) = receipt["backup"].as_str().map(Path::new) else {
        return Ok(Undone::NotPossible);
    };
    let base = place::own("backup", ctx);
    if dir.parent() != base.parent() {
        return Err(exit(format!("`{}` is no backup of this machine", dir.display())));
    }
    let list = match fs_err::read_to_string(dir.join(LIST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Undone::NotPossible),
        list => list.map_err(|error| io_error(&error))?,
    };
    for line in list.lines().rev() {
        let kept: Kept = serde_json::from_str(line)
            .map_err(|error| exit(format!("the backup {} is damaged: {error}", dir.display())))?;
        put_back(&kept, Until::of(ctx)).map_err(|error| io_error(&error))?;
    }
    Ok(Undone::Undone)
}

fn put_back(Kept { path, was }: &Kept, until: Until<'_>) -> io::Result<()> {
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
            let mut to = tempfile::NamedTempFile::new_in(parent)?;
            io::copy(&mut Blocks::open(copy, until)?, &mut to)?;
            access.give(to.as_file())?;
            if path.is_dir() && !path.is_symlink() {
                fs_err::remove_dir(path)?;
            }
            to.persist(path)?;
            Ok(())
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
