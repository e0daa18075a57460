//! Commands of a person: hold, release, stop, retry, mark; and the answers to `why`.

use hoist_engine::plan::{Draft, FailureDomain, OnFailure, Rule, Step};
use hoist_engine::record::{End, FailedCheck, FailureKind, Outcome};
use hoist_engine::run::{AttemptStatus, CommandRefusal, Reason, State, StepEnd};
use hoist_engine::{Effect, Event, Run, StepId};

use crate::site::{Site, draft, join, me, on, step};

const FAILED: StepEnd = StepEnd::Failed(FailureKind::Exit);

fn plain() -> Step {
    Step { on_failure: OnFailure::Continue, ..Step::default() }
}

fn line(count: u32) -> Draft {
    let after = |at: u32| at.checked_sub(1).into_iter().collect::<Vec<u32>>();
    draft((0..count).map(|at| step(&after(at), plain())).collect())
}

fn hold(step: u32, held: bool) -> Event {
    Event::Hold { step: StepId(step), held, by: me() }
}

#[test]
fn held_step_becomes_ready_and_waits() {
    let mut site = Site::new(line(3));
    site.on(hold(1, true));
    site.end(0);
    assert_eq!(site.in_state(State::Ready), [1]);
    assert_eq!(site.why(1), "held by an operator; release it to continue");
    assert_eq!(site.run.stuck(), [(StepId(1), Reason::Held)]);
    site.restart();
    assert_eq!(site.running(), [] as [u32; 0], "also when it is read back");
    site.on(hold(1, false));
    assert_eq!(site.running(), [1]);
}

#[test]
fn step_held_during_its_check_does_not_start() {
    let before = vec![hoist_engine::plan::Call::default()];
    let mut site = Site::new(draft(vec![step(&[], Step { before, ..plain() })]));
    site.on(hold(0, true));
    site.on(Event::Checked { step: StepId(0), attempt: 1, failed: None });
    assert_eq!(site.in_state(State::Ready), [0]);
    site.on(hold(0, false));
    assert_eq!(site.in_state(State::Checking), [0], "it is looked at once more");
}

#[test]
fn run_stops_after_a_vertex_succeeded() {
    let vertices = vec![
        step(&[], plain()),
        step(&[], plain()),
        join(&[0, 1], Rule::All),
        step(&[2], plain()),
        step(&[1], plain()),
    ];
    let mut site = Site::new(draft(vertices));
    site.on(Event::StopAfter { vertices: vec![StepId(2)], by: me() });
    site.end(1);
    assert_eq!(site.running(), [0, 4], "not yet");
    site.end(0);
    assert_eq!(site.running(), [4], "running steps finish");
    assert_eq!(site.why(3), "the run was stopped before the step started");
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [3]);
    site.end(3);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn run_stops_after_a_task_except_left_out_subjects() {
    let all = || Event::StopAfter { vertices: [0, 1, 2].map(StepId).to_vec(), by: me() };
    // In any order, and with a failure and a retry in between.
    let mut site = Site::new(draft((0..5).map(|at| step(&[], on(at % 3))).collect()));
    site.on(Event::Hold { step: StepId(4), held: true, by: me() });
    site.on(all());
    site.end(2);
    site.end(0);
    site.end(3);
    site.on(Event::Hold { step: StepId(4), held: false, by: me() });
    assert_eq!(site.running(), [1, 4], "not yet");
    site.end(1);
    assert!(site.run.is_stopping());
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded), "nothing was left to stop");
    // One subject is left out, and the goal does not wait for it.
    let mut site = Site::new(failure_domain());
    site.on(all());
    site.fail(1, "no");
    site.end(0);
    assert!(!site.run.is_stopping());
    site.end(2);
    assert!(site.run.is_stopping());
    for at in [3, 5] {
        if site.running().contains(&at) {
            site.end(at);
        }
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    // All vertices ended long ago.
    let mut site = Site::new(line(4));
    for at in 0..3 {
        site.end(at);
    }
    site.on(all());
    assert!(site.run.is_stopping());
}

#[test]
fn stop_after_an_ended_vertex_stops_at_once() {
    let mut site = Site::new(line(3));
    site.end(0);
    site.on(Event::StopAfter { vertices: vec![StepId(0)], by: me() });
    site.end(1);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    assert_eq!(site.ended(StepEnd::Stopped), [2]);
}

