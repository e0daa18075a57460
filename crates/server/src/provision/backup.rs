//! What disks of a node held before a run wrote to them: a copy of what agents keep on the disks
//! themselves, which not every disk has room for. Of each node that of its last run is kept.

use std::ops::RangeInclusive;

use axum::extract::{FromRequest, Request, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::provision::{BackupKept, DiskBackup, MAX_BACKUP, MAX_BACKUPS, NodeRunState};
use hoist_inventory::record::{disk_backup_key, disk_backup_parts, disk_backups};
use hoist_model::NodeId;
use hoist_provision::device::gap::backup::{self, Taken};
use hoist_store::{Compare, Key, Op, StoreError, Txn};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Provision;
use super::record::{Kept, put};
use super::runs::Runs;
use crate::auth::AuditContext;
use crate::extract::{Json, Path};
use crate::failure::Failure;
use crate::peer::Peer;
use crate::route::{Plane, Route};

/// Every store takes as much in one value.
const PART: usize = 512 * 1024;
/// Bytes of a sector.
const SECTORS: RangeInclusive<u32> = 512..=4096;
/// Bytes of a disk: no kernel addresses more.
const MAX_SIZE: u64 = i64::MAX as u64;

/// What is kept of a node's disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackupRecord {
    pub(super) node: NodeId,
    pub(super) run: String,
    pub(super) disks: Vec<BackedUp>,
    /// The number of the next one.
    next: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackedUp {
    disk: String,
    at: Timestamp,
    bytes: usize,
    number: u32,
    parts: u32,
}

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/agent/runs/{run}/backup", Plane::Proof, keep)
            .summary(
                "An agent sends what a disk holds at its ends, before anything is written to it",
            )
            .takes::<DiskBackup>()
            .body_limit(MAX_BACKUP)
            .gives::<BackupKept>(200),
    ]
}

async fn keep(
    State(provision): State<Provision>,
    Path(run): Path<String>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Json<BackupKept>, Failure> {
    let node = provision.session(&run, &peer, request.headers()).await?.value;
    let Json(backup) = Json::<DiskBackup>::from_request(request, &()).await?;
    if node.shown.state != NodeRunState::Working || node.undo.is_some() {
        return Err(Failure::new(Code::Conflict, "no disk of this node is to be written to"));
    }
    if taken(&backup).is_none() {
        let detail = format!("what disk `{}` held cannot be read", backup.disk);
        return Err(Failure::new(Code::InvalidBody, detail));
    }
    let bytes = provision.runs.keep_backup(&run, node.shown.id, &backup).await?;
    // It says what a machine had, and is no change that anybody has to answer for.
    audit.nothing_written();
    Ok(Json(BackupKept { bytes }))
}

/// Whether there are disks like this. A node says what it likes, and what it says is counted with.
fn can_be(size: u64, sector: u32) -> bool {
    let is_sector = sector.is_power_of_two() && SECTORS.contains(&sector);
    is_sector && size <= MAX_SIZE && size.is_multiple_of(u64::from(sector))
}

/// What is in a copy.
pub(super) fn taken(backup: &DiskBackup) -> Option<Taken> {
    let DiskBackup { disk, kernel_name, size, sector, packed } = backup;
    if !can_be(*size, *sector) {
        return None;
    }
    let packed = STANDARD.decode(packed).ok()?;
    let (before, ends) = backup::parse(&packed, *size)?;
    let (disk, kernel_name) = (disk.parse().ok()?, kernel_name.clone());
    Some(Taken { disk, kernel_name, size: *size, sector: *sector, before, ends })
}

impl Runs {
    /// All of them, by node.
    pub(super) async fn backup_records(&self) -> Result<Vec<Kept<BackupRecord>>, StoreError> {
        Kept::list(self.store(), &disk_backups()).await
    }

    /// Parts come first: what the record names is there.
    async fn keep_backup(
        &self,
        run: &str,
        node: NodeId,
        backup: &DiskBackup,
    ) -> Result<usize, Failure> {
        let found: Option<Kept<BackupRecord>> =
            Kept::get(self.store(), &disk_backup_key(node)).await?;
        let was = found.as_ref().filter(|found| found.value.run == run);
        let mut record = was.map_or_else(
            || BackupRecord { node, run: run.to_owned(), disks: Vec::new(), next: 0 },
            |was| was.value.clone(),
        );
        if let Some(found) = &found {
            record.next = found.value.next;
        }
        let body = serde_json::to_vec(backup).expect("a plain value");
        record.disks.retain(|kept| kept.disk != backup.disk);
        let others: usize = record.disks.iter().map(|kept| kept.bytes).sum();
        if others + body.len() > MAX_BACKUPS {
            let detail = format!("all disks together have more than {MAX_BACKUPS} bytes");
            return Err(Failure::new(Code::BodyTooLarge, detail));
        }
        let number = record.next;
        let mut parts = 0;
        for part in body.chunks(PART) {
            let op = Op::Put(part_key(node, number, parts), part.to_vec());
            self.store().commit(Txn { compares: Vec::new(), ops: vec![op] }).await?;
            parts += 1;
        }
        let (disk, at, bytes) = (backup.disk.clone(), self.now(), body.len());
        record.disks.push(BackedUp { disk, at, bytes, number, parts });
        record.next = number.wrapping_add(1);
        let kept = |old: &BackedUp| record.disks.iter().any(|new| new.number == old.number);
        let old = found.iter().flat_map(|found| &found.value.disks).filter(|old| !kept(old));
        let mut ops: Vec<Op> =
            old.map(|old| Op::DeletePrefix(number_key(node, old.number))).collect();
        ops.push(put(disk_backup_key(node), &record));
        let compare = found.map_or(Compare::Absent(disk_backup_key(node)), |f| f.unchanged());
        self.store().commit(Txn { compares: vec![compare], ops }).await?;
        Ok(bytes)
    }

    /// What is kept of the disks that a run wrote to.
    pub(super) async fn backups(
        &self,
        run: &str,
        node: NodeId,
    ) -> Result<Vec<DiskBackup>, StoreError> {
        let found: Option<Kept<BackupRecord>> =
            Kept::get(self.store(), &disk_backup_key(node)).await?;
        let mut backups = Vec::new();
        let disks = found.filter(|found| found.value.run == run).map(|found| found.value.disks);
        for kept in disks.unwrap_or_default() {
            let mut body = Vec::with_capacity(kept.bytes);
            for part in 0..kept.parts {
                let part = self.store().get(&part_key(node, kept.number, part)).await?;
                body.extend(part.map(|part| part.value).unwrap_or_default());
            }
            let backup = serde_json::from_slice(&body).map_err(|error| StoreError::Damaged {
                detail: format!("what disk `{}` held cannot be read: {error}", kept.disk),
            })?;
            backups.push(backup);
        }
        Ok(backups)
    }
}

/// Nothing of them is kept any more.
pub(super) fn forgotten(node: NodeId) -> [Op; 2] {
    [Op::Delete(disk_backup_key(node)), Op::DeletePrefix(disk_backup_parts(node))]
}

fn number_key(node: NodeId, number: u32) -> Key {
    disk_backup_parts(node).child(&number.to_string())
}

fn part_key(node: NodeId, number: u32, part: u32) -> Key {
    number_key(node, number).child(&part.to_string())
}
