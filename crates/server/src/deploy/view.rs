//! The view of a run for people and clients, from its plan and its records.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use hoist_api::deploy::{
    Attempt, CheckKind, FailedCheck, Instance, InstanceExplanation, RunEvent, RunOutcome, RunState,
    RunSummary,
};
use hoist_deploy::spec::Sources;
use hoist_engine::plan::Step;
use hoist_engine::record::{self, End, FailureKind, Outcome};
use hoist_engine::run::{Reason, State, StepEnd};
use hoist_engine::{Plan, Record, Run, StepId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::compile::book_of;
use super::folder::RunFile;

/// A run at one moment.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) file: RunFile,
    pub(super) plan: Arc<Plan>,
    pub(super) records: Arc<Vec<Record>>,
    pub(super) run: Arc<Run>,
    /// Nothing goes on by itself.
    pub(super) waiting: bool,
    /// The run has not ended, and no thread drives it.
    pub(super) is_broken: bool,
}

impl View {
    pub(super) fn summary(&self) -> RunSummary {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (id, _) in self.steps() {
            *counts.entry(word(self.run.state(id)).to_owned()).or_default() += 1;
        }
        let outcome = self.run.outcome().map(outcome);
        let ended =
            self.records.last().filter(|_| outcome.is_some()).map(|last| rfc3339(last.at()));
        RunSummary {
            id: self.file.id.clone(),
            title: self.file.title.clone(),
            by: self.file.by.clone(),
            created: self.file.created.clone(),
            ended,
            state: self.state(),
            outcome,
            counts,
            steps: self.steps().count(),
            nodes: self.steps().filter_map(|(_, step)| step.subject).collect::<BTreeSet<_>>().len(),
            plan: self.plan.hash().to_owned(),
            undoes: self.file.undoes.clone(),
            automatic: self.file.automatic,
            check: self.file.is_check(),
            files: self.file.files(),
            records: self.records.len() as u64,
            broken: None,
            diagnostics: Vec::new(),
        }
    }

    pub(super) fn state(&self) -> RunState {
        if self.is_broken {
            return RunState::Broken;
        }
        if self.run.outcome().is_some() {
            return RunState::Ended;
        }
        if self.run.is_stopping() {
            RunState::Stopping
        } else if self.run.paused_by().is_some() {
            RunState::Paused
        } else if self.waiting {
            RunState::Waiting
        } else {
            RunState::Running
        }
    }

    /// The run has ended, or it waits for an operator.
    pub(super) fn rests(&self) -> bool {
        let runs = || self.run.is_busy() || self.steps().any(|(id, _)| self.is_checking(id));
        match self.state() {
            RunState::Ended | RunState::Broken | RunState::Waiting => true,
            RunState::Paused => self.waiting || !runs(),
            RunState::Running | RunState::Stopping => false,
        }
    }

    fn is_checking(&self, id: StepId) -> bool {
        self.run.state(id) == State::Checking
    }

