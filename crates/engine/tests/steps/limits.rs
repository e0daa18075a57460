//! Limits: places, windows, the breaker.

use std::sync::Arc;

use hoist_engine::plan::{Call, Cohort, Draft, Holder, Kind, OnFailure, Step, Window};
use hoist_engine::record::{FailureKind, Outcome};
use hoist_engine::run::{Ended, Found, Reason, State};
use hoist_engine::{Event, Plan, Record, Run, StepId};

use crate::site::{Site, draft, me, on, pool, step};

/// So many subjects with two steps each, the second after the first.
fn pairs(count: u32, like: &Step) -> Draft {
    let of = |subject| Step { subject: Some(subject), ..like.clone() };
    let firsts = (0..count).map(|at| step(&[], of(at)));
    let seconds = (0..count).map(|at| step(&[at], of(at)));
    draft(firsts.chain(seconds).collect())
}

fn limited(held_by: Holder, on_failure: OnFailure) -> Site {
    let like = Step { pools: vec![0], on_failure, ..Step::default() };
    Site::new(Draft { pools: vec![pool(1, held_by)], ..pairs(3, &like) })
}

#[test]
fn a_subject_keeps_its_place_until_all_of_its_steps_have_ended() {
    let mut site = limited(Holder::Subject, OnFailure::Continue);
    assert_eq!(site.running(), [0]);
    assert_eq!(site.why(1), "all 1 places of `few` are taken: `n0`");
    site.end(0);
    assert_eq!(site.running(), [3], "its own next step, though others wait");
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.running(), [3], "also when it is read back");
    site.fail(3, "no");
    assert_eq!(site.running(), [1], "a failure is an end");
    site.fail(1, "no");
    assert_eq!(site.running(), [2], "what it blocked has ended too");
    site.end(2);
    site.end(5);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
}

#[test]
fn steps_that_hold_places_themselves_do_not_keep_them() {
    let mut site = limited(Holder::Step, OnFailure::Continue);
    site.end(0);
    assert_eq!(site.running(), [1], "first come, by the way that is left");
}

#[test]
fn a_subject_that_failed_is_not_well_and_keeps_its_place() {
    let mut site = limited(Holder::Healthy, OnFailure::Continue);
    site.end(0);
    site.end(3);
    assert_eq!(site.running(), [1], "one that is well gives it back");
    site.fail(1, "no");
    assert_eq!(site.running(), [] as [u32; 0]);
    assert!(!site.run.is_busy() && site.run.wakes_at().is_none(), "a person is needed");
    let stuck = site.run.stuck();
    let reason = Reason::Pool { pool: 0, steps: vec![], subjects: vec![1] };
    assert_eq!(stuck, [(StepId(2), reason)]);
    site.on(Event::Mark { step: StepId(1), good: true, by: me() });
    assert_eq!(site.running(), [4], "what it blocked goes on, with the place that it has");
    site.end(4);
    assert_eq!(site.running(), [2]);
}

#[test]
fn a_subject_of_which_nobody_knows_keeps_its_place() {
    let like = Step { pools: vec![0], ..Step::default() };
    let pools = vec![pool(1, Holder::Healthy)];
    let mut site = Site::new(Draft { pools, ..pairs(2, &like) });
    site.restart();
    let found = hoist_engine::run::Found::Gone;
    site.on(Event::Found { step: StepId(0), attempt: 1, found });
    assert_eq!(site.in_state(State::Unknown), [0]);
    assert_eq!(site.run.stuck().len(), 2);
    assert_eq!(site.why(1), "all 1 places of `few` are taken: `n0`");
    site.on(Event::Retry { step: StepId(0), by: me() });
    assert_eq!((site.running(), site.run.attempt(StepId(0))), (vec![0], 2));
}

/// The step that could not start, and why.
fn refused(site: &Site) -> (StepId, &str) {
    let refused = site.journal.iter().find_map(|record| match record {
        Record::Refused { step, reason, .. } => Some((*step, reason.as_str())),
        _ => None,
    });
    refused.expect("one could not start")
}

