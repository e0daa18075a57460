//! Making a file as it shall be, all at once, and telling whether it is.

use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use hoist_engine::action::{Failure, Verdict};
use tempfile::NamedTempFile;

use super::account::{self, Base};
use super::backup::Backup;
use super::blocks::{Blocks, Until};
use super::{exit, io_error};

/// A file as it shall be.
pub(super) struct DesiredFile<'a> {
    pub(super) content: Content<'a>,
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<u32>,
    pub(super) group: Option<u32>,
}

#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Text(&'a str),
    /// The same as in another file.
    Of(&'a Path, Until<'a>),
}

impl DesiredFile<'_> {
    /// How the file at a path is not as it shall be; `None` if it is.
    pub(super) fn differs(&self, path: &Path) -> Result<Option<String>, Failure> {
        let meta = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(format!("`{}` does not exist", path.display())));
            }
            meta => meta.map_err(|error| io_error(&error))?,
        };
        if meta.is_dir() {
            return Err(exit(format!("`{}` is a directory", path.display())));
        }
        if meta.is_symlink() {
            return Ok(Some(format!("`{}` is a link", path.display())));
        }
        if !meta.is_file() {
            return Err(irreplaceable(path));
        }
        if let Some(differs) = self.meta_differs(&meta) {
            return Ok(Some(format!("`{}`: {differs}", path.display())));
        }
        let same = self.content.is_in(path, meta.len()).map_err(|error| io_error(&error))?;
        Ok((!same).then(|| format!("`{}` has another content", path.display())))
    }

    fn meta_differs(&self, meta: &Metadata) -> Option<String> {
        let mode = meta.permissions().mode() & 0o7777;
        if let Some(wanted) = self.mode.filter(|wanted| *wanted != mode) {
            return Some(format!("its mode is {mode:04o}, not {wanted:04o}"));
        }
        if self.owner.is_some_and(|owner| owner != meta.uid()) {
            return Some(format!("it belongs to user {}", meta.uid()));
        }
        if self.group.is_some_and(|group| group != meta.gid()) {
            return Some(format!("it belongs to group {}", meta.gid()));
        }
        None
    }

    /// Makes it so; `false` if it was.
    pub(super) fn put(&self, path: &Path, backup: &mut Backup) -> Result<bool, Failure> {
        if self.differs(path)?.is_none() {
            return Ok(false);
        }
        self.replace(path, backup).map_err(|error| io_error(&error))?;
        Ok(true)
    }

    fn replace(&self, path: &Path, backup: &mut Backup) -> io::Result<()> {
        backup.make_parents(path)?;
        backup.keep(path)?;
        let new = self.made(path, &backup.beside(path, backup.last())?)?;
        new.as_file().sync_data()?;
        new.persist(path)?;
        Ok(())
    }

    /// The file as it shall be, under another name in the same directory, until it is durable.
    pub(super) fn made(&self, path: &Path, new: &Path) -> io::Result<NamedTempFile> {
        let was = path.symlink_metadata().ok().filter(Metadata::is_file);
        let (parent, name) = new.parent().zip(new.file_name()).expect("a name in a directory");
        let mut new = tempfile::Builder::new().prefix(name).rand_bytes(0).tempfile_in(parent)?;
        let mut mode = was.as_ref().map_or(0o644, |was| was.permissions().mode() & 0o7777);
        match self.content {
            Content::Text(text) => new.write_all(text.as_bytes())?,
            Content::Of(from, until) => {
                let mut from = Blocks::open(from, until)?;
                mode = from.get_ref().metadata()?.permissions().mode() & 0o7777;
                io::copy(&mut from, &mut new)?;
            }
        }
        let owner = self.owner.or(was.as_ref().map(MetadataExt::uid));
        let group = self.group.or(was.as_ref().map(MetadataExt::gid));
        if owner.is_some() || group.is_some() {
            std::os::unix::fs::fchown(new.as_file(), owner, group)?;
        }
        new.as_file().set_permissions(PermissionsExt::from_mode(self.mode.unwrap_or(mode)))?;
        Ok(new)
    }

    pub(super) fn verdict(&self, path: &Path) -> Result<Verdict, Failure> {
        Ok(match self.differs(path)? {
            None => Verdict::Holds,
            Some(reason) => Verdict::fails(reason),
        })
    }
}

impl Content<'_> {
    fn is_in(self, path: &Path, length: u64) -> io::Result<bool> {
        match self {
            Self::Text(text) => {
                Ok(length == text.len() as u64 && fs_err::read(path)? == text.as_bytes())
            }
            Self::Of(from, until) => {
                let from = Blocks::open(from, until)?;
                let is_as_long = from.get_ref().metadata()?.len() == length;
                Ok(is_as_long && are_same(from, Blocks::open(path, until)?)?)
            }
        }
    }
}

/// A FIFO, a socket or a device cannot be backed up, so its replacement could not be undone.
pub(super) fn irreplaceable(path: &Path) -> Failure {
    let path = path.display();
    exit(format!("`{path}` is no file, directory or link and is not replaced; remove it first"))
}

fn are_same(mut one: impl Read, mut other: impl Read) -> io::Result<bool> {
    let mut left = Vec::new();
    let mut right = Vec::new();
    loop {
        left.clear();
        right.clear();
        one.by_ref().take(64 * 1024).read_to_end(&mut left)?;
        other.by_ref().take(64 * 1024).read_to_end(&mut right)?;
        if left != right {
            return Ok(false);
        }
        if left.is_empty() {
            return Ok(true);
        }
    }
}

/// The numbers of an owner and a group that an input names.
pub(super) fn owners(
    owner: Option<&str>,
    group: Option<&str>,
) -> Result<(Option<u32>, Option<u32>), Failure> {
    let owner = owner.map(|name| account::number(Base::User, name)).transpose()?;
    let group = group.map(|name| account::number(Base::Group, name)).transpose()?;
    Ok((owner, group))
}
