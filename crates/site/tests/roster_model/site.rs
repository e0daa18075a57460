//! The whole model: the possible next events, and the promises.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::controller::{CommitResult, Controller, PendingWrite, PlannedWrite, delta};
use crate::model_roster::Mark;
use crate::store::{Commit, Store, nodes};
use crate::wish::{self, ANCHOR, Answer, IMPORTED, RIVALS, Wish};

/// How often each thing may happen: what makes the state space finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) writes: u8,
    pub(crate) imports: u8,
    pub(crate) outages: u8,
    pub(crate) crashes: u8,
    pub(crate) compactions: u8,
    pub(crate) folds: u8,
    pub(crate) copies: u8,
    pub(crate) newer: u8,
}

/// A budget, and a mistake or none.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) budget: Budget,
    pub(crate) mutant: Option<Mutant>,
}

/// Mistakes that the model must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A load that fails replaces the roster by an empty one.
    EmptyWhenLoadFails,
    /// Readers see a change before the store has it.
    PublishBeforeCommit,
    /// Repeated changes of the watch are applied again.
    TakeInStaleBatch,
    /// The site's revision is written without comparing it.
    CommitWithoutCompare,
    /// After a lost race only the compare is renewed, not the plan.
    RetryWithoutReplanning,
    /// The position moves although the batch turns out to be unreadable.
    MoveBeforeReading,
    /// A fold publishes its own result over newer changes.
    FoldOverwrites,
    /// Part of a source's answer counts as all of it.
    PartIsWhole,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    store: Store,
    controllers: [Controller; 2],
    /// The nodes that the source really has.
    source: Vec<u8>,
    left: Budget,
    told: Story,
}

/// The past, for the promises to refer to. The controllers do not know any of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Story {
    writes: u8,
    /// Controller, write and revision.
    acknowledged: Vec<(usize, u8, u64)>,
    /// Nodes whose removal was requested.
    unwanted: BTreeSet<u8>,
    /// Writes that landed without an answer to the caller.
    lost: BTreeSet<u8>,
    refused_after_race: bool,
    /// A folding ended on a roster that was not the one it began with.
    folded_late: bool,
    /// A controller that started from its copy has written.
    back_from_copy: bool,
    /// Controllers whose present run started from the copy.
    from_copy: BTreeSet<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Plan(usize, Wish),
    /// The commit is answered.
    Commit(usize),
    /// The commit lands, but its answer is lost.
    CommitUnanswered(usize),
    /// It does not land: the store is away.
    CommitFails(usize),
    CatchUp(usize),
    Follow(usize),
    Deliver(usize),
    StartFold(usize),
    EndFold(usize),
    Keep(usize),
    Crash(usize),
    Restart(usize),
    Lose,
    Return,
    Compact,
    /// A node is removed from the source on purpose.
    SourceLoses,
    Newer,
}

pub(crate) const SHARED: &str = "both controllers wrote, and each sees the other's";
pub(crate) const LOST_BUT_LANDED: &str = "an unanswered write shows on its controller";
pub(crate) const REFUSED_AFTER_RACE: &str = "a write is refused because of the one that was faster";
pub(crate) const FOLDED_LATE: &str = "a folding ends on a newer roster";
pub(crate) const BACK_FROM_COPY: &str = "a controller that started from its copy writes again";
pub(crate) const PRUNED: &str = "a node that left the source is removed";

impl Scene {
    pub(crate) const PROMISES: [&'static str; 6] = [
        "nothing is taken away by a failure",
        "no revision goes back",
        "a roster is the site of its revision",
        "an acknowledged write stays",
        "no two writes have one revision",
        "no two nodes have one MAC",
    ];

