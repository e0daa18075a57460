//! A whole site at once: bytes for a hundred clients, and scripts for every node while boot
//! parameters are written and the store goes away.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hoist_testkit::etcd::EtcdServer;
use rustix::net::RecvFlags;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::boot::median;
use crate::cores::Cores;
use crate::knock::answer_length;
use crate::nginx::{Files, Nginx};
use crate::sample::{self, KERNEL, SITE, Shuffle};
use crate::verdict::{Limit, Row};
use crate::{bulk, inside, resident};

const CLIENTS: usize = 100;
const INITRD: usize = 40 << 20;
const IMAGE: usize = 256 << 20;
const ROUNDS: usize = 3;
const THROUGHPUT: Limit = Limit::AtLeast(0.9);
/// A client that gets nothing for so long gives up.
const DEADLINE: Duration = Duration::from_secs(30);
/// Memory that a hundred clients may add: a chunk and its connection each.
const FLAT: Limit = Limit::AtMost(64.0);

/// Script, initrd and image for each of a hundred clients at once.
pub(crate) fn bytes() -> Result<Vec<Row>> {
    let cores = Cores::split()?;
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    let files = dir.path().join("files");
    inside::ask(&["site", "1000", inside::path(&site)?, "embedded"])?;
    let controller = inside::ControllerProcess::start_on(&site, "embedded", Some(&cores.server))?;
    let token = fs_err::read_to_string(site.join("admin.token"))?;
    fs_err::create_dir(&files)?;
    let mut ours = vec![format!("/boot/v1/bootscript?mac={}", sample::mac(1, 0))];
    let mut theirs = ours.clone();
    for (name, size) in [("initrd", INITRD), ("image", IMAGE)] {
        let content = noise(size);
        fs_err::write(files.join(name), &content)?;
        let digest = upload(&controller.address, token.trim(), content)?;
        ours.push(format!("/artifacts/{digest}/{name}"));
        theirs.push(format!("/files/{name}"));
    }
    let nginx = |sendfile| Nginx::start(&cores, 500, Some(&Files { dir: &files, sendfile }));
    let plain = nginx(false)?;
    let sendfile = nginx(true)?;
    let process = controller.process();
    let before = resident::now(&process)?;
    resident::reset_peak(&process)?;
    let fetch = |address: &str, paths: &[String]| fetch_all(&cores, address, paths);
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        rates[0].push(fetch(&controller.address, &ours)?);
        rates[1].push(fetch(&plain.address, &theirs)?);
        rates[2].push(fetch(&sendfile.address, &theirs)?);
    }
    let grown = resident::peak(&process)?.saturating_sub(before) / (1 << 20);
    let [ours, plain, sendfile] = rates.map(median);
    let row = |what: &str, theirs: f64, limit| Row {
        what: format!("bytes/s, {CLIENTS} clients / nginx {what}"),
        measured: ours / theirs,
        unit: "x",
        limit,
        detail: format!("{ours:.0} and {theirs:.0} MiB/s"),
    };
    Ok(vec![
        row("without sendfile", plain, Some(THROUGHPUT)),
        row("with sendfile", sendfile, Some(THROUGHPUT)),
        Row {
            what: "memory that these clients add".to_owned(),
            #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
            measured: grown as f64,
            unit: " MiB",
            limit: Some(FLAT),
            detail: format!("above {} MiB", before / (1 << 20)),
        },
    ])
}

/// Bytes that no file system makes smaller.
fn noise(size: usize) -> Vec<u8> {
    let mut random = Shuffle::new();
    let words = (0..size / 4).flat_map(|_| random.below(u32::MAX).to_le_bytes());
    words.collect()
}

/// Returns the digest.
fn upload(address: &str, token: &str, content: Vec<u8>) -> Result<String> {
    let digest = hoist_model::Digest::from_bytes(Sha256::digest(&content).into());
    let url = format!("http://{address}/boot/v2/blobs/{digest}?offset=0&size={}", content.len());
    tokio::runtime::Runtime::new()?.block_on(async {
        let request = bulk::client()?.patch(url).bearer_auth(token).body(content);
        let answer = request.send().await?;
        let status = answer.status();
        ensure!(status.is_success(), "{status}: {}", answer.text().await?);
        Ok(())
    })?;
    Ok(digest.to_string())
}

