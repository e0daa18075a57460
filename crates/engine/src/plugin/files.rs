//! Decides which files are plug-ins.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::PluginError;

/// Prefix of the file name; the rest is the name of the action.
pub const PREFIX: &str = "hoist-action-";

/// Prefix of a driver.
pub const DRIVER_PREFIX: &str = "hoist-driver-";

/// Largest number of plug-ins in a directory.
pub const MAX_PLUGINS: usize = 256;

/// Largest length of a name.
pub const MAX_NAME: usize = 63;

/// The candidate files of a directory, sorted by name; empty if the directory does not exist.
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
                "the directory has more than {MAX_PLUGINS} plug-ins; remove some"
            )));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Fingerprints by which changes of a plug-in directory are noticed.
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

/// A file with its inode, length and time of change; `None` if it is missing.
pub type Stamp = (PathBuf, Option<(u64, u64, i64, i64)>);

/// The name of a plug-in file without `prefix`, if the file may be executed.
pub(super) fn admit(path: &Path, prefix: &str) -> Result<String, PluginError> {
    let unusable = |why: &str| PluginError::Unusable { path: path.to_owned(), why: why.to_owned() };
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = file
        .strip_prefix(prefix)
        .filter(|name| is_name(name))
        .ok_or_else(|| unusable(&format!("the name of a plug-in is `{prefix}` and lower-case letters, digits, `-` and `_`; rename it")))?;
    let metadata = fs_err::symlink_metadata(path).map_err(|error| unusable(&error.to_string()))?;
    if !metadata.is_file() {
        return Err(unusable("not a regular file; put the program itself there, not a link"));
    }
    is_ours(&metadata).map_err(unusable)?;
    if metadata.mode() & 0o111 == 0 {
        return Err(unusable("not executable; run `chmod 755` on it"));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let metadata = fs_err::metadata(directory.unwrap_or(Path::new(".")))
        .map_err(|error| unusable(&error.to_string()))?;
    // In a sticky directory only the owner can replace the file.
    if metadata.mode() & 0o1002 == 0o002 {
        return Err(unusable("its directory is writable by all users; run `chmod o-w` on it"));
    }
    Ok(name.to_owned())
}

fn is_ours(metadata: &std::fs::Metadata) -> Result<(), &'static str> {
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err("owned by another user; run `chown root` on it");
    }
    if metadata.mode() & 0o002 != 0 {
        return Err("writable by all users; run `chmod o-w` on it");
    }
    Ok(())
}

/// Whether this is a valid name of an action.
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
    fn only_private_programs_are_admitted() {
        let dir = tempfile::tempdir().unwrap();
        let good = put(dir.path(), "hoist-action-motd", 0o755);
        assert_eq!(admit(&good, PREFIX).unwrap(), "motd");
        let refused = [
            ("hoist-action-data", 0o644, "not executable"),
            ("hoist-action-open", 0o757, "writable by all users"),
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
        assert!(refusal(&link).contains("not a regular file"));
        let directory = dir.path().join("hoist-action-dir");
        fs_err::create_dir(&directory).unwrap();
        assert!(refusal(&directory).contains("not a regular file"));
        fs_err::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(refusal(&good).contains("directory is writable"));
    }

    #[test]
    fn plug_in_name_is_bounded() {
        assert!(is_name(&"x".repeat(MAX_NAME)));
        assert!(!is_name(&"x".repeat(MAX_NAME + 1)));
    }

    #[test]
    fn plug_in_directory_lists_candidates_by_prefix() {
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
