//! The tasks of one graph with Fuel's computed dependencies written out, and the references that
//! can never bind.

use std::collections::{BTreeSet, HashMap};

use hoist_model::nearest;
use regex::Regex;
use serde_json::Value;

use super::TaskDiagnostic;
use super::compute::{Computer, GuardedEntries};
use super::names::{MASTER, Names, NodeGroup, is_pattern, prefix_regex};
use super::task::{Dependency, List, Task, Type, Where};
use super::yaql::{Dialect, parse};

/// The dependencies and dependents of a task, each entry with its nodes.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    pub(super) requires: Vec<Entry<String>>,
    pub(super) required_for: Vec<Entry<String>>,
    pub(super) cross_depends: Vec<Entry<Dependency>>,
    pub(super) cross_depended_by: Vec<Entry<Dependency>>,
    /// Lists that could not be computed.
    pub(super) unknown: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) to: T,
    pub(super) only: NodeGroup,
    /// Why it cannot bind, whatever roles the nodes have.
    pub(super) dead: Option<Dead>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dead {
    /// There is no such task.
    Undefined,
    /// They are never on the same node.
    Apart,
    /// A stage is not on a node.
    StageOnNode,
    /// It names a group, which does nothing itself.
    Group,
}

pub(super) struct Resolver<'a> {
    pub(super) tasks: &'a [Task],
    pub(super) names: &'a Names,
    pub(super) settings: &'a Value,
}

impl Resolver<'_> {
    pub(super) fn resolve(&self, diagnostics: &mut Vec<TaskDiagnostic>) -> Vec<Resolution> {
        let places: Vec<Positions> = self.tasks.iter().map(|task| self.places(task)).collect();
        let mut patterns = HashMap::new();
        let mut all = Vec::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let mut resolved = Resolution::default();
            if task.kind == Type::Group {
                self.tell_group(task, diagnostics);
                all.push(resolved);
                continue;
            }
            let computer = Computer { names: self.names, settings: self.settings };
            let unknown = &mut resolved.unknown;
            let words = |list: &List<String>,
                         key: &str,
                         unknown: &mut Vec<String>,
                         diagnostics: &mut Vec<TaskDiagnostic>| {
                computed(list, task, key, unknown, diagnostics, |expr| computer.names(expr))
            };
            let requires = words(&task.requires, "requires", unknown, diagnostics);
            let required_for = words(&task.required_for, "required_for", unknown, diagnostics);
            let mut cross = |list: &List<Dependency>, key: &str| {
                computed(list, task, key, unknown, diagnostics, |expr| computer.dependencies(expr))
            };
            let depends = self.limited(cross(&task.cross_depends, "cross-depends"));
            let depended_by = cross(&task.cross_depended_by, "cross-depended-by");
            let mut mark = Marker {
                resolver: self,
                places: &places,
                at,
                diagnostics,
                patterns: &mut patterns,
            };
            resolved.requires = mark.words(requires, "requires");
            resolved.required_for = mark.words(required_for, "required_for");
            resolved.cross_depends = mark.cross(depends, "cross-depends");
            resolved.cross_depended_by = mark.cross(depended_by, "cross-depended-by");
            all.push(resolved);
        }
        all
    }

    /// The entries without the nodes on which the task does not have them.
    fn limited(&self, entries: GuardedEntries<Dependency>) -> GuardedEntries<Dependency> {
        let limited = |(only, to): (NodeGroup, Dependency)| {
            let left_out = self.names.who(&to.unless).unwrap_or(NodeGroup::Nobody);
            (NodeGroup::all(vec![only, left_out.not()]), to)
        };
        entries.into_iter().map(limited).collect()
    }

    fn tell_group(&self, group: &Task, diagnostics: &mut Vec<TaskDiagnostic>) {
        // The groups of the first generation have got tasks that stand for them.
        if self.tasks.iter().any(|task| task.id == format!("{}_start", group.id)) {
            return;
        }
        let lists = [("requires", &group.requires), ("required_for", &group.required_for)];
        for (key, list) in lists {
            for name in list.given() {
                let message = format!("`{key}: {name}` of a group does nothing since Fuel 8");
                diagnostics.push(TaskDiagnostic::new("W-GROUP", group, message, None));
            }
        }
    }

    /// Where a task is if one node has every role: as the first of them all, as a further one, on
    /// the deployment server, or on no node.
    fn places(&self, task: &Task) -> Positions {
        if task.kind == Type::Stage {
            return Positions { is_stage: true, ..Positions::default() };
        }
        let mut places = Positions::default();
        places.add(task, self.names);
        for group in self.tasks.iter().filter(|group| group.kind == Type::Group) {
            if group.tasks.contains(&task.id) {
                places.add(group, self.names);
            }
        }
        places
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is a place of its own")]
#[derive(Debug, Clone, Copy, Default)]
struct Positions {
    is_stage: bool,
    first: bool,
    further: bool,
    master: bool,
}

impl Positions {
    fn add(&mut self, task: &Task, names: &Names) {
        match &task.on {
            Some(List::Given(words)) => self.add_words(words, names),
            // It may be anywhere.
            Some(List::Computed(_)) => {
                (self.first, self.further, self.master) = (true, true, true);
            }
            None => {}
        }
    }

    fn add_words(&mut self, words: &[String], names: &Names) {
        self.master |= words.iter().any(|word| word == MASTER);
        let is_meant = |name: &str| {
            words.iter().any(|word| match prefix_regex(word) {
                Ok(Some(regex)) => regex.is_match(name),
                Ok(None) => word == "*" || word == name,
                Err(_) => true,
            })
        };
        for name in names.plain.iter().map(String::as_str) {
            let is_here = is_meant(name);
            self.further |= is_here;
            self.first |= if names.has_primary(name) {
                is_meant(&format!("primary-{name}"))
            } else {
                is_here
            };
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            is_stage: self.is_stage || other.is_stage,
            first: self.first || other.first,
            further: self.further || other.further,
            master: self.master || other.master,
        }
    }

    /// After "is".
    fn told(self) -> &'static str {
        match (self.first, self.further, self.master) {
            (true, true, true) => "on every node",
            (true, true, false) => "on every node but the master",
            (true, false, true) => "on first nodes (`primary-…`) and the master",
            (true, false, false) => "on first nodes (`primary-…`) only",
            (false, true, true) => "on nodes that are not the first, and the master",
            (false, true, false) => "on nodes that are not the first",
            (false, false, true) => "on the master only",
            (false, false, false) if self.is_stage => "a stage, which is on no node",
            (false, false, false) => "on no node",
        }
    }

    fn meets(self, other: Self) -> bool {
        self.first && other.first || self.further && other.further || self.master && other.master
    }
}