    /// Vertices that do something.
    pub(super) fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        self.plan.ids().filter_map(|id| Some((id, self.plan.step(id)?)))
    }

    pub(super) fn name(&self, id: StepId) -> &str {
        &self.plan.vertex(id).name
    }

    pub(super) fn node(&self, id: StepId) -> Option<&str> {
        let subject = self.plan.step(id)?.subject?;
        Some(&self.plan.draft().subjects[subject as usize])
    }

    /// The instances of a task, or the one of this name or number.
    pub(super) fn find(&self, given: &str) -> Vec<StepId> {
        let number = given.strip_prefix('#').unwrap_or(given).parse::<u32>().ok().map(StepId);
        if let Some(id) = number.filter(|id| self.plan.ids().any(|known| known == *id)) {
            return vec![id];
        }
        let exact = self.plan.ids().find(|id| self.name(*id) == given);
        if let Some(id) = exact {
            return vec![id];
        }
        self.steps().map(|(id, _)| id).filter(|id| self.task(*id) == given).collect()
    }

    /// The name without the node that it is on.
    pub(super) fn task(&self, id: StepId) -> &str {
        let name = self.name(id);
        let Some(node) = self.node(id) else { return name };
        let Some(task) = name.strip_suffix(node) else { return name };
        task.strip_suffix(['@', '/', ':']).unwrap_or(name)
    }

    pub(super) fn instance(&self, id: StepId, attempts: Vec<Attempt>) -> Instance {
        let last = attempts.last();
        let reason = last.map(|last| last.reason.clone()).filter(|reason| !reason.is_empty());
        let check = last.and_then(|last| last.check.clone());
        Instance {
            step: id.0,
            name: self.name(id).to_owned(),
            node: self.node(id).map(str::to_owned),
            action: self.plan.step(id).map(|step| step.call.action.clone()).unwrap_or_default(),
            state: word(self.run.state(id)).to_owned(),
            attempt: self.run.attempt(id),
            reason,
            check,
            held_by: self.held_by(id),
            started: last.and_then(|last| last.started),
            ended: last.and_then(|last| last.ended),
            attempts,
        }
    }

    /// What keeps a step from going on, if something does.
    fn held_by(&self, id: StepId) -> Option<String> {
        match self.run.why(id) {
            Reason::Nothing => None,
            reason => Some(self.run.explain(&reason)),
        }
    }

    /// Everything that is blocked because of this one.
    pub(super) fn blocked_by(&self, id: StepId) -> Vec<StepId> {
        let mut seen: BTreeSet<StepId> = self.run.shut_with(id).collect();
        let mut open: Vec<StepId> = seen.iter().copied().chain([id]).collect();
        while let Some(id) = open.pop() {
            for after in self.plan.successors(id) {
                if self.run.passes_on_loss(*after) && seen.insert(*after) {
                    open.push(*after);
                }
            }
        }
        let is_blocked = |id: &StepId| self.run.state(*id) == State::Ended(StepEnd::Blocked);
        seen.into_iter().filter(|id| self.plan.step(*id).is_some() && is_blocked(id)).collect()
    }

    /// The critical path through the unfinished steps, by their expected durations.
    pub(super) fn critical(&self) -> Vec<StepId> {
        /// The assumed duration of a step without a known one.
        const UNKNOWN_MS: u64 = 1000;
        let open = |id: &StepId| !matches!(self.run.state(*id), State::Ended(_));
        let mut best: HashMap<StepId, (u64, Option<StepId>)> = HashMap::new();
        let mut stack: Vec<StepId> = self.plan.ids().filter(open).collect();
        while let Some(id) = stack.last().copied() {
            if best.contains_key(&id) {
                stack.pop();
                continue;
            }
            let after = || self.plan.successors(id).iter().copied().filter(open);
            let unseen: Vec<StepId> = after().filter(|next| !best.contains_key(next)).collect();
            if !unseen.is_empty() {
                stack.extend(unseen);
                continue;
            }
            let own = match self.plan.step(id) {
                Some(step) => step.expected_ms.unwrap_or(UNKNOWN_MS),
                None => 0,
            };
            let next = after().max_by_key(|next| (best[next].0, std::cmp::Reverse(*next)));
            let rest = next.map_or(0, |next| best[&next].0);
            best.insert(id, (own + rest, next));
            stack.pop();
        }
        let first = best.iter().max_by_key(|(id, (length, _))| (*length, std::cmp::Reverse(**id)));
        let mut way = Vec::new();
        let mut at = first.map(|(id, _)| *id);
        while let Some(id) = at {
            if self.plan.step(id).is_some() {
                way.push(id);
            }
            at = best[&id].1;
        }
        way
    }

    pub(super) fn explain(&self, id: StepId) -> InstanceExplanation {
        let of = attempts_of(&self.records);
        let attempts = of.get(&id).cloned().unwrap_or_default();
        let instance = self.instance(id, attempts);
        let mut because = vec![sentence(&instance)];
        let roots = match self.run.why(id) {
            Reason::Blocked { roots, .. } | Reason::LeftOut { roots } => roots,
            Reason::Waits { steps, .. }
            | Reason::Undecided { steps }
            | Reason::Limit { steps, .. } => steps,
            _ => Vec::new(),
        };
        for root in roots.into_iter().filter(|root| *root != id) {
            let attempts = of.get(&root).cloned().unwrap_or_default();
            because.push(sentence(&self.instance(root, attempts)));
        }
        let names = |ids: &[StepId]| ids.iter().map(|id| self.name(*id).to_owned()).collect();
        let needs = names(&self.plan.vertex(id).after);
        let needed_by = names(self.plan.successors(id));
        let (written, from) = self.written(&instance.name).unwrap_or_default();
        InstanceExplanation { instance, because, needs, needed_by, written, from }
    }

    /// Where the task of an instance was written, and each of its fields.
    fn written(&self, instance: &str) -> Option<(Option<String>, BTreeMap<String, String>)> {
        let (task, _) = instance.rsplit_once('@')?;
        let files = &self.file.request.as_ref()?.files;
        let mut sources = Sources::default();
        let book = book_of(files, &mut sources, &mut Vec::new());
        let task = book.tasks.iter().find(|other| other.id.value == task)?;
        let fields = task.provenance().into_iter();
        let from = fields.map(|(field, place)| (field.to_owned(), sources.show(place)));
        Some((Some(sources.show(task.id.place)), from.collect()))
    }

    /// The events after a record, with the names of instances.
    pub(super) fn events(&self, after: u64, most: usize) -> Vec<RunEvent> {
        let skip = usize::try_from(after).unwrap_or(usize::MAX);
        let records = self.records.iter().enumerate().skip(skip).take(most);
        records.map(|(at, record)| self.event(at as u64 + 1, record)).collect()
    }

    fn event(&self, seq: u64, record: &Record) -> RunEvent {
        let Ok(Value::Object(mut more)) = serde_json::to_value(record) else {
            unreachable!("records are objects")
        };
        let Some(Value::String(kind)) = more.remove("record") else {
            unreachable!("every record has a kind")
        };
        more.remove("at");
        // Receipts are private to undo.
        more.remove("made");
        if let Some(Value::Object(end)) = more.remove("end") {
            let told = end.into_iter().filter(|(key, _)| key != "receipt");
            more.extend(told.collect::<Map<_, _>>());
        }
        let step = more.get("step").and_then(Value::as_u64).and_then(|at| u32::try_from(at).ok());
        if let Some(id) = step.map(StepId) {
            more.insert("name".to_owned(), self.name(id).into());
            if let Some(node) = self.node(id) {
                more.insert("node".to_owned(), node.into());
            }
        }
        if let Some(at) = more.remove("subject").as_ref().and_then(Value::as_u64) {
            let subjects = &self.plan.draft().subjects;
            let node = usize::try_from(at).ok().and_then(|at| subjects.get(at));
            more.insert("node".to_owned(), node.cloned().into());
        }
        RunEvent { seq, record: kind, at: record.at(), more }
    }
}

