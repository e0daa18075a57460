//! A plan for people: its order, its limits, its expected duration, and the steps without a check
//! or an undo.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::plan::{Call, Step};
use hoist_engine::{Plan, StepId};

use super::counted;
use super::show::duration;

/// Nodes of a task that are named, not counted.
const NAMED_NODES: usize = 3;
/// Things of a line, and lines of a list, that are shown.
const SHOWN: usize = 12;
/// Limits of single nodes, which every plan has, begin with this.
const OF_NODE: &str = "node ";
/// Actions without an effect that could be checked.
const NOTHING_TO_SEE: [&str; 2] = ["none", "wait"];

/// The lines. `is_final` says of an action that it cannot take itself back.
pub(super) fn outline(plan: &Plan, is_final: impl Fn(&str) -> bool, all: bool) -> Vec<String> {
    let shown = if all { usize::MAX } else { SHOWN };
    let (levels, longest) = order(plan);
    let mut lines: Vec<String> = Vec::new();
    for (steps, level) in levels.iter().zip(1..).take(shown) {
        let mut tasks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for name in steps {
            let (task, node) = name.rsplit_once('@').unwrap_or((name, ""));
            tasks.entry(task).or_default().push(node);
        }
        let parts = tasks.iter().map(|(task, nodes)| match nodes[..] {
            [""] => (*task).to_owned(),
            _ if nodes.len() <= NAMED_NODES => format!("{task} on {}", nodes.join(", ")),
            _ => format!("{task} on {}", counted(nodes.len(), "node")),
        });
        lines.push(format!("level {level}: {}", joined(parts.collect(), "; ", shown)));
    }
    if levels.len() > shown {
        lines.push(format!(
            "… {} more; `-o wide` shows them",
            counted(levels.len() - shown, "level")
        ));
    }
    let limits = plan.draft().limits.iter().filter(|limit| !limit.name.starts_with(OF_NODE));
    for limit in limits.take(shown) {
        lines.push(format!("at most {} at once: {}", limit.slots, limit.name));
    }
    let tasks = |is_meant: &dyn Fn(&Step) -> bool| -> Vec<String> {
        let named = done(plan).filter(|(_, step)| is_meant(step));
        let tasks = named.map(|(name, _)| name.rsplit_once('@').map_or(name, |(task, _)| task));
        tasks.collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
    };
    for (window, at) in plan.draft().windows.iter().zip(0..) {
        let within = tasks(&|step| step.window == Some(at));
        if !within.is_empty() {
            lines.push(format!("only {}: {}", window.name, joined(within, ", ", shown)));
        }
    }
    if longest > 0 {
        let longest = duration(longest);
        lines.push(format!("earlier runs took {longest} for the longest way through it"));
    }
    let unseen = tasks(&|step| {
        step.after.is_empty() && !NOTHING_TO_SEE.contains(&step.call.action.as_str())
    });
    let lasting = tasks(&|step| step.undo.is_none() && actions(&step.call).any(&is_final));
    for (what, tasks) in [("no postcondition", unseen), ("no undo", lasting)] {
        if !tasks.is_empty() {
            lines.push(format!("{what}: {}", joined(tasks, ", ", shown)));
        }
    }
    lines
}

/// The steps that run, without skipped ones.
fn done(plan: &Plan) -> impl Iterator<Item = (&str, &Step)> {
    let steps = plan.ids().filter_map(|id| Some((plan.vertex(id).name.as_str(), plan.step(id)?)));
    steps.filter(|(_, step)| step.skip.is_none())
}

/// The actions of a call: its own, or those of its list.
fn actions(call: &Call) -> impl Iterator<Item = &str> {
    let list = call.input["steps"].as_array().filter(|_| call.action == "steps");
    let parts = list.into_iter().flatten().filter_map(|part| part["action"].as_str());
    parts.chain(list.is_none().then_some(call.action.as_str()))
}

fn joined(mut parts: Vec<String>, with: &str, most: usize) -> String {
    let more = parts.len().saturating_sub(most);
    parts.truncate(most);
    if more > 0 {
        parts.push(format!("… {more} more"));
    }
    parts.join(with)
}

