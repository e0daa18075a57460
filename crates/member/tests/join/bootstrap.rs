//! The command `bootstrap` as a whole, and `identity`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hoist_cluster::config::ClusterConfig;
use hoist_cluster::detection::{Answer, DiskState, Flags};
use hoist_cluster::id::Pin;
use hoist_member::bootstrap::{
    self, BootstrapError, BootstrapHost, BootstrapRequest, Discovery, FoundError, FoundedCluster,
    Founder, Outcome,
};
use hoist_member::console::Console;
use hoist_member::identity;
use hoist_member::state::LockKind;
use hoist_model::{Exit, Name};

use crate::controller::{Controller, Policy};
use crate::machine::Machine;

/// A network that cannot be searched.
struct Unsearched;

impl Discovery for Unsearched {
    fn ask(&self, _: Option<&ClusterConfig>, _: &[Pin], _: &dyn Console) -> Option<Vec<Answer>> {
        None
    }
}

/// A search that ends without answers.
struct Silence;

impl Discovery for Silence {
    fn ask(&self, _: Option<&ClusterConfig>, _: &[Pin], _: &dyn Console) -> Option<Vec<Answer>> {
        Some(Vec::new())
    }
}

struct TestFounder {
    controller: Arc<Controller>,
    was_asked: AtomicBool,
}

impl Founder for TestFounder {
    fn describe(&self) -> String {
        self.controller.authority.clone()
    }

    fn found(&self, _: &Name, _: Option<&ClusterConfig>) -> Result<FoundedCluster, FoundError> {
        self.was_asked.store(true, Ordering::Relaxed);
        let address = self.controller.authority.parse().unwrap();
        Ok(FoundedCluster { address, token: self.controller.token() })
    }
}

fn founder(controller: &Arc<Controller>) -> TestFounder {
    TestFounder { controller: Arc::clone(controller), was_asked: AtomicBool::new(false) }
}

fn host<'a>(machine: &Machine, founder: Option<&'a TestFounder>) -> BootstrapHost<'a> {
    BootstrapHost {
        state: machine.setup.state.clone(),
        console: machine.setup.console.clone(),
        interrupt: machine.setup.interrupt.clone(),
        facts: machine.setup.facts.clone(),
        service: machine.setup.service.clone(),
        discovery: &Unsearched,
        founder: founder.map(|founder| founder as &dyn Founder),
    }
}

fn request(flags: Flags) -> BootstrapRequest {
    BootstrapRequest {
        flags,
        config: Some(ClusterConfig { id: None, ..ClusterConfig::default() }),
        preferred: None,
        install_service: false,
        dry_run: false,
        wait: Duration::from_millis(200),
    }
}

fn joining(controller: &Controller) -> Flags {
    Flags {
        join: Some(controller.authority.parse().unwrap()),
        token: Some(controller.token()),
        ..Flags::default()
    }
}

#[test]
fn founding_joins_the_first_member_and_is_repeatable() {
    let controller = Controller::start();
    let machine = Machine::new();
    let founder = founder(&controller);
    let mut request = request(Flags { single_node: true, ..Flags::default() });
    request.config.as_mut().unwrap().id = Some("lab".parse().unwrap());
    let report = bootstrap::run(&request, &host(&machine, Some(&founder))).unwrap();
    assert_eq!((report.outcome, report.exit()), (Outcome::Founded, Exit::Done));
    assert!(matches!(machine.state().disk_state(), DiskState::Founded(_)));
    let again = bootstrap::run(&request, &host(&machine, None)).unwrap();
    assert_eq!((again.outcome, again.exit()), (Outcome::AlreadyMember, Exit::Done));
    assert_eq!(controller.confirmed(), 1);
}

#[test]
fn agent_alone_does_not_found() {
    let machine = Machine::new();
    let request = request(Flags { single_node: true, ..Flags::default() });
    let error = bootstrap::run(&request, &host(&machine, None)).unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(error.remedy().unwrap().contains("hoist serve"));
}

#[test]
fn failed_join_never_becomes_founding() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Refuse;
    let machine = Machine::new();
    let founder = founder(&controller);
    let flags = Flags { yes: true, ..joining(&controller) };
    for _ in 0..2 {
        let ended = bootstrap::run(&request(flags.clone()), &host(&machine, Some(&founder)));
        assert_eq!(ended.unwrap_err().exit(), Exit::Refused);
        assert_eq!(machine.state().disk_state(), DiskState::None);
    }
    controller.stop(true);
    bootstrap::run(&request(flags), &host(&machine, Some(&founder))).unwrap_err();
    assert!(!founder.was_asked.load(Ordering::Relaxed));
}

#[test]
fn nothing_is_founded_without_consent() {
    let controller = Controller::start();
    let machine = Machine::new();
    let founder = founder(&controller);
    let mut request = request(Flags::default());
    request.config = None;
    let error = bootstrap::run(&request, &host(&machine, Some(&founder))).unwrap_err();
    assert_eq!(error.exit(), Exit::NoCluster);
    assert!(!founder.was_asked.load(Ordering::Relaxed));
}