#[test]
fn places_that_wait_for_each_other_end_the_run_and_are_named() {
    // The second step of the first subject waits for the other one, which never gets a place.
    let like = |subject| Step { pools: vec![0], ..on(subject) };
    let vertices = vec![step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Subject)], ..draft(vertices) });
    site.end(0);
    let why = "it would wait for ever: all 1 places of `few` are taken: `n0`; there `s2`: waits for \
               `s1`; raise the limit, or let them not wait for each other";
    assert_eq!(refused(&site), (StepId(1), why));
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    site.restart();
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "also when it is read back");
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1], "nobody keeps the place any more");
    site.end(1);
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

/// Two pools with one place each: the first subject of either waits for both of the other.
fn two_limited_roles(on_failure: OnFailure) -> Site {
    let of = |subject, pool| Step { pools: vec![pool], on_failure, ..on(subject) };
    let vertices = vec![
        step(&[], of(0, 0)),
        step(&[], of(1, 0)),
        step(&[], of(2, 1)),
        step(&[], of(3, 1)),
        step(&[0, 2, 3], of(0, 0)),
        step(&[2, 0, 1], of(2, 1)),
    ];
    let pools = vec![pool(1, Holder::Subject), pool(1, Holder::Healthy)];
    let mut site = Site::new(Draft { pools, ..draft(vertices) });
    site.end(0);
    site.end(2);
    site
}

#[test]
fn limited_roles_that_wait_for_each_other_end_the_run_and_are_named() {
    let site = two_limited_roles(OnFailure::Stop);
    let (step, why) = refused(&site);
    assert_eq!(step, StepId(1));
    assert!(why.contains("are taken: `n0`; there `s4`: waits for `s3`"), "{why}");
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.in_state(State::Ended(Ended::Blocked)), [5]);
}

#[test]
fn what_does_not_need_what_could_not_start_goes_on() {
    let mut site = two_limited_roles(OnFailure::Continue);
    assert_eq!(site.running(), [3], "its place was kept by one that is blocked now");
    site.end(3);
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.in_state(State::Ended(Ended::Blocked)), [5]);
}

#[test]
fn who_is_refused_because_its_place_will_never_be_free_gets_none() {
    let like = |subject| Step { pools: vec![0], on_failure: OnFailure::Ignore, ..on(subject) };
    let of_two = [step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let vertices = of_two.into_iter().chain([step(&[], like(1))]).collect();
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Subject)], ..draft(vertices) });
    site.end(0);
    assert_eq!(refused(&site).0, StepId(1));
    assert_eq!(site.running(), [2], "nothing of the other subject beside it");
    site.end(2);
    assert_eq!(site.running(), [3]);
}

#[test]
fn whether_a_person_can_give_a_place_back_is_the_same_when_it_is_read_back() {
    let of = |pools: &[u32]| Step {
        pools: pools.to_vec(),
        on_failure: OnFailure::Continue,
        ..Step::default()
    };
    let on_first = |pools: &[u32]| Step { subject: Some(0), ..of(pools) };
    let vertices = vec![
        step(&[], of(&[])),
        step(&[], on_first(&[1])),
        step(&[0], of(&[0, 1])),
        step(&[1], on_first(&[0, 1])),
        step(&[2], on_first(&[0])),
    ];
    let pools = vec![pool(1, Holder::Subject), pool(1, Holder::Healthy)];
    let mut site = Site::new(Draft { pools, ..draft(vertices) });
    site.end(0);
    site.end(1);
    site.fail(3, "no");
    assert_eq!(site.run.outcome(), None, "it can be tried again");
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.run.outcome(), None);
}

#[test]
fn places_that_a_person_can_give_back_end_no_run() {
    let like = |subject| Step { pools: vec![0], ..on(subject) };
    let vertices = vec![step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Subject)], ..draft(vertices) });
    site.on(Event::Pause { subject: Some(1), paused: true, by: me() });
    site.end(0);
    assert_eq!(site.run.outcome(), None, "somebody paused it");
    assert_eq!(site.why(1), "`n1` is paused");
    site.on(Event::Pause { subject: Some(1), paused: false, by: me() });
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
}

