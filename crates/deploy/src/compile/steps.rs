//! The steps of a plan: the action of each instance, its limits and its condition.
//!
//! Does not belong here: the order of steps (`bind`) and the pace of roles (`rollout`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Description};
use hoist_engine::plan::{
    Call, ConcurrencyLimit, Draft, FailureDomain, Holder, Kind, Repeat, Rule, Step, StepId, Vertex,
    Window,
};
use hoist_engine::simulate::MAX_TAKES_MS;
use hoist_model::nearest;
use serde_json::{Value, json};

use super::rollout::Limit;
use super::{BREAKER, Options, PER_NODE};
use crate::bind::{self, Graph, Instance, barrier_rule, number, rule};
use crate::condition::{Decision, Facts};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::select::PastOutcome;
use crate::spec::{
    Amount, At, Check, FailurePolicy, Place, Role, Run, Task, TripPolicy, Use, Week,
};
use crate::target::{RoleSet, Targets};

/// Actions that may be done again without harm.
const SAFE: [&str; 6] = ["file", "copy", "sync", "puppet", "wait", "none"];
/// An action that needs this long to validate one input is not asked about others.
const TOO_LONG: Duration = Duration::from_secs(5);
/// Methods of `http` that only ask.
const ASKS: [&str; 2] = ["GET", "HEAD"];

