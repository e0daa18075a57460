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
        let deadline = Instant::now() + PATIENCE;
        let fails = |taken: &Taken| {
            let error = self.send(taken, deadline).err()?;
            Some(format!("the controller has no copy of what disk {} held: {error}", taken.disk))
        };
        taken.iter().filter_map(fails).collect()
    }

    fn send(&self, taken: &Taken, deadline: Instant) -> Result<(), String> {
        let backup = packed(taken).map_err(|error| error.to_string())?;
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(error) = self.controller.backup(&self.order, &backup) else { return Ok(()) };
            let is_over = Instant::now() + pause > deadline || self.cancel.is_cancelled();
            if is_over || matches!(error, CallError::Refused(_)) {
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