#[test]
fn a_place_that_the_next_one_cannot_use_is_not_lost() {
    let in_pool = |subject| Step { pools: vec![0], ..on(subject) };
    let vertices = (0..3).map(|at| step(&[], in_pool(at))).collect();
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Step)], ..draft(vertices) });
    site.on(Event::Pause { subject: Some(1), paused: true, by: me() });
    site.end(0);
    assert_eq!(site.running(), [2], "not the one whose subject is paused");
    assert_eq!(site.why(1), "`n1` is paused");
    site.end(2);
    site.on(Event::Pause { subject: Some(1), paused: false, by: me() });
    assert_eq!(site.running(), [1]);
}

const DAY: u64 = 24 * 3_600_000;

#[test]
fn who_only_follows_the_records_knows_when_a_window_opens_from_the_first_one_on() {
    // From 03:00 on, every day.
    let spans = (0..7).map(|day| (day * 1440 + 180, day * 1440 + 190)).collect();
    let windows = vec![Window { name: "night".to_owned(), spans }];
    let late = Step { window: Some(0), ..Step::default() };
    let plan = Plan::new(Draft { windows, ..draft(vec![step(&[], late)]) }).expect("a plan");
    let plan = Arc::new(plan);
    // A Monday, four days after the first day there was.
    let first = Record::Plan { hash: plan.hash().to_owned(), at: 4 * DAY + DAY / 2 };
    let run = Run::replay(&plan, [&first]).expect("a run");
    let why = run.explain(&run.why(StepId(0)));
    assert_eq!(why, "its window `night` is shut; it opens on Tuesday at 03:00 UTC");
}

#[test]
fn a_step_waits_for_its_window_and_the_run_wakes_when_it_opens() {
    // Fridays; the first day there was is a Thursday.
    let windows = vec![Window { name: "friday".to_owned(), spans: vec![(4 * 1440, 5 * 1440)] }];
    let late = Step { window: Some(0), ..Step::default() };
    let vertices = vec![step(&[], late.clone()), step(&[], Step::default()), step(&[0], late)];
    let mut site = Site::new(Draft { windows, ..draft(vertices) });
    assert_eq!(site.running(), [1], "what has no window does not wait");
    assert_eq!(site.run.wakes_at(), Some(DAY));
    assert_eq!(site.why(0), "its window `friday` is shut; it opens on Friday at 00:00 UTC");
    site.end(1);
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.run.wakes_at(), Some(DAY), "also when it is read back");
    site.tick(DAY - 1);
    assert_eq!(site.running(), [] as [u32; 0]);
    site.tick(DAY);
    assert_eq!(site.running(), [0]);
    site.now = 2 * DAY;
    site.end(0);
    assert_eq!(site.run.wakes_at(), Some(8 * DAY), "what became ready too late waits for the next");
    assert_eq!(site.run.stuck(), [], "nobody is needed");
    site.tick(8 * DAY);
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn a_window_that_shuts_while_it_is_looked_whether_a_step_may_start_holds_it_back() {
    let windows = vec![Window { name: "friday".to_owned(), spans: vec![(4 * 1440, 5 * 1440)] }];
    let before = vec![hoist_engine::plan::Call::default()];
    let late = Step { window: Some(0), before, ..Step::default() };
    let mut site = Site::new(Draft { windows, ..draft(vec![step(&[], late)]) });
    site.tick(DAY);
    assert_eq!(site.in_state(State::Checking), [0]);
    site.now = 2 * DAY;
    site.on(Event::Checked { step: StepId(0), attempt: 1, refused: None });
    assert_eq!(site.in_state(State::Ready), [0]);
    assert_eq!(site.run.wakes_at(), Some(8 * DAY));
}

fn alike() -> Step {
    Step { kin: Some(7), on_failure: OnFailure::Continue, ..Step::default() }
}

fn with_breaker(count: u32) -> Site {
    let like = Step { pools: vec![0], ..alike() };
    let vertices = (0..count).map(|at| step(&[], Step { subject: Some(at), ..like.clone() }));
    let pools = vec![pool(1, Holder::Step)];
    Site::new(Draft { pools, breaker: Some(3), ..draft(vertices.collect()) })
}

