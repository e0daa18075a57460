//! What runs in a process of its own, so that nothing else is in its memory.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hoist_server::controller::{Config, Controller};
use hoist_server::data_dir::DataDir;
use hoist_server::deploy::DeploySettings;
use hoist_server::inventory::SourceConfig;
use hoist_site::registry::ChangeGuard;
use hoist_site::roster::{Incarnation, Roster};
use hoist_site::{Registry, Resource};
use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_store::{Record, Revision, Store};

use crate::{compile, cores, images, instructions, knock, resident, sample, storm};

const SELF: &str = "self";

/// `roster N`, `compile`, `records N FILE`, `opened N`, `fill N DIR`, `site N DIR STORE`,
/// `bss N DIR STORE`, `controller DIR STORE`, `importer DIR SOURCE`, `image FORM DIR DEVICE`, and the clients of
/// [`knock`].
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["roster", count] => roster(count.parse()?),
        ["compile"] => tell(compile::peak()?),
        ["opened", count] => {
            let dir = tempfile::tempdir()?;
            ask(&["fill", count, path(dir.path())?])?;
            opened(count.parse()?, dir.path())
        }
        ["records", count, file] => records(count.parse()?, Path::new(file)),
        ["fill", count, dir] => fill(count.parse()?, Path::new(dir)),
        ["site", count, dir, store] => {
            let others = sample::boot_configs().into_iter().chain(sample::layers());
            site(count.parse()?, Path::new(dir), store, others.collect())
        }
        ["bss", count, dir, store] => {
            site(count.parse()?, Path::new(dir), store, sample::bss_records())
        }
        ["controller", dir, store] => controller(Path::new(dir), store, None),
        ["importer", dir, source] => {
            let source = SourceConfig::new(source.parse()?);
            let source = source.context("a source, not the store")?;
            // Only when asked.
            let every = Duration::from_hours(24);
            controller(Path::new(dir), "embedded", Some(SourceConfig { every, ..source }))
        }
        ["fetch", address, paths @ ..] => storm::fetch(address, paths),
        ["scripts", count] => instructions::run(count.parse()?, sample::boot_configs()),
        ["bss-scripts", count] => instructions::run(count.parse()?, sample::bss_records()),
        ["knock", address, rate, paths] => knock::run(address, rate.parse()?, Path::new(paths)),
        ["closed", address, connections, paths] => {
            knock::run_closed(address, connections.parse()?, Path::new(paths))
        }
        ["image", form, dir, device] => {
            tell(images::peak(form, Path::new(dir), Path::new(device))?)
        }
        ["stops", least] => knock::run_stops(Duration::from_nanos(least.parse()?)),
        _ => bail!("nothing to do for {arguments:?}"),
    }
}

/// Runs this program once more and returns the number it prints.
pub(crate) fn ask(arguments: &[&str]) -> Result<u64> {
    let output = command(arguments)?.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{arguments:?} failed: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// A controller in its own process, stopped when dropped.
#[derive(Debug)]
pub(crate) struct ControllerProcess {
    child: Child,
    pub(crate) address: String,
}

impl ControllerProcess {
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        Self::start_on(dir, "embedded", None)
    }

    pub(crate) fn start_on(dir: &Path, store: &str, cores: Option<&str>) -> Result<Self> {
        Self::spawn(command_on(cores, &["controller", path(dir)?, store])?)
    }

    /// One whose nodes come from elsewhere.
    pub(crate) fn importing(dir: &Path, source: &str) -> Result<Self> {
        Self::spawn(command(&["importer", path(dir)?, source])?)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("it is piped")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address)?;
        ensure!(!address.is_empty(), "the controller did not start");
        Ok(Self { child, address: address.trim().to_owned() })
    }

    /// As `/proc` calls it.
    pub(crate) fn process(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // It ends when its standard input does.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Result<Command> {
    command_on(None, arguments)
}

/// This program once more, on these cores only.
pub(crate) fn command_on(cores: Option<&str>, arguments: &[&str]) -> Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = match cores {
        Some(cores) => cores::pinned(cores, path(&program)?),
        None => Command::new(program),
    };
    command.arg("--inside").args(arguments);
    Ok(command)
}

pub(crate) fn path(path: &Path) -> Result<&str> {
    path.to_str().context("temporary directories have plain names")
}

fn tell(number: u64) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{number}")?)
}

/// As a load does it: one record after the other, decoded and dropped. Another process makes the
/// records, so that this process's memory contains only the remains of the load.
fn roster(count: u32) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("records");
    ask(&["records", &count.to_string(), path(&file)?])?;
    let before = resident::now(SELF)?;
    let lines = BufReader::new(fs_err::File::open(&file)?).lines();
    let resources = lines.map(|line| {
        let line = line.expect("it was just written");
        let (key, value) = line.split_once('\t').expect("a key and a value");
        let key = key.parse().expect("a key");
        let record = Record { key, value: value.into(), revision: Revision(1) };
        Resource::from_record(&record).expect("it was just written").expect("it is a node")
    });
    let roster = Roster::build(Incarnation::new("bench"), 1, 0, resources);
    settle();
    let grown = resident::now(SELF)?.saturating_sub(before);
    ensure!(roster.len() == count as usize, "all nodes are in");
    tell(grown)
}

fn records(count: u32, file: &Path) -> Result<()> {
    let mut out = BufWriter::new(fs_err::File::create(file)?);
    for n in 0..count {
        let Record { key, value, .. } = sample::record(n);
        write!(out, "{key}\t")?;
        out.write_all(&value)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    tell(u64::from(count))
}

/// Freed memory returns to the system a little later, and only while the process runs.
fn settle() {
    for _ in 0..30 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        for size in [1 << 6, 1 << 10, 1 << 14, 1 << 20] {
            drop(std::hint::black_box(vec![0_u8; size]));
        }
    }
}

fn fill(count: u32, dir: &Path) -> Result<()> {
    let store = EmbeddedStore::open(dir, Retention::default())?;
    tokio::runtime::Runtime::new()?.block_on(sample::fill(&store, count, Vec::new()))?;
    tell(u64::from(count))
}

/// The data directory and store of a site whose nodes boot something.
fn site(count: u32, dir: &Path, store: &str, others: Vec<Resource>) -> Result<()> {
    let _made = DataDir::open(dir)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let store = hoist_store::url::open(store, dir).await?;
        sample::fill(store.as_ref(), count, others).await
    })?;
    tell(u64::from(count))
}

fn opened(count: u32, dir: &Path) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let before = resident::now(SELF)?;
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir, Retention::default())?);
    let registry = runtime.block_on(Registry::open(store, ChangeGuard::default()))?;
    settle();
    let grown = resident::now(SELF)?.saturating_sub(before);
    ensure!(registry.roster().len() == count as usize, "all nodes are in");
    tell(grown)
}

/// Serves until standard input ends.
fn controller(dir: &Path, store: &str, source: Option<SourceConfig>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let listen = Some("127.0.0.1:0".parse()?);
        let deploy = DeploySettings { local: Some("*".parse()?), ..DeploySettings::default() };
        let store = store.to_owned();
        let config = Config { listen, source, store, deploy, ..Config::new(dir) };
        let controller = Controller::start(config).await?;
        let address = controller.plain_addr().context("it listens")?;
        writeln!(std::io::stdout(), "{address}")?;
        let ended = || std::io::stdin().read_to_end(&mut Vec::new());
        tokio::task::spawn_blocking(ended).await??;
        controller.stop().await;
        Ok(())
    })
}
