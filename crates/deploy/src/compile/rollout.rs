//! Rollouts: canaries of a role first, then a limited number of its nodes at once, or of one failure
//! domain. A node holds its slot from its first step of the role to its last, so nodes that wait for
//! each other in between would never finish. Such plans are refused here, before anything runs.
//!
//! Does not belong here: limits of single tasks (`steps`).

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::plan::{ConcurrencyLimit, FailureDomain, Holder, Kind, Rule, StepId};
use hoist_model::nearest;

use super::steps::{Maker, trips_alone};
use crate::bind::{components, number};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::spec::{At, Place, Role};

/// Roles as bits. Roles beyond this number are not checked for waiting for each other.
type RoleBits = u64;

/// A role with a limit on the nodes that run at once.
struct LimitedRole<'a> {
    role: &'a Role,
    steps: Steps,
    /// The smallest of its limits.
    slots: u32,
}

/// The concurrency limit of a role, with its position in the task file.
pub(super) struct Limit {
    /// Index in the book.
    role: usize,
    steps: Steps,
    slots: u32,
    place: Place,
}

/// The steps of a role by node.
type Steps = BTreeMap<u32, Vec<u32>>;

impl Maker<'_> {
    pub(super) fn rollouts(&mut self, found: &mut Vec<SourceDiagnostic>) {
        let book = self.book;
        let mut held = Vec::new();
        for (at, role) in book.roles.iter().enumerate() {
            let limits = [&role.at_once, &role.canary, &role.max_unavailable];
            if limits.iter().all(|limit| limit.is_none()) && role.per.is_none() {
                continue;
            }
            let steps = self.vertices_of(at);
            let limits = self.draft.limits.len();
            self.canary(role, &steps, found);
            for (amount, what, held_by) in [
                (&role.at_once, "", Holder::Subject),
                (&role.max_unavailable, " unavailable", Holder::Healthy),
            ] {
                let Some(amount) = amount else { continue };
                let members = self.role_set(role).nodes.len();
                let Some(slots) = self.at_once(amount, members, found) else { continue };
                if held_by == Holder::Healthy {
                    let warning = stays_unavailable(role, self.tolerances[at], slots, members);
                    found.extend(warning);
                }
                let name = format!("role {}{what}", role.name.value);
                self.limit(
                    at,
                    &steps,
                    ConcurrencyLimit { name, slots, held_by },
                    amount.place,
                    found,
                );
            }
            self.per_label(at, role, &steps, found);
            let slots = self.draft.limits[limits..].iter().map(|limit| limit.slots).min();
            held.extend(slots.map(|slots| LimitedRole { role, steps, slots }));
        }
        self.refuse_crossing(&held, found);
        self.refuse_waiting(found);
    }

    /// Refuses limits whose slots can all be held by nodes that wait for other nodes of the same
    /// role: the other nodes would never get a slot.
    fn refuse_waiting(&self, found: &mut Vec<SourceDiagnostic>) {
        let after = self.after();
        if self.limits.is_empty() || !components(&after).is_empty() {
            return;
        }
        let order = order(&after);
        for Limit { role, steps, slots, place } in &self.limits {
            let mut owners = owners(steps, after.len());
            for (vertex, owner) in self.draft.vertices.iter().zip(&mut owners) {
                // A skipped step needs no slot.
                if matches!(&vertex.kind, Kind::Step(step) if step.skip.is_some()) {
                    *owner = None;
                }
            }
            let known = behind(&after, &owners);
            let waits = |(node, vertices): (&u32, &Vec<u32>)| {
                let is_meant = self.may_wait(vertices, *node, &owners, &known);
                let first =
                    is_meant.then(|| self.waits_inside(vertices, *node, &owners, &order))??;
                Some((*node, first))
            };
            let waiting: Vec<(u32, (u32, u32))> =
                steps.iter().filter_map(waits).take(*slots as usize).collect();
            if waiting.len() < *slots as usize {
                continue;
            }
            let (node, (step, other)) = waiting[0];
            let name = |at: u32| &self.draft.vertices[at as usize].name;
            let message = format!(
                "role `{}` could never finish: {slots} of its {} nodes are worked on at once, and \
                 {} keeps its slot while `{}` waits for `{}`, which needs one too",
                self.book.roles[*role].name.value,
                steps.len(),
                self.draft.subjects[node as usize],
                name(step),
                name(other),
            );
            let task = name(step).rsplit_once('@').map_or(name(step).as_str(), |(task, _)| task);
            let written = self.book.tasks.iter().find(|known| known.id.value == task);
            let diagnostic = SourceDiagnostic::new(Code::Contradiction, *place, message).hint(
                "raise the limit, or make a role of its own of what comes before the waiting",
            );
            found.push(match written {
                Some(task) => diagnostic.note(task.id.place, "this waits"),
                None => diagnostic,
            });
        }
    }

    /// Whether it is worth looking closer: a step of the node has something before it that may wait
    /// for another node, and that the node did not wait for before it began.
    fn may_wait(
        &self,
        vertices: &[u32],
        node: u32,
        owners: &[Option<u32>],
        known: &[Behind],
    ) -> bool {
        let begins = self.begins(vertices);
        let before = |vertex: &u32| self.draft.vertices[*vertex as usize].after.iter();
        let is_late = |id: &&StepId| {
            let at = id.0 as usize;
            let is_other = owners[at].map_or(known[at].is_other_than(node), |owner| owner != node);
            is_other && !begins.iter().all(|begin| before(begin).any(|sure| sure == *id))
        };
        vertices.iter().flat_map(before).any(|id| is_late(&id))
    }

    /// A step of a node, and one of another node that it may wait for when the node has begun.
    fn waits_inside(
        &self,
        vertices: &[u32],
        node: u32,
        owners: &[Option<u32>],
        order: &[u32],
    ) -> Option<(u32, u32)> {
        let is_sure = self.before_all(&self.begins(vertices), order);
        let mut waits: Vec<Option<u32>> = vec![None; owners.len()];
        for at in order.iter().map(|at| *at as usize) {
            if is_sure[at] {
                continue;
            }
            let vertex = &self.draft.vertices[at];
            let mut before = vertex.after.iter().map(|before| waits[before.0 as usize]);
            waits[at] = match &vertex.kind {
                _ if owners[at].is_some_and(|owner| owner != node) => Some(number(at)),
                Kind::Step(_) => before.find_map(|other| other),
                Kind::Join(rule) => {
                    let all = vertex.after.len();
                    let good = before.clone().filter(Option::is_none).count();
                    let is_enough = good >= needed(*rule, all);
                    if is_enough { None } else { before.find_map(|other| other) }
                }
            };
        }
        vertices.iter().find_map(|at| Some((*at, waits[*at as usize]?)))
    }

    /// Vertices that are done before any of these begins, because they precede all of them.
    fn before_all(&self, begins: &[u32], order: &[u32]) -> Vec<bool> {
        let mut all = vec![true; self.draft.vertices.len()];
        for begin in begins {
            let mut is_before = vec![false; self.draft.vertices.len()];
            is_before[*begin as usize] = true;
            for at in order.iter().rev() {
                if !is_before[*at as usize] {
                    continue;
                }
                let vertex = &self.draft.vertices[*at as usize];
                // After a join that passes without some members, it is unknown which members are
                // done.
                if matches!(vertex.kind, Kind::Join(rule) if needed(rule, vertex.after.len()) < vertex.after.len())
                {
                    continue;
                }
                for before in &vertex.after {
                    is_before[before.0 as usize] = true;
                }
            }
            is_before[*begin as usize] = false;
            all.iter_mut().zip(is_before).for_each(|(all, is)| *all &= is);
        }
        all
    }

    /// Refuses pairs of roles where one node holds a slot of the first and waits for the second,
    /// while another node holds a slot of the second and waits for the first.
    fn refuse_crossing(&self, held: &[LimitedRole<'_>], found: &mut Vec<SourceDiagnostic>) {
        if held.len() < 2 {
            return;
        }
        let after = self.after();
        if !components(&after).is_empty() {
            return;
        }
        let roles: Vec<RoleBits> = (0..RoleBits::BITS).map(|at| 1 << at).collect();
        let mut own: Vec<RoleBits> = vec![0; after.len()];
        for (one, bit) in held.iter().zip(&roles) {
            for vertex in one.steps.values().flatten() {
                own[*vertex as usize] |= bit;
            }
        }
        // The roles of which a vertex, or a vertex before it, holds a slot.
        let mut had = own.clone();
        for vertex in order(&after) {
            for before in &after[vertex as usize] {
                had[vertex as usize] |= had[*before as usize];
            }
        }
        // For each role and node, the roles that the node waits for after its first step.
        let waits: Vec<Vec<RoleBits>> = held
            .iter()
            .map(|one| {
                let of_node = one.steps.values().map(|vertices| {
                    let roles = |vertices: &[u32]| -> Vec<RoleBits> {
                        vertices.iter().map(|vertex| had[*vertex as usize]).collect()
                    };
                    let begun = roles(&self.begins(vertices)).into_iter().fold(!0, |a, b| a & b);
                    roles(vertices).into_iter().fold(0, |a, b| a | b) & !begun
                });
                of_node.collect()
            })
            .collect();
        let any = |waits: &Vec<RoleBits>| waits.iter().fold(0, |a, b| a | b);
        let edges: Vec<Vec<u32>> = waits
            .iter()
            .map(|waits| {
                let waits = any(waits);
                (0..).zip(&roles).filter(|(_, bit)| waits & **bit != 0).map(|(at, _)| at).collect()
            })
            .collect();
        for circle in components(&edges) {
            let all = circle.iter().fold(0, |all, at| all | roles[*at as usize]);
            // If the waiting nodes cannot hold all slots, a slot becomes free.
            let can_be_taken = |at: &u32| {
                let waiting = waits[*at as usize].iter().filter(|waits| **waits & all != 0);
                waiting.count() >= held[*at as usize].slots as usize
            };
            if circle.iter().all(can_be_taken) {
                found.push(crossing(circle.iter().map(|at| held[*at as usize].role)));
            }
        }
    }

    fn per_label(
        &mut self,
        at: usize,
        role: &Role,
        steps: &Steps,
        found: &mut Vec<SourceDiagnostic>,
    ) {
        let Some(At { value: per, place }) = &role.per else { return };
        for (label, slots) in per {
            if *slots == 0 {
                let message = format!("at most 0 at once with the same `{label}` means never");
                let diagnostic = SourceDiagnostic::new(Code::Contradiction, *place, message);
                found.push(diagnostic.hint("write at least 1"));
                continue;
            }
            // Nodes without the label may be in one failure domain, so they count as one.
            let mut parts: BTreeMap<Option<String>, Steps> = BTreeMap::new();
            for (node, vertices) in steps {
                let labels = &self.targets.nodes[*node as usize].spec.labels;
                let value = labels.iter().find(|(key, _)| key.as_str() == label);
                let value = value.map(|(_, value)| value.to_owned());
                parts.entry(value).or_default().insert(*node, vertices.clone());
            }
            if !parts.is_empty() && parts.keys().all(Option::is_none) {
                found.push(self.no_such_label(role, label, *place, steps));
                continue;
            }
            for (value, part) in parts {
                let name = match value {
                    Some(value) => format!("role {} {label}={value}", role.name.value),
                    None => format!("role {} without {label}", role.name.value),
                };
                let limit = ConcurrencyLimit { name, slots: *slots, held_by: Holder::Subject };
                self.limit(at, &part, limit, *place, found);
            }
        }
    }

    fn no_such_label(
        &self,
        role: &Role,
        label: &str,
        place: Place,
        steps: &Steps,
    ) -> SourceDiagnostic {
        let message = format!("no node of role `{}` has the label `{label}`", role.name.value);
        let nodes = steps.keys().map(|node| &self.targets.nodes[*node as usize].spec.labels);
        let labels: BTreeSet<&str> =
            nodes.flat_map(hoist_model::node::Labels::iter).map(|(key, _)| key.as_str()).collect();
        let diagnostic = SourceDiagnostic::new(Code::Contradiction, place, message);
        match nearest(label, labels) {
            Some(close) => diagnostic.suggest(Some(close)),
            None => diagnostic.hint("the limit has no effect; remove it"),
        }
    }

    /// The other nodes begin when all steps of the canaries have succeeded. A node without work in
    /// this run is neither a canary nor one of the others.
    fn canary(&mut self, role: &Role, steps: &Steps, found: &mut Vec<SourceDiagnostic>) {
        let Some(amount) = &role.canary else { return };
        let set = self.role_set(role);
        let members = set.nodes.len();
        let Some(count) = self.at_once(amount, members, found) else { return };
        if members <= 1 {
            return;
        }
        let name = &role.name.value;
        if count as usize >= members {
            let message = format!("role `{name}` has {count} canaries of {members} nodes");
            let diagnostic = SourceDiagnostic::new(Code::Contradiction, amount.place, message);
            found.push(diagnostic.hint("canaries go before others; ask for fewer"));
            return;
        }
        // The others usually wait for the first member.
        let others = set.nodes.iter().copied().filter(|node| Some(*node) != set.first);
        let usual: Vec<u32> = set.first.into_iter().chain(others).collect();
        let busy: Vec<u32> =
            usual.iter().copied().filter(|node| self.does_something(steps, *node)).collect();
        let Some(slots) = self.at_once(amount, busy.len(), found) else { return };
        let (canaries, others) = busy.split_at(busy.len().min(slots as usize));
        let steps_of = |nodes: &[u32]| -> Vec<u32> {
            nodes.iter().flat_map(|node| &steps[node]).copied().collect()
        };
        let ends = steps_of(canaries);
        if self.is_any_after(&ends, &steps_of(others)) {
            let usual = &usual[..count as usize];
            let is_usual = canaries.iter().all(|canary| usual.contains(canary));
            found.push(self.no_canary(role, amount.place, canaries, is_usual));
            return;
        }
        self.draft.failure_domains.push(FailureDomain {
            name: format!("{name} canaries"),
            tolerate: 0,
            trips_alone: trips_alone(role),
            ..FailureDomain::default()
        });
        let failure_domain = number(self.draft.failure_domains.len() - 1);
        for vertex in &ends {
            if let Kind::Step(step) = &mut self.draft.vertices[*vertex as usize].kind {
                step.failure_domain = Some(failure_domain);
            }
        }
        if others.is_empty() {
            return;
        }
        let ends = ends.into_iter().map(StepId).collect();
        let mut gate = self.add_join(format!("canaries of {name}"), ends);
        if let Some(pause) = role.pause_after_canary {
            let pause_name = format!("pause after canaries of {name}");
            gate = self.add_pause(pause_name, pause.value, gate, (canaries[0], failure_domain));
        }
        let begins: Vec<u32> = others.iter().flat_map(|node| self.begins(&steps[node])).collect();
        for vertex in begins {
            self.draft.vertices[vertex as usize].after.push(gate);
        }
    }

    fn does_something(&self, steps: &Steps, node: u32) -> bool {
        let vertices = steps.get(&node).into_iter().flatten();
        let mut kinds = vertices.map(|vertex| &self.draft.vertices[*vertex as usize].kind);
        kinds.any(|kind| matches!(kind, Kind::Step(step) if step.skip.is_none()))
    }

    fn is_any_after(&self, late: &[u32], early: &[u32]) -> bool {
        let early: BTreeSet<u32> = early.iter().copied().collect();
        let mut is_seen = vec![false; self.draft.vertices.len()];
        let mut open = late.to_vec();
        while let Some(vertex) = open.pop() {
            if early.contains(&vertex) {
                return true;
            }
            if !std::mem::replace(&mut is_seen[vertex as usize], true) {
                let after = &self.draft.vertices[vertex as usize].after;
                open.extend(after.iter().map(|before| before.0));
            }
        }
        false
    }

    /// Canaries that wait for those that come after them. Where others than the usual ones had to be
    /// taken, the file is not at fault.
    fn no_canary(
        &self,
        role: &Role,
        place: Place,
        canaries: &[u32],
        is_usual: bool,
    ) -> SourceDiagnostic {
        let name = &role.name.value;
        if is_usual {
            let message =
                format!("role `{name}` would never finish: its canaries wait for its other nodes");
            let remedy = "take the limit away, or let them not wait for each other";
            return SourceDiagnostic::new(Code::Contradiction, place, message).hint(remedy);
        }
        let canaries: Vec<&str> =
            canaries.iter().map(|canary| self.draft.subjects[*canary as usize].as_str()).collect();
        let message = format!(
            "role `{name}` has no canary in this run: {} would wait for nodes that come after it, and \
             the usual ones do nothing",
            canaries.join(", "),
        );
        let remedy = "select one node first, and the others when it has stood the test";
        SourceDiagnostic::new(Code::Contradiction, place, message).mild().hint(remedy)
    }

    /// Steps of a role on one node that wait for no other of them.
    fn begins(&self, vertices: &[u32]) -> Vec<u32> {
        let inside: BTreeSet<u32> = vertices.iter().copied().collect();
        let waits = |vertex: &u32| {
            let after = &self.draft.vertices[*vertex as usize].after;
            after.iter().any(|before| inside.contains(&before.0))
        };
        vertices.iter().copied().filter(|vertex| !waits(vertex)).collect()
    }

    fn after(&self) -> Vec<Vec<u32>> {
        let vertices = self.draft.vertices.iter();
        vertices.map(|vertex| vertex.after.iter().map(|before| before.0).collect()).collect()
    }

    /// Adds a concurrency limit over the steps of a role.
    fn limit(
        &mut self,
        role: usize,
        steps: &Steps,
        limit: ConcurrencyLimit,
        place: Place,
        found: &mut Vec<SourceDiagnostic>,
    ) {
        if limit.slots as usize >= steps.len() {
            return;
        }
        let slots = limit.slots;
        let after = self.after();
        if !components(&after).is_empty() {
            return;
        }
        let owners = owners(steps, after.len());
        if let Some((one, other)) = wait_for_each_other(&after, &owners) {
            let [one, other] = [one, other].map(|node| &self.draft.subjects[node as usize]);
            let message = format!(
                "role `{}` would never finish: {slots} of its {} nodes are worked on at once, but \
                 {one} and {other} wait for each other before they are done",
                self.book.roles[role].name.value,
                steps.len(),
            );
            let remedy = "raise the limit to all nodes, or use `at_once` of the single task";
            found.push(SourceDiagnostic::new(Code::Contradiction, place, message).hint(remedy));
            return;
        }
        self.admit_in_order(steps, &after, &owners);
        self.limits.push(Limit { role, steps: steps.clone(), slots, place });
        let at = self.add_limit(limit);
        for vertex in steps.values().flatten() {
            if let Kind::Step(step) = &mut self.draft.vertices[*vertex as usize].kind {
                step.limits.push(at);
            }
        }
    }

    /// A node that waits for another node of the role begins only after its dependencies. Otherwise
    /// it would hold a slot that the other node needs.
    fn admit_in_order(&mut self, steps: &Steps, after: &[Vec<u32>], owners: &[Option<u32>]) {
        let known = behind(after, owners);
        let mut former = Vec::new();
        for (node, vertices) in steps {
            let mut waits = BTreeSet::new();
            for before in vertices.iter().flat_map(|vertex| &after[*vertex as usize]) {
                let at = *before as usize;
                let is_own = owners[at] == Some(*node);
                let is_other = owners[at].is_some_and(|owner| owner != *node);
                if !is_own && (is_other || known[at].is_other_than(*node)) && !known[at].has(*node)
                {
                    waits.insert(StepId(*before));
                }
            }
            for begin in self.begins(vertices) {
                let after = &mut self.draft.vertices[begin as usize].after;
                former.push((begin, after.clone()));
                after.extend(waits.iter().copied());
                after.sort_unstable();
                after.dedup();
            }
        }
        // `behind` remembers only some vertices, so the added edges may close a cycle; then undo them.
        if !components(&self.after()).is_empty() {
            for (begin, after) in former {
                self.draft.vertices[begin as usize].after = after;
            }
        }
    }
}