#[test]
fn retry_reopens_a_step_and_only_its_successors() {
    let vertices = vec![
        step(&[], plain()),
        step(&[0], plain()),
        join(&[1], Rule::All),
        step(&[2], plain()),
        step(&[], plain()),
        step(&[4], plain()),
        // Blocked by both.
        step(&[3, 5], plain()),
    ];
    let mut site = Site::new(draft(vertices));
    site.fail(0, "no");
    site.fail(4, "no");
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.ended(StepEnd::Blocked), [1, 2, 3, 5, 6]);
    let roots = |steps: &[u32]| Reason::Blocked {
        roots: steps.iter().copied().map(StepId).collect(),
        more: 0,
    };
    assert_eq!(site.run.why(StepId(3)), roots(&[0]));
    assert_eq!(site.run.why(StepId(6)), roots(&[0, 4]));
    site.on(Event::Retry { step: StepId(0), by: me() });
    assert_eq!(site.run.outcome(), None);
    assert_eq!(site.running(), [0]);
    assert_eq!(site.ended(StepEnd::Blocked), [5, 6]);
    assert_eq!(site.ended(FAILED), [4]);
    for at in [0, 1, 3] {
        site.end(at);
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "the other one still has");
    assert_eq!(site.run.why(StepId(6)), roots(&[4]));
    site.on(Event::Retry { step: StepId(1), by: me() });
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "a finished step is not retried");
}

/// Two steps on each of three subjects, one of which may fail.
fn failure_domain() -> Draft {
    let of = |subject| Step { failure_domain: Some(0), ..on(subject) };
    let firsts = (0..3).map(|at| step(&[], of(at)));
    let seconds = (0..3).map(|at| step(&[at], of(at)));
    let failure_domains =
        vec![FailureDomain { name: "role".to_owned(), tolerate: 1, ..FailureDomain::default() }];
    Draft { failure_domains, ..draft(firsts.chain(seconds).collect()) }
}

#[test]
fn skipped_step_passes_on_a_failure() {
    let skipped = Step { skip: Some("not selected".to_owned()), ..plain() };
    let vertices =
        vec![step(&[], plain()), step(&[0], skipped), step(&[1], plain()), step(&[2], plain())];
    let mut site = Site::new(draft(vertices));
    site.on(Event::StopAfter { vertices: vec![StepId(1)], by: me() });
    site.fail(0, "no");
    assert_eq!(site.ended(StepEnd::Skipped), [1]);
    assert_eq!(site.ended(StepEnd::Blocked), [2, 3]);
    assert_eq!(
        (site.why(1).as_str(), site.why(3).as_str()),
        ("skipped: not selected", "blocked by `s0`")
    );
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "nothing good ended to stop after");
    site.on(Event::Retry { step: StepId(0), by: me() });
    site.end(0);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped), "now it came to a good end");
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [2]);
}

#[test]
fn skipped_step_of_a_left_out_subject_stays_skipped() {
    let skipped = Step { skip: Some("not selected".to_owned()), ..on(0) };
    let in_role = |step| Step { failure_domain: Some(0), ..step };
    let vertices = vec![step(&[], in_role(on(0))), step(&[0], in_role(skipped)), step(&[1], on(1))];
    let failure_domains = failure_domain().failure_domains;
    let mut site = Site::new(Draft { failure_domains, ..draft(vertices) });
    site.fail(0, "no");
    assert_eq!(site.ended(StepEnd::Skipped), [1]);
    assert_eq!(site.why(2), "blocked by `s0`");
    site.on(Event::Retry { step: StepId(0), by: me() });
    site.end(0);
    assert_eq!(site.running(), [2]);
}

#[test]
fn retry_readmits_a_left_out_subject() {
    let mut site = Site::new(failure_domain());
    site.fail(1, "no");
    assert_eq!(site.ended(StepEnd::LeftOut), [4]);
    assert_eq!(site.why(4), "the subject is left out because of `s1`");
    site.on(Event::Retry { step: StepId(1), by: me() });
    assert_eq!(site.running(), [0, 1, 2]);
    site.fail(0, "no");
    assert_eq!(site.ended(StepEnd::LeftOut), [3], "it does not count any more");
    for at in [1, 2, 4, 5] {
        site.end(at);
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Degraded));
}

