//! The selected part of a plan: the tasks that an operator names, and their dependencies.

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::nearest;
use hoist_model::selector::Selector;

use crate::bind::{End, Graph, Instance, Matcher, VertexKind, number};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::spec::{At, Pattern, Place, Want};
use crate::target::Targets;

/// The selection of an operator. An empty selection selects everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// `id`, glob, `/regex/`, `id@node`, `@barrier` (the dependencies of a barrier), `failed`,
    /// `blocked`; `+t` with all predecessors, `t+` with all successors, `a..b` with everything
    /// between.
    pub tasks: Vec<String>,
    pub on: Option<Selector>,
    pub from: Vec<String>,
    pub to: Vec<String>,
    pub skip: Vec<String>,
    /// Of these, only what ended like this in the last run.
    pub only: Option<OutcomeFilter>,
    /// Unchanged instances run again.
    pub repeat: bool,
    /// Unchanged instances that subscribe to one of these events run again.
    pub events: Vec<String>,
}

impl Selection {
    fn is_everything(&self) -> bool {
        self.tasks.is_empty()
            && self.on.is_none()
            && self.from.is_empty()
            && self.to.is_empty()
            && self.skip.is_empty()
            && self.only.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeFilter {
    Failed,
    Blocked,
}

impl OutcomeFilter {
    fn outcome(self) -> PastOutcome {
        match self {
            Self::Failed => PastOutcome::Failed,
            Self::Blocked => PastOutcome::Blocked,
        }
    }
}

impl std::str::FromStr for OutcomeFilter {
    type Err = SourceDiagnostic;

    fn from_str(word: &str) -> Result<Self, SourceDiagnostic> {
        match word {
            "failed" => Ok(Self::Failed),
            "blocked" => Ok(Self::Blocked),
            _ => {
                let message = format!("`{word}` is no end of a step that can be selected");
                let diagnostic = SourceDiagnostic::without_place(Code::NothingSelected, message);
                Err(diagnostic.hint("say `failed` or `blocked`"))
            }
        }
    }
}

/// What became of instances in the last run, by `task@node`.
pub type History = BTreeMap<String, HistoryEntry>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    pub state: PastOutcome,
    pub fingerprint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastOutcome {
    Good,
    Failed,
    Blocked,
    /// Stopped, unknown, or never started.
    Open,
}

/// The selected vertices.
pub(crate) struct SelectedVertices {
    /// For each vertex; barriers and joins are never left out.
    pub(crate) is_chosen: Vec<bool>,
    /// Instances that chosen ones wait for, that are not chosen and were not done before.
    pub(crate) prerequisites: Vec<u32>,
}

pub(crate) struct Chooser<'a> {
    pub(crate) book: &'a Book,
    pub(crate) targets: &'a Targets,
    pub(crate) graph: &'a Graph,
    pub(crate) past: &'a History,
}

impl Chooser<'_> {
    /// `None` if everything is.
    pub(crate) fn choose(
        &self,
        selection: &Selection,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Option<SelectedVertices> {
        self.look_at_events(selection, found);
        if selection.is_everything() {
            return None;
        }
        let before = found.len();
        let mut chosen = self.everything();
        let matcher = Matcher::new(self.book);
        if !selection.tasks.is_empty() {
            let mut named = self.nothing();
            for term in selection.tasks.iter().flat_map(|terms| listed(terms)) {
                union(&mut named, &self.term(&matcher, term, found));
            }
            intersect(&mut chosen, &named);
        }
        for (terms, is_after) in [(&selection.from, true), (&selection.to, false)] {
            if terms.is_empty() {
                continue;
            }
            let mut ends = self.nothing();
            for term in terms {
                union(&mut ends, &self.named(&matcher, term, found));
            }
            intersect(&mut chosen, &self.reach(&ends, is_after));
        }
        for term in selection.skip.iter().flat_map(|terms| listed(terms)) {
            let skipped = self.term(&matcher, term, found);
            for (chosen, skipped) in chosen.iter_mut().zip(skipped) {
                *chosen &= !skipped;
            }
        }
        if let Some(only) = selection.only {
            intersect(&mut chosen, &self.was(|was| was == only.outcome()));
        }
        if let Some(on) = &selection.on {
            self.keep_nodes(&mut chosen, on, found);
        }
        let instances = self.graph.instances();
        if found.len() == before && !instances.clone().any(|at| chosen[at as usize]) {
            found.push(self.nothing_selected(&matcher, selection));
        }
        let prerequisites = self.prerequisites(&chosen);
        for at in (0..number(chosen.len())).filter(|at| !instances.contains(at)) {
            chosen[at as usize] = true;
        }
        Some(SelectedVertices { is_chosen: chosen, prerequisites })
    }

    /// Why the selection is empty.
    fn nothing_selected(&self, matcher: &Matcher<'_>, selection: &Selection) -> SourceDiagnostic {
        let mut ranges = Vec::new();
        if !selection.from.is_empty() && !selection.to.is_empty() {
            ranges.push((selection.from.clone(), selection.to.clone()));
        }
        for term in selection.tasks.iter().flat_map(|terms| listed(terms)) {
            let range = term.split_once("..").filter(|_| !term.starts_with('/'));
            ranges.extend(range.map(|(from, to)| (vec![from.to_owned()], vec![to.to_owned()])));
        }
        let reason = ranges.iter().find_map(|(from, to)| self.empty_range(matcher, from, to));
        let message = match &reason {
            Some(reason) => format!("nothing is selected, so nothing would be done: {reason}"),
            None => "nothing is selected, so nothing would be done".to_owned(),
        };
        let remedy = match selection.only {
            _ if reason.is_some() => "`hoist deploy graph` shows what follows what",
            None => "`hoist deploy plan` lists every task and its nodes",
            Some(OutcomeFilter::Failed) => {
                "of this, nothing failed in the last run of the same files"
            }
            Some(OutcomeFilter::Blocked) => {
                "of this, nothing was blocked in the last run of the same files"
            }
        };
        SourceDiagnostic::without_place(Code::NothingSelected, message).hint(remedy)
    }

    /// Why nothing is between the one and the other, if nothing is.
    fn empty_range(&self, matcher: &Matcher<'_>, from: &[String], to: &[String]) -> Option<String> {
        let named = |terms: &[String]| {
            let mut all = self.nothing();
            for term in terms {
                union(&mut all, &self.named(matcher, term, &mut Vec::new()));
            }
            all
        };
        let ends = [named(from), named(to)];
        let [from, to] = [from, to].map(|terms| terms.join(", "));
        let is_empty = |set: &[bool]| !set.iter().any(|is| *is);
        for (end, name) in ends.iter().zip([&from, &to]) {
            if is_empty(end) {
                return Some(format!("`{name}` is on no node of this run"));
            }
        }
        let meets = |from: &[bool], to: &[bool]| {
            let mut between = self.reach(from, true);
            intersect(&mut between, &self.reach(to, false));
            !is_empty(&between)
        };
        if meets(&ends[0], &ends[1]) {
            return None;
        }
        Some(if meets(&ends[1], &ends[0]) {
            format!("`{from}` comes after `{to}`; exchange them")
        } else {
            format!("`{to}` does not follow `{from}`")
        })
    }

    /// An event that nothing is done for is a slip.
    fn look_at_events(&self, selection: &Selection, found: &mut Vec<SourceDiagnostic>) {
        let lists = self.book.tasks.iter().filter_map(|task| task.events.as_ref());
        let known: BTreeSet<&str> =
            lists.flat_map(|list| &list.value).map(String::as_str).collect();
        for event in selection.events.iter().filter(|event| !known.contains(event.as_str())) {
            let message = format!("no task is for the event `{event}`");
            let close = nearest(event, known.iter().copied());
            let diagnostic = SourceDiagnostic::without_place(Code::NothingSelected, message);
            found.push(diagnostic.suggest(close));
        }
    }

    fn nothing(&self) -> Vec<bool> {
        vec![false; self.graph.after.len()]
    }

    fn everything(&self) -> Vec<bool> {
        vec![true; self.graph.after.len()]
    }

    fn keep_nodes(&self, chosen: &mut [bool], on: &Selector, found: &mut Vec<SourceDiagnostic>) {
        let mut unknown = Vec::new();
        let nodes = self.targets.resolve(&At::new(on.clone(), Place::default()), &mut unknown);
        // It was typed, not written into a file.
        found.extend(unknown.into_iter().map(|one| SourceDiagnostic { place: None, ..one }));
        let nodes = nodes.unwrap_or_default();
        for at in self.graph.instances() {
            if let VertexKind::Instance(instance) = self.graph.is(at) {
                chosen[at as usize] &= nodes.binary_search(&instance.node).is_ok();
            }
        }
    }

    /// `+t`, `t+`, `a..b`, or a name.
    fn term(
        &self,
        matcher: &Matcher<'_>,
        term: &str,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Vec<bool> {
        let is_regex = term.trim_matches('+').starts_with('/');
        if let (Some((from, to)), false) = (term.split_once(".."), is_regex) {
            let mut between = self.reach(&self.named(matcher, from, found), true);
            intersect(&mut between, &self.reach(&self.named(matcher, to, found), false));
            return between;
        }
        let (with_before, rest) = match term.strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, term),
        };
        let (with_after, name) = match rest.strip_suffix('+') {
            Some(name) => (true, name),
            None => (false, rest),
        };
        let named = self.named(matcher, name, found);
        let mut chosen = named.clone();
        if with_before {
            union(&mut chosen, &self.reach(&named, false));
        }
        if with_after {
            union(&mut chosen, &self.reach(&named, true));
        }
        chosen
    }

