//! The plan that undoes a run.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::plan::{
    AppliedAttempt, Call, Draft, FailureDomain, Holder, Kind, OnFailure, Repeat, Reversibility,
    Rule, Step, Vertex,
};
use hoist_engine::record::{End, FailedCheck, FailureKind, Outcome};
use hoist_engine::run::{AttemptStatus, StepEnd};
use hoist_engine::undo::{
    Gap, GapKind, UndoDraft, UndoError, settle, steps_to_undo, undo_plan, undo_started, undone,
};
use hoist_engine::{Event, Plan, Record, StepId};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::site::{Site, draft, join, limit, me, on, step};

/// Ends every started step at once; steps in `failing` fail.
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

/// The transitive predecessors of each vertex.
fn before(vertices: &[Vertex]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); vertices.len()];
    // One pass per vertex reaches every path.
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
    fn undo_plan_is_the_plan_reversed(
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
        let there = before(&site.run.plan().draft().vertices);
        let back = before(&found.draft.vertices);
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
        let mut undo_run = Site::new(found.draft);
        run_through(&mut undo_run, &BTreeSet::new());
        prop_assert_eq!(undo_run.run.outcome(), Some(Outcome::Succeeded));
    }
}

fn named(found: &UndoDraft) -> Vec<&str> {
    found.draft.vertices.iter().map(|vertex| vertex.name.as_str()).collect()
}

#[test]
fn step_is_undone_by_its_call_or_with_its_receipt() {
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
    let made = AppliedAttempt {
        attempt: "r/1/1".to_owned(),
        receipt: json!({ "was": 1 }),
        ..AppliedAttempt::default()
    };
    assert_eq!(steps[0].call.undoes, Some(vec![made]));
    assert_eq!(steps[0].repeat, Repeat::Safe);
    assert_eq!((&steps[1].call, steps[1].repeat), (&call("remove"), Repeat::Safe));
}

fn applied(attempt: u32, receipt: Value) -> AppliedAttempt {
    AppliedAttempt { attempt: format!("r/0/{attempt}"), receipt, ..AppliedAttempt::default() }
}

/// The attempts that the only step of an undo plan reverts, after a round trip through JSON.
fn undoes(site: &Site) -> Vec<AppliedAttempt> {
    let text = serde_json::to_string(&back(site).draft).expect("plain values");
    let draft: Draft = serde_json::from_str(&text).expect("a draft");
    let plan = Plan::new(draft).expect("a plan");
    plan.step(StepId(0)).expect("a step").call.undoes.clone().expect("and never done")
}

#[test]
fn attempts_with_possible_changes_are_undone_in_reverse() {
    let after = vec![Call::default()];
    let again = Step { retries: 2, after, repeat: Repeat::Safe, ..Step::default() };
    let mut site = Site::new(draft(vec![step(&[], again)]));
    let verified = |site: &mut Site, attempt, holds: bool| {
        let failed = (!holds).then(FailedCheck::default);
        site.on(Event::Verified { step: StepId(0), attempt, failed });
        site.tick(site.now);
    };
    site.fail(0, "no");
    site.tick(site.now);
    site.ran(0, End::Done { changed: true, receipt: json!(2) });
    verified(&mut site, 2, false);
    // First no executor takes the attempt, then there is nothing to do.
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 3, found: AttemptStatus::Gone });
    site.ran(0, End::Done { changed: false, receipt: json!(4) });
    verified(&mut site, 4, true);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    let all = [applied(3, Value::Null), applied(2, json!(2)), applied(1, Value::Null)];
    assert_eq!(undoes(&site), all);
}

#[test]
fn interrupted_attempt_is_undone_with_the_next_one() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    site.on(Event::Stop { now: true, by: "me".to_owned() });
    site.ran(0, End::Interrupted);
    assert_eq!(undoes(&site), [applied(1, Value::Null)]);
    site.on(Event::Resume { by: "me".to_owned() });
    site.ran(0, End::Done { changed: true, receipt: json!("x") });
    assert_eq!(undoes(&site), [applied(2, json!("x")), applied(1, Value::Null)]);
}

