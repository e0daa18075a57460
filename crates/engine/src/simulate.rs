//! Runs that only happen on paper: the same decisions, in a time of their own.
//!
//! How long steps take and which fail is in a [`Scenario`]. Nothing waits, so that a day of a large
//! site is over in a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{Kind, Plan, Rule, Step, StepId};
use crate::record::{End, FailureKind, Outcome};
use crate::run::{Effect, Ended, Event, Run, State};

/// Cases of one scenario.
pub const MAX_CASES: usize = 10_000;

/// Longest time that a step may be said to take: a year, as in task files.
pub const MAX_TAKES_MS: u64 = 366 * 24 * 60 * 60 * 1000;

/// What nobody says otherwise.
const TAKES_MS: u64 = 1000;

/// What happens in a simulation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// How long a step takes of which neither a case nor the plan says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_ms: Option<u64>,
    /// Of those that are about a step, each one says more than the ones before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
}

/// What is special about some steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The name of a step as the plan has it; `*` stands for anything.
    pub steps: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<Fails>,
    /// Where it fails: by itself, or in what is looked at before or after it.
    #[serde(default)]
    pub at: FailsAt,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// There was nothing to do.
    #[serde(default)]
    pub unchanged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fails {
    /// The first so many attempts.
    First(u32),
    Always,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailsAt {
    Before,
    #[default]
    Run,
    After,
}

/// Why a scenario is none for a plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error("there are {0} cases; at most {MAX_CASES} fit")]
    TooLarge(usize),
    #[error("no step of the plan is called `{0}`; `*` stands for anything")]
    NoSuchStep(String),
    #[error("`{0}` is said to fail in a check {1} it, but it has none; say `at: run`")]
    NoSuchCheck(String, &'static str),
    #[error("{0} ms are longer than a year")]
    TooLong(u64),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Simulated {
    /// `None` if a person would have to say something before it goes on.
    pub outcome: Option<Outcome>,
    pub makespan_ms: u64,
    /// What the end waited for, from the first one to the last.
    pub critical_path: Vec<Leg>,
    pub pools: Vec<Waiting>,
    /// Steps by how they ended.
    pub ends: BTreeMap<&'static str, usize>,
    pub failures: Vec<Failed>,
}

/// A step that failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failed {
    pub step: StepId,
    pub name: String,
    pub reason: String,
}

/// One step on the longest way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leg {
    pub step: StepId,
    pub name: String,
    /// Since the beginning.
    pub from_ms: u64,
    pub until_ms: u64,
    /// The pool that it waited for after everything before it had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
}

/// What waiting for places in a pool comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    pub pool: String,
    pub places: u32,
    /// Steps that had to wait.
    pub steps: usize,
    /// Of all of them together.
    pub waited_ms: u64,
    pub longest_ms: u64,
}

/// Runs a plan on paper, from `starts_at` in milliseconds since 1970.
pub fn simulate(
    plan: &Arc<Plan>,
    scenario: &Scenario,
    starts_at: u64,
) -> Result<Simulated, ScenarioError> {
    let behaviours = scenario.behaviours(plan)?;
    let mut paper = Paper {
        run: Run::new(Arc::clone(plan)),
        behaviours,
        now: starts_at,
        queue: BinaryHeap::new(),
        events: HashMap::new(),
        next: 0,
        started: vec![None; plan.len()],
        ended: vec![None; plan.len()],
        reasons: HashMap::new(),
    };
    paper.go();
    Ok(paper.sum_up(starts_at))
}

#[derive(Clone)]
struct Behaviour {
    takes_ms: u64,
    fails: u32,
    at: FailsAt,
    reason: String,
    unchanged: bool,
}

