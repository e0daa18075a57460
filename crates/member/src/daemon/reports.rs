//! The loop of reports: health to the controller, orders back.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use hoist_api::cluster::{MemberOrders, MemberReport};
use hoist_diagnostic::chain;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::{DaemonError, DaemonSetup, Membership, accept_orders, renewal};
use crate::controller::{CallError, Session, authority_of_url};
use crate::random::{random, random_text};
use crate::state::{MemberFile, RoleFile};

/// First pause after a round in which no controller answered; each further one doubles it,
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// up to this maximum. The same time at most passes between two reports, whatever a controller asks
/// for.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The status of an answer to a certificate that is not accepted.
const UNAUTHENTICATED: u16 = 401;

/// The subject of problems with a new certificate.
const REJOIN: &str = "rejoin";

/// Reports until a signal comes.
pub(super) fn run(setup: &DaemonSetup, shared: &Arc<Mutex<Membership>>) -> Result<(), DaemonError> {
    let (wake, woken) = channel();
    setup.interrupt.wake(wake);
    let mut reporter = Reporter {
        setup,
        shared,
        session: random_text(),
        role: setup.state.role()?,
        first: 0,
        told: BTreeMap::new(),
    };
    let mut pause = FIRST_PAUSE;
    loop {
        let asked = reporter.round()?;
        let next = asked.unwrap_or(pause);
        pause = if asked.is_some() { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        if is_woken(&woken, with_jitter(next)) || setup.interrupt.is_triggered() {
            return Ok(());
        }
    }
}

/// Waits; true if a signal came.
fn is_woken(woken: &Receiver<()>, time: Duration) -> bool {
    match woken.recv_timeout(time) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        Err(RecvTimeoutError::Timeout) => false,
    }
}

struct Reporter<'a> {
    setup: &'a DaemonSetup,
    shared: &'a Arc<Mutex<Membership>>,
    /// Random, of this start. Two that report for one node mean that a disk was cloned.
    session: String,
    role: Option<RoleFile>,
    /// The index of the controller that answered last.
    first: usize,
    /// The last problem of each controller that was told, so that a lasting one is told once.
    told: BTreeMap<String, String>,
}

/// Why a controller gave no orders.
struct Problem {
    authority: String,
    /// See [`CallError::rank`].
    rank: u8,
    text: String,
}

