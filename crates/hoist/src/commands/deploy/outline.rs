//! A plan for people: in which order things are done, within which limits, how long that may take,
//! and what nobody looks at or can take back.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::StepId;
use hoist_engine::plan::{Call, Draft, Kind, Step};

use super::counted;
use super::show::duration;

/// Nodes of a task that are named, not counted.
const NAMED_NODES: usize = 3;
/// Things of a line, and lines of a list, that are shown.
const SHOWN: usize = 12;
/// Limits of single nodes, which every plan has, begin with this.
const OF_NODE: &str = "node ";
/// What they do cannot be looked at.
const NOTHING_TO_SEE: [&str; 2] = ["none", "wait"];

/// The lines. `is_final` says of an action that it cannot take itself back.
pub(super) fn outline(draft: &Draft, is_final: impl Fn(&str) -> bool, all: bool) -> Vec<String> {
    let shown = if all { usize::MAX } else { SHOWN };
    let (levels, longest) = order(draft);
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
    let limits = draft.pools.iter().filter(|pool| !pool.name.starts_with(OF_NODE));
    for limit in limits.take(shown) {
        lines.push(format!("at most {} at once: {}", limit.places, limit.name));
    }
    if longest > 0 {
        let longest = duration(longest);
        lines.push(format!("earlier runs took {longest} for the longest way through it"));
    }
    let tasks = |is_meant: &dyn Fn(&Step) -> bool| -> Vec<String> {
        let named = done(draft).filter(|(_, step)| is_meant(step));
        let tasks = named.map(|(name, _)| name.rsplit_once('@').map_or(name, |(task, _)| task));
        tasks.collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
    };
    let unseen = tasks(&|step| {
        step.after.is_empty() && !NOTHING_TO_SEE.contains(&step.call.action.as_str())
    });
    let lasting = tasks(&|step| step.undo.is_none() && actions(&step.call).any(&is_final));
    for (what, tasks) in [("no check after it", unseen), ("no way back", lasting)] {
        if !tasks.is_empty() {
            lines.push(format!("{what}: {}", joined(tasks, ", ", shown)));
        }
    }
    lines
}

/// What is done, without what is skipped.
fn done(draft: &Draft) -> impl Iterator<Item = (&str, &Step)> {
    draft.vertices.iter().filter_map(|vertex| match &vertex.kind {
        Kind::Step(step) if step.skip.is_none() => Some((vertex.name.as_str(), &**step)),
        _ => None,
    })
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

/// What can be done at the same time, as if nothing else held it back, and how long the longest way
/// takes, in milliseconds.
fn order(draft: &Draft) -> (Vec<Vec<&str>>, u64) {
    let count = draft.vertices.len();
    let at = |id: &StepId| id.0 as usize;
    let mut open: Vec<usize> = draft.vertices.iter().map(|vertex| vertex.after.len()).collect();
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (vertex, of) in draft.vertices.iter().zip(0..) {
        vertex.after.iter().for_each(|before| next[at(before)].push(of));
    }
    let mut ready: Vec<usize> = (0..count).filter(|at| open[*at] == 0).collect();
    let (mut level, mut takes) = (vec![0_usize; count], vec![0_u64; count]);
    let (mut levels, mut longest): (Vec<Vec<usize>>, u64) = (Vec::new(), 0);
    while let Some(at) = ready.pop() {
        let mut behind = level[at];
        if let Kind::Step(step) = &draft.vertices[at].kind
            && step.skip.is_none()
        {
            if levels.len() <= behind {
                levels.resize_with(behind + 1, Vec::new);
            }
            levels[behind].push(at);
            behind += 1;
            takes[at] = takes[at].saturating_add(step.expected_ms.unwrap_or(0));
        }
        longest = longest.max(takes[at]);
        for next in &next[at] {
            level[*next] = level[*next].max(behind);
            takes[*next] = takes[*next].max(takes[at]);
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    let names = |mut level: Vec<usize>| {
        level.sort_unstable();
        level.into_iter().map(|at| draft.vertices[at].name.as_str()).collect()
    };
    (levels.into_iter().map(names).collect(), longest)
}

#[cfg(test)]
mod tests {
    use hoist_engine::plan::{Holder, Pool, Rule, Vertex};
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
    fn what_waits_comes_later_and_what_is_missing_is_named() {
        let join = Vertex {
            name: "join".to_owned(),
            after: vec![StepId(0), StepId(1)],
            kind: Kind::Join(Rule::All),
        };
        let pool = |name: &str| Pool { name: name.to_owned(), places: 1, held_by: Holder::Step };
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
                step("c@n2", &[1], |step| step.call.action = "none".to_owned()),
            ],
            pools: vec![pool("node n1"), pool("role web")],
            ..Draft::default()
        };
        assert_eq!(
            outline(&draft, |action| action == "shell", false),
            [
                "level 1: a on n1; c on n2",
                "level 2: b on n1",
                "at most 1 at once: role web",
                "earlier runs took 5.0s for the longest way through it",
                "no check after it: a",
                "no way back: b",
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
        let draft = Draft { vertices, ..Draft::default() };
        let lines = outline(&draft, |_| false, false);
        assert_eq!(lines[0], "level 1: t0 on n; wide on 5 nodes");
        assert_eq!(lines[SHOWN], "… 3 levels more; `-o wide` shows them");
        assert!(lines[SHOWN + 1].ends_with("… 4 more"), "{lines:?}");
        assert_eq!(outline(&draft, |_| false, true).len(), SHOWN + 4);
    }
}