/// The number of predecessors, of `all`, that must succeed before a join is passed.
fn needed(rule: Rule, all: usize) -> usize {
    match rule {
        Rule::All | Rule::AnyEnd => all,
        Rule::AtLeast(count) => count as usize,
        Rule::Most => all / 2 + 1,
        Rule::Percent(percent) => (all * usize::from(percent)).div_ceil(100),
    }
}

/// A failed node is unavailable, tolerated or not.
fn stays_unavailable(
    role: &Role,
    tolerate: u32,
    slots: u32,
    members: usize,
) -> Option<SourceDiagnostic> {
    let written = role.tolerate.as_ref()?;
    if tolerate < slots || slots as usize >= members {
        return None;
    }
    let message = format!(
        "role `{}` tolerates {tolerate} failed nodes, but waits for a person when {slots} have \
         failed: no more may be unavailable",
        role.name.value,
    );
    let warning = SourceDiagnostic::new(Code::ToleranceDefeated, written.place, message);
    Some(warning.hint("tolerate fewer, or let more be unavailable"))
}

fn crossing<'r>(roles: impl Iterator<Item = &'r Role>) -> SourceDiagnostic {
    let mut roles: Vec<&Role> = roles.collect();
    roles.sort_unstable_by_key(|role| role.name.place);
    let names: Vec<String> = roles.iter().map(|role| format!("`{}`", role.name.value)).collect();
    let message = format!(
        "roles {} could wait for each other's slots for ever: some nodes hold a slot of the one and \
         need one of the other, and some the other way round",
        names.join(" and ")
    );
    let place = roles.first().map(|role| role.name.place).unwrap_or_default();
    let diagnostic = SourceDiagnostic::new(Code::Contradiction, place, message);
    diagnostic.hint("make one role of them for the limit, or let all nodes go in the same order")
}

