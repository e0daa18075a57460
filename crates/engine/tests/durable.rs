//! Journals in files, and crashes of the processes that write them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use fs_err::OpenOptions;
use hoist_engine::drive::{Executor, Halt, Journal, begin, drive};
use hoist_engine::file_journal::FileJournal;
use hoist_engine::journal::{JournalError, frames};
use hoist_engine::plan::{Call, ConcurrencyLimit, Draft, Holder, Kind, Repeat, Rule, Step, Vertex};
use hoist_engine::record::{End, FailedCheck, Outcome};
use hoist_engine::run::{AttemptStatus, State};
use hoist_engine::{Effect, Event, Plan, Record, Run, StepId};
use hoist_testkit::eventually;
use serde_json::Value;
use std::io::Write as _;

const DONE: End = End::Done { changed: true, receipt: Value::Null };

/// Layers with joins between them, with a postcondition on each step.
fn plan(layers: u32, width: u32) -> Arc<Plan> {
    let mut vertices = Vec::new();
    for layer in 0..layers {
        let first = layer * (width + 1);
        let join = first.checked_sub(1).map(StepId);
        for at in 0..width {
            let step = Step {
                limits: vec![0],
                repeat: if at % 2 == 0 { Repeat::Safe } else { Repeat::Check },
                after: vec![Call::default()],
                ..Step::default()
            };
            vertices.push(Vertex {
                name: format!("l{layer}s{at}"),
                after: join.into_iter().collect(),
                kind: Kind::Step(Box::new(step)),
            });
        }
        let after = (first..first + width).map(StepId).collect();
        vertices.push(Vertex { name: format!("l{layer}"), after, kind: Kind::Join(Rule::All) });
    }
    let limits = vec![ConcurrencyLimit { name: "few".to_owned(), slots: 3, held_by: Holder::Step }];
    Arc::new(Plan::new(Draft { vertices, limits, ..Draft::default() }).expect("a plan"))
}

/// Completes every step at once, and remembers attempts across the crash of the caller.
struct Agent<'a> {
    events: Sender<Event>,
    told: &'a mut BTreeMap<(StepId, u32), bool>,
    begun: &'a mut BTreeMap<StepId, u32>,
}

impl Executor for Agent<'_> {
    fn act(&mut self, _: &Plan, effect: Effect) {
        let event = match effect {
            Effect::Start { step, attempt } => {
                assert_eq!(self.told.insert((step, attempt), true), None, "{step} {attempt} twice");
                *self.begun.entry(step).or_default() += 1;
                Event::Ran { step, attempt, end: DONE }
            }
            Effect::Verify { step, attempt } => {
                let holds = self.begun.contains_key(&step);
                Event::Verified { step, attempt, failed: (!holds).then(FailedCheck::default) }
            }
            Effect::Ask { step, attempt } => {
                let found = match self.told.get(&(step, attempt)) {
                    None => AttemptStatus::Never,
                    Some(true) => AttemptStatus::Ended(DONE),
                    Some(false) => AttemptStatus::Gone,
                };
                Event::Found { step, attempt, found }
            }
            Effect::Check { .. } | Effect::Kill { .. } => panic!("{effect:?} was not planned"),
        };
        self.events.send(event).expect("it is listened to");
    }
}

/// A journal in memory that fails at a given byte.
struct FailingJournal {
    bytes: Vec<u8>,
    next: u32,
    dies_at: usize,
}

impl Journal for FailingJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        frames(records, self.next, &mut self.bytes)?;
        self.next += u32::try_from(records.len()).expect("few");
        if self.bytes.len() > self.dies_at {
            self.bytes.truncate(self.dies_at);
            return Err(JournalError::Fenced);
        }
        Ok(())
    }
}

/// In memory if possible: the test is about bytes, not about a disk.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

