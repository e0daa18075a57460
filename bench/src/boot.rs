//! Boot scripts over HTTP, beside an nginx that answers a constant of the same size.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cores::Cores;
use crate::inside;
use crate::knock::{self, Latency, Stops};
use crate::nginx::Nginx;
use crate::sample::{self, SITE, Shuffle};
use crate::verdict::{Limit, Row};
use crate::wrk::{self, Connections};

/// Both take turns, so that what else the machine does hits them alike: what counts is the median of
/// the ratios of two turns that followed each other.
const ROUNDS: usize = 15;
const SECONDS: u32 = 1;
/// The controller must finish its startup work before it is measured.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
const THROUGHPUT: Limit = Limit::AtLeast(0.95);
const P99: Limit = Limit::AtMost(5.0);
/// Of the throughput at saturation.
const LOAD: f64 = 0.8;
/// Nodes that boot a BSS record.
const BSS_SITE: u32 = 20_000;
/// In medians: a request that meets it is late.
const STOP: u32 = 5;
/// Enough to saturate either server from one thread.
const MOST_CONNECTIONS: usize = 16;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    inside::ask(&["site", &SITE.to_string(), inside::path(&site)?, "embedded"])?;
    let paths = write_scripts(dir.path(), SITE)?;
    let mut rows = Vec::new();
    let kept = ("keep-alive", Connections::KeptAlive);
    let single = ("one connection per request", Connections::OnePerRequest);
    let split = Cores::split()?;
    let shared = Cores::shared()?;
    let halves = Pair::start(&split, &site, SITE)?;
    let mut saturated = Vec::new();
    for (what, connections) in [kept, single] {
        let what = format!("scripts/s, {what}, server and client on half of the cores each");
        let (row, rates) = halves.throughput(&paths, connections, &what)?;
        rows.push(row);
        saturated.push(rates);
    }
    rows.extend(halves.latency(&paths, saturated[0])?);
    rows.extend(halves.closed(&paths, saturated[0])?);
    drop(halves);
    let all = Pair::start(&shared, &site, SITE)?;
    for (what, connections) in [kept, single] {
        let what = format!("scripts/s, {what}, both on all cores");
        rows.push(all.throughput(&paths, connections, &what)?.0);
    }
    Ok(rows)
}

/// Scripts of the BSS record `Default`.
pub(crate) fn bss() -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    inside::ask(&["bss", &BSS_SITE.to_string(), inside::path(&site)?, "embedded"])?;
    let paths = write_scripts(dir.path(), BSS_SITE)?;
    let split = Cores::split()?;
    let what = "scripts/s of a BSS record, keep-alive, server and client on half of the cores each";
    Ok(Pair::start(&split, &site, BSS_SITE)?.throughput(&paths, Connections::KeptAlive, what)?.0)
}

/// A controller and an nginx on the same cores, which take turns.
struct Pair<'a> {
    cores: &'a Cores,
    ours: inside::ControllerProcess,
    theirs: Nginx,
    /// Of an answer.
    size: usize,
}

impl<'a> Pair<'a> {
    fn start(cores: &'a Cores, site: &Path, count: u32) -> Result<Self> {
        let ours = inside::ControllerProcess::start_on(site, "embedded", Some(&cores.server))?;
        let size = check(&ours.address, count)?;
        let theirs = Nginx::start(cores, size, None)?;
        std::thread::sleep(SETTLE);
        Ok(Self { cores, ours, theirs, size })
    }

    /// With what each of the two came to.
    fn throughput(
        &self,
        paths: &Path,
        connections: Connections,
        what: &str,
    ) -> Result<(Row, [f64; 2])> {
        let ask = |address: &str| wrk::throughput(self.cores, address, paths, connections, SECONDS);
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..ROUNDS {
            ours.push(ask(&self.ours.address)?);
            theirs.push(ask(&self.theirs.address)?);
        }
        let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        let least = ratios[0];
        let most = ratios[ratios.len() - 1];
        let size = self.size;
        let ours = median(ours);
        let theirs = median(theirs);
        let row = Row {
            what: format!("{what} / nginx `return 200`"),
            measured: median(ratios),
            unit: "x",
            limit: Some(THROUGHPUT),
            detail: format!(
                "{ours:.0}/s and {theirs:.0}/s of {size} bytes; rounds {least:.2} to {most:.2}"
            ),
        };
        Ok((row, [ours, theirs]))
    }

