//! Finding and ending processes that an attempt has left.
//!
//! A program may leave its process group, its session and its parent, and clear its environment.
//! Whoever does only some of that is found by the rest: by what its environment says, by the group
//! of a program that was written down, or as a child of one that was found. Whoever does all of it
//! is found by its control group, where programs have one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::process::GRACE_AFTER_KILL;
use super::{ATTEMPT_VARIABLE, LEDGER_VARIABLE};

/// Time to end by themselves.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// To leave a control group where something was just started.
const GRACE_OF_SPARED: Duration = Duration::from_secs(1);
/// Of those that do not go away, so many are named.
const NAMED: usize = 5;

/// What there is to know of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Since boot, in hundredths of a second. With it a number is never somebody else's.
    pub(super) start: u64,
    name: String,
    parent: i32,
    group: i32,
    session: i32,
    has_ended: bool,
}

impl Process {
    /// One that runs.
    pub(super) fn find(pid: i32) -> Option<Self> {
        let stat = fs_err::read(format!("/proc/{pid}/stat")).ok()?;
        Self::read(&String::from_utf8_lossy(&stat)).filter(|process| !process.has_ended)
    }

    /// From a line of `/proc/PID/stat`. The name of a program may hold anything.
    pub(super) fn read(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Self {
            pid: pid.trim().parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
            name: name.to_owned(),
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            has_ended: matches!(*fields.first()?, "Z" | "X"),
        })
    }

    pub(super) fn is(&self, pid: i32, start: u64) -> bool {
        (self.pid, self.start) == (pid, start)
    }

    fn send(&self, signal: Signal) {
        // The number may be somebody else's by now; what the descriptor stands for stays the same.
        if let Some(pid) = Pid::from_raw(self.pid)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && Self::find(self.pid).is_some_and(|now| now.start == self.start)
        {
            // It may have ended just now.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// Whose processes are looked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Traces {
    /// What the environment has to say of the ledger,
    pub(super) ledger: String,
    /// and of the attempt; any attempt, if it is empty.
    pub(super) attempt: String,
    /// Programs that were written down, or the shells that keep them,
    pub(super) noted: Vec<(i32, u64)>,
    /// which only wait.
    pub(super) waiting: Vec<(i32, u64)>,
    pub(super) cgroups: Vec<PathBuf>,
    /// The keepers of all programs, which go to a control group for a moment to start one there.
    pub(super) spared: Vec<(i32, u64)>,
}

impl Traces {
    /// Ends all that is left. If something does not go away, says what.
    pub(super) fn end(&self) -> Result<(), String> {
        let mut asked = HashSet::new();
        let mut left = Vec::new();
        let mut is_quiet = false;
        for (signal, grace) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE_AFTER_KILL)] {
            let until = Instant::now() + grace;
            loop {
                left = self.processes();
                // One that ended while it was looked at may have started another.
                if left.is_empty() && std::mem::replace(&mut is_quiet, true) {
                    return Ok(());
                }
                is_quiet &= left.is_empty();
                for process in &left {
                    // Whoever tidies up when asked is not asked again meanwhile.
                    if signal == Signal::KILL || asked.insert((process.pid, process.start)) {
                        process.send(signal);
                    }
                }
                if Instant::now() >= until && !is_quiet {
                    break;
                }
                if !is_quiet {
                    std::thread::sleep(POLL);
                }
            }
        }
        let named = left.iter().take(NAMED);
        let named: Vec<String> =
            named.map(|process| format!("{} ({})", process.pid, process.name)).collect();
        Err(format!("what it started does not end when it is killed: process {}", named.join(", ")))
    }

    /// Those who work for the attempt now, without who only waits for them.
    pub(super) fn found(&self) -> Vec<Process> {
        let only_waits =
            |process: &Process| self.waiting.iter().any(|(pid, start)| process.is(*pid, *start));
        let mut found = if self.cgroups.is_empty() { self.processes() } else { self.caged() };
        found.retain(|process| !only_waits(process));
        found
    }

    /// Those that are in a control group, which is soon known.
    fn caged(&self) -> Vec<Process> {
        let pids: HashSet<i32> = self.cgroups.iter().flat_map(|cgroup| members(cgroup)).collect();
        let found = pids.into_iter().filter_map(Process::find);
        found.filter(|process| !self.is_spared(process)).collect()
    }

    fn is_spared(&self, process: &Process) -> bool {
        self.spared.iter().any(|(pid, start)| process.is(*pid, *start))
    }

    /// Waits a moment for who is to be spared to leave a control group.
    fn is_without_spared(&self, cgroup: &Path) -> bool {
        let until = Instant::now() + GRACE_OF_SPARED;
        let is_in = || self.spared.iter().any(|(pid, _)| members(cgroup).contains(pid));
        while is_in() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Kills all of them at once. One that makes others faster than they can be killed is kept from
    /// it first.
    pub(super) fn kill(&self) {
        for cgroup in self.cgroups.iter().filter(|cgroup| self.is_without_spared(cgroup)) {
            // Older systems do not have it.
            let _ = fs_err::write(cgroup.join("cgroup.kill"), "1");
        }
        let until = Instant::now() + GRACE_AFTER_KILL;
        let mut held = HashSet::new();
        loop {
            let left = self.processes();
            let new: Vec<&Process> =
                left.iter().filter(|process| held.insert((process.pid, process.start))).collect();
            if new.is_empty() || Instant::now() >= until {
                for process in &left {
                    process.send(Signal::KILL);
                }
                return;
            }
            for process in new {
                process.send(Signal::STOP);
            }
        }
    }

    pub(super) fn processes(&self) -> Vec<Process> {
        let entries = fs_err::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let own = getpid().as_raw_pid();
        let all = pids.filter(|pid| *pid != own).filter_map(Process::find);
        let all: Vec<Process> = all.filter(|process| !self.is_spared(process)).collect();
        let caged: HashSet<i32> = self.cgroups.iter().flat_map(|cgroup| members(cgroup)).collect();
        let groups = self.groups(&all);
        let is_ours = |process: &Process| {
            caged.contains(&process.pid)
                || groups.contains(&process.group)
                || self.noted.iter().any(|(pid, start)| process.is(*pid, *start))
                || self.is_named_by(process.pid)
        };
        with_offspring(all, is_ours)
    }

    /// Groups of programs that were written down, unless their number is another's by now.
    fn groups(&self, all: &[Process]) -> HashSet<i32> {
        let is_reused = |(pid, start): &(i32, u64)| {
            all.iter().any(|process| process.pid == *pid && process.start != *start)
        };
        self.noted.iter().filter(|noted| !is_reused(noted)).map(|(pid, _)| *pid).collect()
    }

    fn is_named_by(&self, pid: i32) -> bool {
        let Ok(environment) = fs_err::read(format!("/proc/{pid}/environ")) else { return false };
        let mut is_of_ledger = false;
        let mut is_of_attempt = self.attempt.is_empty();
        for variable in environment.split(|byte| *byte == 0) {
            if let Some(value) = value_of(variable, LEDGER_VARIABLE) {
                is_of_ledger |= value == self.ledger.as_bytes();
            } else if let Some(value) = value_of(variable, ATTEMPT_VARIABLE) {
                is_of_attempt |= is_part_of(value, self.attempt.as_bytes());
            }
        }
        is_of_ledger && is_of_attempt
    }
}

