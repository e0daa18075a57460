//! Finds and ends processes that an attempt left behind.
//!
//! A process may leave its process group, its session and its parent, and clear its environment. A
//! process that does only some of this is found by the other traces: environment variables, the
//! group of a noted program, or descent from a process that was found. A process that does all of
//! it is found by its control group, if programs have one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::process::GRACE_AFTER_KILL;
use super::{ATTEMPT_VARIABLE, LEDGER_VARIABLE};
use crate::program::SurvivingProcesses;

/// Time between TERM and KILL.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Time for a supervisor to leave a control group in which it starts a program.
const GRACE_OF_SPARED: Duration = Duration::from_secs(1);
/// Number of surviving processes that an error names.
const NAMED: usize = 5;

/// A process, from `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Start time since boot in clock ticks. Together with the process id it is unique.
    pub(super) start: u64,
    name: String,
    parent: i32,
    group: i32,
    session: i32,
    has_ended: bool,
}

impl Process {
    /// A process that has not ended.
    pub(super) fn find(pid: i32) -> Option<Self> {
        let stat = fs_err::read(format!("/proc/{pid}/stat")).ok()?;
        Self::read(&String::from_utf8_lossy(&stat)).filter(|process| !process.has_ended)
    }

    /// Parses `/proc/PID/stat`. The program name may contain any character.
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
        // The process id may be reused at any time; the descriptor always means the same process.
        if let Some(pid) = Pid::from_raw(self.pid)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && Self::find(self.pid).is_some_and(|now| now.start == self.start)
        {
            // The process may have ended in the meantime.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// The traces by which processes of an attempt are found.
#[derive(Debug, Clone, Default)]
pub(super) struct Traces {
    /// Value of the ledger variable,
    pub(super) ledger: String,
    /// and of the attempt variable; any attempt if empty.
    pub(super) attempt: String,
    /// Leaders of noted programs, or the shells around them,
    pub(super) noted: Vec<(i32, u64)>,
    /// and those among them that only wait.
    pub(super) waiting: Vec<(i32, u64)>,
    pub(super) cgroups: Vec<PathBuf>,
    /// Supervisors, which enter a control group briefly to start a program.
    pub(super) spared: Vec<(i32, u64)>,
}

impl Traces {
    /// Ends all processes. The error names those that survive.
    pub(super) fn end(&self) -> Result<(), SurvivingProcesses> {
        let mut asked = HashSet::new();
        let mut left = Vec::new();
        let mut is_quiet = false;
        for (signal, grace) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE_AFTER_KILL)] {
            let until = Instant::now() + grace;
            loop {
                left = self.processes();
                // A process that ended during the search may have started another one, so two empty
                // searches are needed.
                if left.is_empty() && std::mem::replace(&mut is_quiet, true) {
                    return Ok(());
                }
                is_quiet &= left.is_empty();
                for process in &left {
                    // A process that is cleaning up must not get a second TERM.
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
        let named = named.map(|process| format!("{} ({})", process.pid, process.name));
        Err(SurvivingProcesses(named.collect()))
    }

    /// The processes that work for the attempt, without the shells that only wait.
    pub(super) fn working_processes(&self) -> Vec<Process> {
        let only_waits =
            |process: &Process| self.waiting.iter().any(|(pid, start)| process.is(*pid, *start));
        let mut found =
            if self.cgroups.is_empty() { self.processes() } else { self.cgroup_processes() };
        found.retain(|process| !only_waits(process));
        found
    }

    /// Members of the control groups, which are quick to list.
    fn cgroup_processes(&self) -> Vec<Process> {
        let pids: HashSet<i32> = self.cgroups.iter().flat_map(|cgroup| members(cgroup)).collect();
        let found = pids.into_iter().filter_map(Process::find);
        found.filter(|process| !self.is_spared(process)).collect()
    }

    fn is_spared(&self, process: &Process) -> bool {
        self.spared.iter().any(|(pid, start)| process.is(*pid, *start))
    }

    /// Waits briefly until no supervisor is in the control group.
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

    /// Kills all processes at once. Processes are stopped first, so that none forks faster than it
    /// is killed.
    pub(super) fn kill(&self) {
        for cgroup in self.cgroups.iter().filter(|cgroup| self.is_without_spared(cgroup)) {
            // Older kernels do not have this file.
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

    /// Process groups of noted programs, unless the process id was reused.
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

/// A part of an attempt has the name of the attempt, a dot and a suffix.
pub(super) fn is_part_of(name: &[u8], attempt: &[u8]) -> bool {
    name.strip_prefix(attempt).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'.'))
}

/// The selected processes and their descendants, as far as parent, group and session show them.
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

/// The members of a control group and of the groups below it.
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
    fn process_stat_is_parsed_with_any_program_name() {
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
    fn descendants_are_found_with_their_process() {
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
    fn supervisor_in_a_control_group_is_not_killed() {
        let group = tempfile::tempdir().unwrap();
        let sleep = || {
            let child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
            let process = Process::find(child.id().cast_signed()).unwrap();
            (child, process)
        };
        let (mut supervisor, spared) = sleep();
        let (mut program, _) = sleep();
        let procs = group.path().join("cgroup.procs");
        fs_err::write(&procs, format!("{}\n{}\n", supervisor.id(), program.id())).unwrap();
        let traces = Traces {
            ledger: "none".to_owned(),
            attempt: "r/1/1".to_owned(),
            cgroups: vec![group.path().to_owned()],
            spared: vec![(spared.pid, spared.start)],
            ..Traces::default()
        };
        let is_program = |found: &Process| found.pid.cast_unsigned() == program.id();
        assert!(
            traces.working_processes().iter().all(is_program)
                && traces.working_processes().len() == 1
        );
        traces.kill();
        assert!(!group.path().join("cgroup.kill").exists(), "all of them at once");
        assert!(!program.wait().unwrap().success());
        assert!(supervisor.try_wait().unwrap().is_none(), "it keeps others as well");
        fs_err::write(&procs, "").unwrap();
        traces.kill();
        assert!(group.path().join("cgroup.kill").exists());
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }

    #[test]
    fn part_belongs_to_its_attempt_only() {
        let is = |name: &str| is_part_of(name.as_bytes(), b"r/3/1");
        assert!(is("r/3/1") && is("r/3/1.0") && is("r/3/1.0.4"));
        assert!(!is("r/3/10") && !is("r/3/2") && !is("r/3"));
    }
}