#[test]
fn subjects_that_fail_alike_pause_the_run_before_all_of_them_have() {
    let mut site = with_breaker(9);
    site.fail(0, "no route to host\nattempt 1");
    site.fail(1, "something else");
    site.fail(2, "no route to host\nattempt 7");
    assert_eq!(site.running(), [3]);
    site.fail(3, "no route to host");
    assert_eq!(site.running(), [] as [u32; 0]);
    let reason = "no route to host".to_owned();
    let asked = Record::Breaker { kin: 7, subjects: 3, reason, at: site.now };
    assert_eq!(site.journal.last(), Some(&asked));
    assert_eq!(site.why(4), "the run was paused by the breaker");
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.running(), [] as [u32; 0], "also when it is read back");
    site.on(Event::Pause { subject: None, paused: false, by: me() });
    site.fail(4, "no route to host");
    assert_eq!(site.running(), [5], "a person looked at it, so it counts anew");
}

#[test]
fn a_breaker_whose_record_was_lost_asks_when_the_run_is_read_back() {
    let mut site = with_breaker(5);
    for at in 0..3 {
        site.fail(at, "the same");
    }
    assert!(matches!(site.journal.pop(), Some(Record::Breaker { .. })));
    site.restart();
    assert!(matches!(site.journal.last(), Some(Record::Breaker { subjects: 3, .. })));
    assert_eq!(site.running(), [] as [u32; 0]);
}

#[test]
fn failures_of_other_kin_and_attempts_that_are_repeated_do_not_count() {
    let other = |kin, subject| Step { kin, subject: Some(subject), ..alike() };
    let tries = Step { retries: 1, delay_ms: 0, ..other(Some(1), 0) };
    let vertices = vec![
        step(&[], tries),
        step(&[], other(Some(2), 1)),
        step(&[], other(None, 2)),
        step(&[], on(3)),
    ];
    let mut site = Site::new(Draft { breaker: Some(2), ..draft(vertices) });
    for at in [0, 0, 1, 2] {
        site.fail(at, "the same");
    }
    assert_eq!(site.running(), [3]);
    site.end(3);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.ended(Ended::Ok), [3]);
}

#[test]
fn whatever_an_executor_says_fits_into_a_record() {
    use hoist_engine::execute::{MAX_REASON, MAX_RECEIPT};
    use hoist_engine::record::End;
    let quoted = |length: usize| serde_json::Value::from("x".repeat(length - 2));
    let mut site = Site::new(draft((0..3).map(|_| step(&[], alike())).collect()));
    for (at, length) in [(0, MAX_RECEIPT), (1, MAX_RECEIPT + 1)] {
        site.ran(at, End::Done { changed: true, receipt: quoted(length) });
    }
    let receipt = |at| site.run.made("r", StepId(at)).unwrap()[0].receipt.clone();
    assert_eq!(receipt(0), quoted(MAX_RECEIPT));
    assert_eq!(receipt(1), serde_json::Value::Null, "it is not kept");
    site.fail(2, &"ä".repeat(MAX_REASON));
    let kept = site.journal.iter().find_map(|record| match record {
        Record::Ran { end: End::Failed { reason, .. }, .. } => Some(reason.len()),
        _ => None,
    });
    assert_eq!(kept, Some(MAX_REASON));
}

#[test]
fn what_is_told_of_a_step_that_the_plan_does_not_have_has_no_consequence() {
    use hoist_engine::record::End;
    use hoist_engine::run::Found;
    let mut site = Site::new(draft(vec![step(&[], alike())]));
    let kept = site.journal.len();
    let (step, attempt, reason) = (StepId(7), 1, String::new);
    for event in [
        Event::Checked { step, attempt, refused: None },
        Event::Ran { step, attempt, end: End::Interrupted },
        Event::Verified { step, attempt, holds: true, reason: reason() },
        Event::Found { step, attempt, found: Found::Gone },
        Event::Retry { step, by: me() },
        Event::Hold { step, held: true, by: me() },
        Event::Mark { step, good: true, by: me() },
        Event::StopAfter { vertices: vec![step], by: me() },
        Event::Pause { subject: Some(9), paused: true, by: me() },
    ] {
        site.on(event);
    }
    assert_eq!((site.journal.len(), site.running()), (kept, vec![0]));
}

