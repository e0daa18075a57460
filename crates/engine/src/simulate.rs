//! Simulated runs: the same decisions as a real run, on a simulated clock.
//!
//! A [`Scenario`] defines the duration of steps and their failures. Nothing sleeps, so a day of a
//! large site takes a second. Real executors and clocks do not belong here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{Kind, Plan, Rule, Step, StepId};
use crate::record::{End, FailedCheck, FailureKind, Outcome};
use crate::run::{Effect, Event, Run, State, StepEnd};

/// Largest number of cases in a scenario.
pub const MAX_CASES: usize = 10_000;

/// Longest duration of a simulated step: a year, as in task files.
pub const MAX_TAKES_MS: u64 = 366 * 24 * 60 * 60 * 1000;

/// Duration of a step without any other definition.
const TAKES_MS: u64 = 1000;

/// The events of a simulation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Duration of steps for which neither a case nor the plan has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_ms: Option<u64>,
    /// Later cases override earlier ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
}

/// The behaviour of selected steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The name of a step in the plan; `*` matches any text.
    pub steps: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<Fails>,
    /// Where the step fails: in the step itself, or in a check before or after it.
    #[serde(default)]
    pub at: FailsAt,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The step changes nothing.
    #[serde(default)]
    pub unchanged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fails {
    /// This many attempts, counted from the first.
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

/// Why a scenario does not fit a plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error("the scenario has {0} cases; at most {MAX_CASES} fit")]
    TooLarge(usize),
    #[error("no step of the plan has the name `{0}`; `*` matches any text")]
    NoSuchStep(String),
    #[error("the scenario lets `{0}` fail in a check {1} the step, which has none; use `at: run`")]
    NoSuchCheck(String, &'static str),
    #[error("the duration {0} ms is longer than a year")]
    TooLong(u64),
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Simulation {
    /// `None` if the run needs a person to continue.
    pub outcome: Option<Outcome>,
    pub makespan_ms: u64,
    /// The chain of steps that determined the end, from first to last.
    pub critical_path: Vec<Leg>,
    pub limits: Vec<LimitDelay>,
    /// Number of steps by their end.
    pub ends: BTreeMap<&'static str, usize>,
    pub failures: Vec<FailedStep>,
}

/// A step that failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedStep {
    pub step: StepId,
    pub name: String,
    pub reason: String,
}

/// One step of the critical path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leg {
    pub step: StepId,
    pub name: String,
    /// Since the start of the run.
    pub from_ms: u64,
    pub until_ms: u64,
    /// The limit that the step waited for after all steps before it had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
}

/// The delay that a concurrency limit caused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitDelay {
    pub limit: String,
    pub slots: u32,
    /// Number of delayed steps.
    pub steps: usize,
    /// Sum over all delayed steps.
    pub waited_ms: u64,
    pub longest_ms: u64,
}

