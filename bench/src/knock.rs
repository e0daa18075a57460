//! Two clients that time every answer. The open-loop client sends requests when they are due,
//! whether or not the server keeps up, and counts each time from its due time: a pause of the
//! server affects every request due during it. The closed-loop client sends the next request of a
//! connection after the answer to the previous one, so that a pause affects only one request of
//! each connection.
//!
//! Each client is one thread that never sleeps: timers and wake-ups would be measured with the
//! server. A third thread only reads the clock and measures the pauses of the machine itself.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::inside;
use crate::verdict::multiple;

const CONNECTIONS: usize = 64;
/// Together below a second: a thread that never sleeps is stopped after that where the machine is
/// shared by real-time priorities, and the stop would be measured.
const WARM_UP: Duration = Duration::from_millis(200);
const MEASURED: Duration = Duration::from_millis(500);
/// Between two measurements, for the same reason.
const REST: Duration = Duration::from_millis(700);

/// More than are answered in that time.
const MOST_CLOSED: usize = 1 << 18;

/// Half of the requests were answered within `median`, all but one of a hundred within `p99`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
}

/// Pauses of the machine, as seen by a thread that only reads the clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stops {
    pub(crate) watched: Duration,
    pub(crate) stopped: Duration,
    pub(crate) longest: Duration,
}

/// Asks `rate` times a second, from these cores.
pub(crate) fn latency(cores: &str, address: &str, rate: u32, paths: &Path) -> Result<Latency> {
    let arguments = ["knock", address, &rate.to_string(), inside::path(paths)?];
    let [median, p99] = figures(cores, &arguments)?.map(Duration::from_nanos);
    Ok(Latency { median, p99 })
}

/// Asks over so many connections, on each as soon as it has its answer; with how often a second.
pub(crate) fn closed(
    cores: &str,
    address: &str,
    connections: usize,
    paths: &Path,
) -> Result<(Latency, f64)> {
    let arguments = ["closed", address, &connections.to_string(), inside::path(paths)?];
    let [median, p99, count] = figures(cores, &arguments)?;
    let [median, p99] = [median, p99].map(Duration::from_nanos);
    let rate = multiple(count, 1) / MEASURED.as_secs_f64();
    Ok((Latency { median, p99 }, rate))
}

/// How often a thread on these cores is stopped for `least` or longer.
pub(crate) fn stops(cores: &str, least: Duration) -> Result<Stops> {
    let arguments = ["stops", &least.as_nanos().to_string()];
    let [watched, stopped, longest] = figures(cores, &arguments)?.map(Duration::from_nanos);
    Ok(Stops { watched, stopped, longest })
}

/// The output of one of the clients.
fn figures<const N: usize>(cores: &str, arguments: &[&str]) -> Result<[u64; N]> {
    std::thread::sleep(REST);
    let output = inside::command_on(Some(cores), arguments)?.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the client failed: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let found: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    found.try_into().ok().with_context(|| format!("{N} figures were expected, not `{text}`"))
}

struct Connection {
    stream: TcpStream,
    /// When the request on its way was due.
    due: Option<Instant>,
    read: Vec<u8>,
}

