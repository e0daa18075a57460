//! Nodes from a file: hoist documents, the inventory file of BSS, or ochami's static discovery file.
//!
//! The file is read anew when it changes. Replace it by renaming a finished one into its place: a
//! file that is caught half-written is an error when we can tell, and we cannot always tell.

mod bss;
mod ochami;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use hoist_model::document;
use hoist_model::{Document, GroupKey, GroupSpec, Name, NodeSpec};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use super::{
    FetchOutcome, FieldSet, ImportedNode, ImportedSet, InventorySource, SourceError, Warning,
    WarningKind, settle, yaml,
};

/// Up to this size a file is hashed at every fetch. Beyond, its dates are believed.
const HASHED_BYTES: u64 = 4 * 1024 * 1024;

/// The source behind `file:PATH`.
#[derive(Debug)]
pub struct FileSource {
    name: Name,
    path: PathBuf,
    /// Of the last content that was answered as complete.
    last: Arc<Mutex<Option<FileVersion>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    stamp: Stamp,
    digest: [u8; 32],
}

/// The metadata of a file, known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileSource {
    pub fn new(name: Name, path: impl Into<PathBuf>) -> Self {
        Self { name, path: path.into(), last: Arc::default() }
    }
}

#[async_trait]
impl InventorySource for FileSource {
    fn name(&self) -> &Name {
        &self.name
    }

    async fn fetch(&self) -> Result<FetchOutcome, SourceError> {
        let path = self.path.clone();
        let last = Arc::clone(&self.last);
        let work = tokio::task::spawn_blocking(move || look(&path, &last));
        work.await.unwrap_or_else(|source| {
            let what = self.path.display().to_string();
            Err(SourceError::Malformed { what, detail: source.to_string() })
        })
    }

    fn forget(&self) {
        *self.last.lock() = None;
    }
}

fn look(path: &Path, last: &Mutex<Option<FileVersion>>) -> Result<FetchOutcome, SourceError> {
    let failed = |source| SourceError::Read { path: path.to_owned(), source };
    let what = || path.display().to_string();
    let before = Stamp::of(path).map_err(failed)?;
    let known = *last.lock();
    if known.is_some_and(|seen| seen.stamp == before) && before.bytes > HASHED_BYTES {
        return Ok(FetchOutcome::Unchanged);
    }
    if before.bytes > yaml::MAX_BYTES as u64 {
        return Err(SourceError::TooLarge { what: what(), limit: yaml::MAX_BYTES });
    }
    let text = fs_err::read(path).map_err(failed)?;
    let after = Stamp::of(path).map_err(failed)?;
    if after != before || text.len() as u64 != before.bytes {
        let source = "it was written while it was read".into();
        return Err(SourceError::Partial { what: what(), source });
    }
    let seen = FileVersion { stamp: before, digest: Sha256::digest(&text).into() };
    let fetched = if known.is_some_and(|known| known.digest == seen.digest) {
        FetchOutcome::Unchanged
    } else {
        FetchOutcome::Complete(read(&what(), &text)?)
    };
    *last.lock() = Some(seen);
    Ok(fetched)
}