    /// The plan of this write on this controller; `None` when it writes nothing.
    fn plan(&self, site: &Site, controller: usize, wish: Wish, write: u8) -> Option<PlannedWrite> {
        let process = site.controllers[controller].running.as_ref()?;
        let roster = &process.roster.roster;
        let planned = match wish {
            Wish::Import(answer) => {
                let said = match answer {
                    Answer::Complete => wish::imported(&site.source),
                    // There is no smaller answer than all: the source says "error" instead.
                    Answer::Part if self.mutant != Some(Mutant::PartIsWhole) => return None,
                    Answer::Part => wish::imported(&site.source[..1]),
                    Answer::None => return None,
                };
                let (plan, memory) = wish::plan_import(roster, &said, &site.store.recall())?;
                PlannedWrite { plan, memory: Some(memory) }
            }
            other => PlannedWrite { plan: wish::plan(roster, other, write)?, memory: None },
        };
        Some(planned)
    }

    fn begin(&self, site: &mut Site, controller: usize, wish: Wish) {
        let write = site.told.writes + 1;
        let planned = self.plan(site, controller, wish, write);
        match wish {
            Wish::Import(_) => site.left.imports -= 1,
            _ => site.left.writes -= 1,
        }
        let Some(planned) = planned else { return };
        if let Wish::Remove(number) = wish {
            site.told.unwanted.insert(number);
        }
        if planned.plan.is_empty() {
            // The importer stores its memory even without a change.
            if let Some(memory) = planned.memory.filter(|_| site.store.up) {
                site.store.remember(&memory);
            }
            return;
        }
        site.told.writes = write;
        let Some(process) = &mut site.controllers[controller].running else { return };
        if self.mutant == Some(Mutant::PublishBeforeCommit) {
            process.publish(process.roster.apply(delta(&planned.plan)));
        }
        process.pending = Some(PendingWrite { write, wish, plan: Some(planned) });
    }

    fn commit(&self, site: &mut Site, controller: usize, answered: bool) {
        let Site { store, controllers, told, .. } = site;
        let Some(before) = controllers[controller].running.clone() else { return };
        let write = before.pending.as_ref().map_or(0, |pending| pending.write);
        match controllers[controller].commit(store, self.mutant) {
            Some(CommitResult::Done(revision)) if answered => {
                told.acknowledged.push((controller, write, revision));
                told.back_from_copy |= told.from_copy.contains(&controller);
            }
            Some(CommitResult::Done(_)) => {
                // It landed, but this controller knows as much as before.
                let publishes_first = self.mutant == Some(Mutant::PublishBeforeCommit);
                let roster = controllers[controller].running.as_ref().map(|p| p.roster.clone());
                let mut process = before;
                process.pending = None;
                if publishes_first && let Some(roster) = roster {
                    process.roster = roster;
                }
                controllers[controller].running = Some(process);
                told.lost.insert(write);
            }
            Some(CommitResult::Conflict) | None => {}
        }
    }

    fn catch_up(&self, site: &mut Site, controller: usize) {
        let stale = site.controllers[controller].running.clone();
        let caught_up = site.controllers[controller].catch_up(&site.store, self.mutant);
        let pending = site.controllers[controller].running.as_mut().and_then(|p| p.pending.take());
        let Some(PendingWrite { write, wish, .. }) = pending else { return };
        if !caught_up {
            return;
        }
        let planned = self.plan(site, controller, wish, write);
        site.told.refused_after_race |= planned.is_none() && stale.is_some();
        let planned = planned.filter(|planned| !planned.plan.is_empty());
        if let Some(process) = &mut site.controllers[controller].running {
            process.pending = planned.map(|plan| PendingWrite { write, wish, plan: Some(plan) });
        }
    }
}

impl Model for Scene {
    type State = Site;
    type Action = Step;

    fn init_states(&self) -> Vec<Site> {
        let puts = wish::first_nodes();
        let first = Commit { revision: 1, write: 0, puts, deletes: Vec::new(), unreadable: false };
        let store = Store::new(first);
        let mut controller = Controller { running: None, copy: None };
        controller.start(&store);
        controller.follow(&store, None);
        let controllers = [controller.clone(), controller];
        let source = IMPORTED.to_vec();
        vec![Site { store, controllers, source, left: self.budget, told: Story::default() }]
    }

