//! Doing what was decided.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hoist_engine::action::{Cancel, Catalog, Failure};
use hoist_engine::drive::{self, Executor, Halt, Journal, SayError};
use hoist_engine::execute::{Came, Job, Outputs, Place, Programs, Site};
use hoist_engine::journal::JournalError;
use hoist_engine::plan::{Made, Plan, StepId};
use hoist_engine::record::{End, Outcome, Record};
use hoist_engine::run::{Effect, Event, Found, ReplayError, Run};

use serde::Deserialize as _;
use serde_json::Value;

use super::erase::is_erased;
use super::{ACTIONS, Decision, Ending, Given, Opened, decide, emptied, look_until};
use crate::actions::boot::Boot;
use crate::actions::config_drive::ConfigDrive;
use crate::actions::disks::{self, Disks, Opening};
use crate::actions::erase::{self, Erase};
use crate::actions::files::Files;
use crate::actions::images::{self, Images, Keeper};
use crate::actions::plugin::OnDisks;
use crate::actions::{Cause, Causes, Held};
use crate::device::OpenError;
use crate::device::above::{above, stop_all};
use crate::device::gap::backup::{self, Before, Taken};
use crate::device::gap::{Gap, GapError, GapJournal, Marker};
use crate::device::probe::Machine;
use crate::device::table::Backup;
use crate::diagnostic::{Class, Code, Diagnostic};
use crate::document::{Document, Id};
use crate::images::{Digest, Progress};
use crate::layout::{DiskPlan, Work, disks_of_mount};

/// A journal that has less room than this, after many attempts, is begun anew, and everything with it.
const LEAST_ROOM: u64 = 16 * 1024;

/// Somebody who wants to know how it goes.
pub trait Listener: Send + Sync {
    fn begins(&self, step: &str);
    fn progress(&self, image: &Id, progress: Progress);

    /// What ends the work where it safely can.
    fn cancel(&self) -> Cancel {
        Cancel::default()
    }

    /// What disks held at their ends, before the first of them is written to.
    fn taken(&self, _: &[Taken]) {}

    /// A disk was made empty, or was to be and is not.
    fn erased(&self, _: &erase::Report) {}
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// There was nothing to do, and nothing was written.
    Nothing,
    Done {
        /// It went on where an earlier attempt had ended.
        resumed: bool,
    },
}

/// Why a machine is not as it was decided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    #[error("the plan is {is} now, not {wanted}; look at the new one, nothing was written")]
    OtherPlan { wanted: String, is: String },
    #[error("the machine changed after it was looked at; plan again, nothing was written")]
    Changed,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the machine is not as the document needs it any more; nothing was written")]
    Refused(Vec<Diagnostic>),
    #[error("step `{step}` failed: {reason}")]
    Step { step: String, reason: String, cause: Option<Cause> },
    #[error("it cannot be begun: {0}")]
    Begin(Failure),
    #[error(transparent)]
    Gap(#[from] GapError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Say(#[from] SayError),
    #[error("everything was done, and the disks are not as the document says: {0}")]
    NotSettled(String),
}

impl ApplyError {
    /// What it is, in one word as findings have it, and who has to do something about it.
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

    /// What was seen that led to it.
    pub fn evidence(&self) -> &[String] {
        match self {
            Self::Step { cause: Some(cause), .. } => &cause.evidence,
            _ => &[],
        }
    }

    /// Nothing was written.
    pub fn is_untouched(&self) -> bool {
        let before = matches!(self, Self::OtherPlan { .. } | Self::Changed);
        before || matches!(self, Self::Open(_) | Self::Refused(_))
    }

    /// What to do about it, where the words for it do not say so.
    pub fn hint(&self) -> Option<&'static str> {
        let hint = "the disks say that they are being worked on; when the cause is mended, apply \
                    the same document again: it goes on from there";
        (!self.is_untouched()).then_some(hint)
    }
}

/// Does what was decided, if the machine still is what it was decided for, and looks at what came of
/// it. `wanted` is the hash of the plan that somebody has seen.
pub fn apply(
    document: &Document,
    decision: &Decision,
    machine: &Machine,
    given: &Given,
    wanted: Option<&str>,
    listener: Arc<dyn Listener>,
) -> Result<Applied, ApplyError> {
    if let Some(wanted) = wanted.filter(|wanted| *wanted != decision.hash) {
        let (wanted, is) = (wanted.to_owned(), decision.hash.clone());
        return Err(ApplyError::OtherPlan { wanted, is });
    }
    if decision.is_settled() {
        return Ok(Applied::Nothing);
    }
    let held = take(decision, machine)?;
    apply_to(held, document, decision, machine, given, listener)
}

