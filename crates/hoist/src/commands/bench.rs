//! `hoist bench`: a site measures its own controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use hoist_api::client::{Client, ClientError, NodeQuery};
use hoist_model::{Exit, Mac};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{Shell, selector};
use crate::connect::is_loopback;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};

const MAX_NODES: u32 = 1_000_000;
const MAX_CLIENTS: u16 = 1_024;
const MAX_RATE: u32 = 1_000_000;
const MAX_DURATION: Duration = Duration::from_mins(10);

/// Nodes asked for in one page of the inventory.
const PAGE: usize = 5_000;
/// Limit of distinguished failures; details that differ in every answer would fill the report.
const MAX_KINDS: usize = 8;
const BAR: usize = 40;

/// Measure a controller
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Storm(StormArgs),
}

/// Ask for boot scripts as a whole site does after a power cut
///
/// Asks for N nodes of the server's inventory, each once (and around again if it has fewer), and
/// shows how long the answers took. By default it asks for the parts of each script (`json=1`):
/// nothing is written to the boot history then, and no configuration for one boot is used up. With
/// `--scripts` it asks for the scripts themselves, as machines do: that is faster, every node's boot history then says that it asked, and configurations for one boot are
/// handed out.
///
/// Ends with 1 when an answer was missing or not 200.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist bench storm\n  \
    hoist bench storm --nodes 100000 --clients 256\n  \
    hoist bench storm --rate 5000 --duration 30s -o json\n  \
    hoist bench storm --server https://controller:27443 --allow-remote --nodes 1000")]
pub(crate) struct StormArgs {
    /// How many questions
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NODES)))]
    nodes: u32,
    /// How many ask at once
    #[arg(long, value_name = "C", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_CLIENTS)))]
    clients: u16,
    /// Questions a second; each counts from when it was due. Without it, as fast as answers come
    #[arg(long, value_name = "R",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE)))]
    rate: Option<u32>,
    /// Stop asking after this long; at most 10m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    duration: Duration,
    /// Only these nodes
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "unknown_machines")]
    selector: Option<String>,
    /// Ask for made-up MACs instead, as unknown machines
    #[arg(long, conflicts_with = "scripts")]
    unknown_machines: bool,
    /// Ask for the scripts themselves; leaves traces, see above
    #[arg(long)]
    scripts: bool,
    /// Also when the server is not on this machine
    #[arg(long)]
    allow_remote: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let given = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if given.is_zero() || given > MAX_DURATION {
        let longest = humantime::format_duration(MAX_DURATION);
        return Err(format!("must be between zero and {longest}"));
    }
    Ok(given)
}

impl BenchArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            BenchCommand::Storm(args) => args.run(shell).await,
        }
    }
}

impl StormArgs {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let base = client.base();
        if !is_loopback(base) && !self.allow_remote {
            return Err(Failure::refused(format!("{base} is not on this machine")).with_hint(
                "the load would slow down booting machines there; use `--allow-remote` to run it anyway",
            ));
        }
        if self.scripts {
            shell.printer.warn("these requests will appear in the boot histories of the nodes");
        }
        let who = if self.unknown_machines {
            made_up(self.nodes)
        } else {
            self.inventory(&client).await?
        };
        let storm = Storm {
            client: client.clone(),
            who,
            count: self.nodes,
            recorded: self.scripts,
            pause: self.rate.map(|rate| Duration::from_secs(1) / rate),
            next: AtomicU32::new(0),
            start: Instant::now(),
            duration: self.duration,
            bar: bar(self.nodes.into()),
        };
        let (outcomes, took) = storm.rage(self.clients).await;
        let report = Report::of(outcomes, self.nodes as usize, took);
        print(&mut shell.printer, &report)?;
        Ok(if report.failed == 0 { Exit::Done } else { Exit::Failed })
    }

    /// The keys with which the nodes of the site would ask.
    async fn inventory(&self, client: &Client) -> Result<Vec<Who>, Failure> {
        let words: Vec<String> = self.selector.iter().cloned().collect();
        let mut query = NodeQuery {
            selector: selector(&words)?,
            fields: Some("name,interfaces,enabled".to_owned()),
            limit: Some(PAGE.min(self.nodes as usize)),
            ..NodeQuery::default()
        };
        let mut who = Vec::new();
        loop {
            let page = client.nodes(&query).await?;
            for node in page.items.into_iter().filter(|node| node.enabled) {
                match (node.interfaces.first(), node.name) {
                    (Some(interface), _) => who.push(("mac", interface.mac.to_string())),
                    (None, Some(name)) => who.push(("name", name.to_string())),
                    (None, None) => {}
                }
            }
            query.next = page.next.filter(|_| who.len() < self.nodes as usize);
            if query.next.is_none() {
                break;
            }
        }
        if who.is_empty() {
            let hint = "use `--unknown-machines` for made-up MACs";
            return Err(Failure::missing("a node to ask for").with_hint(hint));
        }
        Ok(who)
    }
}