/// Simulates a run of a plan from `starts_at`, in milliseconds since 1970.
pub fn simulate(
    plan: &Arc<Plan>,
    scenario: &Scenario,
    starts_at: u64,
) -> Result<Simulation, ScenarioError> {
    let behaviours = scenario.behaviours(plan)?;
    let mut run = SimulatedRun {
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
    run.go();
    Ok(run.sum_up(starts_at))
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
            reason: "failed by the scenario".to_owned(),
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
    /// The check that the case names and the step does not have.
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

/// Whether a text matches a pattern in which `*` matches any text.
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

struct SimulatedRun {
    run: Run,
    behaviours: Vec<Behaviour>,
    now: u64,
    /// Time and number of each pending event.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, Event>,
    next: u64,
    started: Vec<Option<u64>>,
    ended: Vec<Option<u64>>,
    /// The last failure of each step.
    reasons: HashMap<StepId, String>,
}

impl SimulatedRun {
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
                // A delayed attempt may be due earlier.
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
            match &event {
                Event::Ran { step, end: End::Failed { reason, .. }, .. } => {
                    self.reasons.insert(*step, reason.clone());
                }
                Event::Verified { step, failed: Some(check), .. }
                | Event::Checked { step, failed: Some(check), .. } => {
                    self.reasons.insert(*step, check.to_string());
                }
                _ => {}
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
                let failed = self.fails(step, attempt, FailsAt::Before).map(FailedCheck::not_made);
                self.later(0, Event::Checked { step, attempt, failed });
            }
            Effect::Start { step, attempt } => {
                self.started[step.at()].get_or_insert(self.now);
                let (after, end) = self.end(step, attempt);
                self.later(after, Event::Ran { step, attempt, end });
            }
            Effect::Verify { step, attempt } => {
                let failed = self.fails(step, attempt, FailsAt::After).map(FailedCheck::not_made);
                self.later(0, Event::Verified { step, attempt, failed });
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
            let reason = "timed out".to_owned();
            return (timeout, End::Failed { kind: FailureKind::Timeout, reason });
        }
        let end = match self.fails(step, attempt, FailsAt::Run) {
            Some(reason) => End::Failed { kind: FailureKind::Exit, reason },
            None => End::Done { changed: !behaviour.unchanged, receipt: Value::Null },
        };
        (behaviour.takes_ms, end)
    }

    fn sum_up(self, starts_at: u64) -> Simulation {
        let plan = Arc::clone(self.run.plan());
        let mut ends = BTreeMap::new();
        for id in plan.ids().filter(|id| plan.step(*id).is_some()) {
            *ends.entry(state_name(self.run.state(id))).or_default() += 1;
        }
        let times = Times::new(&plan, &self.started, &self.ended, starts_at);
        let failed = |id: &StepId| matches!(self.run.state(*id), State::Ended(StepEnd::Failed(_)));
        let failures = plan.ids().filter(failed).map(|id| FailedStep {
            step: id,
            name: plan.vertex(id).name.clone(),
            reason: self.reasons.get(&id).cloned().unwrap_or_default(),
        });
        Simulation {
            outcome: self.run.outcome(),
            makespan_ms: self.now - starts_at,
            critical_path: times.critical_path(),
            limits: times.limit_delays(),
            ends,
            failures: failures.collect(),
        }
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Ended(StepEnd::Ok) => "ok",
        State::Ended(StepEnd::Unchanged) => "unchanged",
        State::Ended(StepEnd::Ignored) => "ignored",
        State::Ended(StepEnd::Skipped) => "skipped",
        State::Ended(StepEnd::Failed(_)) => "failed",
        State::Ended(StepEnd::Blocked) => "blocked",
        State::Ended(StepEnd::LeftOut) => "left out",
        State::Ended(StepEnd::Stopped) => "stopped",
        State::Ended(StepEnd::Interrupted) => "interrupted",
        State::Ended(StepEnd::Undone) => "undone",
        _ => "open",
    }
}

/// Start and end of every vertex.
struct Times<'a> {
    plan: &'a Plan,
    started: &'a [Option<u64>],
    starts_at: u64,
    /// End of every vertex, including joins and skipped steps.
    ended: Vec<u64>,
    /// The step that released a slot of a limit at a given time.
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
                (Kind::Join(rule), None) => times.passed_at(*id, *rule),
                (Kind::Step(_), None) => times.ready_at(*id),
            };
            for limit in plan.step(*id).into_iter().flat_map(|step| &step.limits) {
                times.freed.insert((*limit, times.ended[id.at()]), *id);
            }
        }
        times
    }

    /// When the last vertex before this one ended.
    fn ready_at(&self, id: StepId) -> u64 {
        let before = self.plan.vertex(id).after.iter().map(|before| self.ended[before.at()]);
        before.max().unwrap_or(self.starts_at)
    }

    fn passed_at(&self, id: StepId, rule: Rule) -> u64 {
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

    /// The limit that a step waited for, and the step that released the slot.
    fn held_by(&self, id: StepId) -> Option<(u32, StepId)> {
        let started = self.started[id.at()].filter(|started| *started > self.ready_at(id))?;
        let limits = &self.plan.step(id)?.limits;
        limits
            .iter()
            .find_map(|limit| self.freed.get(&(*limit, started)).map(|freed| (*limit, *freed)))
    }

    fn critical_path(&self) -> Vec<Leg> {
        let ran = self.plan.ids().filter(|id| self.started[id.at()].is_some());
        // Among the steps that ended last, the first.
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
                        .map(|(limit, _)| self.plan.draft().limits[limit as usize].name.clone()),
                });
            }
            // A step without duration may release a slot to a step that it waited for itself.
            let freed = held
                .map(|(_, freed)| freed)
                .filter(|freed| self.started[freed.at()] < self.started[id.at()]);
            next = freed.or_else(|| {
                let bound = self.started[id.at()].unwrap_or(self.ended[id.at()]);
                let before = self.plan.vertex(id).after.iter().copied();
                before
                    .filter(|before| self.ended[before.at()] <= bound)
                    .max_by_key(|before| (self.ended[before.at()], Reverse(*before)))
            });
        }
        legs.reverse();
        legs
    }

    fn limit_delays(&self) -> Vec<LimitDelay> {
        let limits = &self.plan.draft().limits;
        let none = limits.iter().map(|limit| LimitDelay {
            limit: limit.name.clone(),
            slots: limit.slots,
            steps: 0,
            waited_ms: 0,
            longest_ms: 0,
        });
        let mut waiting: Vec<LimitDelay> = none.collect();
        for id in self.plan.ids() {
            let (Some((limit, _)), Some(started)) = (self.held_by(id), self.started[id.at()])
            else {
                continue;
            };
            let waited = started - self.ready_at(id);
            let entry = &mut waiting[limit as usize];
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
    use crate::plan::{ConcurrencyLimit, Draft, FailureDomain, Holder, OnFailure, Vertex};

    fn vertex(name: &str, after: &[u32], step: Step) -> Vertex {
        let after = after.iter().copied().map(StepId).collect();
        Vertex { name: name.to_owned(), after, kind: Kind::Step(Box::new(step)) }
    }

    fn takes(expected_ms: u64, limits: &[u32]) -> Step {
        Step { expected_ms: Some(expected_ms), limits: limits.to_vec(), ..Step::default() }
    }

    fn plan(vertices: Vec<Vertex>) -> Arc<Plan> {
        let limits = vec![ConcurrencyLimit {
            name: "one at a time".to_owned(),
            slots: 1,
            held_by: Holder::Step,
        }];
        Arc::new(Plan::new(Draft { vertices, limits, ..Draft::default() }).expect("a plan"))
    }

    fn scenario(text: &str) -> Scenario {
        serde_json::from_str(text).expect("a scenario")
    }

    #[test]
    fn critical_path_names_steps_and_limits() {
        let plan = plan(vec![
            vertex("short", &[], takes(10, &[])),
            vertex("long", &[], takes(50, &[])),
            vertex("a", &[0], takes(100, &[0])),
            vertex("b", &[1], takes(100, &[0])),
            vertex("end", &[2, 3], takes(5, &[])),
        ]);
        let result = simulate(&plan, &Scenario::default(), 7).unwrap();
        assert_eq!((result.outcome, result.makespan_ms), (Some(Outcome::Succeeded), 215));
        let names: Vec<&str> = result.critical_path.iter().map(|leg| leg.name.as_str()).collect();
        assert_eq!(names, ["short", "a", "b", "end"]);
        let b = &result.critical_path[2];
        assert_eq!(
            (b.from_ms, b.until_ms, b.waited_for.as_deref()),
            (110, 210, Some("one at a time"))
        );
        let limit = &result.limits[0];
        assert_eq!((limit.steps, limit.waited_ms, limit.longest_ms), (1, 60, 60));
        assert_eq!(result.ends, [("ok", 5)].into());
    }

    #[test]
    fn scenario_defines_failures_and_their_places() {
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
        let result = simulate(&plan, &scenario(text), 0).unwrap();
        assert_eq!(result.makespan_ms, 20 + 30 + 20 + 10);
        assert_eq!(result.outcome, Some(Outcome::Failed));
        assert_eq!(result.ends, [("ok", 2), ("failed", 1)].into());
        let failed: Vec<_> =
            result.failures.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
        assert_eq!(failed, [("a@2", "no disk")]);
    }

    #[test]
    fn case_with_missing_check_or_endless_time_is_refused() {
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
    fn simulated_step_times_out() {
        let plan = plan(vec![vertex("a", &[], Step { timeout_ms: Some(40), ..takes(50, &[]) })]);
        let result = simulate(&plan, &Scenario::default(), 0).unwrap();
        assert_eq!((result.outcome, result.makespan_ms), (Some(Outcome::Failed), 40));
    }

    #[test]
    fn case_without_steps_or_with_unknown_field_is_refused() {
        let plan = plan(vec![vertex("a", &[], takes(1, &[]))]);
        let error = simulate(&plan, &scenario(r#"{"cases": [{"steps": "b*"}]}"#), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no step of the plan has the name `b*`; `*` matches any text"
        );
        assert!(serde_json::from_str::<Scenario>(r#"{"takes": 1}"#).is_err());
        let many = Scenario {
            cases: vec![Case { steps: "a".to_owned(), ..Case::default() }; MAX_CASES + 1],
            ..Scenario::default()
        };
        assert_eq!(simulate(&plan, &many, 0), Err(ScenarioError::TooLarge(MAX_CASES + 1)));
    }

    #[test]
    fn tolerated_failure_leaves_the_run_degraded() {
        let vertices = (0..4).map(|at| {
            let step = Step { subject: Some(at), failure_domain: Some(0), ..takes(1, &[]) };
            vertex(&format!("a@{at}"), &[], step)
        });
        let draft = Draft {
            vertices: vertices.collect(),
            subjects: (0..4).map(|at| at.to_string()).collect(),
            failure_domains: vec![FailureDomain {
                name: "all".to_owned(),
                tolerate: 1,
                ..FailureDomain::default()
            }],
            ..Draft::default()
        };
        let plan = Arc::new(Plan::new(draft).unwrap());
        let result =
            simulate(&plan, &scenario(r#"{"cases": [{"steps": "a@2", "fails": "always"}]}"#), 0)
                .unwrap();
        assert_eq!(result.outcome, Some(Outcome::Degraded));
    }

    #[test]
    fn simulation_of_a_large_site_is_fast_and_deterministic() {
        let nodes = 1000;
        let tasks = 52;
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
        let limits =
            vec![ConcurrencyLimit { name: "run".to_owned(), slots: 100, held_by: Holder::Step }];
        let plan = Arc::new(Plan::new(Draft { vertices, limits, ..Draft::default() }).unwrap());
        let began = std::time::Instant::now();
        let result = simulate(&plan, &Scenario::default(), 0).unwrap();
        // A generous bound: unoptimized build, other tests in parallel.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        assert_eq!(result.outcome, Some(Outcome::Succeeded));
        assert_eq!(result, simulate(&plan, &Scenario::default(), 0).unwrap());
        assert!(result.limits[0].waited_ms > 0);
    }

    proptest! {
        #[test]
        fn critical_path_has_no_gaps(edges in proptest::collection::vec((0..12_u32, 0..12_u32), 0..20), times in proptest::collection::vec(1..50_u64, 12)) {
            let vertices = (0..12).map(|at| {
                let before: Vec<u32> = edges.iter().filter(|(from, to)| *to == at && from < to).map(|(from, _)| *from).collect();
                let limits: &[u32] = if at % 3 == 0 { &[0] } else { &[] };
                vertex(&format!("s{at}"), &before, takes(times[at as usize], limits))
            });
            let result = simulate(&plan(vertices.collect()), &Scenario::default(), 0).unwrap();
            let path = result.critical_path;
            prop_assert_eq!(path[0].from_ms, 0);
            prop_assert!(path.windows(2).all(|legs| legs[0].until_ms == legs[1].from_ms));
            prop_assert_eq!(path[path.len() - 1].until_ms, result.makespan_ms);
        }

        #[test]
        fn glob_matches_the_text_it_was_made_of(parts in proptest::collection::vec("[ab]{0,3}", 1..5), fill in "[abc]{0,4}") {
            prop_assert!(glob(&parts.join("*"), &parts.join(&fill)));
            let other = format!("z{}", parts.join(&fill));
            prop_assert!(parts[0].is_empty() || !glob(&parts.join("*"), &other));
        }
    }
}
