//! A run that crashes at any write of its journal ends as it would without the crash, and a step
//! with a durable result never runs twice.
//!
//! The executor of these tests knows as much as a real one: the attempts that it was given, or none
//! of them after a crash.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_engine::plan::{
    Call, ConcurrencyLimit, Draft, FailureDomain, Holder, Kind, OnFailure, Repeat, Rule, Step,
    Vertex,
};
use hoist_engine::record::{End, FailedCheck, FailureKind, Outcome};
use hoist_engine::run::{AttemptStatus, State, StepEnd};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};
use proptest::prelude::*;

/// The outcome of each step, always the same.
#[derive(Debug, Clone, Default)]
struct Nature {
    /// Number of attempts that fail at first.
    failing: BTreeMap<StepId, u32>,
    /// Whether a restarted executor knows its earlier attempts.
    remembers: bool,
}

/// The point at which the loop breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    Never,
    /// When this many records are durable.
    At(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shell {
    /// Records first, then effects.
    Right,
    /// The bug that the model must find.
    ActsFirst,
}

struct World<'a> {
    plan: &'a Arc<Plan>,
    nature: &'a Nature,
    shell: Shell,
    /// Picks the step that ends next.
    seed: u64,
    journal: Vec<Record>,
    /// Attempts that are executed, and whether they have ended.
    told: BTreeMap<(StepId, u32), Option<End>>,
    /// How often each step was really begun.
    begun: BTreeMap<StepId, u32>,
    violations: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Final {
    outcome: Option<Outcome>,
    good: Vec<bool>,
}

impl World<'_> {
    fn new<'a>(plan: &'a Arc<Plan>, nature: &'a Nature, shell: Shell, seed: u64) -> World<'a> {
        World {
            plan,
            nature,
            shell,
            seed,
            journal: vec![Record::Plan { hash: plan.hash().to_owned(), at: 0 }],
            told: BTreeMap::new(),
            begun: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    fn run(&mut self, mut crash: Crash) -> Final {
        let mut run = Run::new(Arc::clone(self.plan));
        let mut now = 1;
        let mut pending: Vec<Event> = vec![Event::Tick];
        loop {
            let event = if pending.is_empty() {
                let Some(wakes) = run.wakes_at() else { break };
                now = now.max(wakes);
                Event::Tick
            } else {
                pending.swap_remove(self.pick(pending.len()))
            };
            now += 1;
            let decision = run.on(event, now);
            if self.perform(decision.records, &decision.effects, &mut crash, &mut pending) {
                continue;
            }
            // The process is gone; effects that were not recorded never happened.
            crash = Crash::Never;
            if !self.nature.remembers {
                self.told.values_mut().for_each(|end| *end = None);
            }
            run = Run::replay(self.plan, &self.journal).expect("our own records");
            pending.clear();
            let decision = run.recover(now);
            assert!(self.perform(decision.records, &decision.effects, &mut crash, &mut pending));
        }
        let is_good = |id| matches!(run.state(id), State::Ended(ended) if ended.is_good());
        let again = Run::replay(self.plan, &self.journal).expect("our own records");
        for id in self.plan.ids() {
            assert_eq!(again.state(id), run.state(id), "the state that is read back");
        }
        Final { outcome: run.outcome(), good: self.plan.ids().map(is_good).collect() }
    }

    /// Returns whether there was no crash.
    fn perform(
        &mut self,
        records: Vec<Record>,
        effects: &[Effect],
        crash: &mut Crash,
        pending: &mut Vec<Event>,
    ) -> bool {
        if self.shell == Shell::ActsFirst {
            for effect in effects {
                self.act(*effect, pending);
            }
        }
        for record in records {
            if *crash == Crash::At(self.journal.len()) {
                return false;
            }
            self.journal.push(record);
        }
        if *crash == Crash::At(self.journal.len()) {
            return false;
        }
        if self.shell == Shell::Right {
            for effect in effects {
                self.act(*effect, pending);
            }
        }
        true
    }

    fn act(&mut self, effect: Effect, pending: &mut Vec<Event>) {
        match effect {
            Effect::Check { step, attempt } => {
                pending.push(Event::Checked { step, attempt, failed: None });
            }
            Effect::Start { step, attempt } => {
                let intent = |record: &Record| matches!(record, Record::Intent { step: s, attempt: a, .. } if (*s, *a) == (step, attempt));
                if !self.journal.iter().any(intent) {
                    self.violations.push(format!("{step} was started before that was durable"));
                }
                let before = &self.plan.vertex(step).after;
                let now = Run::replay(self.plan, &self.journal).expect("our own records");
                if !before.iter().all(|id| matches!(now.state(*id), State::Ended(e) if e.is_good()))
                {
                    self.violations.push(format!("{step} was started before its predecessors"));
                }
                if self.is_done(step) {
                    self.violations.push(format!("{step} was started though it is done"));
                }
                if self.told.contains_key(&(step, attempt)) {
                    self.violations.push(format!("attempt {attempt} of {step} was started twice"));
                }
                *self.begun.entry(step).or_default() += 1;
                let end = self.end(step, attempt);
                self.told.insert((step, attempt), Some(end.clone()));
                pending.push(Event::Ran { step, attempt, end });
            }
            Effect::Verify { step, attempt } => {
                // A step is done if it ever began and does not fail.
                let holds = self.begun.contains_key(&step)
                    && matches!(self.end(step, attempt), End::Done { .. });
                let failed = (!holds).then(FailedCheck::default);
                pending.push(Event::Verified { step, attempt, failed });
            }
            Effect::Ask { step, attempt } => {
                let found = match self.told.get(&(step, attempt)) {
                    None => AttemptStatus::Never,
                    Some(None) => AttemptStatus::Gone,
                    Some(Some(end)) => AttemptStatus::Ended(end.clone()),
                };
                pending.push(Event::Found { step, attempt, found });
            }
            Effect::Kill { .. } => unreachable!("the run is not stopped"),
        }
    }

    /// Whether the journal has the result.
    fn is_done(&self, step: StepId) -> bool {
        let last = self.journal.iter().rev().find_map(|record| match record {
            Record::Ran { step: of, end, .. } if *of == step => {
                Some(matches!(end, End::Done { .. }))
            }
            Record::Verified { step: of, failed, .. } if *of == step => Some(failed.is_none()),
            _ => None,
        });
        last == Some(true)
    }

    fn end(&self, step: StepId, attempt: u32) -> End {
        let fails = self.nature.failing.get(&step).is_some_and(|count| attempt <= *count);
        if fails {
            End::Failed { kind: FailureKind::Exit, reason: "no".to_owned() }
        } else {
            End::Done { changed: true, receipt: Value::Null }
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as usize % count
    }
}

fn call() -> Call {
    Call { action: "test".to_owned(), ..Call::default() }
}

fn vertices() -> impl Strategy<Value = Vec<Vertex>> {
    let one = (
        proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
        0..8_u8,
        prop_oneof![Just(Repeat::Safe), Just(Repeat::Check)],
        (0..3_u32, any::<bool>(), any::<bool>()),
        proptest::collection::btree_set(0..2_u32, 0..3),
    );
    proptest::collection::vec(one, 1..12).prop_map(|all| {
        let vertex = |(at, (after, kind, repeat, (retries, before, looks), limits)): (usize, _)| {
            let after: Vec<proptest::sample::Index> = after;
            let limits: BTreeSet<u32> = limits;
            let before_it: BTreeSet<usize> =
                after.iter().filter(|_| at > 0).map(|index| index.index(at)).collect();
            let kind = match kind {
                0 => Kind::Join(Rule::All),
                1 => Kind::Join(Rule::AnyEnd),
                _ => Kind::Step(Box::new(Step {
                    call: call(),
                    before: if before { vec![call()] } else { Vec::new() },
                    after: if looks || repeat == Repeat::Check { vec![call()] } else { Vec::new() },
                    repeat,
                    retries,
                    delay_ms: 5,
                    limits: limits.into_iter().collect(),
                    on_failure: if kind == 2 { OnFailure::Ignore } else { OnFailure::Continue },
                    skip: (kind == 3).then(|| "because".to_owned()),
                    ..Step::default()
                })),
            };
            let after = before_it.into_iter().map(|at| StepId(u32::try_from(at).expect("few")));
            Vertex { name: format!("v{at}"), after: after.collect(), kind }
        };
        all.into_iter().enumerate().map(vertex).collect()
    })
}

fn plans() -> impl Strategy<Value = Arc<Plan>> {
    (vertices(), 1..3_u32).prop_map(|(vertices, slots)| {
        let limit = |name: &str, slots| ConcurrencyLimit {
            name: name.to_owned(),
            slots,
            held_by: Holder::Step,
        };
        let limits = vec![limit("one", 1), limit("few", slots)];
        let draft = Draft { vertices, limits, ..Draft::default() };
        Arc::new(Plan::new(draft).expect("edges only go back"))
    })
}

fn natures() -> impl Strategy<Value = Nature> {
    let failing = proptest::collection::btree_map((0..12_u32).prop_map(StepId), 1..4_u32, 0..4);
    (failing, any::<bool>()).prop_map(|(failing, remembers)| Nature { failing, remembers })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn crash_at_any_write_changes_nothing(plan in plans(), nature in natures(), seed: u64) {
        // Lost attempts do not count as failures, so with an executor that forgets, a step that
        // fails at first may have failed less often when it is tried again.
        let nature = if nature.remembers { nature } else { Nature { failing: BTreeMap::new(), ..nature } };
        let mut calm = World::new(&plan, &nature, Shell::Right, seed);
        let expected = calm.run(Crash::Never);
        prop_assert!(expected.outcome.is_some(), "it comes to an end");
        prop_assert_eq!(&calm.violations, &Vec::<String>::new());
        for at in 1..=calm.journal.len() {
            let mut world = World::new(&plan, &nature, Shell::Right, seed);
            let found = world.run(Crash::At(at));
            prop_assert_eq!(&found, &expected, "crashed at {}", at);
            prop_assert_eq!(&world.violations, &Vec::<String>::new(), "crashed at {}", at);
            for (step, begun) in &world.begun {
                // One more than without the crash, and only if the crash lost its end.
                let calm = calm.begun.get(step).copied().unwrap_or(0);
                let lost = u32::from(!nature.remembers);
                prop_assert!(*begun <= calm + lost, "{} ran {} times, crashed at {}", step, begun, at);
            }
        }
    }
}

fn line(count: u32) -> Arc<Plan> {
    let vertices = (0..count).map(|at| Vertex {
        name: format!("v{at}"),
        after: at.checked_sub(1).map(StepId).into_iter().collect(),
        kind: Kind::Step(Box::new(Step { call: call(), repeat: Repeat::Safe, ..Step::default() })),
    });
    let draft = Draft { vertices: vertices.collect(), ..Draft::default() };
    Arc::new(Plan::new(draft).expect("a line"))
}

#[test]
fn acting_before_a_durable_intent_is_detected() {
    let plan = line(3);
    let nature = Nature { remembers: true, ..Nature::default() };
    let violations = |shell| {
        let violations = (1..10).flat_map(|at| {
            let mut world = World::new(&plan, &nature, shell, 1);
            world.run(Crash::At(at));
            world.violations
        });
        violations.collect::<Vec<String>>()
    };
    assert_eq!(violations(Shell::Right), Vec::<String>::new());
    let found = violations(Shell::ActsFirst);
    assert!(found.iter().any(|violation| violation.contains("was started twice")), "{found:?}");
}

/// Three machines of one role with two steps each, and a join over the first steps that another
/// step waits for.
fn role(tolerate: u32) -> Arc<Plan> {
    let step = |subject| {
        let failure_domain = Some(0);
        let subject = Some(subject);
        Kind::Step(Box::new(Step { call: call(), subject, failure_domain, ..Step::default() }))
    };
    let vertex = |name: String, after: Vec<u32>, kind| Vertex {
        name,
        after: after.into_iter().map(StepId).collect(),
        kind,
    };
    let mut vertices: Vec<Vertex> =
        (0..3).map(|at| vertex(format!("first@{at}"), vec![], step(at))).collect();
    vertices.extend((0..3).map(|at| vertex(format!("second@{at}"), vec![at], step(at))));
    vertices.push(vertex("all first".to_owned(), vec![0, 1, 2], Kind::Join(Rule::All)));
    let last = Kind::Step(Box::new(Step { call: call(), ..Step::default() }));
    vertices.push(vertex("last".to_owned(), vec![6], last));
    let failure_domains =
        vec![FailureDomain { name: "role".to_owned(), tolerate, ..FailureDomain::default() }];
    let subjects = (0..3).map(|at| format!("n{at}")).collect();
    let draft = Draft { vertices, subjects, failure_domains, ..Draft::default() };
    Arc::new(Plan::new(draft).expect("a plan"))
}

#[test]
fn tolerated_failure_does_not_spread() {
    let failing = BTreeMap::from([(StepId(1), 1)]);
    let nature = Nature { failing, remembers: true };
    let one = role(1);
    let none = role(0);
    let mut world = World::new(&one, &nature, Shell::Right, 3);
    let found = world.run(Crash::Never);
    assert_eq!(found.outcome, Some(Outcome::Degraded));
    assert_eq!(found.good, [true, false, true, true, false, true, true, true]);
    let run = Run::replay(&one, &world.journal).unwrap();
    assert_eq!(run.state(StepId(1)), State::Ended(StepEnd::Failed(FailureKind::Exit)));
    assert_eq!(run.state(StepId(4)), State::Ended(StepEnd::LeftOut));

    let mut world = World::new(&none, &nature, Shell::Right, 3);
    let found = world.run(Crash::Never);
    assert_eq!(found.outcome, Some(Outcome::Failed));
    assert!(!found.good[7], "more failed than may, so nothing new starts");
}

#[test]
fn run_stopped_by_failures_has_failed_despite_a_stop() {
    let plan = role(0);
    let mut run = Run::new(Arc::clone(&plan));
    run.on(Event::Tick, 1);
    let end = End::Failed { kind: FailureKind::Exit, reason: "no".to_owned() };
    run.on(Event::Ran { step: StepId(0), attempt: 1, end }, 2);
    run.on(Event::Stop { now: false, by: "me".to_owned() }, 3);
    for step in [StepId(1), StepId(2)] {
        assert_eq!(run.outcome(), None, "they still run");
        run.on(
            Event::Ran { step, attempt: 1, end: End::Done { changed: true, receipt: Value::Null } },
            4,
        );
    }
    assert_eq!(run.outcome(), Some(Outcome::Failed));
    run.on(Event::Resume { by: "me".to_owned() }, 5);
    assert_eq!(run.state(StepId(0)), State::Running, "it is tried again");
    assert_eq!(
        (run.attempt(StepId(0)), run.attempt(StepId(1))),
        (2, 1),
        "and nothing that is done"
    );
}
