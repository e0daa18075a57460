//! `hoist-agent apply`, ended by SIGKILL at many places. As root, on loop devices.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use hoist_device::images::pack;
use hoist_device::metadata_area::{DiskJournal, read_marker};
use hoist_device::{ReadIo, kernel};
use hoist_engine::record::Record;
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::partition_table::{self as table, Table, TableOnDisk};
use hoist_testkit::eventually;
use hoist_testkit::loop_disk::{LoopDisk, run};
use parking_lot::Mutex;
use uuid::Uuid;

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_mins(1);

/// How much of the image the server sends.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// The server pauses before these bytes, long enough for the written bytes to become durable.
    pause_at: Option<usize>,
    /// Behind these bytes nothing comes any more.
    stall_at: Option<usize>,
}

/// Longer than the interval at which the agent records durable bytes.
const PAUSE: Duration = Duration::from_millis(2100);

struct Server {
    url: String,
    pace: Arc<Mutex<Pace>>,
    starts: Arc<Mutex<Vec<usize>>>,
    stalls: Receiver<()>,
}

impl Server {
    fn start(content: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/image", listener.local_addr().expect("it is bound"));
        let pace = Arc::new(Mutex::default());
        let starts = Arc::new(Mutex::default());
        let (stalled, stalls) = channel();
        let content = Arc::new(content);
        let of = Arc::clone(&pace);
        let seen = Arc::clone(&starts);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let content = Arc::clone(&content);
                let of = Arc::clone(&of);
                let seen = Arc::clone(&seen);
                let stalled = stalled.clone();
                std::thread::spawn(move || {
                    let mut stream = stream.expect("a connection");
                    let pace = *of.lock();
                    // An error means that the client was killed.
                    let _ = serve(&mut stream, &content, pace, &seen, &stalled);
                });
            }
        });
        Self { url, pace, starts, stalls }
    }

    fn pace(&self, pace: Pace) {
        *self.pace.lock() = pace;
        self.starts.lock().clear();
    }

    fn starts(&self) -> Vec<usize> {
        self.starts.lock().clone()
    }
}

fn serve(
    stream: &mut TcpStream,
    content: &[u8],
    pace: Pace,
    seen: &Mutex<Vec<usize>>,
    stalled: &Sender<()>,
) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(&mut *stream);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let head = head.to_lowercase();
    // A question before the download, for the size or the format.
    if let Some(range) = closed_range(&head, content.len()) {
        let start = range.start;
        let last = range.end - 1;
        let total = content.len();
        let answer = format!("206 Partial\r\ncontent-range: bytes {start}-{last}/{total}");
        write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: {}\r\n\r\n", range.len())?;
        return stream.write_all(&content[range]);
    }
    let range = head.split_once("range: bytes=").and_then(|(_, rest)| rest.split_once('-'));
    let from: usize = range.and_then(|(from, _)| from.parse().ok()).unwrap_or(0);
    seen.lock().push(from);
    let total = content.len();
    let last = content.len() - 1;
    let status = if range.is_some() {
        format!("206 Partial\r\ncontent-range: bytes {from}-{last}/{total}")
    } else {
        "200 OK".to_owned()
    };
    let length = total - from;
    write!(stream, "HTTP/1.1 {status}\r\netag: \"1\"\r\ncontent-length: {length}\r\n\r\n")?;
    let mut at = from;
    for stop in [pace.pause_at, pace.stall_at] {
        let Some(stop) = stop.filter(|stop| *stop > at) else { continue };
        stream.write_all(&content[at..stop])?;
        at = stop;
        if Some(stop) == pace.stall_at {
            let _ = stalled.send(());
            // Until the other end is gone.
            stream.read_to_end(&mut Vec::new())?;
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    stream.write_all(&content[at..])
}

/// The range of a request that names its end.
fn closed_range(head: &str, size: usize) -> Option<Range<usize>> {
    let (_, rest) = head.split_once("range: bytes=")?;
    let (start, rest) = rest.split_once('-')?;
    let last: usize = rest.split_once("\r\n")?.0.parse().ok()?;
    Some(start.parse().ok()?..size.min(last + 1))
}

struct Bench {
    disk: LoopDisk,
    dir: tempfile::TempDir,
    image: Vec<u8>,
    server: Server,
    txn: Uuid,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A loop device that is used again would still have them.
        let _ = kernel::set_partitions(self.disk.path(), &[]);
    }
}

/// Where the image comes to be.
const TARGET: usize = MIB;

impl Bench {
    fn new(sector: u32, tag: u128) -> Self {
        let disk = LoopDisk::new(64 * MIB as u64, sector);
        let dir = tempfile::tempdir().expect("a temporary directory");
        // Incompressible bytes take long to transfer.
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let image: Vec<u8> = noise.take(33 * MIB / 8).flatten().collect();
        let mut packed = Vec::new();
        let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
        let manifest = serde_json::to_vec(&manifest).expect("a plain value");
        fs_err::write(dir.path().join("manifest"), manifest).expect("written");
        let txn = Uuid::from_u128(u128::from(std::process::id()) << 64 | tag);
        Self { disk, dir, image, server: Server::start(packed), txn }
    }

    fn document(&self) -> PathBuf {
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let manifest = self.dir.path().join("manifest");
        let text = format!(
            "api: hoist/v1\ntxn: {}\nsections:\n  node: {{id: n1, generation: 7}}\n  \
             policy: {{allow_kernel_names: true}}\n  \
             disks: {{os: {{match: {{kernel_name: {name}}}, wipe: any}}}}\n  storage:\n  \
             - part: {{id: root, on: os, size: 40 MiB}}\n  - part: {{id: data, on: os, size: rest}}\n  \
             - fs: {{id: data-fs, on: data, kind: ext4}}\n  images:\n    \
             root: {{sources: ['{}'], manifest: 'file://{}', target: root}}\n",
            self.txn,
            self.server.url,
            manifest.display()
        );
        let path = self.dir.path().join("node.yaml");
        fs_err::write(&path, text).expect("it is written");
        path
    }