/// MiB per second.
fn fetch_all(cores: &Cores, address: &str, paths: &[String]) -> Result<f64> {
    let mut arguments = vec!["fetch", address];
    arguments.extend(paths.iter().map(String::as_str));
    let output =
        inside::command_on(Some(&cores.client), &arguments)?.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "fetching from {address} failed");
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The clients themselves, in a process of their own; prints MiB per second.
pub(crate) fn fetch(address: &str, paths: &[&str]) -> Result<()> {
    let start = Instant::now();
    let fetched: Vec<Result<u64>> = std::thread::scope(|scope| {
        let one = || paths.iter().try_fold(Download::start(address)?, Download::get);
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        let ended = clients.into_iter().map(|client| client.join().expect("no client panics"));
        ended.map(|client| Ok(client?.bytes)).collect()
    });
    let bytes = fetched.into_iter().sum::<Result<u64>>()?;
    #[expect(clippy::cast_precision_loss, reason = "it is a rate")]
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(writeln!(std::io::stdout(), "{}", mib / start.elapsed().as_secs_f64())?)
}

struct Download {
    stream: TcpStream,
    bytes: u64,
}

impl Download {
    fn start(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        Ok(Self { stream, bytes: 0 })
    }

    fn get(mut self, path: &&str) -> Result<Self> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        let mut head = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        let length = loop {
            let count = self.stream.read(&mut buffer[..4096])?;
            ensure!(count > 0, "{path}: the server closed the connection");
            head.extend_from_slice(&buffer[..count]);
            if let Some(length) = answer_length(&head)? {
                break length;
            }
        };
        let mut missing = length - head.len();
        while missing > 0 {
            let most = missing.min(buffer.len());
            // Taken from the socket without being copied: the servers are measured, not this.
            let part = &mut buffer[..most];
            let (_, count) = rustix::net::recv(self.stream.as_fd(), part, RecvFlags::TRUNC)?;
            ensure!(count > 0, "{path}: {missing} bytes never came");
            missing -= count;
        }
        self.bytes += length as u64;
        Ok(self)
    }
}

/// Boot parameters in one request, and requests in a second.
const WRITTEN: u32 = 100;
const WRITES: u32 = 10;
const ASKERS: u32 = 32;
const STORM_KERNEL: &str = "http://10.0.0.1/images/storm/vmlinuz";

/// Every node asks once, while boot parameters change and the store is killed half-way.
pub(crate) fn scripts() -> Result<Vec<Row>> {
    let cores = Cores::split()?;
    let etcd = EtcdServer::start();
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    let url = etcd.url("storm");
    inside::ask(&["site", &SITE.to_string(), inside::path(&site)?, &url])?;
    let controller = inside::ControllerProcess::start_on(&site, &url, Some(&cores.server))?;
    let token = fs_err::read_to_string(site.join("admin.token"))?;
    let storm = Storm {
        address: &controller.address,
        token: token.trim(),
        sent: (0..SITE).map(|_| AtomicU32::new(0)).collect(),
        kept: (0..SITE).map(|_| AtomicU32::new(0)).collect(),
        asked: AtomicU32::new(0),
        wrong: AtomicU32::new(0),
        changed: AtomicU32::new(0),
        over: AtomicBool::new(false),
    };
    let start = Instant::now();
    let (written, took) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| storm.write());
        let ask = |from| {
            let storm = &storm;
            scope.spawn(move || storm.ask(from))
        };
        let askers: Vec<_> = (0..ASKERS).map(ask).collect();
        while storm.asked.load(Ordering::Acquire) < SITE / 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        etcd.stop();
        for asker in askers {
            asker.join().expect("askers count what goes wrong")?;
        }
        let took = start.elapsed();
        storm.over.store(true, Ordering::Release);
        Ok::<_, anyhow::Error>((writer.join().expect("the writer counts too")?, took))
    })?;
    ensure!(written.refused > 0, "the store was never away");
    let seconds = took.as_secs_f64();
    Ok(vec![Row {
        what: "wrong or failed answers: 100,000 nodes ask once while 1,000 boot parameters/s are \
               written and etcd is killed"
            .to_owned(),
        measured: f64::from(storm.wrong.load(Ordering::Acquire)),
        unit: "",
        limit: Some(Limit::AtMost(0.0)),
        detail: format!(
            "{seconds:.1} s, {:.0}/s; {} boot parameters written at {:.0}/s until the store was \
             killed, {} writes refused after it; {} answers had new parameters",
            f64::from(SITE) / seconds,
            written.kept,
            written.rate,
            written.refused,
            storm.changed.load(Ordering::Acquire),
        ),
    }])
}

