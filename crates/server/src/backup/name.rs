//! The names of a backup's entries: these and no others.

use std::fmt;
use std::path::PathBuf;

/// A checked name. As a path it is relative, below the directory it is restored to, and none of its
/// parts is hidden.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    Manifest,
    /// A piece of the store's export.
    Chunk(u32),
    /// A file of the data directory.
    File(Folder, String),
    /// The decryption key of the secrets in layers.
    SecretsKey,
    Contents,
    Sums,
}

/// A directory of the data directory that travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Folder {
    Ca,
    /// What layers refer to.
    Secrets,
    Journal,
    Artifacts,
}

/// What fits into a tar header without extensions, and leaves room.
const MAX_NAME: usize = 200;
const MAX_DEPTH: usize = 8;

/// Keys and certificates are read into memory.
const MAX_KEY: u64 = 1024 * 1024;

impl Folder {
    pub(super) const ALL: [Self; 4] = [Self::Ca, Self::Secrets, Self::Journal, Self::Artifacts];

    pub(super) fn dir(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Secrets => "secrets",
            Self::Journal => "journal",
            Self::Artifacts => "artifacts",
        }
    }

    /// Largest file.
    fn max_bytes(self) -> u64 {
        match self {
            Self::Ca | Self::Secrets => MAX_KEY,
            Self::Journal | Self::Artifacts => 1 << 40,
        }
    }
}

impl Name {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "manifest.json" => return Some(Self::Manifest),
            "contents.json" => return Some(Self::Contents),
            "SHA256SUMS" => return Some(Self::Sums),
            "secrets.key" => return Some(Self::SecretsKey),
            _ => {}
        }
        let (top, rest) = text.split_once('/')?;
        if top == "store" {
            let digits = rest.strip_suffix(".jsonl")?;
            let number = digits.parse().ok().map(Self::Chunk)?;
            return (number.to_string() == text).then_some(number);
        }
        let place = Folder::ALL.into_iter().find(|place| place.dir() == top)?;
        (is_plain(rest) && text.len() <= MAX_NAME).then(|| Self::File(place, rest.to_owned()))
    }

    /// Largest content.
    pub(super) fn max_bytes(&self) -> u64 {
        match self {
            Self::Manifest | Self::Contents => 64 * 1024,
            Self::Chunk(_) => super::CHUNK_BYTES as u64,
            Self::File(place, _) => place.max_bytes(),
            Self::SecretsKey => MAX_KEY,
            Self::Sums => ((MAX_NAME + 70) * super::MAX_ENTRIES) as u64,
        }
    }

    /// Where it belongs below the data directory.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest => f.write_str("manifest.json"),
            Self::Chunk(number) => write!(f, "store/{number:06}.jsonl"),
            Self::File(place, rest) => write!(f, "{}/{rest}", place.dir()),
            Self::SecretsKey => f.write_str("secrets.key"),
            Self::Contents => f.write_str("contents.json"),
            Self::Sums => f.write_str("SHA256SUMS"),
        }
    }
}

/// Parts of letters, digits, `.`, `_`, `-` and `:`, none of them empty or beginning with a dot.
fn is_plain(path: &str) -> bool {
    let plain = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
    };
    path.split('/').count() <= MAX_DEPTH && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_expected_ones_and_no_others() {
        for good in [
            "manifest.json",
            "contents.json",
            "SHA256SUMS",
            "store/000000.jsonl",
            "store/199999.jsonl",
            "ca/root.key",
            "secrets.key",
            "secrets/db/password",
            "journal/run-1/0001.log",
            "artifacts/sha256/ab/abcdef",
        ] {
            assert_eq!(Name::parse(good).map(|name| name.to_string()).as_deref(), Some(good));
        }
        for bad in [
            "",
            "/etc/passwd",
            "../admin.token",
            "ca/../admin.token",
            "ca//root.key",
            "ca/.root.key",
            "ca/",
            "ca",
            "ca/root\\key",
            "ca/r\u{e9}",
            "journal/a/../../hoist.json",
            "./ca/root.key",
            "secrets",
            "secrets/../admin.token",
            "secrets.key/x",
            "hoist.redb",
            "hoist.json",
            "admin.token",
            "store/0.jsonl",
            "store/+00001.jsonl",
            "store/000000.json",
            "store/../ca/root.key",
            "journal/a/b/c/d/e/f/g/h/i",
        ] {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
        assert!(Name::parse(&format!("journal/{}", "x".repeat(MAX_NAME - 8))).is_some());
        assert!(Name::parse(&format!("journal/{}", "x".repeat(MAX_NAME - 7))).is_none());
    }
}
