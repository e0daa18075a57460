//! A new plan after an old run: what is done already is not done again.

use hoist_engine::carry::carry_over;
use hoist_engine::plan::{Draft, Kind, Made, OnFailure, Rule, Step};
use hoist_engine::record::{End, Outcome};
use hoist_engine::run::Ended;
use hoist_engine::undo::{taken_back, undo_plan};
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

/// Three after each other, with a join between, and one beside them.
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

fn carried_but(old: &Site, new: &Plan, taken_back: &BTreeSet<String>) -> Vec<u32> {
    let records = carry_over(&old.run, "old", new, taken_back, 5);
    let step = |record: &Record| match record {
        Record::Carried { step, .. } => step.0,
        other => panic!("{other:?}"),
    };
    records.iter().map(step).collect()
}

#[test]
fn what_is_the_same_and_done_is_carried_over_and_the_rest_runs() {
    let plan = Arc::new(Plan::new(plan(["a", "b", "c", "d"])).unwrap());
    let old = old();
    assert_eq!(carried(&old, &plan), [0, 1, 3], "not what failed");
    let mut journal = vec![Record::Plan { hash: plan.hash().to_owned(), at: 5 }];
    journal.extend(carry_over(&old.run, "old", &plan, &BTreeSet::new(), 5));
    let run = Run::replay(&plan, &journal).unwrap();
    let mut site = Site { run, journal, effects: Vec::new(), now: 6 };
    site.on(Event::Tick);
    assert_eq!(site.running(), [4]);
    assert_eq!(site.ended(Ended::Ok), [0, 1, 2, 3]);
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    assert!(site.run.was_begun(StepId(0)), "it can be taken back");
}

#[test]
fn what_was_carried_over_twice_is_taken_back_with_all_of_its_attempts() {
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
        // As it is kept beside the journal.
        run = Run::restore(&plan, run.snapshot()).unwrap();
    }
    let back = undo_plan(&run, "third", |_| true, |_| None).unwrap().draft;
    let Kind::Step(step) = &back.vertices[0].kind else { panic!("a step") };
    let made = |attempt: u32, receipt| Made {
        attempt: format!("first/0/{attempt}"),
        receipt,
        ..Made::default()
    };
    assert_eq!(step.call.undoes, Some(vec![made(2, json!("x")), made(1, Value::Null)]));
}

#[test]
fn what_comes_after_something_that_is_done_anew_is_stale() {
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
fn a_step_without_a_fingerprint_is_always_done_anew() {
    let mut without = plan(["a", "b", "c", "d"]);
    if let Kind::Step(step) = &mut without.vertices[0].kind {
        step.fingerprint = None;
    }
    assert_eq!(carried(&old(), &Plan::new(without).unwrap()), [] as [u32; 0]);
}

#[test]
fn what_was_taken_back_since_is_done_anew() {
    let plan = Plan::new(plan(["a", "b", "c", "d"])).unwrap();
    let old = old();
    let mut way_back = Site::new(undo_plan(&old.run, "old", |_| true, |_| None).unwrap().draft);
    let begun = |site: &Site| carried_but(&old, &plan, &taken_back(&site.run));
    // The last of three is taken back at once, and what failed beside it.
    assert_eq!(begun(&way_back), [0, 1]);
    for at in way_back.running() {
        way_back.end(at);
    }
    assert_eq!(begun(&way_back), [0]);
    way_back.fail(way_back.running()[0], "no");
    assert_eq!(begun(&way_back), [0], "though nobody knows what is left of it");
}
