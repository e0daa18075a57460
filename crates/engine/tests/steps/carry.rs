//! A new plan after an old run: finished steps are not repeated.

use hoist_engine::carry::carry_over;
use hoist_engine::plan::{AppliedAttempt, Draft, Kind, OnFailure, Rule, Step};
use hoist_engine::record::{End, Outcome};
use hoist_engine::run::StepEnd;
use hoist_engine::undo::{undo_plan, undo_started};
use hoist_engine::{Event, Plan, Record, Run, StepId};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::site::{Site, draft, join, step};

fn print(fingerprint: &str) -> Step {
    Step {
        fingerprint: Some(fingerprint.to_owned()),
        on_failure: OnFailure::Continue,
        ..Step::default()
    }
}

/// Three steps in sequence with a join between them, and an independent one.
fn plan(prints: [&str; 4]) -> Draft {
    let [a, b, c, d] = prints.map(print);
    draft(vec![step(&[], a), step(&[0], b), join(&[1], Rule::All), step(&[2], c), step(&[], d)])
}

fn old() -> Site {
    let mut site = Site::new(plan(["a", "b", "c", "d"]));
    for at in [0, 1, 3] {
        site.end(at);
    }
    site.fail(4, "no");
    site
}

fn carried(old: &Site, new: &Plan) -> Vec<u32> {
    carried_but(old, new, &BTreeSet::new())
}

fn carried_but(old: &Site, new: &Plan, undone: &BTreeSet<String>) -> Vec<u32> {
    let records = carry_over(&old.run, "old", new, undone, 5);
    let step = |record: &Record| match record {
        Record::Carried { step, .. } => step.0,
        other => panic!("{other:?}"),
    };
    records.iter().map(step).collect()
}

#[test]
fn unchanged_finished_steps_are_carried_over() {
    let plan = Arc::new(Plan::new(plan(["a", "b", "c", "d"])).unwrap());
    let old = old();
    assert_eq!(carried(&old, &plan), [0, 1, 3], "not the failed step");
    let mut journal = vec![Record::Plan { hash: plan.hash().to_owned(), at: 5 }];
    journal.extend(carry_over(&old.run, "old", &plan, &BTreeSet::new(), 5));
    let run = Run::replay(&plan, &journal).unwrap();
    let mut site = Site { run, journal, effects: Vec::new(), now: 6 };
    site.on(Event::Tick);
    assert_eq!(site.running(), [4]);
    assert_eq!(site.ended(StepEnd::Ok), [0, 1, 2, 3]);
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    assert!(site.run.was_begun(StepId(0)), "it can be undone");
}

#[test]
fn step_carried_over_twice_is_undone_with_all_attempts() {
    let mut draft = plan(["a", "b", "c", "d"]);
    if let Kind::Step(step) = &mut draft.vertices[0].kind {
        step.retries = 1;
    }
    let mut old = Site::new(draft.clone());
    old.fail(0, "no");
    old.tick(old.now);
    old.ran(0, End::Done { changed: true, receipt: json!("x") });
    old.on(Event::Stop { now: false, by: "me".to_owned() });
    let plan = Arc::new(Plan::new(draft).unwrap());
    let mut run = old.run;
    for name in ["first", "second"] {
        let mut journal = vec![Record::Plan { hash: plan.hash().to_owned(), at: 5 }];
        journal.extend(carry_over(&run, name, &plan, &BTreeSet::new(), 5));
        journal.push(Record::Stop { now: false, by: "me".to_owned(), at: 5 });
        journal.push(Record::Finished { outcome: Outcome::Stopped, at: 5 });
        run = Run::replay(&plan, &journal).unwrap();
        // Through JSON, as in a snapshot.
        run = Run::restore(&plan, run.snapshot()).unwrap();
    }
    let back = undo_plan(&run, "third", |_| true, |_| None).unwrap().draft;
    let Kind::Step(step) = &back.vertices[0].kind else { panic!("a step") };
    let made = |attempt: u32, receipt| AppliedAttempt {
        attempt: format!("first/0/{attempt}"),
        receipt,
        ..AppliedAttempt::default()
    };
    assert_eq!(step.call.undoes, Some(vec![made(2, json!("x")), made(1, Value::Null)]));
}

#[test]
fn step_after_a_repeated_step_is_stale() {
    let changed = Plan::new(plan(["a", "other", "c", "d"])).unwrap();
    assert_eq!(carried(&old(), &changed), [0]);
    let mut knows = plan(["a", "other", "c", "d"]);
    if let Kind::Step(step) = &mut knows.vertices[3].kind {
        step.knows_inputs = true;
    }
    let knows = Plan::new(knows).unwrap();
    assert_eq!(carried(&old(), &knows), [0, 3], "unless it knows that nothing changed for it");
}

#[test]
fn step_without_a_fingerprint_is_always_repeated() {
    let mut without = plan(["a", "b", "c", "d"]);
    if let Kind::Step(step) = &mut without.vertices[0].kind {
        step.fingerprint = None;
    }
    assert_eq!(carried(&old(), &Plan::new(without).unwrap()), [] as [u32; 0]);
}

#[test]
fn undone_steps_are_not_carried_over() {
    let plan = Plan::new(plan(["a", "b", "c", "d"])).unwrap();
    let old = old();
    let mut undo_run = Site::new(undo_plan(&old.run, "old", |_| true, |_| None).unwrap().draft);
    let begun = |site: &Site| carried_but(&old, &plan, &undo_started(&site.run));
    // The last of three is undone, together with the failed step beside it.
    assert_eq!(begun(&undo_run), [0, 1]);
    for at in undo_run.running() {
        undo_run.end(at);
    }
    assert_eq!(begun(&undo_run), [0]);
    undo_run.fail(undo_run.running()[0], "no");
    assert_eq!(begun(&undo_run), [0], "although its changes are unknown");
}
