//! `hoist-agent provision`: an order from the controller, carried out, and a report before anything
//! else happens to the machine.
//!
//! Whatever fails, the agent stays, says what is wrong on its screen and to the controller, and asks
//! again. It restarts the machine only when the controller has the report.

mod backup;
mod clock;
mod controller;
mod kexec;
mod power;
pub(crate) mod reporting;
mod screen;
mod telling;
mod torn;

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hoist_api::provision::{Erasure, Event, Order, Outcome, Phase, Report, Then};
use hoist_engine::action::Cancel;
use hoist_model::Exit;
use hoist_provision::actions::erase;
use hoist_provision::device::gap::backup::Taken;
use hoist_provision::device::probe::Machine;
use hoist_provision::diagnostic::{Code, Diagnostic};
use hoist_provision::document::{self, Document, Id};
use hoist_provision::images::{Progress, Trust};
use hoist_provision::pipeline::{self, Decision, Given, Listener, NoStart, decide, look_until};
use rustls_pki_types::CertificateDer;
use serde_json::Value;

use self::backup::Keeper;
use self::controller::{CallError, Controller, Identity};
pub(crate) use self::controller::{NoAuthority, authorities, client};
use self::kexec::NoKexec;
pub(crate) use self::power::{Power, switch};
use self::screen::{Screen, View};
use self::telling::{Teller, event};
use crate::cli::{PLUGINS, ProvisionArgs};
use crate::command_line::{self, Orders};
use crate::failure::{Failure, chain};
use crate::{input, modules, network};

/// Before asking again; doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Between questions whether there is something new to do.
const STAY: Duration = Duration::from_secs(15);

/// Disks that are meant may not have been found by their drivers yet.
const DISKS_APPEAR: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Before drivers, network and what the image has are looked at again.
const PREPARE_AGAIN: Duration = Duration::from_secs(10);

/// The last words about steps, before the report.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// In memory only: where an agent that is started again finds who it was.
const KEY: &str = "/run/hoist-agent.key";

pub(crate) fn run(args: &ProvisionArgs) -> Result<Exit, Failure> {
    let line = read_line(&args.command_line)?;
    let mut screen = Screen::new(View::default());
    let (orders, roots) = loop {
        match prepare(args, &line, &mut screen) {
            Ok(ready) => break ready,
            // Who stands before the machine may be mending it: it stays said while it is tried again.
            Err(failure) if args.bring_up => {
                screen.view.next = Some(format!("trying again in {} s", PREPARE_AGAIN.as_secs()));
                screen.error(&torn::because(chain(&failure)));
                std::thread::sleep(PREPARE_AGAIN);
            }
            Err(failure) => return Err(failure),
        }
    };
    let agent = Agent {
        controller: Arc::new(Controller::new(&orders.server, &roots)),
        identity: identity(args.bring_up),
        orders,
        machine: Machine::here(),
        screen: Arc::new(Mutex::new(screen)),
        trust: Trust { roots },
    };
    if args.dry_run {
        return agent.show();
    }
    loop {
        let order = Arc::new(agent.ask());
        let (report, decision) = agent.carry_out(&order);
        let then = agent.report(&order, &report);
        if args.stay {
            return ended(&report);
        }
        agent.go_on(then, decision.as_ref())?;
    }
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
            let first = report.problems.first().map_or("", |problem| &problem.what);
            Err(Failure::NotDone(first.to_owned()))
        }
    }
}

/// Everything that it takes to ask the controller: who that is, a network, and whom to trust.
fn prepare(
    args: &ProvisionArgs,
    line: &str,
    screen: &mut Screen,
) -> Result<(Orders, Vec<CertificateDer<'static>>), Failure> {
    let orders = command_line::orders(line)?;
    (screen.view.node, screen.view.server) = (orders.node.to_string(), orders.server.clone());
    if args.bring_up {
        bring_up(line, screen)?;
    }
    Ok((orders, authorities(&args.ca.display().to_string())?))
}

