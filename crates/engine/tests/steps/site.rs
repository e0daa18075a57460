//! A run that the test drives by hand: no step ends before the test says so.

use std::sync::Arc;

use hoist_engine::plan::{Call, ConcurrencyLimit, Draft, Holder, Kind, Rule, Step, Vertex};
use hoist_engine::record::{End, FailureKind};
use hoist_engine::run::{Decision, State, StepEnd};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};
use serde_json::Value;

pub(crate) struct Site {
    pub(crate) run: Run,
    pub(crate) journal: Vec<Record>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) now: u64,
}

impl Site {
    pub(crate) fn new(draft: Draft) -> Self {
        let plan = Arc::new(Plan::new(draft).expect("a plan"));
        let journal = vec![Record::Plan { hash: plan.hash().to_owned(), at: 0 }];
        let mut site = Self { run: Run::new(plan), journal, effects: Vec::new(), now: 1_000 };
        site.on(Event::Tick);
        site
    }

    /// Every state is checked twice: in memory, and read back from its records.
    pub(crate) fn on(&mut self, event: Event) {
        let decision = self.run.on(event, self.now);
        self.keep(decision);
        let again = Run::replay(self.run.plan(), &self.journal).expect("our own records");
        for id in self.run.plan().ids() {
            let same = match (self.run.state(id), again.state(id)) {
                // Not in the journal.
                (State::Checking | State::Ready, State::Ready | State::Delayed) => true,
                (is, was) => is == was,
            };
            let is = self.run.state(id);
            let was = again.state(id);
            assert!(same, "{id} is {is:?} and is read back as {was:?}");
        }
        assert_eq!(self.run.outcome(), again.outcome());
    }

    fn keep(&mut self, decision: Decision) {
        self.journal.extend(decision.records);
        self.effects.extend(decision.effects);
    }

    /// The process ends, and another one reads the journal.
    pub(crate) fn restart(&mut self) {
        self.run = Run::replay(self.run.plan(), &self.journal).expect("our own records");
        self.effects.clear();
        let decision = self.run.recover(self.now);
        self.keep(decision);
    }

    pub(crate) fn tick(&mut self, now: u64) {
        self.now = now;
        self.on(Event::Tick);
    }

    pub(crate) fn end(&mut self, step: u32) {
        self.ran(step, End::Done { changed: true, receipt: Value::Null });
    }

    pub(crate) fn fail(&mut self, step: u32, reason: &str) {
        self.ran(step, End::Failed { kind: FailureKind::Exit, reason: reason.to_owned() });
    }

    pub(crate) fn ran(&mut self, step: u32, end: End) {
        let step = StepId(step);
        assert_eq!(self.run.state(step), State::Running, "{step}");
        self.on(Event::Ran { step, attempt: self.run.attempt(step), end });
    }

    /// The running steps.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.in_state(State::Running)
    }

    pub(crate) fn in_state(&self, state: State) -> Vec<u32> {
        let is = |id: &StepId| self.run.state(*id) == state;
        self.run.plan().ids().filter(is).map(|id| id.0).collect()
    }

    pub(crate) fn ended(&self, ended: StepEnd) -> Vec<u32> {
        self.in_state(State::Ended(ended))
    }

    pub(crate) fn why(&self, step: u32) -> String {
        self.run.explain(&self.run.why(StepId(step)))
    }
}

pub(crate) fn me() -> String {
    "me".to_owned()
}

pub(crate) fn step(after: &[u32], step: Step) -> Vertex {
    let call = Call { action: "test".to_owned(), ..Call::default() };
    vertex(after, Kind::Step(Box::new(Step { call, ..step })))
}

pub(crate) fn join(after: &[u32], rule: Rule) -> Vertex {
    vertex(after, Kind::Join(rule))
}

fn vertex(after: &[u32], kind: Kind) -> Vertex {
    Vertex { name: String::new(), after: after.iter().copied().map(StepId).collect(), kind }
}

/// Vertices are named by their index; there are as many subjects as the steps use.
pub(crate) fn draft(mut vertices: Vec<Vertex>) -> Draft {
    let mut subjects = 0;
    for (at, vertex) in vertices.iter_mut().enumerate() {
        vertex.name = format!("s{at}");
        if let Kind::Step(step) = &vertex.kind {
            subjects = subjects.max(step.subject.map_or(0, |at| at + 1));
        }
    }
    let subjects = (0..subjects).map(|at| format!("n{at}")).collect();
    Draft { vertices, subjects, ..Draft::default() }
}

pub(crate) fn on(subject: u32) -> Step {
    Step { subject: Some(subject), ..Step::default() }
}

pub(crate) fn limit(slots: u32, held_by: Holder) -> ConcurrencyLimit {
    ConcurrencyLimit { name: "few".to_owned(), slots, held_by }
}
