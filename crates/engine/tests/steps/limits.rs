//! Limits: slots, windows, the breaker.

use std::sync::Arc;

use hoist_engine::plan::{Call, Draft, FailureDomain, Holder, Kind, OnFailure, Step, Window};
use hoist_engine::record::{FailedCheck, FailureKind, Outcome};
use hoist_engine::run::{AttemptStatus, Reason, State, StepEnd};
use hoist_engine::{Event, Plan, Record, Run, StepId};

use crate::site::{Site, draft, limit, me, on, step};

/// Subjects with two steps each, the second after the first.
fn pairs(count: u32, like: &Step) -> Draft {
    let of = |subject| Step { subject: Some(subject), ..like.clone() };
    let firsts = (0..count).map(|at| step(&[], of(at)));
    let seconds = (0..count).map(|at| step(&[at], of(at)));
    draft(firsts.chain(seconds).collect())
}

fn limited(held_by: Holder, on_failure: OnFailure) -> Site {
    let like = Step { limits: vec![0], on_failure, ..Step::default() };
    Site::new(Draft { limits: vec![limit(1, held_by)], ..pairs(3, &like) })
}

#[test]
fn subject_keeps_its_slot_until_all_its_steps_end() {
    let mut site = limited(Holder::Subject, OnFailure::Continue);
    assert_eq!(site.running(), [0]);
    assert_eq!(site.why(1), "all 1 slots of `few` are taken: `n0`");
    site.end(0);
    assert_eq!(site.running(), [3], "the next step of the same subject");
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.running(), [3], "also when it is read back");
    site.fail(3, "no");
    assert_eq!(site.running(), [1], "a failure is an end");
    site.fail(1, "no");
    assert_eq!(site.running(), [2], "blocked steps have ended too");
    site.end(2);
    site.end(5);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
}

#[test]
fn step_releases_its_slot_when_it_ends() {
    let mut site = limited(Holder::Step, OnFailure::Continue);
    site.end(0);
    assert_eq!(site.running(), [1], "first come, by the way that is left");
}

#[test]
fn failed_subject_keeps_its_slot() {
    let mut site = limited(Holder::Healthy, OnFailure::Continue);
    site.end(0);
    site.end(3);
    assert_eq!(site.running(), [1], "one that is well gives it back");
    site.fail(1, "no");
    assert_eq!(site.running(), [] as [u32; 0]);
    assert!(!site.run.is_busy() && site.run.wakes_at().is_none(), "a person is needed");
    let stuck = site.run.stuck();
    let reason = Reason::Limit { limit: 0, steps: vec![], subjects: vec![1] };
    assert_eq!(stuck, [(StepId(2), reason)]);
    site.on(Event::Mark { step: StepId(1), good: true, by: me() });
    assert_eq!(site.running(), [4], "blocked steps continue with its slot");
    site.end(4);
    assert_eq!(site.running(), [2]);
}

#[test]
fn subject_with_unknown_outcome_keeps_its_slot() {
    let like = Step { limits: vec![0], ..Step::default() };
    let limits = vec![limit(1, Holder::Healthy)];
    let mut site = Site::new(Draft { limits, ..pairs(2, &like) });
    site.restart();
    let found = hoist_engine::run::AttemptStatus::Gone;
    site.on(Event::Found { step: StepId(0), attempt: 1, found });
    assert_eq!(site.in_state(State::Unknown), [0]);
    assert_eq!(site.run.stuck().len(), 2);
    assert_eq!(site.why(1), "all 1 slots of `few` are taken: `n0`");
    site.on(Event::Retry { step: StepId(0), by: me() });
    assert_eq!((site.running(), site.run.attempt(StepId(0))), (vec![0], 2));
}

/// The step that was refused, and why.
fn refused(site: &Site) -> (StepId, &str) {
    let refused = site.journal.iter().find_map(|record| match record {
        Record::Refused { step, check, .. } => Some((*step, check.output.as_str())),
        _ => None,
    });
    refused.expect("one could not start")
}

