//! Backups of the disks: sent to the controller before anything is written, and restored from the
//! job of an undo.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::provision::{
    DiskBackup, Event, NodeDiagnostic, Outcome, Phase, ProvisioningJob, Report,
};
use hoist_device::probe::Machine;
use hoist_device::undo::{plan_undo, undo as restore};
use hoist_diagnostic::{Diagnostic, chain};
use hoist_engine::action::Cancel;
use hoist_provision::backup::{self, TakenBackup};
use hoist_provision::document;

use super::controller::{CallError, Controller};
use super::event_sender::{EventSender, event};
use super::reporting;
use super::{DISKS_APPEAR, FIRST_PAUSE, LONGEST_PAUSE, LOOK_EVERY, may_appear};

/// The disks have their own copies, so an unreachable controller must not delay the run for longer.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Sends backups of disks to the controller.
pub(super) struct BackupSender {
    pub(super) controller: Arc<Controller>,
    pub(super) job: Arc<ProvisioningJob>,
    pub(super) cancel: Cancel,
}

impl BackupSender {
    /// Sends the backups to the controller. Returns one message for each that was not stored.
    pub(super) fn send(&self, taken: &[TakenBackup]) -> Vec<String> {
        self.send_until(taken, Instant::now() + TIMEOUT)
    }

    fn send_until(&self, taken: &[TakenBackup], deadline: Instant) -> Vec<String> {
        let fails = |taken: &TakenBackup| {
            let error = self.send_one(taken, deadline).err()?;
            Some(format!(
                "the backup of disk {} was not stored at the controller: {error}",
                taken.disk
            ))
        };
        taken.iter().filter_map(fails).collect()
    }

    fn send_one(&self, taken: &TakenBackup, deadline: Instant) -> Result<(), SendError> {
        // A call to an unreachable controller is slow, and there may be many disks.
        if Instant::now() >= deadline {
            return Err(SendError::TimedOut);
        }
        let backup = packed(taken).map_err(SendError::Pack)?;
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(error) = self.controller.backup(&self.job, &backup) else { return Ok(()) };
            let is_over = Instant::now() + pause > deadline || self.cancel.is_cancelled();
            if is_over || matches!(error, CallError::Refused(_) | CallError::Over(_)) {
                return Err(SendError::Call(error));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Why the controller has no copy of a backup.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("timed out")]
    TimedOut,
    #[error("{0}")]
    Pack(io::Error),
    #[error("{0}")]
    Call(CallError),
}

fn packed(taken: &TakenBackup) -> io::Result<DiskBackup> {
    let TakenBackup { disk, kernel_name, size, sector, before, ends } = taken;
    Ok(DiskBackup {
        disk: disk.to_string(),
        kernel_name: kernel_name.clone(),
        size: *size,
        sector: *sector,
        packed: STANDARD.encode(backup::pack(before, ends)?),
    })
}

/// A backup that cannot be read counts as missing: the disk has its own copy, or the caller reports
/// that no copy exists.
fn unpacked(kept: &DiskBackup) -> Option<TakenBackup> {
    let DiskBackup { disk, kernel_name, size, sector, packed } = kept;
    let (before, ends) = backup::parse(&STANDARD.decode(packed).ok()?, *size)?;
    let disk = disk.parse().ok()?;
    Some(TakenBackup {
        disk,
        kernel_name: kernel_name.clone(),
        size: *size,
        sector: *sector,
        before,
        ends,
    })
}

/// Restores the disks to their state before the run, or reports every reason against it.
pub(super) fn undo(
    job: &ProvisioningJob,
    kept: &[DiskBackup],
    machine: &Machine,
    sender: &EventSender,
) -> Report {
    let kept: Vec<TakenBackup> = kept.iter().filter_map(unpacked).collect();
    let text = serde_json::to_vec(&job.document).expect("it was read as JSON");
    let document = match document::read("job", &text) {
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
        sender.send(event("undo", &format!("restore {disk}"), Phase::Started));
    }
    match restore(&undoing, machine) {
        Ok(()) => {
            let message = Some(format!("restored: {}", disks.join(", ")));
            sender.send(Event { message, ..event("undo", "", Phase::Done) });
            Report { changed: !disks.is_empty(), ..reporting::report(Outcome::Done) }
        }
        Err(error) => {
            let cause = Diagnostic::new("", chain(&error));
            let problem = NodeDiagnostic {
                action: "undo".to_owned(),
                ..NodeDiagnostic::new("not-restored", "device", cause)
            };
            Report { changed: true, problems: vec![problem], ..reporting::report(Outcome::Failed) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hoist_provision::backup::Backup;
    use hoist_provision::backup::BackupOrigin;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn taken(disk: &str) -> TakenBackup {
        let writable = Vec::new();
        let destroys = Vec::new();
        let before = BackupOrigin { txn: Uuid::from_u128(7), writable, destroys, journal: None };
        let disk = disk.parse().expect("an id");
        let kernel_name = "sda".to_owned();
        let ends = Backup { head: vec![0; 512], tail: vec![0; 512] };
        TakenBackup { disk, kernel_name, size: 512, sector: 512, before, ends }
    }

    #[test]
    fn backup_deadline_ends_waiting_for_disks() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("bound").port();
        let came = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&came);
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let job = json!({
            "run": "r1", "session": "s1", "node": "n1", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "generation": 1, "document": {},
        });
        let backups = BackupSender {
            controller: Arc::new(Controller::new(&format!("https://127.0.0.1:{port}"), &[])),
            job: Arc::new(serde_json::from_value(job).expect("a job")),
            cancel: Cancel::default(),
        };
        let failed = backups.send_until(&[taken("a"), taken("b")], Instant::now());
        assert!(failed[0].contains("disk a") && failed[1].contains("disk b"), "{failed:?}");
        assert_eq!(came.load(Ordering::SeqCst), 0, "nobody came");
    }
}
