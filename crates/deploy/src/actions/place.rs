//! Where the paths of a step are.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use hoist_engine::action::{Ctx, Failure};

use super::{exit, io_error};

/// The file that a step writes. On a machine any absolute path will do; a subject that is a
/// directory is not left.
pub(super) fn to_write(path: &str, ctx: &Ctx<'_>) -> Result<PathBuf, Failure> {
    let given = Path::new(path);
    if given.file_name().is_none() {
        return Err(exit(format!("`{path}` names no file")));
    }
    if ctx.directory == Path::new("/") {
        if !given.is_absolute() {
            return Err(exit(format!("`{path}` does not begin with `/`; write the whole path")));
        }
        return Ok(given.to_owned());
    }
    let subject = ctx.subject;
    if given.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        let reason = format!(
            "`{path}` leads out of the directory that `{subject}` is; write it relative, without `..`"
        );
        return Err(exit(reason));
    }
    let whole = ctx.directory.join(given);
    // What is there of it, as it really is: a link may lead elsewhere.
    let parent = whole.parent().expect("it is below a directory");
    let there = parent.ancestors().find(|dir| dir.symlink_metadata().is_ok()).unwrap_or(parent);
    let real = fs_err::canonicalize(there).map_err(|error| io_error(&error))?;
    if !real.starts_with(ctx.directory) {
        let reason =
            format!("`{path}` leads through a link out of the directory that `{subject}` is");
        return Err(exit(reason));
    }
    Ok(whole)
}

/// The file that a step reads, which may be anywhere.
pub(super) fn to_read(path: &str, ctx: &Ctx<'_>) -> PathBuf {
    ctx.directory.join(path)
}

/// Where this machine, or this directory, keeps what belongs to this attempt.
pub(super) fn own(kind: &str, ctx: &Ctx<'_>) -> PathBuf {
    of(kind, ctx.attempt, ctx)
}

/// The same for another attempt on the same subject.
pub(super) fn of(kind: &str, attempt: &str, ctx: &Ctx<'_>) -> PathBuf {
    let base = if ctx.directory == Path::new("/") {
        PathBuf::from("/var/lib/hoist")
    } else {
        ctx.directory.join(".hoist")
    };
    let attempt: PathBuf =
        attempt.split('/').map(OsStr::new).collect::<Vec<_>>().join(OsStr::new("-")).into();
    base.join(kind).join(attempt)
}
