//! The way back.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::plan::{
    Call, Cohort, Draft, Holder, Kind, Made, OnFailure, Repeat, Reversibility, Rule, Step, Vertex,
};
use hoist_engine::record::{End, FailureKind, Outcome};
use hoist_engine::run::{Ended, Found};
use hoist_engine::undo::{
    Gap, GapKind, UndoDraft, UndoError, fallen, settle, taken_back, undo_plan, undone,
};
use hoist_engine::{Event, Plan, Record, StepId};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::site::{Site, draft, join, me, on, pool, step};

/// Everything that is started ends at once; steps in `failing` fail.
fn run_through(site: &mut Site, failing: &BTreeSet<u32>) {
    while let Some(next) = site.running().first().copied() {
        let end = if failing.contains(&next) {
            End::Failed { kind: FailureKind::Exit, reason: "no".to_owned() }
        } else {
            End::Done { changed: true, receipt: json!({ "was": next }) }
        };
        site.ran(next, end);
    }
}

fn back(site: &Site) -> UndoDraft {
    undo_plan(&site.run, "r", |_| true, |_| None).expect("something was done")
}

/// Which vertices come before which, over any number of others.
fn before(vertices: &[Vertex]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); vertices.len()];
    // As often as there are vertices, and it is settled whatever their order.
    for _ in 0..vertices.len() {
        for (at, vertex) in vertices.iter().enumerate() {
            for id in vertex.after.iter().map(|id| id.0 as usize) {
                let further = all[id].clone();
                all[at].insert(id);
                all[at].extend(further);
            }
        }
    }
    all
}

fn vertices() -> impl Strategy<Value = Vec<Vertex>> {
    let one = (proptest::collection::vec(any::<proptest::sample::Index>(), 0..4), 0..6_u8);
    proptest::collection::vec(one, 1..14).prop_map(|all| {
        let vertex = |(at, (after, kind)): (usize, (Vec<proptest::sample::Index>, u8))| {
            let after: BTreeSet<usize> =
                after.iter().filter(|_| at > 0).map(|index| index.index(at)).collect();
            let after: Vec<u32> =
                after.into_iter().map(|at| u32::try_from(at).expect("few")).collect();
            let like = Step { on_failure: OnFailure::Continue, ..Step::default() };
            match kind {
                0 => join(&after, Rule::All),
                1 => join(&after, Rule::AnyEnd),
                2 => step(&after, Step { skip: Some("no".to_owned()), ..like }),
                _ => step(&after, like),
            }
        };
        all.into_iter().enumerate().map(vertex).collect()
    })
}

proptest! {
    #[test]
    fn the_way_back_is_the_way_turned_around(
        vertices in vertices(), failing in proptest::collection::btree_set(0..14_u32, 0..3),
    ) {
        let mut site = Site::new(draft(vertices));
        run_through(&mut site, &failing);
        let begun: Vec<StepId> =
            site.run.plan().ids().filter(|id| site.run.was_begun(*id)).collect();
        let found = match undo_plan(&site.run, "r", |_| true, |_| None) {
            Ok(found) => found,
            Err(error) => {
                prop_assert_eq!(error, UndoError::Nothing);
                prop_assert!(begun.is_empty());
                return Ok(());
            }
        };
        prop_assert_eq!(&found.gaps, &Vec::<Gap>::new());
        let at: BTreeMap<StepId, usize> =
            found.of.iter().enumerate().filter_map(|(at, of)| Some(((*of)?, at))).collect();
        prop_assert_eq!(at.keys().copied().collect::<Vec<_>>(), begun, "each once");
        let (there, back) = (before(&site.run.plan().draft().vertices), before(&found.draft.vertices));
        for (first, first_back) in &at {
            for (second, second_back) in &at {
                prop_assert_eq!(
                    there[second.0 as usize].contains(&(first.0 as usize)),
                    back[*first_back].contains(second_back),
                    "{} and {}", first, second
                );
            }
        }
        let edges = |vertices: &[Vertex]| vertices.iter().map(|one| one.after.len()).sum::<usize>();
        prop_assert!(edges(&found.draft.vertices) <= edges(&site.run.plan().draft().vertices));
        let mut way_back = Site::new(found.draft);
        run_through(&mut way_back, &BTreeSet::new());
        prop_assert_eq!(way_back.run.outcome(), Some(Outcome::Succeeded));
    }
}

fn named(found: &UndoDraft) -> Vec<&str> {
    found.draft.vertices.iter().map(|vertex| vertex.name.as_str()).collect()
}