#[test]
fn attempt_that_never_began_left_nothing() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    site.ran(0, End::NotBegun { reason: Some("the machine did not report".to_owned()) });
    assert_eq!(site.ended(StepEnd::Failed(FailureKind::Internal)), [0]);
    site.on(Event::Resume { by: "me".to_owned() });
    site.on(Event::Stop { now: true, by: "me".to_owned() });
    site.ran(0, End::NotBegun { reason: None });
    assert_eq!(site.ended(StepEnd::Interrupted), [0]);
    assert_eq!(undo_plan(&site.run, "r", |_| true, |_| None), Err(UndoError::Nothing));
    site.on(Event::Resume { by: "me".to_owned() });
    site.ran(0, End::Done { changed: true, receipt: json!("x") });
    assert_eq!(undoes(&site), [applied(3, json!("x"))]);
}

#[test]
fn too_many_attempts_are_a_gap_and_last_receipts_stay() {
    use hoist_engine::record::MAX_RECEIPT;
    use hoist_engine::run::MAX_APPLIED;
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
    assert_eq!(undoes(&tried(MAX_APPLIED - 1)).len(), MAX_APPLIED);
    let gap = Gap { step: StepId(0), kind: GapKind::TooMany };
    assert_eq!(back(&tried(MAX_APPLIED)).gaps, [gap]);

    let again = Step { retries: 1, after: vec![Call::default()], ..Step::default() };
    let mut site = Site::new(draft(vec![step(&[], again)]));
    for attempt in [1, 2] {
        let receipt = "x".repeat(MAX_RECEIPT / 2 - 1);
        site.ran(0, End::Done { changed: true, receipt: json!(receipt) });
        let failed = (attempt != 2).then(FailedCheck::default);
        site.on(Event::Verified { step: StepId(0), attempt, failed });
        site.tick(site.now);
    }
    let kept: Vec<bool> = undoes(&site).iter().map(|made| made.receipt.is_string()).collect();
    assert_eq!(kept, [true, false]);
}

#[test]
fn undo_step_is_not_undone() {
    let mut site = Site::new(draft(vec![step(&[], Step::default())]));
    run_through(&mut site, &BTreeSet::new());
    let mut site = Site::new(back(&site).draft);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(back(&site).gaps, [Gap { step: StepId(0), kind: GapKind::NoUndo }]);
}

#[test]
fn step_without_change_is_not_undone() {
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
fn gaps_and_commit_points_are_known_before_the_undo() {
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

/// On each of two subjects a step, a barrier and a step.
fn two_subjects() -> Site {
    let vertices = vec![
        step(&[], on(0)),
        step(&[], on(1)),
        join(&[0, 1], Rule::All),
        step(&[2], Step { limits: vec![0], ..on(0) }),
        step(&[2], Step { limits: vec![0], ..on(1) }),
    ];
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Healthy)], ..draft(vertices) });
    run_through(&mut site, &BTreeSet::new());
    site
}

#[test]
fn failed_undo_stops_only_its_subject() {
    let found = back(&two_subjects());
    let at = |name: &str| {
        let at = found.draft.vertices.iter().position(|vertex| vertex.name == name).unwrap();
        u32::try_from(at).unwrap()
    };
    let first = at("undo s3");
    let second = at("undo s4");
    let last = at("undo s0");
    let other = at("undo s1");
    let mut site = Site::new(found.draft.clone());
    run_through(&mut site, &BTreeSet::from([first]));
    assert_eq!(site.ended(StepEnd::LeftOut), [last]);
    let mut good = site.ended(StepEnd::Ok);
    good.retain(|at| found.of[*at as usize].is_some());
    good.sort_unstable();
    let mut expected = vec![second, other];
    expected.sort_unstable();
    assert_eq!(good, expected);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "one is not as it was");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(undo_started(&site.run), names(&["s1", "s3", "s4"]));
    assert_eq!(undone(&site.run), names(&["s1", "s4"]));
    site.on(Event::Resume { by: "me".to_owned() });
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn undo_can_be_limited_to_subjects() {
    let site = two_subjects();
    let plan = site.run.plan();
    let of_second = |id| plan.step(id).is_some_and(|step| step.subject == Some(1));
    let found = undo_plan(&site.run, "r", of_second, |_| None).unwrap();
    assert_eq!(named(&found), ["undo s4", "undo s1"]);
    assert_eq!(found.draft.vertices[1].after, [StepId(0)]);
}

