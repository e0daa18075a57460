//! One controller: what `Registry` does, step by step.

use std::hash::{Hash, Hasher};

use hoist_site::plan::Plan;
use hoist_site::reconcile::Memory;
use hoist_site::{Delta, Resource};

use crate::model_roster::ModelRoster;
use crate::site::Mutant;
use crate::store::{At, Commit, Store, nodes};
use crate::wish::Wish;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Controller {
    /// `None`: the process is not running.
    pub(crate) running: Option<Process>,
    /// The last-good copy on its disk.
    pub(crate) copy: Option<ModelRoster>,
}

/// The state that a kill loses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Process {
    /// What readers see.
    pub(crate) roster: ModelRoster,
    /// The highest revision readers have seen.
    pub(crate) shown: u64,
    pub(crate) position: Position,
    /// It came from the last-good copy and has not reached the store yet.
    pub(crate) from_copy: bool,
    /// How far the open watch has delivered; `None`: there is none.
    pub(crate) watch: Option<At>,
    /// A write that holds the position's lock.
    pub(crate) pending: Option<PendingWrite>,
    /// A running fold, and the roster it started with.
    pub(crate) folding: Option<ModelRoster>,
}

/// How far into the store's history the roster is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Position {
    pub(crate) seen: At,
    pub(crate) site: Option<At>,
    pub(crate) loaded: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct PendingWrite {
    pub(crate) write: u8,
    pub(crate) wish: Wish,
    /// `None` after a lost race, until it has been planned again.
    pub(crate) plan: Option<PlannedWrite>,
}

#[derive(Clone, Debug)]
pub(crate) struct PlannedWrite {
    pub(crate) plan: Plan,
    /// The memory of an import, written together with its changes.
    pub(crate) memory: Option<Memory>,
}

/// The outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitResult {
    /// Acknowledged with this revision.
    Done(u64),
    Conflict,
}

impl Controller {
    pub(crate) fn start(&mut self, store: &Store) {
        self.running = match (store.up, &self.copy) {
            (true, _) => Process::open(store),
            (false, Some(copy)) => {
                let resources = copy.roster.resources().collect();
                let roster = ModelRoster::build(copy.revision(), resources, 0);
                Some(Process::new(roster, Position::default(), true))
            }
            // Nothing to go on from: it does not start.
            (false, None) => None,
        };
    }

    /// `ensure_loaded`, then `watch`.
    pub(crate) fn follow(&mut self, store: &Store, mutant: Option<Mutant>) {
        let Some(process) = &mut self.running else { return };
        if !store.up {
            process.watch = None;
            if mutant == Some(Mutant::EmptyWhenLoadFails) {
                process.publish(process.rebuilt(process.roster.revision(), Vec::new()));
            }
            return;
        }
        if !process.position.loaded && !process.reload(store) {
            return;
        }
        if process.position.seen < store.floor {
            process.position.loaded = false;
        } else {
            process.watch = Some(process.position.seen);
        }
    }

    /// The next batch of the watch.
    pub(crate) fn deliver(&mut self, store: &Store, mutant: Option<Mutant>) {
        let Some(process) = &mut self.running else { return };
        let Some(at) = process.watch else { return };
        if !store.up {
            process.watch = None;
        } else if at < store.floor {
            process.watch = None;
            process.position.loaded = false;
        } else if let Some(commit) = store.next(at) {
            let taken = process.take_in(at + 1, commit, mutant);
            process.watch = taken.then_some(at + 1);
        }
    }

    /// `commit_plan`, and the consequences of its answer.
    pub(crate) fn commit(
        &mut self,
        store: &mut Store,
        mutant: Option<Mutant>,
    ) -> Option<CommitResult> {
        let process = self.running.as_mut()?;
        let pending = process.pending.as_ref()?;
        let PlannedWrite { plan, memory } = pending.plan.clone()?;
        let blind = mutant == Some(Mutant::CommitWithoutCompare);
        if process.position.site != Some(store.site()) && !blind {
            if let Some(pending) = &mut process.pending {
                pending.plan = None;
            }
            return Some(CommitResult::Conflict);
        }
        let revision = plan.base + 1;
        let puts = plan.puts.clone();
        let deletes = plan.deletes.clone();
        let write = pending.write;
        let stored = store.commit(Commit { revision, write, puts, deletes, unreadable: false });
        if let Some(memory) = &memory {
            store.remember(memory);
        }
        process.position.seen = process.position.seen.max(stored);
        process.position.site = Some(stored);
        if mutant != Some(Mutant::PublishBeforeCommit) {
            process.publish(process.roster.apply(delta(&plan)));
        }
        process.pending = None;
        Some(CommitResult::Done(revision))
    }