#[test]
fn a_step_is_taken_back_by_its_own_call_or_with_its_receipt() {
    let call = |action: &str| Call { action: action.to_owned(), ..Call::default() };
    let own = Step { undo: Some(call("remove")), repeat: Repeat::Safe, ..Step::default() };
    let vertices = vec![step(&[], own), step(&[0], Step::default())];
    let mut site = Site::new(draft(vertices));
    run_through(&mut site, &BTreeSet::new());
    let found = back(&site);
    assert_eq!(named(&found), ["undo s1", "undo s0"]);
    let steps: Vec<&Step> = found
        .draft
        .vertices
        .iter()
        .map(|vertex| match &vertex.kind {
            Kind::Step(step) => &**step,
            Kind::Join(_) => panic!("no join is needed"),
        })
        .collect();
    let made =
        Made { attempt: "r/1/1".to_owned(), receipt: json!({ "was": 1 }), ..Made::default() };
    assert_eq!(steps[0].call.undoes, Some(vec![made]));
    assert_eq!(steps[0].repeat, Repeat::Safe);
    assert_eq!((&steps[1].call, steps[1].repeat), (&call("remove"), Repeat::Safe));
}

fn made(attempt: u32, receipt: Value) -> Made {
    Made { attempt: format!("r/0/{attempt}"), receipt, ..Made::default() }
}

/// What the only step of a way back takes back, after it was kept.
fn undoes(site: &Site) -> Vec<Made> {
    let text = serde_json::to_string(&back(site).draft).expect("plain values");
    let draft: Draft = serde_json::from_str(&text).expect("a draft");
    let plan = Plan::new(draft).expect("a plan");
    plan.step(StepId(0)).expect("a step").call.undoes.clone().expect("and never done")
}

#[test]
fn all_attempts_that_may_have_left_something_are_taken_back_the_last_one_first() {
    let after = vec![Call::default()];
    let again = Step { retries: 2, after, repeat: Repeat::Safe, ..Step::default() };
    let mut site = Site::new(draft(vec![step(&[], again)]));
    let verified = |site: &mut Site, attempt, holds| {
        let (step, reason) = (StepId(0), String::new());
        site.on(Event::Verified { step, attempt, holds, reason });
        site.tick(site.now);
    };
    site.fail(0, "no");
    site.tick(site.now);
    site.ran(0, End::Done { changed: true, receipt: json!(2) });
    verified(&mut site, 2, false);
    // It is nobody's, then somebody's who has nothing to do.
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 3, found: Found::Gone });
    site.ran(0, End::Done { changed: false, receipt: json!(4) });
    verified(&mut site, 4, true);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    let all = [made(3, Value::Null), made(2, json!(2)), made(1, Value::Null)];
    assert_eq!(undoes(&site), all);
}

#[test]
fn an_attempt_that_was_interrupted_is_taken_back_with_the_one_after_it() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    site.on(Event::Stop { now: true, by: "me".to_owned() });
    site.ran(0, End::Interrupted);
    assert_eq!(undoes(&site), [made(1, Value::Null)]);
    site.on(Event::Resume { by: "me".to_owned() });
    site.ran(0, End::Done { changed: true, receipt: json!("x") });
    assert_eq!(undoes(&site), [made(2, json!("x")), made(1, Value::Null)]);
}

#[test]
fn an_attempt_that_was_never_begun_has_left_nothing() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    site.ran(0, End::NotBegun { reason: Some("nobody came for it".to_owned()) });
    assert_eq!(site.ended(Ended::Failed(FailureKind::Internal)), [0]);
    site.on(Event::Resume { by: "me".to_owned() });
    site.on(Event::Stop { now: true, by: "me".to_owned() });
    site.ran(0, End::NotBegun { reason: None });
    assert_eq!(site.ended(Ended::Interrupted), [0]);
    assert_eq!(undo_plan(&site.run, "r", |_| true, |_| None), Err(UndoError::Nothing));
    site.on(Event::Resume { by: "me".to_owned() });
    site.ran(0, End::Done { changed: true, receipt: json!("x") });
    assert_eq!(undoes(&site), [made(3, json!("x"))]);
}

