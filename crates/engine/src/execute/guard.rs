//! Sees to it that programs use no more of their machine than they may.
//!
//! Open files and the sizes of files are for the system to refuse. Memory and processes are counted
//! here, because what the system counts by itself is each process alone, and nothing of root's.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::Programs;
use super::leftover::{Process, Traces};
use crate::plan::MayUse;

/// How often it is looked what is used.
const LOOK: Duration = Duration::from_millis(200);

/// What the system says with when a file would become too large, and what shells make of that.
pub(super) const FILE_TOO_LARGE: i32 = 25;
pub(super) const FILE_TOO_LARGE_CODE: i32 = 128 + FILE_TOO_LARGE;

/// Programs write down no image of their memory, which holds secrets, unless they want to.
pub(crate) fn without_core(process: Pid) {
    // What it may want at most, it has of us.
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // It may have ended just now.
    let _ = prlimit(Some(process), Resource::Core, limit);
}

impl MayUse {
    /// Commands for a shell, which end it if the system does not grant them.
    pub(crate) fn as_commands(&self) -> String {
        let mut commands = String::new();
        if let Some(open_files) = self.open_files {
            write!(commands, "ulimit -n {open_files} || exit 125; ").expect("writing to memory");
        }
        if let Some(file_size) = self.file_size {
            write!(commands, "ulimit -f {} || exit 125; ", file_size.div_ceil(512))
                .expect("writing to memory");
        }
        commands
    }

    /// The same, where nobody counts the rest: memory of each process, and processes of the user.
    pub(crate) fn as_all_commands(&self) -> String {
        let mut commands = self.as_commands();
        if let Some(memory) = self.memory {
            write!(commands, "ulimit -v {} || exit 125; ", memory.div_ceil(1024))
                .expect("writing to memory");
        }
        if let Some(processes) = self.processes {
            let own = format!("ulimit -u {processes} 2>/dev/null || ulimit -p {processes}");
            write!(commands, "{own} || exit 125; ").expect("writing to memory");
        }
        commands
    }

    pub(super) fn is_counted(&self) -> bool {
        self.memory.is_some() || self.processes.is_some()
    }

    /// What is used of it that may not be.
    fn excess(&self, found: &[Process]) -> Option<String> {
        if let Some(most) = self.processes
            && found.len() > most as usize
        {
            return Some(format!("it had {} processes at once and may have {most}", found.len()));
        }
        let most = self.memory?;
        let pids = || found.iter().map(|process| process.pid);
        // What is shared is counted for each who has it, unless that is what makes it too much.
        if pids().map(resident).sum::<u64>() <= most {
            return None;
        }
        let used: u64 = pids().map(|pid| proportional(pid).unwrap_or_else(|| resident(pid))).sum();
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        (used > most).then(|| {
            format!("it used {} MiB of memory and may use {}", mebibytes(used), mebibytes(most))
        })
    }
}

/// What only this process and those who share it keep in memory.
fn resident(pid: i32) -> u64 {
    sum(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:", "VmSwap:"]).unwrap_or_default()
}

/// The same, shared parts divided by those who have them.
fn proportional(pid: i32) -> Option<u64> {
    sum(&format!("/proc/{pid}/smaps_rollup"), &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"])
}

/// Of lines `NAME: NUMBER kB`.
fn sum(path: &str, names: &[&str]) -> Option<u64> {
    let text = fs_err::read_to_string(path).ok()?;
    let kib = |line: &str| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let number = rest.trim().strip_suffix("kB")?.trim();
        names.contains(&name).then(|| number.parse::<u64>().ok())?
    };
    Some(text.lines().filter_map(kib).sum::<u64>() * 1024)
}

/// Does the work of an attempt. If its programs use more than they may, all of them are killed, and
/// it is told what they used.
pub(super) fn guarded<T>(
    may_use: Option<&MayUse>,
    programs: &Programs,
    attempt: &str,
    work: impl FnOnce() -> T,
) -> (T, Option<String>) {
    let Some(may_use) = may_use.filter(|may_use| may_use.is_counted()) else {
        return (work(), None);
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(may_use, programs, attempt, &is_over));
        let end = End { is_over: &is_over, watcher: watch.thread().clone() };
        let worked = work();
        drop(end);
        (worked, watch.join().unwrap_or_default())
    })
}

/// Says that the work is over, also when it breaks.
struct End<'a> {
    is_over: &'a AtomicBool,
    watcher: Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.watcher.unpark();
    }
}

fn watch(
    may_use: &MayUse,
    programs: &Programs,
    attempt: &str,
    is_over: &AtomicBool,
) -> Option<String> {
    while !is_over.load(Ordering::Acquire) {
        let traces: Traces = programs.traces(attempt);
        if let Some(excess) = may_use.excess(&traces.found()) {
            traces.kill();
            return Some(excess);
        }
        std::thread::park_timeout(LOOK);
    }
    None
}