    fn start(&self) -> Child {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
        agent.arg("apply").arg("-f").arg(self.document());
        agent.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts")
    }

    fn io(&self) -> ReadIo {
        ReadIo::open(self.disk.path(), 512).expect("it is there")
    }

    fn table(&self) -> Option<Table> {
        let io = self.io();
        match table::read(&io, io.identity().sector).expect("it is read") {
            TableOnDisk::Gpt { table, .. } => Some(table),
            _ => None,
        }
    }

    fn records(&self) -> Vec<Record> {
        let area = MetadataArea::before(None).expect("an area");
        DiskJournal::peek(&self.io(), &area).ok().flatten().unwrap_or_default()
    }

    fn has_image(&self) -> bool {
        self.disk.bytes()[TARGET..].starts_with(&self.image)
    }

    /// The disk of a run that was killed says so, or is complete.
    fn is_marked(&self) -> bool {
        let table = self.table().expect("the old one had none, and nothing was killed before it");
        let is_marked = table.txn_in_progress() == Some(self.txn);
        assert!(is_marked || self.has_image(), "what looks whole is: {table:?}");
        let begins = self.disk.bytes()[TARGET..].starts_with(&self.image[..512]);
        assert!(!begins || self.has_image(), "half of it is nothing");
        is_marked
    }

    /// Applies again until the disk is free: a program that the killed agent started may hold it.
    fn finish(&self) -> Output {
        eventually("disk is free", || {
            let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
            let output = agent.arg("apply").arg("-f").arg(self.document()).output();
            let output = output.expect("the agent starts");
            let is_busy = String::from_utf8_lossy(&output.stderr).contains("in use");
            if is_busy { Err(output) } else { Ok(output) }
        })
    }

    fn assert_done(&self, at: &str) -> String {
        let output = self.finish();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{at}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(self.has_image(), "{at}");
        let data = format!("{}p2", self.disk.path().display());
        run(Command::new("e2fsck").arg("-fn").arg(data));
        let area = MetadataArea::before(None).expect("an area");
        let marker = read_marker(&self.io(), &area).expect("it is read").expect("it is there");
        assert!(marker.is_complete && marker.generation == 7, "{marker:?}");
        said
    }
}

fn kill(mut agent: Child) {
    agent.kill().expect("it is ours");
    agent.wait().expect("it is ours");
}

#[test]
fn agent_killed_at_any_step_resumes() {
    for (sector, tag) in [(512, 1), (4096, 2)] {
        let bench = Bench::new(sector, tag);
        let steps =
            ["wipe os", "make ext4 data-fs in data", "write image root to root", "close os"];
        let mut is_marked = true;
        for step in steps {
            let mut agent = bench.start();
            let lines = BufReader::new(agent.stderr.take().expect("it is ours")).lines();
            let found = lines.map_while(Result::ok).find(|line| line == step);
            assert!(found.is_some(), "`{step}` begins");
            kill(agent);
            is_marked = bench.is_marked();
        }
        let said = bench.assert_done("after all of them");
        let is_continued =
            said.contains("resumed an interrupted run") || said.contains("nothing to do");
        // Between the final table and its marker, only the marker is left to be written.
        assert!(is_continued || !is_marked, "{said}");
    }
}

#[test]
fn agent_killed_during_an_image_leaves_a_marked_disk() {
    let bench = Bench::new(512, 3);
    let document = bench.document();
    for number in 0..6 {
        let stall_at = Some((number * 11 + 1) * MIB / 2);
        bench.server.pace(Pace { stall_at, ..Pace::default() });
        let agent = bench.start();
        bench.server.stalls.recv_timeout(LIMIT).expect("it comes that far");
        kill(agent);
        assert!(bench.is_marked(), "at {stall_at:?}");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
        let verify = verify.arg("verify").arg("-f").arg(&document).output().expect("it starts");
        assert_eq!(verify.status.code(), Some(1), "it is not as it shall be");
    }
    bench.server.pace(Pace::default());
    assert!(bench.assert_done("after all of them").contains("resumed an interrupted run"));
}

#[test]
fn agent_killed_after_a_durable_record_resumes_there() {
    let bench = Bench::new(4096, 4);
    let pace = Pace { pause_at: Some(17 * MIB), stall_at: Some(30 * MIB) };
    bench.server.pace(pace);
    let agent = bench.start();
    bench.server.stalls.recv_timeout(LIMIT).expect("it comes that far");
    let reached = || {
        let records = bench.records();
        let done = records.iter().filter_map(|record| match record {
            Record::Reached { done, .. } => Some(*done),
            _ => None,
        });
        done.max()
    };
    eventually("record of durable bytes", || reached().ok_or_else(|| bench.records()));
    kill(agent);
    assert!(bench.is_marked());
    let reached = usize::try_from(reached().expect("it said so")).expect("small");
    assert!((12 * MIB..=32 * MIB).contains(&reached), "{reached}");
    bench.server.pace(Pace::default());
    assert!(bench.assert_done("it went on").contains("resumed an interrupted run"));
    let starts = bench.server.starts();
    assert_eq!(starts[0], 0, "the first chunk goes last, and is fetched again");
    assert!(starts.len() == 2 && starts[1] >= reached, "{starts:?}, {reached} was durable");
}
