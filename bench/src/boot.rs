//! Boot scripts over HTTP, beside an nginx that answers a constant of the same size.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cores::Cores;
use crate::inside;
use crate::knock::{self, Latency};
use crate::nginx::Nginx;
use crate::sample::{self, SITE, Shuffle};
use crate::verdict::{Limit, Row};
use crate::wrk::{self, Connections};

/// Both take turns, so that what else the machine does hits them alike; the median turn counts.
const ROUNDS: usize = 7;
const SECONDS: u32 = 2;
const THROUGHPUT: Limit = Limit::AtLeast(0.95);
const P99: Limit = Limit::AtMost(5.0);
/// Of the throughput at saturation.
const LOAD: f64 = 0.8;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    inside::ask(&["site", &SITE.to_string(), inside::path(&site)?, "embedded"])?;
    let macs = write_macs(dir.path())?;
    let mut rows = Vec::new();
    let kept = ("connections kept alive", Connections::KeptAlive);
    let single = ("one connection per request", Connections::OnePerRequest);
    for (what, connections) in [kept, single] {
        let what = format!("{what}, all on the same cores");
        let (row, _) = beside_nginx(&Cores::shared()?, &site, &macs, connections, &what)?;
        rows.push(Row { limit: Some(THROUGHPUT), ..row });
    }
    let (cores, what) = (Cores::split()?, format!("{}, server and client on a half each", kept.0));
    let (row, saturated) = beside_nginx(&cores, &site, &macs, kept.1, &what)?;
    rows.push(row);
    let controller = inside::Running::start_on(&site, "embedded", Some(&cores.server))?;
    rows.push(latency(&cores, &controller.address, saturated, &macs)?);
    Ok(rows)
}

/// Throughput beside nginx, and the throughput.
fn beside_nginx(
    cores: &Cores,
    site: &Path,
    macs: &Path,
    connections: Connections,
    what: &str,
) -> Result<(Row, f64)> {
    let controller = inside::Running::start_on(site, "embedded", Some(&cores.server))?;
    let size = check(&controller.address)?;
    let nginx = Nginx::start(cores, size, None)?;
    let ask = |address: &str| wrk::throughput(cores, address, macs, connections, SECONDS);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(ask(&controller.address)?);
        theirs.push(ask(&nginx.address)?);
    }
    let spread = spread(&ours, &theirs);
    let (ours, theirs) = (median(ours), median(theirs));
    let row = Row {
        what: format!("scripts per second, {what}, beside nginx"),
        measured: ours / theirs,
        unit: "x",
        limit: None,
        detail: format!("{ours:.0}/s and {theirs:.0}/s of {size} bytes; rounds {spread}"),
    };
    Ok((row, ours))
}

/// Each of the rounds as a ratio, the worst and the best.
fn spread(ours: &[f64], theirs: &[f64]) -> String {
    let mut ratios: Vec<f64> =
        ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    ratios.sort_by(f64::total_cmp);
    format!("{:.2} to {:.2}", ratios[0], ratios[ratios.len() - 1])
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn latency(cores: &Cores, address: &str, saturated: f64, macs: &Path) -> Result<Row> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
    let rate = (saturated * LOAD) as u32;
    let mut rounds: Vec<Latency> = (0..ROUNDS)
        .map(|_| knock::latency(&cores.client, address, rate, macs))
        .collect::<Result<_>>()?;
    let ratio = |round: &Latency| round.p99.as_secs_f64() / round.median.as_secs_f64();
    rounds.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let usual = rounds[rounds.len() / 2];
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Ok(Row {
        what: format!("p99 beside the median, at {:.0} % of saturation", LOAD * 100.0),
        measured: ratio(&usual),
        unit: "x",
        limit: Some(P99),
        detail: format!(
            "{:.0} µs and {:.0} µs at {rate}/s; rounds {:.1} to {:.1} x",
            micros(usual.p99),
            micros(usual.median),
            ratio(&rounds[0]),
            ratio(&rounds[rounds.len() - 1])
        ),
    })
}

/// All boot MACs of the site, in no order.
fn write_macs(dir: &Path) -> Result<PathBuf> {
    let mut random = Shuffle::new();
    let macs = (0..SITE).map(|_| format!("{}\n", sample::mac(random.below(SITE), 0)));
    let file = dir.join("macs");
    fs_err::write(&file, macs.collect::<String>())?;
    Ok(file)
}

/// Scripts are what they should be, each for its node; returns the size of the usual one.
fn check(address: &str) -> Result<usize> {
    let mut random = Shuffle::new();
    let mut size = 0;
    for _ in 0..100 {
        let n = random.below(SITE);
        let mac = sample::mac(n, 0);
        let script = script(address, &mac.to_string())?;
        let bootif = format!("BOOTIF=01-{}", mac.to_string().replace(':', "-"));
        ensure!(script.contains(&bootif), "{mac} got\n{script}");
        if !n.is_multiple_of(64) && n != 7 {
            ensure!(script.contains(sample::KERNEL), "{mac} got\n{script}");
            size = script.len();
        }
    }
    Ok(size)
}

fn script(address: &str, mac: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let request = format!(
        "GET /boot/v1/bootscript?mac={mac} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no head")?;
    Ok(body.to_owned())
}
