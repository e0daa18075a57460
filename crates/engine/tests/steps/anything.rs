//! Any events in any order: limits hold, no step is lost, and every wait has a reason.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_engine::plan::{
    Call, ConcurrencyLimit, Draft, FailureDomain, Holder, OnFailure, Repeat, Rule, Step, Vertex,
    Window,
};
use hoist_engine::record::{End, FailedCheck, FailureKind};
use hoist_engine::run::{AttemptStatus, Decision, Snapshot, State};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};
use proptest::prelude::*;
use serde_json::json;

use crate::site::{draft, join, me, step};

const SUBJECTS: u32 = 3;

fn steps() -> impl Strategy<Value = Step> {
    let failing = prop_oneof![
        Just(OnFailure::Stop),
        Just(OnFailure::Continue),
        Just(OnFailure::Continue),
        Just(OnFailure::Ignore)
    ];
    let repeat = prop_oneof![
        Just(Repeat::Safe),
        Just(Repeat::Check),
        Just(Repeat::Never),
        Just(Repeat::Fail)
    ];
    let limits = proptest::collection::btree_set(0..3_u32, 0..3);
    let subject = proptest::option::of((0..SUBJECTS, 0..2_u32));
    let slots = (subject, proptest::option::of(0..2_u32), limits);
    (slots, failing, repeat, (0..2_u32, any::<[bool; 3]>(), 0..10_u8)).prop_map(
        |((subject, kin, limits), on_failure, repeat, (retries, [looks, checks, late], skips))| {
            let call = || vec![Call { action: "look".to_owned(), ..Call::default() }];
            Step {
                subject: subject.map(|(subject, _)| subject),
                kin,
                failure_domain: subject.map(|(_, failure_domain)| failure_domain),
                limits: limits.into_iter().collect(),
                on_failure,
                repeat,
                retries,
                delay_ms: 5,
                before: if looks { call() } else { Vec::new() },
                after: if checks || repeat == Repeat::Check { call() } else { Vec::new() },
                window: late.then_some(0),
                skip: (skips == 0).then(|| "because".to_owned()),
                ..Step::default()
            }
        },
    )
}

fn plans() -> impl Strategy<Value = Arc<Plan>> {
    let rule = prop_oneof![
        Just(Rule::All),
        Just(Rule::AnyEnd),
        Just(Rule::Most),
        Just(Rule::AtLeast(1)),
        Just(Rule::Percent(50))
    ];
    let after = proptest::collection::vec(any::<proptest::sample::Index>(), 0..3);
    let one = (after, proptest::option::weighted(0.2, rule), steps());
    let vertices = proptest::collection::vec(one, 1..12).prop_map(|all| {
        let vertex = |(at, (after, rule, like)): (usize, (Vec<proptest::sample::Index>, _, _))| {
            let after: BTreeSet<usize> =
                after.iter().filter(|_| at > 0).map(|index| index.index(at)).collect();
            let after: Vec<u32> =
                after.into_iter().map(|at| u32::try_from(at).expect("few")).collect();
            match rule {
                Some(rule) => join(&after, rule),
                None => step(&after, like),
            }
        };
        all.into_iter().enumerate().map(vertex).collect::<Vec<Vertex>>()
    });
    (vertices, 0..3_u32, proptest::option::of(2..4_u32)).prop_map(
        |(vertices, tolerate, breaker)| {
            let limit =
                |held_by| ConcurrencyLimit { name: format!("{held_by:?}"), slots: 1, held_by };
            let subjects = (0..SUBJECTS).map(|at| format!("n{at}")).collect();
            let draft = Draft {
                subjects,
                failure_domains: vec![
                    FailureDomain { name: "role".to_owned(), tolerate, ..FailureDomain::default() },
                    FailureDomain {
                        name: "alone".to_owned(),
                        tolerate,
                        trips_alone: true,
                        is_strict: false,
                    },
                ],
                limits: [Holder::Step, Holder::Subject, Holder::Healthy].map(limit).to_vec(),
                // Every day except Thursday; 1970 began on a Thursday.
                windows: vec![Window {
                    name: "late".to_owned(),
                    spans: vec![(4 * 1440, 3 * 1440)],
                }],
                breaker,
                ..draft(vertices)
            };
            Arc::new(Plan::new(draft).expect("edges only go back"))
        },
    )
}

