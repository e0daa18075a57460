//! Tasks of the first generation, whose order was that of their groups. They get the edges that the
//! later engine gave them: each group has a beginning and an end on its nodes, and its tasks are in
//! between; tasks of a plug-in's stage follow each other after the stage.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{MASTER, is_pattern, prefix_regex};
use super::task::{Dependency, List, Stage, Strategy, Task, Type, Where};

/// The phases that tasks outside of groups lie in, each between two stages.
const PHASES: [&str; 2] = ["pre_deployment", "post_deployment"];

/// Groups of one graph; every pair of them is compared. Fuel's last release has 11.
pub(super) const MAX_GROUPS: usize = 64;

/// Adds the edges of the first generation. The caller guarantees at most [`MAX_GROUPS`] groups.
pub(super) fn adapt(tasks: &mut Vec<Task>) {
    if !tasks.iter().any(Task::is_legacy) {
        return;
    }
    let groups = Groups::new(tasks);
    let ids: BTreeSet<String> = tasks.iter().map(|task| task.id.clone()).collect();
    let members = members(tasks, &groups.ids());
    let made: Vec<Task> =
        (0..groups.all.len()).flat_map(|at| groups.ends(at, tasks, &members)).collect();
    let phases = phases(tasks);
    for task in tasks.iter_mut().filter(|task| task.is_in_a_list()) {
        let is_legacy = task.is_legacy();
        if is_legacy {
            // Fuel 9 replaced what such a task said itself.
            task.cross_depends = List::default();
        }
        if let Some(phase) = phases.get(&task.id) {
            task.is_in_a_phase = true;
            if is_legacy {
                add(&mut task.requires, format!("{phase}_start"));
            }
            add(&mut task.required_for, format!("{phase}_end"));
            continue;
        }
        for (at, group) in groups.of(members.get(&task.id)) {
            if is_legacy {
                // On a node of an earlier group too, the task is in the list of that one.
                let earlier = groups.of(members.get(&task.id)).filter(|(other, _)| *other < at);
                let unless = earlier.flat_map(|(_, group)| group.nodes.clone()).collect();
                let start = Dependency { unless, ..Dependency::own(start(&group.id)) };
                push(&mut task.cross_depends, start);
            }
            add(&mut task.required_for, end(&group.id));
        }
    }
    chain(tasks, &ids);
    tasks.extend(made);
}

fn start(group: &str) -> String {
    format!("{group}_start")
}

fn end(group: &str) -> String {
    format!("{group}_end")
}

/// A group of the first generation: the list of tasks of a role.
struct Group {
    id: String,
    /// Names and patterns of its nodes.
    nodes: Vec<String>,
    /// Groups that come before it, also by way of others: one of those may have no nodes.
    before: BTreeSet<String>,
}

/// The groups of a graph, in the order in which their lists run on a node that has several.
struct Groups {
    all: Vec<Group>,
}

impl Groups {
    fn new(tasks: &[Task]) -> Self {
        let groups: Vec<&Task> = tasks.iter().filter(|task| task.kind == Type::Group).collect();
        let ids: BTreeSet<&str> = groups.iter().map(|group| group.id.as_str()).collect();
        let mut before: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for group in &groups {
            let named = |list: &List<String>| -> Vec<String> {
                list.given().iter().filter(|name| ids.contains(name.as_str())).cloned().collect()
            };
            before.entry(&group.id).or_default().extend(named(&group.requires));
            for later in named(&group.required_for) {
                let later = ids.get(later.as_str()).copied().unwrap_or_default();
                before.entry(later).or_default().insert(group.id.clone());
            }
        }
        close(&mut before);
        // Fuel began with the groups that go node by node, then those in parts, then all others.
        let class = |group: &Task| match group.strategy {
            Some(Strategy::OneByOne) => 0,
            Some(Strategy::Parallel(Some(_)) | Strategy::Computed(_)) => 1,
            Some(Strategy::Parallel(None)) | None => 2,
        };
        let mut order = groups;
        order.sort_by_key(|group| (before[group.id.as_str()].len(), class(group)));
        let all = order.into_iter().map(|group| Group {
            id: group.id.clone(),
            nodes: group.on.as_ref().map_or(&[][..], List::given).to_vec(),
            before: before[group.id.as_str()].clone(),
        });
        Self { all: all.collect() }
    }

