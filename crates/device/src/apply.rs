//! Carrying out a plan: taking the disks, running the steps, verifying the result.
//!
//! Does not belong here: decisions about the plan (`hoist-provision`), and the actions of single
//! steps (`actions`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use hoist_engine::action::{Cancel, Catalog, Failure};
use hoist_engine::drive::{self, Executor, Halt, Journal, SayError};
use hoist_engine::execute::{
    AttemptPrograms, BaseDirectory, ExecutionSite, Job, JobOutcome, Outputs,
};
use hoist_engine::journal::JournalError;
use hoist_engine::plan::{AppliedAttempt, Plan, StepId};
use hoist_engine::record::{End, Outcome, Record};
use hoist_engine::run::{AttemptStatus, Effect, Event, ReplayError, Run};
use hoist_provision::backup::{BackupOrigin, TakenBackup};
use hoist_provision::diagnostic::{Class, Code, ProvisionDiagnostic};
use hoist_provision::document::{Document, Id};
use hoist_provision::layout::{DiskPlan, Work, disks_of_mount};
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::plan::erase::is_erased;
use hoist_provision::plan::{
    ACTIONS, FinalContent, OpenedDisk, ProvisionPlan, decide, detached, started_nodes,
};
use hoist_provision::steps::disks::metadata_area;
use hoist_provision::steps::erase::EraseReport;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::actions::boot::Boot;
use crate::actions::config_drive::ConfigDrive;
use crate::actions::disks::{self, DiskOpening, Disks};
use crate::actions::erase::{self, Erase};
use crate::actions::files::Files;
use crate::actions::images::{self, Images, ProgressStore};
use crate::actions::plugin::OnDisks;
use crate::actions::{Cause, Causes, HeldDisks, RunStacks};
use crate::holders::{holders_of, stop_all};
use crate::images::{Notices, Progress, ProgressError, WaitNotice};
use crate::metadata_area::{DiskJournal, MetadataAreaError, backup};
use crate::observe::{SOURCES_TIMEOUT, SourceTimeout, observe_until};
use crate::probe::Machine;
use crate::{OpenError, RunInputs};

/// Least free space in a journal. After many attempts less may be left; then the run starts over
/// with an empty journal.
const LEAST_ROOM: u64 = 16 * 1024;

/// Receives the events of a run.
pub trait Listener: Send + Sync {
    fn begins(&self, step: &str);
    fn progress(&self, image: &Id, progress: Progress);

    /// Receives a notice while a source sends nothing.
    fn waits(&self, _: &WaitNotice) {}

    /// Cancels the run at the next safe point.
    fn cancel(&self) -> Cancel {
        Cancel::default()
    }

    /// Receives the backups of both ends of each disk, before the first write.
    fn taken(&self, _: &[TakenBackup]) {}

    /// Receives the report of an erasure, successful or not.
    fn erased(&self, _: &EraseReport) {}
}

/// The result of a successful run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// Nothing had to change, and nothing was written.
    Nothing,
    Done {
        /// The run resumed an earlier attempt.
        resumed: bool,
    },
}

/// The reason why a plan could not be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    #[error("the plan is now {is} instead of {wanted}; review the new plan, nothing was written")]
    OtherPlan { wanted: String, is: String },
    #[error("the machine changed after it was probed; plan again, nothing was written")]
    Changed,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the machine no longer meets the document; nothing was written")]
    Refused(Vec<ProvisionDiagnostic>),
    #[error("step `{step}` failed: {reason}")]
    Step { step: String, reason: String, cause: Option<Cause> },
    #[error("the run cannot start: {0}")]
    Begin(Failure),
    #[error("disk `{disk}`")]
    MetadataArea { disk: Id, source: MetadataAreaError },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Say(#[from] SayError),
    #[error("all steps finished, but verification found differences: {0}")]
    NotSettled(String),
}

impl ApplyError {
    /// Adds the disk to an error of its metadata area.
    pub(crate) fn on_disk<E: Into<MetadataAreaError>>(disk: &Id) -> impl Fn(E) -> Self + use<E> {
        let disk = disk.clone();
        move |source| Self::MetadataArea { disk: disk.clone(), source: source.into() }
    }