struct Chance(u64);

impl Chance {
    fn one_of(&mut self, count: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(self.0 >> 33).expect("31 bits") % count
    }
}

fn is_order(event: &Event) -> bool {
    matches!(
        event,
        Event::Stop { .. }
            | Event::StopAfter { .. }
            | Event::Resume { .. }
            | Event::Retry { .. }
            | Event::Hold { .. }
            | Event::Pause { .. }
            | Event::Mark { .. }
    )
}

fn is_said(record: &Record) -> bool {
    matches!(
        record,
        Record::Stop { .. }
            | Record::StopAfter { .. }
            | Record::Resume { .. }
            | Record::Retry { .. }
            | Record::Hold { .. }
            | Record::Pause { .. }
            | Record::Marked { .. }
    )
}

struct World {
    run: Run,
    journal: Vec<Record>,
    pending: Vec<Event>,
    /// Attempts that the executor was given and still knows.
    told: Vec<(StepId, u32)>,
    chance: Chance,
    now: u64,
}

impl World {
    fn plan(&self) -> &Arc<Plan> {
        self.run.plan()
    }

    fn on(&mut self, event: Event) {
        self.now += 1;
        let takes = self.run.takes(&event);
        let order = is_order(&event).then(|| format!("{event:?}"));
        let decision = self.run.on(event, self.now);
        if let (Some(order), Ok(())) = (order, takes) {
            assert!(decision.records.first().is_some_and(is_said), "{order} is not followed");
        }
        self.carry_out(decision);
    }

    fn carry_out(&mut self, decision: Decision) {
        self.check_intents(&decision.records);
        self.journal.extend(decision.records);
        for effect in decision.effects {
            let event = self.act(effect);
            self.pending.push(event);
        }
        self.check_limits();
    }

    fn act(&mut self, effect: Effect) -> Event {
        let bad = self.chance.one_of(4) == 0;
        let reason = ["no route", "no space"][self.chance.one_of(2) as usize].to_owned();
        match effect {
            Effect::Check { step, attempt } => {
                Event::Checked { step, attempt, failed: bad.then(|| FailedCheck::not_made(reason)) }
            }
            Effect::Start { step, attempt } => {
                assert!(!self.told.contains(&(step, attempt)), "{step} {attempt} twice");
                self.told.push((step, attempt));
                let intends = |record: &Record| match record {
                    Record::Intent { step: of, attempt: at, .. } => (*of, *at) == (step, attempt),
                    _ => false,
                };
                assert!(self.journal.iter().any(intends), "{step} {attempt} has no intent");
                // A worker elsewhere runs the step, and the handover is recorded before or after
                // its end.
                if self.chance.one_of(4) == 0 {
                    let to = "worker".to_owned();
                    self.pending.push(Event::Given { step, attempt, to });
                }
                let end = if bad {
                    let kind = [FailureKind::Exit, FailureKind::Precheck];
                    End::Failed { kind: kind[self.chance.one_of(2) as usize], reason }
                } else {
                    End::Done { changed: attempt > 1, receipt: json!({ "attempt": attempt }) }
                };
                Event::Ran { step, attempt, end }
            }
            Effect::Verify { step, attempt } => Event::Verified {
                step,
                attempt,
                failed: bad.then(|| FailedCheck::not_made(reason)),
            },
            Effect::Ask { step, attempt } => {
                let found = match self.told.contains(&(step, attempt)) {
                    true if bad => AttemptStatus::Gone,
                    true => AttemptStatus::Ended(End::Interrupted),
                    false => AttemptStatus::Never,
                };
                Event::Found { step, attempt, found }
            }
            Effect::Kill { step, attempt } => Event::Ran { step, attempt, end: End::Interrupted },
        }
    }

