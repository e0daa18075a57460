//! Joins that fail, and joins that must wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hoist_api::Code;
use hoist_cluster::detection::DiskState;
use hoist_cluster::id::{ClusterId, Pin};
use hoist_cluster::membership::MembershipEnd;
use hoist_member::join::{self, JoinError};
use hoist_model::Exit;
use jiff::SignedDuration;

use crate::controller::{Controller, Policy};
use crate::machine::{Machine, intent};

#[test]
fn join_ends_with_a_membership() {
    let controller = Controller::start();
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let member = join::begin(&machine.setup, &intent, Some(&token)).unwrap();
    assert_eq!(member.node.as_str(), "n1");
    assert!(matches!(machine.state().disk_state(), DiskState::Member(_)));
    assert_eq!((controller.accepted(), controller.confirmed()), (1, 1));
    let mut files: Vec<_> = fs_err::read_dir(machine.state().path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["authorities.pem", "cluster.json", "identity.pem", "node-id"]);
}

#[test]
fn wrong_pin_sends_no_application_bytes() {
    let controller = Controller::start();
    let machine = Machine::new();
    let other = Pin::of_key(b"another root");
    let intent = intent(&controller, &[other], None);
    let error = join::begin(&machine.setup, &intent, None).unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    let text = error.to_string();
    assert!(
        text.contains(&other.to_string()) && text.contains(&controller.pin.to_string()),
        "{text}"
    );
    assert_eq!(controller.received.load(Ordering::Relaxed), 0);
    assert_eq!(machine.state().disk_state(), DiskState::None);
    let (_, pins) = join::observed_pins(&intent.addresses).unwrap();
    assert_eq!(pins, [controller.pin]);
    assert_eq!(controller.received.load(Ordering::Relaxed), 0);
}

#[test]
fn refused_token_is_shown_and_the_join_is_undone() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Refuse;
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let error = join::begin(&machine.setup, &intent, Some(&token)).unwrap_err();
    assert_eq!(error.to_string(), "the token has expired; ask for another one");
    assert_eq!(error.exit(), Exit::Refused);
    assert_eq!(machine.state().disk_state(), DiskState::None);
    assert!(!machine.state().path().join("join-token").exists());
}

#[test]
fn lost_reply_is_asked_for_again_and_gives_the_same_membership() {
    let controller = Controller::start();
    controller.behaviour.lock().lost.insert("/cluster/v1/join", 1);
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let member = join::begin(&machine.setup, &intent, Some(&token)).unwrap();
    assert_eq!((member.join_order, controller.accepted()), (1, 1));
    let nodes = controller.nodes.lock();
    let node = nodes.values().next().unwrap();
    assert_eq!(node.requests.len(), 1, "the same request was repeated");
}

#[test]
fn controller_of_another_cluster_is_refused() {
    let controller = Controller::start();
    controller.behaviour.lock().uid = ClusterId::from_random([8; 16]);
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let error = join::begin(&machine.setup, &intent, Some(&token)).unwrap_err();
    assert!(matches!(error, JoinError::OtherCluster { .. }), "{error}");
    assert_eq!((error.exit(), controller.accepted()), (Exit::Refused, 0));
    assert_eq!(machine.state().disk_state(), DiskState::None);
}

#[test]
fn clocks_that_differ_too_much_are_both_named() {
    let controller = Controller::start();
    controller.behaviour.lock().clock_ahead = SignedDuration::from_mins(10);
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let error = join::begin(&machine.setup, &intent, Some(&token)).unwrap_err();
    let JoinError::Clock { node, controller: theirs, .. } = &error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains(&node.to_string()) && text.contains(&theirs.to_string()), "{text}");
    assert_eq!((error.exit(), controller.accepted()), (Exit::Refused, 0));
    // A small difference is a warning.
    controller.behaviour.lock().clock_ahead = SignedDuration::from_mins(2);
    join::begin(&machine.setup, &intent, Some(&token)).unwrap();
    assert!(machine.notes.text().contains("warning: clock is"), "{}", machine.notes.text());
}

#[test]
fn waiting_node_can_be_accepted_later() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Wait;
    let mut machine = Machine::new();
    machine.setup.wait = Duration::from_millis(300);
    let intent = intent(&controller, &[controller.pin], None);
    let error = join::begin(&machine.setup, &intent, None).unwrap_err();
    assert_eq!(error.exit(), Exit::Waiting);
    assert!(error.to_string().ends_with("red blue green"), "{error}");
    assert!(matches!(machine.state().disk_state(), DiskState::Joining { .. }));
    let again = join::resume(&machine.setup, None).unwrap_err();
    assert!(matches!(again, JoinError::Pending { .. }), "{again}");
    controller.behaviour.lock().policy = Policy::Accept;
    let member = join::resume(&machine.setup, None).unwrap();
    assert_eq!((member.join_order, controller.confirmed()), (1, 1));
}

#[test]
fn rejected_node_is_clean_again() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Wait;
    let mut machine = Machine::new();
    machine.setup.wait = Duration::from_millis(100);
    let intent = intent(&controller, &[controller.pin], None);
    join::begin(&machine.setup, &intent, None).unwrap_err();
    controller.behaviour.lock().policy = Policy::Refuse;
    let error = join::resume(&machine.setup, None).unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert_eq!(machine.state().disk_state(), DiskState::None);
}

#[test]
fn signal_undoes_a_join_that_waits() {
    let controller = Controller::start();
    controller.behaviour.lock().policy = Policy::Wait;
    let machine = Machine::new();
    let intent = intent(&controller, &[controller.pin], None);
    let interrupt = machine.setup.interrupt.clone();
    let trigger = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        interrupt.trigger();
    });
    let error = join::begin(&machine.setup, &intent, None).unwrap_err();
    trigger.join().unwrap();
    assert!(matches!(error, JoinError::Interrupted { is_undone: true }), "{error}");
    assert_eq!(error.exit(), Exit::Stopped);
    assert_eq!(machine.state().disk_state(), DiskState::None);
    assert!(controller.nodes.lock().is_empty(), "the request is withdrawn");
}

#[test]
fn node_that_is_expelled_while_it_joins_is_told() {
    let controller = Controller::start();
    controller.behaviour.lock().refusal = Some(Code::MemberExpelled);
    let machine = Machine::new();
    let token = controller.token();
    let intent = intent(&controller, &[controller.pin], Some(&token));
    let error = join::begin(&machine.setup, &intent, Some(&token)).unwrap_err();
    assert!(matches!(error, JoinError::Ended(MembershipEnd::Expelled)), "{error}");
    assert_eq!(error.exit(), Exit::Refused);
    let disk = machine.state().disk_state();
    assert!(matches!(disk, DiskState::Ended(_, MembershipEnd::Expelled)), "{disk:?}");
    assert_eq!(machine.state().join_intent().unwrap(), None);
}

#[test]
fn silent_controller_leaves_nothing_behind() {
    let controller = Controller::start();
    controller.stop(true);
    let machine = Machine::new();
    let intent = intent(&controller, &[controller.pin], None);
    let error = join::begin(&machine.setup, &intent, None).unwrap_err();
    assert_eq!(error.exit(), Exit::Failed, "{error}");
    assert_eq!(machine.state().disk_state(), DiskState::None);
    assert!(machine.state().node_id().unwrap().is_none(), "an unused key is removed");
}
