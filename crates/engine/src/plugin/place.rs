//! Which files are taken for plug-ins.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::PluginError;

/// What the name of the file begins with; the rest is the name of the action.
pub const PREFIX: &str = "hoist-action-";

/// The same for a driver, which reads inputs of others.
pub const DRIVER_PREFIX: &str = "hoist-driver-";

/// Plug-ins in one directory.
pub const MAX_PLUGINS: usize = 256;

/// Characters in a name.
pub const MAX_NAME: usize = 63;

/// Everything in a directory that wants to be a plug-in, by name. Nothing, if there is no such
/// directory.
pub fn look(directory: &Path) -> Result<Vec<PathBuf>, PluginError> {
    let unusable = |why: String| PluginError::Unusable { path: directory.to_owned(), why };
    let entries = match fs_err::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unusable(error.to_string()))?;
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            found.push(entry.path());
        }
        if found.len() > MAX_PLUGINS {
            return Err(unusable(format!(
                "it holds more than {MAX_PLUGINS} plug-ins; remove some"
            )));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// What tells whether plug-ins of a directory came, went or were changed.
pub fn stamps(directory: &Path) -> Vec<Stamp> {
    let paths = look(directory).unwrap_or_default();
    let stamp = |path: PathBuf| {
        let about = path.symlink_metadata().ok();
        let about =
            about.map(|about| (about.ino(), about.len(), about.ctime(), about.ctime_nsec()));
        (path, about)
    };
    paths.into_iter().map(stamp).collect()
}

/// A file, and its number, length and last change, if it is there.
pub type Stamp = (PathBuf, Option<(u64, u64, i64, i64)>);

/// The name of what a file is, behind `prefix`, if the file may be run at all.
pub(super) fn admit(path: &Path, prefix: &str) -> Result<String, PluginError> {
    let unusable = |why: &str| PluginError::Unusable { path: path.to_owned(), why: why.to_owned() };
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = file
        .strip_prefix(prefix)
        .filter(|name| is_name(name))
        .ok_or_else(|| unusable(&format!("a plug-in is called `{prefix}` and a name of small letters, digits, `-` and `_`; rename it")))?;
    let metadata = fs_err::symlink_metadata(path).map_err(|error| unusable(&error.to_string()))?;
    if !metadata.is_file() {
        return Err(unusable("it is no regular file; put the program itself there, not a link"));
    }
    is_ours(&metadata).map_err(unusable)?;
    if metadata.mode() & 0o111 == 0 {
        return Err(unusable("it is not executable; `chmod 755` it"));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let metadata = fs_err::metadata(directory.unwrap_or(Path::new(".")))
        .map_err(|error| unusable(&error.to_string()))?;
    // In a sticky directory only the owner can put another file in its place.
    if metadata.mode() & 0o1002 == 0o002 {
        return Err(unusable("everybody may write to its directory; `chmod o-w` that"));
    }
    Ok(name.to_owned())
}

fn is_ours(metadata: &std::fs::Metadata) -> Result<(), &'static str> {
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err("it belongs to another user; `chown root` it");
    }
    if metadata.mode() & 0o002 != 0 {
        return Err("everybody may write to it; `chmod o-w` it");
    }
    Ok(())
}

/// Whether an action can be called that.
pub fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(letters)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn put(directory: &Path, file: &str, mode: u32) -> PathBuf {
        let path = directory.join(file);
        fs_err::write(&path, "#!/bin/sh\n").unwrap();
        fs_err::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    fn refusal(path: &Path) -> String {
        admit(path, PREFIX).unwrap_err().to_string()
    }

    #[test]
    fn only_programs_that_nobody_else_can_change_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let good = put(dir.path(), "hoist-action-motd", 0o755);
        assert_eq!(admit(&good, PREFIX).unwrap(), "motd");
        let refused = [
            ("hoist-action-data", 0o644, "not executable"),
            ("hoist-action-open", 0o757, "everybody may write to it"),
            ("hoist-action-Big", 0o755, "rename it"),
            ("hoist-action-", 0o755, "rename it"),
            ("hoist-action-a b", 0o755, "rename it"),
            ("motd", 0o755, "rename it"),
        ];
        for (file, mode, why) in refused {
            let error = refusal(&put(dir.path(), file, mode));
            assert!(error.contains(why), "{file}: {error}");
        }
        let link = dir.path().join("hoist-action-link");
        symlink(&good, &link).unwrap();
        assert!(refusal(&link).contains("no regular file"));
        let directory = dir.path().join("hoist-action-dir");
        fs_err::create_dir(&directory).unwrap();
        assert!(refusal(&directory).contains("no regular file"));
        fs_err::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(refusal(&good).contains("write to its directory"));
    }

    #[test]
    fn a_name_is_bounded() {
        assert!(is_name(&"x".repeat(MAX_NAME)));
        assert!(!is_name(&"x".repeat(MAX_NAME + 1)));
    }

    #[test]
    fn a_directory_is_looked_through_for_what_wants_to_be_a_plug_in() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["hoist-action-b", "hoist-action-a", "README", "hoist-driver-x"] {
            put(dir.path(), file, 0o755);
        }
        let found = look(dir.path()).unwrap();
        assert_eq!(found, ["hoist-action-a", "hoist-action-b"].map(|file| dir.path().join(file)));
        assert!(look(&dir.path().join("nowhere")).unwrap().is_empty());
        for at in 0..MAX_PLUGINS {
            put(dir.path(), &format!("hoist-action-x{at}"), 0o755);
        }
        assert!(look(dir.path()).unwrap_err().to_string().contains("more than 256"));
    }
}
