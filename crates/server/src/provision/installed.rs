//! What nodes have and had before, so that they can go back to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use hoist_api::provision::{Installation, NodeRunState, ProvisionOptions, RootDisk};
use hoist_model::{Digest, Node, NodeId};
use hoist_store::{Op, Store, StoreError, Txn};
use jiff::Timestamp;

use super::keys;
use super::record::{InstalledRecord, JobInputs, Last, NodeRecord, StoredValue, given_key, put};
use super::runs::Runs;
use crate::artifacts::RetainedContents;
use crate::installed_systems::InstalledSystems;
use hoist_chassis::failure::Failure;

/// Installed systems of all nodes, for a run that starts.
#[derive(Debug, Default)]
pub(super) struct AllInstalled(HashMap<NodeId, InstalledRecord>);

impl AllInstalled {
    /// The digests of all that nodes have and had.
    pub(super) fn documents(self) -> impl Iterator<Item = String> {
        let both = |record: InstalledRecord| [Some(record.now), record.before];
        self.0.into_values().flat_map(both).flatten().map(|installed| installed.document)
    }

    pub(super) fn now(&self, node: NodeId) -> Option<&Installation> {
        self.0.get(&node).map(|record| &record.now)
    }

    /// The installation that `--previous` restores: the one before the current one, or, after a run
    /// that failed without undo, the one before that run.
    pub(super) fn previous(
        &self,
        node: NodeId,
        last: Option<NodeRunState>,
    ) -> Option<&Installation> {
        let record = self.0.get(&node)?;
        let has_now = |state| matches!(state, NodeRunState::Done | NodeRunState::Undone);
        let is_now = last.is_none_or(has_now);
        if is_now { record.before.as_ref() } else { Some(&record.now) }
    }
}

#[async_trait]
impl InstalledSystems for Runs {
    async fn installed_by(&self) -> Result<BTreeMap<NodeId, String>, StoreError> {
        let all = self.all_installed().await?.0;
        let last = |record: InstalledRecord| record.changed_by.unwrap_or(record.now.run);
        Ok(all.into_iter().map(|(node, record)| (node, last(record))).collect())
    }
}

impl Runs {
    pub(super) async fn all_installed(&self) -> Result<AllInstalled, StoreError> {
        let all: Vec<StoredValue<InstalledRecord>> =
            StoredValue::list(self.store(), &keys::all_installed()).await?;
        Ok(AllInstalled(all.into_iter().map(|kept| (kept.value.node, kept.value)).collect()))
    }

    /// The record of a complete installation. A run with `--only` does not count as one, and is
    /// noted as a change of it.
    pub(super) async fn installed_by(
        &self,
        how: &ProvisionOptions,
        node: &NodeRecord,
    ) -> Result<Option<Op>, StoreError> {
        match how {
            _ if how.retire => Ok(None),
            _ if how.only.is_empty() => self.installed(node).await,
            _ => self.partly_installed(node).await,
        }
    }

    async fn partly_installed(&self, node: &NodeRecord) -> Result<Option<Op>, StoreError> {
        let key = keys::installed(node.shown.id);
        let is: Option<StoredValue<InstalledRecord>> = StoredValue::get(self.store(), &key).await?;
        let changed_by = Some(node.shown.run.clone());
        Ok(is.map(|is| put(key, &InstalledRecord { changed_by, ..is.value })))
    }

    async fn installed(&self, node: &NodeRecord) -> Result<Option<Op>, StoreError> {
        let Some(digest) = &node.given else { return Ok(None) };
        let Some(given) = self.given(digest).await? else { return Ok(None) };
        let key = keys::installed(node.shown.id);
        let was: Option<StoredValue<InstalledRecord>> =
            StoredValue::get(self.store(), &key).await?;
        let record = after(node, digest, given, was.map(|was| was.value), self.now());
        Ok(Some(put(key, &record)))
    }

    /// The disks that the root of a node is on, as far as that is known.
    pub(super) async fn last_root(&self, node: NodeId) -> Result<Vec<RootDisk>, StoreError> {
        let key = keys::installed(node);
        let is: Option<StoredValue<InstalledRecord>> = StoredValue::get(self.store(), &key).await?;
        Ok(is.map(|is| is.value.now.root).unwrap_or_default())
    }

    /// The record after an undo restored the earlier system.
    pub(super) async fn uninstalled(&self, node: &NodeRecord) -> Result<Option<Op>, StoreError> {
        let key = keys::installed(node.shown.id);
        let was: Option<StoredValue<InstalledRecord>> =
            StoredValue::get(self.store(), &key).await?;
        let was = was.filter(|was| was.value.now.run == node.shown.run);
        Ok(was.map(|was| {
            let InstalledRecord { node: id, before, .. } = was.value;
            // After the same system was installed again, the earlier one predates the run.
            match node.shown.previous.clone().or_else(|| before.clone()) {
                Some(now) => {
                    let before = before.filter(|before| before.document != now.document);
                    put(key, &InstalledRecord { node: id, now, before, changed_by: None })
                }
                None => Op::Delete(key),
            }
        }))
    }
}