    fn named(
        &self,
        matcher: &Matcher<'_>,
        name: &str,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Vec<bool> {
        match name {
            "failed" => return self.was(|was| was == PastOutcome::Failed),
            "blocked" => return self.was(|was| was == PastOutcome::Blocked),
            _ => {}
        }
        let mut chosen = self.nothing();
        if let Some(barrier) = name.strip_prefix('@') {
            match matcher.get(barrier) {
                Some(End::Barrier(at)) => {
                    chosen = self.behind_barriers(&[at], |_| false);
                    chosen[at as usize] = true;
                }
                _ => found.push(unknown(matcher, barrier, "barrier")),
            }
            return chosen;
        }
        let (task, node) = match name.split_once('@').filter(|_| !name.starts_with('/')) {
            Some((task, node)) => (task, Some(node)),
            None => (name, None),
        };
        let ends = match matcher.ends(&pattern(task)) {
            Ok(ends) => ends,
            Err(reason) => {
                let message = format!("`{name}` cannot be used: {reason}");
                found.push(SourceDiagnostic::without_place(Code::WrongValue, message));
                return chosen;
            }
        };
        if ends.is_empty() {
            found.push(unknown(matcher, task, "task"));
        }
        let node_at = node.map(|node| {
            self.targets.nodes.iter().position(|other| other.name.as_str() == node).map(number)
        });
        if let (Some(None), Some(node)) = (node_at, node) {
            let message = format!("node `{node}` not found in this run");
            found.push(SourceDiagnostic::without_place(Code::NothingSelected, message));
        }
        for end in ends {
            match (end, node_at.flatten()) {
                (End::Barrier(at), _) => chosen[at as usize] = true,
                (End::Task(task), Some(node)) => {
                    if let Some(at) = self.graph.vertex(Instance { task, node }) {
                        chosen[at as usize] = true;
                    }
                }
                (End::Task(task), None) if node.is_none() => {
                    self.graph.of_task(task).for_each(|at| chosen[at as usize] = true);
                }
                (End::Task(_), None) => {}
            }
        }
        chosen
    }

    fn was(&self, is: impl Fn(PastOutcome) -> bool) -> Vec<bool> {
        let mut chosen = self.nothing();
        for at in self.graph.instances() {
            let was = self.past.get(&self.name(at)).map_or(PastOutcome::Open, |was| was.state);
            chosen[at as usize] = is(was);
        }
        chosen
    }

    fn name(&self, vertex: u32) -> String {
        crate::bind::name(self.book, self.targets, self.graph, vertex)
    }

    /// With everything after (or before) them.
    fn reach(&self, from: &[bool], is_after: bool) -> Vec<bool> {
        let mut reached = from.to_vec();
        let mut open: Vec<u32> = (0..).zip(from).filter(|(_, is)| **is).map(|(at, _)| at).collect();
        let forward;
        let edges = if is_after {
            forward = turned(&self.graph.after);
            &forward
        } else {
            &self.graph.after
        };
        while let Some(at) = open.pop() {
            for next in &edges[at as usize] {
                if !std::mem::replace(&mut reached[*next as usize], true) {
                    open.push(*next);
                }
            }
        }
        reached
    }

    fn prerequisites(&self, chosen: &[bool]) -> Vec<u32> {
        let instances = self.graph.instances();
        let waiting: Vec<u32> = instances.clone().filter(|at| chosen[*at as usize]).collect();
        let is_good = |at: u32| {
            self.past.get(&self.name(at)).is_some_and(|was| was.state == PastOutcome::Good)
        };
        let is_enough = |at: u32| {
            let Some(want) = self.graph.want_of(at).filter(|want| *want != Want::All) else {
                return false;
            };
            let all = &self.graph.after[at as usize];
            let done = all.iter().filter(|at| chosen[**at as usize] || is_good(**at)).count();
            want.is_met_by(done, all.len())
        };
        let before = self.behind_barriers(&waiting, is_enough);
        let is_missing = |at: &u32| before[*at as usize] && !chosen[*at as usize] && !is_good(*at);
        instances.filter(is_missing).collect()
    }

    /// The instances that these wait for, barriers and joins taken apart, but for joins of which
    /// enough is done.
    fn behind_barriers(&self, waiting: &[u32], is_enough: impl Fn(u32) -> bool) -> Vec<bool> {
        let mut before = self.nothing();
        let instances = self.graph.instances();
        let mut open = waiting.to_vec();
        while let Some(at) = open.pop() {
            for next in &self.graph.after[at as usize] {
                let is_new = !std::mem::replace(&mut before[*next as usize], true);
                if is_new && !instances.contains(next) && !is_enough(*next) {
                    open.push(*next);
                }
            }
        }
        before
    }
}

fn turned(after: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut turned = vec![Vec::new(); after.len()];
    for (at, after) in (0..).zip(after) {
        for before in after {
            turned[*before as usize].push(at);
        }
    }
    turned
}

/// Several terms may stand in one text, unless it is a regular expression.
fn listed(terms: &str) -> Vec<&str> {
    if terms.contains('/') {
        return vec![terms];
    }
    terms.split(',').map(str::trim).filter(|term| !term.is_empty()).collect()
}

/// A name as it is typed: `/regex/`, with `*`, or as it is.
pub(crate) fn pattern(text: &str) -> Pattern {
    if let Some(regex) = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
        return Pattern::Regex { text: regex.to_owned(), is_prefix: false };
    }
    if text.contains('*') {
        Pattern::Glob(text.to_owned())
    } else {
        Pattern::Exact(text.to_owned())
    }
}

fn unknown(matcher: &Matcher<'_>, name: &str, what: &str) -> SourceDiagnostic {
    let message = format!("{what} `{name}` not found, so nothing would be done");
    let close = nearest(name, matcher.names());
    SourceDiagnostic::without_place(Code::NothingSelected, message).suggest(close)
}

fn union(all: &mut [bool], more: &[bool]) {
    all.iter_mut().zip(more).for_each(|(all, more)| *all |= more);
}

fn intersect(all: &mut [bool], only: &[bool]) {
    all.iter_mut().zip(only).for_each(|(all, only)| *all &= only);
}
