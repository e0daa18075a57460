//! `hoist artifact` against a whole controller in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hoist_model::Exit;
use hoist_server::controller::{Config, Controller};
use hoist_testkit::eventually_async;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

const MIB: usize = 1024 * 1024;

/// How often `hoist artifact add` tries again after its connection broke.
const TRIES: u64 = 5;

struct Site {
    controller: Controller,
    data_dir: PathBuf,
    dir: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let data_dir = dir.path().join("data");
        let mut config = Config::new(&data_dir);
        config.listen = Some((Ipv4Addr::LOCALHOST, 0).into());
        let controller = Controller::start(config).await.expect("the controller starts");
        Self { controller, data_dir, dir }
    }

    fn addr(&self) -> SocketAddr {
        self.controller.plain_addr().expect("it listens")
    }

    /// A file whose bytes differ everywhere.
    fn file(&self, name: &str, length: usize) -> String {
        let words = (0..length.div_ceil(8) as u64).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes());
        let path = self.dir.path().join(name);
        fs_err::write(&path, words.take(length).collect::<Vec<u8>>()).expect("it can be written");
        path.display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hoist"));
        command.args(words).env_clear().env("HOIST_DATA_DIR", &self.data_dir);
        command
    }

    /// Runs a command that must end with this code, and returns its output.
    async fn ends(&self, exit: Exit, words: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            self.command(words).output().await.expect("the binary was built for this test");
        let text = String::from_utf8_lossy(&stdout);
        let told = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(i32::from(exit.code())), "{words:?}: {text}{told}");
        format!("{text}{told}")
    }

    async fn json(&self, words: &[&str]) -> Value {
        let output = self.command(&[words, &["-o", "json"]].concat()).output().await;
        let output = output.expect("the binary was built for this test");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// The files below a directory of the artifacts.
    fn files(&self, dir: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.data_dir.join("artifacts").join(dir)];
        while let Some(dir) = open.pop() {
            for entry in fs_err::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() { open.push(path) } else { found.push(path) }
            }
        }
        found
    }
}

/// A way to the controller that stops passing requests on after so many bytes, and counts them.
struct Relay {
    addr: SocketAddr,
    passed: Arc<AtomicU64>,
    /// GET requests: an upload asks so at each of its tries.
    asked: Arc<AtomicU64>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy)]
enum RelayFailure {
    Cut,
    Stall,
}

impl Relay {
    async fn to(target: SocketAddr, most: u64, then: RelayFailure) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("it is bound");
        let passed = Arc::new(AtomicU64::new(0));
        let asked = Arc::new(AtomicU64::new(0));
        let counts = Counts { passed: Arc::clone(&passed), asked: Arc::clone(&asked) };
        let accepting = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                open.spawn(relay(client, target, most, then, counts.clone()));
            }
        });
        Self { addr, passed, asked, accepting }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Clone)]
