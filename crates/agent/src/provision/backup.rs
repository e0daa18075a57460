//! What disks held before: a copy goes to the controller before anything is written, and comes back
//! with the order to put it back.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::provision::{DiskBackup, Event, Finding, Order, Outcome, Phase, Report};
use hoist_engine::action::Cancel;
use hoist_provision::device::gap::backup::{self, Taken};
use hoist_provision::device::probe::Machine;
use hoist_provision::document;
use hoist_provision::pipeline::{plan_undo, undo as put_back};

use super::controller::{CallError, Controller};
use super::reporting;
use super::telling::{Teller, event};
use super::{DISKS_APPEAR, FIRST_PAUSE, LONGEST_PAUSE, LOOK_EVERY, may_appear};
use crate::failure::chain;

/// The disks have copies of their own: a controller that is away holds nothing up for longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Who sends what disks hold.
pub(super) struct Keeper {
    pub(super) controller: Arc<Controller>,
    pub(super) order: Arc<Order>,
    pub(super) cancel: Cancel,
}

impl Keeper {
    /// Says what is not kept, and why.
    pub(super) fn keep(&self, taken: &[Taken]) -> Vec<String> {
        self.keep_until(taken, Instant::now() + PATIENCE)
    }

    fn keep_until(&self, taken: &[Taken], deadline: Instant) -> Vec<String> {
        let fails = |taken: &Taken| {
            let error = self.send(taken, deadline).err()?;
            Some(format!("the controller has no copy of what disk {} held: {error}", taken.disk))
        };
        taken.iter().filter_map(fails).collect()
    }

    fn send(&self, taken: &Taken, deadline: Instant) -> Result<(), String> {
        // A call takes its time even where nobody answers, and there may be many disks.
        if Instant::now() >= deadline {
            return Err("the time for it is over".to_owned());
        }
        let backup = packed(taken).map_err(|error| error.to_string())?;
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(error) = self.controller.backup(&self.order, &backup) else { return Ok(()) };
            let is_over = Instant::now() + pause > deadline || self.cancel.is_cancelled();
            if is_over || matches!(error, CallError::Refused(_) | CallError::Over(_)) {
                return Err(error.to_string());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn packed(taken: &Taken) -> io::Result<DiskBackup> {
    let Taken { disk, kernel_name, size, sector, before, ends } = taken;
    Ok(DiskBackup {
        disk: disk.to_string(),
        kernel_name: kernel_name.clone(),
        size: *size,
        sector: *sector,
        packed: STANDARD.encode(backup::pack(before, ends)?),
    })
}

/// What cannot be read is as good as not kept: the disk has its own copy, or it is said that nobody
/// has one.
fn unpacked(kept: &DiskBackup) -> Option<Taken> {
    let DiskBackup { disk, kernel_name, size, sector, packed } = kept;
    let (before, ends) = backup::parse(&STANDARD.decode(packed).ok()?, *size)?;
    let (disk, kernel_name) = (disk.parse().ok()?, kernel_name.clone());
    Some(Taken { disk, kernel_name, size: *size, sector: *sector, before, ends })
}

/// Puts disks back as they were before the run, or says everything that forbids it.
pub(super) fn undo(
    order: &Order,
    kept: &[DiskBackup],
    machine: &Machine,
    teller: &Teller,
) -> Report {
    let kept: Vec<Taken> = kept.iter().filter_map(unpacked).collect();
    let text = serde_json::to_vec(&order.document).expect("it was read as JSON");
    let document = match document::read("order", &text) {
        Ok(document) => document,
        Err(found) => return reporting::refused(&found),
    };
    let deadline = Instant::now() + DISKS_APPEAR;
    let undoing = loop {
        match plan_undo(&document, machine, &kept) {
            Ok(undoing) => break undoing,
            Err(found) if Instant::now() >= deadline || !may_appear(&found) => {
                return reporting::refused(&found);
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    };
    // Disks were written to, as far as the controller knows.
    if !undoing.unknown().is_empty() {
        return reporting::refused(undoing.unknown());
    }
    let disks: Vec<String> = undoing.disks().iter().map(ToString::to_string).collect();
    for disk in &disks {
        teller.tell(event("undo", &format!("put back {disk}"), Phase::Started));
    }
    match put_back(&undoing, machine) {
        Ok(()) => {
            let message = Some(format!("put back: {}", disks.join(", ")));
            teller.tell(Event { message, ..event("undo", "", Phase::Done) });
            Report { changed: !disks.is_empty(), ..reporting::report(Outcome::Done) }
        }
        Err(error) => {
            let problem = Finding {
                code: "not-put-back".to_owned(),
                class: "device".to_owned(),
                action: "undo".to_owned(),
                step: String::new(),
                what: chain(&error),
                place: String::new(),
                hint: None,
                evidence: Vec::new(),
            };
            Report { changed: true, problems: vec![problem], ..reporting::report(Outcome::Failed) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hoist_provision::device::gap::backup::Before;
    use hoist_provision::device::table::Backup;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn taken(disk: &str) -> Taken {
        let (writable, destroys) = (Vec::new(), Vec::new());
        let before = Before { txn: Uuid::from_u128(7), writable, destroys, journal: None };
        let (disk, kernel_name) = (disk.parse().expect("an id"), "sda".to_owned());
        let ends = Backup { head: vec![0; 512], tail: vec![0; 512] };
        Taken { disk, kernel_name, size: 512, sector: 512, before, ends }
    }

    #[test]
    fn when_the_time_is_over_no_disk_makes_the_work_wait_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("bound").port();
        let came = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&came);
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let order = json!({
            "run": "r1", "session": "s1", "node": "n1", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "generation": 1, "document": {},
        });
        let keeper = Keeper {
            controller: Arc::new(Controller::new(&format!("https://127.0.0.1:{port}"), &[])),
            order: Arc::new(serde_json::from_value(order).expect("an order")),
            cancel: Cancel::default(),
        };
        let failed = keeper.keep_until(&[taken("a"), taken("b")], Instant::now());
        assert!(failed[0].contains("disk a") && failed[1].contains("disk b"), "{failed:?}");
        assert_eq!(came.load(Ordering::SeqCst), 0, "nobody came");
    }
}