impl Scenario {
    fn behaviours(&self, plan: &Plan) -> Result<Vec<Behaviour>, ScenarioError> {
        if self.cases.len() > MAX_CASES {
            return Err(ScenarioError::TooLarge(self.cases.len()));
        }
        let times =
            self.takes_ms.into_iter().chain(self.cases.iter().filter_map(|one| one.takes_ms));
        if let Some(too_long) = times.max().filter(|takes_ms| *takes_ms > MAX_TAKES_MS) {
            return Err(ScenarioError::TooLong(too_long));
        }
        let takes_ms = self.takes_ms.unwrap_or(TAKES_MS);
        let plain = |step: &Step| Behaviour {
            takes_ms: step.expected_ms.unwrap_or(takes_ms),
            fails: 0,
            at: FailsAt::Run,
            reason: "the scenario says so".to_owned(),
            unchanged: false,
        };
        let nothing = Step::default();
        let mut behaviours: Vec<Behaviour> =
            plan.ids().map(|id| plain(plan.step(id).unwrap_or(&nothing))).collect();
        let steps: Vec<StepId> = plan.ids().filter(|id| plan.step(*id).is_some()).collect();
        let by_name: HashMap<&str, Vec<StepId>> =
            steps.iter().fold(HashMap::new(), |mut names, id| {
                names.entry(plan.vertex(*id).name.as_str()).or_default().push(*id);
                names
            });
        for case in &self.cases {
            let found = if case.steps.contains('*') {
                let is_meant = |id: &StepId| glob(&case.steps, &plan.vertex(*id).name);
                steps.iter().copied().filter(is_meant).collect()
            } else {
                by_name.get(case.steps.as_str()).cloned().unwrap_or_default()
            };
            if found.is_empty() {
                return Err(ScenarioError::NoSuchStep(case.steps.clone()));
            }
            for id in found {
                let step = plan.step(id).unwrap_or(&nothing);
                if let Some(when) = case.missing_check(step) {
                    let name = plan.vertex(id).name.clone();
                    return Err(ScenarioError::NoSuchCheck(name, when));
                }
                case.change(&mut behaviours[id.at()]);
            }
        }
        Ok(behaviours)
    }
}

impl Case {
    /// Where it is said to fail, if the step looks at nothing there.
    fn missing_check(&self, step: &Step) -> Option<&'static str> {
        self.fails?;
        match self.at {
            FailsAt::Before if step.before.is_empty() => Some("before"),
            FailsAt::After if step.after.is_empty() => Some("after"),
            _ => None,
        }
    }

    fn change(&self, behaviour: &mut Behaviour) {
        if let Some(takes_ms) = self.takes_ms {
            behaviour.takes_ms = takes_ms;
        }
        if let Some(fails) = self.fails {
            behaviour.at = self.at;
            behaviour.fails = match fails {
                Fails::First(attempts) => attempts,
                Fails::Always => u32::MAX,
            };
        }
        if let Some(reason) = &self.reason {
            behaviour.reason.clone_from(reason);
        }
        behaviour.unchanged |= self.unchanged;
    }
}

/// Whether a text is like a pattern in which `*` stands for anything.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

struct Paper {
    run: Run,
    behaviours: Vec<Behaviour>,
    now: u64,
    /// When, and the number of the event.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, Event>,
    next: u64,
    started: Vec<Option<u64>>,
    ended: Vec<Option<u64>>,
    /// Why steps failed last.
    reasons: HashMap<StepId, String>,
}

impl Paper {
    fn go(&mut self) {
        let mut effects = self.run.recover(self.now).effects;
        loop {
            for effect in effects.drain(..) {
                self.act(effect);
            }
            if self.run.outcome().is_some() {
                return;
            }
            let event = if let Some(Reverse((at, number))) = self.queue.pop() {
                // Something may be tried again before that.
                if let Some(wakes) = self.run.wakes_at().filter(|wakes| *wakes < at) {
                    self.queue.push(Reverse((at, number)));
                    self.now = self.now.max(wakes);
                    Event::Tick
                } else {
                    self.now = self.now.max(at);
                    self.events.remove(&number).expect("each is there once")
                }
            } else if let Some(wakes) = self.run.wakes_at() {
                self.now = self.now.max(wakes);
                Event::Tick
            } else {
                return;
            };
            if let Event::Ran { step, .. }
            | Event::Verified { step, .. }
            | Event::Checked { step, .. } = event
            {
                self.ended[step.at()] = Some(self.now);
            }
            if let Event::Ran { step, end: End::Failed { reason, .. }, .. }
            | Event::Verified { step, holds: false, reason, .. }
            | Event::Checked { step, refused: Some(reason), .. } = &event
            {
                self.reasons.insert(*step, reason.clone());
            }
            effects = self.run.on(event, self.now).effects;
        }
    }