struct Counts {
    passed: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

async fn relay(
    client: TcpStream,
    target: SocketAddr,
    most: u64,
    then: RelayFailure,
    counts: Counts,
) {
    let server = TcpStream::connect(target).await.expect("the controller listens");
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async { tokio::io::copy(&mut from_server, &mut to_client).await.map(drop) };
    let forth = async {
        let mut buffer = vec![0; 64 * 1024];
        let mut left = most;
        while left > 0 {
            let count = from_client.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            to_server.write_all(&buffer[..count]).await?;
            counts.passed.fetch_add(count as u64, Ordering::SeqCst);
            counts
                .asked
                .fetch_add(u64::from(buffer[..count].starts_with(b"GET ")), Ordering::SeqCst);
            left = left.saturating_sub(count as u64);
        }
        match then {
            RelayFailure::Cut => Ok(()),
            RelayFailure::Stall => std::future::pending::<std::io::Result<()>>().await,
        }
    };
    tokio::select! {
        _ = back => {}
        _ = forth => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_are_added_listed_named_and_removed() {
    let site = Site::start().await;
    let kernel = site.file("vmlinuz-6.1", 3 * MIB);
    let add = ["artifact", "add", kernel.as_str(), "--arch", "x86_64"];
    site.ends(Exit::WouldChange, &[&add[..], &["--dry-run"]].concat()).await;
    assert!(site.files("blobs").is_empty(), "a dry run sends nothing");
    let told = site.ends(Exit::Done, &add).await;
    assert!(told.contains("`artifact:vmlinuz-6.1`"), "{told}");
    site.ends(Exit::Done, &add).await;

    let list = site.json(&["artifact", "list"]).await;
    assert_eq!((&list[0]["name"], &list[0]["here"]), (&"vmlinuz-6.1".into(), &true.into()));
    let table = site.ends(Exit::Done, &["artifact", "list"]).await;
    assert!(table.contains("vmlinuz-6.1  3.00 MiB  x86_64  yes   -"), "{table}");

    // The output of `get` can be applied again.
    let yaml = site.ends(Exit::Done, &["get", "artifact", "vmlinuz-6.1", "-o", "yaml"]).await;
    let path = site.dir.path().join("a.yaml");
    fs_err::write(&path, yaml).expect("it can be written");
    site.ends(Exit::Done, &["diff", "-f", &path.display().to_string()]).await;
    assert_eq!(
        site.ends(Exit::Done, &["get", "artifacts", "-o", "name"]).await,
        "Artifact/vmlinuz-6.1\n"
    );
    site.ends(Exit::Failed, &["get", "artifact", "kettle"]).await;

    // A name does not change its meaning by accident.
    let other = site.file("other", MIB);
    let rename = ["artifact", "add", other.as_str(), "--name", "vmlinuz-6.1"];
    let told = site.ends(Exit::Refused, &rename).await;
    assert!(told.contains("--replace"), "{told}");
    site.ends(Exit::Done, &[&rename[..], &["--replace"]].concat()).await;
    site.ends(Exit::Usage, &["artifact", "add", &other, "--name", "a/b"]).await;
    site.ends(Exit::Done, &["artifact", "rm", "vmlinuz-6.1"]).await;
    assert_eq!(site.json(&["artifact", "list"]).await, serde_json::json!([]));
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_upload_resumes_where_it_stopped() {
    let site = Site::start().await;
    let size = 16 * MIB;
    let half = 8 * MIB;
    let image = site.file("image.squashfs", size);
    let stalling = Relay::to(site.addr(), half as u64, RelayFailure::Stall).await;
    let token = site.data_dir.join("admin.token").display().to_string();
    let url = stalling.url();
    let words = ["artifact", "add", &image, "--server", &url, "--token-file", &token];
    let mut first = site.command(&words).kill_on_drop(true).spawn().expect("it starts");
    let part = || site.files("parts").first().and_then(|part| part.metadata().ok());
    let received = || part().map_or(0, |part| part.len());
    eventually_async("half of the upload is there", async || received() >= (half - 2 * MIB) as u64)
        .await;
    first.kill().await.expect("it runs");
    drop(stalling);

    // The controller notices that it is alone; the second upload waits for that.
    let counting = Relay::to(site.addr(), u64::MAX, RelayFailure::Cut).await;
    let url = counting.url();
    let words = ["artifact", "add", &image, "--server", &url, "--token-file", &token];
    site.ends(Exit::Done, &words).await;
    let sent = counting.passed.load(Ordering::SeqCst);
    assert!(sent < (size - half + 3 * MIB) as u64, "{sent} bytes were sent again");
    let name = site.files("blobs");
    assert_eq!(name.len(), 1);
    assert!(fs_err::read(&name[0]).expect("a blob") == fs_err::read(&image).expect("the file"));
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_resumes_by_itself_after_a_broken_connection() {
    let site = Site::start().await;
    let image = site.file("image", 10 * MIB);
    let cutting = Relay::to(site.addr(), 6 * MIB as u64, RelayFailure::Cut).await;
    let token = site.data_dir.join("admin.token").display().to_string();
    let url = cutting.url();
    let words = ["artifact", "add", &image, "--server", &url, "--token-file", &token];
    let told = site.ends(Exit::Done, &words).await;
    assert!(told.contains("going on"), "{told}");
    assert!(site.json(&["artifact", "list"]).await[0]["here"] == true);
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_artifacts_are_reported_and_named_ones_kept() {
    let site = Site::start().await;
    let [used, unused] = [("used", MIB), ("unused", 2 * MIB)].map(|(n, size)| site.file(n, size));
    site.ends(Exit::Done, &["artifact", "add", &used]).await;
    site.ends(Exit::Done, &["artifact", "add", &unused]).await;
    let config = "api: hoist/v1\nkind: BootConfig\nname: live\n\
                  spec: {selector: '*', kernel: 'artifact:used'}\n";
    let path = site.dir.path().join("live.yaml");
    fs_err::write(&path, config).expect("it can be written");
    site.ends(Exit::Done, &["apply", "-f", &path.display().to_string()]).await;
    site.ends(Exit::Refused, &["artifact", "rm", "used"]).await;
    site.ends(Exit::Done, &["artifact", "gc", "--unused", "--dry-run"]).await;

    for blob in site.files("blobs") {
        let old = SystemTime::now() - Duration::from_hours(2);
        std::fs::File::open(blob).expect("a blob").set_modified(old).expect("a time");
    }
    let plan = site.ends(Exit::WouldChange, &["artifact", "gc", "--unused", "--dry-run"]).await;
    assert!(plan.contains("- Artifact unused\n") && !plan.contains("Artifact used"), "{plan}");
    assert_eq!(site.files("blobs").len(), 2);
    site.ends(Exit::Done, &["artifact", "gc", "--unused"]).await;
    assert_eq!(site.files("blobs").len(), 1);
    assert!(site.ends(Exit::Done, &["artifact", "verify"]).await.contains("1 checked"));

    let blob = site.files("blobs").remove(0);
    fs_err::remove_file(&blob).expect("it is there");
    fs_err::write(&blob, "something else").expect("it can be damaged");
    let told = site.ends(Exit::Degraded, &["artifact", "verify"]).await;
    assert!(told.starts_with("damaged") && told.contains("used"), "{told}");
    site.ends(Exit::Done, &["artifact", "add", &used]).await;
    site.ends(Exit::Done, &["artifact", "verify"]).await;
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn omitted_fields_stay_and_missing_artifacts_are_reported() {
    let site = Site::start().await;
    let kernel = site.file("vmlinuz", MIB);
    let add = ["artifact", "add", kernel.as_str()];
    let said = ["--arch", "x86_64", "--description", "of the site"];
    site.ends(Exit::Done, &[&add[..], &said].concat()).await;
    site.ends(Exit::Done, &add).await;
    let list = site.json(&["artifact", "list"]).await;
    assert_eq!(list[0]["arch"], "x86_64", "{list}");
    assert_eq!(list[0]["description"], "of the site", "{list}");

    fs_err::remove_file(site.files("blobs").remove(0)).expect("it is there");
    let told = site.ends(Exit::Done, &["artifact", "verify"]).await;
    assert!(told.starts_with("missing") && told.contains("vmlinuz"), "{told}");
    assert!(told.contains("0 checked"), "{told}");
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_taken_by_two_at_once_is_given_to_one() {
    let site = Site::start().await;
    let [one, two] = [("one", 16 * MIB), ("two", 16 * MIB + 8)].map(|(n, s)| site.file(n, s));
    let add = async |file: &str| {
        let words = ["artifact", "add", file, "--name", "kernel"];
        let output = site.command(&words).output().await.expect("the binary was built");
        output.status.code().expect("it ended")
    };
    let (first, second) = tokio::join!(add(&one), add(&two));
    let mut ended = [first, second];
    ended.sort_unstable();
    let mut expected = [Exit::Done, Exit::Refused].map(|exit| i32::from(exit.code()));
    expected.sort_unstable();
    assert_eq!(ended, expected);
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_partial_upload_is_started_anew() {
    let site = Site::start().await;
    let image = site.file("image", 4 * MIB);
    site.ends(Exit::Done, &["artifact", "add", &image]).await;
    let blob = site.files("blobs").remove(0);
    let part = site.data_dir.join("artifacts/parts").join(blob.file_name().expect("a digest"));
    fs_err::remove_file(blob).expect("it is there");
    fs_err::write(part, vec![7; MIB]).expect("it can be written");
    let told = site.ends(Exit::Done, &["artifact", "add", &image]).await;
    assert!(told.contains("the earlier upload was different"), "{told}");
    assert_eq!(site.files("blobs").len(), 1);
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_waits_for_one_that_may_be_alive() {
    let site = Site::start().await;
    let image = site.file("image", 8 * MIB);
    let stalling = Relay::to(site.addr(), 4 * MIB as u64, RelayFailure::Stall).await;
    let token = site.data_dir.join("admin.token").display().to_string();
    let url = stalling.url();
    let words = ["artifact", "add", &image, "--server", &url, "--token-file", &token];
    let mut first = site.command(&words).kill_on_drop(true).spawn().expect("it starts");
    eventually_async("some of the upload is there", async || !site.files("parts").is_empty()).await;
    let counting = Relay::to(site.addr(), u64::MAX, RelayFailure::Cut).await;
    let url = counting.url();
    let again = ["artifact", "add", &image, "--server", &url, "--token-file", &token];
    let second = site.ends(Exit::Done, &again);
    let release = async {
        eventually_async("second upload asks more often than a broken one may", async || {
            let asked = counting.asked.load(Ordering::SeqCst);
            if asked > TRIES { Ok(()) } else { Err(asked) }
        })
        .await;
        first.kill().await.expect("it runs");
        drop(stalling);
    };
    let (told, ()) = tokio::join!(second, release);
    assert!(told.contains("waiting for up to"), "{told}");
    site.controller.stop().await;
}