    /// The diagnostic code of the failure, and its class.
    pub fn code(&self) -> (&'static str, Class) {
        match self {
            Self::OtherPlan { .. } | Self::Changed => ("changed", Class::Facts),
            Self::Open(OpenError::InUse { .. } | OpenError::Changed { .. }) => {
                ("busy", Class::Refused)
            }
            Self::Step { cause: Some(cause), .. } => (cause.code.as_str(), cause.code.class()),
            Self::Step { cause: None, .. } => ("step-failed", Class::Device),
            _ => ("failed", Class::Device),
        }
    }

    /// Observations that led to the failure.
    pub fn evidence(&self) -> &[String] {
        match self {
            Self::Step { cause: Some(cause), .. } => &cause.evidence,
            _ => &[],
        }
    }

    /// Whether nothing was written.
    pub fn is_untouched(&self) -> bool {
        let before = matches!(self, Self::OtherPlan { .. } | Self::Changed);
        before || matches!(self, Self::Open(_) | Self::Refused(_))
    }

    /// A remedy, for errors whose message does not include one.
    pub fn hint(&self) -> Option<&'static str> {
        let hint = "the disks are marked as in progress; fix the cause and apply the same document \
                    again: the run resumes";
        (!self.is_untouched()).then_some(hint)
    }
}

/// Carries out a plan if the machine still matches it, and verifies the result. `wanted` is the
/// hash of an approved plan.
pub fn apply(
    document: &Document,
    decision: &ProvisionPlan,
    machine: &Machine,
    given: &RunInputs,
    wanted: Option<&str>,
    listener: Arc<dyn Listener>,
) -> Result<ApplyOutcome, ApplyError> {
    if let Some(wanted) = wanted.filter(|wanted| *wanted != decision.hash()) {
        let wanted = wanted.to_owned();
        let is = decision.hash().to_owned();
        return Err(ApplyError::OtherPlan { wanted, is });
    }
    if decision.is_settled() {
        return Ok(ApplyOutcome::Nothing);
    }
    if !decision.unanswered.is_empty() {
        return Err(ApplyError::Refused(decision.unanswered.clone()));
    }
    let held = take(decision, machine)?;
    apply_to(held, document, decision, machine, given, listener)
}

/// Takes the disks of the plan exclusively.
pub fn take(decision: &ProvisionPlan, machine: &Machine) -> Result<HeldDisks, OpenError> {
    let plans = &decision.layout.disks;
    let touched = || plans.iter().filter(|plan| decision.disks.touched.contains(&plan.id));
    let bound: Vec<String> = plans.iter().map(|plan| plan.kernel_name.clone()).collect();
    let mut known = Vec::new();
    for plan in touched().filter(|plan| !plan.tears_down.is_empty()) {
        let name = plan.kernel_name.clone();
        // A stack that appeared after planning must not be stopped; the disk stays busy then.
        let is_known = holders_of(std::slice::from_ref(&name))?
            .iter()
            .all(|one| plans.iter().any(|plan| plan.tears_down.contains(&one.kernel_name)));
        known.extend(is_known.then_some(name));
    }
    stop_all(&known, &bound)?;
    HeldDisks::take(touched(), |name| machine.device(name))
}

/// As [`apply`], for disks that are already held.
pub fn apply_to(
    held: HeldDisks,
    document: &Document,
    decision: &ProvisionPlan,
    machine: &Machine,
    given: &RunInputs,
    listener: Arc<dyn Listener>,
) -> Result<ApplyOutcome, ApplyError> {
    let cancel = listener.cancel();
    let stacks = RunStacks {
        stacks: decision.inputs.stacks.clone(),
        secrets: given.secrets.clone(),
        cancel: cancel.clone(),
    };
    let held = Arc::new(held.with_stacks(stacks));
    // The disks are held exclusively now, so a new plan must have the same hash.
    let timeout =
        SourceTimeout { timeout: Some(SOURCES_TIMEOUT), cancel, notices: notices(&listener) };
    let again = decide(document, &observe_until(document, machine, given, &timeout))
        .and_then(ProvisionPlan::answered)
        .map_err(ApplyError::Refused)?;
    if again.hash_without_teardown() != decision.hash_without_teardown() {
        return Err(ApplyError::Changed);
    }
    let ran = run(&again, &held, machine, given, listener);
    // All stacks must be stopped, whatever the outcome of the run.
    let stopped = held.stop_stacks().map_err(ApplyError::Begin);
    let RunSummary { resumed, keeps_markers } = ran?;
    stopped?;
    drop(held);
    if !keeps_markers {
        return Ok(ApplyOutcome::Done { resumed });
    }
    let settled = decide(document, &observe_until(document, machine, given, &timeout));
    match settled {
        Ok(settled) if settled.is_settled() => Ok(ApplyOutcome::Done { resumed }),
        Ok(settled) => Err(ApplyError::NotSettled(settled.show().steps[0].name.to_owned())),
        Err(found) => {
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            Err(ApplyError::NotSettled(found.join("; ")))
        }
    }
}

