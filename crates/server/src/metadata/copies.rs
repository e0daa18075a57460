//! On-disk copies of the last documents from other services, for a controller that starts while
//! those are down.
//!
//! No request waits for a copy to be written, and a damaged copy is ignored.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fs_err as fs;
use hoist_metadata::{Document, Documents};
use hoist_model::NodeId;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::proxy::MAX_DOCUMENT;
use hoist_chassis::secret;

/// Below the data directory. The copies may contain secrets.
const DIRECTORY: &str = "proxied";

/// Nodes that there are copies for. The oldest go first.
const MAX_COPIES: usize = 100_000;

/// Bytes of all copies.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Largest file: four documents in base64 with their attributes.
const MAX_FILE: usize = Document::ALL.len() * MAX_DOCUMENT * 4 / 3 + 64 * 1024;

#[derive(Debug)]
pub(super) struct Copies {
    dir: PathBuf,
    limits: Limits,
    index: Mutex<Index>,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    copies: usize,
    bytes: u64,
}

/// The request's identity: documents are valid for the same URL, generation and address only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) generation: u64,
    /// In front of the documents' names.
    pub(super) url: String,
    /// The node's address in the request.
    pub(super) address: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) identity: Identity,
    /// When the service said so, in seconds since 1970.
    pub(super) good: u64,
    pub(super) documents: Documents,
}

/// As it stands in a file, behind a line with its digest.
#[derive(Debug, Serialize, Deserialize)]
struct CopyFile {
    node: NodeId,
    #[serde(flatten)]
    identity: Identity,
    good: u64,
    /// In the order of [`Document::ALL`].
    documents: [String; 4],
}

/// The files that there are.
#[derive(Debug, Default)]
struct Index {
    by_node: HashMap<NodeId, (u64, u64)>,
    /// Oldest first.
    order: BTreeMap<u64, NodeId>,
    bytes: u64,
    next: u64,
}

impl Index {
    fn put(&mut self, node: NodeId, bytes: u64) {
        self.forget(node);
        self.by_node.insert(node, (self.next, bytes));
        self.order.insert(self.next, node);
        self.next += 1;
        self.bytes += bytes;
    }

    fn forget(&mut self, node: NodeId) {
        if let Some((turn, bytes)) = self.by_node.remove(&node) {
            self.order.remove(&turn);
            self.bytes -= bytes;
        }
    }

    /// The oldest one, if there are too many.
    fn surplus(&mut self, limits: Limits) -> Option<NodeId> {
        if self.by_node.len() <= limits.copies && self.bytes <= limits.bytes {
            return None;
        }
        let (_, oldest) = self.order.first_key_value()?;
        let oldest = *oldest;
        self.forget(oldest);
        Some(oldest)
    }
}

impl Copies {
    pub(super) fn open(data_dir: &Path) -> Self {
        Self::with_limits(data_dir, Limits { copies: MAX_COPIES, bytes: MAX_BYTES })
    }

    fn with_limits(data_dir: &Path, limits: Limits) -> Self {
        let dir = data_dir.join(DIRECTORY);
        let index = Mutex::new(look(&dir).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, "the copies of proxied documents cannot be read");
            }
            Index::default()
        }));
        Self { dir, limits, index }
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.index().by_node.contains_key(&node)
    }

    /// The copy of a node, if there is one and it is whole.
    pub(super) fn read(&self, node: NodeId) -> Option<Copy> {
        let read = (|| {
            let mut text = Vec::new();
            let file = fs::File::open(self.path(node))?;
            file.take(MAX_FILE as u64 + 1).read_to_end(&mut text)?;
            parse(node, &text)
        })();
        read.inspect_err(|error| {
            tracing::warn!(%node, %error, "the copy of a node's documents is not used");
        })
        .ok()
    }

    pub(super) fn write(&self, node: NodeId, copy: &Copy) -> io::Result<()> {
        let text = text(node, copy);
        secret::ensure_private_dir(&self.dir)?;
        secret::write_atomic(&self.path(node), &text, 0o600)?;
        let mut index = self.index();
        index.put(node, text.len() as u64);
        let gone: Vec<_> = std::iter::from_fn(|| index.surplus(self.limits)).collect();
        drop(index);
        gone.into_iter().try_for_each(|node| fs::remove_file(self.path(node)))
    }

    fn path(&self, node: NodeId) -> PathBuf {
        self.dir.join(node.to_string())
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }
}

/// Lists the directory by time, and removes leftovers of a crash.
fn look(dir: &Path) -> io::Result<Index> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let metadata = entry.metadata()?;
        match name.to_str().map(str::parse::<NodeId>) {
            Some(Ok(node)) if metadata.is_file() => {
                found.push((metadata.modified()?, node, metadata.len()));
            }
            Some(Err(_)) if name.as_encoded_bytes().starts_with(b".") && metadata.is_file() => {
                fs::remove_file(entry.path())?;
            }
            _ => {}
        }
    }
    found.sort();
    let mut index = Index::default();
    for (_, node, bytes) in found {
        index.put(node, bytes);
    }
    Ok(index)
}

