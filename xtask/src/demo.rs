//! The demo: a controller on the embedded store in a temporary directory, the example site, a
//! virtual machine that boots and is provisioned, and a deployment. Leaves nothing behind.
//!
//! The parts are modules. Does not belong here: assertions about behaviour, which are tests.

mod boot;
mod deploy;
mod provision;

use std::io::{IsTerminal, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hoist_machine::{Firmware, HOST};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::{cargo, root, run_command, run_ending, say, shown};

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Exit code of showing a run that was undone.
const STOPPED: i32 = 8;

/// How a comparison ends that has found a difference.
const DIFFERS: i32 = 1;

/// Exit code of showing something unfinished.
const WAITS: i32 = 4;

/// How a dry run ends that has found something to do.
const WOULD_CHANGE: i32 = 20;

/// How a command ends that has seen a run fail.
const WAS_FAILED: i32 = 1;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    once: bool,
    release: bool,
    firmware: Firmware,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let asked = std::env::var("HOIST_DEMO_ONCE").is_ok_and(|value| value == "1");
        let once = asked || !std::io::stdout().is_terminal();
        let mut options = Self { once, release: false, firmware: Firmware::Bios };
        for word in words {
            match *word {
                "--once" => options.once = true,
                "--release" => options.release = true,
                "--uefi" => options.firmware = Firmware::Uefi,
                other => bail!("the demo has no option `{other}`"),
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(options: Options) -> Result<()> {
    let mut parts = Parts::begin();
    say("# Building hoist, its agent and its image builder takes minutes the first time.");
    let hoist = build(options)?;
    parts.end("build");
    say("#\n# The demo has four parts and takes a few minutes: declare a site, boot a machine,");
    say("# provision its disk, deploy tasks.");
    let place = tempfile::Builder::new().prefix("hoist-demo-").tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // From here on Ctrl-C or a closed terminal stops the controller before the demo ends.
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        let mut signals = [interrupt?, terminate?, hangup?];
        // The emulated machine uses another name for this host; the certificate must have it.
        let config = place.path().join("hoist.toml");
        fs_err::write(&config, format!("names = [\"{HOST}\"]\n"))?;
        let config = config.display().to_string();
        let more = ["--tls-listen", "127.0.0.1:0", "--config", &config];
        let mut site = Site::start(hoist, place.path(), &root(), &more)?;
        tokio::select! {
            shown = site.present(options, place.path(), &mut parts) => shown?,
            () = told_to_stop(&mut signals) => {}
        }
        say("\nstopping");
        site.stop()
    })
}

async fn told_to_stop([interrupt, terminate, hangup]: &mut [Signals; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

fn build(options: Options) -> Result<PathBuf> {
    let mut command = cargo();
    command.arg("build");
    command.args(["--package", "hoist", "--package", "hoist-agent", "--package", "hoist-image"]);
    if options.release {
        command.arg("--release");
    }
    run_command(&mut command)?;
    let metadata = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(metadata.status.success(), "`cargo metadata` failed");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
    let target =
        metadata["target_directory"].as_str().context("cargo names no target directory")?;
    let profile = if options.release { "release" } else { "debug" };
    Ok(Path::new(target).join(profile).join("hoist"))
}

/// How long each part took.
struct Parts {
    began: Instant,
    ended: Vec<(&'static str, Duration)>,
}

impl Parts {
    fn begin() -> Self {
        Self { began: Instant::now(), ended: Vec::new() }
    }

    /// Ends a part, which lasted since the end of the previous one.
    fn end(&mut self, name: &'static str) {
        let before: Duration = self.ended.iter().map(|(_, took)| *took).sum();
        let took = self.began.elapsed().saturating_sub(before);
        self.ended.push((name, took));
        say(format!("\n# demo: {name} took {:.1} s", took.as_secs_f64()));
    }

    fn say_all(&self) {
        say("");
        for (name, took) in &self.ended {
            say(format!("# {name:10} {:6.1} s", took.as_secs_f64()));
        }
        say(format!("# {:10} {:6.1} s", "total", self.began.elapsed().as_secs_f64()));
    }
}

/// A running controller, with the parameters of its commands.
struct Site {
    hoist: PathBuf,
    /// The working directory of commands.
    directory: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    server: Child,
    /// `http://127.0.0.1:PORT`.
    url: String,
    tls_url: String,
}

impl Site {
    /// Starts a controller with its data below `place`; commands run in `directory`.
    fn start(hoist: PathBuf, place: &Path, directory: &Path, more: &[&str]) -> Result<Self> {
        let data_dir = place.join("data");
        let log = place.join("log");
        let output = fs_err::File::create(&log)?;
        let mut command = command(&hoist, directory, &data_dir);
        // Port 0 is any free port. The controller writes its ports to the data directory.
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(more);
        say(format!("\n$ export HOIST_DATA_DIR={}", data_dir.display()));
        say(format!("$ {} &", shown(&command)));
        let errors = output.try_clone()?;
        command.stdin(Stdio::null()).stdout(output.into_parts().0).stderr(errors.into_parts().0);
        // A process group of its own: Ctrl-C must reach only the demo, which then stops it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let server = command.spawn().with_context(|| format!("cannot run {}", hoist.display()))?;
        let mut site = Self {
            hoist,
            directory: directory.to_owned(),
            data_dir,
            log,
            server,
            url: String::new(),
            tls_url: String::new(),
        };
        site.wait_until_ready()?;
        Ok(site)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        while !self.is_ready() {
            if let Some(status) = self.server.try_wait()? {
                bail!("the controller ended ({status}):\n{}", self.log());
            }
            ensure!(Instant::now() < deadline, "the controller is not ready:\n{}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn is_ready(&mut self) -> bool {
        let Ok(text) = fs_err::read_to_string(self.data_dir.join("server.json")) else {
            return false;
        };
        let Ok(running) = serde_json::from_str::<serde_json::Value>(&text) else { return false };
        let field = |name: &str| running[name].as_str().unwrap_or_default().to_owned();
        (self.url, self.tls_url) = (field("url"), field("tls_url"));
        answers_ok(&self.url, "/readyz")
    }

    /// Runs all parts. Without `--once`, keeps the controller until a signal.
    async fn present(&mut self, options: Options, place: &Path, parts: &mut Parts) -> Result<()> {
        self.show()?;
        parts.end("site");
        boot::show(self, place).await?;
        parts.end("boot");
        provision::show(self, place, options.firmware).await?;
        parts.end("provision");
        deploy::show(&self.hoist, place)?;
        parts.end("deploy");
        parts.say_all();
        if !options.once {
            self.say_where();
            self.ended().await;
            bail!("the controller ended by itself:\n{}", self.log());
        }
        Ok(())
    }

    fn show(&self) -> Result<()> {
        let site = root().join("examples").join("site.yaml");
        let site = site.strip_prefix(root())?.to_string_lossy().into_owned();
        self.run(&["apply", "-f", &site])?;
        self.run(&["node", "list"])?;
        self.run(&["node", "list", "compute & !group:gpu & label:rack=r1", "-o", "wide"])?;
        self.run(&["status"])?;
        self.run(&["diff", "-f", &site])
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        self.run_ending(words, 0)
    }

    fn run_ending(&self, words: &[&str], code: i32) -> Result<()> {
        say("");
        run_ending(command(&self.hoist, &self.directory, &self.data_dir).args(words), code)
    }

    fn say_where(&self) {
        say(format!(
            "\nThe controller runs until Ctrl-C. In another terminal:\n\n  \
             export HOIST_DATA_DIR={}\n  {} node show login1\n\n  \
             {}/readyz\n  {}/openapi.json\n  {}   (authority: {})",
            self.data_dir.display(),
            self.hoist.display(),
            self.url,
            self.url,
            self.tls_url,
            self.data_dir.join("ca").join("root.pem").display(),
        ));
    }

    async fn ended(&mut self) {
        while !matches!(self.server.try_wait(), Ok(Some(_)) | Err(_)) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.server.id())?;
        kill_process(Pid::from_raw(pid).context("a process has a number")?, Signal::TERM)?;
        let deadline = Instant::now() + STOP;
        loop {
            if let Some(status) = self.server.try_wait()? {
                ensure!(status.success(), "the controller stopped with {status}:\n{}", self.log());
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the controller does not stop:\n{}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn log(&self) -> String {
        fs_err::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The process still exists only after a failure.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// hoist with the demo's data directory and nothing else from our environment.
fn command(hoist: &Path, directory: &Path, data_dir: &Path) -> Command {
    let mut command = Command::new(hoist);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOIST_") {
            command.env_remove(name);
        }
    }
    command.env("HOIST_DATA_DIR", data_dir).current_dir(directory);
    command
}

/// Whether a GET is answered with 200.
fn answers_ok(url: &str, path: &str) -> bool {
    let Some(place) = url.strip_prefix("http://") else { return false };
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(place)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
}