/// Notices that a listener receives.
pub fn notices(listener: &Arc<dyn Listener>) -> Notices {
    let listener = Arc::clone(listener);
    Notices::to(move |notice| listener.waits(notice))
}

/// The result of a run that succeeded.
struct RunSummary {
    resumed: bool,
    /// Whether every disk kept its marker. An image of a whole disk may occupy the metadata area.
    keeps_markers: bool,
}

fn run(
    decision: &ProvisionPlan,
    held: &Arc<HeldDisks>,
    machine: &Machine,
    given: &RunInputs,
    listener: Arc<dyn Listener>,
) -> Result<RunSummary, ApplyError> {
    let markers = markers(decision);
    let resumes = resumes_same_plan(decision, &markers);
    if !resumes {
        let taken = ends_of_disks(decision, held)?;
        if !taken.is_empty() {
            listener.taken(&taken);
        }
        for (id, opened) in &decision.disks.opened {
            let io = held.io(id).map_err(ApplyError::Begin)?;
            let opening = DiskOpening {
                guid: opened.table.guid,
                kept: &opened.kept,
                to_destroy: &opened.to_destroy,
                // Erasing starts behind the metadata area if the disk is used again afterwards.
                clears_metadata: erases(decision, id, opened),
            };
            disks::open(&io, &opening, &markers[id]).map_err(ApplyError::Begin)?;
            let area = metadata_area(&opened.kept).map_err(ApplyError::on_disk(id))?;
            if let Some(TakenBackup { before, ends, .. }) =
                taken.iter().find(|taken| taken.disk == *id)
            {
                backup::keep(&io, &area, before, ends).map_err(ApplyError::on_disk(id))?;
            }
        }
    }
    let (medium, left) = medium(decision, held, resumes)?;
    let resumed = left.is_some();
    let records = left.unwrap_or_else(|| first_records(decision));
    let mut journal =
        SharedJournal { medium: Arc::new(Mutex::new(medium)), has_left_disk: Arc::default() };
    let mut run = Run::replay(&decision.plan, &records)?;
    // Failed steps are tried again.
    if run.outcome().is_some() {
        let resume = Event::Resume { by: "hoist-agent".to_owned() };
        drive::say(&mut run, &mut journal, [resume], clock())?;
    }
    let (send, events) = channel();
    let mut catalog = Catalog::default();
    let causes = Arc::<Causes>::default();
    let begun = started_nodes(&decision.plan, &records);
    catalog.add(Arc::new(Disks { held: Arc::clone(held), markers, begun }));
    catalog.add(Arc::new(Images {
        held: Arc::clone(held),
        txn: decision.document.txn,
        manifests: decision.inputs.manifests.clone(),
        reached: reached(decision, &records),
        trust: given.trust.clone(),
        notices: notices(&listener),
        listener: Arc::new(ProgressForwarder(Arc::clone(&listener))),
        progress_store: Arc::new(journal.clone()),
        causes: Arc::clone(&causes),
    }));
    let drive = decision.document.sections.config_drive.clone().unwrap_or_default();
    catalog.add(Arc::new(ConfigDrive { held: Arc::clone(held), files: drive.files }));
    let texts = decision.inputs.texts.clone();
    catalog.add(Arc::new(Files { held: Arc::clone(held), texts }));
    for plugin in &given.plugins {
        catalog.add(Arc::new(OnDisks { plugin: Arc::clone(plugin), held: Arc::clone(held) }));
    }
    catalog.add(Arc::new(Boot {
        held: Arc::clone(held),
        trust: given.trust.clone(),
        notices: notices(&listener),
        efivars: machine.efivars(),
        causes: Arc::clone(&causes),
    }));
    let told = Arc::new(ProgressForwarder(Arc::clone(&listener)));
    catalog.add(Arc::new(Erase::new(Arc::clone(held), told, Arc::new(journal.clone()))));
    let site = ExecutionSite {
        catalog,
        secrets: Arc::new(given.secrets.clone()),
        outputs: Outputs::none(),
        base: BaseDirectory::Machine,
    };
    let name = decision.document.txn.to_string();
    let mut executor =
        SequentialExecutor { name, site, events: send, listener, causes, failure: None };
    let halt = drive::drive(&mut run, &mut journal, &mut executor, &events, clock)?;
    if halt == Halt::Finished(Outcome::Succeeded) {
        return Ok(RunSummary {
            resumed,
            keeps_markers: !journal.has_left_disk.load(Ordering::Relaxed),
        });
    }
    let unknown = || ApplyError::Step {
        step: "?".to_owned(),
        reason: "the run ended without an outcome".to_owned(),
        cause: None,
    };
    Err(executor.failure.unwrap_or_else(unknown))
}

fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn carried((step, receipt): (&StepId, &Value)) -> Record {
    let made = vec![AppliedAttempt { receipt: receipt.clone(), ..AppliedAttempt::default() }];
    Record::Carried { step: *step, changed: false, made, at: clock() }
}

/// The progress of each unfinished image.
fn reached(decision: &ProvisionPlan, records: &[Record]) -> BTreeMap<Id, u64> {
    let reached = records.iter().filter_map(|record| match record {
        Record::Reached { step, done, .. } => {
            let image = decision.plan.step(*step)?.call.input["image"].as_str()?;
            Some((image.parse().ok()?, *done))
        }
        _ => None,
    });
    reached.collect()
}

/// Backups of both ends of every opened disk. A disk that an earlier attempt of this transaction
/// opened has its own backup, or none at all. Disks to erase are never copied.
fn ends_of_disks(
    decision: &ProvisionPlan,
    held: &HeldDisks,
) -> Result<Vec<TakenBackup>, ApplyError> {
    let mut all = Vec::new();
    let copied = decision.disks.opened.iter().filter(|(id, opened)| !erases(decision, id, opened));
    for (id, opened) in copied {
        let Some(plan) = decision.layout.disks.iter().find(|plan| plan.id == *id) else { continue };
        let io = held.io(id).map_err(ApplyError::Begin)?;
        let unread = |error| ApplyError::on_disk(id)(MetadataAreaError::Read(error));
        let mut before = before(decision, id);
        let is_ours = |marker: &Marker| marker.txn == before.txn;
        // A power cut may have come before the marker was written.
        let is_begun = disks::txn_in_progress(&io).map_err(ApplyError::Begin)?;
        let is_begun = is_begun == Some(before.txn);
        let ends = if is_begun || opened.marker.as_ref().is_some_and(is_ours) {
            let area = metadata_area(&opened.kept).map_err(ApplyError::on_disk(id))?;
            let kept = backup::read(&*io, &area).map_err(unread)?;
            let Some((earlier, ends)) = kept.filter(|(kept, _)| kept.txn == before.txn) else {
                continue;
            };
            before = earlier.and(&before);
            ends
        } else {
            backup::take(&*io).map_err(unread)?
        };
        let disk = id.clone();
        let kernel_name = plan.kernel_name.clone();
        let size = plan.size;
        let sector = plan.sector;
        all.push(TakenBackup { disk, kernel_name, size, sector, before, ends });
    }
    Ok(all)
}

/// Whether the run erases all contents of a disk.
fn erases(decision: &ProvisionPlan, disk: &Id, opened: &OpenedDisk) -> bool {
    opened.kept.is_empty() && is_erased(&decision.document, disk)
}