    fn actions(&self, site: &Site, steps: &mut Vec<Step>) {
        let left = site.left;
        for (c, controller) in site.controllers.iter().enumerate() {
            let Some(process) = &controller.running else {
                steps.push(Step::Restart(c));
                continue;
            };
            let may_write = process.position.loaded;
            match &process.pending {
                // The lock is held: nothing else on this controller takes in or writes.
                Some(PendingWrite { plan: Some(_), .. }) if site.store.up => {
                    steps.extend([Step::Commit(c), Step::CommitUnanswered(c)]);
                }
                Some(PendingWrite { plan: Some(_), .. }) => steps.push(Step::CommitFails(c)),
                Some(_) => steps.push(Step::CatchUp(c)),
                None => {
                    if left.writes > 0 && may_write {
                        steps.extend([
                            Step::Plan(c, Wish::Put(RIVALS[c])),
                            Step::Plan(c, Wish::Put(ANCHOR)),
                            Step::Plan(c, Wish::Remove(RIVALS[0])),
                        ]);
                    }
                    if left.imports > 0 && may_write {
                        let answers = [Answer::Complete, Answer::Part, Answer::None];
                        steps.extend(answers.map(|answer| Step::Plan(c, Wish::Import(answer))));
                    }
                    if process.watch.is_none() {
                        steps.push(Step::Follow(c));
                    } else {
                        steps.push(Step::Deliver(c));
                    }
                    if process.folding.is_some() {
                        steps.push(Step::EndFold(c));
                    }
                }
            }
            // The controllers are alike: it is enough that these things happen to the first.
            if c > 0 {
                continue;
            }
            if process.folding.is_none() && left.folds > 0 {
                steps.push(Step::StartFold(c));
            }
            if left.copies > 0 && !process.from_copy {
                steps.push(Step::Keep(c));
            }
            if left.crashes > 0 {
                steps.push(Step::Crash(c));
            }
        }
        if site.store.up && left.outages > 0 {
            steps.push(Step::Lose);
        }
        if !site.store.up {
            steps.push(Step::Return);
        }
        if left.compactions > 0 && site.store.floor < site.store.head() {
            steps.push(Step::Compact);
        }
        if site.source.len() > 1 && left.imports > 0 {
            steps.push(Step::SourceLoses);
        }
        if left.newer > 0 && site.store.up {
            steps.push(Step::Newer);
        }
    }

