//! Sends one query over every method of every chosen interface, and collects the answers.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_cluster::beacon::{
    CheckedAnswer, DiscoveredCluster, MAX_ANSWER_BYTES, Method, Nonce, Path, Query, RateLimit,
    SignedAnswer, collect,
};
use hoist_cluster::id::{ClusterId, Pin};
use jiff::Timestamp;

use crate::interface::Interface;
use crate::network::Network;
use crate::problem::Problem;
use crate::{keys, socket};

/// The most answers that are kept: a flood must not fill the memory or hide other senders.
const MAX_PER_SOURCE: u32 = 64;
const MAX_ANSWERS: u32 = 2048;

/// The way in which a query is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskOptions {
    pub network: Network,
    pub multicast: bool,
    pub broadcast: bool,
    /// Addresses that are asked directly, where neither multicast nor broadcast passes. They must be
    /// on the network of a chosen interface.
    pub seeds: Vec<SocketAddr>,
    /// Answers are collected for all of this time.
    pub window: Duration,
    /// How often the query is sent, spread over the window.
    pub rounds: u32,
}

impl Default for AskOptions {
    fn default() -> Self {
        let window = Duration::from_secs(3);
        let (network, seeds) = (Network::default(), Vec::new());
        Self { network, multicast: true, broadcast: true, seeds, window, rounds: 3 }
    }
}

/// An answer, and the way on which it came. Its content is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAnswer {
    pub answer: SignedAnswer,
    pub path: Path,
}

/// Everything that was received within the window.
#[derive(Debug)]
pub struct Outcome {
    pub answers: Vec<ReceivedAnswer>,
    /// The parts that did not work.
    pub problems: Vec<Problem>,
    /// Messages that were no answer to this query, or more than one source may send.
    pub ignored: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error("the system has no random numbers")]
    Nonce,
    #[error("cannot list the network interfaces")]
    Interfaces(#[source] io::Error),
    #[error("cannot wait for answers")]
    Wait(#[source] io::Error),
    #[error("the query was sent nowhere: {}", reasons(.problems))]
    NotSent { problems: Vec<Problem> },
}

/// A query with a nonce that no other query has.
pub fn new_query(cluster: Option<ClusterId>) -> Result<Query, AskError> {
    let mut nonce = [0; 16];
    aws_lc_rs::rand::fill(&mut nonce).map_err(|_| AskError::Nonce)?;
    Ok(Query { nonce: Nonce::from_random(nonce), cluster })
}

/// Asks once, and blocks for the window of the options.
pub fn ask(options: &AskOptions, query: &Query) -> Result<Outcome, AskError> {
    let (interfaces, mut problems) =
        options.network.interfaces.interfaces().map_err(AskError::Interfaces)?;
    problems.extend(unreachable_seeds(options, &interfaces));
    let mut probes = Vec::new();
    for interface in &interfaces {
        open(options, interface, &mut probes, &mut problems);
    }
    let outcome = Outcome { answers: Vec::new(), problems, ignored: 0 };
    Collector { query, limit: limit(), outcome }.run(options, &mut probes)
}

impl Outcome {
    /// The clusters that answered, with the verification of each answer. Without pins all
    /// signatures are at best unverified.
    pub fn clusters(self, query: &Query, pins: &[Pin], now: Timestamp) -> Vec<DiscoveredCluster> {
        let checked = self.answers.into_iter().filter_map(|ReceivedAnswer { answer, path }| {
            let verified = answer.verify(query, pins, now, keys::verify);
            let (answer, verification) = verified.ok()?;
            Some(CheckedAnswer { answer, verification, path })
        });
        collect(checked)
    }
}

/// One socket and the destinations of its method. The socket at which an answer arrives tells the
/// method of its query.
struct Probe {
    socket: UdpSocket,
    interface: String,
    method: Method,
    destinations: Vec<SocketAddr>,
    /// A problem is reported once, and not in each round.
    is_reported: bool,
}

struct Collector<'a> {
    query: &'a Query,
    limit: RateLimit,
    outcome: Outcome,
}