#[test]
fn run_stopped_by_failures_continues_when_accepted() {
    let mut site = Site::new(failure_domain());
    site.fail(0, "no");
    site.fail(1, "no");
    assert_eq!(site.run.outcome(), None, "the third still runs");
    site.on(Event::Mark { step: StepId(1), good: true, by: me() });
    assert_eq!(site.running(), [2, 4]);
    for at in [2, 4, 5] {
        site.end(at);
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Degraded));
}

#[test]
fn stopped_run_stays_stopped_after_one_retry() {
    let mut site = Site::new(failure_domain());
    site.fail(0, "no");
    site.fail(1, "no");
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    assert_eq!(site.ended(StepEnd::Stopped), [5]);
    site.on(Event::Retry { step: StepId(1), by: me() });
    site.end(1);
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped), "never a success");
}

#[test]
fn subject_waits_for_all_its_unknown_steps() {
    let vertices = vec![step(&[], on(0)), step(&[], on(0)), step(&[], plain()), step(&[2], on(0))];
    let mut site = Site::new(draft(vertices));
    site.restart();
    for at in [0, 1] {
        site.on(Event::Found { step: StepId(at), attempt: 1, found: AttemptStatus::Gone });
    }
    site.end(2);
    assert_eq!(site.why(3), "the outcome of `s0`, `s1` is unknown; mark or retry it");
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.in_state(State::Ready), [3], "one of two is not enough");
    site.on(Event::Mark { step: StepId(1), good: true, by: me() });
    assert_eq!(site.running(), [3]);
}

#[test]
fn stop_now_survives_reading_the_journal_back() {
    let mut site = Site::new(draft(vec![step(&[], plain()), step(&[], plain())]));
    site.on(Event::Stop { now: true, by: me() });
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 1, found: AttemptStatus::Running });
    assert!(site.effects.contains(&Effect::Kill { step: StepId(0), attempt: 1 }));
    site.on(Event::Found { step: StepId(1), attempt: 1, found: AttemptStatus::Never });
    assert_eq!(site.ended(StepEnd::Interrupted), [1], "it is not started to be killed");
    site.ran(0, End::Interrupted);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [0, 1]);
}

#[test]
fn waiting_step_names_predecessors_behind_joins() {
    let vertices = vec![
        step(&[], plain()),
        step(&[], plain()),
        join(&[0, 1], Rule::All),
        step(&[2], plain()),
        step(&[3], Step { skip: Some("not here".to_owned()), ..plain() }),
    ];
    let mut site = Site::new(draft(vertices));
    assert_eq!(site.why(3), "waits for `s0`, `s1`");
    site.end(0);
    assert_eq!(site.why(3), "waits for `s1`");
    assert_eq!(site.why(0), "nothing holds the step back");
    site.end(1);
    site.end(3);
    assert_eq!(site.why(4), "skipped: not here");
}

/// Two layers; each step of the second waits for all of the first, repeatedly.
#[test]
fn root_causes_are_found_in_one_walk() {
    let width = 20_u32;
    let layers = 200_u32;
    let mut vertices = Vec::new();
    for layer in 0..layers {
        let before: Vec<u32> = match layer.checked_sub(1) {
            Some(last) => (last * width..layer * width).collect(),
            None => Vec::new(),
        };
        vertices.extend((0..width).map(|_| step(&before, plain())));
    }
    let mut site = Site::new(draft(vertices));
    site.fail(7, "no");
    for at in (0..width).filter(|at| *at != 7) {
        site.end(at);
    }
    let last = StepId(width * layers - 1);
    assert_eq!(site.run.why(last), Reason::Blocked { roots: vec![StepId(7)], more: 0 });
}

#[test]
fn accepting_a_failure_does_not_revoke_a_stop() {
    let mut site = Site::new(failure_domain());
    site.fail(0, "no");
    site.fail(1, "no");
    site.on(Event::Stop { now: false, by: me() });
    site.on(Event::Mark { step: StepId(1), good: true, by: me() });
    assert_eq!(site.running(), [2], "nothing new starts");
    site.end(2);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
}

/// A step with a precondition and a postcondition.
fn looked_at() -> Step {
    let look = || vec![hoist_engine::plan::Call::default()];
    Step { before: look(), after: look(), ..plain() }
}

fn verified(step: u32, holds: bool) -> Event {
    let failed = (!holds).then(|| FailedCheck::not_made("no"));
    Event::Verified { step: StepId(step), attempt: 1, failed }
}