fn sentence(instance: &Instance) -> String {
    use std::fmt::Write as _;
    let Instance { name, state, attempt, reason, held_by, .. } = instance;
    let mut text = format!("{name} is {}", state.replace('_', " "));
    if *attempt > 0 {
        write!(text, " after attempt {attempt}").expect("writing to a string");
    }
    for more in [held_by, reason].into_iter().flatten() {
        write!(text, ": {more}").expect("writing to a string");
    }
    text
}

/// All attempts of all steps.
pub(super) fn attempts_of(records: &[Record]) -> HashMap<StepId, Vec<Attempt>> {
    let mut all: HashMap<StepId, Vec<Attempt>> = HashMap::new();
    let fresh = |attempt| Attempt {
        attempt,
        started: None,
        ended: None,
        end: String::new(),
        reason: String::new(),
        check: None,
    };
    for record in records {
        let (step, attempt) = match record {
            Record::Intent { step, attempt, .. }
            | Record::Refused { step, attempt, .. }
            | Record::Ran { step, attempt, .. }
            | Record::Verified { step, attempt, .. }
            | Record::Lost { step, attempt, .. } => (*step, *attempt),
            _ => continue,
        };
        let of = all.entry(step).or_default();
        if of.last().is_none_or(|last| last.attempt != attempt) {
            of.push(fresh(attempt));
        }
        let last = of.last_mut().expect("one was just put there");
        match record {
            Record::Intent { at, .. } => last.started = Some(*at),
            Record::Refused { check, at, .. } => {
                last.ended = Some(*at);
                "refused".clone_into(&mut last.end);
                fail_check(last, CheckKind::Precondition, check);
            }
            Record::Ran { end, at, .. } => {
                last.ended = Some(*at);
                (last.end, last.reason) = match end {
                    End::Done { changed: true, .. } => ("done".to_owned(), String::new()),
                    End::Done { changed: false, .. } => ("unchanged".to_owned(), String::new()),
                    End::Failed { kind, reason } => ("failed".to_owned(), told(*kind, reason)),
                    End::Unknown { reason } => ("unknown".to_owned(), reason.clone()),
                    End::NotBegun { reason: Some(reason) } => {
                        ("failed".to_owned(), told(FailureKind::Internal, reason))
                    }
                    End::Interrupted | End::NotBegun { reason: None } => {
                        ("interrupted".to_owned(), String::new())
                    }
                };
            }
            Record::Verified { failed: Some(check), at, .. } => {
                last.ended = Some(*at);
                "failed".clone_into(&mut last.end);
                fail_check(last, CheckKind::Postcondition, check);
            }
            Record::Verified { failed: None, at, .. } => last.ended = Some(*at),
            Record::Lost { at, .. } => {
                (last.ended, last.end) = (Some(*at), "lost".to_owned());
                "outcome unknown".clone_into(&mut last.reason);
            }
            _ => {}
        }
    }
    all
}

