//! The overhead of the engine: steps that do nothing, processes that do nothing, records in a
//! journal.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hoist_engine::drive::{Executor, Halt, Journal, begin, drive};
use hoist_engine::execute::{BaseDirectory, ExecutionSite, LocalExecutor, NoSecrets, Outputs};
use hoist_engine::file_journal::FileJournal;
use hoist_engine::journal::JournalError;
use hoist_engine::plan::{Call, ConcurrencyLimit, Draft, Holder, Kind, Repeat, Rule, Step, Vertex};
use hoist_engine::record::{End, Outcome};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};
use serde_json::{Value, json};

use crate::stopwatch::{ratio, time};
use crate::verdict::{Limit, Row};

const ROUNDS: usize = 7;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let mut rows = no_ops()?;
    rows.extend(layered());
    rows.push(kept()?);
    let repeatable = "journaled tasks that run `/bin/true`, repeatable / starting it serially";
    rows.push(processes(Repeat::Safe, repeatable)?);
    rows.push(processes(Repeat::Never, "the same, not repeatable")?);
    rows.extend(python()?);
    Ok(rows)
}

/// In memory, beside steno's store in memory.
fn no_ops() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (width, what) in [(1_000, "1,000 unordered no-ops in memory"), (10_000, "10,000 of them")] {
        let ours = best(|| run_in_memory(&layers(1, width)));
        let theirs = steno(1, width, 3)?;
        rows.push(Row {
            what: format!("{what} / steno"),
            measured: ratio(theirs, ours),
            unit: " x",
            limit: Some(Limit::AtLeast(20.0)),
            detail: format!("{}, {}", rate(width, ours), rate(width, theirs)),
        });
    }
    let ours = best(|| run_in_memory(&layers(1_000, 1)));
    let theirs = steno(1_000, 1, 3)?;
    rows.push(Row {
        what: "1,000 in a line / steno".to_owned(),
        measured: ratio(theirs, ours),
        unit: " x",
        limit: None,
        detail: format!("{}, {}", rate(1_000, ours), rate(1_000, theirs)),
    });
    Ok(rows)
}

/// Twice the layers shall take twice the time: where every layer waits for all of the one before,
/// others take five times as long for each layer more.
fn layered() -> Vec<Row> {
    let mut rows = Vec::new();
    let cases = [
        (100, 10, "200 fully connected layers of 10 / 100 layers"),
        (1_000, 2, "2,000 layers of 2 / 1,000 layers"),
    ];
    for (layers_, width, what) in cases {
        let half = best(|| run_in_memory(&layers(layers_, width)));
        let whole = best(|| run_in_memory(&layers(layers_ * 2, width)));
        rows.push(Row {
            what: what.to_owned(),
            measured: ratio(whole, half),
            unit: " x",
            limit: Some(Limit::AtMost(2.5)),
            detail: format!(
                "{} for {} steps, {} for {}",
                ms(whole),
                layers_ * 2 * width,
                ms(half),
                layers_ * width
            ),
        });
    }
    rows
}

fn kept() -> Result<Row> {
    let plan = Arc::new(layers_in_limit(1, 20_000, 256));
    let dir = tempfile::tempdir_in(".").context("a place for journals")?;
    let JournalCost { ratio, ours, theirs, lots, records } = keep(&plan, dir.path())?;
    let records = usize::try_from(records)?;
    Ok(Row {
        what: "transitions journaled in a file / appending and syncing the same batches".to_owned(),
        measured: ratio,
        unit: " x",
        limit: Some(Limit::AtLeast(0.5)),
        detail: format!("{}, {}, in {lots} lots", rate(records, ours), rate(records, theirs)),
    })
}

/// The cost of a journal file.
pub(crate) struct JournalCost {
    pub(crate) ratio: f64,
    pub(crate) ours: Duration,
    pub(crate) theirs: Duration,
    pub(crate) lots: usize,
    pub(crate) records: u32,
}