/// The disks that something is done to; nobody else has them from here on.
pub fn take(decision: &Decision, machine: &Machine) -> Result<Held, OpenError> {
    let plans = &decision.layout.disks;
    let touched = || plans.iter().filter(|plan| decision.touched.contains(&plan.id));
    let bound: Vec<String> = plans.iter().map(|plan| plan.kernel_name.clone()).collect();
    let mut known = Vec::new();
    for plan in touched().filter(|plan| !plan.tears_down.is_empty()) {
        let name = plan.kernel_name.clone();
        // What came since is not ours to stop, and keeps us from having the disk.
        let is_known = above(std::slice::from_ref(&name))?
            .iter()
            .all(|one| plans.iter().any(|plan| plan.tears_down.contains(&one.kernel_name)));
        known.extend(is_known.then_some(name));
    }
    stop_all(&known, &bound)?;
    Held::take(touched(), |name| machine.device(name))
}

/// As [`apply`], to disks that were taken.
pub fn apply_to(
    held: Held,
    document: &Document,
    decision: &Decision,
    machine: &Machine,
    given: &Given,
    listener: Arc<dyn Listener>,
) -> Result<Applied, ApplyError> {
    let cancel = listener.cancel();
    let stacks = decision.stacks.clone().for_run(given.secrets.clone(), cancel.clone());
    let held = Arc::new(held.with_stacks(stacks));
    // From here on nobody else can change the disks: it must still be the same plan.
    let again = decide(document, &look_until(document, machine, given, &cancel))
        .map_err(ApplyError::Refused)?;
    if again.taken_hash != decision.taken_hash {
        return Err(ApplyError::Changed);
    }
    let ran = run(&again, &held, machine, given, listener);
    // Nothing stays put together, however it ended.
    let lowered = held.lower().map_err(ApplyError::Begin);
    let Ran { resumed, tells } = ran?;
    lowered?;
    drop(held);
    if !tells {
        return Ok(Applied::Done { resumed });
    }
    let settled = decide(document, &look_until(document, machine, given, &cancel));
    match settled {
        Ok(settled) if settled.is_settled() => Ok(Applied::Done { resumed }),
        Ok(settled) => Err(ApplyError::NotSettled(settled.show().steps[0].name.to_owned())),
        Err(found) => {
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            Err(ApplyError::NotSettled(found.join("; ")))
        }
    }
}

/// How a run came to its good end.
struct Ran {
    resumed: bool,
    /// Every disk says what was done to it; otherwise an image has the place where it would.
    tells: bool,
}