#[test]
fn run_killed_at_any_byte_repeats_no_durable_result() {
    let plan = plan(3, 4);
    let dir = quick_dir();
    let path = dir.path().join("run");
    let header = {
        drop(FileJournal::create(&path).expect("a journal"));
        fs_err::read(&path).expect("its beginning")
    };
    let mut seed = 7_u64;
    let mut length = usize::MAX;
    for round in 0..=1_000 {
        // The first run does not crash, and measures the journal.
        let dies_at = match round {
            0 => usize::MAX,
            _ => {
                header.len() + usize::try_from(random(&mut seed)).unwrap() % (length - header.len())
            }
        };
        let forgets = round % 2 == 0;
        let mut told = BTreeMap::new();
        let mut begun = BTreeMap::new();
        let mut journal = FailingJournal { bytes: header.clone(), next: 0, dies_at };
        let (events, mail) = channel();
        let mut agent = Agent { events, told: &mut told, begun: &mut begun };
        let mut run = Run::new(Arc::clone(&plan));
        let halt = begin(&plan, &mut journal, 1)
            .and_then(|()| drive(&mut run, &mut journal, &mut agent, &mail, || 2));
        if round == 0 {
            assert_eq!(halt.expect("it lives"), Halt::Finished(Outcome::Succeeded));
            length = journal.bytes.len();
            continue;
        }
        assert!(halt.is_err(), "it died at {dies_at}");
        if forgets {
            for knows in told.values_mut() {
                *knows = false;
            }
        }
        fs_err::write(&path, &journal.bytes).expect("the truncated journal");
        let before = begun.clone();
        let with_result = with_result(&path);
        let (events, mail) = channel();
        let mut agent = Agent { events, told: &mut told, begun: &mut begun };
        go_on(&plan, &path, &mut agent, &mail);
        for (step, count) in &begun {
            let earlier = before.get(step).copied().unwrap_or(0);
            if with_result.contains(step) {
                assert_eq!(*count, earlier, "{step} has a result, died at {dies_at}");
            }
            let most = if forgets { 2 } else { 1 };
            assert!(*count <= most, "{step} was done {count} times, died at {dies_at}");
        }
        assert_eq!(begun.len(), 12, "everything is done");
    }
}

fn with_result(path: &Path) -> BTreeSet<StepId> {
    let records = FileJournal::peek(path).expect("it can be read");
    let ran = |record: &Record| match record {
        Record::Ran { step, .. } => Some(*step),
        _ => None,
    };
    records.iter().filter_map(ran).collect()
}

/// Reads a journal back, or begins it, and runs to the end.
fn go_on(
    plan: &Arc<Plan>,
    path: &Path,
    executor: &mut impl Executor,
    events: &std::sync::mpsc::Receiver<Event>,
) {
    let (mut journal, mut run) = if FileJournal::peek(path).is_ok_and(|all| !all.is_empty()) {
        FileJournal::recover(path, plan).expect("our own journal")
    } else {
        let (mut journal, _) = FileJournal::open(path).expect("an empty journal");
        begin(plan, &mut journal, 1).expect("there is room");
        (journal, Run::new(Arc::clone(plan)))
    };
    if run.outcome().is_none() {
        let halt = drive(&mut run, &mut journal, executor, events, || 2).expect("there is room");
        assert_eq!(halt, Halt::Finished(Outcome::Succeeded));
    }
    drop(journal);
    let (_, again) = FileJournal::recover(path, plan).expect("our own journal");
    for id in plan.ids() {
        assert!(matches!(again.state(id), State::Ended(ended) if ended.is_good()), "{id}");
    }
}

const PART: &str = "HOIST_TEST_PART";
const PLACE: &str = "HOIST_TEST_PLACE";

/// Starts this program again as the process of another part of a test.
fn other(part: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", "part_of_another_test", "--nocapture"]);
    command.env(PART, part).env(PLACE, dir).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// A program for other tests, which [`other`] starts as a process. A run of all ignored tests starts
/// it without its variable; then it does nothing.
#[test]
#[ignore = "program for other tests, which start it"]
fn part_of_another_test() {
    let Some(dir) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    match std::env::var(PART).expect("a part").as_str() {
        "has the journal" => has_the_journal(&dir),
        "runs until it is killed" => runs_until_it_is_killed(&dir),
        "has no room" => has_no_room(&dir),
        other => panic!("no such part: {other}"),
    }
}

fn has_the_journal(dir: &Path) {
    let _journal = FileJournal::create(&dir.join("run")).expect("a journal");
    fs_err::write(dir.join("has it"), "").expect("a sign");
    loop {
        std::thread::park();
    }
}

fn kill(mut child: Child) {
    child.kill().expect("it can be killed");
    child.wait().expect("it is gone");
}

#[test]
fn journal_belongs_to_one_process_until_it_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = other("has the journal", dir.path()).spawn().expect("another process");
    eventually("journal is held", || dir.path().join("has it").exists());
    let path = dir.path().join("run");
    assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse)));
    kill(child);
    FileJournal::open(&path).expect("it is free");
}

/// Each attempt is a line in a file; everything else is lost with the process.
struct Mortal {
    events: Sender<Event>,
    dir: PathBuf,
}