/// Ends an attempt with a check that did not hold.
fn fail_check(attempt: &mut Attempt, kind: CheckKind, check: &record::FailedCheck) {
    let record::FailedCheck { title, output, exit_code } = check.clone();
    let check = FailedCheck { kind, title, output, exit_code };
    attempt.reason = check.to_string();
    attempt.check = Some(check);
}

/// A failure reason with its kind.
fn told(kind: FailureKind, reason: &str) -> String {
    let what = match kind {
        // It begins with the exit code.
        FailureKind::Exit => return reason.to_owned(),
        FailureKind::Precheck => "precondition",
        FailureKind::Timeout => "timeout",
        FailureKind::Limit => "limit",
        FailureKind::Verify => "postcondition",
        FailureKind::Lost => "lost",
        FailureKind::Internal => "internal",
    };
    format!("{what}: {reason}")
}

pub(super) fn word(state: State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::Ready => "ready",
        State::Checking => "checking",
        State::Running => "running",
        State::Verifying | State::VerifyingLost => "verifying",
        State::Delayed => "delayed",
        State::Unknown => "unknown",
        State::Ended(ended) => match ended {
            StepEnd::Ok => "ok",
            StepEnd::Unchanged => "unchanged",
            StepEnd::Ignored => "ignored",
            StepEnd::Skipped => "skipped",
            StepEnd::Failed(_) => "failed",
            StepEnd::Blocked => "blocked",
            StepEnd::LeftOut => "left_out",
            StepEnd::Stopped => "stopped",
            StepEnd::Interrupted => "interrupted",
            StepEnd::Undone => "undone",
        },
    }
}

pub(super) fn outcome(outcome: Outcome) -> RunOutcome {
    match outcome {
        Outcome::Succeeded => RunOutcome::Succeeded,
        Outcome::Degraded => RunOutcome::Degraded,
        Outcome::Failed => RunOutcome::Failed,
        Outcome::Stopped => RunOutcome::Stopped,
    }
}

pub(super) fn rfc3339(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).map(|at| at.to_string()).unwrap_or_default()
}
