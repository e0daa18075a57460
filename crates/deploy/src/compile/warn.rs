//! What can be done but is probably not meant.

use hoist_engine::action::Ability;
use hoist_engine::plan::{Repeat, Reversibility};

use super::Options;
use super::steps::{has_checks, mentioned};
use crate::bind::{End, Graph};
use crate::diagnostic::{Code, Diagnostic};
use crate::layer::Book;
use crate::spec::{Amount, At, Fallen, PassesWith, Task, Want, Whose};
use crate::target::Targets;

const GIVE_UNDO: &str = "give it an `undo`, or `undo: none` if there is nothing";

/// Instances that a warning names.
const NAMED: usize = 5;

pub(super) fn look(book: &Book, graph: &Graph, options: &Options<'_>, found: &mut Vec<Diagnostic>) {
    for task in &book.tasks {
        repeats(task, options, found);
    }
    for role in &book.roles {
        if let (Some(pause), None) = (&role.pause_after_canary, &role.canary) {
            let message = format!("role `{}` pauses after canaries, but has none", role.name.value);
            let diagnostic = Diagnostic::new(Code::NeedlessSetting, pause.place, message);
            found.push(diagnostic.remedy("add `canary: 1`, or take the pause away"));
        }
    }
    strict_barriers(book, graph, found);
    undo_gaps(book, graph, options, found);
}

/// Instances that stay as they are though their role is to be taken back.
pub(super) fn role_gaps(
    book: &Book,
    targets: &Targets,
    graph: &Graph,
    options: &Options<'_>,
    found: &mut Vec<Diagnostic>,
) {
    for (at, role) in book.roles.iter().enumerate() {
        let Some(At { value: Fallen::Undo, place }) = role.on_failure else { continue };
        let Some(set) = targets.roles.get(&role.name.value) else { continue };
        for (task, number) in book.tasks.iter().zip(0_usize..) {
            let (why, remedy) = match task.reversibility {
                Some(At { value: Reversibility::CommitPoint, .. }) => {
                    ("there is no way back from it", "leave out `commit_point` if there is one")
                }
                _ if is_gap(task, options) => ("nobody said how", GIVE_UNDO),
                _ => continue,
            };
            if !mentioned(book, task).contains(&at) {
                continue;
            }
            let nodes = crate::target::common(&graph.nodes_of[number], &set.nodes);
            let id = &task.id.value;
            let names: Vec<String> = nodes
                .iter()
                .map(|node| format!("{id}@{}", targets.nodes[*node as usize].name))
                .collect();
            if names.is_empty() {
                continue;
            }
            let more = match names.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!(
                "role `{}` is taken back where it fails, but not {}{more}: {why}",
                role.name.value,
                names[..names.len().min(NAMED)].join(", ")
            );
            let diagnostic = Diagnostic::new(Code::UndoGap, place, message).remedy(remedy);
            found.push(diagnostic.note(task.id.place, "this stays as it is"));
        }
    }
}

/// Whether what a task does can be taken back by nobody.
fn is_gap(task: &Task, options: &Options<'_>) -> bool {
    let leaves_nothing = |action: &str| ["none", "wait", "http"].contains(&action);
    let is_left = |action: &str| !can(options, action, Ability::Undo) && !leaves_nothing(action);
    task.undo.is_none() && uses(task).any(is_left)
}

fn repeats(task: &Task, options: &Options<'_>, found: &mut Vec<Diagnostic>) {
    let id = &task.id.value;
    let retries = task.retries.filter(|retries| retries.value > 0);
    if let (Some(At { value: Repeat::Never, place }), Some(retries)) = (task.repeat, retries) {
        let message = format!(
            "task `{id}` says `repeat: never`, and is retried {} times when it fails",
            retries.value
        );
        let diagnostic = Diagnostic::new(Code::NeverRepeated, place, message);
        found.push(diagnostic.remedy("what can be retried can be repeated: say `safe` or `check`"));
    }
    let again = retries.or(task.retries_precheck.filter(|retries| retries.value > 0));
    if let (Some(delay), None) = (task.delay, again) {
        let message = format!("task `{id}` has a delay between attempts, but only one attempt");
        let diagnostic = Diagnostic::new(Code::NeedlessSetting, delay.place, message);
        found.push(diagnostic.remedy("add `retries`, or take the delay away"));
    }
    let mut actions = uses(task);
    let verifies = matches!((actions.next(), actions.next()), (Some(action), None)
        if can(options, action, Ability::Verify));
    let can_tell = has_checks(task) || verifies;
    if let (Some(At { value: true, place }), false) = (task.skip_when_done, can_tell) {
        let message =
            format!("task `{id}` is skipped when it is done, but nothing says when it is");
        let diagnostic = Diagnostic::new(Code::NeedlessSetting, place, message);
        found.push(diagnostic.remedy("add `check: {after: […]}`"));
    }
}