fn run(
    decision: &Decision,
    held: &Arc<Held>,
    machine: &Machine,
    given: &Given,
    listener: Arc<dyn Listener>,
) -> Result<Ran, ApplyError> {
    let markers = decision.markers();
    let resumes = decision.is_left_in_the_middle(&markers);
    if !resumes {
        let taken = decision.ends_of_disks(held)?;
        if !taken.is_empty() {
            listener.taken(&taken);
        }
        for (id, opened) in &decision.opened {
            let io = held.io(id).map_err(ApplyError::Begin)?;
            let opening = Opening {
                guid: opened.table.guid,
                kept: &opened.kept,
                doomed: &opened.doomed,
                // Erasing begins behind it, where something comes to the disk afterwards.
                clears_notes: decision.erases(id, opened),
            };
            disks::open(&io, &opening, &markers[id]).map_err(ApplyError::Begin)?;
            let gap = disks::gap(&opened.kept)?;
            if let Some(Taken { before, ends, .. }) = taken.iter().find(|taken| taken.disk == *id) {
                backup::keep(&io, &gap, before, ends)?;
            }
        }
    }
    let (medium, left) = decision.medium(held, resumes)?;
    let resumed = left.is_some();
    let records = left.unwrap_or_else(|| decision.first_records());
    let mut journal = Shared { medium: Arc::new(Mutex::new(medium)), left: Arc::default() };
    let mut run = Run::replay(&decision.plan, &records)?;
    // What failed is tried again.
    if run.outcome().is_some() {
        let resume = Event::Resume { by: "hoist-agent".to_owned() };
        drive::say(&mut run, &mut journal, [resume], clock())?;
    }
    let (send, events) = channel();
    let (mut catalog, causes) = (Catalog::default(), Arc::<Causes>::default());
    let begun = begun(&decision.plan, &records);
    catalog.add(Arc::new(Disks { held: Arc::clone(held), markers, begun }));
    catalog.add(Arc::new(Images {
        held: Arc::clone(held),
        txn: decision.document.txn,
        manifests: decision.manifests.clone(),
        reached: reached(decision, &records),
        trust: given.trust.clone(),
        listener: Arc::new(Progresses(Arc::clone(&listener))),
        keeper: Arc::new(journal.clone()),
        causes: Arc::clone(&causes),
    }));
    let drive = decision.document.sections.config_drive.clone().unwrap_or_default();
    catalog.add(Arc::new(ConfigDrive { held: Arc::clone(held), files: drive.files }));
    let texts = decision.texts.clone();
    catalog.add(Arc::new(Files { held: Arc::clone(held), texts }));
    for plugin in &given.plugins {
        catalog.add(Arc::new(OnDisks { plugin: Arc::clone(plugin), held: Arc::clone(held) }));
    }
    catalog.add(Arc::new(Boot {
        held: Arc::clone(held),
        trust: given.trust.clone(),
        efivars: machine.efivars(),
        causes: Arc::clone(&causes),
    }));
    let told = Arc::new(Progresses(Arc::clone(&listener)));
    catalog.add(Arc::new(Erase::new(Arc::clone(held), told, Arc::new(journal.clone()))));
    let site = Site {
        catalog,
        secrets: Arc::new(given.secrets.clone()),
        outputs: Outputs::none(),
        place: Place::Machine,
    };
    let name = decision.document.txn.to_string();
    let mut executor = InTurn { name, site, events: send, listener, causes, failure: None };
    let halt = drive::drive(&mut run, &mut journal, &mut executor, &events, clock)?;
    if halt == Halt::Finished(Outcome::Succeeded) {
        return Ok(Ran { resumed, tells: !journal.left.load(Ordering::Relaxed) });
    }
    let unknown = || ApplyError::Step {
        step: "?".to_owned(),
        reason: "it did not come to its end".to_owned(),
        cause: None,
    };
    Err(executor.failure.unwrap_or_else(unknown))
}

fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn carried((step, receipt): (&StepId, &Value)) -> Record {
    let made = vec![Made { receipt: receipt.clone(), ..Made::default() }];
    Record::Carried { step: *step, changed: false, made, at: clock() }
}

/// What earlier attempts were told to make of partitions. What is not among it was there before.
pub(super) fn begun(plan: &Plan, records: &[Record]) -> Vec<Digest> {
    let steps = records.iter().filter_map(|record| match record {
        Record::Intent { step, .. } => plan.step(*step),
        _ => None,
    });
    let nodes = steps.filter_map(|step| match disks::Task::deserialize(&step.call.input) {
        Ok(disks::Task::Build { node }) => Some(node.fingerprint()),
        _ => None,
    });
    nodes.collect()
}

/// How far each image came that was not finished.
fn reached(decision: &Decision, records: &[Record]) -> BTreeMap<Id, u64> {
    let reached = records.iter().filter_map(|record| match record {
        Record::Reached { step, done, .. } => {
            let image = decision.plan.step(*step)?.call.input["image"].as_str()?;
            Some((image.parse().ok()?, *done))
        }
        _ => None,
    });
    reached.collect()
}