/// The journal of a run, without snapshots, compared with appending and syncing the same bytes in
/// the same portions. Both depend mostly on the disk, so adjacent measurements are compared.
pub(crate) fn keep(plan: &Arc<Plan>, dir: &Path) -> Result<JournalCost> {
    let mut turns = Vec::new();
    for round in 0..ROUNDS {
        let path = dir.join(format!("run{round}"));
        let inner = FileJournal::create(&path)?;
        let mut journal = CountingJournal { inner, lots: Vec::new() };
        let ours = time(|| run(plan, &mut journal));
        let bytes = fs_err::read(&path)?;
        let theirs = raw(&dir.join(format!("raw{round}")), &bytes, &journal.lots)?;
        let lots = journal.lots.len();
        let records = journal.inner.count();
        turns.push(JournalCost { ratio: ratio(theirs, ours), ours, theirs, lots, records });
    }
    turns.sort_by(|one, other| one.ratio.total_cmp(&other.ratio));
    Ok(turns.swap_remove(turns.len() / 2))
}

/// A journal that remembers how long it was after each lot.
struct CountingJournal {
    inner: FileJournal,
    lots: Vec<u64>,
}

impl Journal for CountingJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.inner.append(records)?;
        self.lots.push(self.inner.length());
        Ok(())
    }
}

fn raw(path: &Path, bytes: &[u8], lots: &[u64]) -> Result<Duration> {
    let mut file = std::fs::File::create(path)?;
    let start = Instant::now();
    let mut from = 0;
    for until in lots {
        let until = usize::try_from(*until)?;
        if until > from {
            file.write_all(&bytes[from..until])?;
            file.sync_data()?;
            from = until;
        }
    }
    Ok(start.elapsed())
}

/// Tasks that run `/bin/true`, with a journal, compared with the rate at which this machine starts
/// that program and waits for it, one after the other: the promised rate refers to that one. The
/// rates with all cores, and with as many processes as there are concurrent tasks, are shown too.
/// The concurrency is the default of a run on eight nodes.
fn processes(repeat: Repeat, what: &str) -> Result<Row> {
    const COUNT: usize = 2_048;
    const AT_ONCE: usize = 8 * 4;
    let cores = std::thread::available_parallelism()?.get();
    let plan = Arc::new(program_plan(COUNT, u32::try_from(AT_ONCE)?, repeat));
    let mut turns = Vec::new();
    for _ in 0..ROUNDS {
        let ours = time(|| run_programs(&plan));
        let in_turn = time(|| start_programs(COUNT, 1));
        let at_once = [cores, AT_ONCE].map(|threads| time(|| start_programs(COUNT, threads)));
        turns.push((ratio(in_turn, ours), ours, in_turn, at_once));
    }
    turns.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (measured, ours, in_turn, at_once) = turns[turns.len() / 2];
    Ok(Row {
        what: what.to_owned(),
        measured,
        unit: " x",
        limit: Some(Limit::AtLeast(0.8)),
        detail: format!(
            "{} of {AT_ONCE} at once; bare {} in turn, {} of {cores} at once, {} of {AT_ONCE}; \
             {:.2} x of the fastest",
            rate(COUNT, ours),
            rate(COUNT, in_turn),
            rate(COUNT, at_once[0]),
            rate(COUNT, at_once[1]),
            ratio(at_once[0].min(at_once[1]), ours),
        ),
    })
}

fn program_plan(count: usize, places: u32, repeat: Repeat) -> Plan {
    let call = Call {
        action: "shell".to_owned(),
        input: json!({"command": "/bin/true"}),
        ..Call::default()
    };
    let step = Step { call, limits: vec![0], repeat, ..Step::default() };
    let vertex = |at| Vertex {
        name: format!("n{at}"),
        after: Vec::new(),
        kind: Kind::Step(Box::new(step.clone())),
    };
    let limits =
        vec![ConcurrencyLimit { name: "cores".to_owned(), slots: places, held_by: Holder::Step }];
    let vertices = (0..count).map(vertex).collect();
    Plan::new(Draft { vertices, limits, ..Draft::default() }).expect("steps by themselves")
}

