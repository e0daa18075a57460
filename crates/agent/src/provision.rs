//! `hoist-agent provision`: fetches the job of the controller, carries it out and reports.
//!
//! On any failure the agent keeps running, shows the error on its screen, reports it to the
//! controller and asks again. The machine must not be restarted before the controller has
//! acknowledged the report.

mod backup;
mod clock;
mod controller;
mod event_sender;
mod kexec;
mod power;
pub(crate) mod reporting;
mod screen;
mod truncated_image;

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_api::provision::{Erasure, Event, NextAction, Outcome, Phase, ProvisioningJob, Report};
use hoist_device::RunInputs;
use hoist_device::apply::{self, Listener};
use hoist_device::images::{Notices, Progress, Trust, WaitNotice};
use hoist_device::observe::{SOURCES_TIMEOUT, SourceTimeout, observe_until};
use hoist_device::probe::Machine;
use hoist_device::start::{StartError, start};
use hoist_diagnostic::chain;
use hoist_engine::action::Cancel;
use hoist_model::Exit;
use hoist_provision::backup::TakenBackup;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{self, Document, Id};
use hoist_provision::plan::{ProvisionPlan, decide};
use hoist_provision::steps::erase;
use parking_lot::{Mutex, MutexGuard};
use rustls_pki_types::CertificateDer;
use serde_json::Value;

use self::backup::BackupSender;
use self::controller::{CallError, Controller, Identity};
pub(crate) use self::controller::{NoAuthority, authorities, client};
use self::event_sender::{EventSender, event};
use self::kexec::NoKexec;
pub(crate) use self::power::{Power, switch};
use self::screen::{Screen, View};
use crate::cli::{PLUGINS, ProvisionArgs};
use crate::command_line::{self, ControllerArgs};
use crate::failure::Failure;
use crate::{input, modules, network};

/// Pause before asking again; doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Pause between requests for a new job.
const STAY: Duration = Duration::from_secs(15);

/// A driver may detect a disk of the job late.
const DISKS_APPEAR: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Pause before drivers, network and image are examined again.
const PREPARE_AGAIN: Duration = Duration::from_secs(10);

/// Time for the last events to be sent before the report.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// In memory only: the key of an agent that is restarted.
const KEY: &str = "/run/hoist-agent.key";

pub(crate) fn run(args: &ProvisionArgs) -> Result<Exit, Failure> {
    let line = read_line(&args.command_line)?;
    let mut screen = Screen::new(View::default());
    let (access, roots) = loop {
        match prepare(args, &line, &mut screen) {
            Ok(ready) => break ready,
            // The error stays on the screen while the next attempt runs: an operator may be there.
            Err(failure) if args.bring_up => {
                screen.view.next = Some(format!("retrying in {} s", PREPARE_AGAIN.as_secs()));
                screen.error(&truncated_image::explain(chain(&failure)));
                std::thread::sleep(PREPARE_AGAIN);
            }
            Err(failure) => return Err(failure),
        }
    };
    let agent = Agent {
        controller: Arc::new(Controller::new(&access.server, &roots)),
        identity: identity(args.bring_up),
        access,
        machine: Machine::here(),
        screen: Arc::new(Mutex::new(screen)),
        trust: Trust { roots },
    };
    if args.dry_run {
        return agent.show();
    }
    loop {
        let job = Arc::new(agent.ask());
        let (report, decision) = agent.carry_out(&job);
        let then = agent.report(&job, &report);
        if args.stay {
            return ended(&report);
        }
        agent.go_on(then, decision.as_ref())?;
    }
}

/// The report of a run that was refused or aborted before its first step.
fn not_begun(found: &[ProvisionDiagnostic], cancel: &Cancel, sender: &SharedSender) -> Report {
    let sender = sender.lock().take();
    if let Some(sender) = sender {
        for found in found {
            let message = Some(found.to_string());
            sender.send(Event { message, ..event("", "", Phase::Failed) });
        }
        sender.close(EVENTS_TIMEOUT);
    }
    // A cancelled run stops examining the machine early, which is no refusal.
    if cancel.is_cancelled() { reporting::aborted(found) } else { reporting::refused(found) }
}

fn read_line(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(command_line::MAX_BYTES).read_to_string(&mut text));
    read.map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(text)
}

fn ended(report: &Report) -> Result<Exit, Failure> {
    match report.outcome {
        Outcome::Done => Ok(Exit::Done),
        Outcome::Failed | Outcome::Refused | Outcome::Aborted => {
            let first = report.problems.first().map_or("", |problem| &problem.diagnostic.message);
            Err(Failure::NotDone(first.to_owned()))
        }
    }
}