    fn later(&mut self, after: u64, event: Event) {
        self.queue.push(Reverse((self.now.saturating_add(after), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Check { step, attempt } => {
                let refused = self.fails(step, attempt, FailsAt::Before);
                self.later(0, Event::Checked { step, attempt, refused });
            }
            Effect::Start { step, attempt } => {
                self.started[step.at()].get_or_insert(self.now);
                let (after, end) = self.end(step, attempt);
                self.later(after, Event::Ran { step, attempt, end });
            }
            Effect::Verify { step, attempt } => {
                let reason = self.fails(step, attempt, FailsAt::After);
                let holds = reason.is_none();
                let reason = reason.unwrap_or_default();
                self.later(0, Event::Verified { step, attempt, holds, reason });
            }
            Effect::Kill { step, attempt } => {
                self.later(0, Event::Ran { step, attempt, end: End::Interrupted });
            }
            // Nothing was begun before a simulation.
            Effect::Ask { .. } => {}
        }
    }

    fn fails(&self, step: StepId, attempt: u32, at: FailsAt) -> Option<String> {
        let behaviour = &self.behaviours[step.at()];
        (behaviour.at == at && attempt <= behaviour.fails).then(|| behaviour.reason.clone())
    }

    fn end(&self, step: StepId, attempt: u32) -> (u64, End) {
        let behaviour = &self.behaviours[step.at()];
        let timeout = self.run.plan().step(step).and_then(|step| step.timeout_ms);
        if let Some(timeout) = timeout.filter(|timeout| *timeout < behaviour.takes_ms) {
            let reason = "its time is over".to_owned();
            return (timeout, End::Failed { kind: FailureKind::Timeout, reason });
        }
        let end = match self.fails(step, attempt, FailsAt::Run) {
            Some(reason) => End::Failed { kind: FailureKind::Exit, reason },
            None => End::Done { changed: !behaviour.unchanged, receipt: Value::Null },
        };
        (behaviour.takes_ms, end)
    }

    fn sum_up(self, starts_at: u64) -> Simulated {
        let plan = Arc::clone(self.run.plan());
        let mut ends = BTreeMap::new();
        for id in plan.ids().filter(|id| plan.step(*id).is_some()) {
            *ends.entry(word(self.run.state(id))).or_default() += 1;
        }
        let times = Times::new(&plan, &self.started, &self.ended, starts_at);
        let failed = |id: &StepId| matches!(self.run.state(*id), State::Ended(Ended::Failed(_)));
        let failures = plan.ids().filter(failed).map(|id| Failed {
            step: id,
            name: plan.vertex(id).name.clone(),
            reason: self.reasons.get(&id).cloned().unwrap_or_default(),
        });
        Simulated {
            outcome: self.run.outcome(),
            makespan_ms: self.now - starts_at,
            critical_path: times.critical_path(),
            pools: times.waiting(),
            ends,
            failures: failures.collect(),
        }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Ended(Ended::Ok) => "ok",
        State::Ended(Ended::Unchanged) => "unchanged",
        State::Ended(Ended::Ignored) => "ignored",
        State::Ended(Ended::Skipped) => "skipped",
        State::Ended(Ended::Failed(_)) => "failed",
        State::Ended(Ended::Blocked) => "blocked",
        State::Ended(Ended::LeftOut) => "left out",
        State::Ended(Ended::Stopped) => "stopped",
        State::Ended(Ended::Interrupted) => "interrupted",
        State::Ended(Ended::Undone) => "undone",
        _ => "open",
    }
}

/// When everything began and ended.
struct Times<'a> {
    plan: &'a Plan,
    started: &'a [Option<u64>],
    starts_at: u64,
    /// Also of what does nothing.
    ended: Vec<u64>,
    /// What ended at a time and gave back a place in a pool.
    freed: HashMap<(u32, u64), StepId>,
}

impl<'a> Times<'a> {
    fn new(
        plan: &'a Plan,
        started: &'a [Option<u64>],
        ended: &[Option<u64>],
        starts_at: u64,
    ) -> Self {
        let mut times = Self {
            plan,
            started,
            starts_at,
            ended: vec![starts_at; plan.len()],
            freed: HashMap::new(),
        };
        for id in plan.order() {
            times.ended[id.at()] = match (&plan.vertex(*id).kind, ended[id.at()]) {
                (_, Some(ended)) => ended,
                (Kind::Join(rule), None) => times.passed(*id, *rule),
                (Kind::Step(_), None) => times.ready(*id),
            };
            for pool in plan.step(*id).into_iter().flat_map(|step| &step.pools) {
                times.freed.insert((*pool, times.ended[id.at()]), *id);
            }
        }
        times
    }

