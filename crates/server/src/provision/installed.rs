//! What nodes have and had before, so that they can go back to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use hoist_api::provision::{How, Installed, NodeRunState, RootDisk};
use hoist_inventory::record::{provision_given, provision_installed, provision_installed_key};
use hoist_model::{Digest, Node, NodeId};
use hoist_store::{Op, Store, StoreError, Txn};
use jiff::Timestamp;

use super::record::{Given, InstalledRecord, Kept, Last, NodeRecord, given_key, put};
use super::runs::Runs;
use crate::failure::Failure;

/// What is known of all nodes, for a run that begins.
#[derive(Debug, Default)]
pub(super) struct AllInstalled(HashMap<NodeId, InstalledRecord>);

impl AllInstalled {
    /// The digests of all that nodes have and had.
    pub(super) fn documents(self) -> impl Iterator<Item = String> {
        let both = |record: InstalledRecord| [Some(record.now), record.before];
        self.0.into_values().flat_map(both).flatten().map(|installed| installed.document)
    }

    pub(super) fn now(&self, node: NodeId) -> Option<&Installed> {
        self.0.get(&node).map(|record| &record.now)
    }

    /// What a node goes back to: what it had before what it has, or, if its last run has neither
    /// ended well nor was taken back, what it had before that run.
    pub(super) fn previous(&self, node: NodeId, last: Option<NodeRunState>) -> Option<&Installed> {
        let record = self.0.get(&node)?;
        let has_now = |state| matches!(state, NodeRunState::Done | NodeRunState::Undone);
        let is_now = last.is_none_or(has_now);
        if is_now { record.before.as_ref() } else { Some(&record.now) }
    }
}

impl Runs {
    pub(super) async fn all_installed(&self) -> Result<AllInstalled, StoreError> {
        let all: Vec<Kept<InstalledRecord>> =
            Kept::list(self.store(), &provision_installed()).await?;
        Ok(AllInstalled(all.into_iter().map(|kept| (kept.value.node, kept.value)).collect()))
    }

    /// What is written when a node has all that it was given. A part of a system is none.
    pub(super) async fn installed_by(
        &self,
        how: &How,
        node: &NodeRecord,
    ) -> Result<Option<Op>, StoreError> {
        if how.only.is_empty() && !how.retire { self.installed(node).await } else { Ok(None) }
    }

    async fn installed(&self, node: &NodeRecord) -> Result<Option<Op>, StoreError> {
        let Some(digest) = &node.given else { return Ok(None) };
        let Some(given) = self.given(digest).await? else { return Ok(None) };
        let key = provision_installed_key(node.shown.id);
        let was: Option<Kept<InstalledRecord>> = Kept::get(self.store(), &key).await?;
        let record = after(node, digest, given, was.map(|was| was.value), self.now());
        Ok(Some(put(key, &record)))
    }

    /// The disks that the root of a node is on, as far as that is known.
    pub(super) async fn last_root(&self, node: NodeId) -> Result<Vec<RootDisk>, StoreError> {
        let key = provision_installed_key(node);
        let is: Option<Kept<InstalledRecord>> = Kept::get(self.store(), &key).await?;
        Ok(is.map(|is| is.value.now.root).unwrap_or_default())
    }

    /// What is written when a node has again what it had before.
    pub(super) async fn uninstalled(&self, node: &NodeRecord) -> Result<Option<Op>, StoreError> {
        let key = provision_installed_key(node.shown.id);
        let was: Option<Kept<InstalledRecord>> = Kept::get(self.store(), &key).await?;
        let was = was.filter(|was| was.value.now.run == node.shown.run);
        Ok(was.map(|was| {
            let InstalledRecord { node: id, before, .. } = was.value;
            // Where the same was installed again, what was before is older than the run.
            match node.shown.previous.clone().or_else(|| before.clone()) {
                Some(now) => {
                    let before = before.filter(|before| before.document != now.document);
                    put(key, &InstalledRecord { node: id, now, before })
                }
                None => Op::Delete(key),
            }
        }))
    }
}

/// What nodes are given.
impl Runs {
    /// Remembers what a node is given, so that it is known later whatever becomes of the profile.
    pub(super) async fn remember_given(
        &self,
        node: &NodeRecord,
        given: &Given,
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
        let (run, id) = (&node.shown.run, node.shown.id);
        self.keep(run, id, |node| Some(NodeRecord { given: digest.clone(), ..node.clone() }))
            .await?;
        Ok(())
    }

    /// What a node was given.
    pub(super) async fn given(&self, digest: &str) -> Result<Option<Given>, StoreError> {
        Ok(Kept::get(self.store(), &given_key(digest)).await?.map(|kept| kept.value))
    }

    /// What no run and no node has any more.
    pub(super) async fn forget_given(&self) -> Result<(), StoreError> {
        let mut needed = HashSet::new();
        for header in self.headers().await? {
            let nodes = self.nodes(&header.value.run).await?;
            needed.extend(nodes.into_iter().filter_map(|node| node.value.given));
        }
        needed.extend(self.all_installed().await?.documents());
        let given: Vec<Kept<Given>> = Kept::list(self.store(), &provision_given()).await?;
        let is_needed =
            |kept: &&Kept<Given>| needed.iter().any(|digest| kept.key == given_key(digest));
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
    given: Given,
    was: Option<InstalledRecord>,
    at: Timestamp,
) -> InstalledRecord {
    let Given { profile, artifacts, .. } = given;
    let (run, document) = (node.shown.run.clone(), digest.to_owned());
    let root = node.root.clone();
    let now = Installed { run, profile, document, artifacts, root, at };
    // The same again is nothing to go back to.
    let before = was.and_then(|was| {
        let is_same = was.now.document == now.document;
        if is_same { was.before } else { Some(was.now) }
    });
    InstalledRecord { node: node.shown.id, now, before }
}

/// The contents that nodes need to go back to what they had, each with the first of them.
pub(crate) async fn contents_to_go_back(store: &dyn Store) -> Result<HashSet<Digest>, StoreError> {
    let all: Vec<Kept<InstalledRecord>> = Kept::list(store, &provision_installed()).await?;
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

    fn installed(document: &str) -> Installed {
        Installed {
            run: "r".to_owned(),
            profile: "p".parse().unwrap(),
            document: document.to_owned(),
            artifacts: BTreeMap::new(),
            root: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn who_failed_goes_back_to_what_it_had_and_who_succeeded_to_what_it_had_before() {
        let node = NodeId::from_bits(1);
        let (now, before) = (installed("new"), Some(installed("old")));
        let all = AllInstalled(HashMap::from([(node, InstalledRecord { node, now, before })]));
        let to = |last| all.previous(node, last).map(|to| to.document.as_str());
        assert_eq!(to(None), Some("old"));
        assert_eq!(to(Some(NodeRunState::Done)), Some("old"));
        assert_eq!(to(Some(NodeRunState::Undone)), Some("old"), "it has `new` again");
        assert_eq!(to(Some(NodeRunState::Failed)), Some("new"));
        assert_eq!(all.previous(NodeId::from_bits(2), None), None);
    }
}
