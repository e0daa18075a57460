//! From declarations to a graph. Tasks are expanded over their nodes, and each `requires`, `needs`
//! and so on is bound to instances; a declaration that does not bind gets a diagnostic.
//!
//! Where many instances wait for many, they wait for a join. All instances that wait for the same
//! set by the same rule share the join, so the product of the two sets is never built.
//!
//! Does not belong here: the selection of instances (`select`), their steps and limits
//! (`compile`).

mod cycle;
mod pattern;

use std::collections::HashMap;

use hoist_engine::plan::Rule;
use hoist_model::nearest;

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::spec::{At, Need, NeedScope, PassesWith, Pattern, Place, Reference, Want};
use crate::target::{NodeSet, Targets, common};

pub(crate) use cycle::{components, name};
pub(crate) use pattern::Matcher;

/// Declared dependencies: pairs of a task or barrier and one that it waits for. Fuel has 1,500.
pub const MAX_LINKS: usize = 1_000_000;
/// Edges between instances, as they are in the plan. Fuel's tasks have 160,000 on 1,000 nodes.
const MAX_EDGES: usize = 20_000_000;

/// An end of a declared dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Barrier(u32),
    Task(u32),
}

/// One entry of `requires`, `required_for`, `needs` or `needed_by`.
#[derive(Debug, Clone)]
pub struct Declaration {
    pub owner: End,
    /// The key that it stands under.
    pub word: &'static str,
    /// The names, as they were written.
    pub to: String,
    pub place: Place,
}

/// A declared dependency: instances of one task or barrier come before those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) before: End,
    pub(crate) after: End,
    pub(crate) declaration: u32,
    pub(crate) is_same_node: bool,
}

/// A task on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub task: u32,
    pub node: u32,
}

/// The kind of a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VertexKind {
    Barrier(u32),
    Instance(Instance),
    Join(u32),
}

/// The expanded graph. Barriers come first, then instances by task and node, then joins.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes_of: Vec<NodeSet>,
    /// Where the instances of a task begin; one more than there are tasks.
    bases: Vec<u32>,
    pub(crate) barriers: u32,
    /// What each vertex waits for, without repetition.
    pub(crate) after: Vec<Vec<u32>>,
    pub(crate) joins: Vec<Join>,
    pub(crate) declarations: Vec<Declaration>,
    pub(crate) links: Vec<Link>,
}

#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) want: Want,
    pub(crate) tasks: Vec<u32>,
}

/// Distinct pairs of a vertex and one that it waits for, joins left out. Where any one of several is
/// enough, that is one pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Instances and barriers.
    pub vertices: usize,
    pub edges: usize,
    /// Both on one node, or both barriers.
    pub same: usize,
    /// One of both is a barrier.
    pub barrier: usize,
    /// On two nodes.
    pub cross: usize,
    pub joins: usize,
    /// Edges as they are in the plan, with joins.
    pub join_edges: usize,
}

impl Graph {
    pub(crate) fn instances(&self) -> std::ops::Range<u32> {
        self.barriers..self.barriers + self.bases.last().copied().unwrap_or(0)
    }

    pub(crate) fn is(&self, vertex: u32) -> VertexKind {
        let Some(at) = vertex.checked_sub(self.barriers) else {
            return VertexKind::Barrier(vertex);
        };
        if vertex >= self.instances().end {
            return VertexKind::Join(vertex - self.instances().end);
        }
        let task = self.bases.partition_point(|base| *base <= at) - 1;
        let node = self.nodes_of[task][(at - self.bases[task]) as usize];
        VertexKind::Instance(Instance { task: number(task), node })
    }

    pub(crate) fn vertex(&self, instance: Instance) -> Option<u32> {
        let task = instance.task as usize;
        let at = self.nodes_of[task].binary_search(&instance.node).ok()?;
        Some(self.barriers + self.bases[task] + number(at))
    }

    /// The instances of a task, one after another.
    pub(crate) fn of_task(&self, task: u32) -> std::ops::Range<u32> {
        let task = task as usize;
        self.barriers + self.bases[task]..self.barriers + self.bases[task + 1]
    }