    /// When all before a vertex had ended.
    fn ready(&self, id: StepId) -> u64 {
        let before = self.plan.vertex(id).after.iter().map(|before| self.ended[before.at()]);
        before.max().unwrap_or(self.starts_at)
    }

    fn passed(&self, id: StepId, rule: Rule) -> u64 {
        let mut ends: Vec<u64> =
            self.plan.vertex(id).after.iter().map(|before| self.ended[before.at()]).collect();
        ends.sort_unstable();
        let needed = match rule {
            Rule::AtLeast(count) => count as usize,
            Rule::Most => ends.len() / 2 + 1,
            Rule::Percent(part) => (ends.len() * usize::from(part)).div_ceil(100),
            _ => ends.len(),
        };
        let last = needed.clamp(1, ends.len().max(1)) - 1;
        ends.get(last).copied().unwrap_or(self.starts_at)
    }

    /// The pool that a step waited for, and what gave it its place.
    fn held_by(&self, id: StepId) -> Option<(u32, StepId)> {
        let started = self.started[id.at()].filter(|started| *started > self.ready(id))?;
        let pools = &self.plan.step(id)?.pools;
        pools.iter().find_map(|pool| self.freed.get(&(*pool, started)).map(|freed| (*pool, *freed)))
    }

    fn critical_path(&self) -> Vec<Leg> {
        let ran = self.plan.ids().filter(|id| self.started[id.at()].is_some());
        // Of those that ended last, the first.
        let mut next = ran.max_by_key(|id| (self.ended[id.at()], Reverse(*id)));
        let mut legs = Vec::new();
        while let Some(id) = next {
            let held = self.held_by(id);
            if let Some(started) = self.started[id.at()] {
                legs.push(Leg {
                    step: id,
                    name: self.plan.vertex(id).name.clone(),
                    from_ms: started - self.starts_at,
                    until_ms: self.ended[id.at()] - self.starts_at,
                    waited_for: held
                        .map(|(pool, _)| self.plan.draft().pools[pool as usize].name.clone()),
                });
            }
            // A step that takes no time may give a place to one that it waited for itself.
            let freed = held
                .map(|(_, freed)| freed)
                .filter(|freed| self.started[freed.at()] < self.started[id.at()]);
            next = freed.or_else(|| {
                let limit = self.started[id.at()].unwrap_or(self.ended[id.at()]);
                let before = self.plan.vertex(id).after.iter().copied();
                before
                    .filter(|before| self.ended[before.at()] <= limit)
                    .max_by_key(|before| (self.ended[before.at()], Reverse(*before)))
            });
        }
        legs.reverse();
        legs
    }

