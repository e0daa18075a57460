//! Where the paths of a step are.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use hoist_engine::action::{Ctx, Failure};
use rustix::process::geteuid;
use ulid::Ulid;

use super::{exit, io_error};

/// Older backups are removed. Runs are kept as long, unless the site is configured otherwise.
pub(super) const KEPT: Duration = Duration::from_hours(24 * 90);

/// An attempt examines at most this many entries.
const LOOKED_AT: usize = 1000;

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
    // The existing part of the path, with links resolved: a link may lead elsewhere.
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

/// The path where this machine, or this directory, keeps the data of this attempt.
pub(super) fn own(kind: &str, ctx: &Ctx<'_>) -> PathBuf {
    of(kind, ctx.attempt, ctx)
}

/// The same for another attempt on the same subject.
pub(super) fn of(kind: &str, attempt: &str, ctx: &Ctx<'_>) -> PathBuf {
    let home = || std::env::var_os("HOME").filter(|_| !geteuid().is_root());
    let base = if ctx.directory != Path::new("/") {
        ctx.directory.join(".hoist")
    } else if let Some(home) = home() {
        // Another user than root may not write to the machine's own directory.
        Path::new(&home).join(".hoist")
    } else {
        PathBuf::from("/var/lib/hoist")
    };
    let attempt: PathBuf =
        attempt.split('/').map(OsStr::new).collect::<Vec<_>>().join(OsStr::new("-")).into();
    base.join(kind).join(attempt)
}

/// Removes expired data of attempts from this directory.
pub(super) fn remove_old(base: &Path) {
    let is_old = |kept: &fs_err::DirEntry| {
        let written = kept.metadata().and_then(|meta| meta.modified()).ok();
        let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
        age.is_some_and(|age| age > KEPT)
    };
    let all = fs_err::read_dir(base).into_iter().flatten().flatten().take(LOOKED_AT);
    for kept in all.filter(is_old) {
        // The next attempt examines it again.
        let _ = match kept.file_type() {
            Ok(kind) if kind.is_dir() => fs_err::remove_dir_all(kept.path()),
            _ => fs_err::remove_file(kept.path()),
        };
    }
}

/// Whether the data of an attempt is too recent to have expired. The name of an attempt begins with
/// the id of its run, which contains the time of its creation.
pub(super) fn is_kept_still(attempt: &str) -> bool {
    let run = attempt.split('/').next().unwrap_or_default();
    let made = Ulid::from_string(&run.to_ascii_uppercase());
    let at = |made: Ulid| SystemTime::UNIX_EPOCH + Duration::from_millis(made.timestamp_ms());
    let age = made.ok().and_then(|made| at(made).elapsed().ok());
    age.is_some_and(|age| age < KEPT)
}
