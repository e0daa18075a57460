//! The files of a member, below one directory that only root may read.
//!
//! | File | Content |
//! | --- | --- |
//! | `identity.pem` | the node's key; for a member, its certificate and the intermediate too |
//! | `node-id` | the id of the node: the hash of its first key, which later keys do not change |
//! | `next-key.pem` | the key of a renewal that has no certificate yet |
//! | `authorities.pem` | the roots of the cluster |
//! | `cluster.json` | the membership, see [`MemberFile`] |
//! | `role.json` | the last orders of the controller, see [`RoleFile`] |
//! | `join.json`, `join-token`, `join.journal`, `undo.journal`, `join-bundle.json`, `service-before.json`, `reserve` | a join that has not ended, see [`crate::join`] |
//! | `lock`, `daemon.lock` | locks; never removed |
//! | `work/` | the ledger of the worker |
//!
//! Every file is replaced whole and durably. A file that cannot be read is an error with its
//! remedy, and never counts as absent.

mod error;
mod files;
mod lock;
mod records;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_cluster::detection::DiskState;
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::MembershipEnd;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

pub use error::StateError;
pub use lock::{LockKind, StateLock};
pub use records::{JoinIntent, MemberFile, RoleFile, Standing};

use crate::key::NodeKey;
use crate::service::PreviousService;

/// Where an agent has its state unless told otherwise.
pub const DEFAULT_DIR: &str = "/var/lib/hoist-agent";

/// No file of the state is larger.
const MAX_FILE: u64 = 1024 * 1024;

const IDENTITY: &str = "identity.pem";
const NODE_ID: &str = "node-id";
const NEXT_KEY: &str = "next-key.pem";
const AUTHORITIES: &str = "authorities.pem";
const CLUSTER: &str = "cluster.json";
const ROLE: &str = "role.json";
const JOIN: &str = "join.json";
const JOIN_TOKEN: &str = "join-token";
const JOIN_JOURNAL: &str = "join.journal";
const UNDO_JOURNAL: &str = "undo.journal";
const JOIN_BUNDLE: &str = "join-bundle.json";
const RESERVE: &str = "reserve";
const SERVICE: &str = "service-before.json";

/// Called before each change of a file. An error takes the place of the change.
pub type WriteProbe = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

/// The directory with the state of this node.
#[derive(Clone)]
pub struct StateDir {
    root: PathBuf,
    probe: Option<WriteProbe>,
}

impl std::fmt::Debug for StateDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StateDir").field(&self.root).finish()
    }
}