    fn waiting(&self) -> Vec<Waiting> {
        let pools = &self.plan.draft().pools;
        let none = pools.iter().map(|pool| Waiting {
            pool: pool.name.clone(),
            places: pool.places,
            steps: 0,
            waited_ms: 0,
            longest_ms: 0,
        });
        let mut waiting: Vec<Waiting> = none.collect();
        for id in self.plan.ids() {
            let (Some((pool, _)), Some(started)) = (self.held_by(id), self.started[id.at()]) else {
                continue;
            };
            let waited = started - self.ready(id);
            let entry = &mut waiting[pool as usize];
            entry.steps += 1;
            entry.waited_ms += waited;
            entry.longest_ms = entry.longest_ms.max(waited);
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Cohort, Draft, Holder, OnFailure, Pool, Vertex};

    fn vertex(name: &str, after: &[u32], step: Step) -> Vertex {
        let after = after.iter().copied().map(StepId).collect();
        Vertex { name: name.to_owned(), after, kind: Kind::Step(Box::new(step)) }
    }

    fn takes(expected_ms: u64, pools: &[u32]) -> Step {
        Step { expected_ms: Some(expected_ms), pools: pools.to_vec(), ..Step::default() }
    }

    fn plan(vertices: Vec<Vertex>) -> Arc<Plan> {
        let pools =
            vec![Pool { name: "one at a time".to_owned(), places: 1, held_by: Holder::Step }];
        Arc::new(Plan::new(Draft { vertices, pools, ..Draft::default() }).expect("a plan"))
    }

    fn scenario(text: &str) -> Scenario {
        serde_json::from_str(text).expect("a scenario")
    }

    #[test]
    fn the_longest_way_is_named_and_what_was_waited_for() {
        let plan = plan(vec![
            vertex("short", &[], takes(10, &[])),
            vertex("long", &[], takes(50, &[])),
            vertex("a", &[0], takes(100, &[0])),
            vertex("b", &[1], takes(100, &[0])),
            vertex("end", &[2, 3], takes(5, &[])),
        ]);
        let came = simulate(&plan, &Scenario::default(), 7).unwrap();
        assert_eq!((came.outcome, came.makespan_ms), (Some(Outcome::Succeeded), 215));
        let names: Vec<&str> = came.critical_path.iter().map(|leg| leg.name.as_str()).collect();
        assert_eq!(names, ["short", "a", "b", "end"]);
        let b = &came.critical_path[2];
        assert_eq!(
            (b.from_ms, b.until_ms, b.waited_for.as_deref()),
            (110, 210, Some("one at a time"))
        );
        let pool = &came.pools[0];
        assert_eq!((pool.steps, pool.waited_ms, pool.longest_ms), (1, 60, 60));
        assert_eq!(came.ends, [("ok", 5)].into());
    }

    #[test]
    fn failures_and_their_places_are_as_the_scenario_says() {
        let step = Step { retries: 1, delay_ms: 30, ..takes(10, &[]) };
        let looked_at = Step {
            before: vec![crate::plan::Call::default()],
            on_failure: OnFailure::Continue,
            ..takes(10, &[])
        };
        let plan = plan(vec![
            vertex("a@1", &[], step.clone()),
            vertex("a@2", &[], looked_at),
            vertex("b@1", &[0], step),
        ]);
        let text = r#"{"cases": [
            {"steps": "a@*", "takes_ms": 20},
            {"steps": "a@1", "fails": {"first": 1}},
            {"steps": "a@2", "fails": "always", "at": "before", "reason": "no disk"}
        ]}"#;
        let came = simulate(&plan, &scenario(text), 0).unwrap();
        assert_eq!(came.makespan_ms, 20 + 30 + 20 + 10);
        assert_eq!(came.outcome, Some(Outcome::Failed));
        assert_eq!(came.ends, [("ok", 2), ("failed", 1)].into());
        let failed: Vec<_> =
            came.failures.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
        assert_eq!(failed, [("a@2", "no disk")]);
    }

