//! What disks of a node held before a run wrote to them: a copy of what agents keep on the disks
//! themselves, which not every disk has room for. Of each node that of its last run is kept.

use std::ops::RangeInclusive;

use axum::extract::{FromRequest, Request, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::provision::{BackupKept, DiskBackup, MAX_BACKUP, MAX_BACKUPS, NodeRunState};
use hoist_model::NodeId;
use hoist_provision::backup::{self, TakenBackup};
use hoist_store::{Compare, Key, Op, StoreError, Txn};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Provision;
use super::keys;
use super::record::{StoredValue, put};
use super::runs::Runs;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};

/// Every store takes as much in one value.
const PART: usize = 512 * 1024;
/// How often another copy may be faster.
const TRIES: usize = 16;
/// Bytes of a sector.
const SECTORS: RangeInclusive<u32> = 512..=4096;
/// Bytes of a disk: no kernel addresses more.
const MAX_SIZE: u64 = i64::MAX as u64;

/// The stored copies of a node's disk ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackupRecord {
    pub(super) node: NodeId,
    pub(super) run: String,
    pub(super) disks: Vec<BackedUp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackedUp {
    disk: String,
    at: Timestamp,
    bytes: usize,
    /// Unique per upload, so that concurrent uploads cannot overwrite each other's parts.
    number: u64,
    parts: u32,
}

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/agent/runs/{run}/backup", AccessClass::Proof, keep)
            .reason(super::agent::SESSION)
            .summary("Store an agent's backup of both ends of a disk, before the first write")
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
    // Who hangs up in the middle leaves no parts that nothing names.
    let runs = provision.runs.clone();
    let id = node.shown.id;
    let keeping = tokio::spawn(async move { runs.keep_backup(&run, id, &backup).await });
    let bytes = keeping.await.map_err(|_| Failure::new(Code::Internal, "it is not kept"))??;
    // A copy is observed state, not an audited change.
    audit.nothing_written();
    Ok(Json(BackupKept { bytes }))
}

/// Whether size and sector size are plausible. The values come from the node and enter arithmetic.
fn can_be(size: u64, sector: u32) -> bool {
    let is_sector = sector.is_power_of_two() && SECTORS.contains(&sector);
    is_sector && size <= MAX_SIZE && size.is_multiple_of(512)
}

/// Decodes a copy.
pub(super) fn taken(backup: &DiskBackup) -> Option<TakenBackup> {
    let DiskBackup { disk, kernel_name, size, sector, packed } = backup;
    if !can_be(*size, *sector) {
        return None;
    }
    let packed = STANDARD.decode(packed).ok()?;
    let (before, ends) = backup::parse(&packed, *size)?;
    let disk = disk.parse().ok()?;
    let kernel_name = kernel_name.clone();
    Some(TakenBackup { disk, kernel_name, size: *size, sector: *sector, before, ends })
}

impl Runs {
    /// All of them, by node.
    pub(super) async fn backup_records(
        &self,
    ) -> Result<Vec<StoredValue<BackupRecord>>, StoreError> {
        StoredValue::list(self.store(), &keys::disk_backups()).await
    }

    /// Writes the parts before the record that names them.
    async fn keep_backup(
        &self,
        run: &str,
        node: NodeId,
        backup: &DiskBackup,
    ) -> Result<usize, Failure> {
        let body = serde_json::to_vec(backup).expect("a plain value");
        let parts = body.chunks(PART);
        let new = BackedUp {
            disk: backup.disk.clone(),
            at: self.now(),
            bytes: body.len(),
            number: random(),
            parts: u32::try_from(parts.len()).expect("a few"),
        };
        let found: Option<StoredValue<BackupRecord>> =
            StoredValue::get(self.store(), &keys::disk_backup(node)).await?;
        with(found.as_ref().map(|found| &found.value), run, node, &new)?;
        let kept = async {
            for (part, bytes) in (0..).zip(parts) {
                let op = Op::Put(part_key(node, new.number, part), bytes.to_vec());
                self.store().commit(Txn { compares: Vec::new(), ops: vec![op] }).await?;
            }
            self.name_backup(found, run, node, &new).await
        };
        let kept = kept.await;
        if kept.is_err() {
            let ops = vec![Op::DeletePrefix(number_key(node, new.number))];
            self.store().commit(Txn { compares: Vec::new(), ops }).await?;
        }
        kept.map(|()| new.bytes)
    }

    /// Copies of several disks may come at once; one for a run that is over by now comes too late.
    async fn name_backup(
        &self,
        mut found: Option<StoredValue<BackupRecord>>,
        run: &str,
        node: NodeId,
        new: &BackedUp,
    ) -> Result<(), Failure> {
        let key = keys::disk_backup(node);
        let mut tries = 0;
        loop {
            let record = with(found.as_ref().map(|found| &found.value), run, node, new)?;
            let kept = |old: &BackedUp| record.disks.iter().any(|new| new.number == old.number);
            let old = found.iter().flat_map(|found| &found.value.disks).filter(|old| !kept(old));
            let mut ops: Vec<Op> =
                old.map(|old| Op::DeletePrefix(number_key(node, old.number))).collect();
            ops.push(put(key.clone(), &record));
            let compare = found.map_or(Compare::Absent(key.clone()), |found| found.unchanged());
            match self.store().commit(Txn { compares: vec![compare], ops }).await {
                Err(error @ StoreError::Conflict { .. }) => {
                    tries += 1;
                    found = StoredValue::get(self.store(), &key).await?;
                    let is_same = found.as_ref().is_some_and(|found| found.value.run == run);
                    if !is_same || tries == TRIES {
                        return Err(error.into());
                    }
                }
                committed => return Ok(committed.map(|_| ())?),
            }
        }
    }

    /// The copies of the disks that a run wrote.
    pub(super) async fn backups(
        &self,
        run: &str,
        node: NodeId,
    ) -> Result<Vec<DiskBackup>, StoreError> {
        let found: Option<StoredValue<BackupRecord>> =
            StoredValue::get(self.store(), &keys::disk_backup(node)).await?;
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

/// The record with one more disk: the latest copy per disk, of one run only.
fn with(
    found: Option<&BackupRecord>,
    run: &str,
    node: NodeId,
    new: &BackedUp,
) -> Result<BackupRecord, Failure> {
    let was = found.filter(|found| found.run == run);
    let others = was.into_iter().flat_map(|was| &was.disks).filter(|kept| kept.disk != new.disk);
    let mut disks: Vec<BackedUp> = others.cloned().collect();
    disks.push(new.clone());
    if disks.iter().map(|kept| kept.bytes).sum::<usize>() > MAX_BACKUPS {
        let detail = format!("all disks together have more than {MAX_BACKUPS} bytes");
        return Err(Failure::new(Code::BodyTooLarge, detail));
    }
    Ok(BackupRecord { node, run: run.to_owned(), disks })
}

fn random() -> u64 {
    let mut number = [0; 8];
    aws_lc_rs::rand::fill(&mut number).expect("the operating system gives random bytes");
    u64::from_le_bytes(number)
}

/// Nothing of them is kept any more.
pub(super) fn forgotten(node: NodeId) -> [Op; 2] {
    [Op::Delete(keys::disk_backup(node)), Op::DeletePrefix(keys::disk_backup_parts(node))]
}

fn number_key(node: NodeId, number: u64) -> Key {
    keys::disk_backup_parts(node).child(&number.to_string())
}

fn part_key(node: NodeId, number: u64, part: u32) -> Key {
    number_key(node, number).child(&part.to_string())
}