fn computed<T: Clone>(
    list: &List<T>,
    task: &Task,
    key: &str,
    unknown: &mut Vec<String>,
    diagnostics: &mut Vec<TaskDiagnostic>,
    compute: impl Fn(&super::yaql::Expr) -> Result<GuardedEntries<T>, String>,
) -> GuardedEntries<T> {
    let text = match list {
        List::Given(items) => {
            return items.iter().map(|item| (NodeGroup::Everyone, item.clone())).collect();
        }
        List::Computed(text) => text,
    };
    let parsed = parse(text, Dialect::Yaql).map_err(|error| error.to_string());
    match parsed.and_then(|expr| compute(&expr)) {
        Ok(entries) => {
            let message = format!(
                "`{key}` was computed for each node; it is written down as the settings given are"
            );
            diagnostics.push(TaskDiagnostic::new("W-COMPUTED", task, message, None));
            entries
        }
        Err(reason) => {
            let message = format!("`{key}` is computed, and hoist cannot: {reason}");
            let hint = "write it by hand; until then the task cannot be planned";
            diagnostics.push(TaskDiagnostic::new(
                "W-COMPUTED",
                task,
                message,
                Some(hint.to_owned()),
            ));
            unknown.push(format!("{key}: {text}"));
            Vec::new()
        }
    }
}

struct Marker<'a, 'b> {
    resolver: &'a Resolver<'a>,
    places: &'a [Positions],
    at: usize,
    diagnostics: &'b mut Vec<TaskDiagnostic>,
    patterns: &'b mut HashMap<String, Option<Regex>>,
}

impl Marker<'_, '_> {
    fn task(&self) -> &Task {
        &self.resolver.tasks[self.at]
    }

    fn named(&mut self, name: &str) -> Vec<usize> {
        let regex = self
            .patterns
            .entry(name.to_owned())
            .or_insert_with(|| prefix_regex(name).ok().flatten());
        let is_named = |id: &str| match &*regex {
            Some(regex) => regex.is_match(id),
            None => id == name,
        };
        let tasks = self.resolver.tasks.iter().enumerate();
        tasks.filter(|(_, task)| is_named(&task.id)).map(|(at, _)| at).collect()
    }

    fn words(&mut self, list: GuardedEntries<String>, key: &str) -> Vec<Entry<String>> {
        let entry = |(only, name): (NodeGroup, String)| {
            let own = self.places[self.at];
            let dead = self.dead(&name, key, None, |other| other.is_stage || own.meets(other));
            Entry { to: name, only, dead }
        };
        list.into_iter().map(entry).collect()
    }

    fn cross(&mut self, list: GuardedEntries<Dependency>, key: &str) -> Vec<Entry<Dependency>> {
        let mut entries = Vec::new();
        for (only, to) in list {
            let own = self.places[self.at];
            let place = Some(&to.role);
            let dead = match &to.role {
                Where::Own => {
                    self.dead(&to.name, key, place, |other| !other.is_stage && own.meets(other))
                }
                Where::All => self.dead(&to.name, key, place, |other| other.first || other.further),
                Where::Null => self.dead(&to.name, key, place, |other| other.is_stage),
                Where::Names(names) => {
                    let mut there = Positions::default();
                    there.add_words(names, self.resolver.names);
                    self.dead(&to.name, key, place, |other| there.meets(other))
                }
            };
            self.tell_any(&to);
            // Patterns of task files never mean the task itself.
            let itself = self.task().id.clone();
            let is_meant = dead.is_none()
                && is_pattern(&to.name)
                && matches!(to.role, Where::All | Where::Names(_))
                && self.named(&to.name).contains(&self.at);
            if is_meant && self.is_where_it_is(&to.role) {
                let to = Dependency { name: itself, ..to.clone() };
                entries.push(Entry { to, only: only.clone(), dead: None });
            }
            entries.push(Entry { to, only, dead });
        }
        entries
    }