/// The open-loop client itself; prints nanoseconds.
pub(crate) fn run(address: &str, rate: u32, paths: &Path) -> Result<()> {
    let requests = requests(address, paths)?;
    let mut connections = (0..CONNECTIONS).map(|_| Connection::open(address));
    let mut idle: Vec<Connection> = connections.by_ref().collect::<Result<_>>()?;
    let mut busy: Vec<Connection> = Vec::new();
    let pause = Duration::from_secs(1) / rate;
    // A list that grows, or whose memory is used for the first time, keeps us from asking.
    let most = usize::try_from(MEASURED.as_nanos() / pause.as_nanos())? + CONNECTIONS;
    let mut times = vec![Duration::MAX; most];
    times.clear();
    let start = Instant::now();
    let counted = start + WARM_UP;
    let end = start + WARM_UP + MEASURED;
    let mut due = start;
    let mut texts = requests.iter().cycle();
    while due < end || !busy.is_empty() {
        let now = Instant::now();
        while due <= now && due < end {
            // None is free: the request waits, and its time runs.
            let Some(mut connection) = idle.pop() else { break };
            connection.stream.write_all(texts.next().expect("there are paths").as_bytes())?;
            connection.due = Some(due);
            busy.push(connection);
            due += pause;
        }
        let mut at = 0;
        while at < busy.len() {
            if busy[at].is_answered()? {
                let mut connection = busy.swap_remove(at);
                let due = connection.due.take().expect("it was busy");
                if due >= counted {
                    times.push(due.elapsed());
                }
                idle.push(connection);
            } else {
                at += 1;
            }
        }
    }
    let [median, p99] = percentiles(times);
    Ok(writeln!(std::io::stdout(), "{median} {p99}")?)
}

/// The closed-loop client itself; prints nanoseconds, and how many answers they are of.
pub(crate) fn run_closed(address: &str, connections: usize, paths: &Path) -> Result<()> {
    let requests = requests(address, paths)?;
    let mut texts = requests.iter().cycle();
    let mut connections: Vec<Connection> =
        (0..connections).map(|_| Connection::open(address)).collect::<Result<_>>()?;
    // As above.
    let mut times = vec![Duration::MAX; MOST_CLOSED];
    times.clear();
    let start = Instant::now();
    let counted = start + WARM_UP;
    let end = start + WARM_UP + MEASURED;
    while Instant::now() < end {
        for connection in &mut connections {
            if let Some(asked) = connection.due {
                if !connection.is_answered()? {
                    continue;
                }
                let now = Instant::now();
                if (counted..end).contains(&now) {
                    times.push(now - asked);
                }
            }
            connection.due = Some(Instant::now());
            connection.stream.write_all(texts.next().expect("there are paths").as_bytes())?;
        }
    }
    let count = times.len();
    let [median, p99] = percentiles(times);
    Ok(writeln!(std::io::stdout(), "{median} {p99} {count}")?)
}

/// Reads the clock; prints for how long, how much of that it was stopped for `least` or longer, and
/// the longest stop.
pub(crate) fn run_stops(least: Duration) -> Result<()> {
    let start = Instant::now();
    let mut last = start;
    let mut seen = Stops::default();
    while last - start < WARM_UP + MEASURED {
        let now = Instant::now();
        let gap = now - last;
        if gap >= least {
            seen.stopped += gap;
        }
        seen.longest = seen.longest.max(gap);
        last = now;
    }
    let figures = [last - start, seen.stopped, seen.longest].map(|time| time.as_nanos());
    let [watched, stopped, longest] = figures;
    Ok(writeln!(std::io::stdout(), "{watched} {stopped} {longest}")?)
}

fn requests(address: &str, paths: &Path) -> Result<Vec<String>> {
    let paths = fs_err::read_to_string(paths)?;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    Ok(paths.lines().map(request).collect())
}

/// The median and p99, in nanoseconds.
fn percentiles(mut times: Vec<Duration>) -> [u128; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times[times.len() * percent / 100].as_nanos())
}

impl Connection {
    fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, due: None, read: Vec::new() })
    }

    /// Whether the whole answer is here.
    fn is_answered(&mut self) -> Result<bool> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(count) => self.read.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let Some(length) = answer_length(&self.read)? else { return Ok(false) };
        ensure!(self.read.len() <= length, "more than one answer");
        let whole = self.read.len() == length;
        if whole {
            self.read.clear();
        }
        Ok(whole)
    }
}

/// Head and body, once the head is complete.
pub(crate) fn answer_length(read: &[u8]) -> Result<Option<usize>> {
    let Some(head) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&read[..head])?;
    ensure!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let Some((_, length)) = length else { bail!("no length in {text}") };
    Ok(Some(head + 4 + length.parse::<usize>()?))
}