#[test]
fn a_clock_that_goes_back_makes_nothing_wait_longer() {
    let like = Step { retries: 1, delay_ms: 500, ..Step::default() };
    let mut site = Site::new(draft(vec![step(&[], like)]));
    site.now = 90 * DAY;
    site.fail(0, "no");
    assert_eq!(site.run.wakes_at(), Some(90 * DAY + 500));
    site.tick(3 * DAY);
    assert_eq!(site.run.wakes_at(), Some(3 * DAY + 500));
    site.now = DAY;
    site.restart();
    assert_eq!(site.run.wakes_at(), Some(DAY + 500), "also when it is read back");
    site.tick(50 * DAY);
    assert_eq!(site.running(), [0], "and one that jumps ahead ends the waiting");
}

#[test]
fn a_place_that_was_taken_only_to_look_is_given_back_when_the_step_does_not_start() {
    let before = vec![hoist_engine::plan::Call::default()];
    let like = Step { pools: vec![0], before, ..Step::default() };
    for held_by in [Holder::Subject, Holder::Healthy] {
        let mut site = Site::new(Draft { pools: vec![pool(1, held_by)], ..pairs(2, &like) });
        assert_eq!(site.in_state(State::Checking), [0]);
        site.on(Event::Pause { subject: Some(0), paused: true, by: me() });
        site.on(Event::Checked { step: StepId(0), attempt: 1, refused: None });
        assert_eq!(site.in_state(State::Checking), [1], "the next subject has it");
        site.on(Event::Checked { step: StepId(1), attempt: 1, refused: None });
        site.on(Event::Pause { subject: Some(0), paused: false, by: me() });
        assert_eq!(site.why(0), "all 1 places of `few` are taken: `n1`");
    }
}

#[test]
fn a_check_before_a_step_is_looked_at_again_as_often_as_the_step_says() {
    let like = Step {
        before: vec![Call::default()],
        retries_precheck: 1,
        delay_ms: 500,
        ..Step::default()
    };
    let mut site = Site::new(draft(vec![step(&[], like)]));
    let refuse = |site: &mut Site, attempt: u32| {
        let refused = Some("not yet".to_owned());
        site.on(Event::Checked { step: StepId(0), attempt, refused });
    };
    assert_eq!(site.run.state(StepId(0)), State::Checking);
    refuse(&mut site, 1);
    assert_eq!(site.run.state(StepId(0)), State::Delayed);
    site.tick(site.now + 500);
    assert_eq!(site.run.state(StepId(0)), State::Checking);
    refuse(&mut site, 2);
    assert_eq!(site.run.state(StepId(0)), State::Ended(Ended::Failed(FailureKind::Precheck)));
}

#[test]
fn refused_looks_do_not_use_up_the_attempts() {
    let like = Step {
        before: vec![Call::default()],
        retries: 1,
        retries_precheck: 2,
        delay_ms: 500,
        ..Step::default()
    };
    let mut site = Site::new(draft(vec![step(&[], like)]));
    let look = |site: &mut Site, attempt: u32, refused: Option<&str>| {
        site.tick(site.now + 500);
        let refused = refused.map(str::to_owned);
        site.on(Event::Checked { step: StepId(0), attempt, refused });
    };
    look(&mut site, 1, Some("not yet"));
    look(&mut site, 2, Some("not yet"));
    look(&mut site, 3, None);
    site.fail(0, "no");
    assert_eq!(site.run.state(StepId(0)), State::Delayed, "it may fail once");
    site.restart();
    look(&mut site, 4, None);
    assert_eq!(site.running(), [0], "also when it is read back");
    site.fail(0, "no");
    assert_eq!(site.run.state(StepId(0)), State::Ended(Ended::Failed(FailureKind::Exit)));
}