#[test]
fn slot_deadlock_ends_the_run_and_is_explained() {
    // The second step of the first subject waits for the other subject, which never gets a slot.
    let like = |subject| Step { limits: vec![0], ..on(subject) };
    let vertices = vec![step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Subject)], ..draft(vertices) });
    site.end(0);
    let why = "deadlock: all 1 slots of `few` are taken: `n0`; there `s2`: waits for \
               `s1`; raise the limit, or remove the dependency between these steps";
    assert_eq!(refused(&site), (StepId(1), why));
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    site.restart();
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "also when it is read back");
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1], "the slot is free again");
    site.end(1);
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

/// Two limits with one slot each: the first subject of each waits for both subjects of the other.
fn two_limited_roles(on_failure: OnFailure) -> Site {
    let of = |subject, limit| Step { limits: vec![limit], on_failure, ..on(subject) };
    let vertices = vec![
        step(&[], of(0, 0)),
        step(&[], of(1, 0)),
        step(&[], of(2, 1)),
        step(&[], of(3, 1)),
        step(&[0, 2, 3], of(0, 0)),
        step(&[2, 0, 1], of(2, 1)),
    ];
    let limits = vec![limit(1, Holder::Subject), limit(1, Holder::Healthy)];
    let mut site = Site::new(Draft { limits, ..draft(vertices) });
    site.end(0);
    site.end(2);
    site
}

#[test]
fn deadlock_of_limited_roles_is_explained() {
    let site = two_limited_roles(OnFailure::Stop);
    let (step, why) = refused(&site);
    assert_eq!(step, StepId(1));
    assert!(why.contains("are taken: `n0`; there `s4`: waits for `s3`"), "{why}");
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.in_state(State::Ended(StepEnd::Blocked)), [5]);
}

#[test]
fn steps_independent_of_a_deadlock_continue() {
    let mut site = two_limited_roles(OnFailure::Continue);
    assert_eq!(site.running(), [3], "its slot was kept by one that is blocked now");
    site.end(3);
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.in_state(State::Ended(StepEnd::Blocked)), [5]);
}

#[test]
fn step_refused_in_a_deadlock_gets_no_slot() {
    let like = |subject| Step { limits: vec![0], on_failure: OnFailure::Ignore, ..on(subject) };
    let of_two = [step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let vertices = of_two.into_iter().chain([step(&[], like(1))]).collect();
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Subject)], ..draft(vertices) });
    site.end(0);
    assert_eq!(refused(&site).0, StepId(1));
    assert_eq!(site.running(), [2], "nothing of the other subject beside it");
    site.end(2);
    assert_eq!(site.running(), [3]);
}

#[test]
fn releasable_slot_is_the_same_after_reading_back() {
    let of = |limits: &[u32]| Step {
        limits: limits.to_vec(),
        on_failure: OnFailure::Continue,
        ..Step::default()
    };
    let on_first = |limits: &[u32]| Step { subject: Some(0), ..of(limits) };
    let vertices = vec![
        step(&[], of(&[])),
        step(&[], on_first(&[1])),
        step(&[0], of(&[0, 1])),
        step(&[1], on_first(&[0, 1])),
        step(&[2], on_first(&[0])),
    ];
    let limits = vec![limit(1, Holder::Subject), limit(1, Holder::Healthy)];
    let mut site = Site::new(Draft { limits, ..draft(vertices) });
    site.end(0);
    site.end(1);
    site.fail(3, "no");
    assert_eq!(site.run.outcome(), None, "it can be tried again");
    site.restart();
    site.on(Event::Tick);
    assert_eq!(site.run.outcome(), None);
}

#[test]
fn slots_that_a_person_can_release_end_no_run() {
    let like = |subject| Step { limits: vec![0], ..on(subject) };
    let vertices = vec![step(&[], like(0)), step(&[], like(1)), step(&[0, 1], like(0))];
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Subject)], ..draft(vertices) });
    site.on(Event::Pause { subject: Some(1), paused: true, by: me() });
    site.end(0);
    assert_eq!(site.run.outcome(), None, "the subject is paused");
    assert_eq!(site.why(1), "`n1` is paused");
    site.on(Event::Pause { subject: Some(1), paused: false, by: me() });
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
}