/// The name of a parameter and its value.
type Who = (&'static str, String);

/// MACs that no vendor gave away.
fn made_up(count: u32) -> Vec<Who> {
    let mac = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        ("mac", Mac::from_octets([0x02, 0xbe, a, b, c, d]).to_string())
    };
    (0..count).map(mac).collect()
}

fn bar(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("asking {bar:32} {pos}/{len} {per_sec} {eta}")
        .expect("a literal template");
    ProgressBar::new(count).with_style(style)
}

/// Questions on their way to one server.
struct Storm {
    client: Client,
    who: Vec<Who>,
    count: u32,
    recorded: bool,
    /// Between two questions, if they have a schedule.
    pause: Option<Duration>,
    next: AtomicU32,
    start: Instant,
    duration: Duration,
    bar: ProgressBar,
}

/// How long an answer took, or why there was none.
type Outcome = Result<Duration, String>;

impl Storm {
    async fn rage(self, clients: u16) -> (Vec<Outcome>, Duration) {
        let storm = Arc::new(self);
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let storm = Arc::clone(&storm);
            tasks.spawn(async move { storm.ask_on().await });
        }
        let mut outcomes = Vec::with_capacity(storm.count as usize);
        while let Some(asked) = tasks.join_next().await {
            outcomes.extend(asked.unwrap_or_else(|panic| vec![Err(panic.to_string())]));
        }
        storm.bar.finish_and_clear();
        (outcomes, storm.start.elapsed())
    }

    /// One client: the next question, until there is none.
    async fn ask_on(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let due = match self.pause {
                Some(pause) => self.start + pause * at,
                None => Instant::now(),
            };
            if at >= self.count || due.max(Instant::now()) > self.start + self.duration {
                return outcomes;
            }
            tokio::time::sleep_until(due.into()).await;
            let (key, value) = &self.who[at as usize % self.who.len()];
            let answer = self.client.bootscript((*key, value), self.recorded).await;
            outcomes.push(match answer {
                Ok(text) if self.recorded && !text.starts_with(b"#!ipxe\n") => {
                    Err("an answer that is not a script".to_owned())
                }
                Ok(_) => Ok(due.elapsed()),
                Err(error) => Err(kind(&error)),
            });
            self.bar.inc(1);
        }
    }
}

/// Failures of one kind are counted together.
fn kind(error: &ClientError) -> String {
    match error {
        ClientError::Problem { problem, .. } => format!("{} {}", problem.status, problem.code),
        ClientError::Foreign { status, .. } => status.to_string(),
        other => other.to_string(),
    }
}

#[derive(Debug, Serialize)]
struct Report {
    answered: usize,
    failed: usize,
    /// The time was up before it was their turn.
    not_asked: usize,
    seconds: f64,
    per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<Milliseconds>,
    histogram: Vec<Bucket>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, usize>,
}

/// Until an answer was complete.
#[derive(Debug, PartialEq, Serialize)]
struct Milliseconds {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Answers that took longer than the bucket before, and up to this.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Bucket {
    up_to_microseconds: u64,
    answers: usize,
}

impl Report {
    fn of(outcomes: Vec<Outcome>, wanted: usize, took: Duration) -> Self {
        let not_asked = wanted.saturating_sub(outcomes.len());
        let mut times = Vec::with_capacity(outcomes.len());
        let mut failures = BTreeMap::new();
        for outcome in outcomes {
            match outcome {
                Ok(time) => times.push(time),
                Err(kind) => {
                    let known = failures.len() < MAX_KINDS || failures.contains_key(&kind);
                    let kind = if known { kind } else { "others".to_owned() };
                    *failures.entry(kind).or_default() += 1;
                }
            }
        }
        times.sort_unstable();
        let answered = u32::try_from(times.len()).unwrap_or(u32::MAX);
        Self {
            answered: times.len(),
            failed: failures.values().sum(),
            not_asked,
            seconds: took.as_secs_f64(),
            per_second: f64::from(answered) / took.as_secs_f64(),
            milliseconds: milliseconds(&times),
            histogram: histogram(&times),
            failures,
        }
    }
}

/// Of times in order.
fn milliseconds(times: &[Duration]) -> Option<Milliseconds> {
    let last = times.len().checked_sub(1)?;
    let at = |percent: usize| times[last * percent / 100].as_secs_f64() * 1000.0;
    Some(Milliseconds { p50: at(50), p90: at(90), p99: at(99), max: at(100) })
}

/// In steps of two, from the fastest to the slowest.
fn histogram(times: &[Duration]) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for time in times {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2);
        let end = micros.max(1).next_power_of_two();
        let mut next = buckets.last().map_or(end, |bucket| bucket.up_to_microseconds * 2);
        while next <= end {
            buckets.push(Bucket { up_to_microseconds: next, answers: 0 });
            next *= 2;
        }
        if let Some(bucket) = buckets.last_mut() {
            bucket.answers += 1;
        }
    }
    buckets
}

