//! The daemon of a member.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hoist_api::Code;
use hoist_cluster::detection::DiskState;
use hoist_cluster::membership::MembershipEnd;
use hoist_member::daemon::{self, DaemonSetup};
use hoist_member::state::StateDir;
use hoist_member::{identity, join};
use hoist_model::Exit;
use jiff::SignedDuration;

use crate::controller::Controller;
use crate::machine::{Machine, intent};

fn member(controller: &Controller) -> Machine {
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(controller, &[controller.pin], Some(&token));
    join::begin(&machine.setup, &intent, Some(&token)).unwrap();
    machine
}

fn setup(machine: &Machine) -> DaemonSetup {
    DaemonSetup {
        state: machine.setup.state.clone(),
        console: machine.setup.console.clone(),
        interrupt: machine.setup.interrupt.clone(),
        facts: machine.setup.facts.clone(),
        plugins: "/nonexistent".into(),
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn daemon_reports_keeps_its_role_and_renews() {
    let controller = Controller::start();
    let machine = member(&controller);
    controller.behaviour.lock().plan_generation = 5;
    let running = {
        let setup = setup(&machine);
        std::thread::spawn(move || daemon::run(&setup))
    };
    let role = || machine.state().role().unwrap();
    eventually("role of plan 5", || role().is_some_and(|role| role.plan_generation == 5));
    let error = daemon::run(&setup(&machine)).unwrap_err();
    assert_eq!(error.exit(), Exit::Locked, "only one daemon runs");

    // An older plan is ignored, and the member says since when its role is stale.
    controller.behaviour.lock().plan_generation = 4;
    eventually("stale role", || role().is_some_and(|role| role.stale_since.is_some()));
    assert_eq!(role().unwrap().plan_generation, 5);
    assert!(machine.notes.text().contains("the older plan is ignored"));
    controller.stop(true);
    std::thread::sleep(Duration::from_millis(1500));
    controller.behaviour.lock().plan_generation = 6;
    controller.stop(false);
    eventually("role of plan 6", || {
        role().is_some_and(|role| role.plan_generation == 6 && role.stale_since.is_none())
    });

    let sessions: std::collections::BTreeSet<String> =
        controller.reports.lock().iter().map(|report| report.session.clone()).collect();
    assert_eq!(sessions.len(), 1);
    machine.setup.interrupt.trigger();
    assert_eq!(running.join().unwrap().unwrap(), Exit::Done);
}

#[test]
fn certificate_is_renewed_with_a_new_key_and_the_id_stays() {
    let controller = Controller::start();
    let machine = member(&controller);
    let state: &StateDir = machine.state();
    let id = state.node_id().unwrap();
    let key = state.node_key().unwrap().unwrap().node_id();
    let mut file = state.member().unwrap().unwrap();
    file.certificate_from -= SignedDuration::from_hours(61 * 24);
    file.certificate_ends = file.certificate_from + SignedDuration::from_hours(90 * 24);
    state.store_member(&file).unwrap();
    // The answer to the first renewal is lost.
    controller.behaviour.lock().lost.insert("/cluster/v1/renew", 1);
    let running = {
        let setup = setup(&machine);
        std::thread::spawn(move || daemon::run(&setup))
    };
    let renewals = || controller.nodes.lock().values().map(|node| node.renewals).sum::<usize>();
    eventually("renewal", || renewals() == 2 && state.next_key().unwrap().is_none());
    assert_eq!(state.node_id().unwrap(), id);
    assert_ne!(state.node_key().unwrap().unwrap().node_id(), key);
    assert!(state.member().unwrap().unwrap().certificate_ends > file.certificate_ends);
    let reports = controller.reports.lock().len();
    eventually("report with the new certificate", || controller.reports.lock().len() > reports);
    machine.setup.interrupt.trigger();
    running.join().unwrap().unwrap();
    assert_eq!(renewals(), 2);
}

#[test]
fn ended_membership_is_stored_and_ends_the_daemon() {
    for (code, end) in [
        (Code::MemberExpelled, MembershipEnd::Expelled),
        (Code::MemberLeft, MembershipEnd::Left),
        (Code::MemberReplaced, MembershipEnd::Replaced),
    ] {
        let controller = Controller::start();
        let machine = member(&controller);
        controller.behaviour.lock().refusal = Some(code);
        let error = daemon::run(&setup(&machine)).unwrap_err();
        assert_eq!(error.exit(), Exit::Refused, "{error}");
        assert!(error.to_string().contains(end.predicate()), "{error}");
        assert!(error.remedy().unwrap().contains("identity reset"));
        let disk = machine.state().disk_state();
        assert!(matches!(disk, DiskState::Ended(_, stored) if stored == end), "{disk:?}");
        assert_eq!(identity::show(machine.state()).unwrap().state, end.as_str());
        // The next start asks no controller.
        controller.stop(true);
        let again = daemon::run(&setup(&machine)).unwrap_err();
        assert_eq!((again.exit(), again.to_string()), (Exit::Refused, error.to_string()));
        assert!(!machine.notes.text().contains("warning"), "{}", machine.notes.text());
        // The operator makes another node of the machine.
        identity::reset(&machine.setup, true).unwrap();
        assert_eq!(machine.state().disk_state(), DiskState::None);
    }
}

#[test]
fn refusal_of_a_controller_is_reported_before_silence() {
    let controller = Controller::start();
    let machine = member(&controller);
    let state = machine.state();
    let mut file = state.member().unwrap().unwrap();
    // Port 1 of this machine is closed, and the name does not exist.
    let silent = ["https://127.0.0.1:1", "https://controller.invalid:27443"];
    file.controllers.extend(silent.map(str::to_owned));
    state.store_member(&file).unwrap();
    controller.behaviour.lock().refusal = Some(Code::Forbidden);
    let running = {
        let setup = setup(&machine);
        std::thread::spawn(move || daemon::run(&setup))
    };
    let rounds = || controller.refused.load(Ordering::Relaxed);
    eventually("three rounds", || rounds() >= 3);
    machine.setup.interrupt.trigger();
    assert_eq!(running.join().unwrap().unwrap(), Exit::Done);
    let text = machine.notes.text();
    let warnings: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("warning: ") && !line.contains("cannot fetch work"))
        .collect();
    assert_eq!(warnings.len(), 3, "each once: {text}");
    let refusal = format!("warning: {}: the member is refused", controller.authority);
    assert_eq!(warnings[0], refusal);
    assert!(warnings[1].contains("cannot reach 127.0.0.1:1: "), "{text}");
    assert!(warnings[2].contains("cannot reach controller.invalid:27443: "), "{text}");
    assert_eq!(text.matches("cannot fetch work").count(), 1, "{text}");
}

#[test]
fn machine_that_is_no_member_has_no_daemon() {
    let machine = Machine::new();
    let error = daemon::run(&setup(&machine)).unwrap_err();
    assert_eq!(error.exit(), Exit::NoCluster);
}