    #[test]
    fn a_case_about_a_check_that_is_not_there_is_a_mistake_and_so_is_a_time_without_end() {
        let plan = plan(vec![vertex("a", &[], takes(1, &[]))]);
        let wrong = |text: &str| simulate(&plan, &scenario(text), 0).unwrap_err();
        for (at, when) in [("before", "before"), ("after", "after")] {
            let text =
                format!(r#"{{"cases": [{{"steps": "*", "fails": "always", "at": "{at}"}}]}}"#);
            assert_eq!(wrong(&text), ScenarioError::NoSuchCheck("a".to_owned(), when));
        }
        let takes = |ms: u64| format!(r#"{{"cases": [{{"steps": "a", "takes_ms": {ms}}}]}}"#);
        assert_eq!(wrong(&takes(MAX_TAKES_MS + 1)), ScenarioError::TooLong(MAX_TAKES_MS + 1));
        assert_eq!(
            wrong(&format!(r#"{{"takes_ms": {}}}"#, u64::MAX)),
            ScenarioError::TooLong(u64::MAX)
        );
        assert!(simulate(&plan, &scenario(&takes(MAX_TAKES_MS)), 0).is_ok());
    }

    #[test]
    fn a_step_that_takes_longer_than_it_may_runs_out_of_time() {
        let plan = plan(vec![vertex("a", &[], Step { timeout_ms: Some(40), ..takes(50, &[]) })]);
        let came = simulate(&plan, &Scenario::default(), 0).unwrap();
        assert_eq!((came.outcome, came.makespan_ms), (Some(Outcome::Failed), 40));
    }

    #[test]
    fn a_case_about_nothing_is_a_mistake_and_so_is_an_unknown_field() {
        let plan = plan(vec![vertex("a", &[], takes(1, &[]))]);
        let error = simulate(&plan, &scenario(r#"{"cases": [{"steps": "b*"}]}"#), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no step of the plan is called `b*`; `*` stands for anything"
        );
        assert!(serde_json::from_str::<Scenario>(r#"{"takes": 1}"#).is_err());
        let many = Scenario {
            cases: vec![Case { steps: "a".to_owned(), ..Case::default() }; MAX_CASES + 1],
            ..Scenario::default()
        };
        assert_eq!(simulate(&plan, &many, 0), Err(ScenarioError::TooLarge(MAX_CASES + 1)));
    }

    #[test]
    fn what_is_tolerated_leaves_the_run_degraded() {
        let vertices = (0..4).map(|at| {
            let step = Step { subject: Some(at), cohort: Some(0), ..takes(1, &[]) };
            vertex(&format!("a@{at}"), &[], step)
        });
        let draft = Draft {
            vertices: vertices.collect(),
            subjects: (0..4).map(|at| at.to_string()).collect(),
            cohorts: vec![Cohort { name: "all".to_owned(), tolerate: 1, is_strict: false }],
            ..Draft::default()
        };
        let plan = Arc::new(Plan::new(draft).unwrap());
        let came =
            simulate(&plan, &scenario(r#"{"cases": [{"steps": "a@2", "fails": "always"}]}"#), 0)
                .unwrap();
        assert_eq!(came.outcome, Some(Outcome::Degraded));
    }

    #[test]
    fn a_large_site_is_over_in_seconds_and_always_the_same() {
        let (nodes, tasks) = (1000, 52);
        let mut vertices = Vec::new();
        for node in 0..nodes {
            for task in 0..tasks {
                let after = if task == 0 { vec![] } else { vec![node * tasks + task - 1] };
                vertices.push(vertex(
                    &format!("t{task}@{node}"),
                    &after,
                    takes(1000 + u64::from(node), &[0]),
                ));
            }
        }
        let pools = vec![Pool { name: "run".to_owned(), places: 100, held_by: Holder::Step }];
        let plan = Arc::new(Plan::new(Draft { vertices, pools, ..Draft::default() }).unwrap());
        let began = std::time::Instant::now();
        let came = simulate(&plan, &Scenario::default(), 0).unwrap();
        // Without optimisation, and beside other tests.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        assert_eq!(came.outcome, Some(Outcome::Succeeded));
        assert_eq!(came, simulate(&plan, &Scenario::default(), 0).unwrap());
        assert!(came.pools[0].waited_ms > 0);
    }

    proptest! {
        #[test]
        fn a_longest_way_has_no_gaps(edges in proptest::collection::vec((0..12_u32, 0..12_u32), 0..20), times in proptest::collection::vec(1..50_u64, 12)) {
            let vertices = (0..12).map(|at| {
                let before: Vec<u32> = edges.iter().filter(|(from, to)| *to == at && from < to).map(|(from, _)| *from).collect();
                let pools: &[u32] = if at % 3 == 0 { &[0] } else { &[] };
                vertex(&format!("s{at}"), &before, takes(times[at as usize], pools))
            });
            let came = simulate(&plan(vertices.collect()), &Scenario::default(), 0).unwrap();
            let path = came.critical_path;
            prop_assert_eq!(path[0].from_ms, 0);
            prop_assert!(path.windows(2).all(|legs| legs[0].until_ms == legs[1].from_ms));
            prop_assert_eq!(path[path.len() - 1].until_ms, came.makespan_ms);
        }

        #[test]
        fn a_pattern_is_like_what_it_was_made_of(parts in proptest::collection::vec("[ab]{0,3}", 1..5), fill in "[abc]{0,4}") {
            prop_assert!(glob(&parts.join("*"), &parts.join(&fill)));
            let other = format!("z{}", parts.join(&fill));
            prop_assert!(parts[0].is_empty() || !glob(&parts.join("*"), &other));
        }
    }
}
