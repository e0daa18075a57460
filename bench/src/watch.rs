//! Whether the machine itself stopped for a while: a thread with real-time priority on every core,
//! which nothing but the machine below us keeps from waking up when it should.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Between two looks at the clock.
const EVERY: Duration = Duration::from_micros(250);
/// A wake-up that is so late was kept from happening.
const LATE: Duration = Duration::from_micros(500);

/// A watch on some cores, for as long as it was told.
#[derive(Debug)]
pub(crate) struct Watch(Vec<Child>);

impl Watch {
    /// `cores` as `taskset` takes them, from one to another.
    pub(crate) fn start(cores: &[&str], length: Duration) -> Result<Self> {
        let mut watchers = Vec::new();
        for core in cores.iter().flat_map(|list| each(list)) {
            let program = std::env::current_exe()?;
            let watcher = Command::new("taskset")
                .args(["--cpu-list", &core.to_string(), "chrt", "--fifo", "1"])
                .arg(program)
                .args(["--inside", "watch", &length.as_millis().to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .context("a thread of real-time priority needs root and `chrt` of util-linux")?;
            watchers.push(watcher);
        }
        Ok(Self(watchers))
    }

    /// How long the core that was stopped longest was stopped, when all of it is over.
    pub(crate) fn stopped(self) -> Result<Duration> {
        let mut most = Duration::ZERO;
        for watcher in self.0 {
            let output = watcher.wait_with_output()?;
            ensure!(output.status.success(), "a watcher failed: {}", output.status);
            let nanos = String::from_utf8(output.stdout)?.trim().parse()?;
            most = most.max(Duration::from_nanos(nanos));
        }
        Ok(most)
    }
}

fn each(list: &str) -> std::ops::RangeInclusive<usize> {
    let (from, to) = list.split_once('-').unwrap_or((list, list));
    let number = |text: &str| text.parse().expect("cores are numbers");
    number(from)..=number(to)
}

/// The watcher itself; prints nanoseconds.
pub(crate) fn run(length: Duration) -> Result<()> {
    let start = Instant::now();
    let mut stopped = Duration::ZERO;
    while start.elapsed() < length {
        let asleep = Instant::now();
        std::thread::sleep(EVERY);
        let late = asleep.elapsed().saturating_sub(EVERY);
        if late > LATE {
            stopped += late;
        }
    }
    Ok(writeln!(std::io::stdout(), "{}", stopped.as_nanos())?)
}