    fn next_state(&self, last: &Site, step: Step) -> Option<Site> {
        let mut site = last.clone();
        match step {
            Step::Plan(c, wish) => self.begin(&mut site, c, wish),
            Step::Commit(c) => self.commit(&mut site, c, true),
            Step::CommitUnanswered(c) => self.commit(&mut site, c, false),
            Step::CommitFails(c) => site.controllers[c].running.as_mut()?.pending = None,
            Step::CatchUp(c) => self.catch_up(&mut site, c),
            Step::Follow(c) => site.controllers[c].follow(&site.store, self.mutant),
            Step::Deliver(c) => site.controllers[c].deliver(&site.store, self.mutant),
            Step::StartFold(c) => {
                let process = site.controllers[c].running.as_mut()?;
                process.folding = Some(process.roster.clone());
                site.left.folds -= 1;
            }
            Step::EndFold(c) => {
                let process = site.controllers[c].running.as_ref()?;
                site.told.folded_late |= process.folding.as_ref() != Some(&process.roster);
                site.controllers[c].end_fold(self.mutant);
            }
            Step::Keep(c) => {
                site.controllers[c].copy =
                    Some(site.controllers[c].running.as_ref()?.roster.clone());
                site.left.copies -= 1;
            }
            Step::Crash(c) => {
                site.controllers[c].running = None;
                site.left.crashes -= 1;
            }
            Step::Restart(c) => {
                site.controllers[c].start(&site.store);
                let from_copy = site.controllers[c].running.as_ref()?.from_copy;
                if from_copy {
                    site.told.from_copy.insert(c);
                } else {
                    site.told.from_copy.remove(&c);
                }
            }
            Step::Lose => {
                site.store.up = false;
                site.left.outages -= 1;
            }
            Step::Return => site.store.up = true,
            Step::Compact => {
                site.store.floor = site.store.head();
                site.left.compactions -= 1;
            }
            Step::SourceLoses => {
                site.told.unwanted.extend(site.source.pop());
            }
            Step::Newer => {
                let revision = site.store.revision() + 1;
                let puts = Vec::new();
                let deletes = Vec::new();
                site.store.commit(Commit { revision, write: 0, puts, deletes, unreadable: true });
                site.left.newer -= 1;
            }
        }
        (site != *last).then_some(site)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let [whole, forward, exact, kept, single, unique] = Self::PROMISES;
        vec![
            Property::always(whole, |_, site: &Site| site.nothing_is_missing()),
            Property::always(forward, |_, site: &Site| {
                site.processes().all(|(_, p)| p.roster.revision() == p.shown)
            }),
            Property::always(exact, |_, site: &Site| site.rosters_are_exact()),
            Property::always(kept, |_, site: &Site| site.acknowledged_is_kept()),
            Property::always(single, |_, site: &Site| {
                let revisions = site.store.commits().iter().map(|commit| commit.revision);
                revisions.eq((1..).take(site.store.head()))
            }),
            Property::always(unique, |_, site: &Site| {
                let content = site.store.content(site.store.head());
                let marks = nodes(content.values());
                let macs: BTreeSet<_> = marks.iter().map(|(.., mac)| mac).collect();
                macs.len() == marks.len()
            }),
            Property::sometimes(SHARED, |_, site: &Site| {
                let writers: BTreeSet<_> = site.told.acknowledged.iter().map(|(c, ..)| c).collect();
                let current = site.store.revision();
                let sees_all = site.processes().filter(|(_, p)| p.roster.revision() == current);
                writers.len() == 2 && sees_all.count() == 2
            }),
            Property::sometimes(LOST_BUT_LANDED, |_, site: &Site| {
                let lost = |mark: &Mark| {
                    let writer = mark.2.as_deref().unwrap_or_default();
                    site.told.lost.iter().any(|write| writer == wish::role(*write))
                };
                site.processes().any(|(_, p)| p.roster.nodes().iter().any(lost))
            }),
            Property::sometimes(REFUSED_AFTER_RACE, |_, site: &Site| site.told.refused_after_race),
            Property::sometimes(FOLDED_LATE, |_, site: &Site| site.told.folded_late),
            Property::sometimes(BACK_FROM_COPY, |_, site: &Site| site.told.back_from_copy),
            Property::sometimes(PRUNED, |_, site: &Site| {
                let content = site.store.content(site.store.head());
                !nodes(content.values()).iter().any(|(id, ..)| *id == wish::id(IMPORTED[1]))
            }),
        ]
    }
}

impl Site {
    fn processes(&self) -> impl Iterator<Item = (usize, &crate::controller::Process)> {
        self.controllers
            .iter()
            .enumerate()
            .filter_map(|(c, controller)| Some((c, controller.running.as_ref()?)))
    }

    /// Nodes whose removal was never requested still exist.
    fn nothing_is_missing(&self) -> bool {
        let lasting = [ANCHOR].into_iter().chain(IMPORTED);
        let wanted: Vec<_> =
            lasting.filter(|number| !self.told.unwanted.contains(number)).map(wish::id).collect();
        let has_all = |marks: &[Mark]| wanted.iter().all(|id| marks.iter().any(|m| m.0 == *id));
        has_all(&nodes(self.store.content(self.store.head()).values()))
            && self.processes().all(|(_, process)| has_all(&process.roster.nodes()))
    }

    fn rosters_are_exact(&self) -> bool {
        self.processes().all(|(_, process)| {
            let shown = process.roster.nodes();
            self.store.nodes_at(process.roster.revision()).is_some_and(|site| site == shown)
        })
    }

    fn acknowledged_is_kept(&self) -> bool {
        self.told.acknowledged.iter().all(|(c, write, revision)| {
            let stored = self.store.commits().iter();
            let stored =
                stored.filter(|k| k.revision == *revision && k.write == *write).count() == 1;
            let visible = self.controllers[*c].running.as_ref().is_none_or(|process| {
                // A controller on the last-good copy may be older, until it has read the store.
                process.from_copy || process.roster.revision() >= *revision
            });
            stored && visible
        })
    }
}