fn owners(steps: &Steps, vertices: usize) -> Vec<Option<u32>> {
    let mut owners = vec![None; vertices];
    for (node, mine) in steps {
        for vertex in mine {
            owners[*vertex as usize] = Some(*node);
        }
    }
    owners
}

/// Two nodes of which each has a step that comes after one of the other.
fn wait_for_each_other(after: &[Vec<u32>], owners: &[Option<u32>]) -> Option<(u32, u32)> {
    // All steps of a node become one vertex, which reveals cycles through two nodes.
    let mut firsts: BTreeMap<u32, u32> = BTreeMap::new();
    let mut as_one: Vec<u32> = (0..number(after.len())).collect();
    for (vertex, owner) in (0..).zip(owners) {
        if let Some(owner) = owner {
            as_one[vertex as usize] = *firsts.entry(*owner).or_insert(vertex);
        }
    }
    let mut folded = vec![Vec::new(); after.len()];
    for (vertex, after) in after.iter().enumerate() {
        let at = as_one[vertex];
        folded[at as usize].extend(
            after.iter().map(|before| as_one[*before as usize]).filter(|before| *before != at),
        );
    }
    components(&folded).into_iter().find_map(|circle| {
        let mut nodes = circle.iter().filter_map(|vertex| owners[*vertex as usize]);
        Some((nodes.next()?, nodes.next()?))
    })
}