fn value_of<'a>(variable: &'a [u8], name: &str) -> Option<&'a [u8]> {
    variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// A part of an attempt has a name of its own, after a dot.
pub(super) fn is_part_of(name: &[u8], attempt: &[u8]) -> bool {
    name.strip_prefix(attempt).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'.'))
}

/// Those that are meant, and whoever they have started, as far as that can be seen.
fn with_offspring(mut all: Vec<Process>, is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut found: Vec<Process> = all.extract_if(.., |process| is_meant(process)).collect();
    let mut at = 0;
    while let Some(Process { pid, .. }) = found.get(at) {
        let pid = *pid;
        let more = all.extract_if(.., |process| {
            [process.parent, process.group, process.session].contains(&pid)
        });
        found.extend(more);
        at += 1;
    }
    found
}

/// Of a control group and those below it.
fn members(cgroup: &Path) -> HashSet<i32> {
    let text = fs_err::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut members: HashSet<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs_err::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            members.extend(self::members(&entry.path()));
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32, session: i32) -> Process {
        let name = String::new();
        Process { pid, start: 1, name, parent, group, session, has_ended: false }
    }

    #[test]
    fn a_line_of_the_system_is_read_whatever_a_program_calls_itself() {
        let line = "7 (a) R 1 (b) S 3 4 5 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1234 9 9";
        let read = Process::read(line).unwrap();
        assert_eq!((read.pid, read.parent, read.group, read.session), (7, 3, 4, 5));
        assert_eq!((read.start, read.name.as_str()), (1234, "a) R 1 (b"));
        for cut in
            ["", "7", "7 (a", "7 (a) S 1 2", "x (a) S 3 4 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1"]
        {
            assert_eq!(Process::read(cut), None, "{cut}");
        }
        let own = Process::find(getpid().as_raw_pid()).expect("it runs");
        assert!(own.start > 0);
    }

    #[test]
    fn whoever_one_that_was_found_has_started_is_found_with_it() {
        let all = vec![
            process(9, 8, 9, 9),
            process(2, 1, 2, 1),
            process(3, 2, 2, 1),
            process(4, 3, 4, 4),
            process(5, 1, 4, 4),
            process(6, 1, 6, 6),
        ];
        let found = with_offspring(all, |process| process.pid == 2);
        let mut pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [2, 3, 4, 5], "by parent, by group, by session");
    }

    #[test]
    fn a_keeper_that_starts_something_in_a_control_group_is_not_killed_with_it() {
        let group = tempfile::tempdir().unwrap();
        let sleep = || {
            let child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
            let process = Process::find(child.id().cast_signed()).unwrap();
            (child, process)
        };
        let ((mut keeper, spared), (mut program, _)) = (sleep(), sleep());
        let procs = group.path().join("cgroup.procs");
        fs_err::write(&procs, format!("{}\n{}\n", keeper.id(), program.id())).unwrap();
        let traces = Traces {
            ledger: "none".to_owned(),
            attempt: "r/1/1".to_owned(),
            cgroups: vec![group.path().to_owned()],
            spared: vec![(spared.pid, spared.start)],
            ..Traces::default()
        };
        let is_program = |found: &Process| found.pid.cast_unsigned() == program.id();
        assert!(traces.found().iter().all(is_program) && traces.found().len() == 1);
        traces.kill();
        assert!(!group.path().join("cgroup.kill").exists(), "all of them at once");
        assert!(!program.wait().unwrap().success());
        assert!(keeper.try_wait().unwrap().is_none(), "it keeps others as well");
        fs_err::write(&procs, "").unwrap();
        traces.kill();
        assert!(group.path().join("cgroup.kill").exists());
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }

    #[test]
    fn a_part_belongs_to_its_attempt_and_another_attempt_does_not() {
        let is = |name: &str| is_part_of(name.as_bytes(), b"r/3/1");
        assert!(is("r/3/1") && is("r/3/1.0") && is("r/3/1.0.4"));
        assert!(!is("r/3/10") && !is("r/3/2") && !is("r/3"));
    }
}