    /// Visits the dependencies of a vertex, with the members of a join in place of the join. A
    /// vertex that belongs to two joins is visited twice.
    pub(crate) fn for_each_before(&self, vertex: u32, mut each: impl FnMut(u32, Want)) {
        let joins = self.instances().end;
        for before in &self.after[vertex as usize] {
            if *before < joins {
                each(*before, Want::All);
            } else {
                // No join waits for a join.
                let want = self.joins[(*before - joins) as usize].want;
                self.after[*before as usize].iter().for_each(|before| each(*before, want));
            }
        }
    }

    /// How many of those that a join stands for are enough.
    pub(crate) fn want_of(&self, vertex: u32) -> Option<Want> {
        match self.is(vertex) {
            VertexKind::Join(at) => Some(self.joins[at as usize].want),
            _ => None,
        }
    }

    /// The members of a join, or the vertex itself; one member of a join with the rule any.
    fn behind<'a>(&'a self, vertex: &'a u32) -> &'a [u32] {
        let VertexKind::Join(at) = self.is(*vertex) else { return std::slice::from_ref(vertex) };
        let all = &self.after[*vertex as usize];
        if self.joins[at as usize].want == Want::Any { &all[..1] } else { all }
    }

    /// Without making a list of them: there may be millions.
    pub(crate) fn counts(&self) -> Counts {
        let end = self.instances().end;
        let mut counts = Counts {
            vertices: end as usize,
            joins: self.after.len() - end as usize,
            join_edges: self.after.iter().map(Vec::len).sum(),
            ..Counts::default()
        };
        let node = |vertex| match self.is(vertex) {
            VertexKind::Instance(instance) => Some(instance.node),
            VertexKind::Barrier(_) | VertexKind::Join(_) => None,
        };
        let nodes: Vec<Option<u32>> = (0..end).map(node).collect();
        let mut seen = vec![u32::MAX; end as usize];
        for vertex in 0..end {
            for before in self.after[vertex as usize].iter().flat_map(|at| self.behind(at)) {
                if std::mem::replace(&mut seen[*before as usize], vertex) == vertex {
                    continue;
                }
                counts.edges += 1;
                match (nodes[*before as usize], nodes[vertex as usize]) {
                    (Some(a), Some(b)) if a != b => counts.cross += 1,
                    (Some(_), None) | (None, Some(_)) => counts.barrier += 1,
                    _ => counts.same += 1,
                }
            }
        }
        counts
    }

    pub(crate) fn end(&self, vertex: u32) -> Option<End> {
        match self.is(vertex) {
            VertexKind::Barrier(at) => Some(End::Barrier(at)),
            VertexKind::Instance(instance) => Some(End::Task(instance.task)),
            VertexKind::Join(_) => None,
        }
    }

    /// Who said that one vertex comes before another.
    pub(crate) fn reasons(&self, before: u32, after: u32) -> impl Iterator<Item = &Declaration> {
        let ends = (self.end(before), self.end(after));
        let is_same = match (self.is(before), self.is(after)) {
            (VertexKind::Instance(a), VertexKind::Instance(b)) => a.node == b.node,
            _ => true,
        };
        let says = move |link: &&Link| {
            (Some(link.before), Some(link.after)) == ends && (is_same || !link.is_same_node)
        };
        let links = self.links.iter().filter(says);
        links.map(|link| &self.declarations[link.declaration as usize])
    }
}

pub(crate) fn number(at: usize) -> u32 {
    u32::try_from(at).expect("plans are bounded")
}

/// The rule of the engine that a wish is.
pub(crate) fn rule(want: Want) -> Rule {
    match want {
        Want::All => Rule::All,
        Want::Any => Rule::AtLeast(1),
        Want::Most => Rule::Most,
        Want::Count(count) => Rule::AtLeast(count),
        Want::Percent(percent) => Rule::Percent(percent),
    }
}