/// What nodes are given.
impl Runs {
    /// Stores the inputs of a node's job, so that they stay known if the profile changes.
    pub(super) async fn remember_given(
        &self,
        node: &NodeRecord,
        given: &JobInputs,
    ) -> Result<(), Failure> {
        let packed = given.packed();
        let digest = packed.as_ref().map(|(digest, _)| digest.clone());
        if node.given == digest {
            return Ok(());
        }
        if let Some((digest, bytes)) = packed {
            let op = Op::Put(given_key(&digest), bytes);
            self.store().commit(Txn { compares: Vec::new(), ops: vec![op] }).await?;
        }
        let run = &node.shown.run;
        let id = node.shown.id;
        self.keep(run, id, |node| Some(NodeRecord { given: digest.clone(), ..node.clone() }))
            .await?;
        Ok(())
    }

    /// The stored inputs of a job.
    pub(super) async fn given(&self, digest: &str) -> Result<Option<JobInputs>, StoreError> {
        Ok(StoredValue::get(self.store(), &given_key(digest)).await?.map(|kept| kept.value))
    }

    /// Deletes inputs that no run and no node refers to.
    pub(super) async fn forget_given(&self) -> Result<(), StoreError> {
        let mut needed = HashSet::new();
        for header in self.headers().await? {
            let nodes = self.nodes(&header.value.run).await?;
            needed.extend(nodes.into_iter().filter_map(|node| node.value.given));
        }
        needed.extend(self.all_installed().await?.documents());
        let given: Vec<StoredValue<JobInputs>> =
            StoredValue::list(self.store(), &keys::given_profiles()).await?;
        let is_needed = |kept: &&StoredValue<JobInputs>| {
            needed.iter().any(|digest| kept.key == given_key(digest))
        };
        for kept in given.iter().filter(|kept| !is_needed(kept)) {
            let ops = vec![Op::Delete(kept.key.clone())];
            self.store().commit(Txn { compares: vec![kept.unchanged()], ops }).await?;
        }
        Ok(())
    }

    /// How far each of these nodes came in its last run.
    pub(super) async fn last_states(
        &self,
        nodes: &[Arc<Node>],
    ) -> Result<HashMap<NodeId, NodeRunState>, StoreError> {
        let lasts = self.lasts().await?;
        let mut states = HashMap::new();
        for last in nodes.iter().filter_map(|node| lasts.get(&node.id)) {
            let Last { node, run, .. } = &last.value;
            let record = self.node(run, *node).await?;
            states.extend(record.map(|record| (*node, record.value.shown.state)));
        }
        Ok(states)
    }
}

fn after(
    node: &NodeRecord,
    digest: &str,
    given: JobInputs,
    was: Option<InstalledRecord>,
    at: Timestamp,
) -> InstalledRecord {
    let JobInputs { profile, artifacts, .. } = given;
    let run = node.shown.run.clone();
    let document = digest.to_owned();
    let root = node.root.clone();
    let now = Installation { run, profile, document, artifacts, root, at };
    // The same again is nothing to go back to.
    let before = was.and_then(|was| {
        let is_same = was.now.document == now.document;
        if is_same { was.before } else { Some(was.now) }
    });
    InstalledRecord { node: node.shown.id, now, before, changed_by: None }
}

#[async_trait]
impl RetainedContents for Runs {
    async fn retained(&self) -> Result<HashSet<Digest>, StoreError> {
        contents_to_go_back(self.store()).await
    }
}

/// Contents of current and previous installations, which garbage collection must keep.
async fn contents_to_go_back(store: &dyn Store) -> Result<HashSet<Digest>, StoreError> {
    let all: Vec<StoredValue<InstalledRecord>> =
        StoredValue::list(store, &keys::all_installed()).await?;
    let of = |artifacts: &BTreeMap<String, String>| {
        artifacts.values().filter_map(|digest| digest.parse().ok()).collect::<Vec<Digest>>()
    };
    let mut contents = HashSet::new();
    for InstalledRecord { now, before, .. } in all.iter().map(|kept| &kept.value) {
        contents.extend(of(&now.artifacts));
        contents.extend(before.iter().flat_map(|before| of(&before.artifacts)));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(document: &str) -> Installation {
        Installation {
            run: "r".to_owned(),
            profile: "p".parse().unwrap(),
            document: document.to_owned(),
            artifacts: BTreeMap::new(),
            root: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn previous_installation_depends_on_the_last_outcome() {
        let node = NodeId::from_bits(1);
        let now = installed("new");
        let before = Some(installed("old"));
        let record = InstalledRecord { node, now, before, changed_by: None };
        let all = AllInstalled(HashMap::from([(node, record)]));
        let to = |last| all.previous(node, last).map(|to| to.document.as_str());
        assert_eq!(to(None), Some("old"));
        assert_eq!(to(Some(NodeRunState::Done)), Some("old"));
        assert_eq!(to(Some(NodeRunState::Undone)), Some("old"), "it has `new` again");
        assert_eq!(to(Some(NodeRunState::Failed)), Some("new"));
        assert_eq!(all.previous(NodeId::from_bits(2), None), None);
    }
}
