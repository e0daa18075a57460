//! Limits that would let nodes wait for each other for ever are found before anything runs.

use std::fmt::Write as _;
use std::sync::Arc;

use hoist_deploy::compile::{Options, compile};
use hoist_deploy::target::TargetSite;
use hoist_engine::plan::Draft;
use hoist_engine::record::{End, Outcome};
use hoist_engine::{Effect, Event, Plan, Record, Run};
use proptest::prelude::*;
use serde_json::Value;

use crate::{read, site, told};

/// Runs a draft where every started step succeeds, in an order that `seed` decides. Returns the
/// refusals and the outcome.
fn run_through(draft: Draft, mut seed: u64) -> (Vec<String>, Option<Outcome>) {
    let mut run = Run::new(Arc::new(Plan::new(draft).expect("a plan")));
    let mut events = vec![Event::Tick];
    let mut refused = Vec::new();
    while !events.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let chance = usize::try_from(seed >> 33).expect("31 bits");
        let event = events.swap_remove(chance % events.len());
        let decision = run.on(event, 1);
        for record in decision.records {
            if let Record::Refused { check, .. } = record {
                refused.push(check.output);
            }
        }
        for effect in decision.effects {
            events.push(match effect {
                Effect::Start { step, attempt } => {
                    let end = End::Done { changed: true, receipt: Value::Null };
                    Event::Ran { step, attempt, end }
                }
                Effect::Verify { step, attempt } => Event::Verified { step, attempt, failed: None },
                other => panic!("nothing else is asked for: {other:?}"),
            });
        }
    }
    (refused, run.outcome())
}

const WAITS: &str = "
hoist: 1
roles:
  web: {rollout: {at_once: 1}}
tasks:
  install: {on: web, run: none}
  bootstrap: {on: first(web), run: none, needs: [{task: install, on: web}]}
";

fn three() -> TargetSite {
    let web: &[&str] = &["web"];
    site(&[("n1", web), ("n2", web), ("n3", web)])
}

#[test]
fn node_that_holds_the_only_slot_and_waits_is_found() {
    let said = told(WAITS, &three());
    let [one] = &said[..] else { panic!("{said:?}") };
    assert!(
        one.starts_with(
            "tasks.yaml:4:28: E203 role `web` could never finish: 1 of its 3 nodes are worked on \
             at once, and n1 keeps its slot while `bootstrap@n1` waits for `install@n2`, which \
             needs one too; raise the limit"
        ),
        "{one}"
    );
    assert!(one.ends_with("(this waits: tasks.yaml:7:3)"), "{one}");
}

#[test]
fn deadlock_ends_with_one_more_slot_or_a_smaller_wait() {
    for (was, is) in [("at_once: 1", "at_once: 2"), ("on: web}]", "on: web, want: any}]")] {
        let text = WAITS.replace(was, is);
        assert_eq!(told(&text, &three()), [] as [String; 0], "{is}");
    }
}

const TARGETS: [&str; 6] =
    ["r", "q", "\"*\"", "first(r)", "r and not first(r)", "q and not first(q)"];
const WANTS: [&str; 4] = ["all", "any", "most", "2"];

#[derive(Debug, Clone)]
struct TaskLike {
    on: usize,
    /// Earlier tasks on the same node.
    requires: Vec<proptest::sample::Index>,
    /// Earlier tasks elsewhere: which, where, and how many.
    needs: Vec<(proptest::sample::Index, usize, usize)>,
}

fn tasks() -> impl Strategy<Value = Vec<TaskLike>> {
    let any = any::<proptest::sample::Index>;
    let requires = proptest::collection::vec(any(), 0..2);
    let need = (any(), 0..TARGETS.len(), 0..WANTS.len());
    let needs = proptest::collection::vec(need, 0..2);
    let task = (0..TARGETS.len(), requires, needs);
    let task = task.prop_map(|(on, requires, needs)| TaskLike { on, requires, needs });
    proptest::collection::vec(task, 2..6)
}

fn file(roles: [(u32, u32); 2], tasks: &[TaskLike]) -> String {
    let mut text = "hoist: 1\nroles:\n".to_owned();
    for (name, (at_once, canary)) in ["r", "q"].into_iter().zip(roles) {
        let canary = if canary == 0 { ", canary: 1" } else { "" };
        writeln!(text, "  {name}: {{rollout: {{at_once: {at_once}{canary}}}}}").expect("memory");
    }
    text.push_str("tasks:\n");
    for (at, task) in tasks.iter().enumerate() {
        let earlier = |index: &proptest::sample::Index| format!("t{}", index.index(at));
        let mut more = String::new();
        if at > 0 {
            let requires: Vec<String> = task
                .requires
                .iter()
                .map(|index| format!("{{task: {}, optional: true}}", earlier(index)))
                .collect();
            let needs: Vec<String> = task
                .needs
                .iter()
                .map(|(index, on, want)| {
                    let on = TARGETS[*on];
                    let want = WANTS[*want];
                    format!("{{task: {}, on: {on}, want: {want}, optional: true}}", earlier(index))
                })
                .collect();
            write!(more, ", requires: [{}], needs: [{}]", requires.join(", "), needs.join(", "))
                .expect("memory");
        }
        writeln!(text, "  t{at}: {{on: {}, run: none{more}}}", TARGETS[task.on]).expect("memory");
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn compiled_plans_run_to_their_end(
        roles in [(1..4_u32, 0..4_u32), (1..4_u32, 0..4_u32)],
        tasks in tasks(),
        members in proptest::collection::vec(0..3_usize, 2..6),
        seed: u64,
    ) {
        let text = file(roles, &tasks);
        let names: Vec<String> = (1..=members.len()).map(|at| format!("n{at}")).collect();
        let groups: [&[&str]; 3] = [&["r"], &["q"], &["r", "q"]];
        let nodes: Vec<(&str, &[&str])> =
            names.iter().zip(&members).map(|(name, at)| (name.as_str(), groups[*at])).collect();
        let (book, _, found) = read(&text);
        prop_assert_eq!(found, Vec::<String>::new(), "{}", text);
        if let Ok(made) = compile(&book, &site(&nodes), &Options::default()) {
            let (refused, outcome) = run_through(made.draft, seed);
            prop_assert_eq!(refused, Vec::<String>::new(), "{} on {:?}", &text, &nodes);
            // A number of nodes that there are not is waited for in vain, which is another matter.
            let is_done = matches!(outcome, Some(Outcome::Succeeded | Outcome::Failed));
            prop_assert!(is_done, "{:?}: {} on {:?}", outcome, text, nodes);
        }
    }
}