impl Decision {
    /// What every disk that is begun with holds at its ends. A disk that this transaction has begun
    /// with before says itself what it held, or nobody knows any more. Of what is to be erased no
    /// copy goes anywhere.
    fn ends_of_disks(&self, held: &Held) -> Result<Vec<Taken>, ApplyError> {
        let mut all = Vec::new();
        let copied = self.opened.iter().filter(|(id, opened)| !self.erases(id, opened));
        for (id, opened) in copied {
            let Some(plan) = self.layout.disks.iter().find(|plan| plan.id == *id) else { continue };
            let io = held.io(id).map_err(ApplyError::Begin)?;
            let mut before = self.before(id);
            let is_ours = |marker: &Marker| marker.txn == before.txn;
            // It may have been cut off before the marker was there.
            let is_begun = disks::txn_in_progress(&io).map_err(ApplyError::Begin)?;
            let is_begun = is_begun == Some(before.txn);
            let ends = if is_begun || opened.marker.as_ref().is_some_and(is_ours) {
                let kept =
                    backup::read(&*io, &disks::gap(&opened.kept)?).map_err(GapError::Read)?;
                let Some((earlier, ends)) = kept.filter(|(kept, _)| kept.txn == before.txn) else {
                    continue;
                };
                before = earlier.and(&before);
                ends
            } else {
                Backup::take(&*io).map_err(GapError::Read)?
            };
            let (disk, kernel_name) = (id.clone(), plan.kernel_name.clone());
            let (size, sector) = (plan.size, plan.sector);
            all.push(Taken { disk, kernel_name, size, sector, before, ends });
        }
        Ok(all)
    }

    /// Whether everything goes that a disk holds.
    fn erases(&self, disk: &Id, opened: &Opened) -> bool {
        opened.kept.is_empty() && is_erased(&self.document, disk)
    }

    /// What is to be known of a disk when it shall be put back.
    fn before(&self, disk: &Id) -> Before {
        let plan = self.layout.disks.iter().find(|plan| plan.id == *disk);
        let destroys = plan.map_or(&[][..], |plan| &plan.destroys).iter();
        Before {
            txn: self.document.txn,
            writable: plan.map(|plan| plan.writable.clone()).unwrap_or_default(),
            destroys: destroys.map(ToString::to_string).collect(),
            journal: self.journal_place().map(|(disk, _)| disk),
        }
    }

    /// What each disk that is begun with says of itself meanwhile.
    fn markers(&self) -> BTreeMap<Id, Marker> {
        let document = &self.document;
        let roots = disks_of_mount(document, "/");
        let emptied = emptied::kept(&self.layout);
        let marker = |(id, opened): (&Id, &Opened)| {
            let of_image = opened.ending == Ending::Image;
            // Without a root of its own, a whole system comes as an image.
            let has_root = roots.contains(id) || (roots.is_empty() && of_image);
            let marker = Marker {
                node: document.node_id().to_owned(),
                txn: document.txn,
                plan: self.plan.hash().to_owned(),
                generation: document.generation(),
                is_complete: false,
                of_image,
                has_root,
                undoing: false,
                emptied: emptied.clone(),
            };
            (id.clone(), marker)
        };
        self.opened.iter().map(marker).collect()
    }

    /// Whether every disk was left by an earlier attempt at this very plan.
    fn is_left_in_the_middle(&self, markers: &BTreeMap<Id, Marker>) -> bool {
        !self.opened.is_empty()
            && self.opened.iter().all(|(id, opened)| opened.marker.as_ref() == markers.get(id))
    }

    /// What a run begins with: what it is, and what is where it shall be already.
    fn first_records(&self) -> Vec<Record> {
        let begun = Record::Plan { hash: self.plan.hash().to_owned(), at: clock() };
        std::iter::once(begun).chain(self.done.iter().map(carried)).collect()
    }

    /// Where the records are kept, in the gap of the first disk that has one; and those that an
    /// attempt has left that is gone on with.
    fn medium(
        &self,
        held: &Arc<Held>,
        resumes: bool,
    ) -> Result<(Medium, Option<Vec<Record>>), ApplyError> {
        let Some((disk, gap)) = self.journal_place() else {
            return Ok((Medium::Memory(self.first_records()), None));
        };
        let io = held.io(&disk).map_err(ApplyError::Begin)?;
        let left = if resumes { GapJournal::open(&io, &gap)? } else { None };
        // The marker is written before the journal of the run before it is gone.
        let is_ours =
            |first: &Record| matches!(first, Record::Plan { hash, .. } if hash == self.plan.hash());
        let left = left.filter(|(journal, records)| {
            records.first().is_some_and(is_ours) && journal.room() >= LEAST_ROOM
        });
        let (journal, records) = match left {
            Some((journal, records)) => (journal, Some(records)),
            None => (GapJournal::create(&io, &gap, &self.first_records())?, None),
        };
        Ok((Medium::Gap { held: Arc::clone(held), disk, journal }, records))
    }