#[test]
fn undo_with_unknown_outcome_has_failed() {
    let undo = Some(Call { action: "remove".to_owned(), ..Call::default() });
    let mut site = Site::new(draft(vec![step(&[], Step { undo, ..on(0) })]));
    run_through(&mut site, &BTreeSet::new());
    let mut site = Site::new(back(&site).draft);
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 1, found: AttemptStatus::Gone });
    assert_eq!(site.ended(StepEnd::Failed(FailureKind::Lost)), [0]);
}

/// A role whose failures are undone: two steps on each of two subjects, of which the second fails
/// on the first subject; and one step of another role before them.
fn fallen_on_one() -> Site {
    let part = |subject| Step {
        failure_domain: Some(0),
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
    let failure_domains =
        vec![FailureDomain { name: "role".to_owned(), tolerate: 0, ..FailureDomain::default() }];
    let mut site = Site::new(Draft { failure_domains, ..draft(vertices) });
    run_through(&mut site, &BTreeSet::from([4]));
    site
}

/// Undoes the failed steps and settles the result in the journal of the run.
fn undo_failed(site: &mut Site, failing: &[&str]) {
    let wanted = steps_to_undo(&site.run);
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
fn failure_undoes_only_its_role_on_its_subject() {
    let site = fallen_on_one();
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(steps_to_undo(&site.run), BTreeSet::from([StepId(1), StepId(4)]));
    assert_eq!(steps_to_undo(&two_subjects().run), BTreeSet::new());
}

#[test]
fn resume_repeats_undone_steps() {
    let mut site = fallen_on_one();
    undo_failed(&mut site, &[]);
    assert_eq!(site.ended(StepEnd::Undone), [1]);
    assert_eq!(
        undo_plan(&site.run, "r", |id| id != StepId(0), |_| None).unwrap().draft.vertices.len(),
        2,
        "only the steps of the other subject are left"
    );
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1]);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    assert_eq!((site.run.attempt(StepId(1)), site.run.attempt(StepId(5))), (2, 1));
    let made = site.run.applied("r", StepId(1)).unwrap();
    assert_eq!(made.len(), 1, "nothing of the attempt that was undone: {made:?}");
}

#[test]
fn retry_repeats_undone_predecessors_first() {
    let mut site = fallen_on_one();
    undo_failed(&mut site, &[]);
    site.on(Event::Retry { step: StepId(4), by: me() });
    assert_eq!(site.running(), [1]);
    run_through(&mut site, &BTreeSet::new());
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn step_with_failed_undo_is_repeated() {
    let mut site = fallen_on_one();
    undo_failed(&mut site, &["undo s1"]);
    assert_eq!(site.ended(StepEnd::Undone), [1], "it no longer counts as done");
    assert!(site.run.left_traces(StepId(1)) && !site.run.left_traces(StepId(4)));
    site.on(Event::Resume { by: me() });
    run_through(&mut site, &BTreeSet::new());
    let made = site.run.applied("r", StepId(1)).unwrap();
    assert_eq!(made.len(), 2, "both can be undone: {made:?}");
}

#[test]
fn running_run_cannot_be_undone() {
    let mut site = fallen_on_one();
    site.on(Event::Resume { by: me() });
    let record = Record::Undone {
        run: "back".to_owned(),
        undone: vec![StepId(1)],
        stuck: Vec::new(),
        at: 0,
    };
    site.run.follow(site.journal.len(), &record).expect_err("it has not ended");
}