/// Prepares the connection to the controller: its address, the network and the trusted authorities.
fn prepare(
    args: &ProvisionArgs,
    line: &str,
    screen: &mut Screen,
) -> Result<(ControllerArgs, Vec<CertificateDer<'static>>), Failure> {
    let access = command_line::controller(line)?;
    screen.view.node = access.node.to_string();
    screen.view.server.clone_from(&access.server);
    if args.bring_up {
        bring_up(line, screen)?;
    }
    Ok((access, authorities(&args.ca.display().to_string())?))
}

/// Loads drivers and sets up the network, in an image without an init system.
fn bring_up(line: &str, screen: &mut Screen) -> Result<(), Failure> {
    if let Some(message) = truncated_image::kernel_message() {
        // EventQueue for files that were not unpacked would never end.
        screen.error(&truncated_image::diagnostic(&message).to_string());
    }
    screen.stage("loading drivers");
    let failed = modules::load_for_hardware();
    let network = command_line::network(line)?;
    screen.stage(&format!("setting up the network as {}", network.address));
    let name = network::bring_up(&network)?;
    screen.view.done.push(format!("network: {} as {}/{}", name, network.address, network.prefix));
    screen.view.error = failed.into_iter().next_back();
    screen.view.next = None;
    Ok(())
}

/// The key must survive a crash of the agent, or the controller would see another machine.
fn identity(keep: bool) -> Identity {
    let kept = keep.then(|| fs::read(KEY).ok()).flatten();
    if let Some(identity) = kept.and_then(|bytes| Identity::from_pkcs8(&bytes)) {
        return identity;
    }
    let identity = Identity::generate();
    if keep && let Some(bytes) = identity.to_pkcs8() {
        let file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(KEY);
        // A missing key file only matters after a crash.
        let _ = file.and_then(|mut file| file.write_all(&bytes));
    }
    identity
}

struct Agent {
    controller: Arc<Controller>,
    identity: Identity,
    access: ControllerArgs,
    machine: Machine,
    screen: Arc<Mutex<Screen>>,
    trust: Trust,
}

