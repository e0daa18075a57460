//! The delay of run events at a watching client, compared with a bare connection that sends the
//! same events at the same moments.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::bulk::{apply, client};
use crate::inside;
use crate::verdict::{Limit, Row};

/// Each does one thing at a time, for so long: two events each make 1,000 in a second.
const NODES: u32 = 100;
const EACH_MS: u32 = 200;
/// One after the other on each node.
const TASKS: u32 = 30;
const MAX_MS: f64 = 100.0;

/// One that was seen.
struct ObservedEvent {
    text: String,
    /// When it was decided, and when it was seen, in milliseconds since 1970.
    at: f64,
    came: f64,
}

pub(crate) fn measure() -> Result<Vec<Row>> {
    let dir = tempfile::tempdir_in(".")?;
    let controller = inside::ControllerProcess::start(dir.path())?;
    let token = fs_err::read_to_string(dir.path().join("admin.token"))?;
    let runtime = tokio::runtime::Runtime::new()?;
    let nodes = (0..NODES).map(|at| {
        let spec = json!({"nid": at + 1});
        let node =
            json!({"api": "hoist/v1", "kind": "Node", "name": format!("n{at}"), "spec": spec});
        format!("{node}\n")
    });
    let nodes: Vec<String> = nodes.collect();
    runtime.block_on(apply(&controller.address, token.trim(), nodes))?;
    let all = runtime.block_on(watch(&controller.address, token.trim()))?;
    ensure!(all.len() > (2 * NODES * (TASKS - 1)) as usize, "only {} events", all.len());
    let first = all.first().context("events")?.at;
    let last = all.last().context("events")?.at;
    let count = f64::from(u32::try_from(all.len())?);
    let ours = Delays::of(all.iter().map(|event| event.came - event.at).collect());
    let bare = Delays::of(bare(&all)?);
    Ok(vec![Row {
        what: "event to the slowest of 100 watchers, at 1,520 events/s".to_owned(),
        measured: ours.p99,
        unit: " ms",
        limit: Some(Limit::AtMost(MAX_MS)),
        detail: format!(
            "{:.0} events a second, median {:.1} ms, longest {:.1} ms, to the millisecond and \
             with what it takes to make it durable; a bare connection {:.2} ms, longest {:.2} ms",
            count / (last - first) * 1e3,
            ours.median,
            ours.longest,
            bare.p99,
            bare.longest
        ),
    }])
}

struct Delays {
    median: f64,
    p99: f64,
    longest: f64,
}

impl Delays {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |part: usize| all[all.len() * part / 100];
        Self { median: at(50), p99: at(99), longest: all[all.len() - 1] }
    }
}

fn now() -> f64 {
    UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64() * 1e3
}

fn tasks() -> String {
    use std::fmt::Write as _;
    let mut text = "hoist: 1\ntasks:\n".to_owned();
    for at in 0..TASKS {
        writeln!(text, "  t{at}:\n    on: \"*\"\n    run: {{wait: {{for: {{ms: {EACH_MS}}}}}}}")
            .expect("writing to memory");
        if let Some(before) = at.checked_sub(1) {
            writeln!(text, "    requires: [t{before}]").expect("writing to memory");
        }
    }
    text
}

/// Starts a run and sees all that happens in it from then on.
async fn watch(address: &str, token: &str) -> Result<Vec<ObservedEvent>> {
    let client = client()?;
    let base = format!("http://{address}/deploy/v1/runs");
    let request = json!({"files": [{"name": "bench.yaml", "text": tasks()}]});
    let answer = client.post(&base).bearer_auth(token).json(&request).send().await?;
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    let summary: Value = serde_json::from_str(&text)?;
    let id = summary["id"].as_str().context("a run has an id")?;
    let url = format!("{base}/{id}/events");
    let events = client.get(url).bearer_auth(token).header("accept", "text/event-stream");
    let mut chunks = events.send().await?.error_for_status()?.bytes_stream();
    let begun = now();
    let mut all = Vec::new();
    let mut open = String::new();
    while let Some(chunk) = chunks.next().await {
        let came = now();
        open.push_str(std::str::from_utf8(&chunk?)?);
        while let Some(end) = open.find('\n') {
            let line: String = open.drain(..=end).collect();
            let Some(text) = line.strip_prefix("data:") else { continue };
            let event: Value = serde_json::from_str(text)?;
            let at = event["at"].as_f64().context("an event has a time")?;
            // Earlier events could not be observed when they happened.
            if at >= begun {
                all.push(ObservedEvent { text: text.trim().to_owned(), at, came });
            }
        }
    }
    Ok(all)
}

/// The same lines, sent when they were due, and when they came; in milliseconds.
fn bare(all: &[ObservedEvent]) -> Result<Vec<f64>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut to = TcpStream::connect(listener.local_addr()?)?;
    to.set_nodelay(true)?;
    let from = BufReader::new(listener.accept()?.0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let came = from.lines().map(|line| line.map(|_| begun.elapsed()));
            came.collect::<std::io::Result<Vec<Duration>>>()
        });
        let mut sent = Vec::with_capacity(all.len());
        for event in all {
            let due = Duration::from_secs_f64((event.at - all[0].at).max(0.0) / 1e3);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            sent.push(begun.elapsed());
            to.write_all(format!("{}\n", event.text).as_bytes())?;
        }
        drop(to);
        let came = reader.join().expect("it does not panic")?;
        let delay =
            |(came, sent): (Duration, Duration)| came.saturating_sub(sent).as_secs_f64() * 1e3;
        Ok(came.into_iter().zip(sent).map(delay).collect())
    })
}