    /// `catch_up` after a lost race; the write is planned again by the caller. `false`: it failed.
    pub(crate) fn catch_up(&mut self, store: &Store, mutant: Option<Mutant>) -> bool {
        let Some(process) = &mut self.running else { return false };
        if !store.up {
            return false;
        }
        if mutant == Some(Mutant::RetryWithoutReplanning) {
            process.position.site = Some(store.site());
            return true;
        }
        let mut at = process.position.seen;
        let mut followed = at >= store.floor;
        while followed && let Some(commit) = store.next(at) {
            at += 1;
            followed = process.take_in(at, commit, mutant);
        }
        if !followed && !process.reload(store) {
            return false;
        }
        process.position.site = Some(store.site());
        true
    }

    pub(crate) fn end_fold(&mut self, mutant: Option<Mutant>) {
        let Some(process) = &mut self.running else { return };
        let Some(before) = process.folding.take() else { return };
        let next = if mutant == Some(Mutant::FoldOverwrites) {
            before.folded()
        } else {
            process.roster.rebased(&before)
        };
        process.publish(next);
    }
}

impl Process {
    /// `Registry::open`.
    fn open(store: &Store) -> Option<Self> {
        let roster = ModelRoster::build(store.revision(), store.load()?, 0);
        Some(Self::new(roster, at_head(store), false))
    }

    fn new(roster: ModelRoster, position: Position, from_copy: bool) -> Self {
        Self {
            shown: roster.revision(),
            roster,
            position,
            from_copy,
            watch: None,
            pending: None,
            folding: None,
        }
    }

    pub(crate) fn publish(&mut self, roster: ModelRoster) {
        self.shown = self.shown.max(roster.revision());
        self.roster = roster;
    }

    fn rebuilt(&self, revision: u64, resources: Vec<Resource>) -> ModelRoster {
        ModelRoster::build(revision, resources, self.roster.made + 1)
    }

    fn reload(&mut self, store: &Store) -> bool {
        let Some(resources) = store.load() else { return false };
        self.position = at_head(store);
        self.from_copy = false;
        self.publish(self.rebuilt(store.revision(), resources));
        true
    }

    /// `take_in_at`; `false` when the batch cannot be read.
    fn take_in(&mut self, at: At, commit: &Commit, mutant: Option<Mutant>) -> bool {
        if at <= self.position.seen && mutant != Some(Mutant::TakeInStaleBatch) {
            return true;
        }
        if commit.unreadable {
            if mutant == Some(Mutant::MoveBeforeReading) {
                self.position.site = Some(at);
            }
            return false;
        }
        let puts = commit.puts.clone();
        let deletes = commit.deletes.clone();
        self.position = Position { seen: at, site: Some(at), ..self.position };
        let delta = Delta { revision: commit.revision, horizon: 0, puts, deletes };
        self.publish(self.roster.apply(delta));
        true
    }
}

fn at_head(store: &Store) -> Position {
    Position { seen: store.head(), site: Some(store.site()), loaded: true }
}

pub(crate) fn delta(plan: &Plan) -> Delta {
    let puts = plan.puts.clone();
    let deletes = plan.deletes.clone();
    Delta { revision: plan.base + 1, horizon: 0, puts, deletes }
}

impl PendingWrite {
    fn marks(&self) -> impl Hash + Eq + use<> {
        let plan = self.plan.as_ref().map(|PlannedWrite { plan, .. }| {
            (plan.base, nodes(plan.puts.iter()), plan.deletes.len())
        });
        (self.write, self.wish, plan)
    }
}

impl PartialEq for PendingWrite {
    fn eq(&self, other: &Self) -> bool {
        self.marks() == other.marks()
    }
}

impl Eq for PendingWrite {}

impl Hash for PendingWrite {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.marks().hash(state);
    }
}