/// The rule of a barrier that waits for so many.
pub(crate) fn barrier_rule(passes_with: PassesWith, count: usize) -> Rule {
    match passes_with {
        PassesWith::All => Rule::AtLeast(number(count)),
        PassesWith::Tolerated => Rule::All,
        PassesWith::AnyResult => Rule::AnyEnd,
    }
}

/// Instances that are waited for together: for each task, its nodes.
type Members = Vec<(u32, NodeSet)>;

struct Binder<'a> {
    book: &'a Book,
    targets: &'a Targets,
    matcher: Matcher<'a>,
    is_strict: bool,
    graph: Graph,
    /// Edges so far, with those that bundles will have.
    edges: usize,
    bundles: Vec<Bundle>,
    by_members: HashMap<(Members, Want), usize>,
    found: &'a mut Vec<SourceDiagnostic>,
}

struct Bundle {
    members: Members,
    want: Want,
    waiting: Members,
}

/// The graph of a book on its nodes. References that do not bind and cycles give diagnostics.
pub(crate) fn bind(
    book: &Book,
    targets: &Targets,
    is_strict: bool,
    found: &mut Vec<SourceDiagnostic>,
) -> Graph {
    let matcher = Matcher::new(book);
    let graph = expand(book, targets, found);
    let mut binder = Binder {
        book,
        targets,
        matcher,
        is_strict,
        graph,
        edges: 0,
        bundles: Vec::new(),
        by_members: HashMap::new(),
        found,
    };
    binder.declarations();
    if binder.is_too_large() {
        let message = format!(
            "there are more than {MAX_LINKS} pairs of tasks that wait for each other, or more than \
             {MAX_EDGES} of instances"
        );
        let place = binder.graph.declarations.last().map(|one| one.place).unwrap_or_default();
        let diagnostic = SourceDiagnostic::new(Code::TooLarge, place, message);
        let remedy = "put a barrier between many and many, or name fewer tasks";
        binder.found.push(diagnostic.hint(remedy));
        return binder.graph;
    }
    binder.joins();
    let mut graph = binder.graph;
    for after in &mut graph.after {
        after.sort_unstable();
        after.dedup();
    }
    cycle::find(book, targets, &graph, found);
    graph
}

fn expand(book: &Book, targets: &Targets, found: &mut Vec<SourceDiagnostic>) -> Graph {
    let mut graph = Graph { barriers: number(book.barriers.len()), ..Graph::default() };
    let mut base = 0;
    graph.bases.push(0);
    for task in &book.tasks {
        let At { value: id, place } = &task.id;
        let nodes = if let Some(on) = &task.on {
            let nodes = targets.resolve(on, found).unwrap_or_default();
            if nodes.is_empty() {
                let message = format!("task `{id}` matches no node");
                let remedy = format!("`{}` selects none of the nodes of this run", on.value);
                found.push(SourceDiagnostic::new(Code::NoNode, on.place, message).hint(remedy));
            }
            nodes
        } else {
            let message = format!("task `{id}`: `on` is missing");
            let remedy = "write `on: ROLE`, or `on: \"*\"` for every node";
            found.push(SourceDiagnostic::new(Code::Missing, *place, message).hint(remedy));
            NodeSet::default()
        };
        base += number(nodes.len());
        graph.bases.push(base);
        graph.nodes_of.push(nodes);
    }
    graph.after = vec![Vec::new(); graph.instances().end as usize];
    graph
}