impl Collector<'_> {
    fn run(mut self, options: &AskOptions, probes: &mut [Probe]) -> Result<Outcome, AskError> {
        let started = Instant::now();
        let rounds = options.rounds.max(1);
        let mut is_sent = false;
        for round in 1..=rounds {
            is_sent |= self.send(probes);
            if !is_sent {
                return Err(AskError::NotSent { problems: self.outcome.problems });
            }
            let ends = options.window * round / rounds;
            while let Some(left) = ends.checked_sub(started.elapsed()).filter(|d| !d.is_zero()) {
                self.receive(probes, left).map_err(AskError::Wait)?;
            }
        }
        Ok(self.outcome)
    }

    /// Sends the query to all destinations. Returns whether it reached at least one network.
    fn send(&mut self, probes: &mut [Probe]) -> bool {
        let message = self.query.encode();
        let mut is_sent = false;
        for probe in probes {
            for destination in &probe.destinations {
                match probe.socket.send_to(&message, destination) {
                    Ok(_) => is_sent = true,
                    Err(_) if probe.is_reported => {}
                    Err(error) => {
                        let problem = ask_problem(&probe.interface, probe.method, error);
                        self.outcome.problems.push(problem);
                        probe.is_reported = true;
                    }
                }
            }
        }
        is_sent
    }

    fn receive(&mut self, probes: &[Probe], timeout: Duration) -> io::Result<()> {
        let descriptors = socket::descriptors(probes.iter().map(|probe| &probe.socket));
        let readable = socket::wait(&descriptors, timeout)?;
        for (probe, _) in probes.iter().zip(readable).filter(|(_, is_readable)| *is_readable) {
            self.read(probe);
        }
        Ok(())
    }

    /// Reads one message: the others of a flood must not keep the caller from the other sockets or
    /// from the end of the window.
    fn read(&mut self, probe: &Probe) {
        // One byte more, so that a longer message is noticed.
        let mut buffer = [0; MAX_ANSWER_BYTES + 1];
        // An error concerns an earlier query, and the next round repeats that.
        let Ok((size, source)) = probe.socket.recv_from(&mut buffer) else { return };
        let answer = SignedAnswer::decode(&buffer[..size]).ok();
        let answer = answer.filter(|answer| answer.nonce() == self.query.nonce);
        let Some(answer) = answer.filter(|_| self.limit.admit(source.ip(), Duration::ZERO)) else {
            self.outcome.ignored += 1;
            return;
        };
        let path = Path { method: probe.method, interface: probe.interface.clone(), source };
        self.outcome.answers.push(ReceivedAnswer { answer, path });
    }
}

/// One window of the limit lasts as long as the query.
fn limit() -> RateLimit {
    RateLimit::new(MAX_PER_SOURCE, MAX_ANSWERS, Duration::MAX)
}

/// Opens the sockets of an interface.
fn open(
    options: &AskOptions,
    interface: &Interface,
    probes: &mut Vec<Probe>,
    problems: &mut Vec<Problem>,
) {
    let mut add = |method, socket: io::Result<UdpSocket>, destinations| match socket {
        Ok(socket) => {
            let interface = interface.name.clone();
            probes.push(Probe { socket, interface, method, destinations, is_reported: false });
        }
        Err(error) => problems.push(ask_problem(&interface.name, method, error)),
    };
    let Network { group_v4, group_v6, port, .. } = &options.network;
    if let Some(first) = interface.v4.first() {
        if options.multicast {
            let group = SocketAddr::new(IpAddr::V4(*group_v4), *port);
            add(Method::MulticastV4, socket::asking_v4(first.address), vec![group]);
        }
        let seeds = seeds_on(options, interface, SocketAddr::is_ipv4);
        if !seeds.is_empty() {
            add(Method::Seed, socket::asking_v4(first.address), seeds);
        }
    }
    for own in interface.v4.iter().filter(|_| options.broadcast) {
        if let Some(broadcast) = own.broadcast {
            let destination = SocketAddr::new(IpAddr::V4(broadcast), *port);
            add(Method::Broadcast, socket::asking_v4(own.address), vec![destination]);
        }
    }
    if interface.has_v6 {
        if options.multicast {
            let group = SocketAddrV6::new(*group_v6, *port, 0, interface.index);
            add(Method::MulticastV6, socket::asking_v6(interface), vec![group.into()]);
        }
        let seeds = seeds_on(options, interface, SocketAddr::is_ipv6);
        if !seeds.is_empty() {
            add(Method::Seed, socket::asking_v6(interface), seeds);
        }
    }
}

fn seeds_on(
    options: &AskOptions,
    interface: &Interface,
    is_of_family: fn(&SocketAddr) -> bool,
) -> Vec<SocketAddr> {
    let seeds = options.seeds.iter().filter(|seed| is_of_family(seed));
    seeds.filter_map(|seed| seed_on(*seed, interface)).collect()
}

/// The seed as it is reached through an interface, if it is on its network.
fn seed_on(seed: SocketAddr, interface: &Interface) -> Option<SocketAddr> {
    if !interface.is_on_link(seed.ip()) {
        return None;
    }
    match seed {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            let is_here = [0, interface.index].contains(&v6.scope_id());
            let here = SocketAddrV6::new(*v6.ip(), v6.port(), 0, interface.index);
            is_here.then(|| here.into())
        }
        other => Some(other),
    }
}

fn unreachable_seeds(options: &AskOptions, interfaces: &[Interface]) -> Vec<Problem> {
    let is_unreachable = |seed: &&SocketAddr| {
        !interfaces.iter().any(|interface| seed_on(**seed, interface).is_some())
    };
    let seeds = options.seeds.iter().filter(is_unreachable);
    seeds.map(|seed| Problem::Seed { seed: *seed }).collect()
}

fn ask_problem(interface: &str, method: Method, error: io::Error) -> Problem {
    Problem::Ask { interface: interface.to_owned(), method, error: Arc::new(error) }
}

fn reasons(problems: &[Problem]) -> String {
    if problems.is_empty() {
        return "no suitable interface is up".to_owned();
    }
    let reasons: Vec<_> = problems.iter().map(ToString::to_string).collect();
    reasons.join("; ")
}
