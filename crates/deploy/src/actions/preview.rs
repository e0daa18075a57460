//! Previews of changes to files, for dry runs.
//!
//! The content of a file is hidden unless every user may read the file.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hoist_engine::action::{Failure, Prediction};

use super::{io_error, line_diff};

const ALL_MAY_READ: u32 = 0o004;

/// The content of a file, or the reason why it is hidden.
pub(super) type Shown = Result<String, &'static str>;

/// The current content. Only plain files of limited size are read.
pub(super) fn of_file(path: &Path) -> Result<Shown, Failure> {
    let meta = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(String::new())),
        meta => meta.map_err(|error| io_error(&error))?,
    };
    if !meta.is_file() {
        return Ok(Err("the path is not a regular file"));
    }
    if meta.len() > line_diff::MAX_SHOWN as u64 {
        return Ok(Err("the file is too large"));
    }
    if let Err(why) = of_mode(Some(meta.permissions().mode())) {
        return Ok(Err(why));
    }
    let bytes = fs_err::read(path).map_err(|error| io_error(&error))?;
    Ok(String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text"))
}

/// Whether a file with this mode may be shown.
pub(super) fn of_mode(mode: Option<u32>) -> Result<(), &'static str> {
    match mode {
        Some(mode) if mode & ALL_MAY_READ == 0 => Err("not all users may read the file"),
        _ => Ok(()),
    }
}

/// The change from the one to the other; `differs` says in words that there is one.
pub(super) fn change(name: &str, differs: &str, old: Shown, new: Shown) -> Prediction {
    Prediction::Diff(match (old, new) {
        (Ok(old), Ok(new)) if old != new => line_diff::unified(name, &old, &new),
        (Ok(_), Ok(_)) => format!("{differs}\n"),
        (Err(why), _) | (_, Err(why)) => format!("{differs}\n(not shown: {why})\n"),
    })
}
