//! Processes that end at any write, and disks that are full. Afterwards the machine is a member,
//! or as before the join.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hoist_cluster::detection::DiskState;
use hoist_engine::journal::JournalError;
use hoist_member::join::{self, JoinError, JournalMoment, JournalProbe};

use crate::controller::Controller;
use crate::machine::{Machine, intent};

/// Each write of the journal has a moment before it and one after it: the plan, the first intent,
/// the end of each of the five steps that run.
const MOMENTS: usize = 14;

/// The moment after the write of the intent to store the bundle.
const BUNDLE: usize = 9;

/// Fails at the moments from `first` on.
fn probe(first: usize) -> JournalProbe {
    let count = AtomicUsize::new(0);
    Arc::new(move |_: JournalMoment| {
        let at = count.fetch_add(1, Ordering::Relaxed);
        if at < first {
            return Ok(());
        }
        Err(JournalError::File(io::Error::other("the process ends here")))
    })
}

/// Joins, and ends the process at this moment of the journal. False if the join ended before.
fn is_cut(machine: &mut Machine, controller: &Controller, moment: usize) -> bool {
    let token = controller.token();
    let intent = intent(controller, &[controller.pin], Some(&token));
    machine.setup.probe = Some(probe(moment));
    let ended = join::begin(&machine.setup, &intent, Some(&token));
    machine.setup.probe = None;
    match ended {
        Ok(_) => false,
        Err(JoinError::Journal(_) | JoinError::Say(_)) => true,
        Err(other) => panic!("cut at {moment}: {other}"),
    }
}

#[test]
fn crash_at_every_record_is_continued_to_a_membership() {
    let mut moment = 0;
    loop {
        let controller = Controller::start();
        let mut machine = Machine::new();
        let was_cut = is_cut(&mut machine, &controller, moment);
        if was_cut {
            // A new process decides from the files alone.
            match machine.state().disk_state() {
                DiskState::Joining { .. } => {
                    let resumed = join::resume(&machine.setup, None);
                    resumed.unwrap_or_else(|error| panic!("cut at {moment}: {error}"));
                }
                // The membership was committed, and only its record is missing.
                DiskState::Member(_) => machine.state().remove_finished_join().unwrap(),
                state => panic!("cut at {moment}: {state:?}"),
            }
        }
        assert!(matches!(machine.state().disk_state(), DiskState::Member(_)), "cut at {moment}");
        assert!(!machine.state().path().join("join-token").exists(), "cut at {moment}");
        assert_eq!((controller.accepted(), controller.confirmed()), (1, 1), "cut at {moment}");
        if !was_cut {
            break;
        }
        moment += 1;
    }
    assert!(moment >= MOMENTS, "only {moment} moments were tried");
}

#[test]
fn crash_at_every_record_can_be_given_up() {
    let mut moment = 0;
    loop {
        let controller = Controller::start();
        let mut machine = Machine::new();
        if !is_cut(&mut machine, &controller, moment) {
            break;
        }
        match join::withdraw(&machine.setup) {
            Ok(()) => assert_eq!(controller.accepted(), 0, "cut at {moment}"),
            // Behind the commit point the controller counts the node.
            Err(JoinError::NeedsOperator { .. }) => {
                assert_eq!(controller.accepted(), 0, "cut at {moment}: the node was withdrawn");
            }
            Err(other) => panic!("cut at {moment}: {other}"),
        }
        assert_eq!(machine.state().disk_state(), DiskState::None, "cut at {moment}");
        moment += 1;
    }
    assert!(moment >= MOMENTS, "only {moment} moments were tried");
}

#[test]
fn crash_during_the_undo_is_continued() {
    for moment in 0..10 {
        let controller = Controller::start();
        let mut machine = Machine::new();
        // The registration was accepted, and the bundle was not stored.
        assert!(is_cut(&mut machine, &controller, BUNDLE));
        assert_eq!(controller.accepted(), 1);
        machine.setup.probe = Some(probe(moment));
        let given_up = join::withdraw(&machine.setup);
        machine.setup.probe = None;
        if given_up.is_err() {
            let state = machine.state().disk_state();
            assert!(matches!(state, DiskState::Joining { .. }), "cut at {moment}: {state:?}");
            join::withdraw(&machine.setup)
                .unwrap_or_else(|error| panic!("cut at {moment}: {error}"));
        }
        assert_eq!(machine.state().disk_state(), DiskState::None, "cut at {moment}");
        assert_eq!(controller.accepted(), 0, "cut at {moment}");
    }
}