impl Binder<'_> {
    fn declarations(&mut self) {
        let book = self.book;
        for (task, at) in book.tasks.iter().zip(0..) {
            let owner = End::Task(at);
            for one in task.requires.iter().flat_map(|list| &list.value) {
                self.reference(owner, "requires", one);
            }
            for one in task.required_for.iter().flat_map(|list| &list.value) {
                self.reference(owner, "required_for", one);
            }
            for one in task.needs.iter().flat_map(|list| &list.value) {
                self.need(at, "needs", one);
            }
            for one in task.needed_by.iter().flat_map(|list| &list.value) {
                self.need(at, "needed_by", one);
            }
        }
        for (barrier, at) in book.barriers.iter().zip(0..) {
            let owner = End::Barrier(at);
            for one in barrier.requires.iter().flat_map(|list| &list.value) {
                self.reference(owner, "requires", one);
            }
            for one in barrier.required_for.iter().flat_map(|list| &list.value) {
                self.reference(owner, "required_for", one);
            }
        }
    }

    fn is_too_large(&self) -> bool {
        self.graph.links.len() > MAX_LINKS || self.edges > MAX_EDGES
    }

    fn declare(&mut self, owner: End, word: &'static str, to: &Pattern, place: Place) -> u32 {
        let declaration = Declaration { owner, word, to: to.to_string(), place };
        self.graph.declarations.push(declaration);
        number(self.graph.declarations.len() - 1)
    }

    fn tell(&mut self, place: Place, diagnostic: SourceDiagnostic) {
        let is_mild = self.book.is_lenient(place) && !self.is_strict;
        self.found.push(if is_mild { diagnostic.mild() } else { diagnostic });
    }

    /// The ends that a pattern names, but for its owner where that is not named by its full name.
    fn ends(&mut self, owner: End, to: &Pattern, place: Place) -> Option<Vec<End>> {
        match self.matcher.ends(to) {
            Ok(ends) => {
                let is_exact = matches!(to, Pattern::Exact(_));
                Some(ends.into_iter().filter(|end| is_exact || *end != owner).collect())
            }
            Err(reason) => {
                let message = format!("`{to}` cannot be used: {reason}");
                self.found.push(SourceDiagnostic::new(Code::WrongValue, place, message));
                None
            }
        }
    }

    fn no_such(&mut self, owner: End, word: &str, to: &Pattern, place: Place) {
        let name = self.name(owner).to_owned();
        let message = format!("`{name}` {word} `{to}`, which is neither a task nor a barrier");
        let close = nearest(&to.to_string(), self.matcher.names()).map(str::to_owned);
        let diagnostic = SourceDiagnostic::new(Code::NoSuchTask, place, message);
        self.tell(place, diagnostic.suggest(close.as_deref()));
    }

    fn name(&self, end: End) -> &str {
        match end {
            End::Barrier(at) => &self.book.barriers[at as usize].id.value,
            End::Task(at) => &self.book.tasks[at as usize].id.value,
        }
    }

    /// `requires` and `required_for`: the same node, or barriers.
    fn reference(&mut self, owner: End, word: &'static str, one: &Reference) {
        let Reference { to, is_optional, place } = one;
        if self.is_too_large() {
            return;
        }
        let Some(ends) = self.ends(owner, to, *place) else { return };
        if ends.is_empty() {
            if !is_optional {
                self.no_such(owner, word, to, *place);
            }
            return;
        }
        let declaration = self.declare(owner, word, to, *place);
        let mut bound = 0;
        for other in &ends {
            let (before, after) =
                if word == "requires" { (*other, owner) } else { (owner, *other) };
            bound += self.link(before, after, declaration, None);
        }
        if bound == 0 && !is_optional {
            self.unbound(owner, word, one, &ends);
        }
    }

    /// How many pairs it made; on these nodes only, if any are named.
    fn link(&mut self, before: End, after: End, declaration: u32, only: Option<&NodeSet>) -> usize {
        let is_same_node = matches!((before, after), (End::Task(_), End::Task(_)));
        self.graph.links.push(Link { before, after, declaration, is_same_node });
        let graph = &mut self.graph;
        let bound = match (before, after) {
            (End::Barrier(before), End::Barrier(after)) => {
                graph.after[after as usize].push(before);
                1
            }
            (End::Barrier(before), End::Task(after)) => {
                let instances = graph.on(after, only);
                for at in &instances {
                    graph.after[*at as usize].push(before);
                }
                instances.len().max(1)
            }
            (End::Task(before), End::Barrier(after)) => {
                let instances = graph.on(before, only);
                // A barrier that waits for a task without nodes passes; a diagnostic reports it.
                let count = instances.len().max(1);
                graph.after[after as usize].extend(instances);
                count
            }
            (End::Task(before), End::Task(after)) => graph.same_node(before, after, only),
        };
        self.edges += bound;
        bound
    }

    /// A reference that named tasks, but none on the same node.
    fn unbound(&mut self, owner: End, word: &str, one: &Reference, ends: &[End]) {
        let End::Task(task) = owner else { return };
        let graph = &self.graph;
        if graph.of_task(task).is_empty() {
            return;
        }
        let name = self.name(owner).to_owned();
        let place = one.place;
        let tasks = ends.iter().filter_map(|end| match end {
            End::Task(at) => Some(*at),
            End::Barrier(_) => None,
        });
        let placed: Vec<u32> = tasks.filter(|at| !graph.of_task(*at).is_empty()).collect();
        let to = &one.to;
        if placed.is_empty() {
            let message = format!("`{name}` {word} `{to}`, which is on no node of this run");
            self.found.push(SourceDiagnostic::new(Code::NotInRun, place, message));
            return;
        }
        let message = format!(
            "`{name}` {word} `{to}`, but they are never on the same node: {} and {}",
            self.runs_on(task),
            placed.iter().take(3).map(|at| self.runs_on(*at)).collect::<Vec<_>>().join(", "),
        );
        let other = if word == "requires" { "needs" } else { "needed_by" };
        let remedy = format!("use `{other}: [{{task: {to}}}]` for tasks on other nodes");
        self.tell(place, SourceDiagnostic::new(Code::NeverSameNode, place, message).hint(remedy));
    }

    fn runs_on(&self, task: u32) -> String {
        let task = &self.book.tasks[task as usize];
        let on = task.on.as_ref().map_or_else(String::new, |on| on.value.to_string());
        format!("`{}` runs on `{on}`", task.id.value)
    }

    /// `needs` and `needed_by`: other nodes.
    fn need(&mut self, task: u32, word: &'static str, one: &Need) {
        let Need { to, on, is_optional, place, .. } = one;
        if self.is_too_large() {
            return;
        }
        let owner = End::Task(task);
        let only = match &one.only {
            None => None,
            Some(only) => match self.targets.resolve(only, self.found) {
                Some(nodes) => Some(nodes),
                None => return,
            },
        };
        if *on == NeedScope::Own {
            return self.own(owner, word, one, only.as_ref());
        }
        let Some(ends) = self.ends(owner, to, *place) else { return };
        if ends.is_empty() {
            if !is_optional {
                self.no_such(owner, word, to, *place);
            }
            return;
        }
        let nodes = match on {
            NeedScope::Nodes(selector) => match self.targets.resolve(selector, self.found) {
                Some(nodes) => Some(nodes),
                None => return,
            },
            _ => None,
        };
        let declaration = self.declare(owner, word, to, *place);
        let mut members = Members::new();
        let mut bound = 0;
        for end in &ends {
            match (*end, &nodes) {
                (End::Barrier(_), None) if matches!(to, Pattern::Exact(_)) => {
                    let (before, after) =
                        if word == "needs" { (*end, owner) } else { (owner, *end) };
                    bound += self.link(before, after, declaration, only.as_ref());
                }
                (End::Barrier(_), _) => {}
                (End::Task(other), nodes) => {
                    let of_task = &self.graph.nodes_of[other as usize];
                    let there = match nodes {
                        Some(nodes) => common(of_task, nodes).into(),
                        None => NodeSet::clone(of_task),
                    };
                    if !there.is_empty() {
                        bound += there.len();
                        members.push((other, there));
                    }
                }
            }
        }
        if bound == 0 {
            if !is_optional {
                self.unneeded(task, word, one, &ends);
            }
            return;
        }
        if !members.is_empty() {
            self.bundle((task, only.as_ref()), word, one, members, declaration);
        }
    }

    /// A need on the same node: like `requires`, but barriers have no node.
    fn own(&mut self, owner: End, word: &'static str, one: &Need, only: Option<&NodeSet>) {
        let Need { to, is_optional, place, .. } = one;
        let Some(ends) = self.ends(owner, to, *place) else { return };
        let tasks: Vec<End> =
            ends.iter().copied().filter(|end| matches!(end, End::Task(_))).collect();
        if tasks.is_empty() {
            match ends.is_empty() {
                true if *is_optional => {}
                true => self.no_such(owner, word, to, *place),
                false => self.barrier_on_node(owner, word, one),
            }
            return;
        }
        let declaration = self.declare(owner, word, to, *place);
        let mut bound = 0;
        for other in &tasks {
            let (before, after) = if word == "needs" { (*other, owner) } else { (owner, *other) };
            bound += self.link(before, after, declaration, only);
        }
        if bound == 0 && !is_optional && only.is_none() {
            let word = if word == "needs" { "requires" } else { "required_for" };
            let to = to.clone();
            let place = *place;
            self.unbound(owner, word, &Reference { to, is_optional: false, place }, &tasks);
        }
    }

    fn barrier_on_node(&mut self, owner: End, word: &str, one: &Need) {
        let name = self.name(owner).to_owned();
        let place = one.place;
        let message = format!("`{name}` {word} `{}` on a node, but that is a barrier", one.to);
        let diagnostic = SourceDiagnostic::new(Code::BarrierOnNode, place, message);
        self.tell(place, diagnostic.hint("a barrier has no node; leave `on` out"));
    }

    fn unneeded(&mut self, task: u32, word: &str, one: &Need, ends: &[End]) {
        let to = &one.to;
        let place = one.place;
        let tasks: Vec<u32> = ends
            .iter()
            .filter_map(|end| match end {
                End::Task(at) => Some(*at),
                End::Barrier(_) => None,
            })
            .collect();
        if tasks.is_empty() {
            return self.barrier_on_node(End::Task(task), word, one);
        }
        let name = self.name(End::Task(task)).to_owned();
        let message = format!("`{name}` {word} `{to}`, of which no node of this run is meant");
        let mut diagnostic = SourceDiagnostic::new(Code::NotInRun, place, message);
        let placed: Vec<u32> =
            tasks.into_iter().filter(|at| !self.graph.of_task(*at).is_empty()).collect();
        if let (NeedScope::Nodes(on), false) = (&one.on, placed.is_empty()) {
            let mut ignored = Vec::new();
            let there = self.targets.resolve(on, &mut ignored);
            if there.is_some_and(|there| !there.is_empty()) {
                let runs: Vec<String> = placed.iter().take(3).map(|at| self.runs_on(*at)).collect();
                let message = format!(
                    "`{name}` {word} `{to}` on `{}`, but it is never there: {}",
                    on.value,
                    runs.join(", ")
                );
                diagnostic = SourceDiagnostic::new(Code::NeverSameNode, place, message)
                    .hint("say `on` which of its nodes, or leave it out for all of them");
                self.tell(place, diagnostic);
                return;
            }
        }
        self.found.push(diagnostic);
    }

    fn bundle(
        &mut self,
        (task, only): (u32, Option<&NodeSet>),
        word: &'static str,
        one: &Need,
        members: Members,
        declaration: u32,
    ) {
        let mut all = NodeSet::clone(&self.graph.nodes_of[task as usize]);
        if let Some(only) = only {
            all = common(&all, only).into();
        }
        for (other, _) in &members {
            let (before, after) = if word == "needs" { (*other, task) } else { (task, *other) };
            self.graph.links.push(Link {
                before: End::Task(before),
                after: End::Task(after),
                declaration,
                is_same_node: false,
            });
        }
        if word == "needs" {
            self.wait(task, &all, &members, one);
        } else {
            for (other, nodes) in members {
                self.wait(other, &nodes, &vec![(task, NodeSet::clone(&all))], one);
            }
        }
    }

    /// Instances of a task that wait for members, each but for itself.
    fn wait(&mut self, task: u32, nodes: &NodeSet, members: &Members, one: &Need) {
        let own = members.iter().position(|(other, _)| *other == task);
        let both = own.map(|own| common(&members[own].1, nodes)).unwrap_or_default();
        match (own, both.as_slice()) {
            (Some(own), [alone]) => {
                let rest: NodeSet = nodes.iter().copied().filter(|node| node != alone).collect();
                self.join_in(task, rest, members.clone(), one);
                let mut others = members.clone();
                let without = others[own].1.iter().copied().filter(|node| node != alone);
                others[own].1 = without.collect();
                others.retain(|(_, nodes)| !nodes.is_empty());
                self.join_in(task, [*alone].into(), others, one);
            }
            // Two of them wait for each other; the cycle is found with the first two of them.
            (Some(own), [one_node, other_node, ..]) => {
                let a = *one_node;
                let b = *other_node;
                for (from, to) in [(a, b), (b, a)] {
                    let mut only = members.clone();
                    only[own].1 = [from].into();
                    only.swap(0, own);
                    only.truncate(1);
                    self.join_in(task, [to].into(), only, one);
                }
            }
            _ => self.join_in(task, NodeSet::clone(nodes), members.clone(), one),
        }
    }

    fn join_in(&mut self, task: u32, nodes: NodeSet, mut members: Members, one: &Need) {
        if nodes.is_empty() || members.is_empty() {
            return;
        }
        members.sort_unstable();
        let count: usize = members.iter().map(|(_, nodes)| nodes.len()).sum();
        let want = match one.want {
            // There is no difference between one, any and all of one; that makes more of them equal.
            Want::Count(want) if want as usize > count => {
                let message = format!("it wants {want}, but there are {count} of `{}`", one.to);
                let remedy = "such a wish can never come true; ask for fewer";
                let diagnostic = SourceDiagnostic::new(Code::Contradiction, one.place, message);
                self.found.push(diagnostic.hint(remedy));
                return;
            }
            _ if count == 1 => Want::All,
            want => want,
        };
        let key = (members, want);
        let next = self.bundles.len();
        let at = *self.by_members.entry(key.clone()).or_insert(next);
        self.edges += nodes.len();
        if at == next {
            self.edges += count;
            self.bundles.push(Bundle { members: key.0, want, waiting: Members::new() });
        }
        self.bundles[at].waiting.push((task, nodes));
    }

    fn joins(&mut self) {
        for bundle in std::mem::take(&mut self.bundles) {
            let graph = &mut self.graph;
            let mut members = Vec::new();
            for (task, nodes) in &bundle.members {
                members.extend(
                    nodes
                        .iter()
                        .filter_map(|node| graph.vertex(Instance { task: *task, node: *node })),
                );
            }
            // A need of a single node is required: it is not dropped when the node drops out.
            let before = if let [one] = members.as_slice() {
                *one
            } else {
                let tasks = bundle.members.iter().map(|(task, _)| *task).collect();
                graph.joins.push(Join { want: bundle.want, tasks });
                graph.after.push(members);
                number(graph.after.len() - 1)
            };
            for (task, nodes) in &bundle.waiting {
                for node in nodes.iter() {
                    let waiting = Instance { task: *task, node: *node };
                    if let Some(at) = graph.vertex(waiting) {
                        graph.after[at as usize].push(before);
                    }
                }
            }
        }
    }
}

impl Graph {
    /// The instances of a task on these nodes, or on all of its own.
    fn on(&self, task: u32, only: Option<&NodeSet>) -> Vec<u32> {
        let Some(only) = only else { return self.of_task(task).collect() };
        let nodes = common(&self.nodes_of[task as usize], only);
        nodes.into_iter().filter_map(|node| self.vertex(Instance { task, node })).collect()
    }

    /// Binds two tasks wherever both are on one node.
    fn same_node(&mut self, before: u32, after: u32, only: Option<&NodeSet>) -> usize {
        let mut nodes = common(&self.nodes_of[before as usize], &self.nodes_of[after as usize]);
        if let Some(only) = only {
            nodes = common(&nodes, only);
        }
        for node in &nodes {
            let pair = [before, after].map(|task| self.vertex(Instance { task, node: *node }));
            if let [Some(before), Some(after)] = pair {
                self.after[after as usize].push(before);
            }
        }
        nodes.len()
    }
}