#[test]
fn slot_that_the_next_step_cannot_use_is_not_lost() {
    let limited = |subject| Step { limits: vec![0], ..on(subject) };
    let vertices = (0..3).map(|at| step(&[], limited(at))).collect();
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Step)], ..draft(vertices) });
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
fn replayed_run_knows_when_a_window_opens() {
    // From 03:00 on, every day.
    let spans = (0..7).map(|day| (day * 1440 + 180, day * 1440 + 190)).collect();
    let windows = vec![Window { name: "night".to_owned(), spans }];
    let late = Step { window: Some(0), ..Step::default() };
    let plan = Plan::new(Draft { windows, ..draft(vec![step(&[], late)]) }).expect("a plan");
    let plan = Arc::new(plan);
    // A Monday, four days after 1970-01-01.
    let first = Record::Plan { hash: plan.hash().to_owned(), at: 4 * DAY + DAY / 2 };
    let run = Run::replay(&plan, [&first]).expect("a run");
    let why = run.explain(&run.why(StepId(0)));
    assert_eq!(why, "window `night` is closed; it opens on Tuesday at 03:00 UTC");
}

#[test]
fn step_waits_for_its_window_and_the_run_wakes() {
    // Fridays; 1970 began on a Thursday.
    let windows = vec![Window { name: "friday".to_owned(), spans: vec![(4 * 1440, 5 * 1440)] }];
    let late = Step { window: Some(0), ..Step::default() };
    let vertices = vec![step(&[], late.clone()), step(&[], Step::default()), step(&[0], late)];
    let mut site = Site::new(Draft { windows, ..draft(vertices) });
    assert_eq!(site.running(), [1], "a step without a window does not wait");
    assert_eq!(site.run.wakes_at(), Some(DAY));
    assert_eq!(site.why(0), "window `friday` is closed; it opens on Friday at 00:00 UTC");
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
    assert_eq!(site.run.wakes_at(), Some(8 * DAY), "a late step waits for the next week");
    assert_eq!(site.run.stuck(), [], "no person is needed");
    site.tick(8 * DAY);
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn window_that_closes_during_a_check_holds_the_step() {
    let windows = vec![Window { name: "friday".to_owned(), spans: vec![(4 * 1440, 5 * 1440)] }];
    let before = vec![hoist_engine::plan::Call::default()];
    let late = Step { window: Some(0), before, ..Step::default() };
    let mut site = Site::new(Draft { windows, ..draft(vec![step(&[], late)]) });
    site.tick(DAY);
    assert_eq!(site.in_state(State::Checking), [0]);
    site.now = 2 * DAY;
    site.on(Event::Checked { step: StepId(0), attempt: 1, failed: None });
    assert_eq!(site.in_state(State::Ready), [0]);
    assert_eq!(site.run.wakes_at(), Some(8 * DAY));
}

fn alike() -> Step {
    Step { kin: Some(7), on_failure: OnFailure::Continue, ..Step::default() }
}

fn with_breaker(count: u32) -> Site {
    let like = Step { limits: vec![0], ..alike() };
    let vertices = (0..count).map(|at| step(&[], Step { subject: Some(at), ..like.clone() }));
    let limits = vec![limit(1, Holder::Step)];
    Site::new(Draft { limits, breaker: Some(3), ..draft(vertices.collect()) })
}

#[test]
fn similar_failures_pause_the_run() {
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
fn breaker_with_a_lost_record_asks_after_reading_back() {
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
fn breaker_ignores_other_kin_and_repeated_attempts() {
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
    assert_eq!(site.ended(StepEnd::Ok), [3]);
}

#[test]
fn executor_reports_always_fit_into_a_record() {
    use hoist_engine::record::End;
    use hoist_engine::record::{MAX_REASON, MAX_RECEIPT};
    let quoted = |length: usize| serde_json::Value::from("x".repeat(length - 2));
    let mut site = Site::new(draft((0..3).map(|_| step(&[], alike())).collect()));
    for (at, length) in [(0, MAX_RECEIPT), (1, MAX_RECEIPT + 1)] {
        site.ran(at, End::Done { changed: true, receipt: quoted(length) });
    }
    let receipt = |at| site.run.applied("r", StepId(at)).unwrap()[0].receipt.clone();
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
fn failed_checks_keep_their_fields_in_the_journal() {
    use hoist_engine::record::MAX_REASON;
    let like = Step { before: vec![Call::default()], after: vec![Call::default()], ..alike() };
    let mut site = Site::new(draft((0..2).map(|_| step(&[], like.clone())).collect()));
    let check = FailedCheck {
        title: "no one is logged in".to_owned(),
        output: "alice pts/0".to_owned(),
        exit_code: Some(1),
    };
    let attempt = 1;
    let failed = Some(check.clone());
    site.on(Event::Checked { step: StepId(0), attempt, failed });
    site.on(Event::Checked { step: StepId(1), attempt, failed: None });
    site.end(1);
    let long = FailedCheck { output: "x".repeat(MAX_REASON + 1), ..check.clone() };
    site.on(Event::Verified { step: StepId(1), attempt, failed: Some(long) });
    let at = site.now;
    let refused = Record::Refused { step: StepId(0), attempt, check: check.clone(), at };
    assert!(site.journal.contains(&refused), "{:?}", site.journal);
    let json = serde_json::to_value(&refused).expect("a plain value");
    assert_eq!(
        json["check"],
        serde_json::json!({"title": "no one is logged in", "output": "alice pts/0", "exit_code": 1})
    );
    let kept = site.journal.iter().find_map(|record| match record {
        Record::Verified { failed: Some(kept), .. } => Some(kept),
        _ => None,
    });
    let clipped = FailedCheck { output: "x".repeat(MAX_REASON), ..check };
    assert_eq!(kept, Some(&clipped), "it fits into a record");
}

#[test]
fn events_of_unknown_steps_are_ignored() {
    use hoist_engine::record::End;
    use hoist_engine::run::AttemptStatus;
    let mut site = Site::new(draft(vec![step(&[], alike())]));
    let kept = site.journal.len();
    let step = StepId(7);
    let attempt = 1;
    for event in [
        Event::Checked { step, attempt, failed: None },
        Event::Ran { step, attempt, end: End::Interrupted },
        Event::Verified { step, attempt, failed: None },
        Event::Found { step, attempt, found: AttemptStatus::Gone },
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
fn clock_set_back_makes_no_step_wait_longer() {
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
fn slot_taken_for_a_check_is_released_without_a_start() {
    let before = vec![hoist_engine::plan::Call::default()];
    let like = Step { limits: vec![0], before, ..Step::default() };
    for held_by in [Holder::Subject, Holder::Healthy] {
        let mut site = Site::new(Draft { limits: vec![limit(1, held_by)], ..pairs(2, &like) });
        assert_eq!(site.in_state(State::Checking), [0]);
        site.on(Event::Pause { subject: Some(0), paused: true, by: me() });
        site.on(Event::Checked { step: StepId(0), attempt: 1, failed: None });
        assert_eq!(site.in_state(State::Checking), [1], "the next subject has it");
        site.on(Event::Checked { step: StepId(1), attempt: 1, failed: None });
        site.on(Event::Pause { subject: Some(0), paused: false, by: me() });
        assert_eq!(site.why(0), "all 1 slots of `few` are taken: `n1`");
    }
}

#[test]
fn precondition_is_retried_as_often_as_configured() {
    let like = Step {
        before: vec![Call::default()],
        retries_precheck: 1,
        delay_ms: 500,
        ..Step::default()
    };
    let mut site = Site::new(draft(vec![step(&[], like)]));
    let refuse = |site: &mut Site, attempt: u32| {
        let failed = Some(FailedCheck::not_made("not yet"));
        site.on(Event::Checked { step: StepId(0), attempt, failed });
    };
    assert_eq!(site.run.state(StepId(0)), State::Checking);
    refuse(&mut site, 1);
    assert_eq!(site.run.state(StepId(0)), State::Delayed);
    site.tick(site.now + 500);
    assert_eq!(site.run.state(StepId(0)), State::Checking);
    refuse(&mut site, 2);
    assert_eq!(site.run.state(StepId(0)), State::Ended(StepEnd::Failed(FailureKind::Precheck)));
}

#[test]
fn failed_preconditions_do_not_use_up_retries() {
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
        let failed = refused.map(FailedCheck::not_made);
        site.on(Event::Checked { step: StepId(0), attempt, failed });
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
    assert_eq!(site.run.state(StepId(0)), State::Ended(StepEnd::Failed(FailureKind::Exit)));
}

#[test]
fn deadlocked_subject_has_no_slot_after_a_resume() {
    let inside = |subject| Step { limits: vec![0], on_failure: OnFailure::Continue, ..on(subject) };
    let vertices = vec![
        step(&[], Step::default()),
        step(&[], inside(0)),
        step(&[0], inside(0)),
        step(&[], inside(1)),
    ];
    let mut site = Site::new(Draft { limits: vec![limit(1, Holder::Healthy)], ..draft(vertices) });
    site.fail(1, "no");
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 1, found: AttemptStatus::Gone });
    assert_eq!(site.ended(StepEnd::Failed(FailureKind::Precheck)), [3], "it gets no slot");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    site.end(2);
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1], "it has the one slot from before");
}

/// Two subjects with two steps each in a failure domain that trips alone, and one subject of
/// another domain; then one step after the first step, and one after the last.
fn two_failure_domains(tolerate: u32) -> Site {
    let of = |subject, failure_domain| Step { failure_domain: Some(failure_domain), ..on(subject) };
    let vertices = vec![
        step(&[], of(0, 0)),
        step(&[], of(1, 0)),
        step(&[0], of(0, 0)),
        step(&[1], of(1, 0)),
        step(&[], of(2, 1)),
        step(&[4], of(2, 1)),
        step(&[3], of(2, 1)),
    ];
    let failure_domain = |name: &str, trips_alone| FailureDomain {
        name: name.to_owned(),
        tolerate,
        trips_alone,
        is_strict: false,
    };
    let failure_domains = vec![failure_domain("alone", true), failure_domain("other", false)];
    Site::new(Draft { failure_domains, ..draft(vertices) })
}

#[test]
fn tripped_failure_domain_stops_alone() {
    let mut site = two_failure_domains(0);
    site.fail(0, "no");
    assert_eq!(site.ended(StepEnd::Blocked), [2, 3, 6]);
    assert_eq!(site.why(3), "blocked by `s0`", "it is told why though it waits for something else");
    assert_eq!(site.why(6), "blocked by `s0`");
    assert!(!site.run.is_stopping());
    site.end(1);
    site.end(4);
    site.end(5);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.ended(StepEnd::Ok), [1, 4, 5]);
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [0, 3]);
}

#[test]
fn tolerated_failures_do_not_trip_a_failure_domain() {
    let mut site = two_failure_domains(1);
    site.fail(0, "no");
    site.end(1);
    assert_eq!(site.running(), [3, 4]);
    site.fail(3, "no");
    assert_eq!(site.ended(StepEnd::Blocked), [6]);
    assert_eq!(site.why(6), "blocked by `s3`");
}

#[test]
fn failure_domain_reopens_after_accept_or_retry() {
    let mut site = two_failure_domains(0);
    site.fail(0, "no");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.running(), [1, 2, 4]);
    let mut site = two_failure_domains(0);
    site.fail(0, "no");
    site.fail(1, "no");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.running(), [4], "the other one is a reason still");
    site.on(Event::Retry { step: StepId(1), by: me() });
    assert_eq!(site.running(), [1, 2, 4]);
}

#[test]
fn running_step_of_a_tripped_domain_is_not_retried() {
    let mut again = two_failure_domains(0).run.plan().draft().clone();
    if let Kind::Step(step) = &mut again.vertices[1].kind {
        (step.retries, step.delay_ms) = (3, 1);
    }
    let mut site = Site::new(again);
    site.fail(0, "no");
    site.fail(1, "no");
    assert_eq!(site.ended(StepEnd::Failed(FailureKind::Exit)), [0, 1]);
}

#[test]
fn slot_reserved_for_a_blocked_step_is_not_lost() {
    let inside = |subject| Step { limits: vec![0], failure_domain: Some(0), ..on(subject) };
    let other = Step { limits: vec![0], ..on(2) };
    let vertices = vec![step(&[], inside(0)), step(&[], inside(1)), step(&[], other)];
    let alone =
        FailureDomain { name: "role".to_owned(), trips_alone: true, ..FailureDomain::default() };
    let limits = vec![limit(1, Holder::Subject)];
    let mut site = Site::new(Draft { limits, failure_domains: vec![alone], ..draft(vertices) });
    site.fail(0, "no");
    assert_eq!(site.ended(StepEnd::Blocked), [1]);
    assert_eq!(site.running(), [2]);
}
