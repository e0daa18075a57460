//! Explores every course of a small run: messages in any order, lost or duplicated, and a crash of
//! the controller between any two acts. With commands: hold, release, stop, resume and retry at any
//! moment.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use hoist_engine::plan::{Call, Draft, Kind, OnFailure, Repeat, Step, Vertex, Window};
use hoist_engine::record::{End, FailedCheck, FailureKind, Outcome};
use hoist_engine::run::{AttemptStatus, Decision, State, StepEnd};
use hoist_engine::undo::undo_plan;
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};

/// The order of the acts of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    KeepThenAct,
    /// The bug that the model must find.
    ActThenKeep,
}

/// The whole state. The controller has no memory except the journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Site {
    /// Encoded as text, because records have no order.
    journal: Vec<String>,
    /// The attempts that the executor was given, and whether it still knows them.
    told: BTreeMap<(StepId, u32), bool>,
    /// Messages on their way to the controller.
    mail: BTreeSet<Mail>,
    crashes: u8,
    losses: u8,
    /// Number of commands that were given and recorded.
    said: usize,
    now: u64,
}

/// Commands in sequence, each given as soon as it can have an effect, or later.
#[derive(Debug, Clone, Copy)]
enum Person {
    Hold(StepId),
    Release(StepId),
    Stop,
    Resume,
    Retry(StepId),
    /// Time passes by itself: Friday comes.
    Friday,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mail {
    Tick,
    Ran(StepId, u32),
    Failed(StepId, u32),
    Verified(StepId, u32, bool),
    Found(StepId, u32, Memory),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Memory {
    Never,
    Ended,
    Failed,
    Gone,
}

struct Model {
    plan: Arc<Plan>,
    order: Order,
    /// Whether the executor forgets its attempts when the controller crashes: both may be the same
    /// process.
    forgets: bool,
    crashes: u8,
    losses: u8,
    persons: Vec<Person>,
    /// The first attempt of this step fails.
    fails: Option<StepId>,
}

/// The result of the exploration.
#[derive(Debug, Default)]
struct Walk {
    sites: usize,
    finished: usize,
    violations: BTreeSet<String>,
}

fn failed() -> End {
    End::Failed { kind: FailureKind::Exit, reason: "no".to_owned() }
}

const DONE: End = End::Done { changed: true, receipt: Value::Null };

impl Model {
    fn walk(&self) -> Walk {
        let first = Record::Plan { hash: self.plan.hash().to_owned(), at: 0 };
        let start = Site {
            journal: vec![text(&first)],
            told: BTreeMap::new(),
            mail: BTreeSet::from([Mail::Tick]),
            crashes: self.crashes,
            losses: self.losses,
            said: 0,
            now: 0,
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut left = vec![start];
        let mut walk = Walk::default();
        while let Some(site) = left.pop() {
            walk.sites += 1;
            let next = self.next(&site, &mut walk.violations);
            if next.is_empty() {
                match self.run(&site).outcome() {
                    Some(Outcome::Succeeded) => walk.finished += 1,
                    other => {
                        walk.violations.insert(format!("it ends with {other:?}"));
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

    fn next(&self, site: &Site, violations: &mut BTreeSet<String>) -> Vec<Site> {
        let mut next = Vec::new();
        for mail in &site.mail {
            let mut rest = site.clone();
            rest.mail.remove(mail);
            if site.losses > 0 && *mail != Mail::Tick {
                next.push(Site { losses: site.losses - 1, ..rest.clone() });
                // The message arrives again.
                let again = Site { losses: site.losses - 1, ..site.clone() };
                self.decide(&again, |run| run.on(event(*mail), site.now), &mut next, violations);
            }
            self.decide(&rest, |run| run.on(event(*mail), site.now), &mut next, violations);
        }
        let run = self.run(site);
        let may_say = self.persons.get(site.said).filter(|person| may_say(**person, &run));
        if let Some(person) = may_say {
            let now = if matches!(person, Person::Friday) { FRIDAY } else { site.now };
            let said = Site { now, ..site.clone() };
            let mut ways = Vec::new();
            self.decide(&said, |run| run.on(says(*person), now), &mut ways, violations);
            // An unanswered sender repeats its message.
            next.extend(ways.into_iter().map(|way| Site {
                said: site.said + usize::from(way.crashes == site.crashes),
                ..way
            }));
        }
        // No event is left: the run asks for waiting steps.
        if site.mail.is_empty() && run.outcome().is_none() {
            let asked = self.run(site).recover(site.now);
            if asked == Decision::default() && may_say.is_none() {
                violations.insert(format!("it stands still: {:?}", run.stuck()));
            }
            self.decide(site, |run| run.recover(site.now), &mut next, violations);
        }
        next
    }

    /// Every possible outcome of a decision: it is carried out, or the controller crashes on the
    /// way.
    fn decide(
        &self,
        site: &Site,
        decide: impl Fn(&mut Run) -> Decision,
        next: &mut Vec<Site>,
        violations: &mut BTreeSet<String>,
    ) {
        let decision = decide(&mut self.run(site));
        let records = decision.records;
        let effects = decision.effects;
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
                    self.act(&mut after, effects[act], violations);
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

    fn act(&self, site: &mut Site, effect: Effect, violations: &mut BTreeSet<String>) {
        match effect {
            Effect::Start { step, attempt } => {
                let run = self.run(site);
                let good =
                    |id: &StepId| matches!(run.state(*id), State::Ended(end) if end.is_good());
                if !self.plan.vertex(step).after.iter().all(good) {
                    violations
                        .insert("a step starts before its predecessors are durable".to_owned());
                }
                if good(&step) {
                    violations.insert("a step starts though it is done".to_owned());
                }
                // An executor that knows the attempt does not start it again; it repeats the
                // result.
                if site.told.insert((step, attempt), true) == Some(false) {
                    violations.insert("an attempt starts twice".to_owned());
                }
                site.mail.insert(self.comes_to(step, attempt));
            }
            Effect::Verify { step, attempt } => {
                let done = site.told.keys().any(|(of, _)| *of == step);
                site.mail.insert(Mail::Verified(step, attempt, done));
            }
            Effect::Ask { step, attempt } => {
                let memory = match site.told.get(&(step, attempt)) {
                    None => Memory::Never,
                    Some(true) if self.fails == Some(step) && attempt == 1 => Memory::Failed,
                    Some(true) => Memory::Ended,
                    Some(false) => Memory::Gone,
                };
                site.mail.insert(Mail::Found(step, attempt, memory));
            }
            Effect::Check { .. } | Effect::Kill { .. } => unreachable!("it was not planned"),
        }
    }

    fn comes_to(&self, step: StepId, attempt: u32) -> Mail {
        if self.fails == Some(step) && attempt == 1 {
            Mail::Failed(step, attempt)
        } else {
            Mail::Ran(step, attempt)
        }
    }
}

/// A Friday in milliseconds; 1970 began on a Thursday.
const FRIDAY: u64 = 24 * 3_600_000;

/// Whether a command would have an effect, or has had it.
fn may_say(person: Person, run: &Run) -> bool {
    match person {
        Person::Stop => run.outcome() != Some(Outcome::Succeeded),
        Person::Retry(step) => {
            matches!(run.state(step), State::Ended(StepEnd::Failed(_))) || run.attempt(step) > 1
        }
        Person::Hold(_) | Person::Release(_) | Person::Resume | Person::Friday => true,
    }
}

fn says(person: Person) -> Event {
    let by = "me".to_owned();
    match person {
        Person::Hold(step) => Event::Hold { step, held: true, by },
        Person::Release(step) => Event::Hold { step, held: false, by },
        Person::Stop => Event::Stop { now: false, by },
        Person::Resume => Event::Resume { by },
        Person::Retry(step) => Event::Retry { step, by },
        Person::Friday => Event::Tick,
    }
}

fn event(mail: Mail) -> Event {
    match mail {
        Mail::Tick => Event::Tick,
        Mail::Ran(step, attempt) => Event::Ran { step, attempt, end: DONE },
        Mail::Failed(step, attempt) => Event::Ran { step, attempt, end: failed() },
        Mail::Verified(step, attempt, holds) => {
            Event::Verified { step, attempt, failed: (!holds).then(FailedCheck::default) }
        }
        Mail::Found(step, attempt, memory) => {
            let found = match memory {
                Memory::Never => AttemptStatus::Never,
                Memory::Ended => AttemptStatus::Ended(DONE),
                Memory::Failed => AttemptStatus::Ended(failed()),
                Memory::Gone => AttemptStatus::Gone,
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

fn step(after: &[u32], step: Step) -> Vertex {
    let call = Call { action: "test".to_owned(), ..Call::default() };
    Vertex {
        name: format!("after {after:?}"),
        after: after.iter().copied().map(StepId).collect(),
        kind: Kind::Step(Box::new(Step { call, on_failure: OnFailure::Continue, ..step })),
    }
}

/// Two steps in sequence, and an independent one.
fn plan(repeat: Repeat) -> Arc<Plan> {
    let looks = if repeat == Repeat::Check { vec![Call::default()] } else { Vec::new() };
    let like = || Step { after: looks.clone(), repeat, ..Step::default() };
    let vertices = vec![step(&[], like()), step(&[0], like()), step(&[], like())];
    Arc::new(Plan::new(Draft { vertices, ..Draft::default() }).expect("a plan"))
}

fn model(plan: Arc<Plan>) -> Model {
    let order = Order::KeepThenAct;
    let forgets = false;
    let persons = Vec::new();
    let fails = None;
    Model { plan, order, forgets, crashes: 2, losses: 2, persons, fails }
}

#[test]
fn every_course_ends_well_and_repeats_nothing() {
    for repeat in [Repeat::Safe, Repeat::Check] {
        for forgets in [false, true] {
            let walk = Model { forgets, ..model(plan(repeat)) }.walk();
            assert!(
                walk.violations.is_empty(),
                "{repeat:?}, forgets {forgets}: {:?}",
                walk.violations
            );
            assert!(walk.sites > 1_000 && walk.finished > 0, "{walk:?}");
        }
    }
}

#[test]
fn commands_are_safe_at_any_time() {
    use Person::{Friday, Hold, Release, Resume, Retry, Stop};
    let first = StepId(0);
    let second = StepId(1);
    let windows = vec![Window { name: "friday".to_owned(), spans: vec![(4 * 1440, 5 * 1440)] }];
    let safe = Step { repeat: Repeat::Safe, ..Step::default() };
    let late = Step { window: Some(0), ..safe.clone() };
    let vertices = vec![step(&[], safe.clone()), step(&[0], late), step(&[], safe)];
    let plan =
        Arc::new(Plan::new(Draft { vertices, windows, ..Draft::default() }).expect("a plan"));
    for (persons, fails) in [
        (vec![Hold(second), Release(second), Friday], None),
        (vec![Hold(first), Friday, Release(first)], None),
        (vec![Stop, Resume, Friday], None),
        (vec![Friday, Stop, Stop, Resume], None),
        (vec![Retry(first), Friday], Some(first)),
    ] {
        for forgets in [false, true] {
            let plan = Arc::clone(&plan);
            let persons = persons.clone();
            let said = format!("{persons:?}, forgets {forgets}");
            let walk =
                Model { forgets, crashes: 1, losses: 1, persons, fails, ..model(plan) }.walk();
            assert!(walk.violations.is_empty(), "{said}: {:?}", walk.violations);
            assert!(walk.sites > 100 && walk.finished > 0, "{said}: {walk:?}");
        }
    }
}

#[test]
fn every_undo_run_ends_well() {
    let there = plan(Repeat::Safe);
    let mut run = Run::new(Arc::clone(&there));
    run.on(Event::Tick, 0);
    for step in [0, 2, 1].map(StepId) {
        run.on(Event::Ran { step, attempt: 1, end: DONE }, 0);
    }
    let back = undo_plan(&run, "there", |_| true, |_| None).expect("everything was done");
    let back = Arc::new(Plan::new(back.draft).expect("a plan"));
    for forgets in [false, true] {
        let walk = Model { forgets, crashes: 1, losses: 1, ..model(Arc::clone(&back)) }.walk();
        assert!(walk.violations.is_empty(), "forgets {forgets}: {:?}", walk.violations);
        assert!(walk.sites > 100 && walk.finished > 0, "{walk:?}");
    }
}

#[test]
fn model_detects_acting_before_a_durable_intent() {
    let order = Order::ActThenKeep;
    let violations = Model { order, forgets: true, ..model(plan(Repeat::Safe)) }.walk().violations;
    assert!(violations.contains("an attempt starts twice"), "{violations:?}");
    assert!(
        violations.contains("a step starts before its predecessors are durable"),
        "{violations:?}"
    );
}