    /// Whether the nodes of a dependency can be nodes of the task itself.
    fn is_where_it_is(&self, role: &Where) -> bool {
        let own = self.places[self.at];
        match role {
            Where::All => own.first || own.further,
            Where::Names(names) => {
                let mut there = Positions::default();
                there.add_words(names, self.resolver.names);
                there.meets(own)
            }
            Where::Own | Where::Null => false,
        }
    }

    fn tell_any(&mut self, to: &Dependency) {
        if to.is_any {
            let message = format!(
                "`policy: any` on `{}` meant one node that Fuel picked; here any of them will do",
                to.name
            );
            let diagnostic = TaskDiagnostic::new("W-ANY", self.task(), message, None);
            self.diagnostics.push(diagnostic);
        }
    }

    fn dead(
        &mut self,
        name: &str,
        key: &str,
        place: Option<&Where>,
        binds: impl Fn(Positions) -> bool,
    ) -> Option<Dead> {
        self.tell_pattern(name, key);
        let named = self.named(name);
        let tasks = self.resolver.tasks;
        // On other nodes a task may wait for itself.
        let may_be_itself = matches!(place, Some(Where::All | Where::Names(_)));
        let others: Vec<usize> = named
            .iter()
            .copied()
            .filter(|at| (*at != self.at || may_be_itself) && tasks[*at].kind != Type::Group)
            .collect();
        if others.iter().any(|at| binds(self.places[*at])) {
            return None;
        }
        let (code, dead, message, hint) = if named.is_empty() {
            let close = nearest(name, tasks.iter().map(|task| task.id.as_str()));
            let hint = close.map(|close| format!("did you mean `{close}`?"));
            ("W-REF", Dead::Undefined, format!("`{key}: {name}`: task not found"), hint)
        } else if others.is_empty() {
            let message = format!("`{key}: {name}` names no task that runs");
            ("W-NEVER", Dead::Group, message, None)
        } else if place == Some(&Where::Own) && others.iter().all(|at| self.places[*at].is_stage) {
            let message = format!(
                "`{key}: {name}` with `role: self` looks for a stage on a node, where none is"
            );
            let hint =
                if key == "cross-depends" { "write `requires`" } else { "write `required_for`" };
            ("W-NEVER", Dead::StageOnNode, message, Some(hint.to_owned()))
        } else {
            let there =
                others.iter().fold(Positions::default(), |all, at| all.or(self.places[*at]));
            let message = format!(
                "`{key}: {name}` can never bind: {}, and `{name}` is {}",
                self.looked_for(place),
                there.told()
            );
            let hint = match place {
                None | Some(Where::Own) => "name the nodes in `needs`",
                Some(_) => "name the nodes that it is on",
            };
            ("W-NEVER", Dead::Apart, message, Some(hint.to_owned()))
        };
        let diagnostic = TaskDiagnostic::new(code, self.task(), message, hint);
        self.diagnostics.push(diagnostic);
        Some(dead)
    }

    /// Where a name is looked for.
    fn looked_for(&self, place: Option<&Where>) -> String {
        match place {
            None | Some(Where::Own) => {
                let own = self.places[self.at].told();
                format!("only the same node counts, `{}` is {own}", self.task().id)
            }
            Some(Where::All) => "it is looked for on every node but the master".to_owned(),
            Some(Where::Null) => "it is looked for among stages".to_owned(),
            Some(Where::Names(names)) => format!("it is looked for on {}", names.join(", ")),
        }
    }

    fn tell_pattern(&mut self, name: &str, key: &str) {
        if !is_pattern(name) {
            return;
        }
        let inner = &name[1..name.len() - 1];
        if let Err(error) = Regex::new(inner) {
            let message = format!("`{key}: {name}` is no regular expression: {error}");
            let diagnostic = TaskDiagnostic::new("W-REGEX", self.task(), message, None);
            self.diagnostics.push(diagnostic);
        } else if !(inner.starts_with('^') && inner.ends_with('$')) {
            let taken: BTreeSet<&str> = self
                .named(name)
                .into_iter()
                .map(|at| self.resolver.tasks[at].id.as_str())
                .collect();
            let taken: Vec<&str> = taken.into_iter().take(8).collect();
            let message = format!(
                "`{key}: {name}` is not anchored at both ends; it takes {}",
                taken.join(", ")
            );
            let diagnostic = TaskDiagnostic::new("W-REGEX", self.task(), message, None);
            self.diagnostics.push(diagnostic);
        }
    }
}
