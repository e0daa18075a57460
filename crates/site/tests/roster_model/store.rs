//! The store: commits in one order, a compare on the site's revision, and bad days.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hoist_site::reconcile::Memory;
use hoist_site::{Resource, ResourceKey};

use crate::model_roster::{Mark, mark};

/// A commit's place in the store's history, from 1.
pub(crate) type At = usize;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Store {
    pub(crate) up: bool,
    commits: Vec<Arc<Commit>>,
    /// Watches cannot start before this one.
    pub(crate) floor: At,
    /// The memory of the last import, written together with its changes.
    pub(crate) memory: Vec<String>,
}

/// One declared write. They all touch `site/revision`, so all are part of the site's history.
#[derive(Clone)]
pub(crate) struct Commit {
    /// The value that it wrote into `site/revision`.
    pub(crate) revision: u64,
    /// Which write it was.
    pub(crate) write: u8,
    pub(crate) puts: Vec<Resource>,
    pub(crate) deletes: Vec<ResourceKey>,
    /// It has a record of a kind that only newer versions know.
    pub(crate) unreadable: bool,
}

impl Store {
    pub(crate) fn new(first: Commit) -> Self {
        Self { up: true, commits: vec![Arc::new(first)], floor: 0, memory: Vec::new() }
    }

    pub(crate) fn head(&self) -> At {
        self.commits.len()
    }

    pub(crate) fn commits(&self) -> &[Arc<Commit>] {
        &self.commits
    }

    /// The commit after `at`.
    pub(crate) fn next(&self, at: At) -> Option<&Arc<Commit>> {
        self.commits.get(at)
    }

    /// Where `site/revision` was last written: every commit does.
    pub(crate) fn site(&self) -> At {
        self.head()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.commits.last().map_or(0, |commit| commit.revision)
    }

    pub(crate) fn commit(&mut self, commit: Commit) -> At {
        self.commits.push(Arc::new(commit));
        self.head()
    }

    pub(crate) fn remember(&mut self, memory: &Memory) {
        self.memory = memory.absent.iter().cloned().collect();
    }

    pub(crate) fn recall(&self) -> Memory {
        Memory { absent: self.memory.iter().cloned().collect() }
    }

    /// `None` when there is something in it that we cannot read.
    pub(crate) fn load(&self) -> Option<Vec<Resource>> {
        let readable = self.commits.iter().all(|commit| !commit.unreadable);
        readable.then(|| self.content(self.head()).into_values().collect())
    }

    /// Everything there was after the commit at `at`.
    pub(crate) fn content(&self, at: At) -> BTreeMap<ResourceKey, Resource> {
        let mut content = BTreeMap::new();
        for commit in &self.commits[..at] {
            for key in &commit.deletes {
                content.remove(key);
            }
            for put in &commit.puts {
                content.insert(put.key(), put.clone());
            }
        }
        content
    }

    /// The nodes of the site at a revision; `None` if there never was such a revision.
    pub(crate) fn nodes_at(&self, revision: u64) -> Option<Vec<Mark>> {
        let at = self.commits.iter().position(|commit| commit.revision == revision)? + 1;
        Some(nodes(self.content(at).values()))
    }
}

pub(crate) fn nodes<'a>(resources: impl Iterator<Item = &'a Resource>) -> Vec<Mark> {
    let node = |resource: &'a Resource| match resource {
        Resource::Node(node) => Some(mark(node)),
        _ => None,
    };
    resources.filter_map(node).collect()
}

impl Commit {
    fn marks(&self) -> impl Hash + Eq + fmt::Debug + use<> {
        let deletes: Vec<_> = self.deletes.clone();
        (self.revision, self.write, self.unreadable, deletes, nodes(self.puts.iter()))
    }
}

impl PartialEq for Commit {
    fn eq(&self, other: &Self) -> bool {
        self.marks() == other.marks()
    }
}

impl Eq for Commit {}

impl Hash for Commit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.marks().hash(state);
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{} by w{}", self.revision, self.write)
    }
}