/// The steps by level, where the steps of one level can run at the same time, and the length of the
/// critical path in milliseconds.
fn order(plan: &Plan) -> (Vec<Vec<&str>>, u64) {
    let mut behind = vec![0_usize; plan.len()];
    let mut takes = vec![0_u64; plan.len()];
    let mut levels: Vec<Vec<StepId>> = Vec::new();
    let at = |id: &StepId| id.0 as usize;
    for id in plan.order() {
        let before = || plan.vertex(*id).after.iter().map(at);
        let mut level = before().map(|at| behind[at]).max().unwrap_or(0);
        let mut ends = before().map(|at| takes[at]).max().unwrap_or(0);
        if let Some(step) = plan.step(*id).filter(|step| step.skip.is_none()) {
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].push(*id);
            level += 1;
            ends = ends.saturating_add(step.expected_ms.unwrap_or(0));
        }
        (behind[at(id)], takes[at(id)]) = (level, ends);
    }
    let names = |mut level: Vec<StepId>| {
        level.sort_unstable();
        level.into_iter().map(|id| plan.vertex(id).name.as_str()).collect()
    };
    (levels.into_iter().map(names).collect(), takes.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use hoist_engine::plan::{ConcurrencyLimit, Draft, Holder, Kind, Rule, Vertex, Window};
    use serde_json::json;

    use super::*;

    fn step(name: &str, after: &[u32], change: impl FnOnce(&mut Step)) -> Vertex {
        let call = Call { action: "shell".to_owned(), ..Call::default() };
        let mut step = Step { call, ..Step::default() };
        change(&mut step);
        let after = after.iter().copied().map(StepId).collect();
        Vertex { name: name.to_owned(), after, kind: Kind::Step(Box::new(step)) }
    }

    #[test]
    fn outline_orders_waiting_tasks_and_names_missing_ones() {
        let join = Vertex {
            name: "join".to_owned(),
            after: vec![StepId(0), StepId(1)],
            kind: Kind::Join(Rule::All),
        };
        let limit = |name: &str| ConcurrencyLimit {
            name: name.to_owned(),
            slots: 1,
            held_by: Holder::Step,
        };
        let window = |name: &str| Window { name: name.to_owned(), spans: vec![(0, 60)] };
        let draft = Draft {
            vertices: vec![
                step("a@n1", &[], |step| {
                    step.undo = Some(Call::default());
                    step.expected_ms = Some(2000);
                }),
                step("a@n2", &[], |step| step.skip = Some("done".to_owned())),
                join,
                step("b@n1", &[2], |step| {
                    step.after.push(Call::default());
                    step.call.action = "steps".to_owned();
                    step.call.input = json!({"steps": [{"action": "file"}, {"action": "shell"}]});
                    step.expected_ms = Some(3000);
                }),
                step("c@n2", &[1], |step| {
                    step.call.action = "none".to_owned();
                    step.window = Some(1);
                }),
                step("d@n2", &[1], |step| {
                    (step.window, step.skip) = (Some(0), Some("done".to_owned()));
                }),
            ],
            limits: vec![limit("node n1"), limit("role web")],
            windows: vec![window("Sun 01:00-02:00"), window("Sat 22:00-04:00")],
            ..Draft::default()
        };
        let plan = Plan::new(draft).unwrap();
        assert_eq!(
            outline(&plan, |action| action == "shell", false),
            [
                "level 1: a on n1; c on n2",
                "level 2: b on n1",
                "at most 1 at once: role web",
                "only Sat 22:00-04:00: c",
                "earlier runs took 5.0s for the longest way through it",
                "no postcondition: a",
                "no undo: b",
            ]
        );
    }

    #[test]
    fn much_is_counted_and_cut() {
        let count = u32::try_from(SHOWN).unwrap() + 3;
        let mut vertices: Vec<Vertex> = (0..count)
            .map(|at| {
                let after: Vec<u32> = at.checked_sub(1).into_iter().collect();
                step(&format!("t{at}@n"), &after, |_| {})
            })
            .collect();
        vertices.extend((0..5).map(|at| step(&format!("wide@n{at}"), &[], |_| {})));
        let plan = Plan::new(Draft { vertices, ..Draft::default() }).unwrap();
        let lines = outline(&plan, |_| false, false);
        assert_eq!(lines[0], "level 1: t0 on n; wide on 5 nodes");
        assert_eq!(lines[SHOWN], "… 3 levels more; `-o wide` shows them");
        assert!(lines[SHOWN + 1].ends_with("… 4 more"), "{lines:?}");
        assert_eq!(outline(&plan, |_| false, true).len(), SHOWN + 4);
    }
}
