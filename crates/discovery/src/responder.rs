//! Answers queries of the local network, on a thread of its own.
//!
//! Interfaces come and go while the responder runs: the list is read again every few seconds.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hoist_cluster::beacon::{MAX_ANSWER_BYTES, QUERY_BYTES, Query, RateLimit};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::interface::Interface;
use crate::network::Network;
use crate::problem::Problem;
use crate::socket::{self, Family};

/// The most answers within a second. An asker sends a handful of queries in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    pub per_source: u32,
    pub total: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderOptions {
    pub network: Network,
    pub limits: AnswerLimits,
    /// How often the list of interfaces is read again.
    pub rescan: Duration,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        let limits = AnswerLimits { per_source: 20, total: 200 };
        Self { network: Network::default(), limits, rescan: Duration::from_secs(5) }
    }
}

/// Messages since the start of a responder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent answers.
    pub answers: u64,
    /// Messages that are no query.
    pub malformed: u64,
    /// Queries from beyond a router.
    pub off_link: u64,
    /// Queries above the limits.
    pub limited: u64,
    /// Queries that the caller had no answer to, or too large a one.
    pub declined: u64,
    /// Answers that the network did not take.
    pub failed: u64,
}

/// A running responder. It stops when it is dropped.
#[derive(Debug)]
pub struct Responder {
    state: Arc<ResponderState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ResponderState {
    /// Readable as soon as the thread should end.
    stop: OwnedFd,
    counters: Totals,
    problems: Mutex<Vec<Problem>>,
    listening: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Totals {
    answers: AtomicU64,
    malformed: AtomicU64,
    off_link: AtomicU64,
    limited: AtomicU64,
    declined: AtomicU64,
    failed: AtomicU64,
}

impl Responder {
    /// Listens on the chosen interfaces. That none can be used now is no error: one may appear
    /// later. [`problems`](Self::problems) has the reasons.
    ///
    /// `answer` gives the message for a query, or none. It must not block for long.
    pub fn start(
        options: ResponderOptions,
        answer: impl FnMut(&Query) -> Option<Vec<u8>> + Send + 'static,
    ) -> io::Result<Self> {
        let state = Arc::new(ResponderState {
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            counters: Totals::default(),
            problems: Mutex::default(),
            listening: Mutex::default(),
        });
        let AnswerLimits { per_source, total } = options.limits;
        let mut service = Service {
            limit: RateLimit::new(per_source, total, Duration::from_secs(1)),
            started: Instant::now(),
            options,
            listeners: Vec::new(),
            answer,
            state: Arc::clone(&state),
        };
        // Before the thread starts, so that a query sent after this call is heard.
        service.rescan();
        let thread = std::thread::Builder::new().name("beacon".to_owned());
        let thread = thread.spawn(move || service.run())?;
        Ok(Self { state, thread: Some(thread) })
    }

    pub fn counters(&self) -> Counters {
        let totals = &self.state.counters;
        let value = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Counters {
            answers: value(&totals.answers),
            malformed: value(&totals.malformed),
            off_link: value(&totals.off_link),
            limited: value(&totals.limited),
            declined: value(&totals.declined),
            failed: value(&totals.failed),
        }
    }

    /// The parts that do not work now.
    pub fn problems(&self) -> Vec<Problem> {
        self.state.problems.lock().clone()
    }

    /// The interfaces on which queries are heard now.
    pub fn interfaces(&self) -> Vec<String> {
        self.state.listening.lock().clone()
    }

    /// Ends the thread and leaves the groups.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The counter of the event cannot overflow: it is written once.
        let _ = rustix::io::write(&self.state.stop, &1_u64.to_ne_bytes());
        if thread.join().is_err() {
            tracing::error!("the thread that answers discovery panicked");
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket on one interface.
struct Listener {
    interface: Interface,
    family: Family,
    socket: UdpSocket,
}

struct Service<A> {
    options: ResponderOptions,
    limit: RateLimit,
    started: Instant,
    listeners: Vec<Listener>,
    answer: A,
    state: Arc<ResponderState>,
}

impl<A: FnMut(&Query) -> Option<Vec<u8>>> Service<A> {
    fn run(mut self) {
        let state = Arc::clone(&self.state);
        let mut rescan_at = Instant::now() + self.options.rescan;
        loop {
            let left = rescan_at.saturating_duration_since(Instant::now());
            let sockets = self.listeners.iter().map(|listener| &listener.socket);
            let mut descriptors = socket::descriptors(sockets);
            descriptors.push(state.stop.as_fd());
            let Ok(readable) = socket::wait(&descriptors, left) else {
                tracing::error!("discovery cannot wait for queries and ends");
                return;
            };
            if readable.last() == Some(&true) {
                return;
            }
            // One message of each socket at a time: a flood on one does not silence the others.
            for (place, _) in readable.iter().enumerate().filter(|(_, is_readable)| **is_readable) {
                self.read(place);
            }
            if left.is_zero() {
                self.rescan();
                rescan_at = Instant::now() + self.options.rescan;
            }
        }
    }

    fn read(&mut self, place: usize) {
        let Listener { interface, socket, .. } = &self.listeners[place];
        let totals = &self.state.counters;
        // One byte more, so that a longer message is noticed.
        let mut buffer = [0; QUERY_BYTES + 1];
        // An error concerns an earlier answer, for instance one to a machine that is gone.
        let Ok((size, source)) = socket.recv_from(&mut buffer) else { return };
        let Ok(query) = Query::decode(&buffer[..size]) else { return add(&totals.malformed) };
        if !interface.is_on_link(source.ip()) {
            return add(&totals.off_link);
        }
        if !self.limit.admit(source.ip(), self.started.elapsed()) {
            return add(&totals.limited);
        }
        let message = (self.answer)(&query).filter(|message| message.len() <= MAX_ANSWER_BYTES);
        let Some(message) = message else { return add(&totals.declined) };
        match socket.send_to(&message, source) {
            Ok(_) => add(&totals.answers),
            Err(error) => {
                tracing::debug!(%error, %source, "cannot send an answer");
                add(&totals.failed);
            }
        }
    }

    /// Opens sockets on interfaces that appeared, and closes those of interfaces that are gone.
    fn rescan(&mut self) {
        let (interfaces, mut problems) = match self.options.network.interfaces.interfaces() {
            Ok(listed) => listed,
            Err(error) => return tracing::warn!(%error, "cannot list the network interfaces"),
        };
        let mut previous = std::mem::take(&mut self.listeners);
        for interface in &interfaces {
            for family in families(interface) {
                let is_same = |listener: &Listener| listener.hears(interface, family);
                let kept = previous.iter().position(is_same).map(|at| previous.swap_remove(at));
                let socket = match kept {
                    Some(listener) => Ok(listener.socket),
                    None => socket::listening(&self.options.network, interface, family),
                };
                match socket {
                    Ok(socket) => {
                        let interface = interface.clone();
                        self.listeners.push(Listener { interface, family, socket });
                    }
                    Err(error) => problems.push(listen_problem(interface, family, error)),
                }
            }
        }
        self.publish(problems);
    }

    /// Shows the result of a scan, and logs its news.
    fn publish(&self, problems: Vec<Problem>) {
        let mut names: Vec<_> = self.listeners.iter().map(|l| l.interface.name.clone()).collect();
        names.dedup();
        let mut listening = self.state.listening.lock();
        if *listening != names {
            tracing::info!(interfaces = names.join(" "), "discovery answers queries");
            *listening = names;
        }
        let mut known = self.state.problems.lock();
        let texts: Vec<_> = known.iter().map(ToString::to_string).collect();
        for problem in &problems {
            if !texts.contains(&problem.to_string()) {
                tracing::warn!(%problem, "discovery works only in part");
            }
        }
        *known = problems;
    }
}

impl Listener {
    fn hears(&self, interface: &Interface, family: Family) -> bool {
        let own = &self.interface;
        // An interface that is made again has another index, and its group must be joined again.
        own.index == interface.index && own.name == interface.name && self.family == family
    }
}

fn families(interface: &Interface) -> impl Iterator<Item = Family> {
    let v4 = (!interface.v4.is_empty()).then_some(Family::V4);
    let v6 = interface.has_v6.then_some(Family::V6);
    v4.into_iter().chain(v6)
}

fn listen_problem(interface: &Interface, family: Family, error: io::Error) -> Problem {
    let (interface, error) = (interface.name.clone(), Arc::new(error));
    Problem::Listen { interface, family: family.as_str(), error }
}

fn add(total: &AtomicU64) {
    total.fetch_add(1, Ordering::Relaxed);
}
