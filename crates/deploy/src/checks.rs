//! Plans that change nothing: only the postconditions of another plan's steps, or also their
//! preconditions. Such a plan tells whether the state still holds, or where a plan would start.

use std::collections::BTreeMap;

use hoist_engine::plan::{Call, Draft, Holder, Kind, OnFailure, Repeat, Step, StepId, Vertex};
use serde_json::{Value, json};

/// The plan of the checks, and the steps without any.
#[derive(Debug, Clone, PartialEq)]
pub struct Checks {
    pub draft: Draft,
    /// Names of steps without a check, whose state cannot be told.
    pub unchecked: Vec<String>,
}

/// The postconditions of the selected steps. Each is probed once and independently: dependencies of
/// the plan are dropped, and a failed check does not prevent the others.
pub fn checks_only(draft: &Draft, is_meant: impl Fn(StepId) -> bool) -> Checks {
    looks(draft, is_meant, |name, step| {
        let after = calls(&step.after);
        if after.is_empty() { Vec::new() } else { vec![(name.to_owned(), after)] }
    })
}

/// Every check of the steps that are meant, before and after them, each by itself: `NAME before 1`.
pub fn every_check(draft: &Draft, is_meant: impl Fn(StepId) -> bool) -> Checks {
    looks(draft, is_meant, |name, step| {
        let mut all = Vec::new();
        for (when, checks) in [("before", &step.before), ("after", &step.after)] {
            for (call, number) in calls(checks).into_iter().zip(1..) {
                all.push((format!("{name} {when} {number}"), vec![call]));
            }
        }
        all
    })
}

/// Which check of which instance one of [`every_check`] is, by its name.
pub fn which_check(name: &str) -> Option<(&str, &str, u32)> {
    let mut parts = name.rsplitn(3, ' ');
    let number = parts.next()?;
    let when = parts.next()?;
    let name = parts.next()?;
    Some((name, when, number.parse().ok()?))
}

fn calls(checks: &[Call]) -> Vec<Call> {
    checks.iter().filter(|call| call.action != "none").map(once).collect()
}

/// The checks of each selected step, by name.
fn looks(
    draft: &Draft,
    is_meant: impl Fn(StepId) -> bool,
    of: impl Fn(&str, &Step) -> Vec<(String, Vec<Call>)>,
) -> Checks {
    let mut unchecked = Vec::new();
    let mut vertices = Vec::new();
    // Limits on concurrency stay; limits of a gradual rollout are dropped.
    let mut limits = Vec::new();
    let mut places = BTreeMap::new();
    for (at, limit) in (0_u32..).zip(&draft.limits) {
        if limit.held_by == Holder::Step {
            places.insert(at, u32::try_from(limits.len()).expect("plans are bounded"));
            limits.push(limit.clone());
        }
    }
    for (at, vertex) in (0..).zip(&draft.vertices) {
        let Kind::Step(step) = &vertex.kind else { continue };
        if !is_meant(StepId(at)) {
            continue;
        }
        let looks = of(&vertex.name, step);
        if looks.is_empty() {
            unchecked.push(vertex.name.clone());
        }
        for (name, after) in looks {
            let step = Step {
                call: Call { action: "none".to_owned(), input: json!({}), ..Call::default() },
                after,
                subject: step.subject,
                limits: step.limits.iter().filter_map(|limit| places.get(limit).copied()).collect(),
                timeout_ms: step.timeout_ms,
                may_use: step.may_use.clone(),
                repeat: Repeat::Safe,
                on_failure: OnFailure::Continue,
                ..Step::default()
            };
            let kind = Kind::Step(Box::new(step));
            vertices.push(Vertex { name, after: Vec::new(), kind });
        }
    }
    let draft = Draft { vertices, subjects: draft.subjects.clone(), limits, ..Draft::default() };
    Checks { draft, unchecked }
}

/// Without the time that a check may take to hold after a change.
fn once(call: &Call) -> Call {
    let mut call = call.clone();
    if let Value::Object(input) = &mut call.input {
        input.shift_remove("poll");
    }
    call
}

#[cfg(test)]
mod tests {
    use hoist_engine::plan::{ConcurrencyLimit, FailureDomain, Plan};

    use super::*;

    fn call(action: &str, input: Value) -> Call {
        Call { action: action.to_owned(), input, ..Call::default() }
    }