/// The facts needed to restore a disk.
fn before(decision: &ProvisionPlan, disk: &Id) -> BackupOrigin {
    let plan = decision.layout.disks.iter().find(|plan| plan.id == *disk);
    let destroys = plan.map_or(&[][..], |plan| &plan.destroys).iter();
    BackupOrigin {
        txn: decision.document.txn,
        writable: plan.map(|plan| plan.writable.clone()).unwrap_or_default(),
        destroys: destroys.map(ToString::to_string).collect(),
        journal: journal_place(decision).map(|(disk, _)| disk),
    }
}

/// The marker of each disk that the run opens.
fn markers(decision: &ProvisionPlan) -> BTreeMap<Id, Marker> {
    let document = &decision.document;
    let roots = disks_of_mount(document, "/");
    let detached = detached::ranges_for_marker(&decision.layout);
    let mut markers = BTreeMap::new();
    for (id, opened) in &decision.disks.opened {
        let of_image = opened.becomes == FinalContent::Image;
        // Without a root file system in the document, an image contains the whole system.
        let has_root = roots.contains(id) || (roots.is_empty() && of_image);
        let marker = Marker {
            node: document.node_id().to_owned(),
            txn: document.txn,
            plan: decision.plan.hash().to_owned(),
            generation: document.generation(),
            is_complete: false,
            of_image,
            has_root,
            undoing: false,
            detached: detached.clone(),
        };
        markers.insert(id.clone(), marker);
    }
    markers
}

/// Whether all disks were opened by an earlier attempt with the same plan.
fn resumes_same_plan(decision: &ProvisionPlan, markers: &BTreeMap<Id, Marker>) -> bool {
    !decision.disks.opened.is_empty()
        && decision
            .disks
            .opened
            .iter()
            .all(|(id, opened)| opened.marker.as_ref() == markers.get(id))
}

/// The first records of a run: the hash of its plan, and the receipts carried over.
fn first_records(decision: &ProvisionPlan) -> Vec<Record> {
    let begun = Record::Plan { hash: decision.plan.hash().to_owned(), at: clock() };
    std::iter::once(begun).chain(decision.done.iter().map(carried)).collect()
}

/// The journal, in the metadata area of the first disk that has one, with the records of an earlier
/// attempt to resume.
fn medium(
    decision: &ProvisionPlan,
    held: &Arc<HeldDisks>,
    resumes: bool,
) -> Result<(Medium, Option<Vec<Record>>), ApplyError> {
    let Some((disk, area)) = journal_place(decision) else {
        return Ok((Medium::Memory(first_records(decision)), None));
    };
    let io = held.io(&disk).map_err(ApplyError::Begin)?;
    let failed = ApplyError::on_disk(&disk);
    let left = if resumes { DiskJournal::open(&io, &area).map_err(&failed)? } else { None };
    // Opening a disk writes the marker before the journal of the previous run is replaced.
    let is_ours =
        |first: &Record| matches!(first, Record::Plan { hash, .. } if hash == decision.plan.hash());
    let left = left.filter(|(journal, records)| {
        records.first().is_some_and(is_ours) && journal.room() >= LEAST_ROOM
    });
    let create = || DiskJournal::create(&io, &area, &first_records(decision)).map_err(&failed);
    let (journal, records) = match left {
        Some((journal, records)) => (journal, Some(records)),
        None => (create()?, None),
    };
    Ok((Medium::Disk { held: Arc::clone(held), disk, journal }, records))
}

fn journal_place(decision: &ProvisionPlan) -> Option<(Id, MetadataArea)> {
    let disks =
        decision.layout.disks.iter().filter(|disk| decision.disks.touched.contains(&disk.id));
    // Whether an image occupies the metadata area is known only after it is written.
    let last = |disk: &&DiskPlan| matches!(disk.work, Work::Image(_));
    let (whole, tables): (Vec<_>, Vec<_>) = disks.partition(last);
    tables.into_iter().chain(whole).find_map(|disk| {
        let partitions = match &disk.work {
            Work::Table(table) => &table.partitions[..],
            Work::Image(_) => &[],
            Work::Erase | Work::None => return None,
        };
        Some((disk.id.clone(), metadata_area(partitions).ok()?))
    })
}