    fn ids(&self) -> BTreeSet<String> {
        self.all.iter().map(|group| group.id.clone()).collect()
    }

    /// Some of the groups, with their places in the order.
    fn of<'a>(
        &'a self,
        names: Option<&'a Vec<String>>,
    ) -> impl Iterator<Item = (usize, &'a Group)> {
        let is_named = move |group: &Group| names.is_some_and(|names| names.contains(&group.id));
        self.all.iter().enumerate().filter(move |(_, group)| is_named(group))
    }

    /// The beginning and the end of a group on each of its nodes.
    fn ends(
        &self,
        at: usize,
        tasks: &[Task],
        members: &BTreeMap<String, Vec<String>>,
    ) -> Vec<Task> {
        let group = &self.all[at];
        let find = |id: &str| tasks.iter().find(|task| task.kind == Type::Group && task.id == id);
        let Some(source) = find(&group.id) else { return Vec::new() };
        let blank = |id: String| Task {
            id,
            kind: Type::Skipped,
            requires: List::default(),
            required_for: List::default(),
            tasks: Vec::new(),
            fault_tolerance: None,
            strategy: None,
            ..source.clone()
        };
        let mut first = blank(start(&group.id));
        let mut last = blank(end(&group.id));
        add(&mut last.requires, first.id.clone());
        let ids = self.ids();
        let others = |list: &List<String>| -> Vec<String> {
            list.given().iter().filter(|name| !ids.contains(*name)).cloned().collect()
        };
        for source in group.before.iter().chain([&group.id]).filter_map(|id| find(id)) {
            for name in others(&source.requires) {
                add(&mut first.requires, name);
            }
        }
        let after = self.all.iter().filter(|other| other.before.contains(&group.id));
        for source in after.map(|other| &other.id).chain([&group.id]).filter_map(|id| find(id)) {
            for name in others(&source.required_for) {
                add(&mut last.required_for, name);
            }
        }
        for name in &group.before {
            push(&mut first.cross_depends, Dependency::new(end(name), Where::All));
        }
        // The lists of two roles on one node run one after the other.
        for earlier in self.all[..at].iter().filter(|earlier| !group.before.contains(&earlier.id)) {
            if !waits_back(tasks, members, &earlier.id, &group.id) {
                let wait = Dependency { is_optional: true, ..Dependency::own(end(&earlier.id)) };
                push(&mut first.cross_depends, wait);
            }
        }
        vec![first, last]
    }
}

/// Whether a task of the earlier list waits for one that is in the later list only.
fn waits_back(
    tasks: &[Task],
    members: &BTreeMap<String, Vec<String>>,
    earlier: &str,
    later: &str,
) -> bool {
    let is_in = |task: &str, group: &str| {
        members.get(task).is_some_and(|groups| groups.iter().any(|other| other == group))
    };
    let is_back = |before: &str, after: &str| {
        is_in(after, earlier) && is_in(before, later) && !is_in(before, earlier)
    };
    tasks.iter().filter(|task| task.is_in_a_list()).any(|task| {
        task.requires.given().iter().any(|before| is_back(before, &task.id))
            || task.required_for.given().iter().any(|after| is_back(&task.id, after))
    })
}