pub(super) struct Maker<'a> {
    pub(super) book: &'a Book,
    pub(super) targets: &'a Targets,
    pub(super) graph: &'a Graph,
    pub(super) facts: &'a Facts<'a>,
    pub(super) options: &'a Options<'a>,
    pub(super) draft: Draft,
    pub(super) limits: Vec<Limit>,
    /// Of each node, the roles it has, by their place in the book.
    roles_of: Vec<Vec<usize>>,
    /// Of each role, how many may fail.
    pub(super) tolerances: Vec<u32>,
    locks: HashMap<(u32, String), u32>,
    windows: HashMap<String, u32>,
    descriptions: HashMap<String, Option<Description>>,
    /// Actions whose validation of an input took too long.
    hung: HashSet<String>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(
        book: &'a Book,
        targets: &'a Targets,
        graph: &'a Graph,
        facts: &'a Facts<'a>,
        options: &'a Options<'a>,
    ) -> Self {
        Self {
            book,
            targets,
            graph,
            facts,
            options,
            draft: Draft::default(),
            limits: Vec::new(),
            roles_of: vec![Vec::new(); targets.nodes.len()],
            tolerances: Vec::new(),
            locks: HashMap::new(),
            windows: HashMap::new(),
            descriptions: HashMap::new(),
            hung: HashSet::new(),
        }
    }

    pub(super) fn make(&mut self, found: &mut Vec<SourceDiagnostic>) {
        self.draft.subjects = self.targets.nodes.iter().map(|node| node.name.to_string()).collect();
        let limits = &self.book.limits;
        let breaker = limits.breaker.map_or(BREAKER, |breaker| breaker.value);
        self.draft.breaker = Some(breaker).filter(|breaker| *breaker > 0);
        self.draft.on_crash = limits.on_crash.map(|on_crash| on_crash.value).unwrap_or_default();
        self.draft.vertices.reserve(self.graph.after.len());
        self.failure_domains(found);
        self.barriers();
        let common = self.common_limits(found);
        for (task, at) in self.book.tasks.iter().zip(0..) {
            self.task(task, at, &common, found);
        }
        self.joins();
    }

    pub(super) fn skip_unless(&mut self, is_chosen: &[bool]) {
        for at in self.graph.instances().filter(|at| !is_chosen[*at as usize]) {
            if let Kind::Step(step) = &mut self.draft.vertices[at as usize].kind {
                step.skip = Some("selection".to_owned());
            }
        }
    }

    /// Reports problems of tasks and roles that do not depend on the nodes.
    pub(super) fn look(&mut self, found: &mut Vec<SourceDiagnostic>) {
        let book = self.book;
        self.look_at_limits(found);
        for role in &book.roles {
            let amounts = [&role.at_once, &role.canary, &role.max_unavailable];
            amounts.into_iter().flatten().for_each(|amount| self.look_at_amount(amount, found));
        }
        for task in &book.tasks {
            self.step(task, 0, None, found);
            task.at_once.iter().for_each(|amount| self.look_at_amount(amount, found));
            found.extend(Decision::of(self.facts, task, self.options.untranslated, None).err());
            for template in templates(task) {
                found.extend(self.facts.no_template(&template));
            }
        }
    }

    fn look_at_amount(&self, amount: &At<Amount>, found: &mut Vec<SourceDiagnostic>) {
        match &amount.value {
            Amount::Count(0) => found.push(never(amount.place)),
            Amount::Expression(text) => {
                found.extend(self.facts.compile(&At::new(text.as_str(), amount.place)).err());
            }
            _ => {}
        }
    }

    fn look_at_limits(&self, found: &mut Vec<SourceDiagnostic>) {
        let limits = &self.book.limits;
        for at_once in [limits.at_once, limits.per_node].into_iter().flatten() {
            if at_once.value == 0 {
                found.push(never(at_once.place));
            }
        }
    }

    /// A role whose nodes are unknown is empty; a diagnostic reported it.
    pub(super) fn role_set(&self, role: &Role) -> RoleSet {
        self.targets.roles.get(&role.name.value).cloned().unwrap_or_default()
    }

    fn failure_domains(&mut self, found: &mut Vec<SourceDiagnostic>) {
        for (at, role) in self.book.roles.iter().enumerate() {
            let set = self.role_set(role);
            for node in set.nodes.iter() {
                self.roles_of[*node as usize].push(at);
            }
            let members = set.nodes.len();
            let tolerate = role.tolerate.as_ref().map_or(0, |tolerate| {
                self.facts.amount(tolerate, members).unwrap_or_else(|error| {
                    found.push(error);
                    0
                })
            });
            if let Some(written) = &role.tolerate
                && members > 0
                && tolerate as usize > members
            {
                let name = &role.name.value;
                let message =
                    format!("role `{name}` tolerates {tolerate} failed nodes, but has {members}");
                let diagnostic = SourceDiagnostic::new(Code::Contradiction, written.place, message);
                found.push(diagnostic.hint("tolerate fewer, or a part such as `50%`"));
            }
            self.tolerances.push(tolerate);
            self.draft.failure_domains.push(FailureDomain {
                name: role.name.value.clone(),
                tolerate,
                trips_alone: trips_alone(role),
                ..FailureDomain::default()
            });
        }
    }

    fn barriers(&mut self) {
        for (barrier, at) in self.book.barriers.iter().zip(0_u32..) {
            let after = &self.graph.after[at as usize];
            let passes_with = barrier.passes_with.map(|passes| passes.value).unwrap_or_default();
            self.draft.vertices.push(Vertex {
                name: barrier.id.value.clone(),
                after: after.iter().copied().map(StepId).collect(),
                kind: Kind::Join(barrier_rule(passes_with, after.len())),
            });
        }
    }

    fn joins(&mut self) {
        let start = self.graph.instances().end;
        for (join, at) in self.graph.joins.iter().zip(start..) {
            let after = self.graph.after[at as usize].iter().copied().map(StepId).collect();
            let name = bind::name(self.book, self.targets, self.graph, at);
            self.draft.vertices.push(Vertex { name, after, kind: Kind::Join(rule(join.want)) });
        }
    }

    pub(super) fn add_limit(&mut self, limit: ConcurrencyLimit) -> u32 {
        self.draft.limits.push(limit);
        number(self.draft.limits.len() - 1)
    }

    /// The limits of all instances: that of the run, and those of the nodes, which come last.
    fn common_limits(&mut self, found: &mut Vec<SourceDiagnostic>) -> Common {
        self.look_at_limits(found);
        let limits = &self.book.limits;
        let run = limits.at_once.map(|at_once| {
            let name = "run".to_owned();
            self.add_limit(ConcurrencyLimit { name, slots: at_once.value, held_by: Holder::Step })
        });
        let slots = limits.per_node.map_or(PER_NODE, |limit| limit.value);
        let first_node = number(self.draft.limits.len());
        let nodes = self.targets.nodes.iter();
        let limits: Vec<ConcurrencyLimit> =
            nodes.map(|node| limit(format!("node {}", node.name), slots)).collect();
        self.draft.limits.extend(limits);
        Common { run, first_node }
    }

    fn task(
        &mut self,
        task: &'a Task,
        at: u32,
        common: &Common,
        found: &mut Vec<SourceDiagnostic>,
    ) {
        let instances = self.graph.of_task(at);
        let nodes = &self.graph.nodes_of[at as usize];
        let any_node = nodes.first().copied();
        let made = self.step(task, at, any_node, found);
        let limit = self.task_limit(task, instances.len(), found);
        let untranslated = self.options.untranslated;
        let decision = match Decision::of(self.facts, task, untranslated, any_node) {
            Ok(decision) => decision,
            Err(error) => {
                found.push(error);
                Decision::Same(false)
            }
        };
        let is_lenient = self.book.is_lenient(task.id.place);
        let inputs = self.facts.inputs(task, is_lenient, found);
        let mentioned = mentioned(self.book, task);
        let window = self.window(task, &mentioned);
        let templates = templates(task);
        let before = found.len();
        for (node, vertex) in nodes.iter().copied().zip(instances) {
            let mut step = made.clone();
            step.subject = Some(node);
            step.failure_domain = self.failure_domain(&mentioned, node);
            step.undone_with = self.undone_with(&mentioned, node);
            step.window = window;
            step.limits.extend(common.run);
            step.limits.push(common.first_node + node);
            step.limits.extend(limit);
            for lock in task.locks.iter().flat_map(|locks| &locks.value) {
                step.limits.push(self.lock(node, lock));
            }
            step.limits.sort_unstable();
            step.limits.dedup();
            if !templates.is_empty() {
                self.render(&mut step, task, node, found);
            }
            let holds = match &decision {
                Decision::Same(holds) => Ok(*holds),
                Decision::PerNode(source, compiled) => self.facts.holds(source, compiled, node),
            };
            match holds {
                Ok(true) => {}
                Ok(false) => step.skip = Some("condition".to_owned()),
                Err(error) => {
                    // Once is enough: the others have the same condition.
                    found.push(error);
                    return self.fill(task, at, vertex);
                }
            }
            let fingerprint = self.facts.fingerprint(task, &step, &inputs, node, found);
            if step.skip.is_none() && self.is_unchanged(task, node, &fingerprint) {
                // The node may have lost the work since, so its postcondition decides.
                if step.after.is_empty() {
                    step.skip = Some("unchanged inputs".to_owned());
                } else {
                    step.skip_when_done = true;
                }
            }
            if found.len() > before {
                only_first_of_each_place(found, before);
            }
            step.knows_inputs = task.inputs.is_some();
            step.fingerprint = Some(fingerprint);
            let after = self.graph.after[vertex as usize].iter().copied().map(StepId).collect();
            let name = format!("{}@{}", task.id.value, self.draft.subjects[node as usize]);
            self.draft.vertices.push(Vertex { name, after, kind: Kind::Step(Box::new(step)) });
        }
    }

    /// Fills the vertices of a task whose condition is undecided. There is no plan, but the
    /// remaining tasks are still checked.
    fn fill(&mut self, task: &Task, at: u32, from: u32) {
        for _ in from..self.graph.of_task(at).end {
            let kind = Kind::Step(Box::default());
            let name = task.id.value.clone();
            self.draft.vertices.push(Vertex { name, after: Vec::new(), kind });
        }
    }

    fn is_unchanged(&self, task: &Task, node: u32, fingerprint: &str) -> bool {
        let selection = &self.options.selection;
        if task.inputs.is_none() || selection.repeat || self.options.past.is_empty() {
            return false;
        }
        let mut events = task.events.iter().flat_map(|events| &events.value);
        if events.any(|event| selection.events.contains(event)) {
            return false;
        }
        let name = format!("{}@{}", task.id.value, self.draft.subjects[node as usize]);
        self.options.past.get(&name).is_some_and(|was| {
            was.state == PastOutcome::Good && was.fingerprint.as_deref() == Some(fingerprint)
        })
    }

    /// Of the roles that the task is for, or else of all that the node has, the one that can do
    /// without the fewest.
    fn failure_domain(&self, mentioned: &[usize], node: u32) -> Option<u32> {
        let all = &self.roles_of[node as usize];
        let meant = all.iter().filter(|role| mentioned.contains(role));
        let strictest = |roles: &mut dyn Iterator<Item = &usize>| {
            roles.copied().min_by_key(|role| (self.tolerances[*role], *role))
        };
        let mut meant = meant.into_iter();
        strictest(&mut meant).or_else(|| strictest(&mut all.iter())).map(number)
    }

    /// Of the roles that the task is for and the node has, those whose failures are undone.
    fn undone_with(&self, mentioned: &[usize], node: u32) -> Vec<u32> {
        let is_meant = |role: &&usize| {
            let on_failure = self.book.roles[**role].on_failure;
            on_failure.is_some_and(|on_failure| on_failure.value == FailurePolicy::Undo)
                && self.roles_of[node as usize].contains(role)
        };
        mentioned.iter().filter(is_meant).copied().map(number).collect()
    }

    fn window(&mut self, task: &Task, mentioned: &[usize]) -> Option<u32> {
        let of_role = || mentioned.iter().find_map(|role| self.book.roles[*role].window.as_ref());
        let At { value: Week { text, spans }, .. } = task.window.as_ref().or_else(of_role)?;
        let next = number(self.draft.windows.len());
        let at = *self.windows.entry(text.clone()).or_insert(next);
        if at == next {
            self.draft.windows.push(Window { name: text.clone(), spans: spans.clone() });
        }
        Some(at)
    }

    fn lock(&mut self, node: u32, lock: &str) -> u32 {
        if let Some(at) = self.locks.get(&(node, lock.to_owned())) {
            return *at;
        }
        let name = format!("lock {lock} of {}", self.draft.subjects[node as usize]);
        let at = self.add_limit(limit(name, 1));
        self.locks.insert((node, lock.to_owned()), at);
        at
    }

    fn task_limit(
        &mut self,
        task: &Task,
        instances: usize,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Option<u32> {
        let slots = self.at_once(task.at_once.as_ref()?, instances, found)?;
        let name = format!("task {}", task.id.value);
        ((slots as usize) < instances).then(|| self.add_limit(limit(name, slots)))
    }

    /// Limits are rounded to at least one; only one that says nothing is a mistake.
    pub(super) fn at_once(
        &self,
        amount: &At<Amount>,
        whole: usize,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Option<u32> {
        match self.facts.amount(amount, whole) {
            Ok(0) if matches!(amount.value, Amount::Count(_) | Amount::Expression(_)) => {
                found.push(never(amount.place));
                None
            }
            Ok(slots) => Some(slots.max(1)),
            Err(error) => {
                found.push(error);
                None
            }
        }
    }

    /// What all instances of a task have in common.
    fn step(
        &mut self,
        task: &Task,
        at: u32,
        node: Option<u32>,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Step {
        let id = &task.id.value;
        let Some(run) = &task.run else {
            let message = format!("task `{id}`: `run` is missing");
            let remedy = "write `run: {shell: …}`, or `run: none` if it only keeps an order";
            found.push(SourceDiagnostic::new(Code::Missing, task.id.place, message).hint(remedy));
            return Step::default();
        };
        self.look_at(run, node, found);
        let call = self::call(&run.value);
        let checks = |checks: &Option<At<Vec<Check>>>| -> Vec<Call> {
            checks.iter().flat_map(|checks| &checks.value).map(check).collect()
        };
        for check in [&task.check_before, &task.check_after].into_iter().flatten() {
            for one in &check.value {
                self.look_at_check(&one.by, found);
            }
        }
        let mut after = checks(&task.check_after);
        if after.is_empty() && self.can(&call.action, Ability::Verify) {
            after.push(call.clone());
        }
        let repeat = task.repeat.map_or_else(|| default_repeat(&run.value, &after), |at| at.value);
        if repeat == Repeat::Check && after.is_empty() {
            let place = task.repeat.map_or(task.id.place, |repeat| repeat.place);
            let message = format!("task `{id}`: `repeat: check` needs a postcondition");
            let diagnostic = SourceDiagnostic::new(Code::Contradiction, place, message);
            found.push(diagnostic.hint("add `check: {after: […]}`, or write `safe` or `never`"));
        }
        // The action's own `skip_when_verified` holds for its own verdict, not for another check.
        let skips = !has_checks(task)
            && self.describe(&call.action).is_some_and(|action| action.skip_when_verified);
        if let Some(undo) = &task.undo {
            self.look_at(undo, node, found);
        }
        if let Some(timeout) = task.timeout.filter(|timeout| timeout.value.is_zero()) {
            let message = format!("task `{id}` has no time at all");
            let diagnostic = SourceDiagnostic::new(Code::Contradiction, timeout.place, message);
            found.push(diagnostic.hint("leave `timeout` out for as long as it takes"));
        }
        Step {
            call,
            before: checks(&task.check_before),
            after,
            repeat,
            retries: task.retries.map_or(0, |retries| retries.value),
            retries_precheck: task.retries_precheck.map_or(0, |retries| retries.value),
            delay_ms: task.delay.map_or(0, |delay| millis(delay.value)),
            timeout_ms: task.timeout.map(|timeout| millis(timeout.value)),
            may_use: task.may_use.map(|may_use| Box::new(may_use.value)),
            on_failure: task.on_failure.map(|on_failure| on_failure.value).unwrap_or_default(),
            undo: task.undo.as_ref().map(|undo| self::call(&undo.value)),
            reversibility: task.reversibility.map(|way| way.value).unwrap_or_default(),
            skip_when_done: task.skip_when_done.is_some_and(|skip| skip.value) || skips,
            kin: Some(at),
            expected_ms: self.options.expected_ms.get(id).copied().or_else(|| waits(&run.value)),
            ..Step::default()
        }
    }

    fn describe(&mut self, action: &str) -> Option<&Description> {
        let actions = self.options.actions?;
        let described = self.descriptions.entry(action.to_owned());
        described.or_insert_with(|| actions.get(action).map(|one| one.describe())).as_ref()
    }

    fn can(&mut self, action: &str, ability: Ability) -> bool {
        self.describe(action).is_some_and(|action| action.can.contains(&ability))
    }

    /// Checks that the actions exist and accept their inputs.
    fn look_at(&mut self, run: &At<Run>, node: Option<u32>, found: &mut Vec<SourceDiagnostic>) {
        for one in &run.value.uses {
            let mut input = one.input.clone();
            if let (Some(template), Some(node)) = (template(one), node) {
                // Problems of the template are reported with the node.
                fill_in(&mut input, self.facts.render(template, node).unwrap_or_default());
            } else if template(one).is_some() {
                fill_in(&mut input, String::new());
            }
            self.validate(one, &input, found);
        }
    }

    fn look_at_check(&mut self, one: &Use, found: &mut Vec<SourceDiagnostic>) {
        self.validate(one, &one.input.clone(), found);
        if self.describe(&one.action).is_some() && !self.can(&one.action, Ability::Check) {
            let message = format!("the action `{}` cannot be a check", one.action);
            let diagnostic = SourceDiagnostic::new(Code::Action, one.place, message);
            found.push(diagnostic.hint("`hoist plugin list` says which can"));
        }
    }

    fn validate(&mut self, one: &Use, input: &Value, found: &mut Vec<SourceDiagnostic>) {
        let Some(actions) = self.options.actions else { return };
        let Some(action) = actions.get(&one.action) else {
            let message = format!("action `{}` not found", one.action);
            let close = nearest(&one.action, actions.iter().map(|(name, _)| name));
            let diagnostic = SourceDiagnostic::new(Code::Action, one.place, message);
            found.push(match close {
                Some(close) => diagnostic.suggest(Some(close)),
                None => diagnostic.hint("`hoist plugin list` lists them"),
            });
            return;
        };
        // The remaining inputs are validated after this one is fixed.
        if self.hung.contains(&one.action) {
            return;
        }
        let began = Instant::now();
        let diagnostics = action.validate(input);
        if !diagnostics.is_empty() && began.elapsed() >= TOO_LONG {
            self.hung.insert(one.action.clone());
        }
        for diagnostic in diagnostics {
            let Diagnostic { at, message, hint } = diagnostic;
            let at = if at.is_empty() { at } else { format!("{at}: ") };
            let message = format!("`{}`: {at}{message}", one.action);
            let located = SourceDiagnostic::new(Code::Action, one.place, message);
            found.push(match hint {
                Some(hint) => located.hint(hint),
                None => located,
            });
        }
    }

    /// Puts the rendered templates of a node into the inputs of a call.
    fn fill_call(&self, run: &Run, call: &mut Call, node: u32, found: &mut Vec<SourceDiagnostic>) {
        for (at, one) in run.uses.iter().enumerate() {
            let Some(template) = template(one) else { continue };
            let text = match self.facts.render(template, node) {
                Ok(text) => text,
                Err(error) => {
                    let name = &self.draft.subjects[node as usize];
                    let template = template.value;
                    let message = format!("the template `{template}` for {name}: {error}");
                    found.push(SourceDiagnostic::new(Code::Template, one.place, message));
                    continue;
                }
            };
            match run.uses.len() {
                1 => fill_in(&mut call.input, text),
                _ => fill_in(&mut call.input["steps"][at]["input"], text),
            }
        }
    }

    /// Renders the templates of a step for its node.
    fn render(&self, step: &mut Step, task: &Task, node: u32, found: &mut Vec<SourceDiagnostic>) {
        if let Some(run) = &task.run {
            // An action that verifies itself checks for its own input.
            let looks_itself = step.after == [step.call.clone()];
            self.fill_call(&run.value, &mut step.call, node, found);
            if looks_itself {
                step.after = vec![step.call.clone()];
            }
        }
        if let (Some(undo), Some(call)) = (&task.undo, &mut step.undo) {
            self.fill_call(&undo.value, call, node, found);
        }
        // An action that verifies itself looks for the same text that it writes.
        if !has_checks(task) && !step.after.is_empty() {
            step.after = vec![step.call.clone()];
        }
    }

    pub(super) fn vertices_of(&self, role: usize) -> BTreeMap<u32, Vec<u32>> {
        let set = self.role_set(&self.book.roles[role]);
        let mut vertices: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (task, at) in self.book.tasks.iter().zip(0_u32..) {
            if !mentioned(self.book, task).contains(&role) {
                continue;
            }
            for node in crate::target::common(&self.graph.nodes_of[at as usize], &set.nodes) {
                let vertex = self.graph.vertex(Instance { task: at, node });
                vertices.entry(node).or_default().extend(vertex);
            }
        }
        vertices
    }

    pub(super) fn add_join(&mut self, name: String, after: Vec<StepId>) -> StepId {
        self.draft.vertices.push(Vertex { name, after, kind: Kind::Join(Rule::All) });
        StepId(number(self.draft.vertices.len() - 1))
    }

    /// Waits on a node of a `failure_domain`: one that is lost meanwhile has not stood the test.
    pub(super) fn add_pause(
        &mut self,
        name: String,
        pause: Duration,
        after: StepId,
        (node, failure_domain): (u32, u32),
    ) -> StepId {
        let ms = millis(pause);
        let input = json!({ "for": { "ms": ms } });
        let call = Call { action: "wait".to_owned(), input, ..Call::default() };
        let step = Step {
            call,
            subject: Some(node),
            failure_domain: Some(failure_domain),
            repeat: Repeat::Safe,
            expected_ms: Some(ms.min(MAX_TAKES_MS)),
            ..Step::default()
        };
        let kind = Kind::Step(Box::new(step));
        self.draft.vertices.push(Vertex { name, after: vec![after], kind });
        StepId(number(self.draft.vertices.len() - 1))
    }
}

/// The roles that a task is for, by their place in the book.
pub(super) fn mentioned(book: &Book, task: &Task) -> Vec<usize> {
    let words = task.on.as_ref().map(|on| on.value.bare_names()).unwrap_or_default();
    let is_meant = |role: &Role| {
        words.iter().any(|word| {
            *word == role.name.value
                || role.first.as_ref().is_some_and(|first| first.value == *word)
        })
    };
    let roles = book.roles.iter().enumerate();
    roles.filter(|(_, role)| is_meant(role)).map(|(at, _)| at).collect()
}

/// Whether other roles go on when more nodes of this one failed than may.
pub(super) fn trips_alone(role: &Role) -> bool {
    role.when_tripped.is_some_and(|tripped| tripped.value == TripPolicy::Continue)
}

struct Common {
    run: Option<u32>,
    /// The limit of the first node; the others follow.
    first_node: u32,
}

fn limit(name: String, slots: u32) -> ConcurrencyLimit {
    ConcurrencyLimit { name, slots, held_by: Holder::Step }
}

/// Deduplicates the diagnostics from index `from` on: many nodes may share one problem of a
/// declaration.
fn only_first_of_each_place(found: &mut Vec<SourceDiagnostic>, from: usize) {
    let mut seen = std::collections::BTreeSet::new();
    let told = found.split_off(from);
    found.extend(told.into_iter().filter(|one| seen.insert((one.code, one.place))));
}

/// Whether it may be done again without harm.
fn is_safe(one: &Use) -> bool {
    if one.action == "http" {
        let method = one.input.get("method").and_then(Value::as_str).unwrap_or(ASKS[0]);
        return ASKS.contains(&method);
    }
    SAFE.contains(&one.action.as_str())
}

fn never(place: Place) -> SourceDiagnostic {
    let message = "at most 0 at once means never";
    let diagnostic = SourceDiagnostic::new(Code::Contradiction, place, message);
    diagnostic.hint("write at least 1, or leave it out for no limit")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn has_checks(task: &Task) -> bool {
    task.check_after.as_ref().is_some_and(|checks| !checks.value.is_empty())
}

fn template(one: &Use) -> Option<At<&str>> {
    let name = (one.action == "file").then(|| one.input.get("template")?.as_str())??;
    Some(At::new(name, one.place))
}

/// Templates that a task names.
pub fn templates(task: &Task) -> Vec<At<&str>> {
    let runs = [&task.run, &task.undo].into_iter().flatten();
    let uses = runs.flat_map(|run| &run.value.uses);
    uses.filter_map(template).collect()
}

fn fill_in(input: &mut Value, text: String) {
    if let Value::Object(input) = input {
        input.shift_remove("template");
        input.insert("text".to_owned(), text.into());
    }
}

/// Several uses are one call: one attempt.
fn call(run: &Run) -> Call {
    match run.uses.as_slice() {
        [one] => Call { action: one.action.clone(), input: one.input.clone(), ..Call::default() },
        uses => {
            let step = |one: &Use| {
                let mut step = json!({ "action": one.action, "input": one.input });
                if let Some(name) = &one.name {
                    step["name"] = name.as_str().into();
                }
                step
            };
            let steps: Vec<Value> = uses.iter().map(step).collect();
            let input = json!({ "steps": steps });
            Call { action: "steps".to_owned(), input, ..Call::default() }
        }
    }
}

/// How long it takes at least, where it waits for a time that is written.
fn waits(run: &Run) -> Option<u64> {
    let waits = run.uses.iter().filter(|one| one.action == "wait");
    let written = waits.filter_map(|one| one.input["for"]["ms"].as_u64());
    Some(written.reduce(u64::saturating_add)?.min(MAX_TAKES_MS))
}

fn check(check: &Check) -> Call {
    let mut input = check.by.input.clone();
    if let Value::Object(input) = &mut input {
        if check.within.is_some() || check.every.is_some() {
            let mut poll = serde_json::Map::new();
            let mut put = |name: &str, value: Option<Duration>| {
                if let Some(value) = value {
                    poll.insert(name.to_owned(), millis(value).into());
                }
            };
            put("for_ms", check.within);
            put("every_ms", check.every);
            input.insert("poll".to_owned(), poll.into());
        }
        if let Some(says) = &check.says {
            input.insert("says".to_owned(), says.as_str().into());
        }
    }
    Call { action: check.by.action.clone(), input, ..Call::default() }
}

fn default_repeat(run: &Run, after: &[Call]) -> Repeat {
    if !after.is_empty() {
        Repeat::Check
    } else if run.uses.iter().all(is_safe) {
        Repeat::Safe
    } else {
        Repeat::Never
    }
}