/// Drivers and the network, in a system where nobody else does that.
fn bring_up(line: &str, screen: &mut Screen) -> Result<(), Failure> {
    if let Some(said) = torn::says() {
        // What is missing is then waited for in vain.
        screen.error(&torn::found(&said).to_string());
    }
    screen.stage("looking for hardware");
    let failed = modules::load_for_hardware();
    let network = command_line::network(line)?;
    screen.stage(&format!("setting up the network as {}", network.address));
    let name = network::bring_up(&network)?;
    screen.view.done.push(format!("network: {} as {}/{}", name, network.address, network.prefix));
    (screen.view.error, screen.view.next) = (failed.into_iter().next_back(), None);
    Ok(())
}

/// The same one after a crash, or the controller would take us for somebody else.
fn identity(keep: bool) -> Identity {
    let kept = keep.then(|| fs::read(KEY).ok()).flatten();
    if let Some(identity) = kept.and_then(|bytes| Identity::from_pkcs8(&bytes)) {
        return identity;
    }
    let identity = Identity::generate();
    if keep && let Some(bytes) = identity.to_pkcs8() {
        let file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(KEY);
        // Without it only a crash is worse.
        let _ = file.and_then(|mut file| file.write_all(&bytes));
    }
    identity
}

struct Agent {
    controller: Arc<Controller>,
    identity: Identity,
    orders: Orders,
    machine: Machine,
    screen: Arc<Mutex<Screen>>,
    trust: Trust,
}