/// Adds to each set the sets of its members.
fn close(sets: &mut BTreeMap<&str, BTreeSet<String>>) {
    loop {
        let mut is_closed = true;
        let names: Vec<&str> = sets.keys().copied().collect();
        for name in names {
            let more: BTreeSet<String> = sets[name]
                .iter()
                .filter_map(|of| sets.get(of.as_str()))
                .flatten()
                .cloned()
                .collect();
            let set = sets.entry(name).or_default();
            let count = set.len();
            set.extend(more);
            is_closed &= set.len() == count;
        }
        if is_closed {
            break;
        }
    }
}

/// The groups that each task belongs to, because it says so or because they do.
fn members(tasks: &[Task], groups: &BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in tasks {
        if task.kind == Type::Group {
            for name in &task.tasks {
                members.entry(name.clone()).or_default().push(task.id.clone());
            }
            continue;
        }
        // Fuel 9 did not look at tags here: a task with nothing but tags is in every list.
        let everywhere = ["*".to_owned()];
        let words = task.roles.as_deref().unwrap_or(&everywhere);
        for word in words {
            let is_meant = |group: &&String| {
                *group == word || word == "*" || is_pattern(word) && matches_prefix(word, group)
            };
            let found = groups.iter().filter(is_meant).cloned();
            members.entry(task.id.clone()).or_default().extend(found);
        }
    }
    for groups in members.values_mut() {
        groups.sort_unstable();
        groups.dedup();
    }
    members
}

fn matches_prefix(pattern: &str, name: &str) -> bool {
    prefix_regex(pattern).ok().flatten().is_some_and(|regex| regex.is_match(name))
}

/// Tasks after the start of a phase, or before its end, derived from their dependencies.
fn phases(tasks: &[Task]) -> BTreeMap<String, &'static str> {
    let mut phases: BTreeMap<String, &'static str> = BTreeMap::new();
    for phase in PHASES {
        let start = format!("{phase}_start");
        let end = format!("{phase}_end");
        loop {
            let before = phases.len();
            for task in tasks.iter().filter(|task| task.is_in_a_list()) {
                let is_in = |name: &String, edge: &String| {
                    name == edge || phases.get(name).is_some_and(|other| *other == phase)
                };
                let is_after = task.requires.given().iter().any(|name| is_in(name, &start));
                let is_before = task.required_for.given().iter().any(|name| is_in(name, &end));
                if is_after || is_before {
                    phases.entry(task.id.clone()).or_insert(phase);
                }
            }
            if phases.len() == before {
                break;
            }
        }
    }
    phases
}

/// Tasks of a plug-in's stage, one after another on all nodes, after the stage and before the next.
fn chain(tasks: &mut [Task], ids: &BTreeSet<String>) {
    let mut staged: Vec<(Stage, usize)> =
        tasks.iter().enumerate().filter_map(|(at, task)| Some((task.stage.clone()?, at))).collect();
    staged.sort();
    let mut before: Option<(String, String)> = None;
    for (stage, at) in staged {
        let last = before.replace((stage.name.clone(), tasks[at].id.clone()));
        match last {
            Some((name, id)) if name == stage.name => {
                let is_on_master = tasks
                    .iter()
                    .filter(|task| task.id == id)
                    .flat_map(|task| task.on.iter().flat_map(List::given))
                    .any(|word| word == MASTER);
                if is_on_master {
                    let role = Where::Names(vec![MASTER.to_owned()]);
                    push(&mut tasks[at].cross_depends, Dependency::new(id.clone(), role));
                }
                push(&mut tasks[at].cross_depends, Dependency::new(id, Where::All));
            }
            _ => add(&mut tasks[at].requires, format!("{}_end", stage.name)),
        }
        if stage.name == "pre_deployment" && ids.contains("deploy_start") {
            add(&mut tasks[at].required_for, "deploy_start".to_owned());
        }
    }
}

fn push<T>(list: &mut List<T>, item: T) {
    if let List::Given(items) = list {
        items.push(item);
    }
}

fn add(list: &mut List<String>, name: String) {
    if !list.given().contains(&name) {
        push(list, name);
    }
}