    /// Latency of both at the same share of their capacity, and the pauses of the machine itself.
    fn latency(&self, paths: &Path, saturated: [f64; 2]) -> Result<[Row; 3]> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "thousands")]
        let rates = saturated.map(|rate| (rate * LOAD) as u32);
        let ours = &self.ours.address;
        let theirs = &self.theirs.address;
        let knock = |address, rate| knock::latency(&self.cores.client, address, rate, paths);
        let mut rounds = (Vec::new(), Vec::new());
        let mut stops = Vec::new();
        // The minimum of the rounds: a round that was interrupted says little about latency.
        let mut calm = Duration::MAX;
        for _ in 0..ROUNDS {
            let round = (knock(ours, rates[0])?, knock(theirs, rates[1])?);
            calm = calm.min(round.0.median).min(round.1.median);
            stops.push(knock::stops(&self.cores.server, calm * STOP)?);
            rounds.0.push(round.0);
            rounds.1.push(round.1);
        }
        let at = |rate: u32| format!("at {rate}/s");
        let what = format!("p99 / median at {:.0} % of saturation, open loop", LOAD * 100.0);
        let theirs = latency_row("the same of nginx", None, &at(rates[1]), rounds.1);
        // Shown beside it, because a machine that takes the cores away for milliseconds affects
        // every process on them.
        Ok([latency_row(&what, Some(P99), &at(rates[0]), rounds.0), theirs, stops_row(&stops)])
    }

    /// The same with as many connections as come to that part, each of which asks when it has its
    /// answer.
    fn closed(&self, paths: &Path, saturated: [f64; 2]) -> Result<[Row; 2]> {
        let ask = |address: &str, count| knock::closed(&self.cores.client, address, count, paths);
        let enough = |address: &str, saturated: f64| {
            for count in 1..MOST_CONNECTIONS {
                if ask(address, count)?.1 >= saturated * LOAD {
                    return Ok(count);
                }
            }
            Ok::<_, anyhow::Error>(MOST_CONNECTIONS)
        };
        let addresses = [&self.ours.address, &self.theirs.address];
        let counts = [enough(addresses[0], saturated[0])?, enough(addresses[1], saturated[1])?];
        let mut rounds = [Vec::new(), Vec::new()];
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for n in [0, 1] {
                let (latency, rate) = ask(addresses[n], counts[n])?;
                rounds[n].push(latency);
                rates[n].push(rate);
            }
        }
        let [ours, theirs] = rounds;
        let [at, at_theirs] = rates.map(median);
        let row = |what: &str, limit, n: usize, at: f64, rounds| {
            let load = at / saturated[n] * 100.0;
            let how =
                format!("over {} connections at {at:.0}/s, {load:.0} % of saturation", counts[n]);
            latency_row(what, limit, &how, rounds)
        };
        Ok([
            row("p99 / median, closed loop", Some(P99), 0, at, ours),
            row("the same of nginx", None, 1, at_theirs, theirs),
        ])
    }
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// How much of the time the machine stopped a thread for so long that a request would be late.
fn stops_row(seen: &[Stops]) -> Row {
    let watched: Duration = seen.iter().map(|round| round.watched).sum();
    let stopped: Duration = seen.iter().map(|round| round.stopped).sum();
    let longest = seen.iter().map(|round| round.longest).max().unwrap_or_default();
    Row {
        what: format!("pauses of the machine of {STOP} medians or more in that time"),
        measured: stopped.as_secs_f64() / watched.as_secs_f64() * 100.0,
        unit: " %",
        limit: None,
        detail: format!(
            "{:.1} ms of {:.1} s, the longest {:.1} ms",
            stopped.as_secs_f64() * 1e3,
            watched.as_secs_f64(),
            longest.as_secs_f64() * 1e3
        ),
    }
}

fn latency_row(what: &str, limit: Option<Limit>, how: &str, mut rounds: Vec<Latency>) -> Row {
    let ratio = |round: &Latency| round.p99.as_secs_f64() / round.median.as_secs_f64();
    rounds.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let usual = rounds[rounds.len() / 2];
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Row {
        what: what.to_owned(),
        measured: ratio(&usual),
        unit: "x",
        limit,
        detail: format!(
            "{:.0} µs and {:.0} µs {how}; rounds {:.1} to {:.1} x",
            micros(usual.p99),
            micros(usual.median),
            ratio(&rounds[0]),
            ratio(&rounds[rounds.len() - 1])
        ),
    }
}

/// The paths of scripts of random nodes.
pub(crate) fn write_scripts(dir: &Path, count: u32) -> Result<PathBuf> {
    let mut random = Shuffle::new();
    let mut path = || format!("/boot/v1/bootscript?mac={}\n", sample::mac(random.below(count), 0));
    let file = dir.join("scripts");
    fs_err::write(&file, (0..count).map(|_| path()).collect::<String>())?;
    Ok(file)
}

/// Checks that scripts are correct, each for its node; returns the size of the usual one.
fn check(address: &str, count: u32) -> Result<usize> {
    let mut random = Shuffle::new();
    let mut size = 0;
    for _ in 0..100 {
        let n = random.below(count);
        let mac = sample::mac(n, 0);
        let script = fetch(address, &format!("/boot/v1/bootscript?mac={mac}"))?;
        let bootif = format!("BOOTIF=01-{}", mac.to_string().replace(':', "-"));
        ensure!(script.contains(&bootif), "{mac} got\n{script}");
        if !n.is_multiple_of(64) && n != 7 {
            ensure!(script.contains(sample::KERNEL), "{mac} got\n{script}");
            size = script.len();
        }
    }
    Ok(size)
}

pub(crate) fn fetch(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no head")?;
    Ok(body.to_owned())
}
