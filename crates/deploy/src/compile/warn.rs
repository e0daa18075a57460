//! Warnings about valid declarations that are probably mistakes.

use hoist_engine::action::Ability;
use hoist_engine::plan::{Repeat, Reversibility};

use hoist_model::nearest;
use hoist_model::selector::{Selector, Vocabulary as _};

use super::Options;
use super::steps::{has_checks, mentioned};
use crate::bind::{End, Graph};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::spec::{Amount, At, FailurePolicy, NeedScope, PassesWith, Place, Role, Task, Want};
use crate::target::Targets;

const GIVE_UNDO: &str = "give it an `undo`, or `undo: none` if it has nothing to undo";

/// Instances that a warning names.
const NAMED: usize = 5;

pub(super) fn look(
    book: &Book,
    graph: &Graph,
    options: &Options<'_>,
    found: &mut Vec<SourceDiagnostic>,
) {
    for task in &book.tasks {
        repeats(task, options, found);
    }
    for role in &book.roles {
        if let (Some(pause), None) = (&role.pause_after_canary, &role.canary) {
            let message = format!("role `{}` pauses after canaries, but has none", role.name.value);
            let diagnostic = SourceDiagnostic::new(Code::NeedlessSetting, pause.place, message);
            found.push(diagnostic.hint("add `canary: 1`, or take the pause away"));
        }
    }
    strict_barriers(book, graph, found);
    undo_gaps(book, graph, options, found);
}

/// Roles without members that tasks name: the run would succeed without doing their work.
pub(super) fn empty_roles(book: &Book, targets: &Targets, found: &mut Vec<SourceDiagnostic>) {
    for role in &book.roles {
        let At { value: name, place } = &role.name;
        let is_empty = targets.roles.get(name).is_some_and(|set| set.nodes.is_empty());
        if !is_empty || role.allow_empty.is_some_and(|allowed| allowed.value) {
            continue;
        }
        let Some((task, on)) = book.tasks.iter().find_map(|task| Some((task, names(task, role)?)))
        else {
            continue;
        };
        let from = match &role.nodes {
            Some(nodes) => format!("`{}` selects no node", nodes.value),
            None => "no node has a role, subrole or group of this name".to_owned(),
        };
        let message = format!("role `{name}` has no members: {from}");
        let diagnostic = SourceDiagnostic::new(Code::EmptyRole, *place, message);
        let words = targets.known_names();
        let others = words.iter().map(String::as_str).filter(|word| word != name);
        let close = if role.nodes.is_none() { nearest(name, others) } else { None };
        let remedy = "write `allow_empty: true` if its tasks may have nothing to do";
        let remedy = match close {
            Some(close) => format!("did you mean `{close}`? Otherwise {remedy}"),
            None => remedy.to_owned(),
        };
        let named = format!("task `{}` names it", task.id.value);
        found.push(diagnostic.hint(remedy).note(on, named));
    }
}

/// Where a task names a role as the place of its own work or of work that it waits for.
fn names(task: &Task, role: &Role) -> Option<Place> {
    let is_named = |selector: &At<Selector>| {
        let first = role.first.as_ref().map(|first| first.value.as_str());
        let words = selector.value.bare_names();
        words.iter().any(|word| *word == role.name.value || Some(*word) == first)
    };
    let needs = [&task.needs, &task.needed_by].into_iter().flatten();
    let scopes = needs.flat_map(|needs| &needs.value).filter_map(|need| match &need.on {
        NeedScope::Nodes(on) => Some(on),
        NeedScope::All | NeedScope::Own => None,
    });
    task.on.iter().chain(scopes).find(|on| is_named(on)).map(|on| on.place)
}

/// Instances that cannot be undone although their role asks for undo.
pub(super) fn role_gaps(
    book: &Book,
    targets: &Targets,
    graph: &Graph,
    options: &Options<'_>,
    found: &mut Vec<SourceDiagnostic>,
) {
    for (at, role) in book.roles.iter().enumerate() {
        let Some(At { value: FailurePolicy::Undo, place }) = role.on_failure else { continue };
        let Some(set) = targets.roles.get(&role.name.value) else { continue };
        for (task, number) in book.tasks.iter().zip(0_usize..) {
            let (why, remedy) = match task.reversibility {
                Some(At { value: Reversibility::CommitPoint, .. }) => {
                    ("it cannot be undone", "leave out `commit_point` if there is one")
                }
                _ if is_gap(task, options) => ("the task has no `undo`", GIVE_UNDO),
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
                "role `{}` is undone where it fails, but not {}{more}: {why}",
                role.name.value,
                names[..names.len().min(NAMED)].join(", ")
            );
            let diagnostic = SourceDiagnostic::new(Code::UndoGap, place, message).hint(remedy);
            found.push(diagnostic.note(task.id.place, "this stays as it is"));
        }
    }
}