    /// A step starts after its predecessors succeeded. Later a person may retry a predecessor;
    /// started steps go on, with further attempts if need be.
    fn check_intents(&self, records: &[Record]) {
        let good = |id: &StepId| matches!(self.run.state(*id), State::Ended(end) if end.is_good());
        for record in records {
            if let Record::Intent { step, .. } = record
                && !self.has_begun(*step)
            {
                assert!(self.plan().vertex(*step).after.iter().all(good), "{step} is too early");
                // A refused step that would wait for ever may shut it afterwards.
                let is_refused = |record: &Record| matches!(record, Record::Refused { .. });
                let is_shut = self.run.is_shut(*step) && !records.iter().any(is_refused);
                assert!(!is_shut, "{step} is in a shut failure domain");
            }
        }
    }

    fn has_begun(&self, id: StepId) -> bool {
        let begins = |record: &Record| matches!(record, Record::Intent { step, .. } if *step == id);
        self.journal.iter().any(begins)
    }

    /// Checks, from the states alone, that no limit has more holders than slots.
    fn check_limits(&self) {
        for (at, limit) in (0_u32..).zip(&self.plan().draft().limits) {
            let mut inside = BTreeSet::new();
            for id in self.plan().ids() {
                let Some(step) = self.plan().step(id).filter(|step| step.limits.contains(&at))
                else {
                    continue;
                };
                let busy = matches!(
                    self.run.state(id),
                    State::Checking | State::Running | State::Verifying | State::VerifyingLost
                );
                if busy {
                    let subject = step.subject.filter(|_| limit.held_by != Holder::Step);
                    inside.insert(subject.map_or((None, Some(id)), |at| (Some(at), None)));
                }
            }
            assert!(inside.len() <= limit.slots as usize, "`{}` has {inside:?}", limit.name);
        }
    }

    fn anything(&mut self) {
        let count = u32::try_from(self.plan().len()).expect("few");
        let step = StepId(self.chance.one_of(count));
        let subject = Some(self.chance.one_of(SUBJECTS + 1)).filter(|at| *at < SUBJECTS);
        let yes = self.chance.one_of(2) == 0;
        match self.chance.one_of(30) {
            0 => self.on(Event::Stop { now: yes, by: me() }),
            1 | 2 => self.on(Event::Resume { by: me() }),
            3 | 4 => self.on(Event::Pause { subject, paused: yes, by: me() }),
            5 | 6 => self.on(Event::Hold { step, held: yes, by: me() }),
            7 | 8 => self.on(Event::Retry { step, by: me() }),
            9 => self.on(Event::Mark { step, good: yes, by: me() }),
            10 => {
                let more = self.chance.one_of(3);
                let vertices = (0..more).map(|_| StepId(self.chance.one_of(count)));
                let vertices = vertices.chain([step]).collect();
                self.on(Event::StopAfter { vertices, by: me() });
            }
            11 => self.die(),
            12 => {
                // A crash while a decision is recorded.
                if let Some(event) = self.pending.pop() {
                    let records = self.run.on(event, self.now).records;
                    let kept = self.chance.one_of(u32::try_from(records.len()).expect("few") + 1);
                    self.journal.extend(records.into_iter().take(kept as usize));
                }
                self.die();
            }
            13 => self.undo(),
            14 => {
                self.now = self.run.wakes_at().unwrap_or(self.now);
                self.on(Event::Tick);
            }
            _ => _ = self.happen(),
        }
    }