enum Medium {
    Disk {
        held: Arc<HeldDisks>,
        disk: Id,
        journal: DiskJournal,
    },
    /// Used if no disk has room for a journal. An interrupted run then starts over.
    Memory(Vec<Record>),
}

impl Medium {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        match self {
            Self::Memory(kept) => kept.append(&mut records.to_vec()),
            Self::Disk { held, disk, journal } => {
                let io = held.io(disk).map_err(io::Error::other)?;
                match journal.append(&io, records) {
                    Ok(()) => {}
                    Err(MetadataAreaError::Journal(error)) => return Err(error),
                    Err(other) => return Err(io::Error::other(other).into()),
                }
            }
        }
        Ok(())
    }
}

/// The journal, shared by the run and the images that report their progress.
#[derive(Clone)]
struct SharedJournal {
    medium: Arc<Mutex<Medium>>,
    /// Set once a disk has lost its metadata area.
    has_left_disk: Arc<AtomicBool>,
}

impl SharedJournal {
    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock()
    }
}

impl Journal for SharedJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.medium().append(records)
    }
}

impl ProgressStore for SharedJournal {
    fn reached(&self, attempt: &str, done: u64) -> Result<(), ProgressError> {
        let mut numbers = attempt.rsplit('/').map(str::parse);
        let (Some(Ok(attempt)), Some(Ok(step))) = (numbers.next(), numbers.next()) else {
            return Err(ProgressError::BadAttempt(attempt.to_owned()));
        };
        let record = Record::Reached { step: StepId(step), attempt, done, at: clock() };
        Ok(self.medium().append(&[record])?)
    }

    fn leave(&self, disk: &Id) {
        self.has_left_disk.store(true, Ordering::Relaxed);
        let mut medium = self.medium();
        if matches!(&*medium, Medium::Disk { disk: on, .. } if on == disk) {
            *medium = Medium::Memory(Vec::new());
        }
    }
}

struct ProgressForwarder(Arc<dyn Listener>);

impl images::Listener for ProgressForwarder {
    fn progress(&self, image: &Id, progress: Progress) {
        self.0.progress(image, progress);
    }
}

impl erase::Listener for ProgressForwarder {
    fn progress(&self, disk: &Id, progress: Progress) {
        self.0.progress(disk, progress);
    }

    fn erased(&self, report: &EraseReport) {
        self.0.erased(report);
    }
}

/// Executes one step after the other, in the thread of the state machine.
struct SequentialExecutor {
    name: String,
    site: ExecutionSite,
    events: Sender<Event>,
    listener: Arc<dyn Listener>,
    causes: Arc<Causes>,
    failure: Option<ApplyError>,
}

impl SequentialExecutor {
    fn note(&mut self, job: &Job, outcome: &JobOutcome) {
        let known = self.causes.take();
        let reason = match outcome {
            JobOutcome::Ran {
                end:
                    End::Failed { reason, .. }
                    | End::Unknown { reason }
                    | End::NotBegun { reason: Some(reason) },
            } => reason.clone(),
            JobOutcome::Verified { failed: Some(check) } => check.to_string(),
            _ => return,
        };
        let is_theirs = !ACTIONS.contains(&job.step.call.action.as_str());
        let theirs = is_theirs.then(|| Cause { code: Code::PluginFailed, evidence: Vec::new() });
        let step = job.task.clone();
        let cause = known.or(theirs);
        self.failure = Some(ApplyError::Step { step, reason, cause });
    }
}

impl Executor for SequentialExecutor {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        // Steps of an earlier process ended with that process.
        if let Effect::Ask { step, attempt } = effect {
            let _ = self.events.send(Event::Found { step, attempt, found: AttemptStatus::Gone });
            return;
        }
        let Some(job) = Job::of(&self.name, plan, effect) else { return };
        if matches!(effect, Effect::Start { .. }) {
            self.listener.begins(&job.task);
        }
        let outcome =
            self.site.carry_out(&job, &self.listener.cancel(), &AttemptPrograms::default());
        self.note(&job, &outcome);
        // The receiver outlives this call: `drive` waits for the event.
        let _ = self.events.send(outcome.event(job.number, job.attempt));
    }
}