impl Stamp {
    fn of(path: &Path) -> std::io::Result<Self> {
        let metadata = fs_err::metadata(path)?;
        if !metadata.is_file() {
            return Err(std::io::Error::other("it is not a file"));
        }
        Ok(Self {
            bytes: metadata.len(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// What kind of file it is, told by the keys at the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Documents,
    Bss,
    Ochami,
}

/// All nodes of a file's text, in any of the formats. `what` names the file in errors.
pub fn read(what: &str, text: &[u8]) -> Result<ImportedSet, SourceError> {
    let malformed = |detail| SourceError::Malformed { what: what.to_owned(), detail };
    let imported = match Format::of(yaml::utf8(text).map_err(malformed)?) {
        Format::Bss => bss::read(yaml::parse(text).map_err(malformed)?),
        Format::Ochami => ochami::read(yaml::parse(text).map_err(malformed)?),
        Format::Documents => {
            let documents = document::read(what, text)
                .map_err(|errors| SourceError::Documents { what: what.to_owned(), errors })?;
            from_documents(documents).map_err(malformed)?
        }
    };
    if imported.nodes.is_empty() {
        return Err(SourceError::Empty { what: format!("the set of nodes in {what}") });
    }
    Ok(imported)
}

impl Format {
    fn of(text: &str) -> Self {
        #[derive(Deserialize)]
        struct Top {
            api: Option<IgnoredAny>,
            #[serde(rename = "Components")]
            components: Option<IgnoredAny>,
            nodes: Option<IgnoredAny>,
            bmcs: Option<IgnoredAny>,
        }
        if text.trim_start().starts_with('{') {
            return match serde_json::from_str::<Top>(text) {
                Ok(top) if top.api.is_some() => Self::Documents,
                Ok(top) if top.components.is_some() => Self::Bss,
                Ok(top) if top.nodes.is_some() || top.bmcs.is_some() => Self::Ochami,
                _ if text.contains("\"Components\"") => Self::Bss,
                _ => Self::Documents,
            };
        }
        let keys = text.lines().filter_map(|line| {
            let (key, _) = line.split_once(':')?;
            Some(key.trim_end().trim_matches(['"', '\'']))
        });
        keys.into_iter()
            .find_map(|key| match key {
                "api" | "kind" | "name" | "spec" => Some(Self::Documents),
                "Components" | "IPAddresses" => Some(Self::Bss),
                "nodes" | "bmcs" => Some(Self::Ochami),
                _ => None,
            })
            .unwrap_or(Self::Documents)
    }
}

/// Hoist's own documents can express everything about a node, so a warning of other formats is an
/// error here.
fn from_documents(documents: Vec<Document>) -> Result<ImportedSet, String> {
    let mut imported = ImportedSet { fields: FieldSet::all(), ..ImportedSet::default() };
    let mut nodes: BTreeMap<Name, Box<NodeSpec>> = BTreeMap::new();
    for document in documents {
        match document {
            Document::Node(name, spec) => {
                if nodes.contains_key(&name) {
                    return Err(format!("there are two nodes named `{name}`"));
                }
                nodes.insert(name, spec);
            }
            Document::Partition(name, spec) => imported.partitions.push((name, spec)),
            Document::Network(name, spec) => imported.networks.push((name, spec)),
            Document::Group(key, spec) => imported.groups.push((key, spec)),
            Document::Artifact(..)
            | Document::BootConfig(..)
            | Document::MetadataLayer(..)
            | Document::ProvisionProfile(..) => {
                let (kind, name) = (document.kind(), document.name());
                return Err(format!(
                    "{kind} `{name}` is no part of an inventory; apply it instead"
                ));
            }
        }
    }
    for (key, spec) in &mut imported.groups {
        join_group(key, spec, &mut nodes, &mut imported.warnings);
    }
    let nodes = nodes.into_iter().map(|(name, spec)| ImportedNode {
        external_id: name.to_string(),
        name: Some(name),
        spec: *spec,
        state: None,
    });
    let mut clashes = Vec::new();
    imported.nodes = settle(nodes.collect(), &mut clashes);
    match clashes.as_slice() {
        [] => Ok(imported),
        [first, ..] => Err(format!("{} clashes, the first is {first}", clashes.len())),
    }
}

/// Membership is kept on the nodes.
fn join_group(
    key: &GroupKey,
    spec: &mut GroupSpec,
    nodes: &mut BTreeMap<Name, Box<NodeSpec>>,
    warnings: &mut Vec<Warning>,
) {
    for member in spec.members.take().unwrap_or_default() {
        match nodes.get_mut(&member) {
            Some(node) if node.partition == key.partition => {
                node.groups = node.groups.with(key.name.clone());
            }
            Some(_) => {
                let message = format!("its member `{member}` is in another partition");
                warnings.push(Warning::new(WarningKind::Value, key.to_string(), message));
            }
            None => {
                let message = format!("its member `{member}` is not in the file");
                warnings.push(Warning::new(WarningKind::Value, key.to_string(), message));
            }
        }
    }
}

#[cfg(test)]
mod tests;