fn uses(task: &Task) -> impl Iterator<Item = &str> {
    task.run.iter().flat_map(|run| &run.value.uses).map(|one| one.action.as_str())
}

fn can(options: &Options<'_>, action: &str, ability: Ability) -> bool {
    let action = options.actions.and_then(|actions| actions.get(action));
    action.is_some_and(|action| action.describe().can.contains(&ability))
}

/// The role that can do without some, and how many.
fn tolerant(book: &Book, targets: &Targets, words: &[&str]) -> Option<(String, u32, usize)> {
    let role = book.roles.iter().find(|role| words.contains(&role.name.value.as_str()))?;
    let members = targets.roles.get(&role.name.value)?.nodes.len();
    let tolerate = match role.tolerate.as_ref()?.value {
        Amount::Count(count) => count,
        Amount::Percent(percent) => u32::try_from(members * percent as usize / 100).ok()?,
        Amount::AllBut(count) => u32::try_from(members).ok()?.saturating_sub(count),
        Amount::Expression(_) => return None,
    };
    (tolerate > 0 && members > 0).then(|| (role.name.value.clone(), tolerate, members))
}

/// Numbers that take nodes which a role can do without.
pub(super) fn wishes(book: &Book, targets: &Targets, found: &mut Vec<Diagnostic>) {
    let needs = book.tasks.iter().flat_map(|task| {
        let needs = task.needs.iter().flat_map(|list| &list.value);
        needs.map(move |need| (task, need))
    });
    for (task, need) in needs {
        let (Want::Count(want), Whose::Nodes(on)) = (need.want, &need.on) else { continue };
        let Some((role, tolerate, members)) = tolerant(book, targets, &on.value.words()) else {
            continue;
        };
        if want as usize > members.saturating_sub(tolerate as usize) {
            let message = format!(
                "`{}` wants {want} of `{}`, but {tolerate} of the {members} nodes of role \
                 `{role}` may fail",
                task.id.value, need.to
            );
            let diagnostic = Diagnostic::new(Code::ToleranceDefeated, need.place, message);
            found.push(diagnostic.remedy("want `all` instead: it leaves out those that failed"));
        }
    }
}

/// Barriers that wait for nodes which their role can do without.
fn strict_barriers(book: &Book, graph: &Graph, found: &mut Vec<Diagnostic>) {
    for (barrier, at) in book.barriers.iter().zip(0..) {
        let Some(At { value: PassesWith::All, place }) = barrier.passes_with else { continue };
        let tasks = graph.links.iter().filter_map(|link| match (link.before, link.after) {
            (End::Task(task), End::Barrier(to)) if to == at => Some(&book.tasks[task as usize]),
            _ => None,
        });
        let role = tasks.flat_map(|task| task.on.iter()).find_map(|on| {
            let words = on.value.words();
            book.roles.iter().find(|role| {
                role.tolerate.as_ref().is_some_and(|amount| amount.value != Amount::Count(0))
                    && words.contains(&role.name.value.as_str())
            })
        });
        let Some(role) = role else { continue };
        let message = format!(
            "barrier `{}` passes with all nodes only, so role `{}` tolerates nothing",
            barrier.id.value, role.name.value
        );
        let diagnostic = Diagnostic::new(Code::ToleranceDefeated, place, message);
        found.push(diagnostic.remedy("say `passes_with: tolerated`"));
    }
}

/// Taking back stops where something cannot be taken back.
fn undo_gaps(book: &Book, graph: &Graph, options: &Options<'_>, found: &mut Vec<Diagnostic>) {
    let mut told = std::collections::BTreeSet::new();
    for link in &graph.links {
        let (End::Task(before), End::Task(after)) = (link.before, link.after) else { continue };
        let [gap, task] = [before, after].map(|at| &book.tasks[at as usize]);
        let Some(undo) = task.undo.as_ref().filter(|_| is_gap(gap, options)) else { continue };
        if !told.insert(after) {
            continue;
        }
        let message =
            format!("`{}` can be undone, but `{}` before it cannot", task.id.value, gap.id.value);
        let diagnostic = Diagnostic::new(Code::UndoGap, undo.place, message);
        let diagnostic = diagnostic.remedy(GIVE_UNDO);
        found.push(diagnostic.note(gap.id.place, "this has no `undo`"));
    }
}