#[test]
fn consent_alone_founds_nothing_on_an_unsearched_network() {
    let controller = Controller::start();
    let machine = Machine::new();
    let founder = founder(&controller);
    let request = request(Flags { yes: true, ..Flags::default() });
    let error = bootstrap::run(&request, &host(&machine, Some(&founder))).unwrap_err();
    assert_eq!(error.exit(), Exit::NoCluster);
    assert!(!founder.was_asked.load(Ordering::Relaxed));
}

#[test]
fn consent_founds_where_the_search_saw_nothing() {
    let controller = Controller::start();
    let machine = Machine::new();
    let founder = founder(&controller);
    let mut request = request(Flags { yes: true, ..Flags::default() });
    request.config = None;
    let host = BootstrapHost { discovery: &Silence, ..host(&machine, Some(&founder)) };
    let report = bootstrap::run(&request, &host).unwrap();
    assert_eq!(report.outcome, Outcome::Founded);
}

#[test]
fn contradictory_flags_are_usage_errors() {
    let controller = Controller::start();
    let machine = Machine::new();
    let flags = Flags { single_node: true, ..joining(&controller) };
    let error = bootstrap::run(&request(flags), &host(&machine, None)).unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
}

#[test]
fn held_lock_has_its_exit_code() {
    let controller = Controller::start();
    let machine = Machine::new();
    let _held = machine.state().lock(LockKind::Operation, "bootstrap").unwrap();
    let error = bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap_err();
    assert_eq!(error.exit(), Exit::Locked);
    assert_eq!(controller.accepted(), 0);
}

#[test]
fn damaged_state_is_an_error_and_never_none() {
    let controller = Controller::start();
    let machine = Machine::new();
    bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap();
    fs_err::write(machine.state().path().join("cluster.json"), "{").unwrap();
    let error = bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap_err();
    assert!(matches!(error, BootstrapError::Refused(_)), "{error}");
    assert_eq!(error.exit(), Exit::Failed);
    assert_eq!(controller.accepted(), 1, "no second node was registered");
}

#[test]
fn dry_run_shows_the_checks_and_changes_nothing() {
    let controller = Controller::start();
    let machine = Machine::new();
    let mut request = request(joining(&controller));
    request.dry_run = true;
    let report = bootstrap::run(&request, &host(&machine, None)).unwrap();
    assert_eq!((report.outcome, report.exit()), (Outcome::WouldJoin, Exit::WouldChange));
    assert!(report.to_string().contains("\n  ok: clock is 0 s"), "{report}");
    assert!(serde_json::to_value(&report).unwrap()["checks"].as_array().unwrap().len() > 5);
    assert_eq!(controller.nodes.lock().len(), 0);
    assert_eq!(fs_err::read_dir(machine.state().path()).unwrap().count(), 0);
}

#[test]
fn unfinished_join_is_continued_without_flags() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Wait;
    let machine = Machine::new();
    let waiting = bootstrap::run(&request(joining(&controller)), &host(&machine, None));
    assert_eq!(waiting.unwrap_err().exit(), Exit::Waiting);
    assert_eq!(identity::show(machine.state()).unwrap().state, "joining");
    controller.behaviour.lock().policy = Policy::Accept;
    let mut bare = request(Flags::default());
    bare.config = None;
    let report = bootstrap::run(&bare, &host(&machine, None)).unwrap();
    assert_eq!(report.outcome, Outcome::Joined);
    let view = identity::show(machine.state()).unwrap();
    assert_eq!((view.state, view.node.as_deref()), ("member", Some("n1")));
}

#[test]
fn reset_makes_another_node_of_the_machine() {
    let controller = Controller::start();
    let machine = Machine::new();
    assert!(!identity::reset(&machine.setup, false).unwrap());
    bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap();
    let first = machine.state().node_id().unwrap();
    let error = identity::reset(&machine.setup, false).unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(matches!(machine.state().disk_state(), DiskState::Member(_)));
    assert!(identity::reset(&machine.setup, true).unwrap());
    assert_eq!(machine.state().disk_state(), DiskState::None);
    bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap();
    assert_ne!(machine.state().node_id().unwrap(), first);
    assert_eq!(controller.confirmed(), 2);
}

#[test]
fn reset_withdraws_an_unfinished_join() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Wait;
    let machine = Machine::new();
    bootstrap::run(&request(joining(&controller)), &host(&machine, None)).unwrap_err();
    controller.behaviour.lock().policy = Policy::Accept;
    assert!(identity::reset(&machine.setup, true).unwrap());
    assert_eq!(machine.state().disk_state(), DiskState::None);
    assert_eq!(controller.accepted(), 0);
}