    /// Another run undoes some steps of this one.
    fn undo(&mut self) {
        let is_done = |id: &StepId| self.run.was_begun(*id);
        let mut undone = Vec::new();
        let mut stuck = Vec::new();
        for id in self.plan().ids().filter(is_done).collect::<Vec<_>>() {
            match self.chance.one_of(4) {
                0 | 1 => undone.push(id),
                2 => stuck.push(id),
                _ => {}
            }
        }
        let run = "another".to_owned();
        let at = self.now;
        let record = Record::Undone { run, undone: undone.clone(), stuck, at };
        let followed = self.run.follow(self.journal.len(), &record);
        assert_eq!(
            followed.is_ok(),
            self.run.outcome().is_some(),
            "only an ended run can be undone"
        );
        if followed.is_ok() {
            self.journal.push(record);
            let is_left = |id: &StepId| self.run.was_begun(*id) || self.run.left_traces(*id);
            assert!(!undone.iter().any(is_left), "undone steps left no changes");
        }
    }

    /// The controller crashes, and another one continues.
    fn die(&mut self) {
        self.pending.clear();
        self.run = Run::replay(self.plan(), &self.journal).expect("our own records");
        let decision = self.run.recover(self.now);
        self.carry_out(decision);
    }

    /// Ends one running step; false if there is none.
    fn happen(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let count = u32::try_from(self.pending.len()).expect("few");
        let at = self.chance.one_of(count) as usize;
        let event = self.pending.swap_remove(at);
        self.on(event);
        true
    }

    /// No more commands are given, and every question is answered.
    fn calm_down(&mut self) {
        for _ in 0..1_000 {
            if self.happen() {
                continue;
            }
            if self.run.outcome().is_some() {
                return;
            }
            if let Some(wakes) = self.run.wakes_at() {
                self.now = self.now.max(wakes);
                self.on(Event::Tick);
                continue;
            }
            assert!(!self.run.is_busy(), "the run waits for an event that never comes");
            let stuck = self.run.stuck();
            let Some((step, reason)) = stuck.first() else {
                panic!("the run is stuck without a reason: {:?}", self.journal)
            };
            let text = self.run.explain(reason);
            assert!(
                text != "nothing holds the step back",
                "{step} could start: {:?}",
                self.journal
            );
            self.answer(&stuck);
            if self.run.stuck() == stuck {
                // Only slots that are never released are left.
                return;
            }
        }
        panic!("it goes on for ever: {:?}", self.journal);
    }

    fn answer(&mut self, stuck: &[(StepId, hoist_engine::run::Reason)]) {
        self.on(Event::Pause { subject: None, paused: false, by: me() });
        for subject in 0..SUBJECTS {
            self.on(Event::Pause { subject: Some(subject), paused: false, by: me() });
        }
        for (step, _) in stuck {
            self.on(Event::Hold { step: *step, held: false, by: me() });
            self.on(Event::Mark { step: *step, good: true, by: me() });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_048, ..ProptestConfig::default() })]

    #[test]
    fn run_survives_any_sequence_of_events(plan in plans(), seed: u64) {
        let journal = vec![Record::Plan { hash: plan.hash().to_owned(), at: 0 }];
        let run = Run::new(Arc::clone(&plan));
        let pending = vec![Event::Tick];
        let told = Vec::new();
        let mut world = World { run, journal, pending, told, chance: Chance(seed), now: 1 };
        for _ in 0..60 {
            world.anything();
        }
        world.calm_down();
        let records = &world.journal;
        let now = world.now;
        let mut again = Run::replay(&plan, records).expect("our own records");
        let expected = (again.recover(now), again.snapshot());
        prop_assert_eq!(
            (world.run.recover(now), world.run.snapshot()), expected.clone(),
            "the state that is read back"
        );
        let cut = 1 + world.chance.one_of(u32::try_from(records.len()).unwrap()) as usize;
        let snapshot = Run::replay(&plan, &records[..cut]).expect("our own records").snapshot();
        let text = serde_json::to_string(&snapshot).unwrap();
        let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
        let mut run = Run::restore(&plan, snapshot).expect("our own snapshot");
        for (number, record) in (cut..).zip(&records[cut..]) {
            run.follow(number, record).expect("our own records");
        }
        prop_assert_eq!(
            (run.recover(now), run.snapshot()), expected,
            "a snapshot and the rest is all of it"
        );
    }
}