    fn vertex(name: &str, after: &[u32], step: Step) -> Vertex {
        let after = after.iter().copied().map(StepId).collect();
        Vertex { name: name.to_owned(), after, kind: Kind::Step(Box::new(step)) }
    }

    fn draft() -> Draft {
        let poll = json!({"command": "true", "says": "up", "poll": {"for_ms": 1000}});
        let checked = Step {
            call: call("shell", json!({"command": "rm -rf data"})),
            before: vec![call("shell", json!({"command": "false"}))],
            after: vec![call("shell", poll)],
            subject: Some(0),
            failure_domain: Some(0),
            limits: vec![0, 1],
            retries: 3,
            undo: Some(call("shell", json!({"command": "true"}))),
            fingerprint: Some("abc".to_owned()),
            skip: Some("unchanged inputs".to_owned()),
            ..Step::default()
        };
        let nothing = Step { after: vec![call("none", json!({}))], ..checked.clone() };
        let limit =
            |name: &str, held_by| ConcurrencyLimit { name: name.to_owned(), slots: 1, held_by };
        Draft {
            vertices: vec![
                vertex("a@n1", &[], checked.clone()),
                vertex("b@n1", &[0], nothing),
                Vertex {
                    name: "done".to_owned(),
                    after: vec![StepId(1)],
                    kind: Kind::Join(hoist_engine::plan::Rule::All),
                },
                vertex("c@n1", &[2], checked),
            ],
            subjects: vec!["n1".to_owned()],
            failure_domains: vec![FailureDomain {
                name: "db".to_owned(),
                tolerate: 0,
                ..FailureDomain::default()
            }],
            limits: vec![limit("role", Holder::Subject), limit("node", Holder::Step)],
            breaker: Some(1),
            ..Draft::default()
        }
    }

    #[test]
    fn check_plan_neither_changes_nor_waits() {
        let Checks { draft, unchecked } = checks_only(&draft(), |_| true);
        assert_eq!(unchecked, ["b@n1"]);
        let names: Vec<&str> = draft.vertices.iter().map(|vertex| vertex.name.as_str()).collect();
        assert_eq!(names, ["a@n1", "c@n1"]);
        for vertex in &draft.vertices {
            let Kind::Step(step) = &vertex.kind else { panic!("only steps are left") };
            assert!(vertex.after.is_empty() && step.before.is_empty() && step.undo.is_none());
            assert_eq!((step.call.action.as_str(), step.retries), ("none", 0));
            assert_eq!(
                (step.skip.as_ref(), step.fingerprint.as_ref(), step.failure_domain),
                (None, None, None)
            );
            assert_eq!(step.after[0].input, json!({"command": "true", "says": "up"}));
            assert_eq!(step.limits, [0]);
        }
        assert_eq!(
            (draft.limits.len(), draft.limits[0].name.as_str(), draft.breaker),
            (1, "node", None)
        );
        Plan::new(draft).expect("it can be run");
    }

    #[test]
    fn check_plan_runs_every_check_by_itself() {
        let Checks { draft, unchecked } = every_check(&draft(), |id| id != StepId(3));
        let names: Vec<&str> = draft.vertices.iter().map(|vertex| vertex.name.as_str()).collect();
        assert_eq!(names, ["a@n1 before 1", "a@n1 after 1", "b@n1 before 1"]);
        assert_eq!(unchecked, [] as [&str; 0]);
        for vertex in &draft.vertices {
            let Kind::Step(step) = &vertex.kind else { panic!("only steps are left") };
            assert_eq!((step.call.action.as_str(), step.after.len()), ("none", 1));
            assert!(vertex.after.is_empty() && step.before.is_empty() && step.undo.is_none());
        }
        Plan::new(draft).expect("it can be run");
        assert_eq!(which_check("a@n1 before 12"), Some(("a@n1", "before", 12)));
        assert_eq!(which_check("pause of web after 1"), Some(("pause of web", "after", 1)));
        assert_eq!((which_check("a@n1"), which_check("a b c")), (None, None));
    }

    #[test]
    fn check_plan_has_selected_tasks_only() {
        let Checks { draft, unchecked } = checks_only(&draft(), |id| id == StepId(3));
        assert_eq!((draft.vertices.len(), unchecked.len()), (1, 0));
    }
}