#[test]
fn attempts_that_cannot_all_be_named_are_a_gap_and_of_too_much_the_last_receipts_are_kept() {
    use hoist_engine::execute::MAX_RECEIPT;
    use hoist_engine::run::MAX_MADE;
    let tried = |failures: usize| {
        let retries = u32::try_from(failures).unwrap();
        let mut site = Site::new(draft(vec![step(&[], Step { retries, ..Step::default() })]));
        for _ in 0..failures {
            site.fail(0, "no");
            site.tick(site.now);
        }
        site.ran(0, End::Done { changed: true, receipt: json!(1) });
        site
    };
    assert_eq!(undoes(&tried(MAX_MADE - 1)).len(), MAX_MADE);
    let gap = Gap { step: StepId(0), kind: GapKind::TooMany };
    assert_eq!(back(&tried(MAX_MADE)).gaps, [gap]);

    let again = Step { retries: 1, after: vec![Call::default()], ..Step::default() };
    let mut site = Site::new(draft(vec![step(&[], again)]));
    for attempt in [1, 2] {
        let receipt = "x".repeat(MAX_RECEIPT / 2 - 1);
        site.ran(0, End::Done { changed: true, receipt: json!(receipt) });
        let (step, reason) = (StepId(0), String::new());
        site.on(Event::Verified { step, attempt, holds: attempt == 2, reason });
        site.tick(site.now);
    }
    let kept: Vec<bool> = undoes(&site).iter().map(|made| made.receipt.is_string()).collect();
    assert_eq!(kept, [true, false]);
}

#[test]
fn what_takes_back_is_not_taken_back() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    run_through(&mut site, &BTreeSet::new());
    let mut site = Site::new(back(&site).draft);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(back(&site).gaps, [Gap { step: StepId(0), kind: GapKind::NoUndo }]);
}

#[test]
fn what_was_done_already_is_not_taken_back() {
    let vertices = vec![step(&[], Step::default()), step(&[0], Step::default())];
    let mut site = Site::new(draft(vertices));
    site.ran(0, End::Done { changed: false, receipt: Value::Null });
    site.end(1);
    assert_eq!(named(&back(&site)), ["undo s1"]);
    assert_eq!(
        undo_plan(&site.run, "r", |_| true, |_| Some(GapKind::NoUndo)).unwrap().gaps.len(),
        1
    );
}

#[test]
fn gaps_and_commit_points_are_named_before_anything_starts() {
    let commit = Step { reversibility: Reversibility::CommitPoint, ..Step::default() };
    let vertices =
        vec![step(&[], Step::default()), step(&[0], commit), step(&[1], Step::default())];
    let mut site = Site::new(draft(vertices));
    assert_eq!(undo_plan(&site.run, "r", |_| true, |_| None), Err(UndoError::Unfinished));
    run_through(&mut site, &BTreeSet::new());
    let found = back(&site);
    assert_eq!(found.gaps, [Gap { step: StepId(1), kind: GapKind::CommitPoint }]);
    assert_eq!(named(&found), ["undo s2", "undo s0"]);
    assert_eq!(found.draft.vertices[1].after, [StepId(0)], "the order goes through the gap");
    let found = undo_plan(&site.run, "r", |_| true, |_| Some(GapKind::NoUndo)).unwrap();
    let kinds: Vec<GapKind> = found.gaps.iter().map(|gap| gap.kind).collect();
    assert_eq!(kinds, [GapKind::NoUndo, GapKind::CommitPoint, GapKind::NoUndo]);
    assert!(found.draft.vertices.is_empty());
}

/// On each of two subjects a step, then a barrier, then a step.
fn two_subjects() -> Site {
    let vertices = vec![
        step(&[], on(0)),
        step(&[], on(1)),
        join(&[0, 1], Rule::All),
        step(&[2], Step { pools: vec![0], ..on(0) }),
        step(&[2], Step { pools: vec![0], ..on(1) }),
    ];
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Healthy)], ..draft(vertices) });
    run_through(&mut site, &BTreeSet::new());
    site
}

#[test]
fn an_undo_that_fails_stops_the_way_back_on_its_subject_only() {
    let found = back(&two_subjects());
    let at = |name: &str| {
        let at = found.draft.vertices.iter().position(|vertex| vertex.name == name).unwrap();
        u32::try_from(at).unwrap()
    };
    let (first, second) = (at("undo s3"), at("undo s4"));
    let (last, other) = (at("undo s0"), at("undo s1"));
    let mut site = Site::new(found.draft.clone());
    run_through(&mut site, &BTreeSet::from([first]));
    assert_eq!(site.ended(Ended::LeftOut), [last]);
    let mut good = site.ended(Ended::Ok);
    good.retain(|at| found.of[*at as usize].is_some());
    good.sort_unstable();
    let mut expected = vec![second, other];
    expected.sort_unstable();
    assert_eq!(good, expected);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "one is not as it was");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(taken_back(&site.run), names(&["s1", "s3", "s4"]));
    assert_eq!(undone(&site.run), names(&["s1", "s4"]));
    site.on(Event::Resume { by: "me".to_owned() });
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn only_some_subjects_are_taken_back() {
    let site = two_subjects();
    let plan = site.run.plan();
    let of_second = |id| plan.step(id).is_some_and(|step| step.subject == Some(1));
    let found = undo_plan(&site.run, "r", of_second, |_| None).unwrap();
    assert_eq!(named(&found), ["undo s4", "undo s1"]);
    assert_eq!(found.draft.vertices[1].after, [StepId(0)]);
}