/// Whether a task has no way to be undone.
fn is_gap(task: &Task, options: &Options<'_>) -> bool {
    let leaves_nothing = |action: &str| ["none", "wait", "http"].contains(&action);
    let is_left = |action: &str| !can(options, action, Ability::Undo) && !leaves_nothing(action);
    task.undo.is_none() && uses(task).any(is_left)
}

fn repeats(task: &Task, options: &Options<'_>, found: &mut Vec<SourceDiagnostic>) {
    let id = &task.id.value;
    let retries = task.retries.filter(|retries| retries.value > 0);
    if let (Some(At { value: Repeat::Never, place }), Some(retries)) = (task.repeat, retries) {
        let message = format!(
            "task `{id}` says `repeat: never`, and is retried {} times when it fails",
            retries.value
        );
        let diagnostic = SourceDiagnostic::new(Code::NeverRepeated, place, message);
        found.push(diagnostic.hint("what can be retried can be repeated: say `safe` or `check`"));
    }
    let again = retries.or(task.retries_precheck.filter(|retries| retries.value > 0));
    if let (Some(delay), None) = (task.delay, again) {
        let message = format!("task `{id}` has a delay between attempts, but only one attempt");
        let diagnostic = SourceDiagnostic::new(Code::NeedlessSetting, delay.place, message);
        found.push(diagnostic.hint("add `retries`, or take the delay away"));
    }
    let mut actions = uses(task);
    let verifies = matches!((actions.next(), actions.next()), (Some(action), None)
        if can(options, action, Ability::Verify));
    let can_tell = has_checks(task) || verifies;
    if let (Some(At { value: true, place }), false) = (task.skip_when_done, can_tell) {
        let message =
            format!("task `{id}` is skipped when it is done, but nothing says when it is");
        let diagnostic = SourceDiagnostic::new(Code::NeedlessSetting, place, message);
        found.push(diagnostic.hint("add `check: {after: […]}`"));
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
pub(super) fn wishes(book: &Book, targets: &Targets, found: &mut Vec<SourceDiagnostic>) {
    let needs = book.tasks.iter().flat_map(|task| {
        let needs = task.needs.iter().flat_map(|list| &list.value);
        needs.map(move |need| (task, need))
    });
    for (task, need) in needs {
        let (Want::Count(want), NeedScope::Nodes(on)) = (need.want, &need.on) else { continue };
        let Some((role, tolerate, members)) = tolerant(book, targets, &on.value.bare_names())
        else {
            continue;
        };
        if want as usize > members.saturating_sub(tolerate as usize) {
            let message = format!(
                "`{}` wants {want} of `{}`, but {tolerate} of the {members} nodes of role \
                 `{role}` may fail",
                task.id.value, need.to
            );
            let diagnostic = SourceDiagnostic::new(Code::ToleranceDefeated, need.place, message);
            found.push(diagnostic.hint("want `all` instead: it leaves out those that failed"));
        }
    }
}

/// Barriers that wait for nodes which their role can do without.
fn strict_barriers(book: &Book, graph: &Graph, found: &mut Vec<SourceDiagnostic>) {
    for (barrier, at) in book.barriers.iter().zip(0..) {
        let Some(At { value: PassesWith::All, place }) = barrier.passes_with else { continue };
        let tasks = graph.links.iter().filter_map(|link| match (link.before, link.after) {
            (End::Task(task), End::Barrier(to)) if to == at => Some(&book.tasks[task as usize]),
            _ => None,
        });
        let role = tasks.flat_map(|task| task.on.iter()).find_map(|on| {
            let words = on.value.bare_names();
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
        let diagnostic = SourceDiagnostic::new(Code::ToleranceDefeated, place, message);
        found.push(diagnostic.hint("say `passes_with: tolerated`"));
    }
}

/// An undo stops at a step that cannot be undone.
fn undo_gaps(book: &Book, graph: &Graph, options: &Options<'_>, found: &mut Vec<SourceDiagnostic>) {
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
        let diagnostic = SourceDiagnostic::new(Code::UndoGap, undo.place, message);
        let diagnostic = diagnostic.hint(GIVE_UNDO);
        found.push(diagnostic.note(gap.id.place, "this has no `undo`"));
    }
}