#[test]
fn stop_now_ends_running_checks() {
    let mut site = Site::new(draft((0..4).map(|_| step(&[], looked_at())).collect()));
    for at in [1, 2, 3] {
        site.on(Event::Checked { step: StepId(at), attempt: 1, failed: None });
    }
    site.end(2);
    site.end(3);
    assert_eq!(site.in_state(State::Verifying), [2, 3]);
    site.effects.clear();
    site.on(Event::Stop { now: true, by: me() });
    let kills = [0, 1, 2, 3].map(|at| Effect::Kill { step: StepId(at), attempt: 1 });
    assert_eq!(site.effects, kills);
    site.effects.clear();
    site.on(Event::Checked {
        step: StepId(0),
        attempt: 1,
        failed: Some(FailedCheck::not_made("ended")),
    });
    site.end(1);
    assert_eq!(site.effects, [], "nothing more is looked at");
    site.on(verified(2, false));
    site.on(verified(3, true));
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    assert_eq!(site.ended(StepEnd::Stopped), [0], "it was never begun");
    assert_eq!(site.ended(StepEnd::Interrupted), [1, 2]);
    assert_eq!(site.ended(StepEnd::Ok), [3], "who could still see that it holds is believed");
}

#[test]
fn check_killed_by_stop_now_is_not_repeated_later() {
    let mut site = Site::new(draft(vec![step(&[], Step { before: Vec::new(), ..looked_at() })]));
    site.end(0);
    site.on(Event::Stop { now: true, by: me() });
    site.restart();
    assert_eq!(site.effects, []);
    assert_eq!(site.ended(StepEnd::Interrupted), [0]);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
}

#[test]
fn marking_a_step_changes_the_outcome_of_an_ended_run() {
    let strict = Step::default;
    let mut site = Site::new(draft(vec![step(&[], strict()), step(&[], strict())]));
    site.fail(0, "no");
    site.fail(1, "no");
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
    let mark = |step, good| Event::Mark { step: StepId(step), good, by: me() };
    site.on(mark(0, true));
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "the other one failed as well");
    site.on(mark(1, true));
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
    let mut site = Site::new(line(2));
    site.fail(0, "no");
    site.on(mark(0, true));
    assert_eq!(site.run.outcome(), Some(Outcome::Failed), "blocked steps are not done");
    assert_eq!(site.ended(StepEnd::Blocked), [1]);
    site.on(Event::Resume { by: me() });
    site.end(1);
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn accepting_a_step_readmits_its_left_out_subject() {
    let mut site = Site::new(failure_domain());
    site.end(1);
    site.fail(4, "no");
    for at in [0, 2, 3, 5] {
        site.end(at);
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Degraded));
    site.on(Event::Mark { step: StepId(4), good: true, by: me() });
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn unknown_outcome_can_be_marked_after_the_run_ended() {
    let mut site = Site::new(draft(vec![step(&[], plain())]));
    site.restart();
    site.on(Event::Stop { now: false, by: me() });
    site.on(Event::Found { step: StepId(0), attempt: 1, found: AttemptStatus::Gone });
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn command_without_effect_is_refused_with_a_reason() {
    let vertices = [0, 1].map(|at| step(&[], on(at))).into_iter();
    let mut site = Site::new(draft(vertices.chain([join(&[0, 1], Rule::All)]).collect()));
    let retry = |step| Event::Retry { step: StepId(step), by: me() };
    let resume = Event::Resume { by: me() };
    let name = |step: u32| format!("s{step}");
    assert_eq!(site.run.takes(&hold(2, true)), Err(CommandRefusal::NoStep(name(2))));
    assert_eq!(site.run.takes(&hold(3, true)), Err(CommandRefusal::NoVertex(StepId(3))));
    assert_eq!(site.run.takes(&hold(0, true)), Err(CommandRefusal::Begun(name(0))));
    assert_eq!(site.run.takes(&hold(0, false)), Ok(()), "it is as it is wished");
    assert_eq!(site.run.takes(&retry(0)), Err(CommandRefusal::NotFailed(name(0))));
    assert_eq!(site.run.takes(&resume), Err(CommandRefusal::UnderWay));
    site.fail(0, "no");
    assert_eq!(site.run.takes(&retry(0)), Err(CommandRefusal::Stopping), "one failure stops it");
    assert_eq!(site.run.takes(&resume), Ok(()));
    site.end(1);
    assert_eq!(site.run.takes(&retry(0)), Ok(()));
    assert_eq!(site.run.takes(&hold(0, true)), Err(CommandRefusal::Ended));
    assert_eq!(site.run.takes(&Event::Stop { now: true, by: me() }), Err(CommandRefusal::Ended));
    let pause = |subject| Event::Pause { subject: Some(subject), paused: true, by: me() };
    assert_eq!(site.run.takes(&pause(2)), Err(CommandRefusal::NoSubject(2)));
}

#[test]
fn copy_of_a_run_shows_running_checks() {
    let mut site = Site::new(draft(vec![step(&[], looked_at()), step(&[], looked_at())]));
    let mut copy = Run::replay(site.run.plan(), &site.journal).unwrap();
    let mut kept = site.journal.len();
    assert_eq!(site.run.checking().count(), 2);
    let mut shows = |site: &Site, expected: [State; 2]| {
        for record in &site.journal[kept..] {
            copy.follow(kept, record).expect("the decided record");
            kept += 1;
        }
        copy.show_checking(&site.run);
        assert_eq!([0, 1].map(|at| copy.state(StepId(at))), expected);
    };
    shows(&site, [State::Checking, State::Checking]);
    site.on(Event::Checked { step: StepId(0), attempt: 1, failed: None });
    shows(&site, [State::Running, State::Checking]);
    site.on(hold(1, true));
    site.on(Event::Checked { step: StepId(1), attempt: 1, failed: None });
    shows(&site, [State::Running, State::Ready]);
    site.on(hold(1, false));
    shows(&site, [State::Running, State::Checking]);
    site.on(Event::Stop { now: true, by: me() });
    site.ran(0, End::Interrupted);
    site.on(Event::Checked { step: StepId(1), attempt: 1, failed: None });
    shows(&site, [State::Ended(StepEnd::Interrupted), State::Ended(StepEnd::Stopped)]);
}

#[test]
fn stopping_run_is_not_resumed() {
    let mut site = Site::new(line(2));
    site.on(Event::Stop { now: true, by: me() });
    let resume = || Event::Resume { by: me() };
    assert_eq!(site.run.takes(&resume()), Err(CommandRefusal::Ending));
    site.on(resume());
    site.ran(0, End::Interrupted);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped), "killed steps have not failed");
    site.on(resume());
    assert_eq!(site.running(), [0]);
}