struct Storm<'a> {
    address: &'a str,
    token: &'a str,
    /// By node: the last parameters that were sent, and the last that were acknowledged.
    sent: Vec<AtomicU32>,
    kept: Vec<AtomicU32>,
    asked: AtomicU32,
    wrong: AtomicU32,
    /// Answers with parameters that were written meanwhile.
    changed: AtomicU32,
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct WriteCounts {
    kept: u32,
    rate: f64,
    refused: u32,
}

impl Storm<'_> {
    fn write(&self) -> Result<WriteCounts> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = bulk::client()?;
        let mut random = Shuffle::new();
        let mut written = WriteCounts::default();
        let start = Instant::now();
        let mut round = 0;
        while !self.over.load(Ordering::Acquire) {
            round += 1;
            let nodes: Vec<u32> = (0..WRITTEN).map(|_| random.below(SITE)).collect();
            let macs: Vec<String> = nodes.iter().map(|n| sample::mac(*n, 0).to_string()).collect();
            let body =
                json!({"macs": macs, "kernel": STORM_KERNEL, "params": format!("storm={round}")});
            for node in &nodes {
                self.sent[*node as usize].store(round, Ordering::Release);
            }
            let request = client
                .put(format!("http://{}/boot/v1/bootparameters", self.address))
                .bearer_auth(self.token)
                .json(&body)
                .timeout(Duration::from_secs(5));
            let answer = runtime.block_on(async { request.send().await });
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                for node in &nodes {
                    self.kept[*node as usize].store(round, Ordering::Release);
                }
                written.kept += WRITTEN;
                written.rate = f64::from(written.kept) / start.elapsed().as_secs_f64();
            } else {
                written.refused += 1;
            }
            let due = start + Duration::from_secs(1) / WRITES * round;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(written)
    }

    /// One of the askers: every so-manieth node, each once.
    fn ask(&self, from: u32) -> Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        for n in (from..SITE).step_by(ASKERS as usize) {
            let kept = self.kept[n as usize].load(Ordering::Acquire);
            let answer = exchange(&mut stream, &sample::mac(n, 0).to_string());
            let sent = self.sent[n as usize].load(Ordering::Acquire);
            match answer.and_then(|script| version(n, &script)) {
                Ok(0) if kept == 0 => {}
                Ok(version) if version > 0 && (kept..=sent).contains(&version) => {
                    self.changed.fetch_add(1, Ordering::AcqRel);
                }
                _ => {
                    self.wrong.fetch_add(1, Ordering::AcqRel);
                    stream = TcpStream::connect(self.address)?;
                }
            }
            self.asked.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

fn exchange(stream: &mut TcpStream, mac: &str) -> Result<String> {
    let request = format!("GET /boot/v1/bootscript?mac={mac} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while answer_length(&read)?.is_none_or(|length| read.len() < length) {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the server closed the connection");
        read.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8(read)?;
    Ok(text.split_once("\r\n\r\n").context("there is a head")?.1.to_owned())
}

/// Which parameters a script has: 0 for those of the configuration. One that is not for this node
/// is an error.
fn version(n: u32, script: &str) -> Result<u32> {
    let mac = sample::mac(n, 0).to_string();
    let dashed = mac.replace(':', "-");
    let retry = format!("/boot/v1/bootscript?mac={mac}&retry=1");
    let own = script.starts_with("#!ipxe\nkernel --name kernel ")
        && script.contains(&format!(" BOOTIF=01-{dashed} "))
        && script.contains(&retry);
    ensure!(own, "it is not for {mac}:\n{script}");
    if let Some((_, rest)) = script.split_once(" storm=") {
        let nid = format!(" nid={} ", n + 1);
        ensure!(script.contains(STORM_KERNEL) && script.contains(&nid), "half of it:\n{script}");
        return Ok(rest.split(' ').next().unwrap_or_default().parse()?);
    }
    let kernel = match n {
        7 => "http://10.0.0.1/images/testing/vmlinuz",
        n if n.is_multiple_of(64) => "http://10.0.0.1/images/service/vmlinuz",
        _ => KERNEL,
    };
    if !script.contains(&format!("{kernel} ")) {
        bail!("the kernel is not that of {mac}:\n{script}");
    }
    Ok(0)
}