    fn journal_place(&self) -> Option<(Id, Gap)> {
        let disks = self.layout.disks.iter().filter(|disk| self.touched.contains(&disk.id));
        // What an image has in the gap of a disk is known when it is there.
        let last = |disk: &&DiskPlan| matches!(disk.work, Work::Image(_));
        let (whole, tables): (Vec<_>, Vec<_>) = disks.partition(last);
        tables.into_iter().chain(whole).find_map(|disk| {
            let partitions = match &disk.work {
                Work::Table(table) => &table.partitions[..],
                Work::Image(_) => &[],
                Work::Erase | Work::None => return None,
            };
            Some((disk.id.clone(), disks::gap(partitions).ok()?))
        })
    }
}

enum Medium {
    Gap {
        held: Arc<Held>,
        disk: Id,
        journal: GapJournal,
    },
    /// Where no disk has room for it, a run that was cut off begins anew.
    Memory(Vec<Record>),
}

impl Medium {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        match self {
            Self::Memory(kept) => kept.append(&mut records.to_vec()),
            Self::Gap { held, disk, journal } => {
                let io = held.io(disk).map_err(io::Error::other)?;
                match journal.append(&io, records) {
                    Ok(()) => {}
                    Err(GapError::Journal(error)) => return Err(error),
                    Err(other) => return Err(io::Error::other(other).into()),
                }
            }
        }
        Ok(())
    }
}

/// The journal, for the run and for images that say how far they came.
#[derive(Clone)]
struct Shared {
    medium: Arc<Mutex<Medium>>,
    /// Some disk has no place for notes any more.
    left: Arc<AtomicBool>,
}

impl Shared {
    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Shared {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.medium().append(records)
    }
}

impl Keeper for Shared {
    fn reached(&self, attempt: &str, done: u64) -> Result<(), String> {
        let mut numbers = attempt.rsplit('/').map(str::parse);
        let (Some(Ok(attempt)), Some(Ok(step))) = (numbers.next(), numbers.next()) else {
            return Err(format!("`{attempt}` is no attempt"));
        };
        let record = Record::Reached { step: StepId(step), attempt, done, at: clock() };
        self.medium().append(&[record]).map_err(|error| error.to_string())
    }

    fn leave(&self, disk: &Id) {
        self.left.store(true, Ordering::Relaxed);
        let mut medium = self.medium();
        if matches!(&*medium, Medium::Gap { disk: on, .. } if on == disk) {
            *medium = Medium::Memory(Vec::new());
        }
    }
}

struct Progresses(Arc<dyn Listener>);

impl images::Listener for Progresses {
    fn progress(&self, image: &Id, progress: Progress) {
        self.0.progress(image, progress);
    }
}

impl erase::Listener for Progresses {
    fn progress(&self, disk: &Id, progress: Progress) {
        self.0.progress(disk, progress);
    }

    fn erased(&self, report: &erase::Report) {
        self.0.erased(report);
    }
}

/// Does one step after the other, in the thread that decides.
struct InTurn {
    name: String,
    site: Site,
    events: Sender<Event>,
    listener: Arc<dyn Listener>,
    causes: Arc<Causes>,
    failure: Option<ApplyError>,
}

impl InTurn {
    fn note(&mut self, job: &Job, came: &Came) {
        let known = self.causes.take();
        let reason = match came {
            Came::Ran {
                end:
                    End::Failed { reason, .. }
                    | End::Unknown { reason }
                    | End::NotBegun { reason: Some(reason) },
            }
            | Came::Verified { holds: false, reason } => reason.clone(),
            _ => return,
        };
        let is_theirs = !ACTIONS.contains(&job.step.call.action.as_str());
        let theirs = is_theirs.then(|| Cause { code: Code::PluginFailed, evidence: Vec::new() });
        let (step, cause) = (job.task.clone(), known.or(theirs));
        self.failure = Some(ApplyError::Step { step, reason, cause });
    }
}

impl Executor for InTurn {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        // What an earlier process had begun ended with it.
        if let Effect::Ask { step, attempt } = effect {
            let _ = self.events.send(Event::Found { step, attempt, found: Found::Gone });
            return;
        }
        let Some(job) = Job::of(&self.name, plan, effect) else { return };
        if matches!(effect, Effect::Start { .. }) {
            self.listener.begins(&job.task);
        }
        let came = self.site.carry_out(&job, &self.listener.cancel(), &Programs::default());
        self.note(&job, &came);
        // Whoever listens is waiting for this very answer.
        let _ = self.events.send(came.event(job.number, job.attempt));
    }
}