fn run_programs(plan: &Arc<Plan>) {
    let dir = tempfile::tempdir().expect("a place for a run");
    let mut journal = FileJournal::create(&dir.path().join("records")).expect("a journal");
    let (send, events) = channel();
    let site = ExecutionSite {
        catalog: hoist_deploy::actions::catalog(),
        secrets: Arc::new(NoSecrets),
        outputs: Outputs::in_dir(dir.path().join("output")),
        base: BaseDirectory::Machine,
    };
    let supervisor = Some(["/proc/self/exe", crate::SUPERVISE_PROGRAMS].map(Into::into).to_vec());
    let executor = LocalExecutor::new("bench", site, &dir.path().join("ledger"), send, supervisor);
    let mut executor = executor.expect("an executor");
    begin(plan, &mut journal, 0).expect("it can be kept");
    let mut run = Run::new(Arc::clone(plan));
    let halt = drive(&mut run, &mut journal, &mut executor, &events, || 0);
    assert_eq!(halt.expect("it can be kept"), Halt::Finished(Outcome::Succeeded));
}

fn start_programs(count: usize, threads: usize) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(move || {
                for _ in 0..count / threads {
                    let ended = Command::new("/bin/true").status().expect("it is there");
                    assert!(ended.success());
                }
            });
        }
    });
}

/// Beside the two that people know, each a Python program of its own.
fn python() -> Result<Vec<Row>> {
    const COUNT: usize = 1_000;
    let venv = peers().join("python/bin");
    ensure!(venv.exists(), "TaskFlow and Ansible are not there; `make setup-bench` installs them");
    let ours = best(|| run_in_memory(&layers(1, COUNT)));
    let in_a_line = best(|| run_in_memory(&layers(COUNT, 1)));
    let mut rows = Vec::new();
    let shapes =
        [("unordered", "1,000 unordered no-ops", ours), ("linear", "1,000 in a line", in_a_line)];
    for (shape, what, ours) in shapes {
        let out = Command::new(venv.join("python"))
            .arg("bench/peers/python/taskflow_noops.py")
            .arg(shape)
            .output()?;
        ensure!(out.status.success(), "TaskFlow: {}", String::from_utf8_lossy(&out.stderr));
        let theirs = Duration::from_secs_f64(String::from_utf8(out.stdout)?.trim().parse()?);
        rows.push(Row {
            what: format!("{what} / TaskFlow's serial engine"),
            measured: ratio(theirs, ours),
            unit: " x",
            limit: Some(Limit::AtLeast(20.0)),
            detail: format!("{}, {}", rate(COUNT, ours), rate(COUNT, theirs)),
        });
    }
    let theirs = ansible(&venv, COUNT)?.saturating_sub(ansible(&venv, 0)?);
    rows.push(Row {
        what: "1,000 in a line / ansible-core's `debug`".to_owned(),
        measured: ratio(theirs, in_a_line),
        unit: " x",
        limit: Some(Limit::AtLeast(100.0)),
        detail: format!("{}, {}", rate(COUNT, in_a_line), rate(COUNT, theirs)),
    });
    Ok(rows)
}

/// How long a play of so many tasks takes, all of it.
fn ansible(venv: &Path, count: usize) -> Result<Duration> {
    let dir = tempfile::tempdir()?;
    let book = dir.path().join("book.yaml");
    let mut text =
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - meta: noop\n".to_owned();
    for _ in 0..count {
        text.push_str("    - debug: {msg: x}\n");
    }
    fs_err::write(&book, text)?;
    let start = Instant::now();
    let out = Command::new(venv.join("ansible-playbook"))
        .args(["-i", "localhost,", "-c", "local"])
        .arg(&book)
        .env("ANSIBLE_STDOUT_CALLBACK", "minimal")
        .env("ANSIBLE_LOCAL_TEMP", dir.path())
        .output()?;
    ensure!(out.status.success(), "Ansible: {}", String::from_utf8_lossy(&out.stderr));
    Ok(start.elapsed())
}