/// One subject with two tolerated failures; another subject; and one that continues.
fn twice_failed() -> Site {
    let of = |subject| Step { failure_domain: Some(0), ..on(subject) };
    let vertices = vec![
        step(&[], of(0)),
        step(&[], of(0)),
        step(&[0], of(0)),
        step(&[], of(1)),
        step(&[], on(2)),
    ];
    let failure_domains = failure_domain().failure_domains;
    let mut site = Site::new(Draft { failure_domains, ..draft(vertices) });
    site.fail(0, "no");
    site.fail(1, "no");
    site
}

#[test]
fn subject_with_another_failure_stays_left_out() {
    let mut site = twice_failed();
    site.on(Event::Mark { step: StepId(0), good: true, by: me() });
    assert_eq!(site.ended(StepEnd::LeftOut), [2]);
    site.fail(3, "no");
    assert!(site.run.is_stopping(), "a second one is too many");
    site.end(4);
    assert_eq!(site.run.outcome(), Some(Outcome::Failed));
}

#[test]
fn subject_is_readmitted_after_its_last_failure() {
    let mut site = twice_failed();
    let retry = |step| Event::Retry { step: StepId(step), by: me() };
    site.on(retry(0));
    assert_eq!(site.running(), [0, 3, 4]);
    site.restart();
    site.on(Event::Found { step: StepId(0), attempt: 2, found: AttemptStatus::Running });
    site.end(0);
    assert_eq!((site.running(), site.ended(StepEnd::LeftOut)), (vec![3, 4], vec![2]));
    site.on(retry(1));
    site.end(1);
    assert_eq!(site.running(), [2, 3, 4]);
    for at in [2, 3, 4] {
        site.end(at);
    }
    assert_eq!(site.run.outcome(), Some(Outcome::Succeeded));
}

#[test]
fn run_that_ended_while_paused_can_be_resumed() {
    let mut site = Site::new(line(2));
    site.on(Event::Pause { subject: None, paused: true, by: me() });
    site.on(Event::Stop { now: false, by: me() });
    site.end(0);
    assert_eq!(site.run.outcome(), Some(Outcome::Stopped));
    site.on(Event::Resume { by: me() });
    assert_eq!(site.running(), [1]);
}
