//! Tasks of the first generation, whose order was that of their groups. They get the edges that the
//! later engine gave them: each group has a beginning and an end on its nodes, and its tasks are in
//! between; tasks of a plug-in's stage follow each other after the stage.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{MASTER, is_pattern, prefix_regex};
use super::task::{Dependency, List, Stage, Task, Type, Where};

/// The phases that tasks outside of groups lie in, each between two stages.
const PHASES: [&str; 2] = ["pre_deployment", "post_deployment"];

pub(super) fn adapt(tasks: &mut Vec<Task>) {
    if !tasks.iter().any(Task::is_legacy) {
        return;
    }
    let groups: BTreeSet<String> =
        tasks.iter().filter(|task| task.kind == Type::Group).map(|task| task.id.clone()).collect();
    let ids: BTreeSet<String> = tasks.iter().map(|task| task.id.clone()).collect();
    let mut made = Vec::new();
    for group in tasks.iter().filter(|task| task.kind == Type::Group) {
        made.extend(ends(group, &groups));
    }
    let phases = phases(tasks);
    let members = members(tasks, &groups);
    for task in tasks.iter_mut().filter(|task| task.is_legacy() && task.stage.is_none()) {
        if let Some(phase) = phases.get(&task.id) {
            add(&mut task.requires, format!("{phase}_start"));
            add(&mut task.required_for, format!("{phase}_end"));
            continue;
        }
        for group in members.get(&task.id).into_iter().flatten() {
            let start = Dependency { name: start(group), role: Where::Own, is_any: false };
            push(&mut task.cross_depends, start);
            add(&mut task.required_for, end(group));
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

/// What stands at the beginning and at the end of a group on each of its nodes.
fn ends(group: &Task, groups: &BTreeSet<String>) -> [Task; 2] {
    let blank = |id: String| Task {
        id,
        kind: Type::Skipped,
        requires: List::default(),
        required_for: List::default(),
        tasks: Vec::new(),
        fault_tolerance: None,
        strategy: None,
        ..group.clone()
    };
    let mut first = blank(start(&group.id));
    let mut last = blank(end(&group.id));
    add(&mut last.requires, first.id.clone());
    let on_all = |name: String| Dependency { name, role: Where::All, is_any: false };
    for name in group.requires.given() {
        if groups.contains(name) {
            push(&mut first.cross_depends, on_all(end(name)));
        } else {
            add(&mut first.requires, name.clone());
        }
    }
    for name in group.required_for.given() {
        if groups.contains(name) {
            push(&mut last.cross_depended_by, on_all(start(name)));
        } else {
            add(&mut last.required_for, name.clone());
        }
    }
    [first, last]
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
        for word in task.on.iter().flat_map(List::given) {
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

/// Tasks that come after the start of a phase, or before its end, by what they say of each other.
fn phases(tasks: &[Task]) -> BTreeMap<String, &'static str> {
    let mut phases: BTreeMap<String, &'static str> = BTreeMap::new();
    for phase in PHASES {
        let (start, end) = (format!("{phase}_start"), format!("{phase}_end"));
        loop {
            let before = phases.len();
            for task in tasks.iter().filter(|task| task.is_legacy()) {
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
                let wait = Dependency { name: id, role: Where::All, is_any: false };
                if is_on_master {
                    let role = Where::Names(vec![MASTER.to_owned()]);
                    push(&mut tasks[at].cross_depends, Dependency { role, ..wait.clone() });
                }
                push(&mut tasks[at].cross_depends, wait);
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