fn print(printer: &mut Printer, report: &Report) -> Result<(), Failure> {
    if matches!(printer.output(), Output::Json | Output::Yaml) {
        return printer.value(report);
    }
    let Report { answered, failed, seconds, per_second, .. } = report;
    let tone = if *failed == 0 { Tone::Added } else { Tone::Removed };
    let summary =
        format!("{answered} answers in {seconds:.1} s, {per_second:.0}/s, {failed} failed");
    printer.toned(tone, &summary)?;
    if report.not_asked > 0 {
        printer.line(format!("{} not asked: the time limit was reached", report.not_asked))?;
    }
    if let Some(Milliseconds { p50, p90, p99, max }) = &report.milliseconds {
        let ms = |time: &f64| format!("{time:.2} ms");
        let p50 = ms(p50);
        let p90 = ms(p90);
        let p99 = ms(p99);
        let max = ms(max);
        printer.line(format!("p50 {p50}, p90 {p90}, p99 {p99}, max {max}"))?;
    }
    let highest = report.histogram.iter().map(|bucket| bucket.answers).max().unwrap_or(1);
    for Bucket { up_to_microseconds, answers } in &report.histogram {
        // Few are more than none.
        let bar = "█".repeat((answers * BAR).div_ceil(highest));
        printer.line(format!("{:>10} {bar:BAR$} {answers}", up_to(*up_to_microseconds)))?;
    }
    for (kind, count) in &report.failures {
        printer.toned(Tone::Removed, &format!("{count} x {kind}"))?;
    }
    Ok(())
}

/// The end of a bucket, short.
fn up_to(micros: u64) -> String {
    match micros {
        0..=999 => format!("≤ {micros} µs"),
        1_000..=999_999 => format!("≤ {} ms", micros.div_ceil(1_000)),
        _ => format!("≤ {} s", micros.div_ceil(1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_has_every_answer_and_counter_every_failure() {
        let micros = [3, 5, 5, 100, 1_500].map(Duration::from_micros);
        let mut outcomes: Vec<Outcome> = micros.into_iter().map(Ok).collect();
        outcomes.extend((0..20).map(|n| Err(format!("failure {n}"))));
        let report = Report::of(outcomes, 30, Duration::from_secs(1));
        assert_eq!((report.answered, report.failed, report.not_asked), (5, 20, 5));
        assert_eq!(report.failures.len(), MAX_KINDS + 1);
        let ends: Vec<_> = report
            .histogram
            .iter()
            .filter(|bucket| bucket.answers > 0)
            .map(|bucket| (bucket.up_to_microseconds, bucket.answers))
            .collect();
        assert_eq!(ends, [(4, 1), (8, 2), (128, 1), (2048, 1)]);
        // The empty ones between are there too.
        assert_eq!(report.histogram.len(), 10);
        let times = report.milliseconds.unwrap();
        assert!((times.p50 - 0.005).abs() < 1e-9 && (times.max - 1.5).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn report_without_answers_is_printed() {
        let report = Report::of(vec![Err("503".to_owned())], 1, Duration::from_secs(1));
        let (mut printer, out, _) = crate::printer::tests::printer(Output::Table);
        print(&mut printer, &report).unwrap();
        assert_eq!(out.text(), "0 answers in 1.0 s, 0/s, 1 failed\n1 x 503\n");
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        let times = [vec![1_000; 80], vec![2_000; 40], vec![3_000]].concat();
        let outcomes = times.into_iter().map(|micros| Ok(Duration::from_micros(micros))).collect();
        let report = Report::of(outcomes, 121, Duration::from_secs(1));
        let (mut printer, out, _) = crate::printer::tests::printer(Output::Table);
        print(&mut printer, &report).unwrap();
        let bars: Vec<_> = out.text().lines().skip(2).map(|l| l.matches('█').count()).collect();
        assert_eq!(bars, [40, 20, 1]);
    }

    #[test]
    fn durations_have_a_limit() {
        assert_eq!(duration("10m"), Ok(MAX_DURATION));
        for text in ["601s", "0s", "", "x"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
