//! What one answer costs a real controller, in instructions: the same on a busy machine as on a
//! quiet one.
//!
//! Callgrind counts everything the process does from the first counted request to the last.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::inside;
use crate::knock::answer_length;
use crate::sample::{self, LARGE_SITE, SITE, Shuffle};
use crate::verdict::{Limit, Row, multiple};

const SMALL_SITE: u32 = 1_000;
const WARM_UP: u32 = 2_000;
const COUNTED: u32 = 20_000;
/// A thousand times the nodes may cost a fifth more.
const GROWTH: Limit = Limit::AtMost(1.2);

pub(crate) fn rows() -> Result<Vec<Row>> {
    let small = per_request(SMALL_SITE)?;
    let mut rows = Vec::new();
    for (count, limit) in [(SITE, None), (LARGE_SITE, Some(GROWTH))] {
        let large = per_request(count)?;
        rows.push(Row {
            what: format!("instructions per request, {count} nodes beside {SMALL_SITE}"),
            measured: multiple(large, small),
            unit: "x",
            limit,
            detail: format!("{large} and {small}"),
        });
    }
    Ok(rows)
}

fn per_request(count: u32) -> Result<u64> {
    let dir = tempfile::tempdir()?;
    let site = inside::path(dir.path())?;
    inside::ask(&["site", &count.to_string(), site, "embedded"])?;
    let mut counted = Counted::start(site)?;
    let mut client =
        Client { stream: TcpStream::connect(&counted.address)?, random: Shuffle::new() };
    client.ask(count, WARM_UP)?;
    counted.control("on")?;
    client.ask(count, COUNTED)?;
    counted.control("off")?;
    Ok(counted.end()? / u64::from(COUNTED))
}

/// A controller under callgrind.
struct Counted {
    child: Child,
    address: String,
}

impl Counted {
    fn start(site: &str) -> Result<Self> {
        let mut child = Command::new("valgrind")
            .args(["--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe()?)
            .args(["--inside", "controller", site, "embedded"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("valgrind does not start; `make setup-bench` installs it")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("it is piped")?).read_line(&mut address)?;
        ensure!(!address.is_empty(), "the controller did not start");
        Ok(Self { child, address: address.trim().to_owned() })
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
    fn end(&mut self) -> Result<u64> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.child.stderr.take().context("it is piped")?.read_to_string(&mut text)?;
        self.child.wait()?;
        let count = text.lines().find_map(|line| line.split_once("Collected : "));
        Ok(count.with_context(|| format!("callgrind says no count:\n{text}"))?.1.trim().parse()?)
    }
}

struct Client {
    stream: TcpStream,
    random: Shuffle,
}

impl Client {
    /// One request after the other, on one connection.
    fn ask(&mut self, nodes: u32, count: u32) -> Result<()> {
        for _ in 0..count {
            let mac = sample::mac(self.random.below(nodes), 0);
            let request =
                format!("GET /boot/v1/bootscript?mac={mac} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            self.stream.write_all(request.as_bytes())?;
            let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
            while answer_length(&read)?.is_none_or(|length| read.len() < length) {
                let count = self.stream.read(&mut buffer)?;
                ensure!(count > 0, "the server closed the connection");
                read.extend_from_slice(&buffer[..count]);
            }
        }
        Ok(())
    }
}
