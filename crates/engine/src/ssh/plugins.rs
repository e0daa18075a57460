//! Files that machines get from the controller: its program, and its plug-ins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::plugin;

/// The plug-ins that machines get.
#[derive(Debug, Clone, Default)]
pub struct SentPlugins {
    /// None are sent without a directory.
    pub directory: Option<PathBuf>,
    /// They may run where they cannot be isolated.
    pub are_unconfined: bool,
}

impl SentPlugins {
    /// The digest of each, by file name. One that cannot be read is missing on the machines, which
    /// say so.
    pub(super) fn digests(&self) -> BTreeMap<String, String> {
        let paths = self.directory.iter().flat_map(|at| plugin::look(at).unwrap_or_default());
        let digest = |path: PathBuf| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name, digest_of(&path).ok()?.0))
        };
        paths.filter_map(digest).collect()
    }

    /// The content of some, in base64.
    pub(super) fn content(&self, names: BTreeSet<String>) -> BTreeMap<String, String> {
        let known = self.digests();
        let content = |name: String| {
            let path = self.directory.as_ref()?.join(known.contains_key(&name).then_some(&name)?);
            Some((name, BASE64.encode(fs_err::read(path).ok()?)))
        };
        names.into_iter().filter_map(content).collect()
    }
}

/// Whether a file has this content.
pub(super) fn is_whole(path: &Path, digest: &str) -> bool {
    digest_of(path).is_ok_and(|(found, _)| found == digest)
}

/// Digest and size of a file.
pub(super) fn digest_of(path: &Path) -> io::Result<(String, u64)> {
    /// What tells a file from one that was changed.
    type Stamp = (PathBuf, u64, u64, u64, i64, i64);
    static KNOWN: LazyLock<Mutex<HashMap<Stamp, String>>> = LazyLock::new(Mutex::default);
    let mut file = fs_err::File::open(path)?;
    let about = file.metadata()?;
    let stamp =
        (path.to_owned(), about.dev(), about.ino(), about.len(), about.ctime(), about.ctime_nsec());
    // Held meanwhile: many machines ask for the same file at the same time.
    let mut known = KNOWN.lock();
    if let Some(digest) = known.get(&stamp) {
        return Ok((digest.clone(), about.len()));
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    let digest = hex(hash);
    known.retain(|other, _| other.0 != stamp.0);
    known.insert(stamp, digest.clone());
    Ok((digest, about.len()))
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to memory");
        text
    })
}
