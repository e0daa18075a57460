//! The files of a run: `<data-dir>/journal/<run>/`.
//!
//! A directory gets its final name when all of its files are complete, so an existing directory is
//! readable. The holder of the lock in it owns it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err as fs;
use hoist_api::deploy::{PlanRequest, RunSummary};
use hoist_diagnostic::chain;
use hoist_engine::execute::Outputs;
use hoist_engine::file_journal::{FileJournal, RecoverError};
use hoist_engine::journal::JournalError;
use hoist_engine::plan::Draft;
use hoist_engine::run::ReplayError;
use hoist_engine::{Plan, PlanError, Record, Run, StepId, drive};
use hoist_store::StoreError;
use serde::{Deserialize, Serialize};

use super::shared_runs::StoredRun;
use hoist_chassis::secret;

/// A directory that is not whole yet.
const UNFINISHED: &str = "new-";

const PLAN: &str = "plan.json";
const RUN: &str = "run.json";
const RECORDS: &str = "records";
const OUTPUT: &str = "output";
const LEDGER: &str = "ledger";
/// The summary of an ended run, for listings that do not read its journal.
const SUMMARY: &str = "summary.json";
const LOCK: &str = "lock";
/// Marks a run that was active when its controller shut down cleanly.
const LEFT: &str = "left";

/// Of the name of a controller.
pub(super) const OWNER_CHARS: usize = 12;

/// Largest `run.json`: the files that it was made of are in it.
const MAX_RUN_FILE: u64 = 64 * 1024 * 1024;

/// The data of a run besides its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunFile {
    pub(super) id: String,
    pub(super) title: String,
    /// Who started it.
    pub(super) by: String,
    /// RFC 3339.
    pub(super) created: String,
    /// The run that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undoes: Option<String>,
    /// The plan of the undone run asked for this undo, not an operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) automatic: bool,
    /// The request that the plan was compiled from, for replanning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<PlanRequest>,
    /// The hosts of the controllers that drove it, the first one first: output stays there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) hosts: Vec<String>,
}

impl RunFile {
    /// Notes that a controller on this host drives the run. Returns whether that is new.
    pub(super) fn is_driven_on(&mut self, host: &str) -> bool {
        let is_new = self.hosts.iter().all(|known| known != host);
        if is_new {
            self.hosts.push(host.to_owned());
        }
        is_new
    }

    /// Names of the task files that it was made of.
    pub(super) fn files(&self) -> Vec<String> {
        let files = self.request.iter().flat_map(|request| &request.files);
        files.map(|file| file.name.clone()).collect()
    }

    /// It only looks whether something holds.
    pub(super) fn is_check(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.check)
    }
}