/// The best turn of steno on a saga of so many layers.
fn steno(layers: usize, width: usize, turns: usize) -> Result<Duration> {
    let program = peers().join("steno/release/steno-peer");
    if !program.exists() {
        bail!("steno is not there; `make setup-bench` builds it");
    }
    let out = Command::new(program)
        .args([layers, width, turns].map(|number| number.to_string()))
        .output()?;
    ensure!(out.status.success(), "steno: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout)?;
    let nanos = text.lines().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
    Ok(Duration::from_nanos(nanos.into_iter().min().context("steno said nothing")?))
}

/// Where `setup bench` puts them.
pub(crate) fn peers() -> PathBuf {
    Path::new("target").join("peers")
}

fn best(mut measure: impl FnMut() -> Duration) -> Duration {
    (0..ROUNDS).map(|_| measure()).min().expect("at least one")
}

fn run_in_memory(plan: &Arc<Plan>) -> Duration {
    time(|| run(plan, &mut Vec::new()))
}

pub(crate) fn run(plan: &Arc<Plan>, journal: &mut impl Journal) {
    let (send, events) = channel();
    begin(plan, journal, 0).expect("it can be kept");
    let mut run = Run::new(Arc::clone(plan));
    let halt = drive(&mut run, journal, &mut AtOnce { events: send }, &events, || 0);
    assert_eq!(halt.expect("it can be kept"), Halt::Finished(Outcome::Succeeded));
}

/// Every step is done as it is started.
struct AtOnce {
    events: Sender<Event>,
}

impl Executor for AtOnce {
    fn act(&mut self, _: &Plan, effect: Effect) {
        let event = match effect {
            Effect::Check { step, attempt } => Event::Checked { step, attempt, failed: None },
            Effect::Start { step, attempt } => {
                let end = End::Done { changed: true, receipt: Value::Null };
                Event::Ran { step, attempt, end }
            }
            Effect::Verify { step, attempt } => Event::Verified { step, attempt, failed: None },
            Effect::Ask { .. } | Effect::Kill { .. } => panic!("{effect:?} was not planned"),
        };
        self.events.send(event).expect("the run listens");
    }
}

fn layers(count: usize, width: usize) -> Arc<Plan> {
    Arc::new(layers_in_limit(count, width, u32::MAX))
}

/// Layers that each wait for all of the one before.
fn layers_in_limit(count: usize, width: usize, places: u32) -> Plan {
    let mut vertices: Vec<Vertex> = Vec::new();
    let id = |at: usize| StepId(u32::try_from(at).expect("few vertices"));
    for layer in 0..count {
        let before = vertices.len().checked_sub(1).map(id);
        for at in 0..width {
            let limits = if places == u32::MAX { Vec::new() } else { vec![0] };
            let step = Step { limits, repeat: Repeat::Safe, ..Step::default() };
            vertices.push(Vertex {
                name: format!("n{layer}.{at}"),
                after: before.into_iter().collect(),
                kind: Kind::Step(Box::new(step)),
            });
        }
        let after = (vertices.len() - width..vertices.len()).map(id).collect();
        vertices.push(Vertex { name: format!("l{layer}"), after, kind: Kind::Join(Rule::All) });
    }
    let limits =
        vec![ConcurrencyLimit { name: "some".to_owned(), slots: places, held_by: Holder::Step }];
    Plan::new(Draft { vertices, limits, ..Draft::default() }).expect("layers have no cycle")
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
pub(crate) fn rate(count: usize, took: Duration) -> String {
    format!("{:.0}/s", count as f64 / took.as_secs_f64())
}

fn ms(took: Duration) -> String {
    format!("{:.2} ms", took.as_secs_f64() * 1e3)
}