/// The nodes whose steps precede a vertex: none, or at most two that are remembered.
#[derive(Debug, Clone, Copy, Default)]
struct Behind([Option<u32>; 2], bool);

impl Behind {
    fn add(&mut self, node: u32) {
        if self.0.contains(&Some(node)) {
            return;
        }
        match self.0.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(node),
            None => self.1 = true,
        }
    }

    fn is_other_than(self, node: u32) -> bool {
        self.1 || self.0.iter().flatten().any(|other| *other != node)
    }

    fn has(self, node: u32) -> bool {
        self.0.contains(&Some(node))
    }
}

fn behind(after: &[Vec<u32>], owners: &[Option<u32>]) -> Vec<Behind> {
    let mut known = vec![Behind::default(); after.len()];
    for vertex in order(after) {
        let mut mine = Behind::default();
        for before in &after[vertex as usize] {
            let Behind(nodes, is_more) = known[*before as usize];
            nodes.into_iter().flatten().chain(owners[*before as usize]).for_each(|n| mine.add(n));
            mine.1 |= is_more;
        }
        known[vertex as usize] = mine;
    }
    known
}

/// A topological order: each vertex after its dependencies.
fn order(after: &[Vec<u32>]) -> Vec<u32> {
    let mut open: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut next = vec![Vec::new(); after.len()];
    for (vertex, after) in (0..).zip(after) {
        for before in after {
            next[*before as usize].push(vertex);
        }
    }
    let mut order: Vec<u32> =
        (0..number(after.len())).filter(|vertex| open[*vertex as usize] == 0).collect();
    let mut at = 0;
    while let Some(vertex) = order.get(at).copied() {
        at += 1;
        for later in &next[vertex as usize] {
            open[*later as usize] -= 1;
            if open[*later as usize] == 0 {
                order.push(*later);
            }
        }
    }
    order
}