/// Why a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("cannot use the directory of the run")]
    Io(#[from] io::Error),
    #[error("`{file}` cannot be read: {reason}")]
    Unreadable { file: &'static str, reason: String },
    #[error("the plan is none any more")]
    Plan(#[from] PlanError),
    #[error("`{RECORDS}`")]
    Journal(#[from] JournalError),
    #[error("`{RECORDS}`")]
    Replay(#[from] ReplayError),
    #[error("another process has this run")]
    InUse,
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl FolderError {
    pub(super) fn is_full(&self) -> bool {
        let is_full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        match self {
            Self::Io(error) => is_full(error),
            Self::Journal(error) => matches!(error, JournalError::Full(_)),
            _ => false,
        }
    }
}

impl From<RecoverError> for FolderError {
    fn from(error: RecoverError) -> Self {
        match error {
            RecoverError::Journal(error) => error.into(),
            RecoverError::Replay(error) => error.into(),
        }
    }
}

/// A run that is ours as long as this lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: std::fs::File,
}

/// All that was read back.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) folder: Folder,
    pub(super) plan: Arc<Plan>,
    pub(super) journal: FileJournal,
    pub(super) run: Run,
    pub(super) records: Vec<Record>,
    /// The controller did not shut down cleanly.
    pub(super) crashed: bool,
}

/// Makes the directory of a new run, with the first records in its journal.
pub(super) fn create(
    root: &Path,
    file: &RunFile,
    plan: &Plan,
    carried: &[Record],
    now: u64,
) -> Result<NewRun, FolderError> {
    secret::ensure_private_dir(root)?;
    let path = root.join(format!("{UNFINISHED}{}", file.id));
    fill(&path, root, file, plan, carried, now).inspect_err(|_| {
        // The remains take disk space. If they cannot be removed now, the next start removes them.
        let _ = fs::remove_dir_all(&path);
    })
}

fn fill(
    path: &Path,
    root: &Path,
    file: &RunFile,
    plan: &Plan,
    carried: &[Record],
    now: u64,
) -> Result<NewRun, FolderError> {
    secret::ensure_private_dir(path)?;
    secret::ensure_private_dir(&path.join(OUTPUT))?;
    secret::write_atomic(&path.join(PLAN), &json(plan.draft()), 0o600)?;
    secret::write_atomic(&path.join(RUN), &json(file), 0o600)?;
    let mut journal = FileJournal::create(&path.join(RECORDS))?;
    drive::begin(plan, &mut journal, now)?;
    journal.append(carried)?;
    let lock = lock(path)?;
    let whole = root.join(&file.id);
    fs::rename(path, &whole)?;
    fs::File::open(root)?.sync_all()?;
    // Again, so that it names itself by the place where it is.
    drop(journal);
    let (journal, _) = FileJournal::open(&whole.join(RECORDS))?;
    let mut records = vec![Record::Plan { hash: plan.hash().to_owned(), at: now }];
    records.extend_from_slice(carried);
    Ok(NewRun { folder: Folder { path: whole, _lock: lock }, journal, records })
}

/// A run that was just made.
#[derive(Debug)]
pub(super) struct NewRun {
    pub(super) folder: Folder,
    pub(super) journal: FileJournal,
    pub(super) records: Vec<Record>,
}

/// The ids of all runs, the oldest first. Removes incomplete directories.
pub(super) fn list(root: &Path) -> io::Result<Vec<String>> {
    if !root.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(UNFINISHED) {
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(error = %chain(&error), "not a run, and not removed");
            }
        } else if is_id(&name) {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// A ULID in lower case.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == 26 && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

pub(super) fn read_run(root: &Path, id: &str) -> Result<RunFile, FolderError> {
    read_json(&root.join(id).join(RUN), RUN)
}

/// The summary of an ended run; `None` if the journal got records since, because the journal is
/// authoritative.
pub(super) fn read_summary(root: &Path, id: &str) -> Result<Option<RunSummary>, FolderError> {
    let path = root.join(id).join(SUMMARY);
    if !path.exists() {
        return Ok(None);
    }
    let summary: RunSummary = read_json(&path, SUMMARY)?;
    let records = hoist_engine::journal::count(&fs::read(root.join(id).join(RECORDS))?);
    Ok(Some(summary).filter(|summary| summary.records == u64::from(records)))
}

pub(super) fn read_plan(root: &Path, id: &str) -> Result<Arc<Plan>, FolderError> {
    plan_of(&fs::read(root.join(id).join(PLAN))?)
}

pub(super) fn plan_of(bytes: &[u8]) -> Result<Arc<Plan>, FolderError> {
    let draft: Draft = serde_json::from_slice(bytes)
        .map_err(|error| FolderError::Unreadable { file: PLAN, reason: error.to_string() })?;
    Ok(Arc::new(Plan::new(draft)?))
}

/// Whether there is such a run.
pub(super) fn is_there(root: &Path, id: &str) -> bool {
    root.join(id).exists()
}

/// Reads without locking and without truncation.
pub(super) fn read_records(root: &Path, id: &str) -> Result<Vec<Record>, FolderError> {
    Ok(FileJournal::peek(&root.join(id).join(RECORDS))?)
}

/// Takes a run that is there.
pub(super) fn open(root: &Path, id: &str) -> Result<ReadBack, FolderError> {
    let path = root.join(id);
    let lock = lock(&path)?;
    let plan = read_plan(root, id)?;
    let (journal, run) = FileJournal::recover(&path.join(RECORDS), &plan)?;
    let records = read_records(root, id)?;
    let left = path.join(LEFT);
    let crashed = !left.exists();
    if !crashed {
        fs::remove_file(left)?;
    }
    let folder = Folder { path, _lock: lock };
    Ok(ReadBack { folder, plan, journal, run, records, crashed })
}

/// Replaces the directory of a run by the state in the store; local output stays.
pub(super) fn adopt(root: &Path, id: &str, stored: &StoredRun) -> Result<(), FolderError> {
    let path = root.join(id);
    secret::ensure_private_dir(root)?;
    secret::ensure_private_dir(&path)?;
    secret::ensure_private_dir(&path.join(OUTPUT))?;
    secret::write_atomic(&path.join(PLAN), &stored.plan, 0o600)?;
    secret::write_atomic(&path.join(RUN), &json(&stored.file), 0o600)?;
    for old in [RECORDS, SUMMARY] {
        if path.join(old).exists() {
            fs::remove_file(path.join(old))?;
        }
    }
    FileJournal::create(&path.join(RECORDS))?.append(&stored.records)?;
    Ok(())
}

/// The name of this host.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Who this controller is to others: the same after a restart.
pub(super) fn owner(root: &Path) -> io::Result<String> {
    secret::ensure_private_dir(root)?;
    let path = root.join("owner");
    if !path.exists() {
        secret::write_atomic(&path, secret::random_text(OWNER_CHARS).as_bytes(), 0o600)?;
    }
    fs::read_to_string(path)
}

/// Removes a run for good.
pub(super) fn remove(root: &Path, id: &str) -> io::Result<()> {
    // The rename comes first: a partly removed directory must not be taken for a run.
    let renamed = root.join(format!("{UNFINISHED}{id}"));
    fs::rename(root.join(id), &renamed)?;
    fs::remove_dir_all(renamed)
}

/// How much a run takes on disk.
pub(super) fn size(root: &Path, id: &str) -> u64 {
    fn below(path: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(path) else { return 0 };
        entries
            .flatten()
            .map(|entry| match entry.metadata() {
                Ok(about) if about.is_dir() => below(&entry.path()),
                Ok(about) => about.len(),
                Err(_) => 0,
            })
            .sum()
    }
    below(&root.join(id))
}

/// The output of an attempt; `None` if it printed nothing.
pub(super) fn read_output(
    root: &Path,
    id: &str,
    step: StepId,
    attempt: u32,
) -> io::Result<Option<Vec<u8>>> {
    Outputs::in_dir(root.join(id).join(OUTPUT)).read(step, attempt)
}

impl Folder {
    pub(super) fn outputs(&self) -> PathBuf {
        self.path.join(OUTPUT)
    }

    /// The jobs of this machine and their results.
    pub(super) fn ledger(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// Writes the summary of an ended run.
    pub(super) fn end(&self, summary: &RunSummary) -> io::Result<()> {
        secret::write_atomic(&self.path.join(SUMMARY), &json(summary), 0o600)
    }

    /// Removes the summary when the run resumes.
    pub(super) fn go_on(&self) -> io::Result<()> {
        let path = self.path.join(SUMMARY);
        if path.exists() {
            fs::remove_file(path)?;
            fs::File::open(&self.path)?.sync_all()?;
        }
        Ok(())
    }

    /// The controller ends in good order.
    pub(super) fn leave(&self) -> io::Result<()> {
        secret::write_atomic(&self.path.join(LEFT), b"", 0o600)
    }
}

fn lock(path: &Path) -> Result<std::fs::File, FolderError> {
    use fs_err::os::unix::fs::OpenOptionsExt;
    let options = fs::File::options().create(true).truncate(false).write(true).mode(0o600).clone();
    let lock = options.open(path.join(LOCK))?.into_parts().0;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(FolderError::InUse),
        Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
    }
}

fn read_json<T: serde::de::DeserializeOwned>(
    path: &Path,
    file: &'static str,
) -> Result<T, FolderError> {
    let unreadable = |reason: String| FolderError::Unreadable { file, reason };
    let length = fs::metadata(path)?.len();
    if length > MAX_RUN_FILE {
        return Err(unreadable(format!("it has {length} bytes; at most {MAX_RUN_FILE} are read")));
    }
    serde_json::from_slice(&fs::read(path)?).map_err(|error| unreadable(error.to_string()))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a plain value")
}
