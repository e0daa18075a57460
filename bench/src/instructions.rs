//! The cost of one script in instructions: the same on a busy machine as on a quiet one.
//!
//! From the query to the text, as the server does it, in a process under callgrind. Only the part
//! between the two marks of the other process is counted.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use hoist_boot::{Answer, BootRequest, Booter, RequestOrigin, Settings};
use hoist_site::Resource;
use jiff::Timestamp;

use crate::sample::{self, LARGE_SITE, SITE, Shuffle};
use crate::verdict::{Limit, Row, grouped, multiple};

const SMALL_SITE: u32 = 1_000;
const COUNTED: u32 = 20_000;
/// A thousand times the nodes may cost a fifth more.
const GROWTH: Limit = Limit::AtMost(1.2);
/// A BSS record may cost a fifth more than a configuration: two more values are filled in.
const BSS: Limit = Limit::AtMost(1.2);

pub(crate) fn measure() -> Result<Vec<Row>> {
    let small = per_script("scripts", SMALL_SITE)?;
    let mut rows = Vec::new();
    for (count, limit) in [(SITE, None), (LARGE_SITE, Some(GROWTH))] {
        let large = per_script("scripts", count)?;
        rows.push(Row {
            what: format!(
                "instructions per script, {} nodes / {}",
                grouped(count),
                grouped(SMALL_SITE)
            ),
            measured: multiple(large, small),
            unit: "x",
            limit,
            detail: format!("{large} and {small}"),
        });
    }
    let bss = per_script("bss-scripts", SITE)?;
    rows.push(Row {
        what: "instructions per script of a BSS record / of a configuration".to_owned(),
        measured: multiple(bss, small),
        unit: "x",
        limit: Some(BSS),
        detail: format!("{bss} and {small}"),
    });
    Ok(rows)
}

fn per_script(kind: &str, count: u32) -> Result<u64> {
    let mut counted = CountedProcess::start(kind, count)?;
    counted.control("on")?;
    counted.go_on()?;
    counted.control("off")?;
    Ok(counted.end()? / u64::from(COUNTED))
}

/// The measured process: prepares everything, then answers on request.
pub(crate) fn run(count: u32, boots: Vec<Resource>) -> Result<()> {
    let roster = Arc::new(sample::boot_roster(count, boots));
    let booter = Booter::new(Settings::default());
    let mut random = Shuffle::new();
    let queries: Vec<String> =
        (0..COUNTED).map(|_| format!("mac={}", sample::mac(random.below(count), 0))).collect();
    let place = RequestOrigin { host: Some("controller:27778"), ..RequestOrigin::default() };
    let answer = |query: &str| -> Result<String> {
        let asked = BootRequest::parse(query)?;
        let now = Timestamp::UNIX_EPOCH;
        match booter.answer(&roster, &asked, place, now, |_| None) {
            Answer::Script { text, .. } => Ok(text),
            other => bail!("{query}: {other:?}"),
        }
    };
    // As a controller does it in the background.
    booter.prepare(&roster);
    answer(&queries[0])?;
    let mut lines = std::io::stdin().lines();
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    lines.next().context("told to go on")??;
    for query in &queries {
        black_box(answer(query)?);
    }
    writeln!(out, "done")?;
    lines.next();
    Ok(())
}

/// A process under callgrind.
struct CountedProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl CountedProcess {
    fn start(kind: &str, count: u32) -> Result<Self> {
        let mut child = Command::new("valgrind")
            .args(["--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe()?)
            .args(["--inside", kind, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("valgrind does not start; `make setup-bench` installs it")?;
        let lines = BufReader::new(child.stdout.take().context("it is piped")?);
        let mut counted = Self { child, lines };
        counted.wait_for("ready")?;
        Ok(counted)
    }

    fn wait_for(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(line.trim() == word, "`{word}` was expected, not `{line}`");
        Ok(())
    }

    fn go_on(&mut self) -> Result<()> {
        self.child.stdin.as_mut().context("it is piped")?.write_all(b"\n")?;
        self.wait_for("done")
    }

    fn control(&self, instrumentation: &str) -> Result<()> {
        let output = Command::new("callgrind_control")
            .args(["-i", instrumentation, &self.child.id().to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && text.contains("OK"), "callgrind_control: {text}");
        Ok(())
    }

    /// How many instructions there were.
    fn end(mut self) -> Result<u64> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.child.stderr.take().context("it is piped")?.read_to_string(&mut text)?;
        self.child.wait()?;
        let count = text.lines().find_map(|line| line.split_once("Collected : "));
        Ok(count.with_context(|| format!("callgrind says no count:\n{text}"))?.1.trim().parse()?)
    }
}