impl Executor for Mortal {
    fn act(&mut self, _: &Plan, effect: Effect) {
        let event = match effect {
            Effect::Start { step, attempt } => {
                let mut options = OpenOptions::new();
                let acts = options.append(true).create(true).open(self.dir.join("acts"));
                let line = format!("{} {attempt}\n", step.0);
                acts.expect("a file").write_all(line.as_bytes()).expect("it is kept");
                Event::Ran { step, attempt, end: DONE }
            }
            Effect::Verify { step, attempt } => {
                let holds = acts(&self.dir).iter().any(|(of, _)| *of == step);
                Event::Verified { step, attempt, failed: (!holds).then(FailedCheck::default) }
            }
            Effect::Ask { step, attempt } => {
                let known = acts(&self.dir).contains(&(step, attempt));
                let found = if known { AttemptStatus::Gone } else { AttemptStatus::Never };
                Event::Found { step, attempt, found }
            }
            Effect::Check { .. } | Effect::Kill { .. } => panic!("{effect:?} was not planned"),
        };
        self.events.send(event).expect("it is listened to");
    }
}

fn acts(dir: &Path) -> Vec<(StepId, u32)> {
    let text = fs_err::read_to_string(dir.join("acts")).unwrap_or_default();
    let act = |line: &str| {
        let (step, attempt) = line.split_once(' ').expect("two numbers");
        (StepId(step.parse().expect("a number")), attempt.parse().expect("a number"))
    };
    text.lines().map(act).collect()
}

fn large() -> Arc<Plan> {
    plan(40, 6)
}

fn runs_until_it_is_killed(dir: &Path) {
    let (events, mail) = channel();
    let mut executor = Mortal { events, dir: dir.to_owned() };
    go_on(&large(), &dir.join("run"), &mut executor, &mail);
    fs_err::write(dir.join("ended"), "").expect("a sign");
}

#[test]
fn repeatedly_killed_run_finishes() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(FileJournal::create(&dir.path().join("run")).expect("a journal"));
    let mut seed = 3;
    let mut kills = 0;
    while !dir.path().join("ended").exists() {
        let child = other("runs until it is killed", dir.path()).spawn().expect("a process");
        // The process is killed after a few more attempts; after enough kills it runs to its end.
        let enough = acts(dir.path()).len() + usize::try_from(random(&mut seed)).unwrap() % 12;
        if kills < 30 {
            // No pause: the kill must come at once, or the run ends too early.
            while acts(dir.path()).len() < enough && !dir.path().join("ended").exists() {
                std::thread::yield_now();
            }
            kill(child);
            kills += 1;
        } else {
            assert!(child.wait_with_output().expect("its end").status.success());
        }
    }
    assert!(kills > 10, "it was killed {kills} times");
    let records = FileJournal::peek(&dir.path().join("run")).expect("it can be read");
    let mut lost: BTreeMap<StepId, usize> = BTreeMap::new();
    for record in &records {
        if let Record::Lost { step, .. } = record {
            *lost.entry(*step).or_default() += 1;
        }
    }
    let mut done: BTreeMap<StepId, usize> = BTreeMap::new();
    let acts = acts(dir.path());
    let attempts: BTreeSet<(StepId, u32)> = acts.iter().copied().collect();
    assert_eq!(attempts.len(), acts.len(), "no attempt is started twice");
    for (step, _) in acts {
        *done.entry(step).or_default() += 1;
    }
    assert_eq!(done.len(), 240);
    for (step, count) in done {
        let most = 1 + lost.get(&step).copied().unwrap_or(0);
        assert!(count <= most, "{step} was done {count} times and lost {most} - 1 times");
    }
}

fn has_no_room(dir: &Path) {
    let path = dir.join("run");
    let plan = large();
    let mut journal = FileJournal::create(&path).expect("there is room for the beginning");
    begin(&plan, &mut journal, 1).expect("and a little more");
    let (events, mail) = channel();
    let mut executor = Mortal { events, dir: dir.to_owned() };
    let mut run = Run::new(Arc::clone(&plan));
    let error = drive(&mut run, &mut journal, &mut executor, &mail, || 2).expect_err("no room");
    assert!(matches!(error, JournalError::Full(_)), "{error}");
    let again = journal.append(&[Record::Resume { by: "me".to_owned(), at: 3 }]);
    assert!(matches!(again, Err(JournalError::File(_))), "nothing is written behind a torn tail");
}

#[test]
fn full_disk_prevents_acts_without_a_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let part = other("has no room", dir.path());
    // Limits the size of files to this many blocks.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
    limited.arg(part.get_program()).args(part.get_args());
    limited.envs(part.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let records = FileJournal::peek(&dir.path().join("run")).expect("it can be read");
    let intent = |record: &Record| match record {
        Record::Intent { step, attempt, .. } => Some((*step, *attempt)),
        _ => None,
    };
    let intents: BTreeSet<(StepId, u32)> = records.iter().filter_map(intent).collect();
    let acts = acts(dir.path());
    assert!(!acts.is_empty() && acts.iter().all(|act| intents.contains(act)), "{acts:?}");
    // With free space the run continues.
    let (events, mail) = channel();
    let mut executor = Mortal { events, dir: dir.path().to_owned() };
    go_on(&large(), &dir.path().join("run"), &mut executor, &mail);
}