impl Reporter<'_> {
    /// Reports to the first controller that answers. The time until the next report; `None` if no
    /// controller answered.
    fn round(&mut self) -> Result<Option<Duration>, DaemonError> {
        let Membership { file, tls } = self.shared.lock().clone();
        let controllers: Vec<String> =
            file.controllers.iter().filter_map(|url| authority_of_url(url)).collect();
        let report = MemberReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            resources: self.setup.facts.resources(self.setup.state.path()),
            plan_generation: self.role.as_ref().map_or(0, |role| role.plan_generation),
            session: self.session.clone(),
        };
        let mut problems = Vec::new();
        let mut unknown_to = None;
        for offset in 0..controllers.len() {
            let at = (self.first + offset) % controllers.len();
            let authority = &controllers[at];
            let mut is_dated = false;
            let answered = Session::connect(authority, &tls).and_then(|mut session| {
                is_dated = session.is_dated();
                let orders = session.post::<MemberOrders>("/agent/v1/report", &report)?;
                Ok((session, orders))
            });
            let (mut session, orders) = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    // The end is final, so an expired controller is not believed.
                    if let Some(end) = error.membership_end().filter(|_| !is_dated) {
                        self.setup.state.end_membership(end)?;
                        return Err(DaemonError::Ended { cluster: file.name, end });
                    }
                    if matches!(error, CallError::Refused { status: UNAUTHENTICATED, .. }) {
                        unknown_to = Some(authority.clone());
                    }
                    problems.push(Problem {
                        authority: authority.clone(),
                        rank: error.rank(),
                        text: error.at(authority),
                    });
                    continue;
                }
            };
            match accept_orders(file.uid, self.role.as_ref(), &orders) {
                Ok(role) => {
                    self.first = at;
                    self.keep(role)?;
                    self.renew(&file, &mut session)?;
                    let next = Duration::from_secs(orders.report_after_seconds.max(1));
                    return Ok(Some(next.min(LONGEST_PAUSE)));
                }
                Err(refusal) => problems.push(Problem {
                    authority: authority.clone(),
                    rank: u8::MAX,
                    text: format!("{authority}: {refusal}"),
                }),
            }
        }
        self.note_stale(problems)?;
        if let Some(authority) = unknown_to {
            match renewal::rejoin(self.setup, &file, &authority) {
                Ok(renewed) => self.store(&file, &renewed)?,
                Err(error) => self.tell_once(REJOIN, chain(&error)),
            }
        }
        Ok(None)
    }

    fn store(&mut self, file: &MemberFile, renewed: &renewal::Renewed) -> Result<(), DaemonError> {
        renewal::store(&self.setup.state, file, renewed)?;
        *self.shared.lock() = Membership::load(&self.setup.state)?;
        let text = format!("certificate renewed; it ends {}", renewed.answer.certificate_ends);
        self.setup.console.step(&text);
        Ok(())
    }

    /// A problem that lasts is told once.
    fn tell_once(&mut self, subject: &str, problem: String) {
        if self.told.get(subject) != Some(&problem) {
            self.setup.console.warn(&problem);
            self.told.insert(subject.to_owned(), problem);
        }
    }

    /// Stores a role that differs. An unchanged one is not written: reports come every few seconds.
    fn keep(&mut self, role: RoleFile) -> Result<(), DaemonError> {
        if !std::mem::take(&mut self.told).is_empty() {
            self.setup.console.step("a controller answers again");
        }
        if self.role.as_ref() == Some(&role) {
            return Ok(());
        }
        let name = role.role.as_deref().unwrap_or("no role yet");
        let text = format!("plan {}: {name}, {} members", role.plan_generation, role.members);
        self.setup.state.store_role(&role)?;
        self.setup.console.step(&text);
        self.role = Some(role);
        Ok(())
    }

    /// Reports why no controller gave orders: the most telling problem first.
    fn note_stale(&mut self, mut problems: Vec<Problem>) -> Result<(), DaemonError> {
        problems.sort_by_key(|problem| Reverse(problem.rank));
        if problems.is_empty() {
            self.tell_once("", "no controller is known".to_owned());
        }
        for Problem { authority, text, .. } in problems {
            self.tell_once(&authority, text);
        }
        if let Some(role) = self.role.as_mut().filter(|role| role.stale_since.is_none()) {
            role.stale_since = Some(Timestamp::now());
            self.setup.state.store_role(role)?;
        }
        Ok(())
    }

    /// Renews the certificate when it is due. A renewal that fails is tried with the next report.
    fn renew(&mut self, file: &MemberFile, session: &mut Session) -> Result<(), DaemonError> {
        if !renewal::is_due(file, Timestamp::now()) {
            return Ok(());
        }
        // The server may close the connection after an answer.
        let renewed = if session.is_closed() {
            let tls = self.shared.lock().tls.clone();
            Session::connect(session.authority(), &tls)
                .and_then(|mut session| renewal::request(&self.setup.state, &mut session))
        } else {
            renewal::request(&self.setup.state, session)
        };
        match renewed {
            Ok(renewed) => self.store(file, &renewed)?,
            Err(error) => {
                let text = format!("the certificate is due and was not renewed: {}", chain(&error));
                self.setup.console.warn(&text);
            }
        }
        Ok(())
    }
}

/// Up to a fifth more or less, so that nodes that started together do not report together.
fn with_jitter(time: Duration) -> Duration {
    let [byte] = random();
    time.mul_f64(0.8 + 0.4 * f64::from(byte) / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_fifth() {
        for _ in 0..100 {
            let time = with_jitter(Duration::from_secs(10));
            assert!((8.0..=12.0).contains(&time.as_secs_f64()), "{time:?}");
        }
    }
}