impl Agent {
    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock()
    }

    /// Asks until the controller answers with a job.
    fn ask(&self) -> ProvisioningJob {
        self.screen().stage("fetching the job from the controller");
        let mut pause = FIRST_PAUSE;
        loop {
            let facts = serde_json::to_value(self.machine.probe().facts).unwrap_or(Value::Null);
            match self.controller.job(&self.identity, &self.access, &facts) {
                Ok(job) => {
                    let mut screen = self.screen();
                    screen.view.node = job.node.to_string();
                    screen.view.error = None;
                    screen.view.next = None;
                    screen.view.failed = None;
                    screen.stage("examining the disks");
                    return job;
                }
                Err(CallError::TooEarly) if self.set_clock() => {}
                Err(error) => self.wait(&error, &mut pause),
            }
        }
    }

    /// Whether the clock was set.
    fn set_clock(&self) -> bool {
        match clock::set_from(&self.access.server, &self.trust.roots) {
            Ok(now) => {
                let mut screen = self.screen();
                screen.view.done.push(format!("clock: set to {now}"));
                screen.draw();
                true
            }
            Err(error) => {
                self.screen().error(&chain(&error));
                false
            }
        }
    }

    fn wait(&self, error: &CallError, pause: &mut Duration) {
        let mut screen = self.screen();
        screen.view.next = Some(format!("asking again in {} s", pause.as_secs()));
        screen.error(&error.to_string());
        drop(screen);
        std::thread::sleep(*pause);
        *pause = (*pause * 2).min(LONGEST_PAUSE);
    }

    /// Shows the plan of the job.
    fn show(&self) -> Result<Exit, Failure> {
        let job = self.ask();
        let decided = self.decide(&job, &self.given(&job), &SourceTimeout::default());
        let (_, decision) = decided.map_err(Failure::Found)?;
        write!(io::stdout(), "{decision}")?;
        Ok(if decision.is_settled() { Exit::Done } else { Exit::WouldChange })
    }

    fn given(&self, job: &ProvisioningJob) -> RunInputs {
        let secrets = job.secrets.iter().map(|(name, secret)| (name.as_str(), secret.as_str()));
        let text = serde_json::to_vec(&job.document).expect("it was read as JSON");
        // Errors of the document and of its plug-ins are reported later, when the plan is decided.
        let document = document::read("job", &text).ok();
        let loaded = document.map(|document| input::plugins(&document, PLUGINS.as_ref(), None));
        let (plugins, unusable) = match loaded {
            None => Default::default(),
            Some(Ok(loaded)) => loaded,
            Some(Err(failure)) => (Vec::new(), failure.messages()),
        };
        RunInputs { secrets: secrets.collect(), trust: self.trust.clone(), plugins, unusable }
    }

    fn decide(
        &self,
        job: &ProvisioningJob,
        given: &RunInputs,
        sources: &SourceTimeout,
    ) -> Result<(Document, ProvisionPlan), Vec<ProvisionDiagnostic>> {
        if let Some(message) = truncated_image::kernel_message() {
            // A truncated program would fail in the middle of its work.
            return Err(vec![truncated_image::diagnostic(&message)]);
        }
        let text = serde_json::to_vec(&job.document).expect("it was read as JSON");
        let document = document::read("job", &text)?;
        let deadline = Instant::now() + DISKS_APPEAR;
        loop {
            match decide(&document, &observe_until(&document, &self.machine, given, sources)) {
                Ok(decision) => return Ok((document, decision)),
                Err(found) => {
                    let is_over = Instant::now() >= deadline || sources.cancel.is_cancelled();
                    if is_over || !may_appear(&found) {
                        return Err(found);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
    }

    fn carry_out(&self, job: &Arc<ProvisioningJob>) -> (Report, Option<ProvisionPlan>) {
        let cancel = Cancel::default();
        let sender =
            EventSender::start(Arc::clone(&self.controller), Arc::clone(job), cancel.clone());
        if let Some(kept) = &job.undo {
            let report = backup::undo(job, kept, &self.machine, &sender);
            sender.close(EVENTS_TIMEOUT);
            self.show_problem(&report);
            return (report, None);
        }
        let given = self.given(job);
        let sender = Arc::new(Mutex::new(Some(sender)));
        let decided = self.decide(job, &given, &self.sources(&cancel, &sender));
        let answered = decided.and_then(|(document, plan)| Ok((document, plan.answered()?)));
        let (report, decision) = match answered {
            Err(found) => (not_begun(&found, &cancel, &sender), None),
            Ok((document, decision)) => {
                let work = Arc::new(Work::new(&decision, sender, Arc::clone(&self.screen)));
                let backups = BackupSender {
                    controller: Arc::clone(&self.controller),
                    job: Arc::clone(job),
                    cancel: cancel.clone(),
                };
                let listener = Arc::new(ProgressListener { work: Arc::clone(&work), backups });
                let applied =
                    apply::apply(&document, &decision, &self.machine, &given, None, listener);
                work.end(applied.as_ref().err().map(|error| chain(error)));
                let report = match &applied {
                    Ok(applied) => reporting::applied(&decision, *applied),
                    Err(error) => reporting::failed(&decision, error, cancel.is_cancelled()),
                };
                work.close();
                (Report { erased: work.erased().clone(), ..report }, Some(decision))
            }
        };
        self.show_problem(&report);
        (report, decision)
    }

    /// Waits for the sources of the job, and reports the source that is waited for.
    fn sources(&self, cancel: &Cancel, sender: &SharedSender) -> SourceTimeout {
        let sender = Arc::clone(sender);
        let screen = Arc::clone(&self.screen);
        let notices = Notices::to(move |notice| {
            let message = Some(notice.to_string());
            if let Some(sender) = &*sender.lock() {
                sender.send(Event { message, ..event("images", "", Phase::Note) });
            }
            screen.lock().stage(&notice.to_string());
        });
        SourceTimeout { timeout: Some(SOURCES_TIMEOUT), cancel: cancel.clone(), notices }
    }

    /// The problem stays on the screen until the next job.
    fn show_problem(&self, report: &Report) {
        if let Some(problem) = report.problems.first() {
            let mut screen = self.screen();
            screen.view.failed = Some(problem.diagnostic.message.clone());
            screen.draw();
        }
    }

    /// Sends the report until the controller has stored it durably or refuses it.
    fn report(&self, job: &ProvisioningJob, report: &Report) -> NextAction {
        self.screen().stage("sending the report to the controller");
        let mut pause = FIRST_PAUSE;
        loop {
            match self.controller.report(job, report) {
                Ok(answer) => {
                    let outcome = serde_json::to_value(report.outcome).unwrap_or_default();
                    let outcome = outcome.as_str().unwrap_or_default();
                    let mut screen = self.screen();
                    screen.view.next = None;
                    screen.stage(&format!("report acknowledged by the controller: {outcome}"));
                    return answer.then;
                }
                Err(error @ (CallError::Refused(_) | CallError::Over(_))) => {
                    self.wait(&error, &mut pause);
                    return NextAction::Retry;
                }
                Err(error) => self.wait(&error, &mut pause),
            }
        }
    }

    fn go_on(&self, then: NextAction, decision: Option<&ProvisionPlan>) -> Result<(), Failure> {
        let (stage, power) = match then {
            NextAction::Reboot => ("restarting the machine", Some(Power::Restart)),
            NextAction::Kexec => {
                self.kexec(decision);
                ("restarting the machine", Some(Power::Restart))
            }
            NextAction::PowerOff => ("powering off the machine", Some(Power::Off)),
            NextAction::Stay => ("waiting for an operator", None),
            NextAction::Retry => ("retrying soon", None),
        };
        self.screen().stage(stage);
        if let Some(power) = power {
            return switch(power).map_err(Failure::Power);
        }
        std::thread::sleep(STAY);
        Ok(())
    }

    /// Starts the installed kernel; returns only if the firmware must restart the machine instead.
    fn kexec(&self, decision: Option<&ProvisionPlan>) {
        self.screen().stage("starting the installed system");
        let found = decision.ok_or(StartError::Nothing).and_then(|it| start(it, &self.machine));
        let tried = found.map_err(NoKexec::from).and_then(|start| kexec::go(&start));
        if let Err(error) = tried {
            self.screen().error(&format!("kexec failed: {}", chain(&error)));
        }
    }
}

/// Whether a missing disk is among the reasons.
fn may_appear(found: &[ProvisionDiagnostic]) -> bool {
    found.iter().any(|found| found.code == Code::NoDisk)
}

/// The sender of events, until it is closed.
type SharedSender = Arc<Mutex<Option<EventSender>>>;

/// The current work, shown on the screen and reported to the controller.
struct Work {
    /// Which action each step belongs to.
    actions: Vec<(String, String)>,
    now: Mutex<Option<String>>,
    sender: SharedSender,
    screen: Arc<Mutex<Screen>>,
    erased: Mutex<Vec<Erasure>>,
}

struct ProgressListener {
    work: Arc<Work>,
    backups: BackupSender,
}

impl Work {
    fn new(decision: &ProvisionPlan, sender: SharedSender, screen: Arc<Mutex<Screen>>) -> Self {
        let steps = decision.show().steps;
        let actions = steps.iter().map(|step| (step.name.to_owned(), step.call.action.clone()));
        let actions = actions.collect();
        Self { actions, now: Mutex::default(), sender, screen, erased: Mutex::default() }
    }

    fn erased(&self) -> MutexGuard<'_, Vec<Erasure>> {
        self.erased.lock()
    }

    fn now(&self) -> MutexGuard<'_, Option<String>> {
        self.now.lock()
    }

    fn action(&self, step: &str) -> &str {
        let found = self.actions.iter().find(|(name, _)| name == step);
        found.map_or("", |(_, action)| action)
    }

    fn send(&self, event: Event) {
        let sender = self.sender.lock();
        if let Some(sender) = &*sender {
            if event.phase == Phase::Progress { sender.progress(event) } else { sender.send(event) }
        }
    }

    fn begins(&self, step: &str) {
        self.end(None);
        *self.now() = Some(step.to_owned());
        self.send(event(self.action(step), step, Phase::Started));
        self.screen.lock().stage(step);
    }

    /// Ends the current step, with or without a failure.
    fn end(&self, failure: Option<String>) {
        let Some(step) = self.now().take() else { return };
        let phase = if failure.is_some() { Phase::Failed } else { Phase::Done };
        if failure.is_none() {
            self.screen.lock().view.done.push(step.clone());
        }
        self.send(Event { message: failure, ..event(self.action(&step), &step, phase) });
    }

    fn progress(&self, progress: Progress) {
        let step = self.now().clone().unwrap_or_default();
        let Progress { done, total, rate } = progress;
        self.send(Event {
            done: Some(done),
            total,
            unit: Some("bytes".to_owned()),
            rate: Some(rate),
            ..event(self.action(&step), &step, Phase::Progress)
        });
        let mut screen = self.screen.lock();
        // A notice of waiting is over.
        screen.view.stage = step;
        screen.progress(progress);
    }

    fn waits(&self, notice: &WaitNotice) {
        let step = self.now().clone().unwrap_or_default();
        let message = Some(notice.to_string());
        self.send(Event { message, ..event(self.action(&step), &step, Phase::Note) });
        self.screen.lock().stage(&notice.to_string());
    }

    fn close(&self) {
        let sender = self.sender.lock().take();
        if let Some(sender) = sender {
            sender.close(EVENTS_TIMEOUT);
        }
    }
}

impl Listener for ProgressListener {
    fn begins(&self, step: &str) {
        self.work.begins(step);
    }

    fn progress(&self, _: &Id, progress: Progress) {
        self.work.progress(progress);
    }

    fn waits(&self, notice: &WaitNotice) {
        self.work.waits(notice);
    }

    fn taken(&self, taken: &[TakenBackup]) {
        self.work.screen.lock().stage("sending the disk backups to the controller");
        for note in self.backups.send(taken) {
            self.work.send(Event { message: Some(note), ..event("disks", "", Phase::Note) });
        }
    }

    fn cancel(&self) -> Cancel {
        self.backups.cancel.clone()
    }

    fn erased(&self, report: &erase::EraseReport) {
        self.work.erased().push(reporting::erasure(report));
    }
}