fn lock(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    fn screen(&self) -> MutexGuard<'_, Screen> {
        lock(&self.screen)
    }

    /// For as long as it takes.
    fn ask(&self) -> Order {
        self.screen().stage("asking the controller what to do");
        let mut pause = FIRST_PAUSE;
        loop {
            let facts = serde_json::to_value(self.machine.probe().facts).unwrap_or(Value::Null);
            match self.controller.order(&self.identity, &self.orders, &facts) {
                Ok(order) => {
                    let mut screen = self.screen();
                    screen.view.node = order.node.to_string();
                    (screen.view.error, screen.view.next) = (None, None);
                    screen.view.failed = None;
                    screen.stage("looking at the disks");
                    return order;
                }
                Err(CallError::TooEarly) if self.mend_clock() => {}
                Err(error) => self.wait(&error, &mut pause),
            }
        }
    }

    /// Whether it is later now.
    fn mend_clock(&self) -> bool {
        match clock::mend(&self.orders.server, &self.trust.roots) {
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

    /// What would be done.
    fn show(&self) -> Result<Exit, Failure> {
        let order = self.ask();
        let decided = self.decide(&order, &self.given(&order), &Cancel::default());
        let (_, decision) = decided.map_err(Failure::Found)?;
        write!(io::stdout(), "{decision}")?;
        Ok(if decision.is_settled() { Exit::Done } else { Exit::WouldChange })
    }

    fn given(&self, order: &Order) -> Given {
        let secrets = order.secrets.iter().map(|(name, secret)| (name.as_str(), secret.as_str()));
        let text = serde_json::to_vec(&order.document).expect("it was read as JSON");
        // What cannot be read is told by who decides, and what no plug-in reads as well.
        let document = document::read("order", &text).ok();
        let loaded = document.map(|document| input::plugins(&document, PLUGINS.as_ref(), None));
        let (plugins, unusable) = match loaded {
            None => Default::default(),
            Some(Ok(loaded)) => loaded,
            Some(Err(failure)) => (Vec::new(), failure.said()),
        };
        Given { secrets: secrets.collect(), trust: self.trust.clone(), plugins, unusable }
    }

    fn decide(
        &self,
        order: &Order,
        given: &Given,
        cancel: &Cancel,
    ) -> Result<(Document, Decision), Vec<Diagnostic>> {
        if let Some(said) = torn::says() {
            // Half a program would end in the middle of its work.
            return Err(vec![torn::found(&said)]);
        }
        let text = serde_json::to_vec(&order.document).expect("it was read as JSON");
        let document = document::read("order", &text)?;
        let deadline = Instant::now() + DISKS_APPEAR;
        loop {
            match decide(&document, &look_until(&document, &self.machine, given, cancel)) {
                Ok(decision) => return Ok((document, decision)),
                Err(found) => {
                    let is_over = Instant::now() >= deadline || cancel.is_cancelled();
                    if is_over || !may_appear(&found) {
                        return Err(found);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
    }

    fn carry_out(&self, order: &Arc<Order>) -> (Report, Option<Decision>) {
        let cancel = Cancel::default();
        let teller = Teller::start(Arc::clone(&self.controller), Arc::clone(order), cancel.clone());
        if let Some(kept) = &order.undo {
            let report = backup::undo(order, kept, &self.machine, &teller);
            teller.close(LAST_WORDS);
            self.show_problem(&report);
            return (report, None);
        }
        let given = self.given(order);
        let (report, decision) = match self.decide(order, &given, &cancel) {
            Err(found) => {
                for found in &found {
                    let message = Some(found.to_string());
                    teller.tell(Event { message, ..event("", "", Phase::Failed) });
                }
                (reporting::refused(&found), None)
            }
            Ok((document, decision)) => {
                let work = Arc::new(Work::new(&decision, teller, Arc::clone(&self.screen)));
                let (controller, order) = (Arc::clone(&self.controller), Arc::clone(order));
                let keeper = Keeper { controller, order, cancel: cancel.clone() };
                let listener = Arc::new(Listening { work: Arc::clone(&work), keeper });
                let applied =
                    pipeline::apply(&document, &decision, &self.machine, &given, None, listener);
                work.end(applied.as_ref().err().map(|error| chain(error)));
                let report = match &applied {
                    Ok(applied) => reporting::applied(&decision, *applied),
                    Err(error) => reporting::failed(&decision, error, cancel.is_cancelled()),
                };
                work.close();
                (Report { erased: work.erased().clone(), ..report }, Some(decision))
            }
        };
        // Who is told to end no longer looks at all that there is: that is no refusal.
        let outcome = match report.outcome {
            Outcome::Refused if cancel.is_cancelled() => Outcome::Aborted,
            outcome => outcome,
        };
        let report = Report { outcome, ..report };
        self.show_problem(&report);
        (report, decision)
    }

    /// It stays to be read, whatever else goes wrong until there is another order.
    fn show_problem(&self, report: &Report) {
        if let Some(problem) = report.problems.first() {
            let mut screen = self.screen();
            screen.view.failed = Some(problem.what.clone());
            screen.draw();
        }
    }

    /// Until it is durable where the controller keeps it, or the controller wants nothing of it.
    fn report(&self, order: &Order, report: &Report) -> Then {
        self.screen().stage("telling the controller what came of it");
        let mut pause = FIRST_PAUSE;
        loop {
            match self.controller.report(order, report) {
                Ok(answer) => {
                    let word = serde_json::to_value(report.outcome).unwrap_or_default();
                    let word = word.as_str().unwrap_or_default().to_owned();
                    let mut screen = self.screen();
                    screen.view.next = None;
                    screen.stage(&format!("the controller knows: {word}"));
                    return answer.then;
                }
                Err(error @ (CallError::Refused(_) | CallError::Over(_))) => {
                    self.wait(&error, &mut pause);
                    return Then::Retry;
                }
                Err(error) => self.wait(&error, &mut pause),
            }
        }
    }

    fn go_on(&self, then: Then, decision: Option<&Decision>) -> Result<(), Failure> {
        let (words, power) = match then {
            Then::Reboot => ("starting the machine again", Some(Power::Restart)),
            Then::Kexec => {
                self.kexec(decision);
                ("starting the machine again", Some(Power::Restart))
            }
            Then::PowerOff => ("switching the machine off", Some(Power::Off)),
            Then::Stay => ("waiting for people", None),
            Then::Retry => ("trying again soon", None),
        };
        self.screen().stage(words);
        if let Some(power) = power {
            return switch(power).map_err(Failure::Power);
        }
        std::thread::sleep(STAY);
        Ok(())
    }

    /// Does not come back, unless the firmware has to do it.
    fn kexec(&self, decision: Option<&Decision>) {
        self.screen().stage("starting the installed system");
        let start = decision.ok_or(NoStart::Nothing).and_then(|it| it.start(&self.machine));
        let tried = start.map_err(NoKexec::from).and_then(|start| kexec::go(&start));
        if let Err(error) = tried {
            self.screen().error(&format!("without kexec: {}", chain(&error)));
        }
    }
}

/// Whether all that is missing is a disk.
fn may_appear(found: &[Diagnostic]) -> bool {
    found.iter().any(|found| found.code == Code::NoDisk)
}

/// What is done now, for the screen and the controller.
struct Work {
    /// Which action each step belongs to.
    actions: Vec<(String, String)>,
    now: Mutex<Option<String>>,
    teller: Mutex<Option<Teller>>,
    screen: Arc<Mutex<Screen>>,
    erased: Mutex<Vec<Erasure>>,
}

struct Listening {
    work: Arc<Work>,
    keeper: Keeper,
}

impl Work {
    fn new(decision: &Decision, teller: Teller, screen: Arc<Mutex<Screen>>) -> Self {
        let steps = decision.show().steps;
        let actions = steps.iter().map(|step| (step.name.to_owned(), step.call.action.clone()));
        let actions = actions.collect();
        let (now, teller) = (Mutex::default(), Mutex::new(Some(teller)));
        Self { actions, now, teller, screen, erased: Mutex::default() }
    }

    fn erased(&self) -> MutexGuard<'_, Vec<Erasure>> {
        self.erased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> MutexGuard<'_, Option<String>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn action(&self, step: &str) -> &str {
        let found = self.actions.iter().find(|(name, _)| name == step);
        found.map_or("", |(_, action)| action)
    }

    fn tell(&self, event: Event) {
        let teller = self.teller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(teller) = &*teller {
            if event.phase == Phase::Progress { teller.progress(event) } else { teller.tell(event) }
        }
    }

    fn begins(&self, step: &str) {
        self.end(None);
        *self.now() = Some(step.to_owned());
        self.tell(event(self.action(step), step, Phase::Started));
        lock(&self.screen).stage(step);
    }

    /// The step that was at work has ended, well or not.
    fn end(&self, failure: Option<String>) {
        let Some(step) = self.now().take() else { return };
        let phase = if failure.is_some() { Phase::Failed } else { Phase::Done };
        if failure.is_none() {
            lock(&self.screen).view.done.push(step.clone());
        }
        self.tell(Event { message: failure, ..event(self.action(&step), &step, phase) });
    }

    fn progress(&self, progress: Progress) {
        let step = self.now().clone().unwrap_or_default();
        let Progress { done, total, rate } = progress;
        self.tell(Event {
            done: Some(done),
            total,
            unit: Some("bytes".to_owned()),
            rate: Some(rate),
            ..event(self.action(&step), &step, Phase::Progress)
        });
        lock(&self.screen).progress(progress);
    }

    fn close(&self) {
        let teller = self.teller.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(teller) = teller {
            teller.close(LAST_WORDS);
        }
    }
}

impl Listener for Listening {
    fn begins(&self, step: &str) {
        self.work.begins(step);
    }

    fn progress(&self, _: &Id, progress: Progress) {
        self.work.progress(progress);
    }

    fn taken(&self, taken: &[Taken]) {
        lock(&self.work.screen).stage("keeping what the disks hold at the controller");
        for note in self.keeper.keep(taken) {
            self.work.tell(Event { message: Some(note), ..event("disks", "", Phase::Note) });
        }
    }

    fn cancel(&self) -> Cancel {
        self.keeper.cancel.clone()
    }

    fn erased(&self, report: &erase::Report) {
        self.work.erased().push(reporting::erasure(report));
    }
}