#[test]
fn an_undo_of_which_nobody_knows_how_it_ended_has_failed() {
    let undo = Some(Call { action: "remove".to_owned(), ..Call::default() });
    let mut site = Site::new(draft(vec![step(&[], Step { undo, ..on(0) })]));
    run_through(&mut site, &BTreeSet::new());
    let mut site = Site::new(back(&site).draft);
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 1, found: Found::Gone });
    assert_eq!(site.ended(Ended::Failed(FailureKind::Lost)), [0]);
}

/// Of a role whose failures are taken back: two steps on each of two subjects, of which the second
/// fails on the first subject; and one of another role before them.
fn fallen_on_one() -> Site {
    let part = |subject| Step {
        cohort: Some(0),
        undone_with: vec![0],
        on_failure: OnFailure::Continue,
        ..on(subject)
    };
    let vertices = vec![
        step(&[], on(0)),
        step(&[0], part(0)),
        step(&[], part(1)),
        join(&[1], Rule::All),
        step(&[3], part(0)),
        step(&[2], part(1)),
    ];
    let cohorts = vec![Cohort { name: "role".to_owned(), tolerate: 0, is_strict: false }];
    let mut site = Site::new(Draft { cohorts, ..draft(vertices) });
    run_through(&mut site, &BTreeSet::from([4]));
    site
}

/// Takes back what fell, and tells the run so.
fn take_back_fallen(site: &mut Site, failing: &[&str]) {
    let wanted = fallen(&site.run);
    let found =
        undo_plan(&site.run, "r", |id| wanted.contains(&id), |_| None).expect("something fell");
    let named = (0..).zip(&found.draft.vertices);
    let failing: BTreeSet<u32> = named
        .filter(|(_, vertex)| failing.contains(&vertex.name.as_str()))
        .map(|(at, _)| at)
        .collect();
    let mut back = Site::new(found.draft);
    run_through(&mut back, &failing);
    for record in settle(&site.run, "back", &back.run, site.now) {
        site.run.follow(site.journal.len(), &record).expect("it has ended");
        site.journal.push(record);
    }
}

#[test]
fn what_failed_on_a_subject_is_to_be_taken_back_there_and_only_of_its_role() {
    let site = fallen_on_one();
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(fallen(&site.run), BTreeSet::from([StepId(1), StepId(4)]));
    assert_eq!(fallen(&two_subjects().run), BTreeSet::new());
}

#[test]
fn what_was_taken_back_is_not_done_and_a_resume_does_it_again() {
    let mut site = fallen_on_one();
    take_back_fallen(&mut site, &[]);
    assert_eq!(site.ended(Ended::Undone), [1]);
    assert_eq!(
        undo_plan(&site.run, "r", |id| id != StepId(0), |_| None).unwrap().draft.vertices.len(),
        2,
        "only what was done on the other subject is left"
    );
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1]);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    assert_eq!((site.run.attempt(StepId(1)), site.run.attempt(StepId(5))), (2, 1));
    let made = site.run.made("r", StepId(1)).unwrap();
    assert_eq!(made.len(), 1, "nothing of the attempt that was taken back: {made:?}");
}

#[test]
fn what_a_retry_needs_and_was_taken_back_is_done_first() {
    let mut site = fallen_on_one();
    take_back_fallen(&mut site, &[]);
    site.on(Event::Retry { step: StepId(4), by: me() });
    assert_eq!(site.running(), [1]);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn what_could_not_be_taken_back_is_done_again_with_what_it_left() {
    let mut site = fallen_on_one();
    take_back_fallen(&mut site, &["undo s1"]);
    assert_eq!(site.ended(Ended::Undone), [1], "nobody can say that it is done");
    assert!(site.run.left_traces(StepId(1)) && !site.run.left_traces(StepId(4)));
    site.on(Event::Resume { by: me() });
    run_through(&mut site, &BTreeSet::new());
    let made = site.run.made("r", StepId(1)).unwrap();
    assert_eq!(made.len(), 2, "both can be taken back: {made:?}");
}

#[test]
fn nothing_is_taken_back_of_what_goes_on() {
    let mut site = fallen_on_one();
    site.on(Event::Resume { by: me() });
    let record = Record::TakenBack {
        run: "back".to_owned(),
        undone: vec![StepId(1)],
        stuck: Vec::new(),
        at: 0,
    };
    site.run.follow(site.journal.len(), &record).expect_err("it has not ended");
}