#[test]
fn who_would_have_waited_for_a_place_for_ever_has_none_when_the_run_goes_on() {
    let inside = |subject| Step { pools: vec![0], on_failure: OnFailure::Continue, ..on(subject) };
    let vertices = vec![
        step(&[], Step::default()),
        step(&[], inside(0)),
        step(&[0], inside(0)),
        step(&[], inside(1)),
    ];
    let mut site = Site::new(Draft { pools: vec![pool(1, Holder::Healthy)], ..draft(vertices) });
    site.fail(1, "no");
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 1, found: Found::Gone });
    assert_eq!(site.ended(Ended::Failed(FailureKind::Precheck)), [3], "nobody gives it a place");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    site.end(2);
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1], "it has the one place from before");
}

/// Two subjects of a cohort that trips alone, with two steps each, and one of another cohort; then
/// one step after the first of them, and one after the last.
fn two_cohorts(tolerate: u32) -> Site {
    let of = |subject, cohort| Step { cohort: Some(cohort), ..on(subject) };
    let vertices = vec![
        step(&[], of(0, 0)),
        step(&[], of(1, 0)),
        step(&[0], of(0, 0)),
        step(&[1], of(1, 0)),
        step(&[], of(2, 1)),
        step(&[4], of(2, 1)),
        step(&[3], of(2, 1)),
    ];
    let cohort = |name: &str, trips_alone| Cohort {
        name: name.to_owned(),
        tolerate,
        trips_alone,
        is_strict: false,
    };
    let cohorts = vec![cohort("alone", true), cohort("other", false)];
    Site::new(Draft { cohorts, ..draft(vertices) })
}

#[test]
fn a_cohort_that_trips_alone_starts_nothing_more_and_the_others_go_on() {
    let mut site = two_cohorts(0);
    site.fail(0, "no");
    assert_eq!(site.ended(Ended::Blocked), [2, 3, 6]);
    assert_eq!(site.why(3), "blocked by `s0`", "it is told why though it waits for something else");
    assert_eq!(site.why(6), "blocked by `s0`");
    assert!(!site.run.is_stopping());
    site.end(1);
    site.end(4);
    site.end(5);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.ended(Ended::Ok), [1, 4, 5]);
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [0, 3]);
}

#[test]
fn what_a_cohort_can_do_without_trips_nothing() {
    let mut site = two_cohorts(1);
    site.fail(0, "no");
    site.end(1);
    assert_eq!(site.running(), [3, 4]);
    site.fail(3, "no");
    assert_eq!(site.ended(Ended::Blocked), [6]);
    assert_eq!(site.why(6), "blocked by `s3`");
}

#[test]
fn a_cohort_goes_on_when_what_tripped_it_is_accepted_or_tried_again() {
    let mut site = two_cohorts(0);
    site.fail(0, "no");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.running(), [1, 2, 4]);
    let mut site = two_cohorts(0);
    site.fail(0, "no");
    site.fail(1, "no");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.running(), [4], "the other one is a reason still");
    site.on(Event::Retry { step: StepId(1), by: me() });
    assert_eq!(site.running(), [1, 2, 4]);
}

#[test]
fn what_runs_when_its_cohort_trips_is_not_tried_again() {
    let mut again = two_cohorts(0).run.plan().draft().clone();
    if let Kind::Step(step) = &mut again.vertices[1].kind {
        (step.retries, step.delay_ms) = (3, 1);
    }
    let mut site = Site::new(again);
    site.fail(0, "no");
    site.fail(1, "no");
    assert_eq!(site.ended(Ended::Failed(FailureKind::Exit)), [0, 1]);
}

#[test]
fn a_place_that_was_kept_for_who_shall_not_start_any_more_is_not_lost() {
    let inside = |subject| Step { pools: vec![0], cohort: Some(0), ..on(subject) };
    let other = Step { pools: vec![0], ..on(2) };
    let vertices = vec![step(&[], inside(0)), step(&[], inside(1)), step(&[], other)];
    let alone = Cohort { name: "role".to_owned(), trips_alone: true, ..Cohort::default() };
    let pools = vec![pool(1, Holder::Subject)];
    let mut site = Site::new(Draft { pools, cohorts: vec![alone], ..draft(vertices) });
    site.fail(0, "no");
    assert_eq!(site.ended(Ended::Blocked), [1]);
    assert_eq!(site.running(), [2]);
}
