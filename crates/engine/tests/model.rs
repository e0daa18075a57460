//! Every way that a small run can go: whatever comes in any order, is lost, comes twice, and the
//! process that decides dies between any two of its acts. All of them are walked through.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use hoist_engine::plan::{Call, Draft, Kind, Repeat, Step, Vertex};
use hoist_engine::record::{End, Outcome};
use hoist_engine::run::{Found, State};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};

/// What the shell does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    KeepThenAct,
    /// The fault that the model must find.
    ActThenKeep,
}

/// Everything there is. The process that decides has no memory but the journal, so it is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Site {
    /// As text, since records have no order of their own.
    journal: Vec<String>,
    /// What the executor was told, and whether it still knows of it.
    told: BTreeMap<(StepId, u32), bool>,
    /// On its way to the process that decides.
    mail: BTreeSet<Mail>,
    crashes: u8,
    losses: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mail {
    Tick,
    Ran(StepId, u32),
    Verified(StepId, u32, bool),
    Found(StepId, u32, Memory),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Memory {
    Never,
    Ended,
    Gone,
}

struct Model {
    plan: Arc<Plan>,
    order: Order,
    /// Whether an executor forgets what it was told when the process that decides dies: it may be
    /// the same process.
    forgets: bool,
}

/// What became of walking through everything.
#[derive(Debug, Default)]
struct Walk {
    sites: usize,
    finished: usize,
    faults: BTreeSet<String>,
}

const DONE: End = End::Done { changed: true, receipt: Value::Null };

impl Model {
    fn walk(&self) -> Walk {
        let first = Record::Plan { hash: self.plan.hash().to_owned(), at: 0 };
        let start = Site {
            journal: vec![text(&first)],
            told: BTreeMap::new(),
            mail: BTreeSet::from([Mail::Tick]),
            crashes: 2,
            losses: 2,
        };
        let (mut seen, mut left) = (HashSet::from([start.clone()]), vec![start]);
        let mut walk = Walk::default();
        while let Some(site) = left.pop() {
            walk.sites += 1;
            let next = self.next(&site, &mut walk.faults);
            if next.is_empty() {
                match self.run(&site).outcome() {
                    Some(Outcome::Succeeded) => walk.finished += 1,
                    other => {
                        walk.faults.insert(format!("it ends with {other:?}"));
                    }
                }
            }
            left.extend(next.into_iter().filter(|site| seen.insert(site.clone())));
        }
        walk
    }

    fn run(&self, site: &Site) -> Run {
        let records: Vec<Record> = site.journal.iter().map(|line| record(line)).collect();
        Run::replay(&self.plan, &records).expect("our own records")
    }

    fn next(&self, site: &Site, faults: &mut BTreeSet<String>) -> Vec<Site> {
        let mut next = Vec::new();
        for mail in &site.mail {
            let mut rest = site.clone();
            rest.mail.remove(mail);
            if site.losses > 0 && *mail != Mail::Tick {
                next.push(Site { losses: site.losses - 1, ..rest.clone() });
                // It comes once more.
                let again = Site { losses: site.losses - 1, ..site.clone() };
                self.decide(&again, |run| run.on(event(*mail), 0), &mut next, faults);
            }
            self.decide(&rest, |run| run.on(event(*mail), 0), &mut next, faults);
        }
        // Nothing comes any more: whoever waits asks.
        if site.mail.is_empty() && self.run(site).outcome().is_none() {
            self.decide(site, |run| run.recover(0), &mut next, faults);
        }
        next
    }

    /// All that can become of a decision: it is carried out, or the process dies on the way.
    fn decide(
        &self,
        site: &Site,
        decide: impl Fn(&mut Run) -> hoist_engine::run::Decision,
        next: &mut Vec<Site>,
        faults: &mut BTreeSet<String>,
    ) {
        let decision = decide(&mut self.run(site));
        let (records, effects) = (decision.records, decision.effects);
        let steps = records.len() + effects.len();
        for carried_out in 0..=steps {
            let dies = carried_out < steps;
            if dies && site.crashes == 0 {
                continue;
            }
            let mut after = site.clone();
            for at in 0..carried_out {
                let (kept, act) = match self.order {
                    Order::KeepThenAct => (records.get(at), at.wrapping_sub(records.len())),
                    Order::ActThenKeep => {
                        (at.checked_sub(effects.len()).map(|at| &records[at]), at)
                    }
                };
                if let Some(record) = kept {
                    after.journal.push(text(record));
                } else {
                    self.act(&mut after, effects[act], faults);
                }
            }
            if dies {
                after.crashes -= 1;
                after.mail = BTreeSet::new();
                if self.forgets {
                    after.told.values_mut().for_each(|knows| *knows = false);
                }
            }
            next.push(after);
        }
    }

    fn act(&self, site: &mut Site, effect: Effect, faults: &mut BTreeSet<String>) {
        match effect {
            Effect::Start { step, attempt } => {
                let run = self.run(site);
                let good =
                    |id: &StepId| matches!(run.state(*id), State::Ended(end) if end.is_good());
                if !self.plan.vertex(step).after.iter().all(good) {
                    faults.insert("a step starts before what it waits for is durable".to_owned());
                }
                if good(&step) {
                    faults.insert("a step starts though it is done".to_owned());
                }
                // An executor that knows the attempt does not start it again; it says once more how
                // it ended.
                if site.told.insert((step, attempt), true) == Some(false) {
                    faults.insert("an attempt starts twice".to_owned());
                }
                site.mail.insert(Mail::Ran(step, attempt));
            }
            Effect::Verify { step, attempt } => {
                let done = site.told.keys().any(|(of, _)| *of == step);
                site.mail.insert(Mail::Verified(step, attempt, done));
            }
            Effect::Ask { step, attempt } => {
                let memory = match site.told.get(&(step, attempt)) {
                    None => Memory::Never,
                    Some(true) => Memory::Ended,
                    Some(false) => Memory::Gone,
                };
                site.mail.insert(Mail::Found(step, attempt, memory));
            }
            Effect::Check { .. } | Effect::Kill { .. } => unreachable!("it was not planned"),
        }
    }
}

fn event(mail: Mail) -> Event {
    match mail {
        Mail::Tick => Event::Tick,
        Mail::Ran(step, attempt) => Event::Ran { step, attempt, end: DONE },
        Mail::Verified(step, attempt, holds) => {
            Event::Verified { step, attempt, holds, reason: String::new() }
        }
        Mail::Found(step, attempt, memory) => {
            let found = match memory {
                Memory::Never => Found::Never,
                Memory::Ended => Found::Ended(DONE),
                Memory::Gone => Found::Gone,
            };
            Event::Found { step, attempt, found }
        }
    }
}

fn text(record: &Record) -> String {
    serde_json::to_string(record).expect("a plain value")
}

fn record(line: &str) -> Record {
    serde_json::from_str(line).expect("it was just written")
}

/// Two steps after each other, and one beside them.
fn plan(repeat: Repeat) -> Arc<Plan> {
    let call = || Call { action: "test".to_owned(), ..Call::default() };
    let step = |after: &[u32]| {
        let looks = if repeat == Repeat::Check { vec![call()] } else { Vec::new() };
        Vertex {
            name: format!("after {after:?}"),
            after: after.iter().copied().map(StepId).collect(),
            kind: Kind::Step(Box::new(Step {
                call: call(),
                after: looks,
                repeat,
                ..Step::default()
            })),
        }
    };
    let vertices = vec![step(&[]), step(&[0]), step(&[])];
    Arc::new(Plan::new(Draft { vertices, ..Draft::default() }).expect("a plan"))
}

#[test]
fn every_way_ends_well_and_nothing_is_done_twice_for_no_reason() {
    for repeat in [Repeat::Safe, Repeat::Check] {
        for forgets in [false, true] {
            let model = Model { plan: plan(repeat), order: Order::KeepThenAct, forgets };
            let walk = model.walk();
            assert!(walk.faults.is_empty(), "{repeat:?}, forgets {forgets}: {:?}", walk.faults);
            assert!(walk.sites > 1_000 && walk.finished > 0, "{walk:?}");
        }
    }
}

#[test]
fn acting_before_the_intent_is_durable_is_found() {
    let model = Model { plan: plan(Repeat::Safe), order: Order::ActThenKeep, forgets: true };
    let faults = model.walk().faults;
    assert!(faults.contains("an attempt starts twice"), "{faults:?}");
    assert!(faults.contains("a step starts before what it waits for is durable"), "{faults:?}");
}