fn text(node: NodeId, copy: &Copy) -> Vec<u8> {
    let documents = Document::ALL.map(|document| STANDARD.encode(copy.documents.get(document)));
    let identity = copy.identity.clone();
    let written = CopyFile { node, identity, good: copy.good, documents };
    let body = serde_json::to_vec(&written).expect("a plain value");
    let mut text = digest(&body).into_bytes();
    text.push(b'\n');
    text.extend(body);
    text
}

fn digest(body: &[u8]) -> String {
    secret::hex(&secret::sha256(body))
}

fn parse(node: NodeId, text: &[u8]) -> io::Result<Copy> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if text.len() > MAX_FILE {
        return Err(damaged("it is too large"));
    }
    let line = text.iter().position(|byte| *byte == b'\n');
    let (hash, body) = text.split_at(line.ok_or_else(|| damaged("it is damaged"))?);
    let body = &body[1..];
    if hash != digest(body).as_bytes() {
        return Err(damaged("it is damaged"));
    }
    let written: CopyFile = serde_json::from_slice(body)?;
    if written.node != node {
        return Err(damaged("it is of another node"));
    }
    let [meta, user, vendor, network] = written.documents.map(|text| {
        let content = STANDARD.decode(text).ok().filter(|text| text.len() <= MAX_DOCUMENT);
        content.map(Bytes::from).ok_or_else(|| damaged("a document in it is none"))
    });
    let documents = Documents {
        meta_data: meta?,
        user_data: user?,
        vendor_data: vendor?,
        network_config: network?,
    };
    Ok(Copy { identity: written.identity, good: written.good, documents })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::from_bits(n)
    }

    fn copy(n: usize) -> Copy {
        let documents = Documents {
            meta_data: format!("instance-id: {n}\n").into(),
            user_data: vec![0xff; n].into(),
            ..Documents::default()
        };
        let address = "10.0.0.1".parse().unwrap();
        let identity = Identity { generation: 3, url: "http://h/n1".to_owned(), address };
        Copy { identity, good: 1_800_000_000, documents }
    }

    #[test]
    fn a_copy_survives_is_private_and_is_of_one_node() {
        let dir = tempfile::tempdir().unwrap();
        let copies = Copies::open(dir.path());
        assert!(!copies.has(node(1)));
        copies.write(node(1), &copy(5)).unwrap();
        copies.write(node(1), &copy(7)).unwrap();
        fs::write(dir.path().join("proxied/.left"), "x").unwrap();
        let again = Copies::open(dir.path());
        assert!(again.has(node(1)) && !again.has(node(2)));
        assert_eq!(again.read(node(1)), Some(copy(7)));
        let path = again.path(node(1));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&again.dir).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&again.dir).unwrap().count(), 1);
        fs::copy(path, again.path(node(2))).unwrap();
        assert_eq!(again.read(node(2)), None);
    }

    #[test]
    fn a_copy_is_bounded_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let copies = Copies::open(dir.path());
        let largest = Bytes::from(vec![b'x'; MAX_DOCUMENT]);
        let full = Documents {
            meta_data: largest.clone(),
            user_data: largest.clone(),
            vendor_data: largest.clone(),
            network_config: largest,
        };
        let mut large = Copy { documents: full, ..copy(1) };
        copies.write(node(1), &large).unwrap();
        assert_eq!(copies.read(node(1)).as_ref(), Some(&large));
        large.documents.user_data = vec![b'x'; MAX_DOCUMENT + 1].into();
        copies.write(node(1), &large).unwrap();
        assert_eq!(copies.read(node(1)), None);
        fs::write(copies.path(node(1)), vec![b'x'; MAX_FILE + 1]).unwrap();
        assert_eq!(copies.read(node(1)), None);
        fs::remove_file(copies.path(node(1))).unwrap();
        assert_eq!(copies.read(node(1)), None);
    }

    #[test]
    fn the_oldest_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let few = Limits { copies: 3, bytes: MAX_BYTES };
        let copies = Copies::with_limits(dir.path(), few);
        for n in 1..=3 {
            copies.write(node(n), &copy(1)).unwrap();
        }
        copies.write(node(1), &copy(2)).unwrap();
        copies.write(node(4), &copy(1)).unwrap();
        let there = |copies: &Copies| (1..=5).filter(|n| copies.has(node(*n))).collect::<Vec<_>>();
        assert_eq!(there(&copies), [1, 3, 4]);
        assert_eq!(fs::read_dir(&copies.dir).unwrap().count(), 3);
        let bytes = copies.index().bytes;
        let narrow = Copies::with_limits(dir.path(), Limits { copies: 10, bytes });
        narrow.write(node(5), &copy(1)).unwrap();
        let left = there(&narrow);
        assert!(left.contains(&5) && left.len() == 3, "{left:?}");
        assert!(narrow.index().bytes <= bytes);
    }

    proptest! {
        #[test]
        fn damaged_copy_is_detected(at in any::<prop::sample::Index>(), bit in 0..8_u8, cut in any::<bool>()) {
            let mut text = text(node(1), &copy(9));
            let at = at.index(text.len());
            if cut {
                text.truncate(at);
            } else {
                text[at] ^= 1 << bit;
            }
            prop_assert!(parse(node(1), &text).is_err());
        }
    }
}