#[test]
fn full_disk_during_the_journal_ends_cleanly() {
    let mut moment = 0;
    loop {
        let controller = Controller::start();
        let mut machine = Machine::new();
        let token = controller.token();
        let intent = intent(&controller, &[controller.pin], Some(&token));
        // One write fails; the reserve then gives the undo its space.
        let count = Arc::<AtomicUsize>::default();
        let is_full = Arc::clone(&count);
        machine.setup.probe = Some(Arc::new(move |when| {
            let at = is_full.fetch_add(1, Ordering::Relaxed);
            if at == moment && when == JournalMoment::BeforeWrite {
                return Err(JournalError::Full(io::ErrorKind::StorageFull.into()));
            }
            Ok(())
        }));
        let ended = join::begin(&machine.setup, &intent, Some(&token));
        machine.setup.probe = None;
        let Err(error) = ended else {
            if count.load(Ordering::Relaxed) <= moment {
                break;
            }
            moment += 1;
            continue;
        };
        assert!(matches!(error, JoinError::Journal(JournalError::Full(_))), "{error}");
        match machine.state().disk_state() {
            DiskState::None => assert_eq!(controller.accepted(), 0, "full at {moment}"),
            // From the acceptance on the join is continued.
            DiskState::Joining { .. } => {
                join::resume(&machine.setup, None).unwrap();
                assert_eq!(controller.confirmed(), 1, "full at {moment}");
            }
            DiskState::Member(_) => assert_eq!(controller.confirmed(), 1, "full at {moment}"),
            state => panic!("full at {moment}: {state:?}"),
        }
        moment += 1;
    }
    assert!(moment >= MOMENTS, "only {moment} moments were tried");
}

#[test]
fn failed_write_of_any_file_ends_clean_or_can_be_continued() {
    let mut number = 0;
    loop {
        let controller = Controller::start();
        let mut machine = Machine::new();
        machine.setup.wait = Duration::from_millis(200);
        let token = controller.token();
        let intent = intent(&controller, &[controller.pin], Some(&token));
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        let sound = machine.setup.state.clone();
        machine.setup.state = sound.clone().with_probe(Arc::new(move |_| {
            if counted.fetch_add(1, Ordering::Relaxed) == number {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        }));
        let ended = join::begin(&machine.setup, &intent, Some(&token));
        machine.setup.state = sound;
        let had_failure = count.load(Ordering::Relaxed) > number;
        match machine.state().disk_state() {
            DiskState::Member(_) => {}
            DiskState::None => {
                assert!(ended.is_err());
                assert_eq!(controller.accepted(), 0, "write {number}");
                join::begin(&machine.setup, &intent, Some(&token)).unwrap();
            }
            DiskState::Joining { .. } => match join::resume(&machine.setup, None) {
                Ok(_) => {}
                Err(JoinError::UndoCompleted) => {
                    join::begin(&machine.setup, &intent, Some(&token)).unwrap();
                }
                Err(other) => panic!("write {number}: {other}"),
            },
            state => panic!("write {number}: {state:?}"),
        }
        assert_eq!((controller.accepted(), controller.confirmed()), (1, 1), "write {number}");
        if !had_failure {
            break;
        }
        number += 1;
    }
    assert!(number > 10, "only {number} writes were tried");
}

#[test]
fn secret_of_the_token_is_in_no_file_but_its_own() {
    let controller = Controller::start();
    let mut machine = Machine::new();
    assert!(is_cut(&mut machine, &controller, BUNDLE));
    let secret = "09".repeat(20);
    for entry in fs_err::read_dir(machine.state().path()).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&fs_err::read(&path).unwrap()).into_owned();
        assert_eq!(text.contains(&secret), path.ends_with("join-token"), "{}", path.display());
    }
    assert!(!machine.notes.text().contains(&secret));
}