impl StateDir {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), probe: None }
    }

    /// For tests of disks that are full and of processes that end at any write.
    #[must_use]
    pub fn with_probe(self, probe: WriteProbe) -> Self {
        Self { probe: Some(probe), ..self }
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Makes the directory if it is missing, and denies it to other users.
    pub fn create(&self) -> Result<(), StateError> {
        files::create_private_dir(&self.root).map_err(|source| self.unusable(source))
    }

    /// Takes a lock of the directory, which must exist.
    pub fn lock(&self, kind: LockKind, operation: &str) -> Result<StateLock, StateError> {
        let lock = lock::take(&self.root, kind, operation)?;
        if kind == LockKind::Operation {
            files::remove_temporary(&self.root).map_err(|source| self.unusable(source))?;
        }
        Ok(lock)
    }

    /// The state that earlier runs left. Changes nothing.
    pub fn disk_state(&self) -> DiskState {
        self.read_disk_state()
            .unwrap_or_else(|error| DiskState::Corrupt { detail: error.to_string() })
    }

    fn read_disk_state(&self) -> Result<DiskState, StateError> {
        if !files::exists(&self.root).map_err(|source| self.unusable(source))? {
            return Ok(DiskState::None);
        }
        let member = self.member()?;
        let is_accepted = member.as_ref().is_some_and(|file| file.standing == Standing::Accepted);
        if let Some(file) = member.filter(|_| !is_accepted) {
            if let Some(end) = file.standing.end() {
                return Ok(DiskState::Ended(file.uid, end));
            }
            self.check_credentials(&file)?;
            if file.founded {
                return Ok(DiskState::Founded(file.uid));
            }
            return Ok(DiskState::Member(file.uid));
        }
        match self.join_intent()? {
            Some(intent) => {
                let cluster = intent.expected_prefix();
                Ok(DiskState::Joining { operation: intent.operation, cluster })
            }
            // The undo of a join removes `cluster.json` first.
            None if is_accepted => Err(self.corrupt(CLUSTER, "its join is missing")),
            None => Ok(DiskState::None),
        }
    }

    /// A member must have everything that it connects with.
    fn check_credentials(&self, file: &MemberFile) -> Result<(), StateError> {
        let missing = |name: &str| self.corrupt(name, "the file is missing");
        self.node_key()?.ok_or_else(|| missing(IDENTITY))?;
        self.authorities()?.ok_or_else(|| missing(AUTHORITIES))?;
        match self.node_id()? {
            Some(id) if id == file.id => Ok(()),
            Some(_) => Err(self.corrupt(NODE_ID, "it belongs to another node than `cluster.json`")),
            None => Err(missing(NODE_ID)),
        }
    }

    /// The key of the node; `None` before the first join.
    pub fn node_key(&self) -> Result<Option<NodeKey>, StateError> {
        let Some(pem) = self.read_secret(IDENTITY)? else { return Ok(None) };
        let key = NodeKey::from_pem(&pem).map_err(|error| self.corrupt(IDENTITY, &error))?;
        Ok(Some(key))
    }

    /// The key and the certificate chain, as one PEM text.
    pub fn identity_pem(&self) -> Result<Option<Zeroizing<String>>, StateError> {
        self.read_secret(IDENTITY)
    }

    /// Replaces key and certificate together, so that they always fit.
    pub fn store_identity(&self, key: &NodeKey, chain: Option<&str>) -> Result<(), StateError> {
        let mut pem = key.to_pem();
        pem.push_str(chain.unwrap_or_default());
        self.write(IDENTITY, pem.as_bytes())
    }

    /// The key of the node, made now if there is none.
    pub fn ensure_key(&self) -> Result<(NodeKey, NodeId), StateError> {
        let key = if let Some(key) = self.node_key()? {
            key
        } else {
            let key = NodeKey::generate().map_err(|source| self.corrupt(IDENTITY, &source))?;
            self.store_identity(&key, None)?;
            key
        };
        if let Some(id) = self.node_id()? {
            return Ok((key, id));
        }
        // A renewed key exists only beside this file.
        let id = key.node_id();
        self.write(NODE_ID, format!("{id}\n").as_bytes())?;
        Ok((key, id))
    }

    pub fn node_id(&self) -> Result<Option<NodeId>, StateError> {
        let Some(text) = self.read(NODE_ID)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&text);
        text.trim().parse().map(Some).map_err(|error| self.corrupt(NODE_ID, &error))
    }

    pub fn next_key(&self) -> Result<Option<NodeKey>, StateError> {
        let Some(pem) = self.read_secret(NEXT_KEY)? else { return Ok(None) };
        NodeKey::from_pem(&pem).map(Some).map_err(|error| self.corrupt(NEXT_KEY, &error))
    }

    pub fn store_next_key(&self, key: &NodeKey) -> Result<(), StateError> {
        self.write(NEXT_KEY, key.to_pem().as_bytes())
    }

    pub fn remove_next_key(&self) -> Result<(), StateError> {
        self.remove(NEXT_KEY)
    }

    pub fn authorities(&self) -> Result<Option<String>, StateError> {
        let Some(bytes) = self.read(AUTHORITIES)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| self.corrupt(AUTHORITIES, &error))
    }

    pub fn store_authorities(&self, pem: &str) -> Result<(), StateError> {
        self.write(AUTHORITIES, pem.as_bytes())
    }

    pub fn member(&self) -> Result<Option<MemberFile>, StateError> {
        self.read_json(CLUSTER)
    }

    pub fn store_member(&self, file: &MemberFile) -> Result<(), StateError> {
        self.write_json(CLUSTER, file)
    }

    /// Records durably that the membership has ended.
    pub(crate) fn end_membership(&self, end: MembershipEnd) -> Result<(), StateError> {
        let Some(file) = self.member()? else { return Ok(()) };
        self.store_member(&MemberFile { standing: end.into(), ..file })
    }

    pub fn role(&self) -> Result<Option<RoleFile>, StateError> {
        self.read_json(ROLE)
    }

    pub fn store_role(&self, file: &RoleFile) -> Result<(), StateError> {
        self.write_json(ROLE, file)
    }

    pub fn join_intent(&self) -> Result<Option<JoinIntent>, StateError> {
        self.read_json(JOIN)
    }

    pub(crate) fn store_join_intent(&self, intent: &JoinIntent) -> Result<(), StateError> {
        self.write_json(JOIN, intent)
    }

    pub(crate) fn join_token(&self) -> Result<Option<Zeroizing<String>>, StateError> {
        self.read_secret(JOIN_TOKEN)
    }

    pub(crate) fn store_join_token(&self, token: &str) -> Result<(), StateError> {
        self.write(JOIN_TOKEN, token.as_bytes())
    }

    pub(crate) fn join_bundle<T: DeserializeOwned>(&self) -> Result<Option<T>, StateError> {
        self.read_json(JOIN_BUNDLE)
    }

    pub(crate) fn store_join_bundle(&self, bundle: &impl Serialize) -> Result<(), StateError> {
        self.write_json(JOIN_BUNDLE, bundle)
    }

    pub fn join_journal(&self) -> PathBuf {
        self.root.join(JOIN_JOURNAL)
    }

    pub fn undo_journal(&self) -> PathBuf {
        self.root.join(UNDO_JOURNAL)
    }

    pub(crate) fn previous_service(&self) -> Result<Option<PreviousService>, StateError> {
        self.read_json(SERVICE)
    }

    pub(crate) fn store_previous_service(&self, file: &PreviousService) -> Result<(), StateError> {
        self.write_json(SERVICE, file)
    }

    /// Space that an undo can use after the disk has become full.
    pub(crate) fn reserve_space(&self, bytes: usize) -> Result<(), StateError> {
        // Not zeros: a file system may store those without using space.
        self.write(RESERVE, &vec![b'-'; bytes])
    }

    pub(crate) fn release_reserve(&self) -> Result<(), StateError> {
        // No probe: removing works on a full disk.
        files::remove(&self.root.join(RESERVE)).map_err(|source| self.unusable(source))
    }

    /// Removes the files of the stored bundle. The key stays, and so does the bundle itself: a
    /// withdrawal needs its certificate.
    pub(crate) fn remove_bundle(&self) -> Result<(), StateError> {
        for name in [CLUSTER, AUTHORITIES] {
            self.remove(name)?;
        }
        match self.node_key()? {
            Some(key) => self.store_identity(&key, None),
            None => Ok(()),
        }
    }

    pub(crate) fn remove_key(&self) -> Result<(), StateError> {
        self.remove(NODE_ID)?;
        self.remove(IDENTITY)
    }

    /// Removes the files of a join that has ended. `join.json` goes first: without it the others
    /// mean nothing, and the next operation removes them.
    pub(crate) fn end_join(&self) -> Result<(), StateError> {
        for name in [JOIN, JOIN_TOKEN, JOIN_BUNDLE, SERVICE, UNDO_JOURNAL, JOIN_JOURNAL, RESERVE] {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Removes the files of a join whose process ended after the commit. While another operation
    /// holds the lock, they are left to it.
    pub fn remove_finished_join(&self) -> Result<(), StateError> {
        if self.join_intent()?.is_none() {
            return Ok(());
        }
        match self.lock(LockKind::Operation, "cleanup after a join") {
            Ok(_lock) => self.end_join(),
            Err(StateError::Locked { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes everything but the locks: the next join makes another node of this machine.
    pub(crate) fn remove_all(&self) -> Result<(), StateError> {
        for name in [CLUSTER, ROLE, AUTHORITIES, NEXT_KEY, NODE_ID, IDENTITY] {
            self.remove(name)?;
        }
        let work = self.work_dir();
        let removed = match fs_err::remove_dir_all(work) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        removed.map_err(|source| self.unusable(source))?;
        self.end_join()
    }

    /// Where the worker has its ledger.
    pub fn work_dir(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Writes, syncs and removes a file, as a check.
    pub fn try_write(&self) -> io::Result<()> {
        if let Some(probe) = &self.probe {
            probe(&self.root)?;
        }
        let path = self.root.join("write-check");
        files::write(&path, b"hoist\n")?;
        files::remove(&path)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.root.join(name);
        files::read(&path, MAX_FILE).map_err(|source| StateError::Unusable { path, source })
    }

    fn read_secret(&self, name: &str) -> Result<Option<Zeroizing<String>>, StateError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(_) => Err(self.corrupt(name, "it is not text")),
        }
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.corrupt(name, &error))
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), StateError> {
        let mut text = serde_json::to_vec_pretty(value).expect("plain values");
        text.push(b'\n');
        self.write(name, &text)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), StateError> {
        let path = self.root.join(name);
        let probed = self.probe.as_ref().map_or(Ok(()), |probe| probe(&path));
        probed
            .and_then(|()| files::write(&path, content))
            .map_err(|source| StateError::Unusable { path, source })
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        let path = self.root.join(name);
        let probed = self.probe.as_ref().map_or(Ok(()), |probe| probe(&path));
        probed
            .and_then(|()| files::remove(&path))
            .map_err(|source| StateError::Unusable { path, source })
    }

    fn corrupt(&self, name: &str, detail: &(impl ToString + ?Sized)) -> StateError {
        StateError::Corrupt { path: self.root.join(name), detail: detail.to_string() }
    }

    fn unusable(&self, source: io::Error) -> StateError {
        StateError::Unusable { path: self.root.clone(), source }
    }
}

#[cfg(test)]
mod tests;
