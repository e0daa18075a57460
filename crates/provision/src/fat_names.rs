//! File names that FAT can store.

use std::collections::{BTreeMap, BTreeSet};

/// Longest name of a file or a directory.
const MAX_NAME: usize = 255;
/// Forbidden characters of names.
const FORBIDDEN: &str = "\"*:<>?\\|";

/// Why FAT does not hold files of these names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("FAT has no name `{name}`; take letters, digits, `-`, `_` and `.`, up to {MAX_NAME}")]
    Bad { name: String },
    #[error("`{path}` and `{other}` are one name in FAT")]
    Same { path: String, other: String },
    #[error("`{path}` is a file, and `{other}` is in it")]
    Inside { path: String, other: String },
}

/// Whether a volume can hold files with all of these paths, which have neither empty parts nor
/// dots.
pub fn check_names<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<NameError> {
    let mut found = Vec::new();
    let mut files = BTreeMap::new();
    let mut dirs = BTreeMap::new();
    let mut bad = BTreeSet::new();
    for path in paths {
        bad.extend(path.split('/').filter(|name| !is_name(name)));
        // Capitals and small letters are the same, and it remembers how they were written.
        let plain = path.to_uppercase();
        for (at, _) in plain.match_indices('/') {
            dirs.entry(plain[..at].to_owned()).or_insert(path);
        }
        if let Some(other) = files.insert(plain, path) {
            found.push(NameError::Same { path: path.to_owned(), other: other.to_owned() });
        }
    }
    for (plain, path) in &files {
        if let Some(other) = dirs.get(plain) {
            let path = (*path).to_owned();
            let other = (*other).to_owned();
            found.push(NameError::Inside { path, other });
        }
    }
    found.extend(bad.into_iter().map(|name| NameError::Bad { name: name.to_owned() }));
    found
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c >= ' ' && c != '\u{7f}' && c <= '\u{ffff}' && !FORBIDDEN.contains(c);
    (1..=MAX_NAME).contains(&name.len())
        && name.chars().all(is_plain)
        // FAT drops these characters at the end of a name.
        && !name.ends_with(['.', ' '])
        && !name.starts_with(' ')
}
